"""Train algorithms in an environment with ``train``, and say which one is better in steps and in seconds."""

import argparse
import contextlib
import copy
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import pandas as pd
import yaml
from huggingface_sb3 import EnvironmentName
from rl_zoo3 import ALGOS
from rl_zoo3.utils import StoreDict
from stable_baselines3.common.utils import get_device

from sb3_ppg.arguments import check_value, count
from sb3_ppg.checking import policy_for
from sb3_ppg.comparison.evaluations import N_EPISODES
from sb3_ppg.comparison.report import VIEWS, Comparison
from sb3_ppg.comparison.runs import Run, carry_out, machine, short_hash
from sb3_ppg.comparison.scores import enough_seeds, too_few_seeds
from sb3_ppg.errors import ArgumentError, nearest, raised_as
from sb3_ppg.saving.files import atomic_writes
from sb3_ppg.zoo.environments import environment_maker, imported
from sb3_ppg.zoo.manager import Manager

# Options of `train` that cannot be the same for all runs, or would not be those that the page lists
NOT_OF_ALL = ("--algo", "--seed", "--run-folder", "--log-folder", "--storage", "--study-name", "--trial-id")


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this command, and those of ``train``."""
    parser = argparse.ArgumentParser(description=f"{__doc__} Further options are those of train.", allow_abbrev=False)
    parser.add_argument("--env", required=True, help="environment ID")
    algos = "algorithms, or variants such as 'ppg: n_epochs=3 ent_coef=0.01'; the first is compared with the others"
    parser.add_argument("--algos", nargs="+", default=["ppg", "ppo"], help=algos)
    parser.add_argument("-n", "--n-timesteps", type=int, default=100_000, help="steps of each run (default: 100,000)")
    enough = "runs of each algorithm (default: as many as can tell all of them apart, 5 or more)"
    parser.add_argument("--seeds", type=int, help=enough)
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--defaults", action="store_true", help="hyperparameters are the algorithms' defaults")
    parser.add_argument("-conf", "--conf-file", nargs="+", default=[], metavar="ALGO:FILE", help="hyperparameter files")
    parser.add_argument("-params", "--hyperparams", nargs="+", default=[], metavar="NAME:VALUE", help="changes for all")
    parser.add_argument("-f", "--folder", type=Path, help="where to write (default: logs/compare/ENV)")
    args, others = parser.parse_known_args()
    for word in others:
        if word.partition("=")[0] in NOT_OF_ALL:
            raise ArgumentError(f"{word} cannot work: use --algos, --seeds, -f for the folder or -params for a trial")
    for name in ("n_timesteps", "seeds", "jobs"):
        if (value := getattr(args, name)) is not None:
            check_value(name, value, count(1))
    args.folder = args.folder or Path("logs", "compare", EnvironmentName(args.env))
    args.conf_file = dict(text.partition(":")[::2] for text in args.conf_file)
    used_here = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    used_here.add_argument("--gym-packages", nargs="+", type=imported)
    used_here.add_argument("--env-kwargs", nargs="+", action=StoreDict, default={})
    used_here.add_argument("--device", default="auto")
    used_here.add_argument("--dataset")
    used_here.add_argument("--eval-episodes", type=int, default=N_EPISODES)
    used_here.parse_known_args(others, args)
    check_value("eval_episodes", args.eval_episodes, count(1))
    # One environment for each episode, unless `others` has fewer; evaluations are ours, which stop the clock
    n_episodes = str(args.eval_episodes)
    with_evaluations = ["--eval-episodes", n_episodes, "--n-eval-envs", n_episodes, *others, "--eval-freq", "-1"]
    return args, ["--env", args.env, "-n", str(args.n_timesteps), *with_evaluations]


def contestant(name: str, args: argparse.Namespace) -> tuple[list[str], list[str], dict[str, Any]]:
    """
    Return three things for an algorithm or variant, as written in ``--algos``: its options of ``train``, its changes to
    hyperparameters as NAME:VALUE, and all its hyperparameters.
    """
    algorithm, _, changes = name.partition(":")
    if algorithm not in ALGOS:
        raise ArgumentError(f"there is no algorithm {algorithm!r}{nearest(algorithm, ALGOS)}")
    pairs = [text.partition("=") for text in changes.split()]
    if not all(is_set for _, is_set, _ in pairs):
        raise ArgumentError(f"{name!r} cannot work: write a variant as 'ppg: n_epochs=3 ent_coef=0.01'")
    values = {key: _value(text) for key, _, text in [*(text.partition(":") for text in args.hyperparams), *pairs]}
    config = args.conf_file.get(algorithm) or (str(_defaults(args, algorithm)) if args.defaults else None)
    options: dict[str, Any] = dict(eval_freq=-1, verbose=0, config=config, hyperparams=values, env_kwargs=args.env_kwargs)
    with contextlib.redirect_stdout(None), patch.object(Manager, "dataset", args.dataset):
        manager = Manager(argparse.Namespace(), algorithm, args.env, "", **options)
        settings, _ = manager.read_hyperparameters()
        settings = {key: value for key, value in settings.items() if key != "callback"}  # not used here
        if ALGOS[algorithm].__module__.startswith(("stable_baselines3.", "sb3_contrib.")):  # not a user's **kwargs
            manager._check_names(settings)  # as `_preprocess_hyperparams` does for ours
        with raised_as(ArgumentError, f"{name!r} cannot work", ImportError):
            manager._preprocess_hyperparams(copy.deepcopy(settings))
    del settings["n_timesteps"]  # nor this
    params = [f"{key}:{value!r}" for key, value in values.items()]
    return ["--algo", algorithm, *(["-conf", config] if config else [])], params, settings


def main() -> None:
    """Run the command."""
    args, others = parse()
    environment = environment_maker(args.env)
    args.folder.mkdir(parents=True, exist_ok=True)
    contestants = {name: contestant(name, args) for name in args.algos}
    if len(contestants) < 2:
        raise ArgumentError(f"a comparison needs two contestants: --algos {' '.join(args.algos)} has one")
    if unknown := args.conf_file.keys() - {name.partition(":")[0] for name in contestants}:
        raise ArgumentError(f"-conf {', '.join(unknown)} cannot work: write ALGO:FILE, for algorithms that are compared")
    folders = {}
    for name, (options, params, settings) in contestants.items():
        # The folder's name depends on options, settings, and the source of the environment, of the algorithm and of
        # hyperparameters in Python, because functions may have changed there
        algorithm = ALGOS[name.partition(":")[0]]
        modules = (environment.__module__, algorithm.__module__, *options)  # a word of `options` may be a module or a file
        code = [_source(module) for module in modules]
        content = short_hash(yaml.dump([options, params, others, settings, code]))
        folders[name] = f"{re.sub('[^-a-z0-9._=]+', '_', name)[:60]}_{content}"
    looks_file = args.folder / f"looks_{short_hash(' '.join(folders.values()))}.json"
    seeds_before = json.loads(looks_file.read_text()) if looks_file.exists() else []  # of the verdicts on these contestants
    n_comparisons = len(VIEWS) * (len(contestants) - 1)
    n_seeds = args.seeds or (seeds_before[-1] if seeds_before else enough_seeds(n_comparisons))
    if n_seeds not in seeds_before:
        seeds_before.append(n_seeds)
    look = seeds_before.index(n_seeds) + 1
    if warning := too_few_seeds(n_seeds, n_comparisons, look):
        print(warning)
    with raised_as(ArgumentError, f"--device {args.device} cannot work"):
        clock = "processor" if get_device(args.device).type == "cpu" else "wall"
    runs = {}
    for seed in range(n_seeds):  # first, so that all have as many when some runs are finished
        for name, (options, params, _) in contestants.items():
            words, folder = [*options, *others, "--seed", str(seed)], args.folder / folders[name] / str(seed)
            runs[name, seed] = Run(folder, words, args.n_timesteps, params, clock)
    minutes = len(runs) * args.n_timesteps / args.jobs / 60_000
    print(f"{args.n_timesteps:,} steps (-n) in each of {len(runs)} runs: {minutes:.0f} min at a thousand steps per second")
    try:
        carry_out([*runs.values()], args.jobs)
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command carries out what is missing")
    with atomic_writes(looks_file) as (temporary,):
        temporary.write_text(json.dumps(seeds_before))
    points = pd.concat(run.rows().assign(contestant=name, seed=seed) for (name, seed), run in runs.items())
    listed = {}
    for name, (options, params, settings) in contestants.items():
        changed = ["-params", *params] if params else []
        listed[name] = {"command": shlex.join(["sb3-ppg", "train", *options, *others, *changed]), **settings}
    found = Comparison(args.env, points, listed, look, clock, machine())
    found.runs().to_csv(args.folder / "compare.csv", index=False)
    found.points.to_csv(args.folder / "compare_curves.csv", index=False)
    found.picture().savefig(args.folder / "compare.png")
    head, *rows = verdict = found.verdict()
    (args.folder / "compare.md").write_text(found.page(verdict))
    print(f"{pd.DataFrame(rows, columns=head).to_string(index=False)}\n{found.rule()}")
    print(f"Saved {args.folder / 'compare.png'}, compare.md and compare.csv")


def _source(name: str) -> str:
    """Return the text of a module, or of a file in Python; no text if it is neither."""
    file = getattr(sys.modules.get(name), "__file__", None) or name
    return Path(file).read_text(errors="replace") if file.endswith(".py") else ""


def _value(text: str) -> Any:
    """Return a value in Python; words, such as lin_3e-4, may lack their quotes."""
    try:
        value = eval(text, {"__builtins__": {"dict": dict}})
        return text if callable(value) else value
    except Exception:
        return text


def _defaults(args: argparse.Namespace, algorithm: str) -> Path:
    """Write a file in which an algorithm has nothing except the policy that the observations need."""
    with gym.make(args.env, **args.env_kwargs) as env:
        policy = policy_for(env.observation_space)
    policy = policy.replace("Policy", "LstmPolicy") if "lstm" in algorithm else policy
    file = args.folder / f"{algorithm}_defaults.yml"
    file.write_text(yaml.safe_dump({args.env: dict(policy=policy, n_timesteps=1)}))
    return file
