"""
XuanCe's PPG with its own file for the environment (xuance/configs/ppg): ``pip install xuance==1.4.4`` (Python 3.12 at most),
``python xuance_ppg.py CartPole-v1 --seed 0``. Writes logs and a model in the current folder.
"""

from argparse import Namespace

import numpy as np
import xuance.torch.agents  # noqa: F401, whose import takes seconds
from evaluation import Predict, main
from xuance import get_runner


def train(env_id: str, seed: int, steps: int) -> tuple[Predict, int]:
    """Return the trained policy and the steps."""
    changes = Namespace(seed=seed, env_seed=1000 * seed, running_steps=steps, render=False)
    folder = "box2d" if env_id.startswith("LunarLander") else "classic_control"
    runner = get_runner("ppg", folder, env_id, parser_args=changes)
    runner.run(mode="train")
    agent = runner.agent

    def predict(observation: np.ndarray) -> np.ndarray:
        normalized = agent._process_observation(observation[None])  # XuanCe's own test changes the statistics
        return agent.get_actions(normalized, deterministic=True)["actions"][0]

    return predict, agent.current_step


if __name__ == "__main__":
    main("xuance", train)
