"""
DAAC and IDAAC: Raileanu, Fergus, "Decoupling Value and Policy for Generalization in Reinforcement Learning",
https://arxiv.org/abs/2102.10330. Authors' code: https://github.com/rraileanu/idaac.
"""

from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.torch_layers import create_mlp
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F
from typing_extensions import override

from sb3_ppg import losses
from sb3_ppg.arguments import check_value, count, number, require
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Rollout
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives.paper import MAX_WEIGHT, Coefficients, Objective, replays, weights_of
from sb3_ppg.policies import PhasicActorCriticPolicy


class AdvantageHeadObjective(Objective):
    """
    DAAC: separate networks for policy and value function. In the policy phase, a head on the policy network learns the
    normalized advantage of (features, action). The value network has its own epochs after the policy's, every
    ``value_frequency`` rollouts, starting with the first. There is no auxiliary phase.

    The value loss is clipped by the policy's clip range, see ``losses.clipped_value_loss``.

    :param policy: policy in training, with ``architecture="dual"``
    :param advantage_coef: weight of the squared error of the advantage head
    :param value_frequency: number of rollouts between the value function's epochs
    :raises ArgumentError: for numbers that cannot work
    """

    architecture: ClassVar[str] = "dual"
    # As the authors do it
    values_first: ClassVar[bool] = False
    degrees_of_freedom: ClassVar[int] = 1
    epsilon: ClassVar[float] = 1e-5
    n_rollouts: th.Tensor

    def __init__(self, policy: PhasicActorCriticPolicy, advantage_coef: float = 0.25, value_frequency: int = 1) -> None:
        super().__init__(policy)
        check_value("value_frequency", value_frequency, count())
        check_value("advantage_coef", advantage_coef, number(0, MAX_WEIGHT))
        self.advantage_coef = advantage_coef
        self.value_frequency = value_frequency
        self.advantage_head = nn.Linear(policy.mlp_extractor.latent_dim_pi + policy.actions.n_features, 1)
        self.register_buffer("n_rollouts", th.zeros((), dtype=th.int64))

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        name = type(self).__name__
        remedy = f"{name} has no joint epochs; use at least 1"
        require(arguments, arguments.n_value_epochs is not None, "n_value_epochs", remedy)
        require(arguments, arguments.n_aux_epochs == 0, "n_aux_epochs", f"{name} has no auxiliary phase; use 0")
        require(arguments, arguments.clip_range_vf is None, "clip_range_vf", f"{name} clips values by `clip_range`; use None")
        remedy = f"{name} clips values by it, and `value_net` has a loss of its own; use None, with `kl_coef` above 0"
        require(arguments, arguments.clip_range is None or not hasattr(policy.value_net, "loss"), "clip_range", remedy)

    @override
    def n_value_epochs(self, n_value_epochs: int) -> int:
        is_due = self.n_rollouts.item() % self.value_frequency == 0
        self.n_rollouts.add_(1)
        return n_value_epochs if is_due else 0

    @override
    def policy_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        distribution, latent, _, _ = policy.evaluate_batch(batch, reads=("distribution", "latent_pi"))
        actions = policy.actions.from_buffer(batch.actions)
        surrogate = self.surrogate(policy, batch, distribution, coefficients)
        inputs = th.cat([latent, policy.actions.features(actions).to(latent.dtype)], dim=1)
        error = F.mse_loss(self.advantage_head(inputs).flatten(), batch.advantages)
        latent_losses = self._latent_losses(policy, latent, batch)
        total = surrogate.total + self.advantage_coef * error + latent_losses.total
        return Losses(total, {**surrogate.terms, "advantage_loss": error, **latent_losses.terms}, surrogate.log_ratio)

    def _latent_losses(self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any) -> Losses:
        """Return further losses on the features that the policy's heads read. None here; a subclass may add some."""
        return Losses(latent.new_zeros(()), {})

    @override
    def value_error(
        self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any, coefficients: Coefficients
    ) -> Losses:
        if coefficients.clip_range is None:
            return super().value_error(policy, latent, batch, coefficients)
        values, weights = policy.value_net(latent).flatten(), weights_of(batch)
        loss = losses.clipped_value_loss(values, batch.targets, batch.old_values, coefficients.clip_range, weights)
        return Losses(coefficients.vf_coef * loss, {"value_loss": loss})


