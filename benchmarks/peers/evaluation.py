"""Command line, clock and evaluation of the scripts in this folder. Needs Gymnasium only, not this project."""

import argparse
import json
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium as gym

SEEDS = range(10_000, 10_020)  # of the episodes, which are the same for all agents
Predict = Callable[[Any], Any]  # from an observation to the deterministic action


def evaluate(env_id: str, predict: Predict) -> list[float]:
    """Return the returns of episodes."""
    env, returns = gym.make(env_id), []
    for seed in SEEDS:
        (observation, _), total, ends = env.reset(seed=seed), 0.0, False
        while not ends:
            observation, reward, terminated, truncated, _ = env.step(predict(observation))
            total, ends = total + float(reward), terminated or truncated
        returns.append(round(total, 2))
    return returns


def main(package: str, train: Callable[..., tuple[Predict, int]], **options: Any) -> None:
    """
    Train an agent as the command line says; print a line of JSON with its returns, the steps that it took in environments, the
    seconds of processor time that the training took, and the version of the package.

    :param train: from the environment's ID, seed, number of steps and the options
    :param options: further options of the command line, with their defaults
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("env_id")
    for name, default in dict(seed=0, steps=100_000, **options).items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help="default: %(default)s")
    arguments = vars(parser.parse_args())
    start = time.process_time()
    predict, steps = train(**arguments)
    measured = dict(steps=steps, seconds=round(time.process_time() - start, 1), version=version(package))
    print(json.dumps(dict(returns=evaluate(arguments["env_id"], predict), **measured)))
