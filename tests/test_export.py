"""An exported policy acts as the model does."""

import copy
from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, ImpalaCNN, MaskablePPG, RecurrentPPG, export
from sb3_ppg.actions import leaves, structure
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticPolicy
from tests.actions.test_nested import MaskedNested
from tests.helpers import DICT, MASKED_ACTIONS, NESTED, SMALL, VECTOR, image_space, masked_envs, random_envs

BOX = spaces.Box(np.float32([-2, 0]), np.float32([1, 0.1]))
INTEGERS = spaces.Box(-128, 127, (2,), np.int8)
IMPALA = dict(features_extractor_class=ImpalaCNN, architecture="detached")
MODELS = {
    "Discrete": (PPG, "MlpPolicy", VECTOR, spaces.Discrete(3), {}),
    "Box": (PPG, "MlpPolicy", VECTOR, BOX, {}),
    "Box of integers": (PPG, "MlpPolicy", VECTOR, INTEGERS, {}),
    "gSDE": (PPG, "MlpPolicy", VECTOR, BOX, dict(use_sde=True, policy_kwargs=dict(squash_output=True))),
    "MultiDiscrete": (PPG, "MlpPolicy", spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([3, 2]), {}),
    "MultiBinary": (PPG, "MlpPolicy", spaces.Discrete(5), spaces.MultiBinary(3), {}),
    "images": (PPG, "CnnPolicy", image_space(3, 64, 64), spaces.Discrete(3), dict(policy_kwargs=IMPALA)),
    "Dict": (PPG, "MultiInputPolicy", DICT, spaces.Discrete(3), {}),
    "LSTM": (RecurrentPPG, "MlpLstmPolicy", VECTOR, BOX, dict(policy_kwargs=dict(n_lstm_layers=2))),
    "LSTM, Dict": (RecurrentPPG, "MultiInputLstmPolicy", DICT, spaces.Discrete(4), {}),
    "nested": (PPG, "MlpPolicy", VECTOR, NESTED, dict(policy_kwargs=dict(squash_output=True))),
    "nested, LSTM": (RecurrentPPG, "MlpLstmPolicy", VECTOR, NESTED, {}),
}


class Chooses(RecurrentPhasicActorCriticPolicy):
    """Never takes the first action."""

    def evaluate(self, obs, *inputs, **options):
        evaluation = super().evaluate(obs, *inputs, **options)
        if evaluation.distribution is not None:
            logits = evaluation.distribution.distribution.logits
            evaluation.distribution.proba_distribution(logits - 1e8 * th.eye(logits.shape[1])[0])
        return evaluation


MODELS["LSTM of one's own"] = (RecurrentPPG, Chooses, VECTOR, spaces.Discrete(3), {})
MASKED = [*(f"masked {actions}" for actions in MASKED_ACTIONS), "masked nested"]
# Between them, all parts of exported policies: each kind of actions, of observations, of memory, and both normalizations
FILES = ["gSDE", "images", "LSTM, Dict", "masked nested"]


def trained(name: str, **others) -> PPG:
    """For a phase, and one more rollout: its latest tensors have gradients. Its statistics are not those of a beginning."""
    if name == "masked nested":
        return MaskablePPG("MlpPolicy", DummyVecEnv([MaskedNested] * 2), **SMALL).learn(48)
    if name in MASKED:
        return MaskablePPG("MlpPolicy", masked_envs(VECTOR, name.removeprefix("masked ")), **SMALL).learn(48)
    cls, policy, observation_space, action_space, arguments = copy.deepcopy(MODELS[name])
    env = random_envs(observation_space, action_space)
    if isinstance(observation_space, spaces.Dict):
        env = VecNormalize(env, norm_obs_keys=["vector"])
    elif observation_space == VECTOR:
        env = VecNormalize(env)
    model = cls(policy, env, **SMALL, **arguments, **others).learn(48)
    if action_space == INTEGERS:
        th.nn.init.constant_(model.policy.action_net.bias, 7.7)  # of which 8 is the nearest integer
    return model


def observations(model: PPG, n: int) -> dict[str, np.ndarray]:
    """Return observations as an environment gives them, including ones far from the mean."""
    space = model.observation_space
    samples = [space.sample() for _ in range(n)]
    if isinstance(space, spaces.Dict):
        return {name: np.stack([sample[name] for sample in samples]) for name in space.spaces}
    scale = 30 if space == VECTOR else 1
    return {"observation": scale * np.stack(samples)}


def predicted(model: PPG, inputs: dict[str, np.ndarray], **arguments):
    observation = inputs if isinstance(model.observation_space, spaces.Dict) else inputs["observation"]
    vec_normalize = model.get_vec_normalize_env()
    if vec_normalize is not None:
        observation = vec_normalize.normalize_obs(observation)
    return model.predict(observation, **arguments, deterministic=True)


