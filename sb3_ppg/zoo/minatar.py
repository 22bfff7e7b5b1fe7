"""MinAtar in RL Zoo: its games under names that Gymnasium knows, with pictures that can be seen."""

from typing import Any

import gymnasium as gym
import numpy as np

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")
PIXELS_PER_CELL = 24


def register_minatar() -> None:
    """As the package does when it is asked to: v0 with all six actions, v1 with those that have an effect."""
    for game in GAMES:
        for version, minimal in enumerate((False, True)):
            kwargs = dict(game=game, use_minimal_action_set=minimal)
            gym.register(
                f"MinAtar/{game.title().replace('_', '')}-v{version}",
                entry_point="sb3_ppg.zoo.minatar:make_game",
                kwargs=kwargs,
                disable_env_checker=True,
            )


def make_game(**kwargs: Any) -> gym.Env:
    """
    :param kwargs: of the package's environment, such as ``sticky_action_prob``
    :return: it
    :raises ImportError: if the package is not installed
    """
    from minatar.gym import BaseEnv

    return Enlarged(BaseEnv(**kwargs))


class Enlarged(gym.Wrapper):
    """Its pictures have one pixel per cell, in numbers from 0 to 1; these are 240x240, of type uint8."""

    def render(self) -> Any:
        picture = self.env.render()
        if self.render_mode != "rgb_array":
            return picture
        return np.kron(np.asarray(picture) * 255, np.ones((PIXELS_PER_CELL, PIXELS_PER_CELL, 1))).astype(np.uint8)
