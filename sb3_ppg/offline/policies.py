"""The networks of BCQ: for Box actions a conditional VAE, a perturbation network and critics; for Discrete ones two heads."""

import copy
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_ppg.offline import losses

# As in the authors' code: log σ of the VAE, and where the codes of sampled actions lie
LOG_STD_RANGE, CODE_LIMIT = (-4.0, 15.0), 0.5


class ActionVAE(nn.Module):
    """
    The conditional variational auto-encoder G(a|s): a -> z -> a, given features of the observation.

    :param features_extractor: of observations
    :param action_dim: dimensions of an action, A; the latent has twice as many, L
    :param net_arch: units of each layer of encoder and decoder
    :param activation_fn: activation after each layer
    """

    def __init__(
        self, features_extractor: BaseFeaturesExtractor, action_dim: int, net_arch: list[int], activation_fn: type[nn.Module]
    ):
        super().__init__()
        self.features_extractor = features_extractor
        self.latent_dim = 2 * action_dim
        n_features = features_extractor.features_dim
        self.encoder = nn.Sequential(*create_mlp(n_features + action_dim, 2 * self.latent_dim, net_arch, activation_fn))
        decoder = create_mlp(n_features + self.latent_dim, action_dim, net_arch, activation_fn, squash_output=True)
        self.decoder = nn.Sequential(*decoder)

    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param obs: preprocessed observations, (B, ...)
        :param actions: scaled to [-1, 1], (B, A)
        :return: reconstructed actions, (B, A); mean and standard deviation of their codes, (B, L)
        """
        features = self.features_extractor(obs)
        mean, log_std = self.encoder(th.cat([features, actions], dim=-1)).chunk(2, dim=-1)
        std = log_std.clamp(*LOG_STD_RANGE).exp()
        codes = mean + std * th.randn_like(std)
        return self.decoder(th.cat([features, codes], dim=-1)), mean, std

    def decode(self, obs: Any, codes: th.Tensor) -> th.Tensor:
        """
        :param obs: preprocessed observations, (B, ...)
        :param codes: z, (B, S, L)
        :return: actions in [-1, 1], (B, S, A)
        """
        return self.decoder(_with_features(self.features_extractor(obs), codes))

    def random_codes(self, *shape: int) -> th.Tensor:
        """Return codes of a standard normal distribution, clipped to [-0.5, 0.5], (*shape, L)."""
        like = next(self.parameters())
        codes = th.randn(*shape, self.latent_dim, device=like.device, dtype=like.dtype)
        return codes.clamp(-CODE_LIMIT, CODE_LIMIT)


class Perturbation(nn.Module):
    """
    The perturbation network: a -> a + ξ(s, a), |ξ| at most Φ, within [-1, 1].

    :param features_extractor: of observations
    :param action_dim: dimensions of an action, A
    :param net_arch: units of each layer
    :param activation_fn: activation after each layer
    :param phi: Φ, where the action space is [-1, 1] wide
    """

    def __init__(
        self,
        features_extractor: BaseFeaturesExtractor,
        action_dim: int,
        net_arch: list[int],
        activation_fn: type[nn.Module],
        phi: float,
    ):
        super().__init__()
        self.features_extractor = features_extractor
        self.phi = phi
        n_inputs = features_extractor.features_dim + action_dim
        self.layers = nn.Sequential(*create_mlp(n_inputs, action_dim, net_arch, activation_fn, squash_output=True))

    def forward(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """
        :param obs: preprocessed observations, (B, ...)
        :param actions: (B, S, A)
        :return: perturbed actions, (B, S, A)
        """
        perturbed = actions + self.phi * self.layers(_with_features(self.features_extractor(obs), actions))
        return perturbed.clamp(-1, 1)


class Critics(nn.Module):
    """
    Several critics Q_j(s, a) on one features extractor.

    :param features_extractor: of observations
    :param action_dim: dimensions of an action, A
    :param net_arch: units of each layer
    :param activation_fn: activation after each layer
    :param n_critics: how many, C
    """

    def __init__(
        self,
        features_extractor: BaseFeaturesExtractor,
        action_dim: int,
        net_arch: list[int],
        activation_fn: type[nn.Module],
        n_critics: int,
    ):
        super().__init__()
        self.features_extractor = features_extractor
        n_inputs = features_extractor.features_dim + action_dim
        self.critics = nn.ModuleList(
            nn.Sequential(*create_mlp(n_inputs, 1, net_arch, activation_fn)) for _ in range(n_critics)
        )

    def forward(self, obs: Any, actions: th.Tensor, only_first: bool = False) -> th.Tensor:
        """
        :param obs: preprocessed observations, (B, ...)
        :param actions: (B, S, A)
        :param only_first: whether to evaluate the first critic alone
        :return: values, (C, B, S)
        """
        inputs = _with_features(self.features_extractor(obs), actions)
        return th.stack([critic(inputs).squeeze(-1) for critic in self.critics[: 1 if only_first else None]])


class QAndImitation(nn.Module):
    """
    Q(s, .) and the data's policy G(.|s), two heads on one body.

    :param features_extractor: of observations
    :param n_actions: number of actions, A
    :param net_arch: units of each layer of the body
    :param activation_fn: activation after each layer
    """

    def __init__(
        self, features_extractor: BaseFeaturesExtractor, n_actions: int, net_arch: list[int], activation_fn: type[nn.Module]
    ):
        super().__init__()
        self.features_extractor = features_extractor
        self.body = nn.Sequential(*create_mlp(features_extractor.features_dim, -1, net_arch, activation_fn))
        n_latent = net_arch[-1] if net_arch else features_extractor.features_dim
        self.q_head = nn.Linear(n_latent, n_actions)
        self.imitation_head = nn.Linear(n_latent, n_actions)

    def forward(self, obs: Any) -> tuple[th.Tensor, th.Tensor]:
        """
        :param obs: preprocessed observations, (B, ...)
        :return: Q(s, .) and the logits of G(.|s), (B, A)
        """
        latent = self.body(self.features_extractor(obs))
        return self.q_head(latent), self.imitation_head(latent)


def _with_features(features: th.Tensor, numbers: th.Tensor) -> th.Tensor:
    """Return each sample's features beside each of its S rows: (B, F) and (B, S, N) give (B, S, F + N)."""
    return th.cat([features.unsqueeze(1).expand(-1, numbers.shape[1], -1), numbers], dim=-1)


