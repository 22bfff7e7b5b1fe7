"""An exported policy acts as the model does."""

import copy
from itertools import product

import numpy as np
import onnxruntime
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from sb3_ppg import PPG, ArgumentError, ImpalaCNN, MaskablePPG, RecurrentPPG, export
from sb3_ppg.actions import flat_masks, leaves
from sb3_ppg.actions.nested import structure
from tests.actions.test_nested import MASKS, MaskedNested
from tests.helpers import DICT, MASKED_ACTIONS, NESTED, SMALL, VECTOR, MaskedEnv, image_space, masked_envs, random_envs

BOX = spaces.Box(np.float32([-2, 0]), np.float32([1, 0.1]))
INTEGERS = spaces.Box(-128, 127, (2,), np.int8)
IMPALA = dict(features_extractor_class=ImpalaCNN, architecture="detached")
MODELS = {
    "Discrete": (PPG, "MlpPolicy", VECTOR, spaces.Discrete(3), {}),
    "Box": (PPG, "MlpPolicy", VECTOR, BOX, {}),
    "Box of integers": (PPG, "MlpPolicy", VECTOR, INTEGERS, dict(policy_kwargs=dict(ortho_init=False))),
    "gSDE": (PPG, "MlpPolicy", VECTOR, BOX, dict(use_sde=True, policy_kwargs=dict(squash_output=True))),
    "MultiDiscrete": (PPG, "MlpPolicy", spaces.MultiDiscrete([3, 4]), spaces.MultiDiscrete([3, 2]), {}),
    "MultiBinary": (PPG, "MlpPolicy", spaces.Discrete(5), spaces.MultiBinary(3), {}),
    "images": (PPG, "CnnPolicy", image_space(3, 36, 36), spaces.Discrete(3), dict(mixed_precision="bf16")),
    "ImpalaCNN": (PPG, "CnnPolicy", image_space(3, 64, 64), spaces.Discrete(3), dict(policy_kwargs=IMPALA)),
    "Dict": (PPG, "MultiInputPolicy", DICT, spaces.Discrete(3), {}),
    "LSTM": (RecurrentPPG, "MlpLstmPolicy", VECTOR, BOX, dict(policy_kwargs=dict(n_lstm_layers=2))),
    "LSTM, Dict": (RecurrentPPG, "MultiInputLstmPolicy", DICT, spaces.Discrete(4), {}),
}

MASKED = [f"masked {actions}" for actions in MASKED_ACTIONS]


def trained(name: str) -> PPG:
    """For a phase, and one more rollout: its latest tensors have gradients. Its statistics are not those of a beginning."""
    if name in MASKED:
        return MaskablePPG("MlpPolicy", masked_envs(VECTOR, name.removeprefix("masked ")), **SMALL).learn(48)
    cls, policy, observation_space, action_space, arguments = copy.deepcopy(MODELS[name])
    env = random_envs(observation_space, action_space)
    if isinstance(observation_space, spaces.Dict):
        env = VecNormalize(env, norm_obs_keys=["vector"])
    elif observation_space == VECTOR:
        env = VecNormalize(env)
    return cls(policy, env, **SMALL, **arguments).learn(48)


