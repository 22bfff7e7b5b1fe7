"""
Short trainings that begin on the CPU and resume on a GPU, where their losses may differ from the CPU's by rounding only.

    python -m benchmarks.gpu                 # prints a table to paste into an issue; exits with 1 if a check has failed
    python -m benchmarks.gpu --device cpu    # tests this script; gloo takes the place of NCCL
"""

import argparse
import tempfile
import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import torch as th
import torch.distributed as dist
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import SimpleMultiObsEnv
from typing_extensions import override

from sb3_ppg import PPG, RecurrentPPG
from sb3_ppg.comparison.report import table
from sb3_ppg.distributed import choose_backend

SIZES: dict[str, Any] = dict(n_policy_iterations=4, n_steps=32, batch_size=64, n_epochs=2, n_aux_epochs=2, seed=0)
PHASE = 4 * 32 * 4  # steps, in four environments
CHECKS: dict[str, tuple[str, float, dict[str, Any]]] = {  # policy, tolerance, arguments on the device
    "eager": ("MlpPolicy", 0.01, {}),
    "compiled": ("MlpPolicy", 0.01, dict(compile_updates=True)),
    "LSTM": ("MlpLstmPolicy", 0.01, {}),
    "TF32": ("MlpPolicy", 0.2, {}),
    "images": ("MultiInputPolicy", 0.2, {}),  # which torch convolves in TF32, too
    "images, bfloat16": ("MultiInputPolicy", 0.2, dict(mixed_precision="bf16")),
    "group of one process": ("MlpPolicy", 0.01, {}),
}


class SameRollouts(BaseCallback):
    """Record the rollouts of a first training; give a second one these, and the same order of minibatches."""

    recorded: dict[int, dict[str, Any]]  # contents of the rollout buffer, by number of steps

    @override
    def _on_step(self) -> bool:
        return True

    @override
    def _on_rollout_end(self) -> None:
        n_steps, buffer = self.model.num_timesteps, vars(vars(self.model)["rollout_buffer"])
        arrays = {name: value for name, value in buffer.items() if isinstance(value, np.ndarray | dict)}
        buffer.update(deepcopy(self.recorded.setdefault(n_steps, arrays)))
        np.random.seed(n_steps)

    def train(self, model: PPG, n_phases: float) -> np.ndarray:
        """Continue a training, and return the mean losses of its last updates."""
        model.learn(int(n_phases * PHASE), self, reset_num_timesteps=False)
        return np.array([value for name, value in sorted(model.logger.name_to_value.items()) if name.endswith("loss")])


def difference(device: th.device, policy: str, options: dict[str, Any]) -> float:
    """Return the largest difference of a loss from the CPU's, relative to the latter's size plus 0.1."""
    cls, env = RecurrentPPG if "Lstm" in policy else PPG, SimpleMultiObsEnv if policy == "MultiInputPolicy" else "CartPole-v1"
    rollouts, reference = SameRollouts(), cls(policy, make_vec_env(env, 4, seed=0), **SIZES, device="cpu")
    rollouts.recorded = {}
    rollouts.train(reference, 3.5)
    with tempfile.TemporaryDirectory() as folder:
        reference.save(f"{folder}/model")
        reference.save_aux_buffer(f"{folder}/rollouts.npz")
        model = cls.load(f"{folder}/model", make_vec_env(env, 4, seed=0), device=device, **options)
        model.load_aux_buffer(f"{folder}/rollouts.npz")
    expected, found = (rollouts.train(each, 1.5) for each in (reference, model))
    return float((np.abs(found - expected) / (np.abs(expected) + 0.1)).max())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--device", type=th.device, default="cuda")
    device, rows = parser.parse_args().device, []
    gpu = th.cuda.get_device_name(device) if device.type == "cuda" else ""
    warnings.filterwarnings("error", message=".* not compiled")
    for name, (policy, tolerance, options) in CHECKS.items():
        th.set_float32_matmul_precision("high" if name == "TF32" else "highest")
        if name == "group of one process":
            dist.init_process_group(choose_backend([gpu]), store=dist.HashStore(), rank=0, world_size=1)
        try:
            found = difference(device, policy, options)
            rows.append([name, f"{found:.1e}", tolerance, "yes" if found <= tolerance else "NO"])
        except Exception as error:
            rows.append([name, f"{type(error).__name__}: {error}".split("\n")[0], tolerance, "NO"])
    print(f"torch {th.__version__}, {gpu or device}\n\n{table(['check', 'largest difference', 'allowed', 'passed'], rows)}")
    dist.destroy_process_group()
    raise SystemExit("NO" in {passed for *_, passed in rows})
