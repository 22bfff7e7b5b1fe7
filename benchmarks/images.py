"""
Measure processor time and file size of PPO and of PPG's architectures on images, with the settings of SB3's Atari script.

    python -m benchmarks.images    # three minutes on an idle core
"""

import time
from pathlib import Path
from typing import Any

import ale_py  # noqa: F401  registers the games
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from benchmarks.harness import Experiment
from benchmarks.tables import machines, page, table
from sb3_ppg import PPG

SETTINGS: dict[str, Any] = dict(
    n_steps=128, n_epochs=4, batch_size=256, learning_rate=2.5e-4, clip_range=0.1, vf_coef=0.5, ent_coef=0.01
)
CONTESTANTS: dict[str, tuple[type, dict[str, Any]]] = {
    "PPO": (PPO, {}),
    **{f"PPG, {name}": (PPG, dict(policy_kwargs=dict(architecture=name))) for name in ("dual", "detached", "shared")},
}
N_ENVS, N_ROLLOUTS = 8, 4  # four rollouts are a phase of PPG's defaults


def wanted() -> list[dict[str, Any]]:
    return [dict(contestant=name) for name in CONTESTANTS]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], None]:
    """Return the processor's seconds of one phase, and the size of the saved model."""
    cls, arguments = CONTESTANTS[training["contestant"]]
    env = VecFrameStack(make_atari_env("PongNoFrameskip-v4", N_ENVS, seed=0), n_stack=4)
    model = cls("CnnPolicy", env, **SETTINGS, **arguments, seed=0, device="cpu")
    start = time.process_time()
    model.learn(N_ROLLOUTS * N_ENVS * SETTINGS["n_steps"])
    seconds = time.process_time() - start
    model.save(folder / "model.zip")
    return {"seconds": round(seconds, 1), "megabytes": round((folder / "model.zip").stat().st_size / 1e6, 1)}, None


def report(experiment: Experiment) -> str:
    """Return the table."""
    rows = experiment.rows().set_index("contestant")
    of_ppo = rows.loc["PPO", "seconds"]
    lines = [
        [name, row["seconds"], f"{row['seconds'] / of_ppo:.1f}", row["megabytes"]]
        for name, row in rows.loc[list(CONTESTANTS)].iterrows()
    ]
    return page(
        "Images: cost of the architectures",
        f"`python -m benchmarks.images`. {machines(rows)} Pong, {N_ENVS} environments, {N_ROLLOUTS} rollouts of 128 steps, "
        f"`NatureCNN`, SB3's Atari settings; one phase of PPG's defaults; one thread.",
        table(["", "seconds of the processor", "/ PPO", "model file, MB"], lines),
    )


IMAGES = Experiment("images", wanted, train, report)

if __name__ == "__main__":
    IMAGES.main()
