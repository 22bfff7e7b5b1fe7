"""
Effect of auxiliary phases on the policy: CartPole-v1, 100,000 steps, 5 seeds; 40 episodes, with actions drawn as in training,
right before and right after each phase. With all defaults, with the entry of hyperparams/ppg.yml, with the paper's arguments,
and with these and the paper's losses as they are, without value units.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.harness import Experiment, defaults_of, short_hash
from benchmarks.suites.contestants import constructor_arguments, entry
from benchmarks.tables import listed, machines, page, table
from sb3_ppg import PPG, PhasicCallback
from sb3_ppg.family import PAPERS_VALUES

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "RL Zoo": {name: value for name, value in entry("ppg", "CartPole-v1").items() if name not in ("policy", "n_timesteps")},
    "arguments of the paper": PAPERS_VALUES,
    "and its losses as they are": PAPERS_VALUES | dict(normalize_value_targets=False),
}
SEEDS = range(5)
N_STEPS = 100_000
N_EPISODES = 40
LEARNED = 400  # falls are counted from this return on


class PlayAroundPhases(PhasicCallback):
    """
    Notes returns before and after each auxiliary phase.

    :param seed: of the environments that are played
    """

    def __init__(self, seed: int):
        super().__init__()
        self.played = make_vec_env("CartPole-v1", 4, seed=seed)
        self.rows: list[dict[str, float]] = []

    def play(self) -> float:
        """Return the mean return."""
        return float(evaluate_policy(self.model, self.played, N_EPISODES, deterministic=False)[0])  # type: ignore[arg-type]

    def on_aux_phase_start(self) -> None:
        self.rows.append(dict(steps=self.num_timesteps, before=self.play()))

    def on_aux_phase_end(self) -> None:
        self.rows[-1] |= dict(after=self.play(), final_kl=round(self.logger.name_to_value["aux/final_kl"], 5))


def hash_of(setting: str) -> str:
    """Return a hash of all arguments of a setting."""
    return short_hash(json.dumps(defaults_of(PPG) | SETTINGS[setting], sort_keys=True, default=repr))


def wanted() -> list[dict[str, Any]]:
    return [dict(setting=setting, seed=seed, arguments=hash_of(setting)) for setting in SETTINGS for seed in SEEDS]


def train(training: dict[str, Any], folder: Path) -> tuple[pd.DataFrame, None]:
    """Train an agent; a row for each auxiliary phase."""
    settings, seed = SETTINGS[training["setting"]], training["seed"]
    callback, env = PlayAroundPhases(seed=1000 + seed), make_vec_env("CartPole-v1", settings.get("n_envs", 1), seed=seed)
    PPG("MlpPolicy", env, seed=seed, device="cpu", **constructor_arguments(settings)).learn(N_STEPS, callback=callback)
    return pd.DataFrame(callback.rows), None


def falls(rows: pd.DataFrame, setting: str) -> list[str]:
    """Return a line of the table."""
    own = rows[rows["setting"] == setting].sort_values(["seed", "steps"])
    following = own.groupby("seed")["before"].shift(-1)
    within = (own["after"] - own["before"])[own["before"] >= LEARNED]
    between = (following - own["after"])[own["after"] >= LEARNED].dropna()
    largest = [f"{-changes.min():.0f}" if changes.min() < 0 else "none" for changes in (within, between)]
    last = listed(own.groupby("seed")["after"].last(), 0)
    return [setting, str(len(within)), f"{within.mean():.1f}", *largest, f"{own['final_kl'].median():.4f}", last]


def report(experiment: Experiment) -> str:
    rows = experiment.rows()
    head = ["", "auxiliary phases", "mean change in one", "largest fall in one", "largest fall between two"]
    return page(
        "CartPole around auxiliary phases",
        f"`python -m benchmarks.dips`: CartPole-v1, {N_STEPS:,} steps, {len(SEEDS)} seeds, {N_EPISODES} episodes right before "
        f"and right after each auxiliary phase. Changes are counted where the return before them is {LEARNED} or more. "
        f"{machines(rows)}",
        table([*head, "median KL(π_old, π) after one", "return at the end"], [falls(rows, setting) for setting in SETTINGS]),
    )


DIPS = Experiment("dips", wanted, train, report)

if __name__ == "__main__":
    DIPS.main()
