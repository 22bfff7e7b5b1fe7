"""
Every entry of our hyperparameter files that is not tuned, started by RL Zoo and trained far enough to show that it works:
through whole phases, the largest of which are made smaller where the table says so.

A row has the mean returns of the first and the last fifth of the episodes that ended, which in so few steps need not differ,
and of the last auxiliary phase how far the policy moved and how well its auxiliary head explains the targets. A value that is
logged and not finite ends the run with an error.

    python -m benchmarks.starts [run] [--algorithm ppg] [--entry atari] [--jobs 2]
    python -m benchmarks.starts report

Writes results/starts.csv and starts.md.
"""

import contextlib
import itertools
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import CSVOutputFormat, Logger

from benchmarks.harness import Experiment, short_hash
from benchmarks.suites.training import Episodes, make
from benchmarks.tables import formatted, machines, page
from sb3_ppg import PPG
from sb3_ppg.zoo import ALGOS
from sb3_ppg.zoo.hyperparameters import hyperparameter_file

N_PHASES = 2
MAX_TIMESTEPS = 150_000  # of more phases than one
# Environments of the entries that are for many, of all algorithms or of one
EXAMPLES = {
    "ppg_mask/default": "InvalidActionsDiscrete-v0",
    "default": "FrozenLake-v1",
    "atari": "BreakoutNoFrameskip-v4",
    "minigrid": "MiniGrid-SimpleCrossingS9N1-v0",
    "minatar": "MinAtar/Freeway-v1",
    "procgen": "CoinrunEasy-v0",
    "procgen-paper": "StarpilotHard-v0",
    "procgen-npi16": "StarpilotHard-v0",
}
# On two cores a phase of 64 environments or more takes hours with images of 64 x 64
SMALLER = dict(n_envs=16, n_policy_iterations=2)


class StopAfter(BaseCallback):
    """
    Ends a training after whole iterations: in the first step of the next one.

    :param n_timesteps: of these iterations
    """

    def __init__(self, n_timesteps: int):
        super().__init__()
        self.n_timesteps = n_timesteps

    def _on_step(self) -> bool:
        return self.num_timesteps <= self.n_timesteps


class Start(NamedTuple):
    """
    An entry that is started.

    :param algorithm: its name in RL Zoo
    :param entry: of its file
    :param settings: JSON of the entry, with its changes
    :param changes: JSON of what is smaller than in the entry
    """

    algorithm: str
    entry: str
    settings: str
    changes: str

    @classmethod
    def of(cls, algorithm: str, entry: str, settings: dict[str, Any]) -> "Start":
        """Return the start of an entry with these settings."""
        large = entry.startswith("procgen") and settings["n_envs"] * settings["n_steps"] > 4096
        changes = {name: value for name, value in SMALLER.items() if large and settings.get(name, value) > value}
        return cls(algorithm, entry, json.dumps(settings | changes), json.dumps(changes))

    @property
    def env_id(self) -> str:
        """The environment."""
        return EXAMPLES.get(f"{self.algorithm}/{self.entry}", EXAMPLES.get(self.entry, self.entry))


def columns(start: Start) -> dict[str, Any]:
    """Return the columns that are known before the start."""
    return {**start._asdict(), "settings": short_hash(start.settings), "env_id": start.env_id}


def wanted() -> list[Start]:
    """Return every entry that is not tuned."""
    return [
        Start.of(algorithm, name, entry)
        for algorithm in ALGOS
        for name, entry in yaml.safe_load(hyperparameter_file(algorithm).read_text()).items()
        if name not in tuned_entries(algorithm)
    ]


def tuned_entries(algo: str) -> dict[str, str]:
    """Return the entries of a hyperparameter file below a comment that ends with "Tuned", and these comments."""
    lines = hyperparameter_file(algo).read_text().splitlines()
    return {line.split(":")[0]: comment for comment, line in itertools.pairwise(lines) if comment.endswith("Tuned")}


def train(start: Start, folder: Path) -> tuple[dict[str, Any], None]:
    """
    Train an entry for whole phases.

    :raises FloatingPointError: if a logged value is not finite
    """
    with contextlib.redirect_stdout(None):
        model = make(start.algorithm, start.env_id, json.loads(start.settings), folder)[1]
        assert isinstance(model, PPG)
        phase = model.n_steps * model.n_envs * model.n_policy_iterations
        n_phases = N_PHASES if N_PHASES * phase <= MAX_TIMESTEPS else 1
        model.set_logger(Logger(str(folder), [CSVOutputFormat(str(folder / "progress.csv"))]))
        episodes = Episodes(folder / "episodes.csv")
        begin = time.process_time()
        # A longer training that is stopped: schedules would have come to 0 at its end
        model.learn(2 * n_phases * phase, callback=[episodes, StopAfter(n_phases * phase)])
        seconds = time.process_time() - begin
    logged = pd.read_csv(folder / "progress.csv").filter(regex="^(train|aux)/").ffill().iloc[-1]
    if not np.isfinite(logged.drop([name for name in logged.index if "explained" in name])).all():
        raise FloatingPointError(f"{start}: {logged.to_dict()}")
    has_phases = model.n_aux_epochs > 0  # DAAC and IDAAC have none
    assert (model.n_aux_phases > 0) == has_phases  # DNA's begin with the second rollout
    returns = episodes.read(n_phases * phase)["return"]
    fifth = -(-len(returns) // 5)
    row = dict(
        steps=n_phases * phase,
        phases=n_phases,
        episodes=len(returns),
        first=round(returns[:fifth].mean(), 3),
        last=round(returns[fifth and -fifth :].mean(), 3),
        aux_kl=f"{logged['aux/kl']:.1e}" if has_phases else "",
        aux_explained_variance=round(float(logged["aux/explained_variance"]), 3) if has_phases else "",
        seconds=round(seconds),
    )
    return row, None


def report(experiment: Experiment) -> str:
    """Return the table."""
    rows = experiment.rows().sort_values(["algorithm", "entry"])
    rows["smaller"] = [", ".join(f"{name}={n}" for name, n in json.loads(changes).items()) for changes in rows["changes"]]
    returns = [f"{row.first} to {row.last} ({row.episodes})" if row.episodes else "none ended" for row in rows.itertuples()]
    rows = rows.assign(returns=returns, speed=rows["steps"] / rows["seconds"].clip(lower=1))
    rows["kl"] = [f"{kl:.1e}" if pd.notna(kl) else "" for kl in rows["aux_kl"]]
    rows["explained"] = rows["aux_explained_variance"].astype(object).fillna("")
    return page(
        "Entries that are not tuned, started",
        "`python -m benchmarks.starts run`, `report`: each by RL Zoo with seed 0 and one thread, in whole phases, which "
        "are the first half of its training. Returns are means of the first and the last fifth of the episodes; KL and "
        f"explained variance those of the last auxiliary phase. {machines(experiment.rows())}",
        formatted(
            rows,
            {
                "algorithm": "{algorithm}",
                "entry": "{entry}",
                "environment": "{env_id}",
                "smaller": "{smaller}",
                "steps": "{steps:,}",
                "phases": "{phases}",
                "return (episodes)": "{returns}",
                "KL": "{kl}",
                "explained var.": "{explained}",
                "steps/s": "{speed:,.0f}",
            },
        ),
    )


STARTS = Experiment("starts", wanted, train, report, columns, identity=("algorithm", "entry", "settings"))

if __name__ == "__main__":
    STARTS.main()
