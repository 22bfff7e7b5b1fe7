"""
PPG beside PPO at its best: RL Zoo's entry for an environment, and PPG's own entry without the auxiliary phase and with
normalized rewards. Where both have their defaults, PPO's rewards are normalized, because PPG does not depend on their scale.
Beside them, what PPG's lead consists of: fourteen small environments, with seeds that played no part in the search for the
defaults, and MinAtar's five games with PPG's architectures, where PPO has the settings of PPG's entry, which were also the
best of its own eight (results/seconds_search.md).

    python -m benchmarks.matches run --jobs 2 --match Acrobot-v1    # can be killed and started again
    python -m benchmarks.matches report

A run is one of ``sb3-ppg train``; the measure, the seconds and the verdict are those of ``sb3-ppg compare``. The environments
of other packages were chosen before the first run; each package is in a virtual environment that only its own runs see.
"""

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from rl_zoo3 import ALGOS
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvStepReturn
from typing_extensions import override

from benchmarks import venvs
from benchmarks.entries import Settings, entries_of, zoo_entry
from benchmarks.environments import PACKAGES
from benchmarks.harness import Experiment, Outcome, Report, defaults_of, machines, trained
from sb3_ppg import PPG
from sb3_ppg.buffers.aux_buffer import AuxBuffer
from sb3_ppg.comparison.report import COLORS, N_LAST, VIEWS, Comparison, page, table
from sb3_ppg.comparison.runs import short_hash
from sb3_ppg.comparison.scores import Scores, improvements, interquartile_means
from sb3_ppg.objectives import Objective
from sb3_ppg.zoo.hyperparameters import hyperparameter_file


class Task(NamedTuple):
    """
    An environment that is learned.

    :param env_id: its name in RL Zoo
    :param n_timesteps: length of a run
    :param low: the return whose score is 0: what random actions reach
    :param high: the return whose score is 1
    """

    env_id: str
    n_timesteps: int
    low: float
    high: float

    def scores(self, returns: np.ndarray) -> np.ndarray:
        """Return 0 where a return is ``low``, 1 where it is ``high``."""
        return (returns - self.low) / (self.high - self.low)


# On the first seven, PPG's defaults were searched (results/defaults_search.md)
SMALL = [
    Task("CartPole-v1", 50_000, 22.0, 500.0),
    Task("Pendulum-v1", 80_000, -1230.0, -150.0),
    Task("Reacher-v5", 60_000, -43.0, -5.0),
    Task("Hopper-v5", 100_000, 18.0, 2000.0),
    Task("HalfCheetah-v5", 100_000, -280.0, 2000.0),
    Task("LunarLander-v3", 150_000, -180.0, 200.0),
    Task("BipedalWalker-v3", 150_000, -100.0, 200.0),
    Task("Acrobot-v1", 60_000, -500.0, -80.0),
    Task("InvertedDoublePendulum-v5", 80_000, 55.0, 9300.0),
    Task("Walker2d-v5", 150_000, 2.0, 2000.0),
    Task("Swimmer-v5", 100_000, 0.0, 100.0),
    Task("Pusher-v5", 100_000, -150.0, -30.0),
    Task("InvertedPendulum-v5", 60_000, 5.0, 1000.0),
    Task("LunarLanderContinuous-v3", 100_000, -180.0, 200.0),
]
# Environments with entries, by the page that sums them up
ENTERED = {
    "entries": ("Acrobot-v1", "LunarLander-v3", "LunarLanderContinuous-v3"),
    "entries_mujoco": ("Hopper-v5", "HalfCheetah-v5", "Walker2d-v5"),
}
TASKS = {task.env_id: task for task in SMALL}
GAMES = [
    Task("MinAtar/Asterix-v1", 1_000_000, 0.5, 10.0),
    Task("MinAtar/Breakout-v1", 1_000_000, 0.4, 10.0),
    Task("MinAtar/SpaceInvaders-v1", 1_000_000, 4.2, 100.0),
    Task("MinAtar/Freeway-v1", 1_000_000, 0.0, 50.0),
    Task("MinAtar/Seaquest-v1", 1_000_000, 0.1, 20.0),
]
# Pages that sum up several environments: title, and groups of tasks, each with the contestant that is compared with the next
POOLS: dict[str, tuple[str, dict[str, tuple[list[Task], str]]]] = {
    "defaults": (
        "Defaults, and what PPG's lead consists of: phase, value units, learning rate",
        {"all fourteen": (SMALL, "PPG"), "the seven that were not searched": (SMALL[7:], "PPG")},
    ),
    "images_minatar": (
        "MinAtar: architectures and auxiliary phases",
        {f"five games, {first}": (GAMES, first) for first in ("PPG", "PPG, half of the phase", "PPG, 1 auxiliary epoch")},
    ),
    **{
        page: (
            f"Entries of ppg.yml beside PPO: {', '.join(ids)}",
            {"three environments": ([TASKS[each] for each in ids], "PPG")},
        )
        for page, ids in ENTERED.items()
    },
}
SINGLE = ("matches", *ENTERED)  # pages whose environments also have lines of their own
PIP = {name: package["pip"] for name, package in PACKAGES.items()} | {"sbx": venvs.SBX}
NORMALIZED = "dict(norm_obs=False, norm_reward=True)"
COLD = 28  # seconds that compiling takes at most without torch's cache (results/compiled.csv, idle machine)
RATES = (1 / 3, 1.0, 3.0)  # factors of both algorithms' learning rate
ENTRIES = entries_of(hyperparameter_file("ppg"))
MINATAR = ENTRIES["minatar"], "features_extractor_class=MinAtarCNN, net_arch=[]"


