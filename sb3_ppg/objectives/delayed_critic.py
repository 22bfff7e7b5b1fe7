"""
DCPG and DDCPG: Moon, Lee, Song, "Rethinking Value Function Learning for Generalization in Reinforcement Learning",
https://arxiv.org/abs/2210.09960. Authors' code: https://github.com/snu-mllab/DCPG.
"""

from typing import Any, ClassVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.torch_layers import create_mlp
from torch import nn
from torch.nn import functional as F
from typing_extensions import override

from sb3_ppg.arguments import check_value, number, require
from sb3_ppg.errors import ArgumentError
from sb3_ppg.losses import Losses
from sb3_ppg.objectives.paper import MAX_WEIGHT, Coefficients, Objective, replays
from sb3_ppg.policies import Evaluation, PhasicActorCriticPolicy, head_loss
from sb3_ppg.policies.extractors import looks_at_the_batch


class DelayedCriticObjective(Objective):
    """
    DCPG: one network for policy and value function. The policy phase only keeps the values near those at collection; the
    auxiliary phase trains them, while a KL term keeps the policy unchanged (``beta_clone`` is the authors'
    ``policy_dist_coef``). The auxiliary value head and ``vf_coef`` are not used.

    :param policy: policy in training, with ``architecture="shared"``
    :param value_distance_coef: weight of 1/2 (V - V_held)² in the policy phase; V_held is V when the rollout was collected
    """

    architecture: ClassVar[str] = "shared"
    # As the authors do it
    degrees_of_freedom: ClassVar[int] = 1
    epsilon: ClassVar[float] = 1e-5

    def __init__(self, policy: PhasicActorCriticPolicy, value_distance_coef: float = 1.0) -> None:
        super().__init__(policy)
        check_value("value_distance_coef", value_distance_coef, number(0, MAX_WEIGHT))
        self.value_distance_coef = value_distance_coef

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        name = type(self).__name__
        require(arguments, arguments.n_value_epochs is None, "n_value_epochs", f"{name} has joint epochs only; use None")
        require(arguments, not replays(arguments), "replay_kwargs", f"{name} holds values as they were collected; use None")
        remedy = f"{name} learns values in the auxiliary phase; use at least 1"
        require(arguments, arguments.n_aux_epochs > 0, "n_aux_epochs", remedy)
        remedy = f"{name} learns no values where it would clip; use None"
        require(arguments, arguments.clip_range_vf is None, "clip_range_vf", remedy)

    @override
    def value_error(
        self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any, coefficients: Coefficients
    ) -> Losses:
        distance = 0.5 * head_loss(policy.value_net, latent, batch.old_values, coefficients.value_unit)
        return Losses(self.value_distance_coef * distance, {"value_distance": distance})

    @override
    def evaluated_losses(
        self, policy: PhasicActorCriticPolicy, evaluation: Evaluation, batch: Any, coefficients: Coefficients
    ) -> Losses:
        terms = {
            "kl": self.kl_to_recorded(policy, evaluation.distribution, batch.recorded).mean(),
            "value_loss": 0.5 * self.head_error(policy.value_net, evaluation.latent_vf, batch, coefficients.value_unit),
        }
        return Losses(terms["value_loss"] + coefficients.beta_clone * terms["kl"], terms)


