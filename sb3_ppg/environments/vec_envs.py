"""Vector environments of Gymnasium (``gymnasium.make_vec``) and of EnvPool (https://envpool.readthedocs.io) for SB3."""

import ctypes
import importlib.util
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array
from gymnasium.wrappers.vector import DictInfoToList
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from typing_extensions import override

from sb3_ppg.arrays import map_arrays
from sb3_ppg.distributed import rank
from sb3_ppg.errors import ArgumentError, MissingExtraError, pip_install, warn

# Libraries that Procgen links to on Python 3.11, in an order in which they can be loaded
QT_LIBRARIES = ["libicudata.so.56", "libicuuc.so.56", "libicui18n.so.56", "libQt5Core.so.5", "libQt5Gui.so.5"]


class EpisodicVecEnv(VecEnv):
    """Base of vector environments that add up the rewards of each episode, as ``Monitor`` does for one environment."""

    def __init__(self, num_envs: int, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self._returns, self._lengths = np.zeros(num_envs), np.zeros(num_envs, dtype=int)
        self._start = time.time()
        super().__init__(num_envs, observation_space, action_space)

    @override
    def reset(self) -> VecEnvObs:
        observations, infos = self._first_observations()
        self.reset_infos = list(infos)
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = self._lengths[:] = 0
        return observations

    def _first_observations(self) -> tuple[VecEnvObs, Iterable[dict[str, Any]]]:
        raise NotImplementedError

    @override
    def step_async(self, actions: np.ndarray) -> None:
        self.waiting_actions = actions

    def _end_episode(self, index: int, last_observation: Any, was_cut_off: bool) -> dict[str, Any]:
        """End an environment's episode, and return the entries that SB3 expects in its info."""
        episode = {"r": float(self._returns[index]), "l": int(self._lengths[index]), "t": round(time.time() - self._start, 6)}
        self._returns[index] = self._lengths[index] = 0
        return {"terminal_observation": last_observation, "TimeLimit.truncated": was_cut_off, "episode": episode}


def observation_at(observations: Any, index: int) -> Any:
    """Return a copy of one environment's observation from the observations of all, (num_envs, ...)."""
    return map_arrays(lambda array: array[index].copy(), observations)


def replace_observations(observations: Any, new: Any, places: Any) -> None:
    """Overwrite the observations, (num_envs, ...), of environments at places: indices, one index, or a mask (num_envs,)."""

    def put(array: np.ndarray, new_array: np.ndarray) -> None:
        array[places] = new_array

    map_arrays(put, observations, new)


# ---- Gymnasium ----

# Modules of Gymnasium's wrappers that keep no state, so that they do not mind if some environments are reset
STATELESS = ("vectorize_action", "vectorize_observation", "vectorize_reward", "dict_info_to_list")
SAME_STEP = "autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP"


def _possible_state(env: VectorEnv) -> Iterator[str]:
    """Iterate over the names of wrappers that may keep a state for each environment, as ``NormalizeReward`` does."""
    while isinstance(env, VectorWrapper):
        package, _, module = type(env).__module__.rpartition(".")
        if package != "gymnasium.wrappers.vector" or module not in STATELESS:
            yield type(env).__name__
        env = env.env


class _ToNumPy(VectorWrapper):
    """
    Copies all arrays, such as those of JAX, to new NumPy arrays, because Gymnasium may reuse its own. Removes infos about all
    environments together, such as a mean, because ``DictInfoToList`` has no place for them.
    """

    @override
    def reset(self, **kwargs: Any) -> Any:
        observations, infos = map_arrays(_copied_to_numpy, self.env.reset(**kwargs))
        return observations, self._of_each(infos)

    @override
    def step(self, actions: Any) -> Any:
        *others, infos = map_arrays(_copied_to_numpy, self.env.step(actions))
        return *others, self._of_each(infos)

    def _of_each(self, infos: dict[str, Any]) -> dict[str, Any]:
        found = {name: self._of_each(value) if isinstance(value, dict) else value for name, value in infos.items()}
        n = self.num_envs
        return {name: value for name, value in found.items() if isinstance(value, dict) or np.shape(value)[:1] == (n,)}


def _copied_to_numpy(array: Any) -> np.ndarray:
    return np.array(np.asarray(array))  # one call may give an array that is only for reading


class GymnasiumVecEnv(EpisodicVecEnv):
    """
    A vector environment of Gymnasium as a ``VecEnv``. PPG wraps the result of ``gymnasium.make_vec`` in it; for evaluation,
    do so yourself::

        eval_env = GymnasiumVecEnv(gymnasium.make_vec("Pendulum-v1", num_envs=4))

    With each ``autoreset_mode``, an environment whose episode has ended is reset in the same step, as SB3 expects. Its last
    observation is in ``infos[i]["terminal_observation"]``, ``infos[i]["TimeLimit.truncated"]`` says whether the episode was
    truncated, ``infos[i]["episode"]`` has its return "r", length "l" and the seconds since the start "t".

    A custom class that resets in the next step (such as ``CartPoleVectorEnv``) cannot do this, nor can next-step mode with
    wrappers that may keep a state for each environment (such as ``NormalizeReward``), or with an ``AsyncVectorEnv`` without
    shared memory. The step that resets then becomes an episode of one step, which starts and is truncated at the last
    observation, with a reward of 0.

    Vector rewards, (num_envs, K), as those of MO-Gymnasium's vector environments, are combined as in ``VectorRewards``.

    :param env: vector environment
    :raises ValueError: if neither ``metadata`` of its own nor its ``autoreset_mode`` says in which step it resets
    :raises ArgumentError: if it never resets by itself and has wrappers that may keep a state for each environment
    """

    lost_steps: tuple[str, str] | None = None  # steps that reset and are lost for training, and the remedy

    def __init__(self, env: VectorEnv) -> None:
        env = env.env if isinstance(env, DictInfoToList) else env  # which is added below
        self.env, self._base_env = DictInfoToList(_ToNumPy(env)), cast(Any, env.unwrapped)
        self.mode = AutoresetMode(
            env.metadata.get("autoreset_mode")
            if env.metadata is not VectorEnv.metadata  # ale-py 0.12.1 stores its latest environment's mode in that dict
            else getattr(self._base_env, "autoreset_mode", None)
        )
        self._wraps_single_envs = isinstance(self._base_env, SyncVectorEnv | AsyncVectorEnv)
        stateful = [] if self.mode == AutoresetMode.SAME_STEP else [*_possible_state(env)]
        name = " in ".join([type(self._base_env).__name__, *reversed(stateful)])
        remedy = (
            "use SB3's VecNormalize(GymnasiumVecEnv(env)) in place of NormalizeReward or NormalizeObservation, or with other "
            f"wrappers {SAME_STEP} (in gymnasium.make_vec: vector_kwargs=dict({SAME_STEP}))"
        )
        if stateful and self.mode == AutoresetMode.DISABLED:
            raise ArgumentError(f"`env` cannot work: {name} may lose its state when some environments are reset: {remedy}")
        # After a reset that was asked for, workers of Gymnasium 1.4.0 without shared memory reset a second time by themselves
        repeats = self._repeats = isinstance(self._base_env, AsyncVectorEnv) and not self._base_env.shared_memory
        is_forced = bool(stateful or repeats or not self._wraps_single_envs)
        self._resets_on_next_step = self.mode == AutoresetMode.NEXT_STEP and is_forced
        if self._resets_on_next_step:
            if repeats:
                name, remedy = f"{name} without shared memory", f"use `shared_memory`=True, or {SAME_STEP}"
            if not self._wraps_single_envs:
                other = 'gymnasium.make_vec(..., vectorization_mode="sync"), or sb3_ppg.environments.EnvPoolVecEnv for EnvPool'
                remedy = f"use {SAME_STEP} if the class takes it, {other}"
            self.lost_steps = f"{name} resets in the step after an episode's end, which is lost for training", remedy
            warn(": ".join(self.lost_steps))
        # Last observations and, from infos, vector rewards, by environment, of episodes that ended in the previous step
        self._last: dict[int, tuple[Any, Any]] = {}
        self.reward_weights: np.ndarray | None = None  # a number for each component of vector rewards
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space)

    @override
    def _first_observations(self) -> tuple[VecEnvObs, Iterable[dict[str, Any]]]:
        options = self._options[0] or None
        if not all(data_equivalence(other, self._options[0], exact=True) for other in self._options):
            raise NotImplementedError("Gymnasium's vector environments have the same options for all environments")
        observations, infos = self.env.reset(seed=self._seeds[0], options=options)
        pending: Iterable[int] = []
        if self._resets_on_next_step:  # some reset a second time in the next step: these workers, and environments in JAX
            ended = getattr(self._base_env, "prev_done", None)
            pending = [*self._last] if self._repeats else [] if ended is None else np.flatnonzero(np.asarray(ended)).tolist()
        vectors = {index: vector for index, (_, vector) in self._last.items()}
        self._last = {index: (observation_at(observations, index), vectors.get(index)) for index in pending}
        return observations, infos

    @override
    def step_async(self, actions: Any) -> None:
        if isinstance(self.action_space, (spaces.Dict, spaces.Tuple)):  # Gymnasium takes the batch of each leaf
            batch: Any = create_empty_array(self.action_space, self.num_envs)
            actions = concatenate(self.action_space, actions, batch)
        self.waiting_actions = actions

    @override
    def step_wait(self) -> VecEnvStepReturn:
        observations, given, terminated, truncated, infos = self.env.step(self.waiting_actions)
        rewards = self._combined(given)
        infos, dones = list(infos), terminated | truncated
        self._returns += rewards
        self._lengths += 1
        finished = dones.nonzero()[0].tolist()
        for index in finished:
            last = observation_at(observations, index)
            if self.mode == AutoresetMode.SAME_STEP:
                self.reset_infos[index] = infos[index]
                last, infos[index] = infos[index].pop("final_obs"), infos[index].pop("final_info", {})
            infos[index] |= self._end_episode(index, last, bool(truncated[index] and not terminated[index]))
        for index, (last, vector) in self._last.items():  # environments that were reset in this step
            self.reset_infos[index] = infos[index]
            infos[index] = self._end_episode(index, last, True)
            if vector is not None:
                infos[index]["vector_reward"] = np.zeros_like(vector)
            del infos[index]["episode"]  # of the one step that resets
            dones[index] = True
            rewards[index] = given[index] = 0  # which wrappers may have changed
        if self._resets_on_next_step:
            self._last = {i: (observation_at(observations, i), infos[i].get("vector_reward")) for i in finished}
        elif finished and self.mode != AutoresetMode.SAME_STEP:
            first, first_infos = self.env.reset(options={"reset_mask": dones.copy()})
            for index in finished:
                self.reset_infos[index] = first_infos[index]
            replace_observations(observations, map_arrays(lambda array: array[dones], first), dones)
        if np.ndim(given) > 1:
            infos = [{**info, "vector_reward": vector} for info, vector in zip(infos, given, strict=True)]
        return observations, np.array(rewards, dtype=np.float32), dones, infos

    def set_reward_weights(self, weights: Sequence[float]) -> None:
        """Set the weights that combine vector rewards, a number for each component."""
        self.reward_weights = np.asarray(weights)

    def _combined(self, rewards: np.ndarray) -> np.ndarray:
        """Return scalar rewards, (num_envs,): scalars as they are, vectors, (num_envs, K), as weighted sums."""
        if np.ndim(rewards) == 1:
            return rewards
        if self.reward_weights is None or len(self.reward_weights) != rewards.shape[1]:
            raise ArgumentError(
                f"{self._base_env} gives vectors of {rewards.shape[1]} numbers as rewards: use PPG(..., reward_weights=[...]) "
                "with one weight for each"
            )
        return rewards @ self.reward_weights

    # ---- the rest of a VecEnv ----

    @override
    def close(self) -> None:
        self.env.close()

    @override
    def get_images(self) -> Sequence[np.ndarray | None]:
        pictures: Any = self.env.render()
        return [None] * self.num_envs if pictures is None else list(pictures)

    @override
    def has_attr(self, attr_name: str) -> bool:
        if self._wraps_single_envs:  # whose `get_attr` would call a method
            return all(self._base_env.call("has_wrapper_attr", attr_name))
        return hasattr(self._base_env, attr_name)

    @override
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        env = self._base_env
        values = env.get_attr(attr_name) if self._wraps_single_envs else [getattr(env, attr_name)] * self.num_envs
        return [values[index] for index in self._get_indices(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        chosen = {*self._get_indices(indices)}
        values = [None] * self.num_envs if len(chosen) == self.num_envs else self.get_attr(attr_name)
        self._base_env.set_attr(attr_name, [value if index in chosen else old for index, old in enumerate(values)])

    @override
    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        if indices is not None:
            raise NotImplementedError("Gymnasium's vector environments call a method of all environments: no `indices`")
        if self._wraps_single_envs:
            return list(self._base_env.call(method_name, *args, **kwargs))
        results = getattr(self._base_env, method_name)(*args, **kwargs)
        return [None] * self.num_envs if results is None else list(results)

    @override
    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        # So that `evaluate_policy` uses the returns and lengths that are recorded here
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]


# ---- EnvPool ----


class EnvPoolVecEnv(EpisodicVecEnv):
    """
    Any EnvPool environment with Box, Discrete or (flat) Dict observations and Box or Discrete actions, as a ``VecEnv``::

        from sb3_ppg import PPG
        from sb3_ppg.environments import EnvPoolVecEnv

        env = EnvPoolVecEnv("CoinrunEasy-v0", num_envs=8, num_levels=200)
        model = PPG("CnnPolicy", env, n_policy_iterations=4)

    Resets and the infos of ended episodes are as in ``GymnasiumVecEnv``. Outside Atari, EnvPool does not tell whether an
    episode that ends exactly at the environment's own limit has also failed; it counts as truncated. EnvPool's own information
    is in the infos of environments whose episode has ended. float64 is converted to float32.

    :param env_id: EnvPool's name of the environment
    :param num_envs: the number of environments
    :param seed: one seed for all environments; different seeds give different environments, and so do several processes with
        the same seed
    :param treat_truncation_as_termination: whether truncated episodes count as terminated, without bootstrapping, as in the
        authors' Procgen
    :param render_mode: "rgb_array" for videos, "human" to show the first environment in a window, where EnvPool supports it
    :param options: options of EnvPool and of the environment, such as ``num_threads``, ``num_levels`` and ``start_level``;
        if ``max_episode_steps`` is below the environment's own limit, a failure in the last step counts as terminated
    :raises ArgumentError: if there is no such environment, or if it or its options cannot be used here
    :raises ImportError: if EnvPool is not installed
    """

    def __init__(
        self,
        env_id: str,
        num_envs: int,
        seed: int = 0,
        *,
        treat_truncation_as_termination: bool = False,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        self.env_id = env_id
        self.render_mode = render_mode
        self.options = options
        self.treat_truncation_as_termination = treat_truncation_as_termination
        self._seed = seed + rank() * num_envs
        self._was_reset = False
        self._pool = self._make_pool(num_envs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Gymnasium warns about float64
            self._pool_action_space = self._pool.action_space
            observation_space = _in_32_bits(self._pool.observation_space)
        super().__init__(num_envs, observation_space, _in_32_bits(self._pool_action_space))

    def _make_pool(self, num_envs: int) -> Any:
        envpool = import_envpool()
        if "Exploration" in self.env_id and self.options.get("num_levels", 0) != 0:
            raise ArgumentError(
                f"`num_levels`={self.options['num_levels']} cannot work for {self.env_id}: exploration mode has only "
                "one level, and EnvPool would abort the process"
            )
        rendering = {} if self.render_mode is None else {"render_mode": self.render_mode}
        seed = int(np.random.SeedSequence(self._seed).generate_state(1)[0] % 2**31)  # environments get seed, seed + 1, ...
        try:
            config, options = envpool.make_spec(self.env_id).config, dict(self.options)
            self._limit = options.get("max_episode_steps", config.max_episode_steps)
            if self._limit <= config.max_episode_steps and not hasattr(config, "episodic_life"):
                options.pop("max_episode_steps", None)  # `step_wait` applies it: outside Atari, EnvPool may only relabel ends
            elif hasattr(config, "distribution_mode"):
                raise ValueError(f"Procgen ends this game after {config.max_episode_steps} steps; use at most as many")
            return envpool.make_gymnasium(self.env_id, num_envs=num_envs, seed=seed, **rendering, **options)
        except ImportError as error:
            raise MissingExtraError(f"{error} Without root: {pip_install('procgen')}") from error
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"EnvPool cannot make {self.env_id} with {self.options}: {error}") from error

    # ---- steps ----

    @override
    def _first_observations(self) -> tuple[VecEnvObs, list[dict[str, Any]]]:
        seed = self._seeds[0]
        if seed is not None and (seed != self._seed or self._was_reset):  # EnvPool only takes a seed when it is made
            self._seed = seed
            self._pool.close()
            self._pool = self._make_pool(self.num_envs)
        self._was_reset = True
        observations, pool_infos = self._pool.reset()
        infos = [_info_of(pool_infos, index) for index in range(self.num_envs)]
        return _copied(observations), infos

    @override
    def step_wait(self) -> VecEnvStepReturn:
        actions = np.asarray(self.waiting_actions)
        if not self._was_reset or len(actions) != self.num_envs:  # EnvPool would abort the process
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments: reset() first, then one for each")
        observations, rewards, terminated, truncated, pool_infos = self._pool.step(actions)
        observations, rewards = _copied(observations), np.array(rewards, dtype=np.float32)
        self._returns += rewards
        self._lengths += 1
        cut_off = ~(terminated | truncated) & (self._lengths >= self._limit)
        dones = terminated | truncated | cut_off
        failed = terminated | np.asarray(pool_infos.get("terminated", False), dtype=bool)  # EnvPool never sets both flags
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in dones.nonzero()[0].tolist():
            was_cut_off = not (failed[index] or self.treat_truncation_as_termination)
            ending = self._end_episode(index, observation_at(observations, index), was_cut_off)
            infos[index] = _info_of(pool_infos, index) | ending
        # EnvPool resets what it has ended in its next step, where Atari's game goes on with the next life
        for ended, is_reset in ((terminated | truncated, False), (cut_off, True)):
            if ended.any():
                indices, space = ended.nonzero()[0].astype(np.int32), self._pool_action_space
                step = (np.zeros((len(indices), *space.shape), space.dtype), indices)
                first, *_, first_infos = self._pool.reset(indices) if is_reset else self._pool.step(*step)
                for row, index in enumerate(first_infos["env_id"]):
                    self.reset_infos[index] = _info_of(first_infos, row)
                replace_observations(observations, _copied(first), first_infos["env_id"])
        return observations, rewards, dones, infos

    # ---- the rest of a VecEnv ----

    @override
    def close(self) -> None:
        self._pool.close()

    @override
    def render(self, mode: str | None = None) -> np.ndarray | None:
        return self._pool.render() if self.render_mode == "human" else super().render(mode)

    @override
    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list(self._pool.render(env_ids=np.arange(self.num_envs, dtype=np.int32)))

    @override
    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        ours = {"render_mode": self.render_mode, "spec": None}
        value = ours[attr_name] if attr_name in ours else getattr(self._pool, attr_name)
        return [value for _ in self._get_indices(indices)]

    @override
    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError("EnvPool's environments have no attributes that could be set")

    @override
    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("EnvPool's environments have no methods of their own")

    @override
    def env_is_wrapped(self, wrapper_class: type, indices: VecEnvIndices = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def import_envpool() -> Any:
    """Import EnvPool, with the libraries of Procgen if they are installed."""
    qt = importlib.util.find_spec("PyQt5")  # Procgen needs Qt on Python 3.11; PyQt5-Qt5 installs it without root
    for folder in (qt and qt.submodule_search_locations) or []:
        for path in (Path(folder) / "Qt5" / "lib" / library for library in QT_LIBRARIES):
            if path.exists():
                ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
    try:
        import envpool
    except ModuleNotFoundError as error:
        remedy = f"{pip_install('envpool')}; for Procgen, with `procgen` in place of `envpool`"
        raise MissingExtraError(f"EnvPool cannot be imported ({error}): {remedy}") from error
    return envpool


def _in_32_bits(space: spaces.Space) -> spaces.Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _in_32_bits(part) for name, part in space.items()})
    if isinstance(space, spaces.Box):
        dtype = np.float32 if space.dtype == np.float64 else space.dtype
        return spaces.Box(space.low.astype(dtype), space.high.astype(dtype), dtype=dtype)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    raise ArgumentError(f"{space} cannot be used: observations are Box, Discrete or Dict of these, actions Box or Discrete")


def _copied(observations: Any) -> Any:
    """Copy observations, because EnvPool may reuse its arrays, in 32 bits."""
    return map_arrays(lambda array: np.array(array, np.float32 if array.dtype == np.float64 else array.dtype), observations)


def _info_of(pool_infos: dict[str, Any], index: int) -> dict[str, Any]:
    return {
        name: values[index].item() if values[index].ndim == 0 else values[index].copy()
        for name, values in pool_infos.items()
        if isinstance(values, np.ndarray) and len(values) == len(pool_infos["env_id"]) and name != "env_id"
    }


class EnvPoolEnv(gym.Env):
    """One environment, with arguments of ``EnvPoolVecEnv``, which is faster, for tools that need a single one."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(self, env_id: str, render_mode: str | None = None, **options: Any) -> None:
        self.render_mode = render_mode
        self._venv = EnvPoolVecEnv(env_id, 1, render_mode=render_mode, **options)
        self._first: Any = None  # first observation of the next episode, after the last step of an episode
        self.observation_space = self._venv.observation_space
        self.action_space = self._venv.action_space

    @override
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        first, self._first = self._first, None
        if seed is not None:
            self._venv.seed(seed)
            first = None
        return observation_at(self._venv.reset(), 0) if first is None else first, {}

    @override
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step; see ``gymnasium.Env``."""
        observations, rewards, dones, infos = self._venv.step(np.asarray(action)[None])
        info = infos[0]
        if not dones[0]:
            return observation_at(observations, 0), float(rewards[0]), False, False, info
        self._first = observation_at(observations, 0)  # EnvPoolVecEnv has reset it already
        truncated = info.pop("TimeLimit.truncated")
        del info["episode"]
        return info.pop("terminal_observation"), float(rewards[0]), not truncated, truncated, info

    @override
    def render(self) -> Any:
        return self._venv.render() if self.render_mode == "human" else self._venv.get_images()[0]

    @override
    def close(self) -> None:
        self._venv.close()
