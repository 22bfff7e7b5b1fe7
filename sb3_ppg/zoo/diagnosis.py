"""The diagnosis of a run: a file of its logged values, and the signs of trouble that these may show."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from gymnasium import spaces
from stable_baselines3.common.logger import KVWriter, filter_excluded_keys
from typing_extensions import override

from sb3_ppg import PPG, PhasicCallback
from sb3_ppg.training.checks import aux_steps

LOGGED = "logged_values.jsonl"  # in the folder of a run: a line of JSON for each row of the log
MIN_ROWS = 3  # of which a median says something


class Sign(NamedTuple):
    """A sign of trouble."""

    bounds: str  # those that the medians of a run's logged values pass, all of them
    symptom: str  # what is seen, and why
    remedy: str  # what to change

    def each_bound(self) -> list[tuple[str, str, str]]:
        """Return the name of the value, "above" or "below", and the limit of each bound."""
        return re.findall(r"(\S+) (above|below) (\S+)", self.bounds)


# The table of docs/guides/tuning.md, which says on which runs the bounds were tried
SIGNS = [
    Sign(
        "train/approx_kl above 0.05",
        "updates change the policy too much; the return drops between auxiliary phases, or stagnates",
        "set `target_kl=0.03`, or decay the rate to zero (`lin_...` in RL Zoo); lower `learning_rate`, raise `batch_size`",
    ),
    Sign(
        "train/approx_kl below 1e-6 and train/grad_norm below 30",
        "updates hardly change the policy; the return stagnates",
        "raise `n_epochs` or `learning_rate`, lower `batch_size`",
    ),
    Sign(
        "train/entropy_loss above -0.01",
        "the policy always takes the same actions, and learns no others (spaces of discrete actions)",
        "raise `ent_coef`; lower `learning_rate`",
    ),
    Sign(
        "train/std below 0.015",
        "the policy hardly explores (Box actions)",
        "raise `log_std_init` in `policy_kwargs`, or `ent_coef`; scale actions to [-1, 1]",
    ),
    Sign(
        "train/grad_norm above 30 and train/value_unit below 1.01",
        "no learning, because the rewards are large and the value function learns them in their own unit",
        "set `normalize_value_targets=True`, the default, or normalize rewards",
    ),
    Sign(
        "aux/final_kl above 0.03",
        "the return drops in auxiliary phases",
        "raise `beta_clone`; lower `aux_learning_rate` or `n_aux_epochs`; leave `normalize_value_targets` on",
    ),
    Sign(
        "aux/optimizer_steps below 80 and aux/aux_value_loss above 0.2",
        "phases are too short: the policy network does not learn the values, and most of the gain is lost",
        "raise `n_aux_epochs` or lower `aux_batch_size`",
    ),
    Sign(
        "aux/n_phases below 3",
        "no better than PPO, because there are hardly any auxiliary phases",
        "more steps, or shorter phases: fewer `n_policy_iterations` or `n_steps`",
    ),
    Sign(
        "rollout/hidden_limit above 1",
        "many episodes end at the same step as terminations, so the agent does not plan beyond it",
        "if this is a time limit, fix the environment's `truncated`, or set `ignore_terminations` to the step",
    ),
]


class LogFile(PhasicCallback, KVWriter):
    """
    Appends the numbers that a run logs, and two more, to the file in its folder: ``rollout/hidden_limit`` and
    ``aux/optimizer_steps``. The latter is left out if ``is_own_entry``, because our hyperparameter files were run as they are.
    """

    model: PPG

    def __init__(self, folder: str, is_own_entry: bool):
        super().__init__()
        self.path, self.is_own_entry = Path(folder, LOGGED), is_own_entry

    @override
    def _on_training_start(self) -> None:
        self.logger.output_formats.append(self)

    @override
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        row: dict[str, Any] = {"time/total_timesteps": step, "rollout/hidden_limit": self.model.time_limits.hidden}
        if not self.is_own_entry:
            row["aux/optimizer_steps"] = math.prod(aux_steps(self.model))
        row |= filter_excluded_keys(key_values, key_excluded, "json")
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float, np.number))}
        with self.path.open("a") as file:
            file.write(json.dumps({name: value for name, value in numbers.items() if math.isfinite(value)}) + "\n")

    @override
    def close(self) -> None:
        """Do nothing, because the file is open only while it is written."""


def whole_rows(log: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Iterate over the lines of a file of logged values and the rows in them, except a last line that a kill has cut."""
    for line in log.read_text().splitlines(keepends=True) if log.exists() else ():
        if line.endswith("\n"):
            yield line, json.loads(line)


def medians(folder: Path, action_space: spaces.Space) -> dict[str, float]:
    """
    Return the median of each value that a run has logged ``MIN_ROWS`` times or more, the entropy only for discrete actions.
    For the number of phases and ``rollout/hidden_limit``, return the last value instead.
    """
    rows = pd.DataFrame([row for _, row in whole_rows(folder / LOGGED)])
    if len(rows) < MIN_ROWS:
        return {}
    values = rows.median()[rows.count() >= MIN_ROWS].to_dict()
    for name in {"aux/n_phases", "rollout/hidden_limit"} & {*rows}:
        values[name] = rows[name].dropna().iloc[-1]
    if "time/phase_position" in rows:  # it has phases, of which none may have ended
        values.setdefault("aux/n_phases", 0)
    if not isinstance(action_space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        values.pop("train/entropy_loss", None)
    return values


def signs(values: Mapping[str, float]) -> list[Sign]:
    """Return the signs that apply to the medians of a run."""

    def is_passed(name: str, side: str, limit: str) -> bool:
        value = values.get(name, math.nan)
        return value > float(limit) if side == "above" else value < float(limit)

    return [sign for sign in SIGNS if all(is_passed(*bound) for bound in sign.each_bound())]


def diagnosis(folder: Path, action_space: spaces.Space) -> str:
    """Describe the signs of trouble in a run for ``report``, one or two lines each."""
    if not (values := medians(folder, action_space)):
        return f"none, without three rows in {folder / LOGGED}, which `sb3-ppg train` writes for PPG and its relatives"
    lines = []
    for sign in signs(values):
        seen = ", ".join(f"{name.partition('/')[2]} {values[name]:.3g}" for name, *_ in sign.each_bound())
        lines.append(f"{sign.symptom}: {sign.bounds} ({seen})\n{'->':>15} {sign.remedy}")
    return f"\n{'':16}".join(lines) or "no sign of trouble, see docs/guides/tuning.md"
