"""
MinAtar within a number of seconds of one core: PPG and PPO, with the same number of trials of their hyperparameters: their
entries, random ones, and some near the best of these.

1. The speed of each trial on three games. Where something else ran, it was measured again, and the faster counts.
2. Each trial trains on the three games for as many steps as it takes in 120 seconds, one seed.
3. The two trials of each algorithm with the highest mean score train for 300 seconds, one seed.

    python -m benchmarks.seconds run --limit 0       # the speed: nothing else should run
    python -m benchmarks.seconds run --jobs 2        # the trainings, whose results do not depend on what else runs

Each part begins once the one before is complete.
"""

import math
import random
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.harness import Experiment, short_hash
from benchmarks.suites.contestants import TASKS, Settings, entry
from benchmarks.suites.training import Watched, curve, make
from benchmarks.tables import machines, page, table

GAMES = {task.env_id: task for task in TASKS if task.suite == "minatar"}
N_RANDOM, N_FINALISTS, N_SEEDS = 6, 2, 1
SPEED, SHORT, LONG = 0, 120, 300  # limits in seconds; rows of SPEED measure steps and seconds
PPO_ROLLOUTS = 8  # for PPO's speed; for PPG's, those of a phase
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


# Trials after the random ones: near the best of them
QUICK: Settings = dict(n_epochs=2, learning_rate=2e-3)
LIGHT: Settings = QUICK | dict(n_aux_epochs=1, architecture="shared")  # an auxiliary phase that takes little time
NEAR: dict[str, list[Settings]] = {
    "ppo": [
        QUICK | dict(learning_rate=3e-3),
        QUICK | dict(n_epochs=3),
        QUICK | dict(vf_coef=1.0),
        QUICK | dict(batch_size=256),
        QUICK | dict(n_epochs=1, batch_size=256),
        QUICK | dict(learning_rate=1.5e-3),
    ],
    "ppg": [
        LIGHT,
        LIGHT | dict(n_policy_iterations=32, aux_batch_size=1024),
        LIGHT | dict(n_aux_epochs=2),
        LIGHT | dict(architecture="detached"),
        LIGHT | dict(n_epochs=3),
        LIGHT | dict(learning_rate=3e-3, vf_coef=1.0),
    ],
}


def trials(algorithm: str) -> list[Settings]:
    """Return the changes to an algorithm's entry, always the same."""
    generator = random.Random(0)
    space = OF_BOTH | (OF_PPG if algorithm == "ppg" else {})
    drawn = [{name: generator.choice(values) for name, values in space.items()} for _ in range(N_RANDOM)]
    return [*FIRST[algorithm], *drawn, *NEAR[algorithm]]


N_TRIALS = len(trials("ppo"))  # as many of PPG


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
    """Return the trainings of the first part and, once it is complete, those of the next."""
    pairs = [(algorithm, trial) for trial in range(N_TRIALS) for algorithm in FIRST]
    speed = [part(*pair, game, 0, SPEED) for game in GAMES for pair in pairs]
    if len(rows_of(SPEED)) < len(speed):
        return speed
    short = [part(*pair, game, 0, SHORT) for pair in pairs for game in GAMES]
    finals = [
        part(algorithm, trial, game, seed, LONG)
        for seed in range(N_SEEDS)
        for algorithm, best in finalists().items()
        for trial in best
        for game in GAMES
    ]
    return speed + short + finals


def rows_of(limit: int) -> pd.DataFrame:
    """Return the rows that there are with a limit."""
    file = SECONDS.results / f"{SECONDS.name}.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["limit"])
    return rows[rows["limit"] == limit]


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the score of each row: 0 for random actions, 1 for the task's high return."""
    tasks = [GAMES[game] for game in rows["game"]]
    return rows.assign(
        score=[(one - task.low) / (task.high - task.low) for one, task in zip(rows["return"], tasks, strict=True)]
    )


def mean_scores() -> "pd.Series[float]":
    """Return the mean scores in the first trainings, by algorithm and trial, of the trials that have been run on all games."""
    by_trial = scored(rows_of(SHORT)).groupby(["algorithm", "trial"])["score"]
    return by_trial.mean()[by_trial.size() == len(GAMES)]


def finalists() -> dict[str, list[int]]:
    """Return the best trials of each algorithm, if all have been run."""
    means = mean_scores()
    if len(means) < len(FIRST) * N_TRIALS:
        return {}
    return {algorithm: means[algorithm].nlargest(N_FINALISTS).index.tolist() for algorithm in FIRST}


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """Measure the speed of an agent, or train it; the row then has the mean return of its last hundred episodes."""
    algorithm, game, limit = training["algorithm"], training["game"], training["limit"]
    made = settings(algorithm, training["trial"], game)
    if algorithm == "ppg":
        made["compile_updates"] = False
    model: Any
    _, model = make(algorithm, game, made, folder, training["seed"])
    episodes = Watched(folder / "episodes.csv")
    if limit == SPEED:
        n_rollouts = getattr(model, "n_policy_iterations", PPO_ROLLOUTS) + 1  # the first is not measured
        model.learn(n_rollouts * model.n_steps * model.n_envs, callback=episodes)
        (first_steps, first), (steps, end) = episodes.times[1], episodes.times[-1]
        return {"return": math.nan, "steps": steps - first_steps, "seconds": end - first}, None
    steps_per_second = speed(training)
    model.learn(int(limit * steps_per_second), callback=episodes)
    done = episodes.read(model.num_timesteps)
    last = round(float(done["return"].tail(100).mean()), 3) if len(done) else math.nan
    points = curve(done, model.num_timesteps, n_points=25)
    points = points.assign(seconds=(points["steps"] / steps_per_second).round(1))
    return {"return": last, "steps": model.num_timesteps, "seconds": limit}, points


def speed(training: dict[str, Any]) -> float:
    """Return the steps per second of a trial in a game."""
    rows = rows_of(SPEED)
    own = rows[(rows["settings"] == training["settings"]) & (rows["game"] == training["game"])]
    return float((own["steps"] / own["seconds"]).iloc[0])


def report(experiment: Experiment) -> str:
    """Return the tables of both parts."""
    rows, texts = scored(experiment.rows()), []
    for limit, own in rows[rows["limit"] != SPEED].groupby("limit"):
        lines = []
        for (algorithm, trial), some in own.groupby(["algorithm", "trial"]):
            if some["game"].nunique() < len(GAMES):
                continue  # it is not complete
            name = "the entry" if trial == 0 else ", ".join(f"{k} {v}" for k, v in trials(algorithm)[trial].items())
            games = [f"{some[some['game'] == game]['return'].mean():.1f}" for game in GAMES]
            lines.append([algorithm.upper(), name, f"{some['score'].mean():.2f}", *games, f"{some['steps'].median():,.0f}"])
        lines.sort(key=lambda line: -float(line[2]))
        head = ["", "changes", "score", *(game.split("/")[1].removesuffix("-v1") for game in GAMES), "steps, median"]
        texts += [f"## {limit} seconds, {own['seed'].nunique()} seed(s)", table(head, lines)]
    return page(
        "MinAtar within seconds of one core",
        f"`python -m benchmarks.seconds`. Up to {N_TRIALS} trials of each algorithm, the first of which is its entry; mean "
        "return of the last hundred episodes after as many steps as a trial takes in these seconds of one core, as measured "
        "before. "
        f"{machines(rows)}",
        *texts,
    )


SECONDS = Experiment("seconds", wanted, train, report)

if __name__ == "__main__":
    SECONDS.main()
