"""
MinAtar within a number of seconds of one core: PPG and PPO, with the same number of trials of their hyperparameters: their
entries, random ones, and some near the best of these.

1. The speed of each trial on three games. Where something else ran, it was measured again, and the faster counts.
2. Each trial trains on the three games for as many steps as it takes in 120 seconds, one seed.
3. The two trials of each algorithm with the highest mean score train for 300 seconds, one seed.
4. The better one of each trains for two million steps on all five games, of which two have chosen nothing, five seeds.
5. The speed of the better ones, and of PPG with compiled updates, which train the same: in turns.

    python -m benchmarks.seconds run --limit 0       # part 1: nothing else should run; again before part 4
    python -m benchmarks.seconds run --jobs 2        # the trainings, whose results do not depend on what else runs
    python -m benchmarks.seconds speed               # part 5: nothing else should run

Each part begins once the one before is complete.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.harness import Experiment, Report, short_hash
from benchmarks.machine import processor
from benchmarks.scores import Task
from benchmarks.suites.contestants import TASKS, Settings, entry
from benchmarks.suites.report import Comparison
from benchmarks.suites.training import Episodes, Watched, curve, make
from benchmarks.tables import machines, page, table
from benchmarks.turns import Measure, take_turns, whole_phases
from sb3_ppg.optim.micro_batches import keep_freed_memory

GAMES = {task.env_id: task for task in TASKS if task.suite == "minatar"}
OTHERS = [Task("MinAtar/Freeway-v1", 2_000_000, 0.0, 50.0), Task("MinAtar/Seaquest-v1", 2_000_000, 0.1, 20.0)]
SCORE_AND_RETURNS = ["score", *(game.split("/")[1].removesuffix("-v1") for game in GAMES)]  # columns of tables
ALL_GAMES = GAMES | {task.env_id: task for task in OTHERS}
N_RANDOM, N_FINALISTS, N_SEEDS, N_TURNS = 2, 2, 5, 3
SPEED, SHORT, LONG = 0, 120, 300  # limits in seconds; rows of SPEED measure steps and seconds
FULL = 2_000_000  # a limit in steps
COMPILED, IN_TURNS = "PPG, compiled", "seconds_speed.csv"  # a contestant of part 5; its rows
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
    ],
    "ppg": [
        LIGHT,
        LIGHT | dict(n_policy_iterations=32, aux_batch_size=1024),
        LIGHT | dict(n_aux_epochs=2),
        LIGHT | dict(architecture="detached"),
    ],
}


def trials(algorithm: str) -> list[Settings]:
    """Return the changes to an algorithm's entry, always the same."""
    generator = random.Random(0)
    space = OF_BOTH | (OF_PPG if algorithm == "ppg" else {})
    drawn = [{name: generator.choice(values) for name, values in space.items()} for _ in range(N_RANDOM)]
    return [*FIRST[algorithm], *drawn, *NEAR[algorithm]]


N_TRIALS = len(trials("ppo"))  # as many of PPG


def settings(algorithm: str, changes: Settings, game: str) -> Settings:
    """Return all hyperparameters, in the form of RL Zoo's files: an algorithm's entry for a game, with changes."""
    changes = dict(changes)
    architecture = changes.pop("architecture", None)
    present = entry(algorithm, game)
    if architecture is not None:
        changes["policy_kwargs"] = f"{{**{present['policy_kwargs']}, **dict(architecture={architecture!r})}}"
    return present | changes | {"n_timesteps": 1e9}


def part(algorithm: str, trial: int, game: str, seed: int, seconds: int) -> dict[str, Any]:
    """Return a training."""
    hashed = short_hash(repr(sorted(settings(algorithm, trials(algorithm)[trial], game).items())))
    return dict(algorithm=algorithm, trial=trial, game=game, seed=seed, limit=seconds, settings=hashed)


