"""
Changes that may make PPG better within the same time on MinAtar, one at a time, of a setting whose auxiliary phase is short
(``LIGHT`` in benchmarks.seconds). A million steps; first Asterix, then all three games for what is not ruled out.

    python -m benchmarks.levers run --limit 0           # the speed: nothing else should run
    python -m benchmarks.levers run --limit 1000000     # the trainings, whose results do not depend on what else runs
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch as th
from rl_zoo3 import ALGOS, exp_manager
from torch import nn
from torch.nn import functional as F

from benchmarks.harness import Experiment, Report
from benchmarks.seconds import (
    GAMES,
    LIGHT,
    SCORE_AND_RETURNS,
    SPEED,
    measure_speed,
    returns,
    score_and_returns,
    scored,
    settings,
)
from benchmarks.suites.contestants import Settings
from benchmarks.tables import machines, page, table
from sb3_ppg import PPG, CnnPolicy
from sb3_ppg.buffers.aux_buffer import AuxBuffer, AuxiliaryBatch
from sb3_ppg.losses import weighted_mean
from sb3_ppg.policies.extractors import MinAtarCNN

N_STEPS = 1_000_000


class CategoricalHead(nn.Linear, ABC):
    """
    A value head that predicts a categorical distribution, and learns by cross-entropy.

    :param low: the lowest value, in units of the normalized return
    :param high: the highest
    :param n_bins: of values
    """

    values: th.Tensor

    def __init__(self, in_features: int, low: float = -10.0, high: float = 10.0, n_bins: int = 101):
        super().__init__(in_features, n_bins)
        self.register_buffer("values", th.linspace(low, high, n_bins))
        self.width = (high - low) / (n_bins - 1)

    @abstractmethod
    def target(self, targets: th.Tensor) -> th.Tensor:
        """Return the probabilities that are learned, (B, bins), for targets of shape (B, 1)."""

    def forward(self, latent: th.Tensor) -> th.Tensor:
        return super().forward(latent).softmax(dim=1) @ self.values[:, None]

    def loss(self, latent: th.Tensor, targets: th.Tensor, unit: float, weights: th.Tensor | None = None) -> th.Tensor:
        clamped = targets.clamp(self.values[0], self.values[-1])[:, None]
        return weighted_mean(F.cross_entropy(super().forward(latent), self.target(clamped), reduction="none"), weights)


class TwoHotHead(CategoricalHead):
    """The target's probability is divided between the two nearest values."""

    def target(self, targets: th.Tensor) -> th.Tensor:
        return (1 - (targets - self.values).abs() / self.width).clamp(min=0)


class HLGaussHead(CategoricalHead):
    """The target is a Gaussian of 0.75 bins: Imani and White 2018, https://arxiv.org/abs/1806.04613."""

    def target(self, targets: th.Tensor) -> th.Tensor:
        edges = th.cat([self.values - self.width / 2, self.values[-1:] + self.width / 2])
        below = th.special.ndtr((edges - targets) / (0.75 * self.width))
        return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


class TwoHotPolicy(CnnPolicy):
    head: type[CategoricalHead] = TwoHotHead

    def make_heads(self) -> dict[str, nn.Module]:
        latents = self.mlp_extractor
        return {"value_net": self.head(latents.latent_dim_vf), "aux_value_net": self.head(latents.latent_dim_pi)}


class HLGaussPolicy(TwoHotPolicy):
    head = HLGaussHead


class LayerNormCNN(MinAtarCNN):
    """MinAtar's network with layer normalization before each activation function."""

    def __init__(self, observation_space: Any):
        super().__init__(observation_space)
        self.norms = nn.ModuleList([nn.GroupNorm(1, self.conv.out_channels), nn.LayerNorm(self.features_dim)])

    def forward(self, observations: th.Tensor) -> th.Tensor:
        x = F.relu(self.norms[0](self.conv(observations.permute(0, 3, 1, 2))))
        return F.relu(self.norms[1](self.dense(x.flatten(1))))


class HalfAuxBuffer(AuxBuffer):
    """An epoch draws half of the minibatches."""

    def minibatches(self, n_sequences: int) -> Iterator[AuxiliaryBatch]:
        return islice(super().minibatches(n_sequences), math.ceil(self.n_sequences / n_sequences / 2))


