"""Batch-Constrained deep Q-learning, on SB3's off-policy algorithm."""

import time
from collections import deque
from typing import Any, ClassVar, Self
from unittest.mock import patch

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import ProgressBarCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import polyak_update
from stable_baselines3.her import HerReplayBuffer
from typing_extensions import override

from sb3_ppg.arguments import arguments_explained, check_each_argument, require, type_errors_explained, warn_of_missing_gpu
from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import in_floats
from sb3_ppg.errors import ArgumentError, NonFiniteLossError
from sb3_ppg.offline import losses
from sb3_ppg.offline.data import check_normalizer, fit_normalizers, load_dataset
from sb3_ppg.offline.policies import BCQPolicy, CnnPolicy, MlpPolicy, MultiInputPolicy
from sb3_ppg.optim.diagnostics import set_logger_of_run
from sb3_ppg.saving.files import mark


class BCQ(OffPolicyAlgorithm):
    """
    Batch-Constrained deep Q-learning (BCQ): learns from recorded data, and takes only actions that are likely in the data.

    Papers: https://arxiv.org/abs/1812.02900 (Box), https://arxiv.org/abs/1910.01708 (Discrete).

    Box actions: a conditional VAE learns the data's actions, a perturbation network moves them toward higher values by at
    most ``phi``, and two critics learn soft clipped targets over sampled actions. Discrete actions: Double DQN among the
    actions whose probability in the data is at least ``threshold`` times that of the likeliest.

    One timestep is one gradient step. Learning uses only the spaces of the environment, and does not step it; callbacks can
    evaluate in it. ``VecNormalize`` gets the statistics of the data, see ``set_dataset``. Arguments that are not listed are
    those of SB3's ``DQN``.

    :param policy: "MlpPolicy", "CnnPolicy", "MultiInputPolicy", or a subclass of ``BCQPolicy``
    :param env: The environment that the data is from (if registered in Gym, can be str)
    :param replay_buffer_class: Replay buffer class that holds the data. If ``None``, it will be automatically selected
    :param replay_buffer_kwargs: Keyword arguments to pass to the replay buffer; ``dict(handle_timeout_termination=False)``
        treats time limits, and all other truncations, as terminations
    :param n_steps: n of the n-step returns in the targets
    :param policy_kwargs: Additional arguments to be passed to the policy on creation, see ``BCQPolicy``
    :param dataset: Data that ``load_dataset`` accepts. None: call ``set_dataset`` before ``learn``; playing needs no data
    :param phi: Φ, the largest change of an action by the perturbation network, with actions scaled to [-1, 1] (Box)
    :param lmbda: λ, the weight of the lowest critic in targets; the highest one has weight 1 - λ (Box)
    :param n_train_samples: Number of actions among which targets take the best (Box)
    :param n_play_samples: Number of actions among which ``predict`` takes the best (Box)
    :param latent_kl_coef: Weight of the KL term in the VAE's loss (Box)
    :param threshold: τ, the minimum probability of an action, as a fraction of that of the likeliest one (Discrete)
    :param logit_penalty_coef: Weight of the imitation head's squared logits (Discrete)
    :raises ArgumentError: (a ``ValueError``) for arguments that cannot work, and data that does not fit the environment
    """

    _log_folder: str = ""  # of the latest run's logger

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {
        "MlpPolicy": MlpPolicy,
        "CnnPolicy": CnnPolicy,
        "MultiInputPolicy": MultiInputPolicy,
    }
    policy: BCQPolicy

    @arguments_explained
    def __init__(
        self,
        policy: str | type[BCQPolicy],
        env: GymEnv | str,
        learning_rate: float | Schedule = 1e-3,
        batch_size: int = 100,
        tau: float = 0.005,
        gamma: float = 0.99,
        replay_buffer_class: type[ReplayBuffer] | None = None,
        replay_buffer_kwargs: dict[str, Any] | None = None,
        n_steps: int = 1,
        policy_kwargs: dict[str, Any] | None = None,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: th.device | str = "auto",
        _init_setup_model: bool = True,
        *,
        dataset: Any = None,
        phi: float = 0.05,
        lmbda: float = 0.75,
        n_train_samples: int = 10,
        n_play_samples: int = 100,
        latent_kl_coef: float = 0.5,
        threshold: float = 0.3,
        logit_penalty_coef: float = 0.01,
    ):
        super().__init__(
            policy,
            env,
            learning_rate,
            buffer_size=1,
            learning_starts=0,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            replay_buffer_class=replay_buffer_class,
            replay_buffer_kwargs=replay_buffer_kwargs,
            n_steps=n_steps,
            policy_kwargs=policy_kwargs,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            device=device,
            seed=seed,
            support_multi_env=True,
            sde_support=False,
            supported_action_spaces=(spaces.Box, spaces.Discrete),
        )
        warn_of_missing_gpu(device, self.device)
        self.dataset = dataset
        self.phi = phi
        self.lmbda = lmbda
        self.n_train_samples = n_train_samples
        self.n_play_samples = n_play_samples
        self.latent_kl_coef = latent_kl_coef
        self.threshold = threshold
        self.logit_penalty_coef = logit_penalty_coef
        if _init_setup_model:
            self._setup_model()

    @override
    def _setup_model(self) -> None:
        check_each_argument(self)
        remedy = "SB3 has no n-step buffer for dictionaries of observations; use 1"
        stored = not self.replay_buffer_kwargs.get("optimize_memory_usage")
        require(self, stored, "replay_buffer_kwargs", "data has next observations of its own; leave out optimize_memory_usage")
        require(self, self.n_steps == 1 or not isinstance(self.observation_space, spaces.Dict), "n_steps", remedy)
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        policy: Any = self.policy_class
        kwargs = dict(self.policy_kwargs, phi=self.phi, threshold=self.threshold, n_play_samples=self.n_play_samples)
        with type_errors_explained(policy, self.policy_kwargs):
            self.policy = policy(self.observation_space, self.action_space, self.lr_schedule, **kwargs).to(self.device)
        if self.dataset is not None:
            self.set_dataset(self.dataset)

    # ---- data ----

    def set_dataset(self, dataset: Any) -> None:
        """
        Set the data to learn from. ``VecNormalize`` gets the statistics of the data, unless the networks have already been
        trained with other statistics, which are then kept.

        :param dataset: data that ``load_dataset`` accepts
        :raises ArgumentError: if the data is damaged, or cannot come from the model's environment
        """
        check_normalizer(self)
        data = load_dataset(dataset).fitted_to(self.observation_space, self.action_space)
        is_dict = isinstance(self.observation_space, spaces.Dict)
        cls: Any = self.replay_buffer_class or (DictReplayBuffer if is_dict else ReplayBuffer)
        kwargs = dict(self.replay_buffer_kwargs)
        if self.n_steps > 1:
            cls = self.replay_buffer_class or NStepReplayBuffer
            kwargs = {"n_steps": self.n_steps, "gamma": self.gamma, **kwargs}
        # As SB3's algorithms fill it: actions scaled to [-1, 1], so integers are floats; full, so that its end is known
        if issubclass(cls, HerReplayBuffer):
            raise ArgumentError("`replay_buffer_class`=HerReplayBuffer cannot work: goals are not relabelled; use None")
        with type_errors_explained(cls, kwargs):
            spaces_ = (self.observation_space, in_floats(self.action_space))
            buffer = self.replay_buffer = cls(len(data), *spaces_, device=self.device, **kwargs)

        def fill(stored: np.ndarray, array: np.ndarray) -> None:
            stored[:] = array.reshape(stored.shape)  # from (N, ...) to (N, 1, ...)

        map_arrays(fill, buffer.observations, data.observations)
        map_arrays(fill, buffer.next_observations, data.next_observations)
        fill(buffer.actions, self.policy.scale_action(data.actions) if self.policy.is_box else data.actions)
        fill(buffer.rewards, data.rewards)
        fill(buffer.dones, data.terminations | data.truncations)
        if buffer.handle_timeout_termination:
            fill(buffer.timeouts, data.truncations & ~data.terminations)
        buffer.full = True
        self.dataset = None  # the buffer has it
        fit_normalizers(self.env, data, is_trained=self._n_updates > 0)

    # ---- learning ----

    @override
    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1000,
        tb_log_name: str = "BCQ",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """
        Learn from the data. Callbacks are called after each gradient step, as after a step in an environment.

        :param total_timesteps: number of gradient steps
        :param log_interval: number of gradient steps between two logs. None: nothing is written
        :raises ArgumentError: without data
        :raises NonFiniteLossError: if a loss is NaN or infinite
        """
        if self.replay_buffer is None:
            raise ArgumentError("`dataset`=None cannot work: BCQ learns from recorded data; use `set_dataset`")
        # As SB3's `_setup_learn`, except that the environment is not reset
        self.start_time = time.time_ns()
        self.ep_info_buffer = self.ep_success_buffer = deque()  # for SB3's log
        if reset_num_timesteps:
            self.num_timesteps = 0
        total_timesteps += self.num_timesteps
        self._total_timesteps, self._num_timesteps_at_start = total_timesteps, self.num_timesteps
        set_logger_of_run(self, tb_log_name, reset_num_timesteps)
        with patch("stable_baselines3.common.base_class.ProgressBarCallback", _ProgressBar):
            callback = self._init_callback(callback, progress_bar)
        callback.on_training_start(locals(), globals())
        if self.num_timesteps < total_timesteps:  # else the first step would have the rate of an earlier run's end
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
        while self.num_timesteps < total_timesteps:
            self.train(1, self.batch_size)
            self.num_timesteps += 1
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            if log_interval is not None and (self.num_timesteps % log_interval == 0 or self.num_timesteps == total_timesteps):
                self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
                self.dump_logs()
            callback.update_locals(locals())
            if not callback.on_step():
                break
        callback.on_training_end()
        return self

    @override
    def train(self, gradient_steps: int, batch_size: int) -> None:
        """Take gradient steps; raise ``NonFiniteLossError`` if a loss is NaN or infinite."""
        assert self.replay_buffer is not None
        self.policy.set_training_mode(True)
        self._update_learning_rate([getattr(self.policy, name) for name in self.policy.optimizer_names])
        for _ in range(gradient_steps):
            terms = self.update(self.replay_buffer.sample(batch_size, env=self._vec_normalize_env))
            self._n_updates += 1
            for name, value in zip(terms, th.stack([*terms.values()]).tolist(), strict=True):  # waits for a GPU once
                if not np.isfinite(value):
                    raise NonFiniteLossError(f"`{name}` is not finite in gradient step {self._n_updates}: {value}")
                self.logger.record_mean(f"train/{name}", value)

    def update(self, batch: Any) -> dict[str, th.Tensor]:
        """Take one step of each optimizer on samples of SB3's replay buffer, move the target networks; return the losses."""
        policy = self.policy
        obs, next_obs = policy.preprocess(batch.observations), policy.preprocess(batch.next_observations)
        discounts = self.gamma if batch.discounts is None else batch.discounts.flatten()
        outcome = (batch.rewards.flatten(), batch.dones.flatten(), discounts)
        update = self._update_box if policy.is_box else self._update_discrete
        terms = update(obs, batch.actions, next_obs, outcome)
        for network, target in policy.targets:
            polyak_update(network.parameters(), target.parameters(), self.tau)
            polyak_update(network.buffers(), target.buffers(), tau=1)  # statistics of batch normalization
        return terms

    def _update_box(self, obs: Any, actions: th.Tensor, next_obs: Any, outcome: tuple[Any, Any, Any]) -> dict[str, th.Tensor]:
        policy, n_samples = self.policy, len(actions)
        reconstructed, mean, std = policy.vae(obs, actions)
        terms = losses.vae_loss(reconstructed, actions, mean, std)
        _step(policy.vae_optimizer, terms["reconstruction_loss"] + self.latent_kl_coef * terms["latent_kl"])

        with th.no_grad():
            codes = policy.vae.random_codes(n_samples, self.n_train_samples)
            next_actions = policy.actor_target(next_obs, policy.vae.decode(next_obs, codes))
            next_values = policy.critics_target(next_obs, next_actions)
            targets = losses.td_targets(*outcome, losses.soft_clipped_values(next_values, self.lmbda))
        values = policy.critics(obs, actions.unsqueeze(1)).squeeze(-1)
        terms["critic_loss"] = losses.critic_loss(values, targets)
        _step(policy.critic_optimizer, terms["critic_loss"])

        with th.no_grad():
            likely = policy.vae.decode(obs, policy.vae.random_codes(n_samples, 1))
        perturbed = policy.actor(obs, likely)
        terms["actor_loss"] = -policy.critics(obs, perturbed, only_first=True).mean()  # equation 12 of the first paper
        _step(policy.actor_optimizer, terms["actor_loss"])
        return {**terms, "q_value": values.mean()}

    def _update_discrete(
        self, obs: Any, actions: th.Tensor, next_obs: Any, outcome: tuple[Any, Any, Any]
    ) -> dict[str, th.Tensor]:
        policy = self.policy
        with th.no_grad():
            next_values, next_logits = policy.q_net(next_obs)
            next_actions = losses.constrained_actions(next_values, next_logits.log_softmax(dim=1), self.threshold)
            next_values = policy.q_net_target(next_obs)[0].gather(1, next_actions.unsqueeze(1)).squeeze(1)
            targets = losses.td_targets(*outcome, next_values)
        values, logits = policy.q_net(obs)
        taken = policy.actions.from_environments(actions.flatten().long())
        terms = losses.discrete_losses(values, logits, taken, targets)
        total = terms["critic_loss"] + terms["imitation_loss"] + self.logit_penalty_coef * terms["logit_penalty"]
        _step(policy.optimizer, total)
        return {**terms, "q_value": values.mean()}

    # ---- files ----

    @override
    def save(self, *args: Any, **kwargs: Any) -> None:
        mark(self)
        super().save(*args, **kwargs)

    @override
    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", *(f"policy.{name}" for name in self.policy.optimizer_names)], []


class _ProgressBar(ProgressBarCallback):
    """SB3's progress bar, advanced by one per gradient step instead of by the number of environments."""

    @override
    def _on_step(self) -> bool:
        self.pbar.update()
        return True


def _step(optimizer: Any, loss: th.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
