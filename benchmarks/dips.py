"""
Whether auxiliary phases make the policy worse: CartPole-v1, 100,000 steps, 5 seeds, played right before and right after each
phase; with all defaults, with the entry of hyperparams/ppg.yml, with the paper's arguments, and with these and the paper's
losses as they are, without value units.

Each time the agent plays 40 episodes with actions drawn as in training. Writes results/dips.csv and dips.md; trainings that
the CSV has, with the same arguments, are not run again.

    python -m benchmarks.dips [--plot]
"""

import argparse
import hashlib
import json
from inspect import signature
from pathlib import Path
from typing import Any

import pandas as pd
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.machine import processor
from benchmarks.suites.contestants import entry
from sb3_ppg import PPG, PhasicCallback
from sb3_ppg.family import PAPERS_VALUES

ROWS = Path(__file__).parent / "results" / "dips.csv"
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "RL Zoo": {name: value for name, value in entry("ppg", "CartPole-v1").items() if name not in ("policy", "n_timesteps")},
    "arguments of the paper": PAPERS_VALUES,
    "and its losses as they are": PAPERS_VALUES | dict(normalize_value_targets=False),
}
SEEDS = range(5)
N_STEPS = 100_000
N_EPISODES = 40
LEARNED = 400  # a return from which falls are counted


class PlayAroundPhases(PhasicCallback):
    """
    Returns before and after each auxiliary phase.

    :param seed: of the environments that are played
    """

    def __init__(self, seed: int):
        super().__init__()
        self.played = make_vec_env("CartPole-v1", 4, seed=seed)
        self.rows: list[dict[str, float]] = []

    def play(self) -> float:
        """Mean return."""
        return float(evaluate_policy(self.model, self.played, N_EPISODES, deterministic=False)[0])  # type: ignore[arg-type]

    def on_aux_phase_start(self) -> None:
        self.rows.append(dict(steps=self.num_timesteps, before=self.play()))

    def on_aux_phase_end(self) -> None:
        self.rows[-1] |= dict(after=self.play(), final_kl=round(self.logger.name_to_value["aux/final_kl"], 5))


def hash_of(setting: str) -> str:
    """Of all arguments of a setting."""
    defaults = {name: parameter.default for name, parameter in signature(PPG).parameters.items()}
    return hashlib.sha256(json.dumps(defaults | SETTINGS[setting], sort_keys=True, default=repr).encode()).hexdigest()[:8]


def add_rows(setting: str, seed: int) -> None:
    """
    :param setting: by name
    :param seed: of the agent and its environment
    """
    callback, arguments = PlayAroundPhases(seed=1000 + seed), dict(SETTINGS[setting])
    rate = arguments.get("learning_rate")
    if isinstance(rate, str):  # as in the entries
        arguments["learning_rate"] = LinearSchedule(float(rate.removeprefix("lin_")), 0.0, 1.0)
    env = make_vec_env("CartPole-v1", arguments.pop("n_envs", 1), seed=seed)
    PPG("MlpPolicy", env, seed=seed, device="cpu", **arguments).learn(N_STEPS, callback=callback)
    table = pd.DataFrame(callback.rows).assign(setting=setting, seed=seed, machine=processor(), arguments=hash_of(setting))
    table.to_csv(ROWS, mode="a", index=False, header=not ROWS.exists())


def present_rows() -> pd.DataFrame:
    """Of trainings with the arguments that the settings have now."""
    rows = pd.read_csv(ROWS)
    return rows[rows["arguments"] == rows["setting"].map({setting: hash_of(setting) for setting in SETTINGS})]


def largest_fall(changes: pd.Series) -> str:
    """In words where there is none."""
    return f"{-changes.min():.0f}" if changes.min() < 0 else "none"


def markdown(rows: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# CartPole around auxiliary phases",
        "",
        f"`python -m benchmarks.dips`: CartPole-v1, {N_STEPS:,} steps, {len(SEEDS)} seeds, {N_EPISODES} episodes right before "
        f"and right after each auxiliary phase. A change is counted where the return before it is {LEARNED} or more. "
        f"{' and '.join(rows['machine'].unique())}.",
        "",
        "| | auxiliary phases | mean change in one | largest fall in one | largest fall between two | median KL(π_old, π) "
        "after one | return at the end |",
        "|---|---|---|---|---|---|---|",
    ]
    for setting in SETTINGS:
        table = rows[rows["setting"] == setting].sort_values(["seed", "steps"])
        following = table.groupby("seed")["before"].shift(-1)
        within = (table["after"] - table["before"])[table["before"] >= LEARNED]
        between = (following - table["after"])[table["after"] >= LEARNED].dropna()
        last = table.groupby("seed")["after"].last()
        figures = [len(within), f"{within.mean():.1f}", largest_fall(within), largest_fall(between)]
        lines.append(
            f"| {setting} | {' | '.join(map(str, figures))} | {table['final_kl'].median():.4f} "
            f"| {', '.join(f'{value:.0f}' for value in last)} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", action="store_true", help="only write the table")
    args = parser.parse_args()
    th.set_num_threads(1)
    for setting in SETTINGS:
        for seed in () if args.plot else SEEDS:
            rows = present_rows() if ROWS.exists() else pd.DataFrame(columns=["setting", "seed"])
            if not ((rows["setting"] == setting) & (rows["seed"] == seed)).any():
                add_rows(setting, seed)
    text = markdown(present_rows())
    (ROWS.parent / "dips.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
