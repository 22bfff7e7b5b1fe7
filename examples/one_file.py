"""
Phasic Policy Gradient (PPG) in one file: Algorithm 1 of the paper on Stable-Baselines3 and PyTorch alone.

This script trains on CartPole. At the end it prints::

    Return over 20 episodes: 500 +- 0
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    kl_divergence,
    make_proba_distribution,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, MlpExtractor, NatureCNN
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from stable_baselines3.common.utils import FloatSchedule
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from torch.nn import functional as F


class SharedTrunk(MlpExtractor):
    """The layers of a single network, whose output the value function reads, but into which it passes no gradient."""

    def __init__(self, features_dim: int, layers: list[int], activation_fn: type[nn.Module], device: th.device | str):
        super().__init__(features_dim, dict(pi=layers, vf=[]), activation_fn, device)
        self.latent_dim_vf = self.latent_dim_pi

    def forward(self, features: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        latent = self.forward_actor(features)
        return latent, latent.detach()

    def forward_critic(self, features: th.Tensor) -> th.Tensor:
        return self.forward_actor(features).detach()


class PhasicActorCriticPolicy(ActorCriticPolicy):
    """
    SB3's actor-critic policy with an auxiliary value head on the policy network: ``aux_value_net`` is V_θπ, which only the
    auxiliary phase uses; ``value_net`` is V_θV, the true value function, for advantages and bootstrapping.

    :param architecture: "dual": two networks, the paper's default; "detached": a single network, with the layers "pi" of
        ``net_arch``, which the value function trains in the auxiliary phase only
    """

    def __init__(self, *args: Any, architecture: str = "dual", **kwargs: Any):
        assert architecture in ("dual", "detached"), f"`architecture`={architecture!r} must be 'dual' or 'detached'"
        self.architecture = architecture
        super().__init__(*args, share_features_extractor=architecture == "detached", **kwargs)  # type: ignore[misc]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), "architecture": self.architecture}

    def _build_mlp_extractor(self) -> None:
        if self.architecture == "dual":
            super()._build_mlp_extractor()
        else:
            layers = self.net_arch["pi"] if isinstance(self.net_arch, dict) else self.net_arch
            self.mlp_extractor = SharedTrunk(self.features_dim, layers, self.activation_fn, self.device)

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        with th.random.fork_rng(devices=[]):  # so that all other initial weights are PPO's with the same seed
            self.aux_value_net = nn.Linear(self.mlp_extractor.latent_dim_pi, 1)
            if self.ortho_init:
                self.aux_value_net.apply(partial(self.init_weights, gain=1))
        self.optimizer = self.make_optimizer(lr_schedule(1))

    def make_optimizer(self, learning_rate: float) -> th.optim.Optimizer:
        """Make an optimizer of all parameters; a step changes those that its loss reaches."""
        # The eps of SB3's Adam is 1e-5. With the authors' 1e-8, rounding errors would move the policy in the first auxiliary
        # step, in which KL(π_old, π) has no other gradient
        return self.optimizer_class(self.parameters(), lr=learning_rate, **self.optimizer_kwargs)  # type: ignore[call-arg]

    def evaluate_auxiliary(self, obs: th.Tensor) -> tuple[Distribution, th.Tensor, th.Tensor]:
        """
        Run the networks for the auxiliary phase, in which the gradient of V_θV also reaches a shared network.

        :param obs: Observations, (B, ...)
        :return: π(.|s); V_θV(s), (B,); V_θπ(s), (B,)
        """
        features: Any = self.extract_features(obs)
        if self.architecture == "dual":
            latent_pi = self.mlp_extractor.forward_actor(features[0])
            latent_vf = self.mlp_extractor.forward_critic(features[1])
        else:
            latent_pi = latent_vf = self.mlp_extractor.forward_actor(features)
        distribution = self._get_action_dist_from_latent(latent_pi)
        return distribution, self.value_net(latent_vf).flatten(), self.aux_value_net(latent_pi).flatten()

    def distribution_parameters(self, obs: th.Tensor) -> th.Tensor:
        """Return the parameters of π(.|s), (B, P): logits, or for Box actions means and standard deviations."""
        parts: Any = self.get_distribution(obs).distribution
        if isinstance(self.action_dist, DiagGaussianDistribution):
            return th.cat([parts.mean, parts.stddev], dim=1)
        return th.cat([part.logits for part in parts], dim=1) if isinstance(parts, list) else parts.logits

    def kl_from_old(self, old_parameters: th.Tensor, distribution: Distribution) -> th.Tensor:
        """Return the exact KL(π_old(.|s), π(.|s)), summed over action dimensions, (B,), from ``distribution_parameters``."""
        old_distribution = make_proba_distribution(self.action_space)
        if isinstance(old_distribution, DiagGaussianDistribution):
            mean, std = old_parameters.chunk(2, dim=1)
            old_distribution.distribution = th.distributions.Normal(mean, std)
        else:
            old_distribution.proba_distribution(old_parameters)
        kl = kl_divergence(old_distribution, distribution)  # (B,), or for Box and MultiBinary actions (B, dimensions)
        return kl.reshape(len(kl), -1).sum(dim=1)


class PhasicActorCriticCnnPolicy(PhasicActorCriticPolicy):
    """``PhasicActorCriticPolicy`` for images, by default with SB3's ``NatureCNN``."""

    def __init__(self, *args: Any, features_extractor_class: type[BaseFeaturesExtractor] = NatureCNN, **kwargs: Any):
        super().__init__(*args, features_extractor_class=features_extractor_class, **kwargs)


