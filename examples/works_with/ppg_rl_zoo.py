"""
rl_zoo3: its class ``ExperimentManager`` in a program of yours. ``sb3-ppg`` has all its commands.

Needs ``pip install ".[zoo]"``, which brings 2.9.2.
"""

import tempfile
from argparse import Namespace
from pathlib import Path

from rl_zoo3 import ALGOS
from rl_zoo3.exp_manager import ExperimentManager

from sb3_ppg import PPG

ALGOS["ppg"] = PPG
SETTINGS = """
CartPole-v1:
  policy: MlpPolicy
  n_timesteps: 3072  # three phases of 8 x 64 x 2 steps
  n_envs: 8
  n_steps: 64
  n_policy_iterations: 2
  batch_size: 128
"""

with tempfile.TemporaryDirectory() as folder:
    config = Path(folder, "settings.yml")
    config.write_text(SETTINGS)
    options = dict(config=str(config), eval_freq=1024, log_interval=1)  # whose default of 0 fails, for PPO as well
    manager = ExperimentManager(Namespace(), "ppg", "CartPole-v1", folder, **options)
    model, _ = manager.setup_experiment()
    manager.learn(model)
    manager.save_trained_model(model)
    (best,) = Path(folder).rglob("best_model.zip")
    loaded = PPG.load(best)
assert type(model) is PPG and model.n_aux_phases == 3 and loaded.num_timesteps > 0
print(f"{model.n_aux_phases} phases; the best model is after {loaded.num_timesteps} steps")
