"""Replay of the authors' runs from recorded rollouts, orders and draws: see data/README.md."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from sb3_ppg import PPG, ImpalaCNN, NormalizedRewardRolloutBuffer
from sb3_ppg.family import PAPERS_VALUES
from sb3_ppg.losses import Losses
from sb3_ppg.objectives import RolloutEnd
from tests.helpers import evaluate_auxiliary

DATA = Path(__file__).parent / "data"
# Our names of their heads of the policy, and of their networks of objectives
HEADS = {"pi_head": "action_net", "aux_vf_head": "aux_value_net", "pi_vhead": "value_net", "vf_vhead": "value_net"}
NETWORKS = {"adv_head": "advantage_head", "dyna": "discriminator", "order_clf": "classifier"}
PHASES = ("joint", "policy", "value", "adversary", "auxiliary")


class ImageEnv(gym.Env):
    """An environment of which only the spaces are used: the rollouts come from the file."""

    observation_space = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
    action_space = gym.spaces.Discrete(5)


class DoubleImpalaCNN(ImpalaCNN):
    """The network in float64; SB3 casts observations to float32 before it divides by 255."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return super().forward(observations.double() / 255)


class DoubleRolloutBuffer(RolloutBuffer):
    """A rollout buffer in float64; SB3's arrays are float32."""

    def reset(self) -> None:
        super().reset()
        for name in ("rewards", "returns", "episode_starts", "values", "log_probs", "advantages"):
            setattr(self, name, getattr(self, name).astype(np.float64))


class DoubleNormalizedRewardRolloutBuffer(DoubleRolloutBuffer, NormalizedRewardRolloutBuffer):
    """The same with normalised rewards."""


def channels_first(images: np.ndarray) -> np.ndarray:
    """(..., H, W, C) to (..., C, H, W)."""
    return np.moveaxis(images, -1, -3).copy()


def settings(file: str) -> dict[str, Any]:
    with np.load(DATA / f"{file}.npz") as archive:
        return {key.removeprefix("settings/"): archive[key].tolist() for key in archive if key.startswith("settings/")}


def arguments(setting: dict[str, Any], **names: str) -> dict[str, Any]:
    """Return a file's settings by our names of the arguments; ``names`` has the authors'."""
    return {ours: setting[theirs] for ours, theirs in names.items()}


class Numbers(dict[str, np.ndarray]):
    """The numbers of a file, which know which of them nobody has used."""

    def __init__(self, file: str):
        with np.load(DATA / f"{file}.npz") as archive:
            super().__init__(archive)
        self.unused = {key for key in self if not key.startswith("settings/")}

    def __getitem__(self, key: str) -> np.ndarray:
        self.unused.discard(key)
        return super().__getitem__(key)


class Step(NamedTuple):
    """Losses and gradient norms of one minibatch."""

    phase: str  # one of ``PHASES``
    losses: dict[str, float]  # the total under "loss"
    log_ratio: th.Tensor  # log π(a|s) - log π_old(a|s), (B,)
    gradient_norms: dict[str, float]  # of each parameter that has a gradient, before clipping


