"""bfloat16 and unvalidated distributions stay where they belong."""

import numpy as np
import pytest
import torch as th

from sb3_ppg import PPG
from sb3_ppg.actions import unvalidated_distributions
from tests.helpers import calls_of, collect, distributions_are_validated, losses_of
from tests.helpers import make_on_images as make


@pytest.mark.parametrize("architecture", ["dual", "shared"])
def test_bfloat16_is_for_the_features_alone(architecture):
    """Weights, moments, losses, distributions and values are float32; what convolutions compute is not."""
    model = make(dict(architecture=architecture), mixed_precision="bf16", max_grad_norm=0.5, micro_batch_size=5)
    types = []
    model.policy.pi_features_extractor.stacks[0].register_forward_hook(lambda _, args, output: types.append(output.dtype))
    model.policy.action_net.register_forward_hook(lambda _, args, output: types.append((args[0].dtype, output.dtype)))
    model.learn(64)
    assert set(types) == {th.bfloat16, (th.float32, th.float32)}
    tensors = list(model.policy.state_dict().values())
    for optimizer in (model.policy.optimizer, model.aux_optimizer):
        tensors += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {tensor.dtype for tensor in tensors} == {th.float32}
    collect(model)
    losses = losses_of("joint_losses", model, next(model.rollout_buffer.get(16)))
    assert {value.dtype for value in (losses.total, *losses.terms.values())} == {th.float32}


@pytest.mark.parametrize("mixed_precision", [None, "bf16"])
def test_the_kl_starts_at_zero(mixed_precision):
    """π_old is recorded in the micro-batches that train: bfloat16's rounding is the same. Else Adam would amplify it."""
    model = make(mixed_precision=mixed_precision, micro_batch_size=5, n_envs=2, n_policy_iterations=1, n_aux_epochs=2)
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(16)
    kls = [losses.terms["kl"].item() for _, losses in calls]  # four micro-batches make a step
    assert len(kls) == 8 and max(kls[:4]) < th.finfo(th.float32).eps < 1e-6 < max(kls[4:])  # the heads compute in float32


def test_mixed_precision_is_kept_by_a_saved_model(tmp_path):
    model = make(mixed_precision="bf16")
    model.save(tmp_path / "model.zip")
    loaded = PPG.load(tmp_path / "model.zip")
    obs = np.stack([model.observation_space.sample() for _ in range(3)])
    assert loaded.mixed_precision == loaded.policy.mixed_precision == "bf16"
    assert th.equal(loaded.policy.predict_values(th.as_tensor(obs)), model.policy.predict_values(th.as_tensor(obs)))


def test_distributions_are_validated_again_whichever_training_ends_first():
    """Two trainings in threads share torch's one setting."""
    first, second = unvalidated_distributions(), unvalidated_distributions()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not distributions_are_validated()  # for the one that goes on
    second.__exit__(None, None, None)
    assert distributions_are_validated()
