"""
Train several PettingZoo agents that share one policy, with SuperSuit's wrappers.

Needs ``pip install pettingzoo supersuit`` (tested with 1.27.0 and 3.11.0). All agents must have the same spaces; if they
differ, use ``supersuit.pad_observations_v0`` and ``supersuit.pad_action_space_v0``.
"""

import numpy as np
import supersuit
from gymnasium import spaces
from pettingzoo import ParallelEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from sb3_ppg import PPG

MAX_STEPS = 25


class Meeting(ParallelEnv):
    """Three agents in a square see where the others are, and must meet. Each is rewarded for coming nearer to the others."""

    metadata = {"name": "meeting", "is_parallelizable": True}  # noqa: RUF012, PettingZoo's form
    possible_agents = ["a", "b", "c"]  # noqa: RUF012
    render_mode = None

    def observation_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-2, 2, (4,))

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Box(-1, 1, (2,))

    def reset(self, seed: int | None = None, options: dict | None = None):
        if seed is not None or not hasattr(self, "generator"):
            self.generator = np.random.default_rng(seed)
        self.agents, self.n_steps = self.possible_agents[:], 0
        self.places = self.generator.uniform(-1, 1, (3, 2))
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, np.ndarray]):
        before = self.distances()
        self.places = np.clip(self.places + 0.1 * np.stack([actions[agent] for agent in self.agents]), -1, 1)
        self.n_steps += 1
        rewards, over = before - self.distances(), self.n_steps == MAX_STEPS
        agents, observations = self.agents, self.observations()
        self.agents = [] if over else agents
        return (
            observations,
            dict(zip(agents, rewards.tolist(), strict=True)),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, over),
            {agent: {} for agent in agents},
        )

    def observations(self) -> dict[str, np.ndarray]:
        others = [np.delete(self.places - place, n, axis=0).ravel() for n, place in enumerate(self.places)]
        return {agent: seen.astype(np.float32) for agent, seen in zip(self.possible_agents, others, strict=True)}

    def distances(self) -> np.ndarray:
        """Return each agent's mean distance to the others."""
        return np.linalg.norm(self.places[:, None] - self.places, axis=2).sum(axis=1) / 2


def make_env(n_games: int, seed: int) -> VecEnv:
    """Return an SB3 environment with an entry for each agent of each game."""
    game = supersuit.pettingzoo_env_to_vec_env_v1(Meeting())
    env = supersuit.concat_vec_envs_v1(game, n_games, base_class="stable_baselines3")
    env.venv.reset(seed=seed)  # SuperSuit's environments have no `seed`, so PPG's argument `seed` cannot be used
    return VecMonitor(env)


def main(total_timesteps: int = 100_000) -> None:
    """Train and play. Agents that meet get a return of 1.04 each, the mean distance at the start."""
    set_random_seed(0)
    model = PPG(
        "MlpPolicy",
        make_env(n_games=8, seed=0),
        n_steps=64,  # a phase is 8 games x 3 agents x 64 x 4 = 6,144 steps
        batch_size=256,
        ignore_terminations=MAX_STEPS,  # SuperSuit reports the time limit as a termination
        verbose=1,
    )
    model.learn(total_timesteps, log_interval=8)
    mean, std = evaluate_policy(model, make_env(n_games=4, seed=1), n_eval_episodes=120)
    print(f"Return of an agent over 120 episodes: {mean:.2f} +- {std:.2f}")


if __name__ == "__main__":
    main()
