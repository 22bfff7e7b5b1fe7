"""
MinAtar within a number of seconds of one core: PPG and PPO, with the same number of random trials of their hyperparameters.

1. Each trial trains for 120 seconds on three games, one seed.
2. The three trials of each algorithm with the highest mean score train for 300 seconds, three seeds.

    python -m benchmarks.seconds run --jobs 2    # both parts: the second once the first is complete
"""

import math
import random
import time
from pathlib import Path
from typing import Any

import pandas as pd
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.harness import Experiment, short_hash
from benchmarks.suites.contestants import TASKS, Settings, entry
from benchmarks.suites.training import Episodes, curve, make
from benchmarks.tables import machines, page, table

GAMES = {task.env_id: task for task in TASKS if task.suite == "minatar"}
N_TRIALS, N_FINALISTS, N_SEEDS = 12, 3, 3
SHORT, LONG = 120, 300  # seconds
OF_BOTH: dict[str, tuple[Any, ...]] = dict(
    n_epochs=(1, 2, 3, 4, 6, 8),
    learning_rate=(5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3),
    batch_size=(256, 512, 1024, 2048),
    vf_coef=(0.25, 0.5, 1.0),
)
OF_PPG: dict[str, tuple[Any, ...]] = dict(
    n_aux_epochs=(1, 2, 3, 6),
    n_policy_iterations=(4, 8, 16, 32),
    aux_batch_size=(512, 1024, 2048),
    architecture=("shared", "detached", "dual"),
)
# Trials before the random ones: the entries of hyperparams/ppg.yml and of ppo.yml, and a change of both
FIRST: dict[str, list[Settings]] = {
    "ppo": [{}, dict(n_epochs=2, learning_rate=2e-3)],
    "ppg": [{}, dict(n_epochs=2, learning_rate=2e-3, n_aux_epochs=3)],
}


def trials(algorithm: str) -> list[Settings]:
    """Return the changes to an algorithm's entry, always the same."""
    generator = random.Random(0)
    space = OF_BOTH | (OF_PPG if algorithm == "ppg" else {})
    drawn = [{name: generator.choice(values) for name, values in space.items()} for _ in range(N_TRIALS)]
    return [*FIRST[algorithm], *drawn][:N_TRIALS]


def settings(algorithm: str, trial: int, game: str) -> Settings:
    """Return all hyperparameters of a trial, in the form of RL Zoo's files."""
    changes = dict(trials(algorithm)[trial])
    architecture = changes.pop("architecture", None)
    present = entry(algorithm, game)
    if architecture is not None:
        changes["policy_kwargs"] = f"{{**{present['policy_kwargs']}, **dict(architecture={architecture!r})}}"
    return present | changes | {"n_timesteps": 1e9}


def part(algorithm: str, trial: int, game: str, seed: int, seconds: int) -> dict[str, Any]:
    """Return a training."""
    hashed = short_hash(repr(sorted(settings(algorithm, trial, game).items())))
    return dict(algorithm=algorithm, trial=trial, game=game, seed=seed, limit=seconds, settings=hashed)


def wanted() -> list[dict[str, Any]]:
    """Return the trainings of the first part, and, once it is complete, those of the second."""
    pairs = [(algorithm, trial) for trial in range(N_TRIALS) for algorithm in FIRST]
    short = [part(*pair, game, 0, SHORT) for pair in pairs for game in GAMES]
    finals = [
        part(algorithm, trial, game, seed, LONG)
        for seed in range(N_SEEDS)
        for algorithm, best in finalists().items()
        for trial in best
        for game in GAMES
    ]
    return short + finals


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the score of each row: 0 for random actions, 1 for the task's high return."""
    tasks = [GAMES[game] for game in rows["game"]]
    return rows.assign(
        score=[(one - task.low) / (task.high - task.low) for one, task in zip(rows["return"], tasks, strict=True)]
    )


def finalists() -> dict[str, list[int]]:
    """Return the best trials of each algorithm, if all have been run."""
    file = SECONDS.results / f"{SECONDS.name}.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["limit"])
    rows = rows[rows["limit"] == SHORT]
    if len(rows) < len(FIRST) * N_TRIALS * len(GAMES):
        return {}
    means = scored(rows).groupby(["algorithm", "trial"])["score"].mean()
    return {algorithm: means[algorithm].nlargest(N_FINALISTS).index.tolist() for algorithm in FIRST}


class Limit(BaseCallback):
    """End a training after a number of seconds of the processor."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def _on_training_start(self) -> None:
        self.end = time.process_time() + self.seconds

    def _on_step(self) -> bool:
        return time.process_time() < self.end


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    """Train an agent until its seconds are over; the row has the mean return of its last hundred episodes."""
    algorithm, game = training["algorithm"], training["game"]
    made = settings(algorithm, training["trial"], game)
    if algorithm == "ppg":
        made["compile_updates"] = False
    _, model = make(algorithm, game, made, folder, training["seed"])
    episodes = Episodes(folder / "episodes.csv")
    model.learn(10**9, callback=[episodes, Limit(training["limit"])])
    episodes._on_rollout_end()  # the one that the limit has cut off
    done = episodes.read(model.num_timesteps)
    last = round(float(done["return"].tail(100).mean()), 3) if len(done) else math.nan
    return {"return": last, "steps": model.num_timesteps}, curve(done, model.num_timesteps, n_points=25)


def report(experiment: Experiment) -> str:
    """Return the tables of both parts."""
    rows, texts = scored(experiment.rows()), []
    for limit, own in rows.groupby("limit"):
        lines = []
        for (algorithm, trial), some in own.groupby(["algorithm", "trial"]):
            name = "the entry" if trial == 0 else ", ".join(f"{k} {v}" for k, v in trials(algorithm)[trial].items())
            games = [f"{some[some['game'] == game]['return'].mean():.1f}" for game in GAMES]
            lines.append([algorithm.upper(), name, f"{some['score'].mean():.2f}", *games, f"{some['steps'].median():,.0f}"])
        lines.sort(key=lambda line: -float(line[2]))
        head = ["", "changes", "score", *(game.split("/")[1].removesuffix("-v1") for game in GAMES), "steps, median"]
        texts += [f"## {limit} seconds, {own['seed'].nunique()} seed(s)", table(head, lines)]
    return page(
        "MinAtar within seconds of one core",
        f"`python -m benchmarks.seconds`. {N_TRIALS} trials of each algorithm, the first of which is its entry; mean return "
        f"of the last hundred episodes when the seconds of the processor are over. {machines(rows)}",
        *texts,
    )


SECONDS = Experiment("seconds", wanted, train, report)

if __name__ == "__main__":
    SECONDS.main()