class GoldenTraining:
    """
    A model with the recorded weights of a file in tests/data, that is given recorded rollouts, orders and noisy targets, and
    records its steps.
    """

    weight_tolerance = 1e-12

    def __init__(
        self, file: str, monkeypatch: Any, architecture: str, adam_eps: float, dtype: th.dtype = th.float64, **arguments: Any
    ):
        self.golden, self.monkeypatch, self.dtype = Numbers(file), monkeypatch, dtype
        self.n_envs, self.n_steps = self.golden["roll0/action"].shape
        double = dtype == th.float64
        its = {"channels": (4, 6), "outsize": 16, **settings(file)}
        extractor = dict(channels=tuple(its["channels"]), features_dim=int(its["outsize"]), normalized_image=double)
        self.model = PPG(
            "CnnPolicy",
            VecTransposeImage(DummyVecEnv([ImageEnv] * self.n_envs)),
            device="cpu",
            normalize_value_targets=False,
            policy_kwargs=dict(
                architecture=architecture,
                detach_value_in_aux_phase=architecture == "detached",
                features_extractor_class=DoubleImpalaCNN if double else ImpalaCNN,
                features_extractor_kwargs=extractor,
                normalize_images=not double,
                optimizer_kwargs=dict(eps=adam_eps),
            ),
            **PAPERS_VALUES | dict(n_steps=self.n_steps) | arguments,
        )
        self.model.set_logger(Logger(folder=None, output_formats=[]))
        self.policy = self.model.policy.to(dtype)
        self.model.objective.to(dtype)
        self.load_weights("weights_init")
        self.orders: list[np.ndarray] = []
        monkeypatch.setattr(np.random, "permutation", lambda n: self.orders.pop(0))
        self.steps: list[Step] = []
        for phase in PHASES:
            name = f"{phase}_losses"
            monkeypatch.setattr(self.model.objective, name, partial(self._record, phase, getattr(self.model.objective, name)))
        for name, parameter in self.named_parameters().items():
            parameter.register_post_accumulate_grad_hook(partial(self._record_gradient, name))

    def _record(self, phase: str, losses: Callable[..., Losses], *args: Any) -> Losses:
        found = losses(*args)
        scalars = dict(zip(found.names, found.values.tolist(), strict=True))
        self.steps.append(Step(phase, scalars, found.log_ratio, {}))
        return found

    def _record_gradient(self, name: str, parameter: th.Tensor) -> None:
        assert parameter.grad is not None
        self.steps[-1].gradient_norms[name] = parameter.grad.norm().item()

    def named_parameters(self) -> dict[str, th.nn.Parameter]:
        """Return the parameters of the policy and of the objective's own networks."""
        of_objective = {name: p for name, p in self.model.objective.named_parameters() if not name.startswith("proximal.")}
        return {**dict(self.policy.named_parameters()), **of_objective}

    # ---- weights ----

    def our_name(self, theirs: str) -> str:
        """pi_enc.cnn.dense.weight -> features_extractor.dense.weight, pi_head.bias -> action_net.bias, ..."""
        encoder, _, rest = theirs.partition(".cnn.")
        if rest:
            return {"pi_enc": "features_extractor", "vf_enc": "vf_features_extractor"}[encoder] + "." + rest
        head, _, rest = theirs.partition(".")
        return f"{HEADS[head]}.{rest}" if head in HEADS else f"{NETWORKS[head]}.{rest}"

    def weights(self, moment: str) -> dict[str, np.ndarray]:
        prefix = f"{moment}/"
        return {self.our_name(key.removeprefix(prefix)): self.golden[key] for key in self.golden if key.startswith(prefix)}

    @th.no_grad()
    def load_weights(self, moment: str) -> None:
        parameters, weights = self.named_parameters(), self.weights(moment)
        not_theirs = {name for name in parameters.keys() - weights.keys() if not name.startswith("aux_value_net.")}
        assert not not_theirs, not_theirs
        for name, value in weights.items():
            parameters[name].copy_(th.as_tensor(value))

    def check_weights(self, moment: str, module: th.nn.Module | None = None) -> None:
        parameters = self.named_parameters() if module is None else dict(module.named_parameters())
        weights = self.weights(moment)
        assert weights, moment
        for name, value in weights.items():
            ours = parameters[name].detach().numpy()
            np.testing.assert_allclose(ours, value, rtol=0, atol=self.weight_tolerance, err_msg=f"{moment} {name}")

    # ---- numbers ----

    def tolerance(self, theirs: np.ndarray) -> dict[str, float]:
        """Return how far numbers may be off: 1e-10 of the largest."""
        return dict(rtol=0, atol=1e-10 * max(1e-3, float(np.abs(theirs).max(initial=0))))

    def check(self, ours: Any, key: str, scale: float = 1.0) -> None:
        theirs = self.golden[key]
        np.testing.assert_allclose(np.asarray(ours) * scale, theirs, **self.tolerance(theirs), err_msg=key)

    def steps_of(self, phase: str) -> list[Step]:
        return [step for step in self.steps if step.phase == phase]

    def check_steps(self, phase: str, prefix: str, names: dict[str, tuple[str, float]]) -> None:
        """
        Compare the losses and gradient norms of a phase's steps since they were last cleared. ``names`` has our names of the
        losses and the factors that ours lack, by the authors' names; "loss" is always compared.
        """
        steps = self.steps_of(phase)
        if f"{prefix}/loss" in self.golden:
            names = {**names, "loss": ("loss", 1)}
        for theirs, (ours, scale) in names.items():
            self.check([step.losses[ours] for step in steps], f"{prefix}/{theirs}", scale)
        if f"{prefix}/grad_norm_total" in self.golden:
            total = [np.sqrt(sum(norm**2 for norm in step.gradient_norms.values())) for step in steps]
            self.check(total, f"{prefix}/grad_norm_total")
        self.check_gradient_norms(steps, prefix)

    def check_gradient_norms(self, steps: list[Step], prefix: str) -> None:
        """Compare the norms of all parameters that have a gradient, of each step, or of the only one."""
        keys = {
            self.our_name(key.removeprefix(f"{prefix}/grad_norm/")): key
            for key in self.golden
            if key.startswith(f"{prefix}/grad_norm/")
        }
        assert keys and keys.keys() == steps[0].gradient_norms.keys(), prefix
        for name, key in keys.items():
            self.check([step.gradient_norms[name] for step in steps], key)

    def check_openais_policy_phase(self, phase: str, kind: str = "joint", **names: tuple[str, float]) -> None:
        """Compare what OpenAI's codes report. Their approximate KL is the KL penalty's expression, not SB3's."""
        model = self.model
        names |= {"pg": ("policy_gradient_loss", 1), "entropy": ("entropy_loss", -1)}
        names["negent"] = ("entropy_loss", model.ent_coef)
        if model.kl_coef > 0:
            names["pi_kl"] = ("kl_penalty", 1)
        else:
            assert not self.golden[f"{phase}/pi_kl"].any()
        if kind == "joint":
            names["vf"] = ("value_loss", model.vf_coef)
        self.check_steps(kind, phase, names)
        losses = [step.losses for step in self.steps_of(kind)]
        self.check([loss["loss"] - model.vf_coef * loss.get("value_loss", 0.0) for loss in losses], f"{phase}/pi")
        log_ratios = np.stack([step.log_ratio for step in self.steps_of(kind)])
        self.check((log_ratios**2).mean(axis=1) / 2, f"{phase}/approxkl")
        if f"{phase}/clipfrac" in self.golden:
            clip = 0.0 if model.clip_range is None else model.clip_range(1)
            outside = (log_ratios > math.log1p(clip)) | (log_ratios < math.log1p(-clip))
            self.check(outside.mean(axis=1), f"{phase}/clipfrac")

    def check_auxiliary_phase(self) -> None:
        """Compare the steps of an auxiliary phase, and the weights after it, with those of the authors' code."""
        for place, step in enumerate(self.steps_of("auxiliary")):
            for theirs, ours in {"pol_distance": "kl", "vf_aux": "aux_value_loss", "vf_true": "value_loss"}.items():
                self.check(step.losses[ours], f"aux/step{place}/{theirs}")
            self.check_gradient_norms([step], f"aux/step{place}")
        self.check_weights("weights_after_aux_epoch")

    def check_that_all_are_used(self, but: set[str]) -> None:
        """Fail if a number is neither given to the model nor compared, unless a part of its name is in ``but``."""
        forgotten = sorted(key for key in self.golden.unused if but.isdisjoint(key.split("/")))
        assert not forgotten, forgotten

    # ---- rollouts ----

    @th.no_grad()
    def outputs(self, rollout: int) -> dict[str, np.ndarray]:
        """Return the present network's log-probabilities, (env, step, action), and both values, (env, step)."""
        images = th.as_tensor(channels_first(self.golden[f"roll{rollout}/obs"].reshape(-1, 16, 16, 3)))
        distribution, aux_values, values = evaluate_auxiliary(self.policy, images)
        logits = self.policy.actions.parameters(distribution).numpy()
        sizes = (self.n_envs, self.n_steps)
        return {
            "logits": logits.reshape(*sizes, -1),
            "value": values.numpy().reshape(sizes),
            "aux_value": aux_values.numpy().reshape(sizes),
        }

    def check_outputs(self, rollout: int) -> dict[str, np.ndarray]:
        """Compare the present network's outputs with those in the file, and return them."""
        outputs = self.outputs(rollout)
        for name in [name for name in outputs if f"roll{rollout}/{name}" in self.golden]:
            self.check(outputs[name], f"roll{rollout}/{name}")
        return outputs

    def update(self, rollout: int, *phases: str) -> None:
        """Do a rollout's update with the recorded orders of these phases; compare its advantages and value targets."""
        self.impose_order(*(f"roll{rollout}/{phase}" for phase in phases))
        self.steps.clear()
        self.model.train()
        arrays = self.model.replay.rollouts[-1].arrays
        for name, ours in {"advantage_normalised": arrays["advantages"], "value_target": arrays["targets"]}.items():
            self.check(ours, f"roll{rollout}/{name}")

    @th.no_grad()
    def fill_rollout_buffer(self, rollout: int, values: np.ndarray, log_probs: np.ndarray, rewards: str) -> None:
        """Fill it with recorded steps, and the present network's value of its end."""
        names = ("obs", "action", rewards, "episode_start", "final_obs", "final_episode_start")
        obs, actions, received, starts, final_obs, dones = (self.golden[f"roll{rollout}/{name}"] for name in names)
        buffer = self.model.rollout_buffer
        buffer.reset()
        for t in range(self.n_steps):
            step = (channels_first(obs[:, t]), actions[:, t], received[:, t], starts[:, t])
            buffer.add(*step, th.as_tensor(values[:, t]), th.as_tensor(log_probs[:, t]))
        last_values = self.policy.predict_values(th.as_tensor(channels_first(final_obs)))
        if f"roll{rollout}/final_value" in self.golden:
            self.check(last_values.flatten(), f"roll{rollout}/final_value")
        buffer.compute_returns_and_advantage(last_values, dones)
        self.model.rollout_end = RolloutEnd(channels_first(final_obs), last_values.flatten().numpy(), dones)

    def impose_order(self, *phases: str) -> None:
        """Deal the minibatches of the next epochs by (env, step) of each sample, in those phases that the file has."""
        for key in [f"{phase}/minibatch_order" for phase in phases if f"{phase}/minibatch_order" in self.golden]:
            order = self.golden[key].reshape(-1, self.n_envs * self.n_steps, 2)
            self.orders += [epoch[:, 0] * self.n_steps + epoch[:, 1] for epoch in order]

    def impose_auxiliary_phase(
        self, rollouts: range, before: str, targets: str, order: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """
        Let the next auxiliary phase, of these rollouts, call ``check``, compare what it records, and use the authors' noisy
        targets and their order of sequences. The keys before and targets have {} for a rollout's number.
        """
        buffer, record = self.model.aux_buffer, type(self.model.aux_buffer).record

        def record_golden_targets(*args: Any) -> None:
            check()
            record(buffer, *args)
            recorded = buffer.recorded.reshape(len(rollouts), self.n_envs, self.n_steps, -1)
            for ours, rollout in zip(recorded, rollouts, strict=True):
                self.check(ours, before.format(rollout))
            golden = np.concatenate([self.golden[targets.format(rollout)] for rollout in rollouts])
            buffer.recorded = th.as_tensor(golden).to(self.dtype)
            places = self.golden[order].reshape(self.model.n_aux_epochs, -1, 2)  # (env, rollout) of each sequence
            self.orders += [(epoch[:, 1] - rollouts[0]) * self.n_envs + epoch[:, 0] for epoch in places]

        self.monkeypatch.setattr(buffer, "record", record_golden_targets)
