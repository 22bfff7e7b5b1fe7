"""Helpers of several tests."""

import inspect
import io
import multiprocessing
import os
import re
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper

from sb3_ppg import PPG, ImpalaCNN, MaskablePPG, MlpPolicy, RecurrentPPG, RewardNormalizer
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollout_buffers import NormalizedRewardDictRolloutBuffer, NormalizedRewardRolloutBuffer
from sb3_ppg.buffers.rollouts import batches
from sb3_ppg.distributed import process_group
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.losses import Losses
from sb3_ppg.zoo import launcher

ROOT = Path(__file__).parent.parent
VECTOR, THREE_ACTIONS = spaces.Box(-1, 1, (3,)), spaces.Discrete(3)
# Older versions of torch train without compiling
needs_compiler = pytest.mark.skipif(
    "isolate_recompiles" not in inspect.signature(th.compile).parameters, reason="updates are compiled by torch 2.13"
)


class RandomEnv(gym.Env):
    """Random observations of any space, reproducible from the seed; the reward is the first number of the observation."""

    def __init__(
        self, observation_space: spaces.Space = VECTOR, action_space: spaces.Space = THREE_ACTIONS, episode_length: int = 20
    ):
        self.observation_space = observation_space
        self.action_space = action_space
        self.episode_length = episode_length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps += 1
        obs = self.observation_space.sample()
        first = next(iter(obs.values())) if isinstance(obs, dict) else obs
        return obs, float(np.ravel(first)[0]), False, self.steps == self.episode_length, {}


class VectorRewardEnv(RandomEnv):
    """Random observations; the reward has K components, of the observation and the action, and some episodes end by chance."""

    def __init__(self, n_components: int = 2, action_space: spaces.Space | None = None):
        super().__init__(spaces.Box(-1, 1, (3,)), action_space or spaces.Discrete(3), episode_length=11)
        self.reward_space = spaces.Box(-10, 10, (n_components,))

    def step(self, action):
        obs, first, _, truncated, info = super().step(action)
        vector = np.array([3 * first, 0.5 - np.sum(action), obs[1]])[: self.reward_space.shape[0]]
        return obs, vector, bool(obs[2] > 0.9), truncated, info


class BatchNormExtractor(BaseFeaturesExtractor):
    """Layers that behave differently in training mode."""

    def __init__(self, observation_space: spaces.Box):
        (n,) = observation_space.shape
        super().__init__(observation_space, n)
        self.layers = th.nn.Sequential(th.nn.BatchNorm1d(n), th.nn.Dropout(0.5))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.layers(observations)


MASKED_ACTIONS = {
    "Discrete": (spaces.Discrete(5), [5]),
    "MultiDiscrete": (spaces.MultiDiscrete([3, 2, 4]), [3, 2, 4]),
    "MultiBinary": (spaces.MultiBinary(3), [2, 2, 2]),
}


class MaskedEnv(RandomEnv):
    """The possible actions change with each step; others are an error."""

    def __init__(self, observation_space: spaces.Space = VECTOR, actions: str = "Discrete"):
        action_space, self.sizes = MASKED_ACTIONS[actions]
        super().__init__(observation_space, action_space, episode_length=7)

    def action_masks(self) -> np.ndarray:
        rng = np.random.default_rng([self.steps, int(self.np_random_seed or 0) % 2**31])
        masks = [rng.random(size) < 0.5 for size in self.sizes]
        for mask in masks:
            mask[rng.integers(len(mask))] = True
        return np.concatenate(masks)

    def step(self, action):
        masks = np.split(self.action_masks(), np.cumsum(self.sizes)[:-1])
        assert all(mask[int(each)] for mask, each in zip(masks, np.atleast_1d(action), strict=True)), "an invalid action"
        return super().step(action)


class StepsChanged(VecEnvWrapper):
    """Environments whose observations, rewards, ends and infos a function changes."""

    def __init__(self, venv: VecEnv, change: Callable[..., tuple]):
        super().__init__(venv)
        self.change = change

    def reset(self):
        return self.venv.reset()

    def step_wait(self):
        return self.change(*self.venv.step_wait())


