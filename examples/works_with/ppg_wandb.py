"""
wandb: the log of a run in Weights & Biases, with its callback.

Needs ``pip install wandb==0.31.0`` and the extra ``tensorboard``. Offline here: leave ``mode`` out to upload.
"""

import tempfile
from pathlib import Path

import wandb
from wandb.integration.sb3 import WandbCallback

from sb3_ppg import PPG

with tempfile.TemporaryDirectory() as folder:
    with wandb.init(project="ppg", sync_tensorboard=True, mode="offline", dir=folder) as run:
        model = PPG("MlpPolicy", "CartPole-v1", n_steps=256, n_policy_iterations=2, tensorboard_log=f"{folder}/runs", seed=0)
        model.learn(2048, WandbCallback(model_save_path=f"{folder}/model"))
    (record,) = Path(folder).rglob("*.wandb")
    assert b"aux/kl" in record.read_bytes() and b"n_policy_iterations" in record.read_bytes()
    PPG.load(f"{folder}/model/model")
print(f"{model.n_aux_phases} phases, with aux/kl and n_policy_iterations in the record, and the model")