class OrderObjective(AdvantageHeadObjective):
    """
    IDAAC: DAAC with an adversary. From the policy network's features of two frames of a level, the adversary learns to predict
    which frame came earlier in its episode, and the policy network learns features that do not reveal this.

    The level of a frame is the entry ``level_key`` of the environment's infos. Without this entry, each episode is a level.
    Arguments that are not listed here are those of ``AdvantageHeadObjective``.

    :param order_coef: weight of the policy network's loss against the adversary
    :param hidden_size: units of the adversary's hidden layer. 0: the adversary is linear
    :param level_key: key of the level in the infos of a step, for the observation that the step returns
    """

    needs_rollout_end: ClassVar[bool] = True
    # Number of another frame of each sample's level, and 1 if that frame was earlier in its episode, else 0
    policy_keys = ("other", "other_is_earlier")

    def __init__(
        self,
        policy: PhasicActorCriticPolicy,
        advantage_coef: float = 0.25,
        value_frequency: int = 1,
        order_coef: float = 0.001,
        hidden_size: int = 0,
        level_key: str = "level_seed",
    ) -> None:
        super().__init__(policy, advantage_coef, value_frequency)
        check_value("order_coef", order_coef, number(0, MAX_WEIGHT))
        self.order_coef = order_coef
        self.level_key = level_key
        n_inputs = 2 * policy.mlp_extractor.latent_dim_pi
        self.classifier = nn.Sequential(*create_mlp(n_inputs, 2, [hidden_size] if hidden_size else []))
        learning_rate = policy.optimizer.param_groups[0]["lr"]
        self.adversary_optimizer = policy.make_optimizer(learning_rate, self.classifier.parameters())
        self.n_episodes = 0
        self.levels: list[np.ndarray] = []  # level of each frame of the rollout, (n_envs,)
        self.episode_steps: list[np.ndarray] = []  # number of each frame in its episode, (n_envs,)
        self._frames: Any = None  # frames of the current rollout

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        self._refuse_other_inputs(policy, "it compares single frames")
        require(arguments, not replays(arguments), "replay_kwargs", "the levels of older frames are forgotten; use None")

    # ---- which frame came first ----

    @override
    def before_rollout(self, episode_starts: np.ndarray) -> None:
        self._frames = None  # to free its memory, as large as a rollout
        n_envs = len(episode_starts)
        if not self.levels or len(self.levels[-1]) != n_envs:
            self.levels, self.episode_steps = [self._new_levels(n_envs)], [np.zeros(n_envs, dtype=np.int64)]
        # Whether `learn` or `set_env` has reset the environment (they reset all), instead of the end of an episode
        was_reset = episode_starts.astype(bool) & ((self.episode_steps[-1] > 0) | episode_starts.all())
        self.levels[-1] = np.where(was_reset, self._new_levels(n_envs), self.levels[-1])
        self.episode_steps[-1] = np.where(was_reset, 0, self.episode_steps[-1])

    @override
    def after_environment_step(
        self, dones: np.ndarray, infos: list[dict[str, Any]], reset_infos: list[dict[str, Any]]
    ) -> None:
        n_envs = len(dones)
        levels = np.where(dones, self._new_levels(n_envs), self.levels[-1])
        for env, done in enumerate(dones):
            level = (reset_infos if done else infos)[env].get(self.level_key)
            if level is not None:
                levels[env] = hash(str(level)) % 2**62  # a number of at least 0, for levels of any type
        # A first frame without a level gets that of the following frames
        unknown = (self.levels[-1] < 0) & np.logical_not(dones)
        self.levels[-1] = np.where(unknown, levels, self.levels[-1])
        self.levels.append(levels)
        self.episode_steps.append(np.where(dones, 0, self.episode_steps[-1] + 1))

    def _new_levels(self, n_envs: int) -> np.ndarray:
        """Return new negative numbers, one for each environment, for episodes whose level is not known."""
        self.n_episodes += n_envs
        return -1 - self.n_episodes + np.arange(n_envs)

    @override
    def extras(self, policy: PhasicActorCriticPolicy, rollout: Rollout) -> dict[str, Any]:
        _, n_frames = rollout.shape
        if len(self.levels) <= n_frames:
            raise ArgumentError(
                "IDAAC does not know the levels of this rollout's frames: your own `collect_rollouts` must call the "
                "objective's `before_rollout` and `after_environment_step`"
            )
        levels, steps = (np.stack(frames[-n_frames - 1 :], axis=1) for frames in (self.levels, self.episode_steps))
        self.levels, self.episode_steps = self.levels[-1:], self.episode_steps[-1:]
        self._frames = map_arrays(
            lambda frames, last: np.concatenate([frames.reshape(rollout.n_samples, *frames.shape[2:]), last[:, 0]]),
            rollout.arrays["observations"],
            rollout.arrays["last_observations"],
        )

        def in_order(frames: np.ndarray) -> np.ndarray:
            """Reorder (n_envs, n_steps + 1): first the frames of all samples, then the final frames."""
            return np.concatenate([frames[:, :-1].ravel(), frames[:, -1]])

        pairs = self.draw_pairs(in_order(levels))[: rollout.n_samples].reshape(rollout.shape)
        return {"other": pairs, "other_is_earlier": (in_order(steps)[pairs] < steps[:, :-1]).astype(np.float32)}

    def draw_pairs(self, levels: np.ndarray) -> np.ndarray:
        """Draw for each frame of a rollout the number of a frame of its level, (n_frames,), possibly its own."""
        _, level, counts = np.unique(levels, return_inverse=True, return_counts=True)
        by_level, starts = np.argsort(level, kind="stable"), np.cumsum(counts) - counts
        places = (np.random.random(len(levels)) * counts[level]).astype(np.int64)
        return by_level[starts[level] + places]

    @override
    def adversary_losses(self, policy: PhasicActorCriticPolicy, batch: Any, coefficients: Coefficients) -> Losses:
        with th.no_grad():
            latent = policy.evaluate(batch.observations, reads=("latent_pi",)).latent_pi
            pair = self._pair_latent(policy, batch)
        return Losses(_order_loss(self.classifier(th.cat([latent, pair], dim=1)), batch.other_is_earlier), {})

    @override
    def _latent_losses(self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any) -> Losses:
        pairs = th.cat([latent, self._pair_latent(policy, batch)], dim=1)
        frozen = {name: parameter.detach() for name, parameter in self.classifier.named_parameters()}
        logits = functional_call(self.classifier, frozen, (pairs,))
        loss = _order_loss(logits, th.full_like(batch.other_is_earlier, 0.5))
        return Losses(self.order_coef * loss, {"order_loss": loss})

    def _pair_latent(self, policy: PhasicActorCriticPolicy, batch: Any) -> th.Tensor:
        numbers = batch.other.long().cpu().numpy()
        frames: PyTorchObs = map_arrays(lambda array: th.as_tensor(array[numbers], device=policy.device), self._frames)
        return policy.evaluate(frames, reads=("latent_pi",)).latent_pi


def _order_loss(logits: th.Tensor, earlier: th.Tensor) -> th.Tensor:
    """Return the cross-entropy of the adversary, (B, 2), to the probability that the second frame came first, (B,)."""
    log_probs = F.log_softmax(logits, dim=1)
    return -(earlier * log_probs[:, 0] + (1 - earlier) * log_probs[:, 1]).mean()
