"""
MinAtar within a number of seconds of one core: PPG and PPO, with the same number of trials of their hyperparameters: their
entries, random ones, and some near the best of these.

1. The speed of each trial on three games. Where something else ran, it was measured again, and the faster counts.
2. Each trial trains on the three games for as many steps as it takes in 120 seconds, one seed.
3. The two trials of each algorithm with the highest mean score train for 300 seconds, one seed.
4. The better one of each trains for two million steps on all five games, of which two have chosen nothing, five seeds.
5. The speed of the better ones, and of PPG with compiled updates, which train the same: in turns.

    python -m benchmarks.seconds run --limit 0       # part 1: nothing else should run; again before part 4
    python -m benchmarks.seconds run --jobs 2        # the runs, whose results do not depend on what else runs
    python -m benchmarks.seconds speed               # part 5: nothing else should run

Each part begins once the one before is complete.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from benchmarks.harness import Experiment, Report, processor, short_hash
from benchmarks.scores import Task
from benchmarks.suites.contestants import TASKS, Settings, entry
from benchmarks.suites.experiment import Comparison
from benchmarks.suites.training import Episodes, curve, make
from benchmarks.tables import machines, page, table
from benchmarks.turns import Measure, take_turns, whole_phases
from sb3_ppg.optim.micro_batches import keep_freed_memory

GAMES = {task.env_id: task for task in TASKS if task.suite == "minatar"}
OTHERS = [Task("MinAtar/Freeway-v1", 2_000_000, 0.0, 50.0), Task("MinAtar/Seaquest-v1", 2_000_000, 0.1, 20.0)]
ALL_GAMES = GAMES | {task.env_id: task for task in OTHERS}
N_FINALISTS, N_SEEDS, N_TURNS = 2, 5, 3
SPEED, SHORT, LONG = 0, 120, 300  # limits in seconds; rows of SPEED measure steps and seconds
FULL = 2_000_000  # a limit in steps
COMPILED, IN_TURNS = "PPG, compiled", "seconds_speed.csv"  # a contestant of part 5; its rows
PPO_ROLLOUTS = 8  # for PPO's speed; for PPG's, those of a phase
QUICK: Settings = dict(n_epochs=2, learning_rate=2e-3)
LIGHT: Settings = QUICK | dict(n_aux_epochs=1, architecture="shared")  # an auxiliary phase that takes little time
# Changes to the entries in suites/: none, and quicker ones; two drawn at random; four near the best of these
TRIALS: dict[str, list[Settings]] = {
    "ppo": [
        {},
        QUICK,
        dict(n_epochs=4, learning_rate=2e-3, batch_size=256, vf_coef=0.5),
        dict(n_epochs=6, learning_rate=2e-3, batch_size=2048, vf_coef=0.5),
        QUICK | dict(learning_rate=3e-3),
        QUICK | dict(n_epochs=3),
        QUICK | dict(vf_coef=1.0),
        QUICK | dict(batch_size=256),
    ],
    "ppg": [
        {},
        QUICK | dict(n_aux_epochs=3),
        dict(n_epochs=4, learning_rate=2e-3, batch_size=256, vf_coef=0.5)
        | dict(n_aux_epochs=6, n_policy_iterations=32, aux_batch_size=1024, architecture="detached"),
        dict(n_epochs=3, learning_rate=3e-3, batch_size=512, vf_coef=1.0)
        | dict(n_aux_epochs=2, n_policy_iterations=16, aux_batch_size=512, architecture="shared"),
        LIGHT,
        LIGHT | dict(n_policy_iterations=32, aux_batch_size=1024),
        LIGHT | dict(n_aux_epochs=2),
        LIGHT | dict(architecture="detached"),
    ],
}
N_TRIALS = 8  # of each algorithm


def settings(algorithm: str, trial: int, game: str) -> Settings:
    """Return all hyperparameters of a trial, in the form of RL Zoo's files."""
    changes, present = dict(TRIALS[algorithm][trial]), entry(algorithm, game)
    architecture = changes.pop("architecture", None)
    if architecture is not None:
        changes["policy_kwargs"] = f"{{**{present['policy_kwargs']}, **dict(architecture={architecture!r})}}"
    return present | changes | {"n_timesteps": 1e9}


def run_of(algorithm: str, trial: int, game: str, seed: int, limit: int) -> dict[str, Any]:
    """Return a run; the limit is one of those above."""
    hashed = short_hash(repr(sorted(settings(algorithm, trial, game).items())))
    return dict(algorithm=algorithm, trial=trial, game=game, seed=seed, limit=limit, settings=hashed)


def wanted() -> list[dict[str, Any]]:
    """Return the runs of the first part and, once it is complete, those of the next."""
    pairs = [(algorithm, trial) for trial in range(N_TRIALS) for algorithm in TRIALS]
    speed = [run_of(*pair, game, 0, SPEED) for game in GAMES for pair in pairs]
    if len(rows_of(SPEED)) < len(speed):
        return speed
    short = [run_of(*pair, game, 0, SHORT) for pair in pairs for game in GAMES]
    long = [run_of(*pair, game, 0, LONG) for pair in best(SHORT, N_FINALISTS) for game in GAMES]
    winners = best(LONG, 1)
    speed += [run_of(*pair, task.env_id, 0, SPEED) for pair in winners for task in OTHERS]
    full = [run_of(*pair, game, seed, FULL) for seed in range(N_SEEDS) for game in ALL_GAMES for pair in winners]
    return speed + short + long + full


