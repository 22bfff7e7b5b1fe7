"""The diagnosis of a run: a file of its logged values, and the signs of trouble that they may show."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter, filter_excluded_keys
from stable_baselines3.common.monitor import LoadMonitorResultsError, load_results
from typing_extensions import override

from sb3_ppg.training.checks import aux_steps

LOGGED = "logged_values.jsonl"  # in the folder of a run: a line of JSON for each row of the log
# Two values of this file alone: numbers of episodes that a time limit has ended, and of optimizer steps in an auxiliary phase
TIME_LIMITS, AUX_STEPS = "rollout/time_limits", "aux/optimizer_steps"
HIDDEN_LIMIT = "rollout/hidden_limit"  # number of the longest episodes, if they seem to end at a hidden time limit
DISCRETE = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class LogFile(BaseCallback, KVWriter):
    """Appends the numbers that a run logs to its file, line by line: a kill loses no line that was written."""

    def __init__(self, folder: str, is_own_entry: bool):
        super().__init__()
        self.path, self.is_own_entry, self.n_time_limits = Path(folder, LOGGED), is_own_entry, 0

    @override
    def _on_training_start(self) -> None:
        self.logger.output_formats.append(self)

    @override
    def _on_step(self) -> bool:
        for index in self.locals["dones"].nonzero()[0]:
            self.n_time_limits += bool(self.locals["infos"][index].get("TimeLimit.truncated"))
        return True

    @override
    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        n_steps = math.inf if self.is_own_entry else aux_steps(self.model)
        own = {"time/total_timesteps": step, TIME_LIMITS: self.n_time_limits, AUX_STEPS: n_steps}
        values = filter_excluded_keys(key_values, key_excluded, "json") | own
        numbers = {name: float(value) for name, value in values.items() if isinstance(value, (int, float, np.number))}
        row = {name: value for name, value in numbers.items() if np.isfinite(value)}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        self.n_time_limits = 0

    @override
    def close(self) -> None:
        """Do nothing, because the file is open only while it is written."""


def whole_rows(log: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Iterate over the lines of a file of logged values and the rows in them, except a last line that a kill has cut."""
    for line in log.read_text().splitlines(keepends=True) if log.exists() else ():
        if line.endswith("\n"):
            yield line, json.loads(line)


# ---- signs ----


class Bound(NamedTuple):
    """A bound of a logged value, or of its median."""

    name: str
    side: Literal["above", "below"]
    limit: float

    def is_passed(self, values: Mapping[str, float]) -> bool:
        value = values.get(self.name, math.nan)
        return value > self.limit if self.side == "above" else value < self.limit


class Sign(NamedTuple):
    """A sign of trouble, for which all bounds are passed."""

    bounds: tuple[Bound, ...]
    symptom: str
    remedy: str


# The table of docs/guides/tuning.md, which says on which runs the bounds were tried
SIGNS = [
    Sign(
        (Bound("train/approx_kl", "above", 0.06),),
        "updates change the policy too much; the return drops between auxiliary phases, or stagnates",
        "lower `learning_rate` or `n_epochs`, raise `batch_size`; or decay the rate to zero (`lin_...` in RL Zoo)",
    ),
    Sign(
        (Bound("train/approx_kl", "below", 1e-6), Bound("train/grad_norm", "below", 30)),
        "updates hardly change the policy; the return stagnates",
        "raise `n_epochs` or `learning_rate`, lower `batch_size`",
    ),
    Sign(
        (Bound("train/entropy_loss", "above", -0.01),),
        "the policy takes the same actions always, and learns no others (spaces of discrete actions)",
        "raise `ent_coef`; lower `learning_rate`",
    ),
    Sign(
        (Bound("train/std", "below", 0.015),),
        "the policy hardly explores (Box actions)",
        "raise `log_std_init` in `policy_kwargs`, or `ent_coef`; scale actions to [-1, 1]",
    ),
    Sign(
        (Bound("train/grad_norm", "above", 30), Bound("train/value_unit", "below", 1.01)),
        "no learning, because the rewards are large and the value function learns them in their own unit",
        "set `normalize_value_targets=True`, the default, or normalize rewards",
    ),
    Sign(
        (Bound("aux/final_kl", "above", 0.03),),
        "the return drops in auxiliary phases",
        "raise `beta_clone`; lower `aux_learning_rate` or `n_aux_epochs`; leave `normalize_value_targets` on",
    ),
    Sign(
        (Bound(AUX_STEPS, "below", 80), Bound("aux/aux_value_loss", "above", 0.2)),
        "phases are too short: the policy network does not learn the values, and most of the gain is lost",
        "raise `n_aux_epochs` or lower `aux_batch_size`",
    ),
    Sign(
        (Bound("aux/n_phases", "below", 3),),
        "no better than PPO, because there are hardly any auxiliary phases",
        "more steps, or shorter phases: fewer `n_policy_iterations` or `n_steps`",
    ),
    Sign(
        (Bound(HIDDEN_LIMIT, "above", 9),),
        "many episodes end at the same step as terminations, so the agent does not plan beyond it",
        "if this is a time limit, fix the environment's `truncated`, or set `ignore_terminations` to the step",
    ),
]


def medians(folder: Path, action_space: spaces.Space) -> dict[str, float]:
    """
    Return the median of each value that a run has logged three times or more. Exceptions are ``aux/n_phases``, the number at
    the end; ``train/entropy_loss``, which is left out for continuous actions; and ``HIDDEN_LIMIT``.
    """
    rows = pd.DataFrame([row for _, row in whole_rows(folder / LOGGED)])
    if len(rows) < 3:
        return {}
    values = rows.median()[rows.count() >= 3].to_dict()
    values["aux/n_phases"] = rows.get("aux/n_phases", pd.Series(dtype=float)).max()
    if not isinstance(action_space, DISCRETE):
        values.pop("train/entropy_loss", None)
    with suppress(LoadMonitorResultsError):
        lengths = load_results(str(folder))["l"]
        longest, n_near = lengths.max(), lengths.between(0.9 * lengths.max(), lengths.max(), inclusive="left").sum()
        n_longest = (lengths == longest).sum()
        is_limit = rows[TIME_LIMITS].sum() == 0 and longest > 1 and n_longest > 2 * n_near
        values[HIDDEN_LIMIT] = n_longest if is_limit else 0
    return values


def signs(values: Mapping[str, float]) -> list[Sign]:
    """Return the signs that apply to the medians of a run."""
    return [sign for sign in SIGNS if all(bound.is_passed(values) for bound in sign.bounds)]


def diagnosis(folder: Path, action_space: spaces.Space) -> str:
    """Describe the signs of trouble in a run, for ``report``."""
    if not (values := medians(folder, action_space)):
        return f"none, without three rows in {folder / LOGGED}, which `sb3-ppg train` writes for PPG and its relatives"
    lines = [
        f"{', '.join(f'{bound.name} {values[bound.name]:.3g} ({bound.side} {bound.limit:g})' for bound in sign.bounds)}: "
        f"{sign.symptom}\n{'->':>15} {sign.remedy}"
        for sign in signs(values)
    ]
    return f"\n{'':16}".join(lines) or "no sign of trouble, see docs/guides/tuning.md"
