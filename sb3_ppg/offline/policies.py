"""
The networks of BCQ: for Box actions a conditional VAE, a perturbation network and critics; for Discrete ones two heads.

``obs`` are preprocessed observations of B samples, (B, ...), with F features; ``actions`` of networks are scaled to [-1, 1].
``A`` is the number of Discrete actions, or the dimensions of one; ``S`` the number of actions sampled in each state.
"""

import copy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    NatureCNN,
    create_mlp,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn
from typing_extensions import override

from sb3_ppg.actions import Actions, CategoricalActions, SquashedGaussianActions, with_integers
from sb3_ppg.arguments import LAYERS, check_value, optional
from sb3_ppg.arrays import n_samples
from sb3_ppg.offline import losses
from sb3_ppg.policies.mlp import preprocess


class Network(nn.Module):
    """Layers on the features of observations. Subclasses take arguments of their own before these."""

    def __init__(self, features_extractor: BaseFeaturesExtractor, net_arch: list[int], activation_fn: type[nn.Module]):
        super().__init__()
        self.features_extractor, self.net_arch, self.activation_fn = features_extractor, net_arch, activation_fn

    def mlp(self, n_numbers: int, n_outputs: int, squash_output: bool = False) -> nn.Sequential:
        """Make layers whose input is the features and further numbers."""
        n_inputs = self.features_extractor.features_dim + n_numbers
        return nn.Sequential(*create_mlp(n_inputs, n_outputs, self.net_arch, self.activation_fn, squash_output))

    def inputs(self, obs: Any, numbers: th.Tensor) -> th.Tensor:
        """Return each sample's features, followed by each of its rows of numbers, (B, S, N): (B, S, F + N)."""
        features = self.features_extractor(obs).unsqueeze(1).expand(-1, numbers.shape[1], -1)
        return th.cat([features, numbers], dim=-1)


class ActionVAE(Network):
    """The conditional variational auto-encoder G(a|s): a -> z -> a. Codes z have L = 2 A dimensions."""

    def __init__(self, action_dim: int, *network: Any):
        super().__init__(*network)
        self.latent_dim = 2 * action_dim
        self.encoder = self.mlp(action_dim, 2 * self.latent_dim)
        self.decoder = self.mlp(self.latent_dim, action_dim, squash_output=True)

    @override
    def forward(self, obs: Any, actions: th.Tensor) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Return reconstructed actions, (B, A), and mean and standard deviation of their codes, (B, L)."""
        features = self.features_extractor(obs)
        mean, log_std = self.encoder(th.cat([features, actions], dim=-1)).chunk(2, dim=-1)
        std = log_std.clamp(-4, 15).exp()  # as in the authors' code
        codes = mean + std * th.randn_like(std)
        return self.decoder(th.cat([features, codes], dim=-1)), mean, std

    def decode(self, obs: Any, codes: th.Tensor) -> th.Tensor:
        """Return the actions of codes, (B, S, L): (B, S, A)."""
        return self.decoder(self.inputs(obs, codes))

    def random_codes(self, *shape: int) -> th.Tensor:
        """Return codes of a standard normal distribution, clipped to [-0.5, 0.5] as in the authors' code, (*shape, L)."""
        like = next(self.parameters())
        codes = th.randn(*shape, self.latent_dim, device=like.device, dtype=like.dtype)
        return codes.clamp(-0.5, 0.5)


class Perturbation(Network):
    """The perturbation network: a -> a + ξ(s, a), |ξ| at most Φ (``phi``), within [-1, 1]."""

    def __init__(self, phi: float, action_dim: int, *network: Any):
        super().__init__(*network)
        self.phi = phi
        self.layers = self.mlp(action_dim, action_dim, squash_output=True)

    @override
    def forward(self, obs: Any, actions: th.Tensor) -> th.Tensor:
        """Return perturbed actions, (B, S, A), of actions (B, S, A)."""
        return (actions + self.phi * self.layers(self.inputs(obs, actions))).clamp(-1, 1)


class Critics(Network):
    """C critics Q_j(s, a) on one features extractor."""

    def __init__(self, n_critics: int, action_dim: int, *network: Any):
        super().__init__(*network)
        self.critics = nn.ModuleList(self.mlp(action_dim, 1) for _ in range(n_critics))

    @override
    def forward(self, obs: Any, actions: th.Tensor, only_first: bool = False) -> th.Tensor:
        """Return the values of actions, (B, S, A), by all critics or the first: (C, B, S) or (1, B, S)."""
        inputs = self.inputs(obs, actions)
        return th.stack([critic(inputs).squeeze(-1) for critic in self.critics[: 1 if only_first else None]])