class Match(NamedTuple):
    """
    Contestants in one environment, the first of which is compared with each of the others.

    :param env_id: ID
    :param n_timesteps: length of a run
    :param contestants: by name, the algorithm's name in RL Zoo and its entry
    :param package: name in ``PIP`` of a package that has a virtual environment of its own
    :param module: registers the environment; empty: none
    :param env_kwargs: arguments of ``gymnasium.make``
    :param seeds: seeds of the runs
    :param page: name of the page on which it stands, in ``POOLS`` if several environments are summed up there
    """

    env_id: str
    n_timesteps: int
    contestants: Mapping[str, tuple[str, Settings]]
    package: str = ""
    module: str = ""
    env_kwargs: Mapping[str, Any] = {}
    seeds: Sequence[int] = range(6)  # as many as can tell up to six contestants apart
    page: str = "matches"


def without_phase(settings: Settings) -> Settings:
    """Return PPG's entry as one of PPO with normalized rewards."""
    own = defaults_of(PPG).keys() - defaults_of(PPO).keys()
    return {"normalize": NORMALIZED, **{name: value for name, value in settings.items() if name not in own}}


def with_entries(env_id: str, n_timesteps: int, zoo_id: str = "") -> Match:
    """Return PPG with its entry against PPO with both."""
    own = ENTRIES[env_id]
    opponents = {"PPO, RL Zoo's entry": ("ppo", zoo_entry("ppo", zoo_id or env_id))}
    opponents["PPO, PPG's entry"] = ("ppo", without_phase(own))
    return Match(env_id, n_timesteps, {"PPG": ("ppg", own), **opponents})


def with_defaults(env_id: str, n_timesteps: int, *package: Any, policy: str = "MlpPolicy", **further: Any) -> Match:
    """Return PPG with its defaults against PPO with its own and normalized rewards, and then also with a higher rate."""
    settings: Settings = dict(policy=policy, **further)
    normalized = {**settings, "normalize": NORMALIZED}
    opponents = {"PPO, normalized rewards": ("ppo", normalized)}
    opponents["PPO, normalized rewards, rate 5e-4"] = ("ppo", {**normalized, "learning_rate": 5e-4})
    return Match(env_id, n_timesteps, {"PPG": ("ppg", settings), **opponents}, *package)._replace(seeds=range(5))


