"""MinAtar in RL Zoo: its games under names that Gymnasium knows. (The package itself registers them on request only.)"""

import gymnasium as gym

GAMES = ("asterix", "breakout", "freeway", "seaquest", "space_invaders")


def register_minatar() -> None:
    """As the package does: v0 with all six actions, v1 with those that have an effect."""
    for game in GAMES:
        for version, minimal in enumerate((False, True)):
            env_id = f"MinAtar/{game.title().replace('_', '')}-v{version}"
            if env_id not in gym.registry:
                kwargs = dict(game=game, use_minimal_action_set=minimal)
                gym.register(env_id, entry_point="minatar.gym:BaseEnv", kwargs=kwargs, disable_env_checker=True)