class BCQPolicy(BasePolicy):
    """
    BCQ's networks, with their target networks and optimizers. Each network has a features extractor of its own.

    Arguments that are not listed here are those of SB3's ``DQNPolicy`` and ``TD3Policy``. ``BCQ`` gives ``phi``, ``threshold``
    and ``n_play_samples``.

    :param observation_space: Observation space
    :param action_space: Action space, Box or Discrete
    :param lr_schedule: Learning rate schedule (could be constant)
    :param net_arch: layers of the critics and the perturbation network (default: 400 and 300 units), or of the body of both
        heads (default: 256 and 256, or none after ``NatureCNN``)
    :param activation_fn: Activation function
    :param vae_net_arch: layers of the VAE's encoder, and of its decoder (default: 750 and 750 units)
    :param n_critics: number of critics, for Box actions
    :param phi: see ``BCQ``
    :param threshold: see ``BCQ``
    :param n_play_samples: see ``BCQ``
    """

    codes: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        vae_net_arch: list[int] | None = None,
        n_critics: int = 2,
        phi: float = 0.05,
        threshold: float = 0.3,
        n_play_samples: int = 100,
    ):
        self.is_box = isinstance(action_space, spaces.Box)
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=self.is_box,
        )
        if net_arch is None:
            discrete = [] if issubclass(features_extractor_class, NatureCNN) else [256, 256]
            net_arch = [400, 300] if self.is_box else discrete
        self.arguments = dict(
            net_arch=net_arch,
            activation_fn=activation_fn,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=self.features_extractor_kwargs,
            optimizer_class=optimizer_class,
            optimizer_kwargs=self.optimizer_kwargs,
            vae_net_arch=[750, 750] if vae_net_arch is None else vae_net_arch,
            n_critics=n_critics,
            phi=phi,
            threshold=threshold,
            n_play_samples=n_play_samples,
        )
        self._build(lr_schedule(1))

    def _build(self, learning_rate: float) -> None:
        arguments: Any = self.arguments
        net_arch, activation_fn = arguments["net_arch"], arguments["activation_fn"]
        space: Any = self.action_space
        networks: dict[str, nn.Module]
        if self.is_box:
            action_dim = int(th.tensor(space.shape).prod())
            self.vae = ActionVAE(self.make_features_extractor(), action_dim, arguments["vae_net_arch"], activation_fn)
            self.actor = Perturbation(self.make_features_extractor(), action_dim, net_arch, activation_fn, arguments["phi"])
            self.critics = Critics(self.make_features_extractor(), action_dim, net_arch, activation_fn, arguments["n_critics"])
            self.actor_target, self.critics_target = self._target(self.actor), self._target(self.critics)
            # Codes of the actions among which deterministic play chooses
            self.register_buffer("codes", self.vae.random_codes(arguments["n_play_samples"]))
            networks = {"vae_optimizer": self.vae, "actor_optimizer": self.actor, "critic_optimizer": self.critics}
        else:
            self.q_net = QAndImitation(self.make_features_extractor(), int(space.n), net_arch, activation_fn)
            self.q_net_target = self._target(self.q_net)
            networks = {"optimizer": self.q_net}
        self.optimizer_names = list(networks)
        for name, network in networks.items():
            optimizer: Any = self.optimizer_class
            setattr(self, name, optimizer(network.parameters(), lr=learning_rate, **self.optimizer_kwargs))

    @staticmethod
    def _target(network: Any) -> Any:
        """Return a copy that no optimizer trains."""
        return copy.deepcopy(network).requires_grad_(False).eval()

    @property
    def targets(self) -> list[tuple[nn.Module, nn.Module]]:
        """Pairs of a network and its target network."""
        if self.is_box:
            return [(self.actor, self.actor_target), (self.critics, self.critics_target)]
        return [(self.q_net, self.q_net_target)]

    def set_training_mode(self, mode: bool) -> None:
        """Put all networks but the target networks in training mode, or all in evaluation mode."""
        super().set_training_mode(mode)
        for _, target in self.targets:
            target.eval()

    def preprocess(self, obs: PyTorchObs) -> Any:
        """Return observations as features extractors take them."""
        return super().extract_features(obs, nn.Identity())  # type: ignore[arg-type]

    def sampled_actions(self, obs: Any, codes: th.Tensor, actor: Perturbation) -> th.Tensor:
        """
        :param obs: preprocessed observations, (B, ...)
        :param codes: (B, S, L)
        :param actor: the perturbation network, or its target network
        :return: actions that the VAE makes of the codes, perturbed, (B, S, A)
        """
        return actor(obs, self.vae.decode(obs, codes))

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        return self._predict(obs, deterministic)

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        """
        Choose the action with the highest value of those that the data's policy may take. For Box actions these are sampled;
        with ``deterministic``, from the same codes each time.

        :param observation: (B, ...)
        :param deterministic: whether the same observation always gives the same action
        :return: (B, A) in [-1, 1], or (B,)
        """
        obs, arguments = self.preprocess(observation), self.arguments
        if not self.is_box:
            values, logits = self.q_net(obs)
            chosen = losses.constrained_actions(values, logits.log_softmax(dim=1), arguments["threshold"])  # type: ignore[arg-type]
            return chosen + int(self.action_space.start)  # type: ignore[attr-defined]
        n_envs = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        codes = self.codes.expand(n_envs, -1, -1)
        if not deterministic:
            codes = self.vae.random_codes(n_envs, len(self.codes))
        actions = self.sampled_actions(obs, codes, self.actor)
        best = self.critics(obs, actions, only_first=True)[0].argmax(dim=1)
        return actions[th.arange(n_envs, device=best.device), best]

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.arguments, "lr_schedule": self._dummy_schedule}


MlpPolicy = BCQPolicy


class CnnPolicy(BCQPolicy):
    """``BCQPolicy`` for images, with ``NatureCNN`` by default."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("features_extractor_class", NatureCNN)
        super().__init__(*args, **kwargs)


class MultiInputPolicy(BCQPolicy):
    """``BCQPolicy`` for dictionaries of observations, with ``CombinedExtractor`` by default."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("features_extractor_class", CombinedExtractor)
        super().__init__(*args, **kwargs)
