"""
MinAtar: PPG and PPO, each with the best of eight trials of its hyperparameters after 300 seconds of one core, for two million
steps on all five games, of which two have chosen nothing, five seeds. At commit 9aa64fc, this module has the search, too.

    python -m benchmarks.seconds run --jobs 2        # the runs, whose results do not depend on what else runs
    python -m benchmarks.seconds speed               # also of PPG with compiled updates; nothing else should run
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from benchmarks.harness import Experiment, Report, measured
from benchmarks.scores import Task
from benchmarks.suites.contestants import TASKS, Settings, entry, made
from benchmarks.suites.experiment import Comparison
from sb3_ppg.comparison.report import page
from sb3_ppg.comparison.runs import Outcome, machine
from sb3_ppg.comparison.study import short_hash
from sb3_ppg.comparison.training import Episodes, curve, speed
from sb3_ppg.comparison.workers import Measure

OTHERS = [Task("MinAtar/Freeway-v1", 2_000_000, 0.0, 50.0), Task("MinAtar/Seaquest-v1", 2_000_000, 0.1, 20.0)]
ALL_GAMES = {task.env_id: task for task in [*(task for task in TASKS if task.suite == "minatar"), *OTHERS]}
N_SEEDS, N_TURNS = 5, 3
FULL = 2_000_000  # steps
COMPILED, IN_TURNS = "PPG, compiled", "seconds_speed.csv"  # who is measured, too; where the speed is
PPO_ROLLOUTS = 8  # for PPO's speed; for PPG's, those of a phase
# By algorithm, the number of its best trial, and its changes to the entries in suites/
QUICK: Settings = dict(n_epochs=2, learning_rate=2e-3)
BEST: dict[str, tuple[int, Settings]] = {"ppo": (1, QUICK), "ppg": (7, dict(QUICK, n_aux_epochs=1))}


def settings(algorithm: str, game: str) -> Settings:
    """Return all hyperparameters of the best trial, in the form of RL Zoo's files."""
    changes, present = dict(BEST[algorithm][1]), entry(algorithm, game)
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


def make_model(algorithm: str, game: str, seed: int, folder: Path, **changes: Any) -> Any:
    """Make the agent of a run."""
    return made(algorithm, game, settings(algorithm, game) | changes, seed, folder).model


def train(run: dict[str, Any], folder: Path) -> Outcome:
    """Train an agent; its row has the mean return of its last hundred episodes."""
    changes = dict(compile_updates=False) if run["algorithm"] == "ppg" else {}
    model = make_model(run["algorithm"], run["game"], run["seed"], folder, **changes)
    episodes = Episodes(time.process_time)
    model.learn(FULL, callback=episodes)
    steps, done = model.num_timesteps, episodes.table()
    row = {"return": round(float(done["return"].tail(100).mean()), 3), "steps": steps}
    return row | {"seconds": round(done["seconds"].iloc[-1])}, curve(done, steps, n_points=25)


def speed_of(algorithm: str, game: str, changes: Settings) -> Measure:
    """Measure an algorithm as ``sb3-ppg train`` runs it."""
    with TemporaryDirectory() as folder:
        return speed(make_model(algorithm, game, 0, Path(folder), **changes), n_rollouts=PPO_ROLLOUTS)


def measure_in_turns(experiment: Experiment, _: Sequence[Any]) -> None:
    """Measure the algorithms in each game."""
    tables = []
    for game in ALL_GAMES:
        compiled = {"PPG": dict(compile_updates=False), COMPILED: dict(compile_updates=True)}
        contestants: dict[str, tuple] = {"PPO": (speed_of, ("ppo", game, {}))}
        contestants |= {name: (speed_of, ("ppg", game, changes)) for name, changes in compiled.items()}
        tables.append(measured(contestants, n_turns=N_TURNS).assign(task=game, machine=machine()))
    pd.concat(tables).to_csv(experiment.results / IN_TURNS, index=False)


def comparison(is_compiled: bool = False) -> Comparison:
    """
    Return the runs of part 4, in the suites' form.

    :param is_compiled: whether PPG has the speed of compiled updates
    """
    tables = (SECONDS.rows(), SECONDS.curves())
    rows, curves = (one.assign(task=one["game"], contestant=one["algorithm"].str.upper()) for one in tables)
    full = rows.rename(columns={"return": "train_return"}).assign(test_episodes=None)
    speed = pd.read_csv(SECONDS.results / IN_TURNS)
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


SECONDS = Experiment("seconds", wanted, train, report, commands={"speed": measure_in_turns})

if __name__ == "__main__":
    SECONDS.main()
