"""
Compare two versions of the package: parameters after short runs, and the public names.

``python -m benchmarks.unchanged record FILE`` in a checkout of one version writes what it does; ``compare FILE`` in a checkout
of the other prints the differences and exits with 1 if there are any. Both need the same machine: rounding depends on it.
Where rounding itself has changed, ``--rollouts 1 --tolerance 1e-6`` compares a single update, before trajectories diverge.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from sb3_contrib.common.envs import InvalidActionEnvDiscrete
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv, SimpleMultiObsEnv
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from sb3_ppg import PPG, MaskablePPG, NormalizedRewardRolloutBuffer, RecurrentPPG, RewardNormalizer, process_group
from sb3_ppg.family import with_preset

SMALL: dict[str, Any] = dict(n_steps=32, batch_size=16, n_epochs=2, n_policy_iterations=2, n_aux_epochs=2)
SMALL |= dict(seed=0, device="cpu")
PUBLIC_MODULES = ["", "buffers.rollouts", "export", "family", "hub", "losses", "objectives", "policies", "zoo"]


def pendulum() -> Any:
    """Environments with continuous actions."""
    return make_vec_env("Pendulum-v1", 2, seed=0)


def ppg(env: Any = None, policy: str = "MlpPolicy", cls: type[PPG] = PPG, **kwargs: Any) -> PPG:
    """A small model."""
    return cls(policy, env or make_vec_env("CartPole-v1", 2, seed=0), **{**SMALL, **kwargs})


def images() -> Any:
    """Environments with image observations."""

    def make() -> gym.Env:
        env = FakeImageEnv(screen_height=36, screen_width=36, n_channels=1)
        env.observation_space.seed(0)
        return env

    return make_vec_env(make, 2, seed=0)


def masked() -> Any:
    """Environments that exclude actions."""
    return make_vec_env(lambda: InvalidActionEnvDiscrete(dim=8, n_invalid_actions=3), 2, seed=0)


TRAININGS: dict[str, Callable[[], PPG]] = {
    "dual": ppg,
    "detached": lambda: ppg(policy_kwargs=dict(architecture="detached"), n_value_epochs=2),
    "shared": lambda: ppg(policy_kwargs=dict(architecture="shared"), target_kl=0.02),
    "KL penalty, micro-batches": lambda: ppg(clip_range=None, kl_coef=1.0, micro_batch_size=5),
    "gSDE": lambda: ppg(pendulum(), use_sde=True, sde_sample_freq=4),
    "Box": lambda: ppg(pendulum(), normalize_value_targets="running", recompute_advantages=True),
    "Dict": lambda: ppg(make_vec_env(SimpleMultiObsEnv, 2, seed=0), "MultiInputPolicy"),
    "images": lambda: ppg(images(), "CnnPolicy"),
    "bf16": lambda: ppg(images(), "CnnPolicy", mixed_precision="bf16"),
    "reward normaliser": lambda: ppg(
        rollout_buffer_class=NormalizedRewardRolloutBuffer,
        rollout_buffer_kwargs=dict(reward_normalizer=RewardNormalizer()),
        max_grad_norm=None,
    ),
    "LSTM": lambda: ppg(None, "MlpLstmPolicy", RecurrentPPG),
    "LSTM, stored states, detached": lambda: ppg(
        pendulum(), "MlpLstmPolicy", RecurrentPPG, recompute_states=False, policy_kwargs=dict(architecture="detached")
    ),
    "masks": lambda: ppg(masked(), "MlpPolicy", MaskablePPG),
    "decoupled": lambda: ppg(objective="decoupled", replay_kwargs=dict(policy_rollouts=3, value_rollouts=2), n_value_epochs=1),
    **{
        name: partial(ppg, **with_preset(name, {}))
        for name in ("ppg_ewma", "ppg_replay", "dcpg", "ddcpg", "daac", "idaac", "dna")
    },
}


def numbers(model: PPG) -> list[float]:
    """Return the L2 norm of each parameter, in ascending order: names may change."""
    return sorted(float(weight.detach().double().norm()) for weight in model.policy.parameters())


def together(n_rollouts: int) -> list[float]:
    """Norms of the parameters that this process trains with others."""
    with process_group():
        return numbers(ppg().learn(n_rollouts * 128))


def trained(n_rollouts: int) -> dict[str, list[float]]:
    """Norms of the parameters after each run, the last of which has two processes, started as ``torchrun`` starts them."""
    th.set_num_threads(1)
    found = {name: numbers(make().learn(n_rollouts * 64)) for name, make in TRAININGS.items()}
    config = LaunchConfig(1, 1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="unchanged")
    return {**found, "two processes": elastic_launch(config, together)(n_rollouts)[0]}


def public_names() -> dict[str, list[str]]:
    """Names that a user imports."""
    found = {}
    for module in PUBLIC_MODULES:
        loaded = importlib.import_module(f"sb3_ppg.{module}".removesuffix("."))
        own = [name for name, value in vars(loaded).items() if getattr(value, "__module__", "").startswith("sb3_ppg")]
        found[module] = sorted(getattr(loaded, "__all__", [name for name in own if not name.startswith("_")]))
    return found


def differences(before: dict[str, Any], now: dict[str, Any], tolerance: float) -> list[str]:
    """Return a line for each difference."""
    found = []
    for name, norms in before["parameters"].items():
        present = now["parameters"].get(name, [])
        if len(present) != len(norms) or not np.allclose(present, norms, rtol=tolerance, atol=0):
            found.append(f"parameters of {name}: {norms}, now {present}")
    for module, names in before["names"].items():
        if gone := sorted(set(names) - set(now["names"][module])):
            found.append(f"names of sb3_ppg.{module} that are gone: {', '.join(gone)}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--rollouts", type=int, default=5, help="rollouts of each run; 5 are two phases and a half")
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative tolerance of norms")
    arguments = parser.parse_args()
    now = {"parameters": trained(arguments.rollouts), "names": public_names()}
    if arguments.what == "record":
        arguments.file.write_text(json.dumps(now, indent=1))
    else:
        found = differences(json.loads(arguments.file.read_text()), now, arguments.tolerance)
        print("\n".join(found) or "Nothing differs")
        sys.exit(bool(found))
