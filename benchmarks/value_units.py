"""
The gain from measuring the value losses of both phases in one unit, the standard deviation of the value targets.

PPG with raw rewards, five seeds, with and without clipping of the gradient, as it is ("both phases"), and as it was before
("auxiliary phase"): the unit changes at each auxiliary phase, and the policy phase measures its value loss in the units of the
rewards. A row has the mean of the learning curve, each of whose points is the mean return of the latest 20 episodes, and the
mean of its last tenth.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from benchmarks.harness import Experiment
from benchmarks.suites.contestants import constructor_arguments, entry
from benchmarks.suites.training import Episodes, curve
from benchmarks.tables import listed, machines, mean_and_error, page, table
from sb3_ppg import PPG, PhasicCallback
from sb3_ppg.distributed.collectives import moments
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, PaperObjective

# CartPole-v1 with the paper's arguments; the others with those of hyperparams/ppg.yml, but rewards are not normalised
SETTINGS: dict[str, dict[str, Any]] = {
    "CartPole-v1": PAPERS_VALUES | dict(n_envs=1, n_timesteps=100_000, aux_batch_size=512),
    "Pendulum-v1": entry("ppg", "Pendulum-v1"),
    "LunarLander-v3": entry("ppg", "LunarLander-v3") | dict(n_timesteps=300_000),
}


class RawValueErrors(PaperObjective):
    """The paper's objective, whose policy phase measures value errors in the units of the rewards."""

    def value_error(self, policy: Any, latent: th.Tensor, batch: Any, coefficients: Coefficients) -> Losses:
        return super().value_error(policy, latent, batch, coefficients._replace(value_unit=1.0))


class ChangeUnits(PhasicCallback):
    """Changes the units of both value heads at the start of each auxiliary phase."""

    def on_aux_phase_start(self) -> None:
        assert isinstance(self.model, PPG)
        mean, std = moments(np.concatenate([one.value_targets for one in self.model.aux_buffer.rollouts]))
        for head in (self.model.policy.value_net, self.model.policy.aux_value_net):
            head.change_units(mean, max(std, 1.0))


def wanted() -> list[dict[str, Any]]:
    return [
        dict(env=env, max_grad_norm=norm, unit_in=unit_in, seed=seed)
        for env in SETTINGS
        for seed in range(5)
        for norm in ("none", "0.5")
        for unit_in in ("auxiliary phase", "both phases")
    ]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], None]:
    settings, seed = SETTINGS[training["env"]], training["seed"]
    arguments = constructor_arguments(settings)
    arguments["max_grad_norm"] = None if training["max_grad_norm"] == "none" else float(training["max_grad_norm"])
    n_timesteps, episodes = int(settings["n_timesteps"]), Episodes(folder / "episodes.csv")
    callbacks: list[Any] = [episodes]
    if training["unit_in"] == "auxiliary phase":
        arguments |= dict(normalize_value_targets=False, objective=RawValueErrors)
        callbacks.append(ChangeUnits())
    env = make_vec_env(training["env"], settings["n_envs"], seed=seed)
    model = PPG("MlpPolicy", env, seed=seed, device="cpu", **arguments)
    model.learn(n_timesteps, callback=callbacks)
    returns = curve(episodes.read(n_timesteps), n_timesteps, n_latest=20)["return"]
    return dict(mean=round(returns.mean(), 1), last=round(returns.tail(5).mean(), 1)), None


def report(experiment: Experiment) -> str:
    rows = experiment.rows().sort_values("seed")
    lines = [
        [*key, listed(own["mean"], 0), mean_and_error(own["mean"]), mean_and_error(own["last"])]
        for key, own in rows.groupby(["env", "max_grad_norm", "unit_in"])
    ]
    return page(
        "One unit of values for both phases",
        f"`python -m benchmarks.value_units`, one thread per training. {machines(rows)} Rewards are raw. For each seed "
        "the mean return over the whole training; mean and standard error over seeds, also of the last tenth.",
        table(["environment", "`max_grad_norm`", "value unit in", "return per seed", "mean", "last tenth"], lines),
    )


VALUE_UNITS = Experiment("value_units", wanted, train, report)

if __name__ == "__main__":
    VALUE_UNITS.main()
