"""
Every entry of our hyperparameter files that is not tuned, except two, started by RL Zoo and trained far enough to show that it
works: through whole phases, the largest of which are made smaller where the table says so.

A row has the mean returns of the first and the last fifth of the episodes that ended, which in so few steps need not differ,
and of the last auxiliary phase how far the policy moved and how well its auxiliary head explains the targets.
"""

import importlib
import itertools
import json
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pandas as pd
from stable_baselines3.common.logger import configure

from benchmarks import venvs
from benchmarks.entries import entries_of, made
from benchmarks.environments import PACKAGES
from benchmarks.harness import Experiment, Outcome, Report, machines
from sb3_ppg import PPG
from sb3_ppg.comparison.report import page, table
from sb3_ppg.comparison.runs import short_hash
from sb3_ppg.zoo import ALGOS
from sb3_ppg.zoo.hyperparameters import hyperparameter_file

N_PHASES = 2
MAX_TIMESTEPS = 150_000  # of more phases than one
# Environments of the entries that are for many, of all algorithms or of one
EXAMPLES = {
    "ppg_mask/default": "InvalidActionsDiscrete-v0",
    "default": "FrozenLake-v1",
    "atari": "BreakoutNoFrameskip-v4",
    "minigrid": "MiniGrid-SimpleCrossingS9N1-v0",
    "minatar": "MinAtar/Freeway-v1",
    "procgen": "CoinrunEasy-v0",
    "procgen-paper": "StarpilotHard-v0",
    "procgen-npi16": "StarpilotHard-v0",
}
PYBULLET = "pybullet-envs-gymnasium"
# The first pattern in an algorithm's entry makes it smaller: images take hours, and the rest shared its core with other runs
SMALLER = {
    "/procgen": dict(n_envs=16, n_policy_iterations=2),
    "/CarRacing": dict(n_envs=1, n_policy_iterations=2),
    "-v4": dict(n_envs=1, n_steps=256, n_policy_iterations=2, aux_batch_size=256),  # versions of others that are started
    "Bullet|Hardcore|NoVel|Inverted|Reacher|Standup|ppg_lstm/(A|B|Swimmer)": dict(n_envs=4, n_policy_iterations=2),
}


def wanted() -> list[dict[str, Any]]:
    """Return every entry that is not tuned; "settings" is a hash of the entry with the changes that make it smaller."""
    found = []
    for algorithm in ALGOS:
        for entry, settings in entries_of(hyperparameter_file(algorithm)).items():
            if entry not in tuned_entries(algorithm):
                smaller = next((sizes for name, sizes in SMALLER.items() if re.search(name, f"{algorithm}/{entry}")), {})
                changes = {name: value for name, value in smaller.items() if settings.get(name, value) > value}
                row = dict(algorithm=algorithm, entry=entry, settings=short_hash(json.dumps(settings | changes)))
                env_id = EXAMPLES.get(f"{algorithm}/{entry}", EXAMPLES.get(entry, entry))
                found.append(row | dict(env_id=env_id, changes=json.dumps(changes)))
    return found


def tuned_entries(algo: str) -> dict[str, str]:
    """Return the entries of a hyperparameter file below a comment that ends with "Tuned", and these comments."""
    lines = hyperparameter_file(algo).read_text().splitlines()
    return {line.split(":")[0]: comment for comment, line in itertools.pairwise(lines) if comment.endswith("Tuned")}


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train an entry in a process of its own, forked from one that has imported RL Zoo."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.entries"])
    with ProcessPoolExecutor(1, context) as process:
        return process.submit(start, run, folder).result(), None


def start(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """
    Train an entry for whole phases.

    :raises FloatingPointError: if a logged value is not finite
    """
    if "Bullet" in run["env_id"]:
        sys.path.append(str(venvs.installed(PYBULLET, PACKAGES[PYBULLET]["pip"])[1]))
        importlib.import_module("pybullet_envs_gymnasium")
    settings = entries_of(hyperparameter_file(run["algorithm"]))[run["entry"]] | json.loads(run["changes"])
    model = made(run["algorithm"], run["env_id"], settings, 0, folder)
    assert isinstance(model, PPG)
    phase = model.n_steps * model.n_envs * model.n_policy_iterations
    n_phases = N_PHASES if N_PHASES * phase <= MAX_TIMESTEPS else 1
    n_timesteps = n_phases * phase
    model.set_logger(configure(str(folder), ["csv"]))
    returns: list[float] = []

    def record(step: dict[str, Any], _: Any) -> bool:
        returns.extend(info["episode"]["r"] for info in step["infos"] if "episode" in info)
        return model.num_timesteps <= n_timesteps  # which ends in the first step of the next phase

    begin = time.process_time()
    model.learn(2 * n_timesteps, callback=record)  # schedules of a run of half the length would have come to 0 at its end
    seconds = time.process_time() - begin
    logged = pd.read_csv(folder / "progress.csv").filter(regex="^(train|aux)/").ffill().iloc[-1]
    if not np.isfinite(logged.drop([name for name in logged.index if "explained" in name])).all():
        raise FloatingPointError(f"{run}: {logged.to_dict()}")
    has_phases = model.n_aux_epochs > 0  # DAAC and IDAAC have none
    assert (model.n_aux_phases > 0) == has_phases  # DNA's begin with the second rollout
    fifth = -(-len(returns) // 5)
    return dict(
        steps=n_timesteps,
        phases=n_phases,
        episodes=len(returns),
        first=round(mean(returns[:fifth]), 3) if returns else None,
        last=round(mean(returns[-fifth:]), 3) if returns else None,
        aux_kl=f"{logged['aux/kl']:.1e}" if has_phases else "",
        aux_explained_variance=round(float(logged["aux/explained_variance"]), 3) if has_phases else "",
        seconds=round(seconds),
    )


def report(experiment: Experiment) -> Report:
    rows, lines = experiment.rows().sort_values(["algorithm", "entry"]), []
    for row in rows.itertuples():
        smaller = ", ".join(f"{name}={n}" for name, n in json.loads(row.changes).items())
        returns = f"{row.first} to {row.last} ({row.episodes})" if row.episodes else "none ended"
        of_phase = ["", ""] if pd.isna(row.aux_kl) else [f"{row.aux_kl:.1e}", row.aux_explained_variance]
        speed = f"{row.steps / max(row.seconds, 1):,.0f}"
        lines.append([row.algorithm, row.entry, row.env_id, smaller, f"{row.steps:,}", row.phases, returns, *of_phase, speed])
    head = ["algorithm", "entry", "environment", "smaller", "steps", "phases", "return (episodes)", "KL", "explained var."]
    text = page(
        "Entries that are not tuned, started",
        "`python -m benchmarks.starts run`, `report`: RL Zoo trains each with seed 0 and one thread for whole phases, the "
        "first half of a training. Returns are the means of the first and of the last fifth of the episodes; KL and explained "
        f"variance are those of the last auxiliary phase. {machines(experiment.rows())}",
        table([*head, "steps/s"], lines),
    )
    return {"starts.md": text}


STARTS = Experiment("starts", wanted, train, report, identity=("algorithm", "entry", "settings"))

if __name__ == "__main__":
    STARTS.main()