class AuxBufferSamples(NamedTuple):
    """States, (B, ...); V_targ, (B,); parameters of π_old(.|s), (B, P)."""

    observations: th.Tensor
    returns: th.Tensor
    old_parameters: th.Tensor


class AuxBuffer:
    """
    The buffer B of Algorithm 1: the states, in the type of their space, and value targets of the rollouts of a phase. A
    *sequence* is one environment's part of one rollout.
    """

    def __init__(self, device: th.device | str):
        self.device = device
        self.n_rollouts = 0
        self.observations: list[np.ndarray] = []  # of each sequence, (n_steps, ...)
        self.returns: list[np.ndarray] = []  # of each sequence, (n_steps,)
        self.old_parameters: list[th.Tensor] = []  # of each sequence, (n_steps, P)

    def add(self, rollout_buffer: RolloutBuffer) -> None:
        """Add a rollout, whose buffer's ``get`` has put the samples of each environment one after the other."""
        assert rollout_buffer.generator_ready
        self.observations += np.split(rollout_buffer.observations, rollout_buffer.n_envs)
        self.returns += np.split(rollout_buffer.returns.flatten(), rollout_buffer.n_envs)
        self.n_rollouts += 1

    @th.no_grad()
    def record(self, policy: PhasicActorCriticPolicy, n_sequences: int) -> None:
        """Compute and store π_old(.|s) for all states in batches of at most ``n_sequences``."""
        policy.set_training_mode(False)
        for part in self._split(np.arange(len(self.returns)), n_sequences):
            self.old_parameters += policy.distribution_parameters(self._gather(self.observations, part)).chunk(len(part))

    def get(self, n_sequences: int) -> Iterator[AuxBufferSamples]:
        """Draw an epoch of minibatches of at most ``n_sequences``, shuffled over environments and rollouts."""
        for part in self._split(np.random.permutation(len(self.returns)), n_sequences):
            old_parameters = th.cat([self.old_parameters[number] for number in part])
            yield AuxBufferSamples(self._gather(self.observations, part), self._gather(self.returns, part), old_parameters)

    def _split(self, order: np.ndarray, n_sequences: int) -> list[np.ndarray]:
        return np.array_split(order, math.ceil(len(order) / n_sequences))

    def _gather(self, arrays: list[np.ndarray], part: np.ndarray) -> th.Tensor:
        return th.as_tensor(np.concatenate([arrays[number] for number in part]), device=self.device)


