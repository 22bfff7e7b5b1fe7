"""Each fast path takes the same step as the plain one; bfloat16 and unvalidated distributions stay where they belong."""

import copy
from functools import partial, wraps
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch.nn import functional as F

from sb3_ppg import PPG, MaskablePPG
from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.optim.compiled import tracing
from tests.helpers import (
    SMALL,
    VECTOR,
    RandomEnv,
    calls_of,
    collect,
    distributions_are_validated,
    epoch_of,
    losses_of,
    needs_compiler,
)
from tests.helpers import make_on_images as make


def gradients(model: PPG) -> dict[str, th.Tensor]:
    """Return the gradient of each phase's losses on the first minibatch."""
    parameters, batch = [*model.policy.parameters()], next(epoch_of(model, model.batch_size))
    model.aux_buffer.add(model.latest_rollout().kept(model.stored_keys))
    model.policy.set_training_mode(False)
    model.aux_buffer.record(partial(model.objective.recorded, model.policy), 2, model.resolved_micro_batch_size())
    with th.no_grad():  # for the KL not to be zero
        for parameter in parameters:
            parameter.mul_(1.05)
    auxiliary = losses_of("auxiliary_losses", model, next(model.aux_buffer.minibatches(2)), value_unit=1.0)
    found = {}
    for phase, losses in {"policy": losses_of("joint_losses", model, batch), "auxiliary": auxiliary}.items():
        gradient = th.autograd.grad(losses.total, parameters, allow_unused=True)
        found[phase] = th.cat([each.flatten() for each in gradient if each is not None])
    return found


def test_minibatches_are_sb3s(monkeypatch):
    """Gathered together or one by one: the same samples in the same order."""
    model = make(batch_size=10)  # 32 samples: 10, 10, 10, 2
    collect(model)
    found = []
    for at_once in (1, 2 * 10 * 3 * 36 * 36, 2**22):  # one minibatch, two, all of them
        monkeypatch.setattr("sb3_ppg.buffers.rollouts.GATHERED_BYTES", at_once)
        np.random.seed(3)
        found.append(list(epoch_of(model, model.batch_size)))
    np.random.seed(3)
    expected = list(model.rollout_buffer.get(10))
    for epoch in found:
        assert [len(minibatch.actions) for minibatch in epoch] == [10, 10, 10, 2]
        for ours, theirs in zip(epoch, expected, strict=True):
            assert all(th.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_bfloat16_gradients_point_where_float32s_do():
    models = [make(), make(mixed_precision="bf16")]
    found = []
    collect(models[0])
    for model in models:
        model.rollout_buffer = copy.copy(models[0].rollout_buffer)
        np.random.seed(0)
        found.append(gradients(model))
    for phase, expected in found[0].items():
        cosine = F.cosine_similarity(found[1][phase], expected, dim=0)
        assert not th.equal(found[1][phase], expected) and cosine > 0.99, f"{phase}: {cosine}"


def test_bfloat16_is_for_the_features_alone():
    """Weights, moments, losses, distributions and values are float32; what convolutions compute is not."""
    model = make(dict(architecture="shared"), mixed_precision="bf16", max_grad_norm=0.5, micro_batch_size=5)
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
    losses = losses_of("joint_losses", model, next(epoch_of(model, 16)))
    assert {value.dtype for value in (losses.total, *losses.terms.values())} == {th.float32}


@pytest.mark.parametrize("mixed_precision", [None, "bf16"])
def test_the_kl_starts_at_zero(mixed_precision):
    """π_old is recorded in the micro-batches that train: bfloat16's rounding is the same. Else Adam would amplify it."""
    model = make(mixed_precision=mixed_precision, micro_batch_size=5, n_envs=2, n_policy_iterations=1, n_aux_epochs=2)
    calls = calls_of(model.objective, "auxiliary_losses")
    model.learn(16)
    kls = [losses.terms["kl"].item() for _, losses in calls]  # four micro-batches make a step
    assert len(kls) == 8 and max(kls[:4]) < th.finfo(th.float32).eps < 1e-6 < max(kls[4:])  # the heads compute in float32


def test_distributions_are_validated_again_whichever_training_ends_first():
    """Two trainings in threads share torch's one setting."""
    first, second = unvalidated_distributions(), unvalidated_distributions()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not distributions_are_validated()  # for the one that goes on
    second.__exit__(None, None, None)
    assert distributions_are_validated()


seen: list[tuple[bool, ...]] = []


def look(*_: Any) -> None:
    """Note whether distributions are validated, gradients are on, and the compiler treats sizes as it does by default."""
    seen.append((distributions_are_validated(), th.is_grad_enabled(), th._dynamo.config.automatic_dynamic_shapes))


class Looking(RandomEnv):
    def reset(self, **kwargs):
        look()
        return super().reset(**kwargs)

    def step(self, action):
        look()
        return super().step(action)

    def action_masks(self):
        look()
        return np.ones(2, bool)


class LookingCallback(BaseCallback):
    def _on_step(self) -> bool:
        look()
        return True

    _on_rollout_start = _on_rollout_end = look


@needs_compiler
@pytest.mark.parametrize(("cls", "compile_updates"), [(PPG, False), (PPG, True), (MaskablePPG, False)])
def test_environments_and_callbacks_run_with_the_users_settings(cls, compile_updates, monkeypatch):
    monkeypatch.setattr(th, "compile", wraps(th.compile)(partial(th.compile, backend="eager")))
    monkeypatch.setattr(th._inductor, "compile", lambda graph, *_, **__: graph)
    seen.clear()
    env = Looking(VECTOR, spaces.Discrete(2))
    env = ActionMasker(env, lambda env: env.action_masks()) if cls is MaskablePPG else env
    in_torch = dict(features_extractor_class=type("Own", (FlattenExtractor,), {}))  # NumPy does not act for it
    arguments = SMALL | dict(n_aux_epochs=0, compile_updates=compile_updates, policy_kwargs=in_torch)
    cls("MlpPolicy", env, **arguments).learn(32, callback=LookingCallback())
    assert len(seen) > 32 and set(seen) == {(True, True, True)}
    with tracing():
        assert th._dynamo.config.automatic_dynamic_shapes is False