class DynamicsObjective(DelayedCriticObjective):
    """
    DDCPG: DCPG with a discriminator on the shared network. In the auxiliary phase, it learns to distinguish true transitions
    (s, a, s') from those with another action, (s, a~, s'), or another next state, (s, a, s~').

    As in the authors' code, a transition across the end of an episode counts as true, and for Discrete actions, a~ is drawn
    from the other actions by their frequencies in the minibatch. For other action spaces, it is the action of another sample.

    :param dynamics_coef: weight of the discriminator's loss in the auxiliary phase
    :param hidden_size: units of each of its two hidden layers
    :param kwargs: arguments of ``DelayedCriticObjective``
    """

    needs_whole_minibatches: ClassVar[bool] = True
    needs_rollout_end: ClassVar[bool] = True
    needs_whole_sequences: ClassVar[bool] = True  # the frame after a rollout is kept once
    aux_keys = ("actions", "last_observations")

    def __init__(
        self, policy: PhasicActorCriticPolicy, dynamics_coef: float = 1.0, hidden_size: int = 256, **kwargs: Any
    ) -> None:
        super().__init__(policy, **kwargs)
        check_value("dynamics_coef", dynamics_coef, number(0, MAX_WEIGHT))
        self.dynamics_coef = dynamics_coef
        self.n_actions = policy.actions.n_features  # number of choices in a Discrete space
        n_inputs = 2 * policy.mlp_extractor.latent_dim_pi + self.n_actions
        self.discriminator = nn.Sequential(*create_mlp(n_inputs, 1, [hidden_size, hidden_size]))

    @override
    def check(self, policy: PhasicActorCriticPolicy, arguments: Any) -> None:
        super().check(policy, arguments)
        name = type(self).__name__
        self._refuse_other_inputs(policy, "it evaluates the frame after a sequence alone")
        if looks_at_the_batch(policy):
            raise ArgumentError(
                f"{name} cannot work with batch normalization: it also evaluates frames that are not in the minibatch"
            )
        require(arguments, arguments.n_steps > 1, "n_steps", f"{name} draws other samples of a sequence; use at least 2")
        if isinstance(policy.action_space, spaces.Discrete) and policy.action_space.n == 1:
            raise ArgumentError(f"`objective`={name} cannot work with {policy.action_space}: there are no others; use 'dcpg'")

    @override
    def evaluated_losses(
        self, policy: PhasicActorCriticPolicy, evaluation: Evaluation, batch: Any, coefficients: Coefficients
    ) -> Losses:
        delayed = super().evaluated_losses(policy, evaluation, batch, coefficients)
        terms = self._dynamics_losses(policy, evaluation.latent_pi, batch)
        dynamics = terms["dynamics_true"] + 0.5 * terms["dynamics_false_action"] + terms["dynamics_false_next"]
        return Losses(delayed.total + self.dynamics_coef * dynamics, {**delayed.terms, "dynamics_loss": dynamics, **terms})

    def _dynamics_losses(self, policy: PhasicActorCriticPolicy, latent: th.Tensor, batch: Any) -> dict[str, th.Tensor]:
        """Return the cross-entropies of the discriminator for true and false transitions; ``latent`` is f(s)."""
        last_latent = policy.evaluate(batch.last_observations, reads=("latent_pi",)).latent_pi
        n_sequences = len(last_latent)
        by_sequence = latent.unflatten(0, (n_sequences, -1))
        following = th.cat([by_sequence[:, 1:], last_latent[:, None]], dim=1).flatten(0, 1)
        actions = policy.actions.from_buffer(batch.actions)
        false_actions, false_next = self.draw_false_actions(actions), self.draw_false_next(len(latent)).to(latent.device)

        def logits(taken: th.Tensor, then: th.Tensor) -> th.Tensor:
            parts = [latent, policy.actions.features(taken).to(latent.dtype), then]
            return self.discriminator(th.cat(parts, dim=1)).flatten()

        return {
            "dynamics_true": F.softplus(-logits(actions, following)).mean(),
            "dynamics_false_action": F.softplus(logits(false_actions, following)).mean(),
            "dynamics_false_next": F.softplus(logits(actions, following[false_next])).mean(),
        }

    def draw_false_actions(self, actions: th.Tensor) -> th.Tensor:
        """Draw another action for each action of a minibatch; both are as ``from_buffer`` returns them."""
        if actions.dim() > 1:
            return actions.roll(int(th.randint(1, max(2, len(actions)), ())), dims=0)
        counts = th.bincount(actions, minlength=self.n_actions)
        weights = counts.repeat(len(actions), 1).double().scatter(1, actions[:, None], 0)
        weights[weights.sum(dim=1) == 0] = 1  # if no other action occurs, all others are equally likely
        return th.multinomial(weights.scatter(1, actions[:, None], 0), 1).flatten()

    def draw_false_next(self, n_samples: int) -> th.Tensor:
        """Draw for each sample the number of another one, whose next frame is taken, (n_samples,)."""
        return (th.arange(n_samples) + th.randint(1, n_samples, (n_samples,))) % n_samples
