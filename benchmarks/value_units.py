"""
The gain from measuring the value losses of both phases in one unit, the standard deviation of the value targets.

PPG with raw rewards on CartPole-v1, Pendulum-v1 and LunarLander-v3, five seeds, with and without clipping of the gradient, as
it is ("both phases"), and as it was before ("auxiliary phase"): the unit changes at each auxiliary phase, and the policy phase
measures its value loss in the units of the rewards.

Each row is a training: the mean over all rollouts of the mean return of the latest 20 episodes, and that of the last tenth of
the rollouts. Writes results/value_units.csv and value_units.md.

    python -m benchmarks.value_units [run] [--jobs 2]
    python -m benchmarks.value_units report
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.callbacks import MeanReturns
from benchmarks.harness import Experiment, Report
from benchmarks.tables import listed, machines, mean_and_error, page, table
from sb3_ppg import PPG, PhasicCallback
from sb3_ppg.distributed.collectives import moments
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, PaperObjective

# CartPole-v1 with the paper's arguments; the others with those of hyperparams/ppg.yml, but rewards are not normalised
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": dict(n_envs=1, n_timesteps=100_000, aux_batch_size=512),
    "Pendulum-v1": dict(
        n_envs=4,
        n_timesteps=100_000,
        n_steps=1024,
        n_epochs=10,
        n_policy_iterations=8,
        aux_batch_size=2048,
        gamma=0.95,
        learning_rate=LinearSchedule(2e-3, 0.0, 1.0),
        ent_coef=0.0,
        use_sde=True,
        sde_sample_freq=4,
    ),
    "LunarLander-v3": dict(
        n_envs=16,
        n_timesteps=300_000,
        n_steps=512,
        batch_size=256,
        n_epochs=6,
        n_policy_iterations=8,
        aux_batch_size=4096,
        gae_lambda=0.98,
        learning_rate=LinearSchedule(1e-3, 0.0, 1.0),
    ),
}
SEEDS = range(5)


class RawValueErrors(PaperObjective):
    """The paper's objective, whose policy phase measures value errors in the units of the rewards."""

    def value_error(self, policy: Any, latent: th.Tensor, batch: Any, coefficients: Coefficients) -> Losses:
        return super().value_error(policy, latent, batch, coefficients._replace(value_unit=1.0))


class ChangeUnits(PhasicCallback):
    """Changes the units of both value heads at the start of each auxiliary phase."""

    def on_aux_phase_start(self) -> None:
        assert isinstance(self.model, PPG)
        mean, std = moments(np.concatenate(self.model.aux_buffer.value_targets))
        for head in (self.model.policy.value_net, self.model.policy.aux_value_net):
            head.change_units(mean, max(std, 1.0))


BEFORE = dict(normalize_value_targets=False, objective=RawValueErrors)
UNITS: dict[str, tuple[dict[str, Any], list]] = {"auxiliary phase": (BEFORE, [ChangeUnits]), "both phases": ({}, [])}


class Training(NamedTuple):
    """The columns that identify a row."""

    env: str
    max_grad_norm: str
    unit_in: str
    seed: int


def wanted() -> list[Training]:
    """Return all trainings."""
    return [
        Training(env, norm, unit_in, seed)
        for env in SETTINGS
        for seed in SEEDS
        for norm in ("none", "0.5")
        for unit_in in UNITS
    ]


def train(training: Training, folder: Path) -> tuple[dict[str, Any], None]:
    """Train an agent."""
    settings = dict(SETTINGS[training.env])
    env = make_vec_env(training.env, settings.pop("n_envs"), seed=training.seed)
    n_timesteps = settings.pop("n_timesteps")
    settings["max_grad_norm"] = None if training.max_grad_norm == "none" else float(training.max_grad_norm)
    changes, callbacks = UNITS[training.unit_in]
    arguments = {**PAPERS_VALUES, **settings, **changes}
    model = PPG("MlpPolicy", env, stats_window_size=20, seed=training.seed, device="cpu", **arguments)
    curve = MeanReturns()
    model.learn(n_timesteps, callback=[curve, *(make() for make in callbacks)])
    returns = [point["return"] for point in curve.points]
    last = returns[-max(1, len(returns) // 10) :]
    return dict(mean=round(np.mean(returns), 1), last=round(np.mean(last), 1)), None


def report(experiment: Experiment) -> Report:
    """Return the table."""
    rows = experiment.rows().sort_values("seed")
    lines = [
        [*key, listed(own["mean"], 0), mean_and_error(own["mean"]), mean_and_error(own["last"])]
        for key, own in rows.groupby(["env", "max_grad_norm", "unit_in"])
    ]
    text = page(
        "One unit of values for both phases",
        f"`python -m benchmarks.value_units`, one thread per training. {machines(rows)} Rewards are raw. Per seed the mean "
        "return over the whole training; their mean ± its standard error, and the same of the last tenth.",
        table(["environment", "`max_grad_norm`", "value unit in", "return per seed", "mean", "last tenth"], lines),
    )
    return {"value_units.md": text}


VALUE_UNITS = Experiment("value_units", wanted, train, report)

if __name__ == "__main__":
    VALUE_UNITS.main()