def wanted() -> list[dict[str, Any]]:
    """Return the trainings of the first part and, once it is complete, those of the next."""
    pairs = [(algorithm, trial) for trial in range(N_TRIALS) for algorithm in FIRST]
    speed = [part(*pair, game, 0, SPEED) for game in GAMES for pair in pairs]
    if len(rows_of(SPEED)) < len(speed):
        return speed
    short = [part(*pair, game, 0, SHORT) for pair in pairs for game in GAMES]
    long = [part(*pair, game, 0, LONG) for pair in best(SHORT, N_FINALISTS) for game in GAMES]
    winners = best(LONG, 1)
    speed += [part(*pair, task.env_id, 0, SPEED) for pair in winners for task in OTHERS]
    full = [part(*pair, game, seed, FULL) for seed in range(N_SEEDS) for game in ALL_GAMES for pair in winners]
    return speed + short + long + full


def rows_of(limit: int) -> pd.DataFrame:
    """Return the rows that there are with a limit."""
    file = SECONDS.results / f"{SECONDS.name}.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["limit"])
    return rows[rows["limit"] == limit]


def scored(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the score of each row: 0 for random actions, 1 for the task's high return."""
    pairs = zip(rows["game"], rows["return"], strict=True)
    return rows.assign(score=[ALL_GAMES[game].scores(one) for game, one in pairs])


def score_and_returns(rows: pd.DataFrame) -> list[str]:
    """Return the mean score of some rows and their mean return in each of the three games, for ``SCORE_AND_RETURNS``."""
    means = (rows[rows["game"] == game]["return"].mean() for game in GAMES)
    return [f"{rows['score'].mean():.2f}", *(f"{mean:.1f}" for mean in means)]


def mean_scores(limit: int) -> "pd.Series[float]":
    """Return the mean scores, by algorithm and trial, of the trials that have been run with a limit on all three games."""
    by_trial = scored(rows_of(limit)).groupby(["algorithm", "trial"])["score"]
    return by_trial.mean()[by_trial.size() == len(GAMES)]


def best(limit: int, n: int) -> list[tuple[str, int]]:
    """Return the n best trials of each algorithm, if all have been run."""
    means = mean_scores(limit)
    if len(means) < len(FIRST) * (N_TRIALS if limit == SHORT else N_FINALISTS):
        return []
    return [(algorithm, trial) for algorithm in FIRST for trial in means[algorithm].nlargest(n).index]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """Measure the speed of an agent, or train it; the row then has the mean return of its last hundred episodes."""
    algorithm, game, limit = training["algorithm"], training["game"], training["limit"]
    made = settings(algorithm, trials(algorithm)[training["trial"]], game)
    if algorithm == "ppg":
        made["compile_updates"] = False
    if limit == SPEED:
        return measure_speed(algorithm, made, game, folder), None
    steps_per_second = speed(training)
    n_timesteps = limit if limit == FULL else int(limit * steps_per_second)
    last, steps, points = returns(algorithm, made, game, training["seed"], n_timesteps, folder)
    points = points.assign(seconds=(points["steps"] / steps_per_second).round(1))
    return {"return": last, "steps": steps, "seconds": round(steps / steps_per_second)}, points


def measure_speed(algorithm: str, made: Settings, game: str, folder: Path, n_before: int = 1) -> dict[str, Any]:
    """
    Return the steps and the processor's seconds of one phase, of PPO as many rollouts as ``PPO_ROLLOUTS``.

    :param n_before: rollouts that are not measured
    """
    model: Any
    _, model = make(algorithm, game, made, folder)
    episodes = Watched(folder / "episodes.csv")
    n_rollouts = n_before + getattr(model, "n_policy_iterations", PPO_ROLLOUTS)
    model.learn(n_rollouts * model.n_steps * model.n_envs, callback=episodes)
    (first_steps, first), (steps, end) = episodes.times[n_before], episodes.times[-1]
    return {"return": math.nan, "steps": steps - first_steps, "seconds": end - first}


def returns(
    algorithm: str, made: Settings, game: str, seed: int, n_timesteps: int, folder: Path
) -> tuple[float, int, pd.DataFrame]:
    """Train an agent; return the mean of its last hundred episodes, its steps and its learning curve."""
    _, model = make(algorithm, game, made, folder, seed)
    episodes = Episodes(folder / "episodes.csv")
    model.learn(n_timesteps, callback=episodes)
    done = episodes.read(model.num_timesteps)
    last = round(float(done["return"].tail(100).mean()), 3) if len(done) else math.nan
    return last, model.num_timesteps, curve(done, model.num_timesteps, n_points=25)


def speed(training: dict[str, Any]) -> float:
    """Return the steps per second of a trial in a game."""
    rows = rows_of(SPEED)
    own = rows[(rows["settings"] == training["settings"]) & (rows["game"] == training["game"])]
    return float((own["steps"] / own["seconds"]).iloc[0])


def speed_of(algorithm: str, trial: int, game: str, is_compiled: bool) -> Measure:
    """Measure a trial as ``sb3-ppg train`` runs it."""
    keep_freed_memory()
    made = settings(algorithm, trials(algorithm)[trial], game)
    if algorithm == "ppg":
        made["compile_updates"] = is_compiled
    with TemporaryDirectory() as folder:
        _, model = make(algorithm, game, made, Path(folder))
    assert isinstance(model, OnPolicyAlgorithm)
    return whole_phases(model, PPO_ROLLOUTS)


def measure_in_turns(experiment: Experiment, _: Sequence[Any]) -> None:
    """Measure the better trials in each game."""
    tables = []
    for game in ALL_GAMES:
        contestants = {algorithm.upper(): (algorithm, trial, game, False) for algorithm, trial in best(LONG, 1)}
        contestants[COMPILED] = (*contestants["PPG"][:3], True)
        table = take_turns({name: (speed_of, arguments) for name, arguments in contestants.items()}, n_turns=N_TURNS)
        tables.append(table.assign(task=game, machine=processor()))
    pd.concat(tables).to_csv(experiment.results / IN_TURNS, index=False)


def comparison(rows: pd.DataFrame, curves: pd.DataFrame, is_compiled: bool = False) -> Comparison:
    """
    Return the trainings of part 4, in the suites' form.

    :param is_compiled: whether PPG has the speed of compiled updates
    """
    rows, curves = (one.assign(task=one["game"], contestant=one["algorithm"].str.upper()) for one in (rows, curves))
    full = rows[rows["limit"] == FULL].rename(columns={"return": "train_return"}).assign(test_episodes=None)
    speed = pd.read_csv(SECONDS.results / IN_TURNS)
    if is_compiled:
        speed = speed[speed["contestant"] != "PPG"].replace({"contestant": {COMPILED: "PPG"}})
    medians = speed.groupby(["task", "contestant"])["seconds"].median()
    full["seconds"] = [FULL / 1e6 * medians[key] for key in zip(full["task"], full["contestant"], strict=True)]
    tasks = [task for game, task in ALL_GAMES.items() if (full["game"] == game).any()]
    return Comparison("MinAtar", FULL, tasks, full, curves[curves["limit"] == FULL], speed)


def report(experiment: Experiment) -> Report:
    """Return the tables of all trials, and the comparison of the best."""
    rows, texts = experiment.rows(), []
    for limit in (SHORT, LONG):
        lines = []
        for (algorithm, trial), some in scored(rows[rows["limit"] == limit]).groupby(["algorithm", "trial"]):
            if len(some) < len(GAMES):
                continue  # it is not complete
            name = "the suites' entry" if trial == 0 else ", ".join(f"{k} {v}" for k, v in trials(algorithm)[trial].items())
            lines.append([algorithm.upper(), name, *score_and_returns(some), f"{some['steps'].median():,.0f}"])
        lines.sort(key=lambda line: -float(line[2]))
        head = ["", "changes", *SCORE_AND_RETURNS, "steps, median"]
        texts += [f"## {limit} seconds, one seed", table(head, lines)] if lines else []
    files: dict[str, str | Figure] = {}
    if len((full := comparison(rows, experiment.curves())).rows) > 0:
        texts += full.section()
        texts.append(f"With compiled updates:{comparison(rows, experiment.curves(), is_compiled=True).times()}")
        files = {"seconds.png": full.picture(), "seconds_tasks.png": full.picture_of_tasks()}
    text = page(
        "MinAtar within seconds of one core",
        f"`python -m benchmarks.seconds`. {N_TRIALS} trials of each algorithm, one of which is the entry of the suites; "
        "mean return of the last hundred episodes after as many steps as a trial takes in these seconds of one core, "
        f"as measured before. {machines(rows)}",
        *texts,
    )
    return {"seconds.md": text, **files}


SECONDS = Experiment("seconds", wanted, train, report, commands={"speed": measure_in_turns})

if __name__ == "__main__":
    SECONDS.main()