def with_parts(task: Task) -> Match:
    """
    Return both algorithms with their defaults, PPO also with raw rewards and with those of an equally long search
    (results/ppo_search.md), and PPG with either of its parts alone.
    """
    match = with_defaults(task.env_id, task.n_timesteps)
    raw: dict[str, Any] = {"PPO": ("ppo", dict(policy="MlpPolicy"))}
    found = dict(n_epochs=15, batch_size=32, learning_rate=5e-4, clip_range=0.3, ent_coef=0.001)
    searched = {"PPO, searched": ("ppo", dict(policy="MlpPolicy", normalize=NORMALIZED, **found))}
    alone: Settings = dict(policy="MlpPolicy", normalize=NORMALIZED, normalize_value_targets=False)
    parts = {
        "PPG, value units without phase": ("ppg_without_phase", dict(policy="MlpPolicy")),
        "PPG, phase without value units, normalized rewards": ("ppg", alone),
    }
    return match._replace(contestants={**match.contestants, **raw, **parts, **searched}, seeds=range(20, 25), page="defaults")


def architectures(own: Settings, networks: str) -> dict[str, tuple[str, Settings]]:
    """
    Return PPG with an entry's settings except for auxiliary epochs, of which there are six by default, PPG with other
    architectures and auxiliary phases, and PPO with the entry's settings. ``CnnPolicy``'s default becomes "detached", which
    takes less time, unless "dual" is better over the five games after equal steps (the interval of P is below 1/2). Half of
    the phase becomes an argument only if it is better after equal steps than three epochs of the whole, which cost the same.

    :param networks: other arguments of the policy
    """

    def changed(architecture: str, n_aux_epochs: int) -> Settings:
        policy_kwargs = f"dict(architecture='{architecture}', {networks})"
        return {**own, "n_aux_epochs": n_aux_epochs, "policy_kwargs": policy_kwargs}

    return {
        "PPG": ("ppg", changed("detached", 6)),
        "PPG, half of the phase": ("ppg_half_phase", changed("detached", 6)),
        "PPG, 3 auxiliary epochs": ("ppg", changed("detached", 3)),
        "PPG, dual": ("ppg", changed("dual", 6)),
        "PPG, 1 auxiliary epoch": ("ppg", changed("detached", 1)),
        "PPO": ("ppo", {**without_phase(own), "policy_kwargs": f"dict({networks})"}),
    }


def with_rates(env_id: str, n_timesteps: int) -> Match:
    """Return both algorithms with their defaults and three learning rates."""
    found = {}
    for algorithm, more in (("ppg", {}), ("ppo", dict(normalize=NORMALIZED))):
        rate = defaults_of(ALGOS[algorithm])["learning_rate"]
        for factor in sorted(RATES, key=lambda factor: factor != 1):
            settings = dict(policy="MlpPolicy", learning_rate=float(f"{rate * factor:.2g}"), **more)
            found[f"{algorithm.upper()}, rate {settings['learning_rate']:g}"] = (algorithm, settings)
    return Match(env_id, n_timesteps, found)


def with_memory(env_id: str, n_timesteps: int) -> Match:
    """Return RecurrentPPG and RecurrentPPO with their defaults, and each with its own and the other's entry."""
    default: Settings = dict(policy="MlpLstmPolicy")
    own, zoo = entries_of(hyperparameter_file("ppg_lstm"))[env_id], zoo_entry("ppo_lstm", env_id)
    contestants = {
        "RecurrentPPG": ("ppg_lstm", default),
        "RecurrentPPO": ("ppo_lstm", default),
        "RecurrentPPO, normalized rewards": ("ppo_lstm", {**default, "normalize": NORMALIZED}),
        "RecurrentPPG, its entry": ("ppg_lstm", own),
        "RecurrentPPO, its entry": ("ppo_lstm", zoo),
        "RecurrentPPG, RL Zoo's entry": ("ppg_lstm", zoo),
    }
    return Match(env_id, n_timesteps, contestants)


