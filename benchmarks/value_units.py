"""
What it is worth to measure the value losses of both phases in one unit, the standard deviation of the value targets.

PPG with raw rewards on CartPole-v1, Pendulum-v1 and LunarLander-v3, five seeds, without and with clipping of the gradient, as
it is ("both phases"), and as it was before ("auxiliary phase"): the unit changes at each auxiliary phase, and the policy phase
measures its value loss in the units of the rewards.

Each row is a training: the mean over all rollouts of the mean return of the latest 20 episodes, and that of the last tenth of
the rollouts. Writes results/value_units.csv after each training, and value_units.md; rows that are there are not run again.

    python -m benchmarks.value_units [--jobs 2]
"""

import argparse
import os
import platform
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.utils import LinearSchedule

from benchmarks.learning import RESULTS
from sb3_ppg import PPG
from sb3_ppg.distributed.collectives import moments
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import Coefficients, PaperObjective

# CartPole-v1 with the arguments of the paper; the others with those of hyperparams/ppg.yml, but rewards are not normalised
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
MAX_GRAD_NORMS = (None, 0.5)
SEEDS = range(5)


class RawValueErrors(PaperObjective):
    """In the policy phase, value errors are measured in the units of the rewards."""

    def value_error(self, policy: Any, latent: th.Tensor, batch: Any, coefficients: Coefficients) -> Losses:
        return super().value_error(policy, latent, batch, coefficients._replace(value_unit=1.0))


class UnitsInTheAuxiliaryPhase(PPG):
    """As it was before."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, normalize_value_targets=False, objective=RawValueErrors, **kwargs)

    def auxiliary_phase(self) -> None:
        mean, std = moments(np.concatenate(self.aux_buffer.value_targets))
        for head in (self.policy.value_net, self.policy.aux_value_net):
            head.change_units(mean, max(std, 1.0))
        super().auxiliary_phase()


UNITS = {"auxiliary phase": UnitsInTheAuxiliaryPhase, "both phases": PPG}


class Training(NamedTuple):
    """What identifies a row of results."""

    env: str
    max_grad_norm: str
    unit_in: str
    seed: int

    def run(self) -> dict[str, Any]:
        """
        Train.

        :return: the row
        """
        th.set_num_threads(1)
        settings = dict(SETTINGS[self.env])
        env = make_vec_env(self.env, settings.pop("n_envs"), seed=self.seed)
        n_timesteps = settings.pop("n_timesteps")
        max_grad_norm = None if self.max_grad_norm == "none" else float(self.max_grad_norm)
        curve = _Curve()
        algorithm = UNITS[self.unit_in]
        arguments = {**PAPERS_VALUES, **settings, "max_grad_norm": max_grad_norm}
        model = algorithm("MlpPolicy", env, stats_window_size=20, seed=self.seed, device="cpu", **arguments)
        model.learn(n_timesteps, callback=curve)
        last = curve.returns[-max(1, len(curve.returns) // 10) :]
        return {**self._asdict(), "mean": round(np.mean(curve.returns), 1), "last": round(np.mean(last), 1)}


class _Curve(BaseCallback):
    """The mean return of the latest episodes, after each rollout in which there was one."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.model.ep_info_buffer:
            self.returns.append(float(np.mean([episode["r"] for episode in self.model.ep_info_buffer])))


def all_trainings() -> list[Training]:
    """What the table is made of."""
    return [
        Training(env, str(norm).lower(), unit_in, seed)
        for env in SETTINGS
        for seed in SEEDS
        for norm in MAX_GRAD_NORMS
        for unit_in in UNITS
    ]


def markdown(rows: pd.DataFrame) -> str:
    """The table."""
    lines = [
        "# One unit of values for both phases",
        "",
        f"`python -m benchmarks.value_units`, {platform.machine()}, one thread per training, torch {th.__version__}. Rewards "
        "are raw. Per seed the mean return over the whole training; their mean ± its standard error, and the same of the last "
        "tenth.",
        "",
        "| environment | `max_grad_norm` | value unit in | return per seed | mean | last tenth |",
        "|---|---|---|---|---|---|",
    ]
    for (env, norm, unit_in), part in rows.groupby(["env", "max_grad_norm", "unit_in"]):
        per_seed = ", ".join(f"{value:.0f}" for value in part.sort_values("seed")["mean"])
        means = [f"{part[name].mean():.1f} ± {part[name].sem():.1f}" for name in ("mean", "last")]
        lines.append(f"| {env} | {norm} | {unit_in} | {per_seed} | {means[0]} | {means[1]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time")
    args = parser.parse_args()
    file = RESULTS / "value_units.csv"
    columns = [*Training._fields, "mean", "last"]
    rows = (
        pd.read_csv(file, dtype=dict(max_grad_norm=str), keep_default_na=False)
        if file.exists()
        else pd.DataFrame(columns=columns)
    )
    done = set(rows[list(Training._fields)].itertuples(index=False, name=None))
    with ProcessPoolExecutor(args.jobs) as pool:
        missing = [training for training in all_trainings() if tuple(training) not in done]
        for finished in as_completed([pool.submit(training.run) for training in missing]):
            print(finished.result(), flush=True)
            rows = pd.concat([rows, pd.DataFrame([finished.result()])]).sort_values(list(Training._fields))
            rows.to_csv(file, index=False)
            (RESULTS / "value_units.md").write_text(markdown(rows))


if __name__ == "__main__":
    main()
