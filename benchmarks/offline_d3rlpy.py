"""
Train d3rlpy's BCQ (2.8.1) on the arrays of ``benchmarks.offline``, in a Python of its own, and print its mean return.

    python offline_d3rlpy.py FILE ENV N_STEPS N_UNITS SEED N_EPISODES

All networks have two layers. Other settings are our defaults, as far as d3rlpy has them. It takes as many actions in play as
in training, 10. For Discrete actions, it copies the target network every 200 steps in place of soft updates by 0.005.
"""

import sys
from typing import Any

import gymnasium as gym
import numpy as np


def main(file: str, env_id: str, n_steps: int, n_units: int, seed: int, n_episodes: int) -> float:
    """Return the mean return of deterministic episodes."""
    import d3rlpy  # type: ignore[import-not-found]

    d3rlpy.seed(seed)
    with np.load(file) as arrays:
        names = ("observations", "actions", "rewards", "terminations", "truncations")
        observations, actions, rewards, terminals, timeouts = (arrays[name] for name in names)
    timeouts &= ~terminals
    env: Any = gym.make(env_id)
    layers = d3rlpy.models.VectorEncoderFactory([n_units, n_units])
    if isinstance(env.action_space, gym.spaces.Discrete):
        config = d3rlpy.algos.DiscreteBCQConfig(
            batch_size=100, learning_rate=1e-3, encoder_factory=layers, beta=0.01, target_update_interval=200
        )
        low, half = 0.0, 1.0
    else:
        config = d3rlpy.algos.BCQConfig(
            actor_encoder_factory=layers, critic_encoder_factory=layers, imitator_encoder_factory=layers, n_action_samples=10
        )
        low, half = env.action_space.low, (env.action_space.high - env.action_space.low) / 2
        actions = (actions - low) / half - 1
    dataset = d3rlpy.dataset.MDPDataset(observations, actions, rewards, terminals, timeouts)
    agent = config.create(device="cpu:0")
    agent.fit(
        dataset,
        n_steps=n_steps,
        n_steps_per_epoch=n_steps,
        show_progress=False,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
    )
    returns = []
    for episode in range(n_episodes):
        observation, _ = env.reset(seed=2000 + 1000 * seed + episode)
        total, ended = 0.0, False
        while not ended:
            action = agent.predict(observation[None].astype(np.float32))[0]
            if not isinstance(env.action_space, gym.spaces.Discrete):
                action = low + (action + 1) * half
            observation, reward, terminated, truncated, _ = env.step(action)
            total, ended = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
