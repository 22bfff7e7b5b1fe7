"""EnvPool's environments (https://envpool.readthedocs.io) as a ``VecEnv`` of Stable-Baselines3."""

import ctypes
import importlib.util
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from sb3_ppg.arguments import check_value, count
from sb3_ppg.distributed.collectives import rank
from sb3_ppg.environments.episodes import EpisodicVecEnv, observation_at, replace
from sb3_ppg.errors import ArgumentError, MissingExtraError, nearest, pip_install

# Libraries that Procgen links to on Python 3.11, in an order in which they can be loaded
QT_LIBRARIES = ["libicudata.so.56", "libicuuc.so.56", "libicui18n.so.56", "libQt5Core.so.5", "libQt5Gui.so.5"]


class EnvPoolVecEnv(EpisodicVecEnv):
    """
    Any EnvPool environment with Box, Discrete or (flat) Dict observations and Box or Discrete actions, as a ``VecEnv``::

        from sb3_ppg import PPG
        from sb3_ppg.environments import EnvPoolVecEnv

        env = EnvPoolVecEnv("CoinrunEasy-v0", num_envs=8, num_levels=200)
        model = PPG("CnnPolicy", env, n_policy_iterations=4)

    An environment whose episode has ended is reset in the same step, as SB3 expects (EnvPool itself resets it in the next
    step). Its last observation is in ``infos[i]["terminal_observation"]``, ``infos[i]["TimeLimit.truncated"]`` says whether
    the episode was truncated, ``infos[i]["episode"]`` has its return "r", length "l" and the seconds since the start "t".
    Outside Atari, EnvPool does not tell whether an episode that ends exactly at the environment's own limit has also failed;
    it counts as truncated. EnvPool's own information is in the infos of environments whose episode has ended, or, with
    ``all_infos``, of all. float64 is converted to float32.

    :param env_id: EnvPool's name of the environment
    :param num_envs: the number of environments
    :param seed: one seed for all environments; different seeds give different environments, and so do several processes with
        the same seed
    :param treat_truncation_as_termination: whether truncated episodes count as terminated, without bootstrapping, as in the
        authors' Procgen
    :param render_mode: "rgb_array" for videos, "human" to show the first environment in a window, where EnvPool supports it
    :param all_infos: whether each step returns the infos of all environments, which takes time
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
        all_infos: bool = False,
        **options: Any,
    ) -> None:
        self.env_id = env_id
        self.render_mode = render_mode
        self.options = options
        self.treat_truncation_as_termination = treat_truncation_as_termination
        self.all_infos = all_infos
        check_value("seed", seed, count(0))
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
        env_ids = envpool.list_all_envs()
        if self.env_id not in env_ids:
            raise ArgumentError(f"EnvPool has no environment {self.env_id!r}{nearest(self.env_id, env_ids)}")
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
            check_value("max_episode_steps", self._limit, count(1))
            if self._limit <= config.max_episode_steps and not hasattr(config, "episodic_life"):
                options.pop("max_episode_steps", None)  # `step_wait` applies it: outside Atari, EnvPool may only relabel ends
            elif hasattr(config, "distribution_mode"):
                raise ValueError(f"Procgen ends this game after {config.max_episode_steps} steps; use at most as many")
            return envpool.make_gymnasium(self.env_id, num_envs=num_envs, seed=seed, **rendering, **options)
        except ImportError as error:
            raise MissingExtraError(f"{error} Without root: {pip_install('procgen')}") from error
        except (AssertionError, TypeError, ValueError) as error:
            raise ArgumentError(f"EnvPool cannot make {self.env_id} with {self.options}: {error}") from error

    # ---- steps ----

    def _first_observations(self) -> tuple[VecEnvObs, list[dict[str, Any]]]:
        seed = self._seeds[0]
        if seed is not None and (seed != self._seed or self._was_reset):  # EnvPool only takes a seed when it is made
            self._seed = seed
            self._pool.close()
            self._pool = self._make_pool(self.num_envs)
        self._was_reset = True
        observations, pool_infos = self._pool.reset()
        infos = [_info_of(pool_infos, index) for index in range(self.num_envs)]
        return _cast(observations, self.observation_space), infos

    def step_wait(self) -> VecEnvStepReturn:
        actions = np.asarray(self.waiting_actions)
        if not self._was_reset or len(actions) != self.num_envs:  # EnvPool would abort the process
            raise ValueError(f"{len(actions)} actions for {self.num_envs} environments: reset() first, then one for each")
        observations, rewards, terminated, truncated, pool_infos = self._pool.step(actions)
        observations, rewards = _cast(observations, self.observation_space), np.array(rewards, dtype=np.float32)
        self._add_step(rewards)
        cut_off = ~(terminated | truncated) & (self._lengths >= self._limit)
        dones = terminated | truncated | cut_off
        failed = terminated | np.asarray(pool_infos.get("terminated", False), dtype=bool)  # EnvPool never sets both flags
        wanted = range(self.num_envs) if self.all_infos else dones.nonzero()[0].tolist()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for index in wanted:
            infos[index] = _info_of(pool_infos, index)
        for index in dones.nonzero()[0].tolist():
            was_cut_off = not (failed[index] or self.treat_truncation_as_termination)
            infos[index] |= self._end_episode(index, observation_at(observations, index), was_cut_off)
        # EnvPool resets what it has ended in its next step, where Atari's game goes on with the next life
        for ended, begin in ((terminated | truncated, self._step_without_action), (cut_off, self._pool.reset)):
            if ended.any():
                first, *_, first_infos = begin(ended.nonzero()[0].astype(np.int32))
                for row, index in enumerate(first_infos["env_id"]):
                    self.reset_infos[index] = _info_of(first_infos, row)
                replace(observations, _cast(first, self.observation_space), first_infos["env_id"])
        return observations, rewards, dones, infos

    def _step_without_action(self, indices: np.ndarray) -> tuple[Any, ...]:
        space = self._pool_action_space
        return self._pool.step(np.zeros((len(indices), *space.shape), space.dtype), indices)

    # ---- the rest of a VecEnv ----

    def close(self) -> None:
        self._pool.close()

    def render(self, mode: str | None = None) -> np.ndarray | None:
        return self._pool.render() if self.render_mode == "human" else super().render(mode)

    def get_images(self) -> Sequence[np.ndarray | None]:
        if self.render_mode != "rgb_array":
            return [None] * self.num_envs
        return list(self._pool.render(env_ids=np.arange(self.num_envs, dtype=np.int32)))

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        ours = {"render_mode": self.render_mode, "spec": None}
        value = ours[attr_name] if attr_name in ours else getattr(self._pool, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        raise NotImplementedError("EnvPool's environments have no attributes that could be set")

    def env_method(self, method_name: str, *args: Any, indices: VecEnvIndices = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("EnvPool's environments have no methods of their own")

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


def _cast(observations: Any, space: spaces.Space) -> Any:
    """Copy observations, because EnvPool may reuse its arrays."""
    if isinstance(space, spaces.Dict):
        return {name: _cast(observations[name], part) for name, part in space.items()}
    return np.array(observations, dtype=space.dtype)


def _info_of(pool_infos: dict[str, Any], index: int) -> dict[str, Any]:
    """Return one environment's part of EnvPool's arrays."""
    return {
        name: values[index].item() if values[index].ndim == 0 else values[index].copy()
        for name, values in pool_infos.items()
        if isinstance(values, np.ndarray) and len(values) == len(pool_infos["env_id"]) and name != "env_id"
    }