def assert_acts_as(model: PPG, program: Callable[..., list[np.ndarray]]) -> None:
    """For several numbers of environments, over episodes, under masks."""
    leaf_spaces = [space for _, space in leaves(model.action_space)]
    for n in (1, 5):
        memory: dict = {}
        if model.policy.state_keys:
            lstm, states, rng = model.policy.lstm_actor, None, np.random.default_rng(0)
            memory = dict.fromkeys(("hidden", "cell"), np.zeros((lstm.num_layers, n, lstm.hidden_size), np.float32))
        for step in range(5 if memory else 1):
            inputs, context = observations(model, n), {}
            if isinstance(model, MaskablePPG):
                one = model.env.envs[0].unwrapped
                context = {"action_masks": np.stack([one.action_masks() for _ in range(n)])}
            starts = {"episode_start": rng.random(n) < (1 if step == 0 else 0.3)} if memory else {}
            if memory:
                expected, states = predicted(model, inputs, state=states, **starts)
            else:
                expected, _ = predicted(model, inputs, **context)
            outputs = program(**inputs, **context, **memory, **starts)
            if memory:
                memory = dict(zip(("hidden", "cell"), outputs[-2:], strict=True))
                np.testing.assert_allclose(np.stack([*memory.values()]), np.stack(states), rtol=1e-5, atol=1e-5)
            actions = outputs[: len(leaf_spaces)]
            assert [array.dtype for array in actions] == [space.dtype for space in leaf_spaces]
            for index, action in enumerate(expected):
                ours = structure(model.action_space, iter([array[index] for array in actions]))
                assert model.action_space.contains(ours)
                flat = (spaces.flatten(model.action_space, each) for each in (ours, action))
                np.testing.assert_allclose(*flat, rtol=1e-5, atol=1e-5)


def as_arrays(outputs: th.Tensor | tuple[th.Tensor, ...]) -> list[np.ndarray]:
    return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


@pytest.mark.parametrize("name", [*MODELS, *MASKED])
def test_an_exported_policy_acts_as_the_model(name):
    model = trained(name)
    policy = export.DeterministicPolicy(model)
    names = policy.input_names
    if name == "nested":
        assert policy.output_names[:2] == ["action.kind", "action.how.0"] and len(policy.output_names) == 6
    assert_acts_as(model, lambda **inputs: as_arrays(policy(*(th.as_tensor(inputs[each]) for each in names))))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", FILES)
def test_files_act_as_the_model(name, tmp_path):
    """For other numbers of environments than they were traced with."""
    model = trained(name)
    policy = export.DeterministicPolicy(model)
    program = th.jit.trace(policy, policy.example_inputs())
    assert_acts_as(model, lambda **inputs: as_arrays(program(*(th.as_tensor(inputs[each]) for each in policy.input_names))))
    export.to_onnx(model, tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    assert [node.name for node in session.get_inputs()] == policy.input_names
    assert [node.name for node in session.get_outputs()] == policy.output_names
    assert_acts_as(model, lambda **inputs: session.run(None, inputs))


def test_an_exported_policy_is_a_copy():
    """The model trains on as it would have; its own precision and place are not changed."""
    model, other = (trained("Dict", mixed_precision="bf16") for _ in range(2))
    policy = export.DeterministicPolicy(model)
    inputs = policy.example_inputs()
    before = policy(*inputs)
    assert model.policy.mixed_precision == "bf16" and model.policy.optimizer is not None
    for each in (model, other):
        set_random_seed(0)
        each.learn(32)
    np.testing.assert_array_equal(model.policy.parameters_to_vector(), other.policy.parameters_to_vector())
    assert before.shape == (2,) and th.equal(policy(*inputs), before)


def test_what_cannot_be_exported_is_refused():
    """Keys that are names already would make a file that cannot be read."""
    for cls, policy, key in ((PPG, "MultiInputPolicy", "action"), (RecurrentPPG, "MultiInputLstmPolicy", "hidden")):
        model = cls(policy, random_envs(spaces.Dict({key: VECTOR, "other": VECTOR}), BOX), **SMALL)
        with pytest.raises(ArgumentError, match=rf"the observation's keys \['{key}'\] are names of other inputs or outputs"):
            export.DeterministicPolicy(model)
    stacked = VecFrameStack(VecNormalize(random_envs()), 2)
    with pytest.raises(ArgumentError, match="VecNormalize must be outermost: a wrapper around it changes 'observation'"):
        export.DeterministicPolicy(PPG("MlpPolicy", stacked, **SMALL))