class Program:
    """An exported file, with arrays in and out."""

    def __init__(self, model: PPG, path, kind: str):
        self.names = export.DeterministicPolicy(model).input_names
        if kind == "ONNX":
            export.to_onnx(model, path)
            self.session = onnxruntime.InferenceSession(path)
            assert [one.name for one in self.session.get_inputs()] == self.names
        else:
            export.to_torchscript(model, path)
            self.session, self.program = None, th.jit.load(path)

    def __call__(self, **inputs: np.ndarray) -> list[np.ndarray]:
        if self.session is not None:
            return self.session.run(None, inputs)
        outputs = self.program(*(th.as_tensor(inputs[name]) for name in self.names))
        return [output.numpy() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


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


def assert_same(model: PPG, action: np.ndarray, expected: np.ndarray) -> None:
    assert action.shape == expected.shape and action.dtype == model.action_space.dtype
    np.testing.assert_allclose(action, expected, rtol=1e-5, atol=1e-5)
    assert all(model.action_space.contains(one) for one in action)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", [*MODELS, *MASKED])
def test_an_exported_policy_acts_as_the_model(name, tmp_path):
    """For other numbers of environments than it was traced with, over episodes, under masks."""
    model = trained(name)
    if name == "images":
        model.policy.mixed_precision = None  # the export is in float32
    programs = [Program(model, tmp_path / kind, kind) for kind in ("ONNX", "TorchScript")]
    for program, n in product(programs, (1, 5)):
        (assert_same_over_episodes if model.has_memory else assert_same_once)(model, program, n)


def assert_same_once(model: PPG, program: Program, n: int) -> None:
    inputs, masks = observations(model, n), {}
    if isinstance(model, MaskablePPG):
        masks = {"action_masks": np.stack([MaskedEnv.action_masks(model.env.envs[0].unwrapped) for _ in range(n)])}
    expected, _ = predicted(model, inputs, **masks)
    assert_same(model, program(**inputs, **masks)[0], expected)


def assert_same_over_episodes(model: PPG, program: Program, n: int) -> None:
    lstm = model.policy.lstm_actor
    hidden = cell = np.zeros((lstm.num_layers, n, lstm.hidden_size), np.float32)
    states, rng = None, np.random.default_rng(0)
    for step in range(6):
        starts = rng.random(n) < (1 if step == 0 else 0.3)
        inputs = observations(model, n)
        expected, states = predicted(model, inputs, state=states, episode_start=starts)
        action, hidden, cell = program(**inputs, hidden=hidden, cell=cell, episode_start=starts)
        assert_same(model, action, expected)
        np.testing.assert_allclose(np.stack([hidden, cell]), np.stack(states), rtol=1e-5, atol=1e-5)


NESTED_MODELS = {
    "nested": lambda: PPG("MlpPolicy", random_envs(VECTOR, NESTED), **SMALL),
    "squashed": lambda: PPG("MlpPolicy", random_envs(VECTOR, NESTED), policy_kwargs=dict(squash_output=True), **SMALL),
    "masked": lambda: MaskablePPG("MlpPolicy", DummyVecEnv([MaskedNested] * 2), **SMALL),
    "LSTM": lambda: RecurrentPPG("MlpLstmPolicy", random_envs(VECTOR, NESTED), **SMALL),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", NESTED_MODELS)
def test_each_leaf_of_a_nested_action_is_an_output(name, tmp_path):
    model = NESTED_MODELS[name]().learn(48)
    outputs = export.DeterministicPolicy(model).output_names[:6]
    assert outputs == [f"action.{leaf.path}" for leaf in leaves(NESTED)]
    inputs, others = observations(model, 5), {}
    if name == "masked":
        others = {"action_masks": np.stack([flat_masks(NESTED, MASKS)] * 5)}
    expected, _ = predicted(model, inputs, **others)
    if name == "LSTM":
        zeros = np.zeros((1, 5, 256), np.float32)
        others = dict(hidden=zeros, cell=zeros, episode_start=np.ones(5, bool))
    for kind in ("ONNX", "TorchScript"):
        arrays = Program(model, tmp_path / kind, kind)(**inputs, **others)[: len(outputs)]
        for index, action in enumerate(expected):
            values = iter(array[index] for array in arrays)
            np.testing.assert_allclose(
                spaces.flatten(NESTED, structure(NESTED, values)), spaces.flatten(NESTED, action), rtol=1e-5, atol=1e-5
            )
        assert [array.dtype for array in arrays] == [leaf.space.dtype for leaf in leaves(NESTED)]


def test_an_exported_policy_is_a_copy():
    """The model trains on as it would have; its own precision and place are not changed."""
    model, other = trained("images"), trained("images")
    policy = export.DeterministicPolicy(model)
    inputs = policy.example_inputs()
    before = policy(*inputs)
    assert model.policy.mixed_precision == "bf16" and model.policy.optimizer is not None
    for one in (model, other):
        set_random_seed(0)
        one.learn(32)
    np.testing.assert_array_equal(model.policy.parameters_to_vector(), other.policy.parameters_to_vector())
    assert before.shape == (2,) and th.equal(policy(*inputs), before)


@pytest.mark.parametrize(("policy", "key"), [("MlpPolicy", "action"), ("MlpLstmPolicy", "hidden")])
def test_keys_that_are_names_already_are_refused(policy, key):
    """They would make a file that cannot be read."""
    env = random_envs(spaces.Dict({key: VECTOR, "other": VECTOR}), BOX)
    cls = RecurrentPPG if "Lstm" in policy else PPG
    with pytest.raises(ArgumentError, match=rf"the observation's keys \['{key}'\] are names of other inputs or outputs"):
        export.DeterministicPolicy(cls(policy.replace("Mlp", "MultiInput"), env, **SMALL))


def test_normalization_below_another_wrapper_is_refused():
    env = VecFrameStack(VecNormalize(make_vec_env("Pendulum-v1", 2)), 4)
    with pytest.raises(ArgumentError, match=r"observations of shape \(3,\), the model takes \(12,\): let it be the outermost"):
        export.DeterministicPolicy(PPG("MlpPolicy", env, **SMALL))


def test_what_is_not_ours_is_refused():
    with pytest.raises(ArgumentError, match="is a PPO, not one of sb3_ppg's algorithms"):
        export.to_torchscript(PPO("MlpPolicy", "CartPole-v1"), "policy.pt")