class Reusing(VecEnvWrapper):
    """Environments that write each step into the same arrays, like simulators and SuperSuit."""

    def reset(self):
        self.arrays = self.venv.reset(), np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool)
        return self.arrays[0]

    def step_wait(self):
        *arrays, infos = self.venv.step_wait()
        map_arrays(np.copyto, self.arrays, tuple(arrays))
        return *self.arrays, infos


def image_space(*shape: int) -> spaces.Box:
    return spaces.Box(0, 255, shape, np.uint8)


BOX = spaces.Box(-1.0, 2.0, (2,))
DICT = spaces.Dict(image=image_space(36, 36, 1), vector=VECTOR)
NESTED = spaces.Dict(
    kind=spaces.Discrete(3, start=2),
    how=spaces.Tuple([spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [2, 3]]), spaces.MultiBinary((2, 2))]),
    move=spaces.Dict(
        here=spaces.Box(np.float32([[-1, 0], [5, -3]]), np.float32([[1, 2], [6, 3]])),
        there=spaces.Box(0, 255, (3,), np.uint8),
        far=spaces.Box(-1, 1, (1,), np.float64),
    ),
)
ARCHITECTURES = ("dual", "detached", "shared")


def random_envs(
    observation_space: spaces.Space = VECTOR, action_space: spaces.Space = THREE_ACTIONS, n_envs: int = 2, **kwargs
) -> VecEnv:
    return make_vec_env(lambda: RandomEnv(observation_space, action_space, **kwargs), n_envs, seed=0)


def masked_envs(observation_space: spaces.Space = VECTOR, actions: str = "Discrete", n_envs: int = 2) -> VecEnv:
    return make_vec_env(lambda: MaskedEnv(observation_space, actions), n_envs, seed=0)


SMALL = dict(n_steps=8, batch_size=8, n_epochs=1, n_policy_iterations=2, n_aux_epochs=1, seed=0, device="cpu")
MIXED = spaces.Dict({"a/b": VECTOR, "c": spaces.Discrete(3)})
# Algorithm, policy, environments and arguments of the policy of each kind of model
KINDS: dict[str, tuple] = {
    "vectors": (PPG, "MlpPolicy", random_envs, {}),
    "images": (PPG, "CnnPolicy", lambda: random_envs(image_space(36, 36, 1)), {}),
    "Dict": (PPG, "MultiInputPolicy", lambda: random_envs(MIXED, BOX), {}),
    "LSTM": (RecurrentPPG, "MlpLstmPolicy", random_envs, {"lstm_hidden_size": 4}),
    "masks": (MaskablePPG, "MlpPolicy", masked_envs, {}),
}
WITH_CONTEXT = ("vectors", "LSTM", "masks")  # the policies get nothing, memory, or masks in addition to observations


def make_kind(kind: str, **kwargs: Any) -> PPG:
    algorithm, policy, make_envs, policy_kwargs = KINDS[kind]
    return algorithm(policy, make_envs(), **{**SMALL, "policy_kwargs": policy_kwargs, **kwargs})


def saved_and_loaded(model: PPG, folder: Path, env: VecEnv | None = None) -> PPG:
    """Save a model and its rollouts, and return what the files hold."""
    model.save(folder / "model.zip")
    model.save_aux_buffer(folder / "aux_buffer.npz")
    loaded = type(model).load(folder / "model.zip", env=env or model.get_env(), device="cpu")
    loaded.load_aux_buffer(folder / "aux_buffer.npz")
    return loaded


def make_with_papers_values(env: Any = "CartPole-v1", policy: str = "MlpPolicy", **kwargs: Any) -> PPG:
    """Make a model with phases of three rollouts of 16 steps."""
    small = dict(n_steps=16, batch_size=16, n_policy_iterations=3, n_aux_epochs=2, seed=0, device="cpu")
    return PPG(**{**PAPERS_VALUES, **small, "policy": policy, "env": env, **kwargs})


