"""
PPG's speed beside that of an earlier commit. Both train in turns, each time in a process of its own with one thread and the
same arguments, so that what the machine does meanwhile falls on both.

    python -m benchmarks.side_by_side 52f1544 [--pairs 7]

Writes results/side_by_side.md: medians of the pairs' ratios, with the smallest and the largest. 52f1544 is the last commit
before the package was divided into folders.
"""

import argparse
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.machine import processor

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "side_by_side.md"
# What is trained, with all arguments whose defaults have changed since; of the phases after the first the fastest one counts
COMMON = 'seed=0, device="cpu", learning_rate=5e-4, gamma=0.999, clip_range=0.2, ent_coef=0.01, max_grad_norm=0.5'
N_TIMED = {"MLP": 8, "IMPALA": 2}
MAKE = {
    "MLP": f"""PPG(
        "MlpPolicy", make_vec_env("CartPole-v1", 8, seed=0), n_steps=256, batch_size=256, n_epochs=4, n_policy_iterations=8,
        aux_batch_size=2048, n_aux_epochs=6, {COMMON}
    )""",
    "IMPALA": f"""PPG(
        "CnnPolicy", make_vec_env(lambda: FakeImageEnv(screen_height=64, screen_width=64, n_channels=3), 8, seed=0),
        n_steps=64, batch_size=256, n_epochs=1, n_policy_iterations=2, aux_batch_size=512, n_aux_epochs=2,
        {COMMON}, policy_kwargs=dict(features_extractor_class=ImpalaCNN)
    )""",
}
TIMED = """
import time
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import FakeImageEnv
from sb3_ppg import PPG, ImpalaCNN
th.set_num_threads(1)
model = {make}
n_timesteps = model.n_envs * model.n_steps * model.n_policy_iterations
model.learn(n_timesteps)
times = []
for _ in range({n_timed}):
    start = time.perf_counter()
    model.learn(n_timesteps, reset_num_timesteps=False)
    times.append(time.perf_counter() - start)
print(min(times))
"""


def seconds(case: str, tree: Path) -> float:
    """
    :param case: of ``MAKE``
    :param tree: whose package trains
    :return: of its fastest phase
    """
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", TIMED.format(make=MAKE[case], n_timed=N_TIMED[case])]
    return float(subprocess.run(command, env=environment, cwd=tree, check=True, capture_output=True, text=True).stdout)


def ratios(case: str, before: Path, n_pairs: int) -> list[float]:
    """
    :param case: of ``MAKE``
    :param before: the earlier tree
    :param n_pairs: one training of each
    :return: times of the present tree over those of the earlier one; each goes first every other time
    """
    found = []
    for pair in range(n_pairs):
        order = [before, ROOT] if pair % 2 == 0 else [ROOT, before]
        times = {tree: seconds(case, tree) for tree in order}
        found.append(times[ROOT] / times[before])
        print(case, f"{found[-1]:.3f}", flush=True)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the earlier one")
    parser.add_argument("--pairs", default=7, type=int, help="of trainings")
    args = parser.parse_args()
    lines = [
        "# Time of a phase beside an earlier commit",
        "",
        f"`python -m benchmarks.side_by_side {args.commit} --pairs {args.pairs}`: medians of the pairs' ratios, with the "
        f"smallest and the largest. {processor()}.",
        "",
        f"| | time over that of {args.commit} |",
        "|---|---|",
    ]
    with TemporaryDirectory() as folder:
        archive = subprocess.check_output(["git", "archive", args.commit], cwd=ROOT)
        tarfile.open(fileobj=BytesIO(archive)).extractall(folder, filter="data")
        for case in MAKE:
            found = ratios(case, Path(folder), args.pairs)
            lines.append(f"| {case} | {median(found):.3f} ({found[0]:.3f} to {found[-1]:.3f}) |")
    text = "\n".join(lines) + "\n"
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
