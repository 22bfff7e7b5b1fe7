"""One EnvPool environment as a Gymnasium environment."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from sb3_ppg.environments.envpool_vec_env import EnvPoolVecEnv, observation_at


class EnvPoolEnv(gym.Env):
    """
    One environment, for tools that need a single one; ``EnvPoolVecEnv`` is faster.

    :param env_id: EnvPool's name of the environment
    :param render_mode: "rgb_array", "human" or None
    :param options: further arguments of ``EnvPoolVecEnv``
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["human", "rgb_array"], "render_fps": 15}  # type: ignore[misc]

    def __init__(self, env_id: str, render_mode: str | None = None, **options: Any) -> None:
        self.render_mode = render_mode
        self._venv = EnvPoolVecEnv(env_id, 1, render_mode=render_mode, **options)
        self._first: Any = None  # first observation of the next episode, after the last step of an episode
        self.observation_space = self._venv.observation_space
        self.action_space = self._venv.action_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """
        :param seed: seed of a new sequence of episodes. None: continue the current one
        :param options: has no effect
        :return: first observation, empty information
        """
        super().reset(seed=seed)
        first, self._first = self._first, None
        if seed is not None:
            self._venv.seed(seed)
            first = None
        return observation_at(self._venv.reset(), 0) if first is None else first, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """
        :param action: in the action space
        :return: observation, reward, whether the episode has terminated, whether a time limit has ended it, EnvPool's
            information
        """
        observations, rewards, dones, infos = self._venv.step(np.asarray(action)[None])
        info = infos[0]
        if not dones[0]:
            return observation_at(observations, 0), float(rewards[0]), False, False, info
        self._first = observation_at(observations, 0)  # EnvPoolVecEnv has reset it already
        truncated = info.pop("TimeLimit.truncated")
        del info["episode"]
        return info.pop("terminal_observation"), float(rewards[0]), not truncated, truncated, info

    def render(self) -> Any:
        """Return the current frame, or, with ``render_mode="human"``, show it in a window."""
        return self._venv.render() if self.render_mode == "human" else self._venv.get_images()[0]

    def close(self) -> None:
        """Stop EnvPool's threads."""
        self._venv.close()