class PPG(OnPolicyAlgorithm):
    """
    Phasic Policy Gradient (PPG)

    Paper: https://arxiv.org/abs/2009.04416
    Authors' code: https://github.com/openai/phasic-policy-gradient

    The defaults are the paper's for one of four workers with 64 environments each. Normalize rewards, as the paper does: with
    returns in the hundreds, the value losses of the auxiliary phase outweigh the KL term.

    :param policy: "MlpPolicy", "CnnPolicy", or a subclass of ``PhasicActorCriticPolicy``
    :param env: The environment to learn from (if registered in Gym, can be str)
    :param learning_rate: The learning rate of both phases, it can be a function
        of the current progress remaining (from 1 to 0)
    :param n_steps: The number of steps to run for each environment per rollout
    :param batch_size: Minibatch size of the policy phase, in samples
    :param n_epochs: E_π, number of epochs on the policy's loss per rollout, at least one
    :param gamma: Discount factor
    :param gae_lambda: Factor for trade-off of bias vs variance for Generalized Advantage Estimator
    :param clip_range: ε, clipping parameter, it can be a function of the current progress remaining (from 1 to 0)
    :param ent_coef: β_S, entropy coefficient for the loss calculation
    :param max_grad_norm: The maximum value for the gradient clipping. The default does not clip
    :param n_value_epochs: E_V, number of epochs on the value function's loss per rollout
    :param n_policy_iterations: N_π, number of rollouts per phase
    :param n_aux_epochs: E_aux, number of epochs of the auxiliary phase
    :param aux_batch_size: Minibatch size of the auxiliary phase, in samples, rounded up to whole sequences of ``n_steps``
    :param beta_clone: β_clone, weight of the KL term
    :param _init_setup_model: Whether or not to build the network at the creation of the instance
    :param kwargs: Further arguments of ``OnPolicyAlgorithm``, such as ``policy_kwargs``, ``seed`` and ``device``
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": PhasicActorCriticPolicy,
        "CnnPolicy": PhasicActorCriticCnnPolicy,
    }
    policy: PhasicActorCriticPolicy

    def __init__(
        self,
        policy: str | type[PhasicActorCriticPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 5e-4,
        n_steps: int = 256,
        batch_size: int = 2048,
        n_epochs: int = 1,
        gamma: float = 0.999,
        gae_lambda: float = 0.95,
        clip_range: float | Schedule = 0.2,
        ent_coef: float = 0.01,
        max_grad_norm: float = math.inf,
        n_value_epochs: int = 1,
        n_policy_iterations: int = 32,
        n_aux_epochs: int = 6,
        aux_batch_size: int = 1024,
        beta_clone: float = 1.0,
        _init_setup_model: bool = True,
        **kwargs: Any,
    ):
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=ent_coef,
            vf_coef=0.5,  # the 1/2 of L^value
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            _init_setup_model=False,
            **kwargs,
        )
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.clip_range = clip_range
        self.n_value_epochs = n_value_epochs
        self.n_policy_iterations = n_policy_iterations
        self.n_aux_epochs = n_aux_epochs
        self.aux_batch_size = aux_batch_size
        self.beta_clone = beta_clone
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()  # makes ``policy.optimizer``, for the policy epochs
        self.value_optimizer = self.policy.make_optimizer(self.lr_schedule(1))
        self.aux_optimizer = self.policy.make_optimizer(self.lr_schedule(1))
        self.aux_buffer = AuxBuffer(self.device)

    # ---- Algorithm 1. `learn` calls `collect_rollouts`, which also computes V_targ, and `train` in turn ----

    def train(self) -> None:
        """Run an iteration of the policy phase on the latest rollout and, after N_π of them, the auxiliary phase."""
        self._update_learning_rate([self.policy.optimizer, self.value_optimizer, self.aux_optimizer])
        self.policy_update()
        self.aux_buffer.add(self.rollout_buffer)
        if self.aux_buffer.n_rollouts >= self.n_policy_iterations:
            self.auxiliary_phase()
            self.aux_buffer = AuxBuffer(self.device)

    def policy_update(self) -> None:
        """Optimize L^clip + β_S S[π] for E_π epochs, and L^value for E_V epochs, on the latest rollout."""
        self.policy.set_training_mode(True)
        clip_range = FloatSchedule(self.clip_range)(self._current_progress_remaining)
        advantages = self.rollout_buffer.advantages  # normalized once, not per minibatch
        self.rollout_buffer.advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        for _ in range(self.n_epochs):
            for batch in self.rollout_buffer.get(self.batch_size):
                actions = batch.actions.long().flatten() if isinstance(self.action_space, spaces.Discrete) else batch.actions
                distribution = self.policy.get_distribution(batch.observations)
                # L^clip = E[min(ratio A, clip(ratio, 1 - ε, 1 + ε) A)]
                ratio = th.exp(distribution.log_prob(actions) - batch.old_log_prob)
                clipped_ratio = th.clamp(ratio, 1 - clip_range, 1 + clip_range)
                policy_loss = -th.min(ratio * batch.advantages, clipped_ratio * batch.advantages).mean()
                entropy = distribution.entropy()
                assert entropy is not None
                self._optimize(self.policy.optimizer, policy_loss - self.ent_coef * entropy.mean())
                self.logger.record_mean("train/policy_gradient_loss", policy_loss.item())
                self.logger.record_mean("train/entropy_loss", -entropy.mean().item())
        for _ in range(self.n_value_epochs):
            for batch in self.rollout_buffer.get(self.batch_size):
                # L^value = E[1/2 (V_θV(s) - V_targ)²]
                values = self.policy.predict_values(batch.observations).flatten()
                value_loss = self.vf_coef * F.mse_loss(values, batch.returns)
                self._optimize(self.value_optimizer, value_loss)
                self.logger.record_mean("train/value_loss", value_loss.item())

    def auxiliary_phase(self) -> None:
        """Optimize L^joint and L^value, in the same steps, for E_aux epochs on all rollouts of the phase."""
        n_sequences = math.ceil(self.aux_batch_size / self.n_steps)
        self.aux_buffer.record(self.policy, n_sequences)
        self.policy.set_training_mode(True)
        for _ in range(self.n_aux_epochs):
            for batch in self.aux_buffer.get(n_sequences):
                distribution, values, aux_values = self.policy.evaluate_auxiliary(batch.observations)
                # L^joint = L^aux + β_clone E[KL(π_old, π)], where L^aux = E[1/2 (V_θπ(s) - V_targ)²]
                aux_loss = 0.5 * F.mse_loss(aux_values, batch.returns)
                kl = self.policy.kl_from_old(batch.old_parameters, distribution).mean()
                value_loss = 0.5 * F.mse_loss(values, batch.returns)
                self._optimize(self.aux_optimizer, aux_loss + self.beta_clone * kl + value_loss)
                self.logger.record_mean("aux/aux_value_loss", aux_loss.item())
                self.logger.record_mean("aux/kl", kl.item())
                self.logger.record_mean("aux/value_loss", value_loss.item())

    def _optimize(self, optimizer: th.optim.Optimizer, loss: th.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        optimizer.step()

    # ---- files: a loaded model begins a new phase ----

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "aux_buffer"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "value_optimizer", "aux_optimizer"], []


def main(total_timesteps: int = 100_000) -> None:
    """Train on CartPole with normalized rewards. The maximum return is 500. Takes a minute on two cores."""
    env = VecNormalize(make_vec_env("CartPole-v1", n_envs=8, seed=0), norm_obs=False, gamma=0.99)
    sizes: dict[str, Any] = dict(n_steps=32, batch_size=256, n_policy_iterations=16, aux_batch_size=256)
    model = PPG("MlpPolicy", env, gamma=0.99, n_epochs=4, n_value_epochs=4, seed=0, verbose=1, **sizes)
    model.learn(total_timesteps, log_interval=32)
    mean, std = evaluate_policy(model, make_vec_env("CartPole-v1", seed=1), n_eval_episodes=20)
    print(f"Return over 20 episodes: {mean:.0f} +- {std:.0f}")


if __name__ == "__main__":
    main()
