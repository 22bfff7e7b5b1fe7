"""
MinAtar: PPG and PPO, each with the best of eight trials of its hyperparameters after 300 seconds of one core, for two million
steps on all five games, of which two have chosen nothing, five seeds. At commit 9aa64fc, this module has the search, too.

    python -m benchmarks.seconds run --jobs 2

seconds_speed.csv has the speeds in turns, also of PPG with compiled updates: ``speed`` at commit 76f21b7.
"""

from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.episodes import RECORDED, curve
from benchmarks.harness import RESULTS, Experiment, Outcome, Report, trained
from benchmarks.scores import Task
from benchmarks.suites.contestants import TASKS, Settings, entry
from benchmarks.suites.experiment import Comparison
from sb3_ppg.comparison.report import page
from sb3_ppg.comparison.runs import short_hash

OTHERS = [Task("MinAtar/Freeway-v1", 2_000_000, 0.0, 50.0), Task("MinAtar/Seaquest-v1", 2_000_000, 0.1, 20.0)]
ALL_GAMES = {task.env_id: task for task in [*(task for task in TASKS if task.suite == "minatar"), *OTHERS]}
N_SEEDS = 5
FULL = 2_000_000  # steps
COMPILED, IN_TURNS = "PPG, compiled", "seconds_speed.csv"  # who was measured, too; where the speed is
# By algorithm, the number of its best trial, and its changes to the entries in suites/
BEST = {"ppo": (1, dict(n_epochs=2, learning_rate=2e-3)), "ppg": (7, dict(n_epochs=2, learning_rate=2e-3, n_aux_epochs=1))}


def settings(algorithm: str, game: str) -> Settings:
    """Return all hyperparameters of the best trial, in the form of RL Zoo's files."""
    changes: Settings = dict(BEST[algorithm][1])
    present = entry(algorithm, game)
    if algorithm == "ppg":
        changes["policy_kwargs"] = f"{{**{present['policy_kwargs']}, **dict(architecture='detached')}}"
    return present | changes | {"n_timesteps": 1e9}


def wanted() -> list[dict[str, Any]]:
    return [
        dict(algorithm=algorithm, trial=trial, game=game, seed=seed, limit=FULL)
        | dict(settings=short_hash(repr(sorted(settings(algorithm, game).items()))))
        for seed in range(N_SEEDS)
        for game in ALL_GAMES
        for algorithm, (trial, _) in BEST.items()
    ]


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train an agent; its row has the mean return of its last hundred episodes."""
    changes = dict(compile_updates=False) if run["algorithm"] == "ppg" else {}
    algorithm, game = run["algorithm"], run["game"]
    done = trained(folder, algorithm, game, settings(algorithm, game) | changes, run["seed"], FULL, **RECORDED)
    last = done.rows().tail(100)
    row = {"return": round(float(last["return"].mean()), 3), "steps": last["steps"].iloc[-1]}
    return row | {"seconds": round(last["seconds"].iloc[-1])}, curve(done, n_latest=100, n_points=25)


def comparison(is_compiled: bool = False) -> Comparison:
    """
    Return the runs in the suites' form.

    :param is_compiled: whether PPG has the speed of compiled updates
    """
    tables = (SECONDS.rows(), SECONDS.curves())
    rows, curves = (table.assign(task=table["game"], contestant=table["algorithm"].str.upper()) for table in tables)
    full = rows.rename(columns={"return": "train_return"}).assign(test_episodes=None)
    speed = pd.read_csv(RESULTS / IN_TURNS)
    if is_compiled:
        speed = speed[speed["contestant"] != "PPG"].replace({"contestant": {COMPILED: "PPG"}})
    medians = speed.groupby(["task", "contestant"])["seconds"].median()
    full["seconds"] = [FULL / 1e6 * medians[key] for key in zip(full["task"], full["contestant"], strict=True)]
    return Comparison("MinAtar", FULL, list(ALL_GAMES.values()), full, curves[curves["limit"] == FULL], speed)


def report(_: Experiment) -> Report:
    """Return the comparison."""
    full = comparison()
    text = page(
        "MinAtar, the best of a search",
        "`python -m benchmarks.seconds`. Each algorithm has the best of eight trials after 300 seconds of one core, see "
        "[the search](seconds_search.md).",
        *full.section(),
        f"With compiled updates:{comparison(is_compiled=True).times()}",
    )
    return {"seconds.md": text, "seconds.png": full.picture(), "seconds_tasks.png": full.picture_of_tasks()}


SECONDS = Experiment("seconds", wanted, train, report)

if __name__ == "__main__":
    SECONDS.main()