def rows_of(limit: int) -> pd.DataFrame:
    """Return the rows that there are with a limit, with their scores."""
    file = SECONDS.results / f"{SECONDS.name}.csv"
    rows = pd.read_csv(file) if file.exists() else pd.DataFrame(columns=["limit", "game", "return"])
    rows = rows[rows["limit"] == limit]
    return rows.assign(score=[ALL_GAMES[game].scores(one) for game, one in zip(rows["game"], rows["return"], strict=True)])


def best(limit: int, n: int) -> list[tuple[str, int]]:
    """Return the n best trials of each algorithm by their mean score in the three games, if all have been run."""
    by_trial = rows_of(limit).groupby(["algorithm", "trial"])["score"]
    means = by_trial.mean()[by_trial.size() == len(GAMES)]
    if len(means) < len(TRIALS) * (N_TRIALS if limit == SHORT else N_FINALISTS):
        return []
    return [(algorithm, trial) for algorithm in TRIALS for trial in means[algorithm].nlargest(n).index]


def make_model(run: dict[str, Any], folder: Path, is_compiled: bool = False) -> Any:
    """Make the agent of a run."""
    made = settings(run["algorithm"], run["trial"], run["game"])
    if run["algorithm"] == "ppg":
        made["compile_updates"] = is_compiled
    return make(run["algorithm"], run["game"], made, folder, run["seed"])[1]


def train(run: dict[str, Any], folder: Path) -> tuple[dict[str, Any], pd.DataFrame | None]:
    """
    Train an agent; its row has the mean return of its last hundred episodes. Where the limit is ``SPEED``, measure steps and
    the processor's seconds of one phase (PPO: of ``PPO_ROLLOUTS``), which the first rollout precedes.
    """
    model, episodes = make_model(run, folder), Episodes(folder / "episodes.csv")
    if run["limit"] == SPEED:
        n_rollouts = 1 + getattr(model, "n_policy_iterations", PPO_ROLLOUTS)
        model.learn(n_rollouts * model.n_steps * model.n_envs, callback=episodes)
        (first_steps, first), (steps, end) = episodes.times[1], episodes.times[-1]
        return {"return": math.nan, "steps": steps - first_steps, "seconds": end - first}, None
    known = rows_of(SPEED)
    own = known[(known["settings"] == run["settings"]) & (known["game"] == run["game"])].iloc[0]
    per_second = own["steps"] / own["seconds"]
    model.learn(FULL if run["limit"] == FULL else int(run["limit"] * per_second), callback=episodes)
    steps = model.num_timesteps
    done = episodes.read(steps)
    points = curve(done, steps, n_points=25)
    row = {"return": round(float(done["return"].tail(100).mean()), 3), "steps": steps, "seconds": round(steps / per_second)}
    return row, points.assign(seconds=(points["steps"] / per_second).round(1))


def speed_of(algorithm: str, trial: int, game: str, is_compiled: bool) -> Measure:
    """Measure a trial as ``sb3-ppg train`` runs it."""
    keep_freed_memory()
    with TemporaryDirectory() as folder:
        model = make_model(run_of(algorithm, trial, game, 0, SPEED), Path(folder), is_compiled)
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


def comparison(is_compiled: bool = False) -> Comparison:
    """
    Return the runs of part 4, in the suites' form.

    :param is_compiled: whether PPG has the speed of compiled updates
    """
    tables = (SECONDS.rows(), SECONDS.curves())
    rows, curves = (one.assign(task=one["game"], contestant=one["algorithm"].str.upper()) for one in tables)
    full = rows[rows["limit"] == FULL].rename(columns={"return": "train_return"}).assign(test_episodes=None)
    speed = pd.read_csv(SECONDS.results / IN_TURNS)
    if is_compiled:
        speed = speed[speed["contestant"] != "PPG"].replace({"contestant": {COMPILED: "PPG"}})
    medians = speed.groupby(["task", "contestant"])["seconds"].median()
    full["seconds"] = [FULL / 1e6 * medians[key] for key in zip(full["task"], full["contestant"], strict=True)]
    return Comparison("MinAtar", FULL, list(ALL_GAMES.values()), full, curves[curves["limit"] == FULL], speed)


def report(experiment: Experiment) -> Report:
    """Return the tables of all trials, and the comparison of the best."""
    texts = []
    head = ["", "changes", "score", *(game.split("/")[1].removesuffix("-v1") for game in GAMES), "steps, median"]
    for limit in (SHORT, LONG):
        lines = []
        for (algorithm, trial), some in rows_of(limit).groupby(["algorithm", "trial"]):
            name = "the suites' entry" if trial == 0 else ", ".join(f"{k} {v}" for k, v in TRIALS[algorithm][trial].items())
            returns = [f"{some[some['game'] == game]['return'].mean():.1f}" for game in GAMES]
            lines.append([algorithm.upper(), name, f"{some['score'].mean():.2f}", *returns, f"{some['steps'].median():,.0f}"])
        lines.sort(key=lambda line: -float(line[2]))
        texts += [f"## {limit} seconds, one seed", table(head, lines)]
    full = comparison()
    text = page(
        "MinAtar within seconds of one core",
        f"`python -m benchmarks.seconds`. {N_TRIALS} trials of each algorithm, one of which is the entry of the suites; "
        "mean return of the last hundred episodes after as many steps as a trial takes in these seconds of one core, "
        f"as measured before. {machines(experiment.rows())}",
        *texts,
        *full.section(),
        f"With compiled updates:{comparison(is_compiled=True).times()}",
    )
    return {"seconds.md": text, "seconds.png": full.picture(), "seconds_tasks.png": full.picture_of_tasks()}


SECONDS = Experiment("seconds", wanted, train, report, commands={"speed": measure_in_turns})

if __name__ == "__main__":
    SECONDS.main()