class QAndImitation(Network):
    """Q(s, .) and the data's policy G(.|s), two heads on one body."""

    def __init__(self, n_actions: int, *network: Any):
        super().__init__(*network)
        self.body = self.mlp(0, -1)
        n_latent = self.net_arch[-1] if self.net_arch else self.features_extractor.features_dim
        self.q_head = nn.Linear(n_latent, n_actions)
        self.imitation_head = nn.Linear(n_latent, n_actions)

    @override
    def forward(self, obs: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return Q(s, .) and the logits of G(.|s), both (B, A)."""
        latent = self.body(self.features_extractor(obs))
        return self.q_head(latent), self.imitation_head(latent)


class BCQPolicy(BasePolicy):
    """
    BCQ's networks, with their target networks and optimizers. Each network has a features extractor of its own.

    Arguments that are not listed here are those of SB3's ``DQNPolicy`` and ``TD3Policy``. ``BCQ`` gives ``phi``, ``threshold``
    and ``n_play_samples``.

    :param net_arch: layers of the critics and the perturbation network (default: 400 and 300 units), or of the body of both
        heads (default: 256 and 256, or none after ``NatureCNN``)
    :param vae_net_arch: layers of the VAE's encoder, and of its decoder (default: 750 and 750 units)
    :param n_critics: number of critics, for Box actions
    """

    default_extractor: type[BaseFeaturesExtractor] = FlattenExtractor
    codes: th.Tensor

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Box | spaces.Discrete,
        lr_schedule: Schedule,
        net_arch: list[int] | None = None,
        activation_fn: type[nn.Module] = nn.ReLU,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
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
        given = {**locals()}
        check_value("net_arch", net_arch, optional(LAYERS, "for the default"))
        check_value("vae_net_arch", vae_net_arch, optional(LAYERS, "for the default"))
        self.is_box = isinstance(action_space, spaces.Box)
        super().__init__(
            observation_space,
            action_space,
            features_extractor_class or self.default_extractor,
            features_extractor_kwargs,
            normalize_images=normalize_images,
            optimizer_class=optimizer_class,
            optimizer_kwargs=optimizer_kwargs,
            squash_output=self.is_box,
        )
        self.preprocessed_space = with_integers(observation_space)
        # Stored by ``save``
        self.arguments = {name: value for name, value in given.items() if name not in ("self", "__class__", "lr_schedule")}
        if net_arch is None:
            discrete: list[int] = [] if issubclass(self.features_extractor_class, NatureCNN) else [256, 256]
            net_arch = [400, 300] if self.is_box else discrete
        vae_net_arch = [750, 750] if vae_net_arch is None else vae_net_arch
        self.threshold = threshold
        self.actions: Actions = (SquashedGaussianActions if self.is_box else CategoricalActions)(action_space)
        extractor = self.make_features_extractor
        networks: dict[str, nn.Module]
        if isinstance(action_space, spaces.Box):
            n_dims = get_action_dim(action_space)
            self.vae = ActionVAE(n_dims, extractor(), vae_net_arch, activation_fn)
            self.actor = Perturbation(phi, n_dims, extractor(), net_arch, activation_fn)
            self.critics = Critics(n_critics, n_dims, extractor(), net_arch, activation_fn)
            self.actor_target, self.critics_target = _target(self.actor), _target(self.critics)
            self.targets = [(self.actor, self.actor_target), (self.critics, self.critics_target)]
            # Codes of the actions among which deterministic play chooses
            self.register_buffer("codes", self.vae.random_codes(n_play_samples))
            networks = {"vae_optimizer": self.vae, "actor_optimizer": self.actor, "critic_optimizer": self.critics}
        else:
            self.q_net = QAndImitation(int(action_space.n), extractor(), net_arch, activation_fn)
            self.q_net_target = _target(self.q_net)
            self.targets = [(self.q_net, self.q_net_target)]
            networks = {"optimizer": self.q_net}
        self.optimizer_names = [*networks]
        for name, network in networks.items():
            optimizer: Any = optimizer_class
            setattr(self, name, optimizer(network.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs))

    @override
    def set_training_mode(self, mode: bool) -> None:
        """Put all networks except the target networks in training mode, or all in evaluation mode."""
        super().set_training_mode(mode)
        for _, target in self.targets:
            target.eval()

    @override
    def _load_from_state_dict(self, state_dict: Any, prefix: str, *others: Any) -> None:
        """Load weights; take as many saved ``codes`` as this policy has; if there are fewer, keep its own for the rest."""
        if (name := f"{prefix}codes") in state_dict:
            saved = state_dict[name][: len(self.codes)].to(self.codes)
            state_dict = state_dict | {name: th.cat([saved, self.codes[len(saved) :]])}
        super()._load_from_state_dict(state_dict, prefix, *others)

    @override
    def scale_action(self, action: np.ndarray) -> np.ndarray:
        return self.actions.from_environments(th.as_tensor(action)).numpy()

    @override
    def unscale_action(self, scaled_action: np.ndarray) -> np.ndarray:
        return self.actions.for_environments(th.as_tensor(scaled_action)).numpy()

    def preprocess(self, obs: PyTorchObs) -> Any:
        """Return observations as features extractors take them."""
        return preprocess(obs, self.preprocessed_space, self.normalize_images)

    @override
    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> th.Tensor:
        """
        Return the actions with the highest values among those that the data's policy may take, (B, A) in [-1, 1], or (B,). For
        Box actions these are sampled; with ``deterministic``, from the same codes each time.
        """
        obs = self.preprocess(observation)
        if not self.is_box:
            values, logits = self.q_net(obs)
            chosen = losses.constrained_actions(values, logits.log_softmax(dim=1), self.threshold)
            return self.actions.for_environments(chosen)
        n_envs = n_samples(obs)
        codes = self.codes.expand(n_envs, -1, -1) if deterministic else self.vae.random_codes(n_envs, len(self.codes))
        actions = self.actor(obs, self.vae.decode(obs, codes))
        best = self.critics(obs, actions, only_first=True)[0].argmax(dim=1)
        return actions[th.arange(n_envs, device=best.device), best]

    @override
    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**self.arguments, "lr_schedule": self._dummy_schedule}


def _target(network: Any) -> Any:
    return copy.deepcopy(network).requires_grad_(False).eval()


MlpPolicy = BCQPolicy


class CnnPolicy(BCQPolicy):
    """``BCQPolicy`` for images, with ``NatureCNN`` by default."""

    default_extractor = NatureCNN


class MultiInputPolicy(BCQPolicy):
    """``BCQPolicy`` for dictionaries of observations, with ``CombinedExtractor`` by default."""

    default_extractor = CombinedExtractor