def make_on_images(policy_kwargs=None, n_envs: int = 4, space: spaces.Space | None = None, **kwargs) -> PPG:
    space = space or image_space(3, 36, 36)
    env = random_envs(space, spaces.Discrete(5), n_envs, episode_length=7)
    impala = dict(features_extractor_class=ImpalaCNN, features_extractor_kwargs=dict(features_dim=32, channels=(8, 16)))
    arguments = SMALL | dict(batch_size=16, n_aux_epochs=2, aux_batch_size=16, policy_kwargs=impala | (policy_kwargs or {}))
    return PPG("CnnPolicy", env, **arguments | kwargs)


def normalized_rewards(cls: type | None = None, of_dictionaries: bool = False, **kwargs: Any) -> dict[str, Any]:
    """Return the arguments for the authors' reward normalizer; ``cls`` is another class of rollout buffers."""
    cls = cls or (NormalizedRewardDictRolloutBuffer if of_dictionaries else NormalizedRewardRolloutBuffer)
    return dict(rollout_buffer_class=cls, rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer(**kwargs)))


def collect(model: PPG, **arguments: Any) -> None:
    """Collect one rollout, without its update."""
    with patch.object(model, "train"):
        model.learn(model.n_steps * model.n_envs, log_interval=None, **arguments)


def learn_and_log(model: BaseAlgorithm, total_timesteps: int, **arguments: Any) -> dict[str, Any]:
    """Train, and return the latest value under each name in the log."""
    model.learn(total_timesteps, log_interval=None, **arguments)  # otherwise it is gone once it is written
    return dict(model.logger.name_to_value)


def weights(model: BaseAlgorithm) -> dict[str, th.Tensor]:
    """Copy the policy's parameters and buffers."""
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def changed(before: dict[str, th.Tensor] | BaseAlgorithm, after: dict[str, th.Tensor] | BaseAlgorithm) -> set[str]:
    """Return the names of tensors that differ, or of weights of two models."""
    one, other = (weights(each) if isinstance(each, BaseAlgorithm) else each for each in (before, after))
    return {name for name in one if not th.equal(one[name], other[name])}


def code_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)


def names_of(page: str, word: str) -> dict[str, Any]:
    """Return the names that the page's block with this word defines before it makes a model."""
    (code,) = (block for block in code_blocks(page) if word in block)
    names: dict[str, Any] = {}
    exec(code.split("model = PPG(")[0], names)
    return names


def calls_of(owner: Any, name: str) -> list[tuple[tuple, Any]]:
    """Let a method note its calls: arguments and result."""
    calls: list[tuple[tuple, Any]] = []
    method = getattr(owner, name)

    def noted(*args: Any) -> Any:
        result = method(*args)
        calls.append((args, result))
        return result

    setattr(owner, name, noted)
    return calls


def epoch_of(model: PPG, size: int) -> Iterator[Any]:
    """The minibatches of the policy phase of an epoch on the rollout that was collected, without an objective's extras."""
    rollout = model.latest_rollout()
    length, parts = rollout.parts(size, np.random.permutation)
    found = rollout.select(name for name in model.minibatch_keys if name in rollout.arrays)
    return batches([found], parts, length, model.device)


def evaluate_auxiliary(policy: Any, observations: Any) -> tuple[Any, th.Tensor, th.Tensor]:
    """Evaluate as in the auxiliary phase. Return the distribution, the auxiliary head's values and the true head's, (B,)."""
    distribution, latent_pi, latent_vf, _ = policy.evaluate_batch(SimpleNamespace(observations=observations), auxiliary=True)
    return distribution, policy.aux_value_net(latent_pi).squeeze(1), policy.value_net(latent_vf).squeeze(1)


def untrained(model: PPG, n_rollouts: int) -> set[str]:
    """Train; the log is finite. Return the names of the parameters that stay as they are."""
    before = {name: parameter.detach().clone() for name, parameter in model.policy.named_parameters()}
    logged = learn_and_log(model, model.n_steps * model.n_envs * n_rollouts)
    assert all(np.isfinite(value) for name, value in logged.items() if "explained" not in name)
    return before.keys() - changed(before, dict(model.policy.named_parameters()))