def with_builds(env_id: str, n_timesteps: int) -> Match:
    """Return PPG, compiled and eager, against the PPO of SB3 and of SBX (JAX), all with the same settings."""
    shared: Settings = dict(policy="MlpPolicy", n_envs=8, n_steps=256, batch_size=64, n_epochs=10, normalize=NORMALIZED)
    contestants = {
        "PPG, compiled": ("ppg", dict(shared, compile_updates=True)),
        "PPG, eager": ("ppg", dict(shared, compile_updates=False)),
        "SB3's PPO": ("ppo", shared),
        "SBX's PPO": ("sbx_ppo", shared),
    }
    return Match(env_id, n_timesteps, contestants, "sbx", seeds=range(5))


class SbxPPO:
    """SBX's PPO, which only the processes of its runs can import."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return importlib.import_module("sbx").PPO(*args, **kwargs)


class WithoutPhase(Objective):
    """PPG's losses, with value units, but no auxiliary phase."""

    @override
    def is_due(self, n_samples: int) -> bool:
        return False


class PPGWithoutPhase(PPG):
    """PPG with that objective."""

    @wraps(PPG.__init__)  # type: ignore[misc]  # whose defaults identify rows
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, objective=WithoutPhase, **kwargs)


class HalfBuffer(AuxBuffer):
    """An auxiliary buffer, each epoch of which uses a random half of the sequences."""

    @override
    def minibatches(self, n_sequences: int) -> Iterator[Any]:
        order = np.random.permutation(self.n_sequences)[: self.n_sequences // 2]
        for _, batch in self.batches(order, n_sequences):
            yield batch


class PPGHalfPhase(PPG):
    """PPG with that buffer."""

    @wraps(PPG.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.aux_buffer.__class__ = HalfBuffer


OURS: Any = dict(sbx_ppo=SbxPPO, ppg_without_phase=PPGWithoutPhase, ppg_half_phase=PPGHalfPhase)
ALGOS.update(OURS)


class Seeded(VecEnvWrapper):
    """Passes a seed to SuperSuit's environments at the next reset, because their own ``seed`` fails."""

    venv: Any
    seed = VecEnv.seed

    @override
    def reset(self) -> np.ndarray:
        observations, _ = self.venv.venv.reset(self._seeds[0])
        self._reset_seeds()
        return observations

    @override
    def step_wait(self) -> VecEnvStepReturn:
        return self.venv.step_wait()


def three_agents(env: VecEnv) -> VecEnv:
    """Return the environments of three agents with one policy, in place of one, with its seed."""
    supersuit, spread = importlib.import_module("supersuit"), importlib.import_module("mpe2.simple_spread_v3")
    agents = supersuit.pettingzoo_env_to_vec_env_v1(spread.parallel_env())
    seeded = Seeded(supersuit.concat_vec_envs_v1(agents, 1, base_class="stable_baselines3"))
    seeded.seed(env._seeds[0])
    return VecMonitor(seeded)


BULLET = ("pybullet-envs-gymnasium", "pybullet_envs_gymnasium")
MANY = "MultiInputPolicy"  # for observations of several parts
AGENTS = dict(vec_env_wrapper="benchmarks.matches.three_agents")
RATED = ("LunarLander-v3", "Hopper-v5", "HalfCheetah-v5", "Acrobot-v1")
MATCHES = {
    **{f"{task.env_id}, defaults": with_parts(task) for task in SMALL},
    **{
        task.env_id: Match(task.env_id, task.n_timesteps, architectures(*MINATAR), seeds=range(5), page="images_minatar")
        for task in GAMES
    },
    **{
        env_id: with_entries(env_id, 1_000_000, env_id.replace("v5", "v4"))._replace(page=page)  # RL Zoo's MuJoCo is older
        for page, ids in ENTERED.items()
        for env_id in ids
    },
    "CartPole without velocities": with_memory("CartPoleNoVel-v1", 100_000),
    "LunarLander-v3, same settings": with_builds("LunarLander-v3", 500_000),
    "HalfCheetah-v5, same settings": with_builds("HalfCheetah-v5", 1_000_000),
    "HopperBullet": with_defaults("HopperBulletEnv-v0", 400_000, *BULLET),
    "FlappyBird": with_defaults(
        "FlappyBird-v0", 600_000, "flappy-bird-gymnasium", "flappy_bird_gymnasium", dict(use_lidar=False)
    ),
    "Highway": with_defaults("highway-fast-v0", 20_000, "highway-env", "highway_env"),
    "PointMaze": with_defaults("PointMaze_UMazeDense-v3", 600_000, "gymnasium-robotics", "gymnasium_robotics", policy=MANY),
    "PandaReach": with_defaults("PandaReachDense-v3", 225_000, "panda-gym", "panda_gym", policy=MANY),
    "Meta-World reach": with_defaults("Meta-World/MT1", 330_000, "metaworld", "metaworld", dict(env_name="reach-v3", seed=0)),
    "Simple spread": with_defaults("CartPole-v1", 650_000, "supersuit", "mpe2", **AGENTS),
    "2048": with_defaults(
        *("gymnasium_2048/TwentyFortyEight-v0", 350_000, "gymnasium-2048", "gymnasium_2048", dict(max_episode_steps=5000))
    ),
    **{
        env_id: with_entries(env_id, 2_000_000)._replace(seeds=range(5))
        for env_id in ("BipedalWalker-v3", "BipedalWalkerHardcore-v3")
    },
    **{f"{task.env_id}, rates": with_rates(task.env_id, task.n_timesteps) for task in SMALL if task.env_id in RATED},
}


def columns(run: tuple[str, str, int]) -> dict[str, Any]:
    """Return the columns of a run's row that are known before; the settings are a hash of all that decides what is learned."""
    name, contestant, seed = run
    match = MATCHES[name]
    algorithm, settings = match.contestants[contestant]
    decisive = [algorithm, defaults_of(ALGOS[algorithm]) | settings, match.env_id, match.n_timesteps, match.env_kwargs]
    return dict(match=name, contestant=contestant, seed=seed, settings=short_hash(decisive))


def wanted() -> list[tuple[str, str, int]]:
    """Return the runs, match after match, seed by seed."""
    return [(name, each, seed) for name, match in MATCHES.items() for seed in match.seeds for each in match.contestants]


def train(run: tuple[str, str, int], folder: Path) -> Outcome:
    name, contestant, seed = run
    match = MATCHES[name]
    algorithm, settings = match.contestants[contestant]
    n_eval_envs = 1 if "vec_env_wrapper" in settings else 20  # where one environment has several agents
    options = ["--gym-packages", "benchmarks.matches", *match.module.split(), "--n-eval-envs", str(n_eval_envs)]
    options += ["--eval-episodes", "20", *(["--env-kwargs"] if match.env_kwargs else [])]
    options += [f"{key}:{value!r}" for key, value in match.env_kwargs.items()]
    python = str(venvs.installed(match.package, PIP[match.package])[0]) if match.package else sys.executable
    curve = trained(folder, algorithm, match.env_id, settings, seed, match.n_timesteps, *options, python=python).rows()
    last = curve.iloc[-1][["seconds", "compile_seconds", "training_return"]].to_dict()
    return {"return": round(float(curve["return"].iloc[-N_LAST:].mean()), 3), **last}, curve


# ---- pages ----


def compared(rows: pd.DataFrame, curves: pd.DataFrame, names: Iterable[str]) -> dict[str, Comparison]:
    """Return the matches of which all runs are there."""
    n_rows, found = rows.groupby("match").size(), {}
    for name in names:
        contestants: dict[str, Settings] = {each: {} for each in MATCHES[name].contestants}
        if n_rows.get(name, 0) == len(MATCHES[name].seeds) * len(contestants):
            points = curves[curves["match"] == name].merge(rows[["match", "contestant", "seed", "settings"]])
            found[name] = Comparison(name, points, contestants)
    return found


def lines_of(name: str, match: Comparison, rows: pd.DataFrame) -> Iterator[list[str]]:
    """Yield a line of the table for each contestant; seconds are equal when the fastest run of it and the first one ends."""
    first, *others = match.settings
    verdicts = iter(f"{row[6].split(':')[0]}, {row[4]}" for row in match.verdict()[1:])
    says = {(other, view): next(verdicts) for view in VIEWS for other in others}
    means = rows[rows["match"] == name].groupby("contestant").mean(numeric_only=True)
    for each in match.settings:
        pair = match.alone(*dict.fromkeys((first, each)))
        returns = {view: interquartile_means({each: pair.returns(view)[each][:, None]})[each] for view in VIEWS}
        cells = [cell for view in VIEWS for cell in (str(returns[view]), says.get((each, view), ""))]
        own = means.loc[each]
        cells += [f"{own['seconds']:,.0f}", f"{own['compile_seconds']:.0f}", f"{own['training_return']:.1f}"]
        yield [f"{name}, {MATCHES[name].n_timesteps:,} steps", each, *cells]


def scores_of(tasks: Sequence[Task], found: Sequence[Mapping[str, Any]]) -> Scores:
    """
    Return the contestants' scores, (..., n_seeds, n_tasks).

    :param found: for each task, the contestants' returns, (..., n_seeds)
    """
    pairs = [*zip(tasks, found, strict=True)]
    return {name: np.stack([task.scores(np.asarray(own[name])) for task, own in pairs], axis=-1) for name in found[0]}


def pooled(matches: Sequence[Comparison], tasks: Sequence[Task], first: str) -> Iterator[list[Any]]:
    """
    For each contestant behind one in the order of the matches, yield a line for each view: the scores of both over tasks, and
    how probable it is that the first is better.
    """
    names = [*matches[0].settings]
    for other in names[names.index(first) + 1 :]:
        pairs = [match.alone(first, other) for match in matches]
        views = {
            "mean of the curve": [curve_means(pair) for pair in pairs],
            "after equal steps": [pair.returns("steps") for pair in pairs],
            "after equal seconds": [pair.returns("seconds") for pair in pairs],
            f"after equal seconds, if compiling takes {COLD} s": [with_cold_cache(pair).returns("seconds") for pair in pairs],
        }
        for view, returns in views.items():
            scores = scores_of(tasks, returns)
            means, better = interquartile_means(scores), improvements({first: scores[first]}, scores[other])[first]
            is_apart = not round(better.low, 2) <= 0.5 <= round(better.high, 2)  # also if there is no interval
            yield [other, view, means[first], means[other], f"{better}{'' if is_apart else ', not apart'}"]


def with_cold_cache(match: Comparison) -> Comparison:
    """Return a match in which torch found nothing in its cache of compiled code."""
    missing = (COLD - match.points["compile_seconds"]).clip(0).where(match.points["compile_seconds"] > 0, 0)
    return match._replace(points=match.points.assign(seconds=match.points["seconds"] + missing))


def curve_means(match: Comparison) -> dict[str, np.ndarray]:
    """Return the means of the contestants' curves, (n_seeds,)."""
    return {name: own.iloc[1:].mean().to_numpy() for name, own in match.curves("steps").items()}


def picture_of_pool(matches: Sequence[Comparison], tasks: Sequence[Task]) -> Figure:
    """Draw interquartile means of the scores and their intervals against the share of each task's steps and seconds."""
    figure = Figure(figsize=(9, 4.8), dpi=100, layout="constrained")
    for axes, view in zip(figure.subplots(1, 2, sharey=True), VIEWS, strict=True):
        found = scores_of(tasks, [match.curves(view) for match in matches])
        for (name, scores), color in zip(found.items(), COLORS, strict=False):
            points = [interquartile_means({name: at_point})[name] for at_point in scores[1:]]  # older rows have no first one
            shares, (means, low, high) = np.linspace(0, 1, len(scores))[1:], np.array(points).T
            axes.plot(shares, means, label=name, color=color)
            axes.fill_between(shares, low, high, alpha=0.2, color=color)
        xlabel = "share of a run's steps" if view == "steps" else "share of the shortest run's seconds"
        axes.set(xlabel=xlabel, ylabel="score" if view == "steps" else "")
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_formatter(PercentFormatter(1))
        axes.set_xlim(0, 1)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    title = f"{len(tasks)} environments, {matches[0].n_seeds()} seeds: interquartile means of scores and 95 % intervals"
    figure.suptitle(title, fontsize="medium")
    return figure


def pages_of_pool(name: str, found: Mapping[str, Comparison], rows: pd.DataFrame) -> Report:
    """Return a page about several environments together, and its picture."""
    title, groups = POOLS[name]
    by_env = {MATCHES[each].env_id: match for each, match in found.items()}
    lines = [
        [group, first, *line]
        for group, (tasks, first) in groups.items()
        for line in pooled([by_env[task.env_id] for task in tasks], tasks, first)
    ]
    contestants = [*next(iter(found.values())).settings]
    means = rows.pivot_table(index="contestant", columns="match", values=["return", "seconds"]).loc[contestants]
    ends = [
        [name, *(f"{own['return'][match]:.4g}" for match in found), f"{own['seconds'].mean():.0f}"]
        for name, own in means.iterrows()
    ]
    text = page(
        title,
        f"{about(rows)} A score is 0 at the return of random actions and 1 at a high return of the task; interquartile means "
        "over seeds and tasks, and the probability P that a run of the first contestant is better, with 95 % stratified "
        "bootstrap intervals (rliable), which are about new seeds in these environments. Seconds are equal when the fastest "
        "run of the two contestants ends.",
        table(["", "the first", "the other", "", "the first", "the other", "P"], lines),
        f"![Scores against steps and against seconds]({name}.png)",
        f"## Returns, means of the last {N_LAST} points",
        table(["", *by_env, "seconds"], ends),
    )
    tasks, _ = next(iter(groups.values()))
    return {f"{name}.md": text, f"{name}.png": picture_of_pool([by_env[task.env_id] for task in tasks], tasks)}


def about(rows: pd.DataFrame) -> str:
    """Return the sentences with which each page begins."""
    return (
        f"`python -m benchmarks.matches`, whose description says who PPO is. {machines(rows)} Commit "
        f"{', '.join(rows['commit'].unique())}. Seeds: {rows['seed'].nunique()}. Returns of 20 deterministic episodes, the "
        f"same for all, at the end means of the last {N_LAST} of ten points. Seconds are those of the processor, compiling "
        "included, without evaluations."
    )


def page_of_verdicts(found: Mapping[str, Comparison], rows: pd.DataFrame) -> str:
    """Return the page about single environments."""
    head = ["", "", "return after the same steps", "the first is", "after the same seconds", "the first is", "seconds"]
    return page(
        "PPG beside PPO at its best",
        f"{about(rows)} Interquartile means with 95 % intervals. Verdicts: those of `sb3-ppg compare` for one environment: "
        "Mann-Whitney test with Holm's correction over opponents and views, 2.5 %; beside them the probability that a run of "
        "the first contestant is better.",
        table(
            [*head, "torch compiled, on the clock", "return in training"],
            (line for name, match in found.items() for line in lines_of(name, match, rows)),
        ),
    )


def report(experiment: Experiment) -> Report:
    """Return the page of those single environments, and those of sums of environments, of which all runs are there."""
    rows, curves, files = experiment.rows(), experiment.curves(), dict[str, str | Figure]()
    for name in ("matches", *POOLS):
        wanted_here = [each for each, match in MATCHES.items() if match.page in (SINGLE if name == "matches" else [name])]
        found = compared(rows, curves, wanted_here)
        own = rows[rows["match"].isin(found)]
        if name in POOLS and len(found) == len(wanted_here):
            files |= pages_of_pool(name, found, own)
        elif name not in POOLS and found:
            files[f"{name}.md"] = page_of_verdicts(found, own)
    return files


MATCHED = Experiment("matches", wanted, train, report, columns, ("match", "contestant", "seed", "settings"))

if __name__ == "__main__":
    MATCHED.main()