class HalfEpochs(PPG):
    """PPG whose auxiliary epochs see half of the samples."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.aux_buffer = HalfAuxBuffer(self.device)


ALGOS["ppg_half"] = HalfEpochs
vars(exp_manager).update(LayerNormCNN=LayerNormCNN)  # hyperparameter files are evaluated there
ONE_NETWORK = "dict(architecture='shared', net_arch=[], features_extractor_class={})"
# Changes of LIGHT
LEVERS: dict[str, Settings] = {
    "none": {},
    "value units off": dict(normalize_value_targets=False),
    "two-hot heads, value units off": dict(policy="benchmarks.levers.TwoHotPolicy", normalize_value_targets=False),
    "HL-Gauss heads, value units off": dict(policy="benchmarks.levers.HLGaussPolicy", normalize_value_targets=False),
    "two-hot heads, value units off, vf_coef 0.1": dict(
        policy="benchmarks.levers.TwoHotPolicy", normalize_value_targets=False, vf_coef=0.1
    ),
    "layer normalization": dict(architecture=None, policy_kwargs=ONE_NETWORK.format("LayerNormCNN")),
    "detached": dict(architecture="detached"),
    "dual": dict(architecture="dual"),
    "auxiliary batch 2048": dict(aux_batch_size=2048),
    "E_aux 3, auxiliary batch 2048, auxiliary rate 4e-3": dict(n_aux_epochs=3, aux_batch_size=2048, aux_learning_rate=4e-3),
    "half of the samples in each auxiliary epoch": {},
    "N_pi 4": dict(n_policy_iterations=4),
    "N_pi 64": dict(n_policy_iterations=64),
    "no auxiliary phase": dict(n_aux_epochs=0, aux_batch_size=None),
    "compiled": dict(compile_updates=True),
    "bf16": dict(mixed_precision="bf16"),
}

# The one with the highest score, and the unchanged setting
SURVIVORS, FURTHER_SEEDS = ("half of the samples in each auxiliary epoch", "none"), (1, 2)


def wanted() -> list[dict[str, Any]]:
    first = [(limit, lever, 0) for limit in (SPEED, N_STEPS) for lever in LEVERS]
    further = [(N_STEPS, lever, seed) for seed in FURTHER_SEEDS for lever in SURVIVORS]
    names = [(*one, game) for one in (*first, *further) for game in GAMES]
    return [dict(lever=lever, game=game, limit=limit, seed=seed) for limit, lever, seed, game in names]


def train(training: dict[str, Any], folder: Path) -> tuple[dict[str, Any], None]:
    """Measure the speed of a changed agent, or train it; the row then has the mean return of its last hundred episodes."""
    lever, game = training["lever"], training["game"]
    algorithm = "ppg_half" if lever.startswith("half") else "ppg"
    made = settings("ppg", LIGHT | dict(compile_updates=False) | LEVERS[lever], game)
    if training["limit"] == SPEED:
        return measure_speed(algorithm, made, game, folder, n_before=made["n_policy_iterations"]), None  # a phase compiles
    last, steps, _ = returns(algorithm, made, game, training["seed"], N_STEPS, folder)
    return {"return": last, "steps": steps, "seconds": math.nan}, None


def report(experiment: Experiment) -> Report:
    """Return a table of the levers, with what they return and how long they take."""
    rows, lines = experiment.rows(), []
    speeds, trained = rows[rows["limit"] == SPEED], scored(rows[rows["limit"] == N_STEPS])
    for lever, some in trained.groupby("lever"):
        own = speeds[speeds["lever"] == lever]
        seconds = f"{(own['seconds'] / own['steps'] * N_STEPS).mean():.0f}" if len(own) == len(GAMES) else ""
        score, *means = score_and_returns(some)
        score = score if some["game"].nunique() == len(GAMES) else ""
        means = [mean if mean != "nan" else "" for mean in means]
        lines.append([lever, str(some["seed"].nunique()), score, *means, seconds])
    lines.sort(key=lambda line: (line[2], float(line[3])), reverse=True)
    return page(
        "MinAtar: one change at a time",
        "`python -m benchmarks.levers`. Mean return of the last hundred episodes of a million steps; seconds of one core, "
        f"extrapolated from a phase. Empty cells were not run. {machines(rows)}",
        table(["change", "seeds", *SCORE_AND_RETURNS, "seconds"], lines),
    )


LEVERS_OF_PPG = Experiment("levers", wanted, train, report)

if __name__ == "__main__":
    LEVERS_OF_PPG.main()