def assert_both_phases_train(model: PPG) -> None:
    """Train through an auxiliary phase and one rollout more: every parameter moves."""
    assert not untrained(model, model.n_policy_iterations + 1)
    assert model.n_aux_phases == 1 and len(model.aux_buffer) == 1


class ActsThroughTorch(MlpPolicy):
    """Acts as networks that NumPy does not cover."""

    def numpy_actor(self) -> None:
        return None


def assert_trains_like(ours: PPG, theirs: BaseAlgorithm, total_timesteps: int) -> None:
    """Train both from equal weights, environments and random numbers: the weights are equal again, and have moved."""
    start = weights(theirs)
    missing, unexpected = ours.policy.load_state_dict(start, strict=False)
    assert not unexpected and all("aux" in name or name.endswith((".mean", ".std")) for name in missing)
    for model in (theirs, ours):
        model.set_random_seed(5)
        model.env.seed(5)
        model.learn(total_timesteps, log_interval=None)
        assert model.num_timesteps == total_timesteps
    got, expected = weights(ours), weights(theirs)
    assert changed(start, expected)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-6, err_msg=name)


def distributions_are_validated() -> bool:
    """Tell whether torch's distributions check their arguments."""
    try:
        th.distributions.Bernoulli(th.tensor(2.0))
    except ValueError:
        return True
    return False


def losses_of(name: str, model: PPG, batch: Any, **coefficients: float | None) -> Losses:
    """Return the losses that this method of a model's objective computes from a minibatch of either buffer."""
    losses = getattr(model.objective, name)
    return losses(model.policy, batch, model.coefficients()._replace(**coefficients))


def run(*arguments: str, cwd: Path | None = None, fails: bool = False, **environment: str) -> str:
    """Run ``sb3-ppg ...`` in this process, which has the imports; return what it printed, and its error if it must fail."""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(output):
        error = _in_place(launcher.main, ["sb3-ppg", *arguments], cwd, environment)
    printed = f"{output.getvalue()}{'' if error is None else error}"
    assert (error is not None) == fails, printed
    return printed


def run_code(code: str, cwd: Path | None = None) -> None:
    """Run lines of a page or of a model card."""
    error = _in_place(lambda: exec(f"import sys; sys.path.insert(0, '')\n{code}", {"__name__": "__main__"}), ["-c"], cwd, {})
    assert error is None, error


def _in_place(function: Callable[[], None], argv: list[str], cwd: Path | None, environment: dict[str, str]) -> str | None:
    """Call a function as a program would run; return its error, if there is one."""
    folder = str(cwd or Path.cwd())
    with (
        chdir(folder),
        patch.object(sys, "argv", argv),
        patch.object(sys, "path", [*sys.path]),
        patch.dict(os.environ, environment),
    ):
        try:
            function()
        except SystemExit as end:
            return None if end.code in (None, 0) else str(end.code)
        except Exception:
            return traceback.format_exc()
    return None


def run_in_a_new_process(function: Callable[..., Any], *args: Any) -> Any:
    with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
        return pool.submit(function, *args).result()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def work(rank: int, size: int, port: int, folder: Path, task: Callable, arguments: tuple) -> Any:
    """Do a task as one of the processes that ``torchrun`` starts."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), SB3_PPG_TIMEOUT="20", SB3_PPG_START_TIMEOUT="20")
    th.set_num_threads(1)
    os.chdir(folder)
    with process_group():
        return task(*arguments)


def in_processes(task: Callable, folder: Path, *arguments: Any, size: int = 2) -> list[Any]:
    """Call a function of a module in several processes, in a process group and a folder; return what it returns in each."""
    port = free_port()
    with ProcessPoolExecutor(size, multiprocessing.get_context("forkserver")) as pool:
        return [*pool.map(work, range(size), *map(repeat, (size, port, folder, task, arguments)))]


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    """Wait until a condition holds; fail if it does not in time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)
