"""The phasic actor-critic policies: SB3's, with an auxiliary value head on the policy network."""

import copy
from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import DiagGaussianDistribution, Distribution, StateDependentNoiseDistribution
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.preprocessing import is_image_space, preprocess_obs
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import nn

from sb3_ppg.checks import is_count
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies.extractors import ImpalaCNN, init_normed

Architecture = Literal["dual", "detached", "shared"]
ARCHITECTURES: tuple[Architecture, ...] = ("dual", "detached", "shared")
MixedPrecision = Literal["bf16", "tf32"]


class SharedTrunk(MlpExtractor):
    """
    One trunk of dense layers for the policy and the value function.

    :param features_dim: of the features that come in
    :param trunk: units of each layer
    :param activation_fn: after each layer
    :param detach_value: whether the value function's gradient stops at the trunk
    :param device: where to put the layers
    """

    def __init__(
        self,
        features_dim: int,
        trunk: list[int],
        activation_fn: type[nn.Module],
        detach_value: bool,
        device: th.device | str = "auto",
    ):
        super().__init__(features_dim, dict(pi=trunk, vf=[]), activation_fn, device)
        self.latent_dim_vf = self.latent_dim_pi
        self.detach_value = detach_value

    def forward(self, features: th.Tensor) -> tuple[th.Tensor, th.Tensor]:
        latent = self.policy_net(features)
        return latent, latent.detach() if self.detach_value else latent

    def forward_critic(self, features: th.Tensor) -> th.Tensor:
        return self.policy_net(features)


class ValueHead(nn.Linear):
    """
    A linear layer whose output is in units that can be changed without changing what it computes: (B, in) -> (B, 1).

    Source: Pop-Art, van Hasselt et al. 2016, https://arxiv.org/abs/1602.07714.

    :param in_features: of the latent features
    """

    mean: th.Tensor
    std: th.Tensor

    def __init__(self, in_features: int):
        super().__init__(in_features, 1)
        self.register_buffer("mean", th.zeros(()))
        self.register_buffer("std", th.ones(()))

    def forward(self, latent: th.Tensor) -> th.Tensor:
        return th.addcmul(self.mean, self.std, super().forward(latent))

    @th.no_grad()
    def change_units(self, mean: float, std: float) -> th.Tensor:
        """
        From now on the layer's weights predict (value - mean) / std; its output stays the same.

        :param mean: in the units of the returns
        :param std: likewise, above zero
        :return: the factor by which the weights have changed, and with them the gradient of an error in the head's units, ()
        """
        factor = self.std / std
        self.weight.mul_(factor)
        self.bias.copy_((self.std * self.bias + self.mean - mean) / std)
        self.mean.fill_(mean)
        self.std.fill_(std)
        return factor


class FeaturesInMixedPrecision(BasePolicy):
    """
    The extraction of features, which all of SB3's policies inherit, with what makes it fast. (A base class next to
    ``ActorCriticPolicy``, so that each of its calls ends up here.)
    """

    mixed_precision: MixedPrecision | None = None
    compile_mode: str | None = None

    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor) -> th.Tensor:
        """
        In bfloat16 with ``mixed_precision="bf16"``; parameters and the features that come out are float32.

        :param obs: Observation
        :param features_extractor: one whose class says that it ``scales_images`` gets them as uint8
        :return: float32, (B, features_dim)
        """
        if not self._are_scaled_by(features_extractor, obs):
            obs = preprocess_obs(obs, self.observation_space, normalize_images=self.normalize_images)
        if self.mixed_precision == "bf16":
            with th.autocast(self.device.type, th.bfloat16):
                features = features_extractor(obs).float()
        else:
            features = features_extractor(obs)
        # CUDA graphs would overwrite what one extractor gave when another runs
        return features if self.compile_mode is None else features.clone()

    def _are_scaled_by(self, features_extractor: BaseFeaturesExtractor, obs: PyTorchObs) -> bool:
        # A subclass may do something else with them, so it has to say it itself
        scales_images = vars(type(features_extractor)).get("scales_images", False)
        is_uint8 = isinstance(obs, th.Tensor) and obs.dtype == th.uint8
        return scales_images and is_uint8 and self.normalize_images and is_image_space(self.observation_space)


class AuxiliaryEvaluation(NamedTuple):
    """
    What one pass through the networks gives to the auxiliary phase.

    :param distribution: π(.|s)
    :param aux_values: of the auxiliary value head, (B,)
    :param values: of the true value function, V(s), (B,)
    :param latent_pi: what the policy's heads read, (B, latent_dim_pi)
    """

    distribution: Distribution
    aux_values: th.Tensor
    values: th.Tensor
    latent_pi: th.Tensor


class PhasicActorCriticPolicy(ActorCriticPolicy, FeaturesInMixedPrecision):  # type: ignore[misc] # ActorCriticPolicy's own
    """
    SB3's actor-critic policy with what PPG adds: an auxiliary value head ``aux_value_net`` on the policy network, read in
    the auxiliary phase only. ``value_net`` stays the true value function, for advantages and bootstrapping.

    Arguments that are not listed here are those of SB3's ``ActorCriticPolicy``.

    :param observation_space: Observation space
    :param action_space: Action space
    :param lr_schedule: Learning rate schedule (could be constant)
    :param architecture: ``"dual"``: two networks (the paper's default); ``"detached"``: one network, the value gradient
        stops at its last shared layer in the policy phase (the paper's single-network variant); ``"shared"``: one network,
        nothing detached
    :param detach_value_in_aux_phase: with ``"detached"`` only. False: the auxiliary phase lets the true value function's
        gradient through, as the paper says; True: it stays stopped, as in the authors' code
    :param net_arch: Layers after the features extractor. With one network they are shared, so a list, or a dict with the
        same layers for ``pi`` and ``vf``. Default: none after ``NatureCNN`` or ``ImpalaCNN``, else two of 64 units
    :param ortho_init: SB3's orthogonal initialisation. Default: yes, except with ``ImpalaCNN``, which brings the authors'
    :param features_extractor_class: Features extractor
    :param share_features_extractor: Whether policy and value function share the features extractor. Default: as the
        architecture says. With ``"dual"``, True shares the extractor under two separate trunks, like SB3's PPO
    :param compile_mode: Compile the features extractor with ``torch.compile`` in this mode: "reduce-overhead" (CUDA graphs),
        "max-autotune" or "default". For GPUs: on a CPU it was slower in our measurements. None: do not compile
    :param kwargs: of another base class, for variants
    :raises ArgumentError: (a ``ValueError``) for a combination that contradicts itself
    """

    algorithm: ClassVar[str] = "PPG"  # that knows how to use it
    value_net: ValueHead
    aux_value_net: ValueHead

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool | None = None,
        use_sde: bool = False,
        log_std_init: float = 0.0,
        full_std: bool = True,
        use_expln: bool = False,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] = FlattenExtractor,
        features_extractor_kwargs: dict[str, Any] | None = None,
        share_features_extractor: bool | None = None,
        normalize_images: bool = True,
        optimizer_class: type[th.optim.Optimizer] = th.optim.Adam,
        optimizer_kwargs: dict[str, Any] | None = None,
        architecture: Architecture = "dual",
        detach_value_in_aux_phase: bool = False,
        compile_mode: str | None = None,
        **kwargs: Any,
    ):
        _check_architecture(architecture, detach_value_in_aux_phase, share_features_extractor)
        _check_net_arch(net_arch)
        if squash_output and not use_sde:
            raise ArgumentError("`squash_output`=True cannot work without gSDE: pass `use_sde=True` to the algorithm")
        if share_features_extractor is None:
            # A FlattenExtractor has no weights: dual networks may as well flatten once
            share_features_extractor = architecture != "dual" or features_extractor_class is FlattenExtractor
        if net_arch is None and _makes(features_extractor_class, NatureCNN, ImpalaCNN):
            net_arch = []
        if ortho_init is None:
            ortho_init = not _makes(features_extractor_class, ImpalaCNN)

        self.architecture = architecture
        self.detach_value_in_aux_phase = detach_value_in_aux_phase
        self.compile_mode = compile_mode
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            net_arch,
            activation_fn,
            ortho_init,
            use_sde,
            log_std_init,
            full_std,
            use_expln,
            squash_output,
            features_extractor_class,
            features_extractor_kwargs,
            share_features_extractor,
            normalize_images,
            optimizer_class,
            optimizer_kwargs,
            **kwargs,
        )
        self._check_trunk()

    def make_features_extractor(self) -> BaseFeaturesExtractor:
        extractor = super().make_features_extractor()
        extractor._features_dim = int(extractor.features_dim)  # NumPy's for MultiDiscrete observations, which an LSTM refuses
        return extractor

    def _check_trunk(self) -> None:
        if self.architecture != "dual" and not isinstance(self.mlp_extractor, SharedTrunk):
            raise ArgumentError(
                f"`architecture`={self.architecture!r} cannot work: the `mlp_extractor` is a "
                f"{type(self.mlp_extractor).__name__}; derive it from sb3_ppg.policies.SharedTrunk, or use architecture='dual'"
            )

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            share_features_extractor=self.share_features_extractor,
            architecture=self.architecture,
            detach_value_in_aux_phase=self.detach_value_in_aux_phase,
            compile_mode=self.compile_mode,
        )
        return data

    def _build_mlp_extractor(self) -> None:
        if self.architecture == "dual":
            super()._build_mlp_extractor()
        else:
            self.mlp_extractor = SharedTrunk(
                self.features_dim,
                self._trunk_layers(),
                self.activation_fn,
                detach_value=self.architecture == "detached",
                device=self.device,
            )

    def _trunk_layers(self) -> list[int]:
        """The layers that policy and value function share when there is one network."""
        if isinstance(self.net_arch, dict):
            pi, vf = self.net_arch.get("pi", []), self.net_arch.get("vf", [])
            if pi != vf:
                raise ArgumentError(
                    f"`net_arch`={self.net_arch} has different layers for policy and value function, but "
                    f"`architecture`={self.architecture!r} is one network: pass a list, or use architecture='dual'"
                )
            return pi
        return self.net_arch

    def _build(self, lr_schedule: Schedule) -> None:
        super()._build(lr_schedule)
        initial_value_weights = self.value_net.state_dict()  # as SB3 makes them
        heads = self.make_heads()
        for name, head in heads.items():
            setattr(self, name, head)
        self.value_net.load_state_dict(initial_value_weights, strict=False)
        self._build_action_net()
        self._initialize_heads([head for name, head in heads.items() if name != "value_net"])
        # Convolutions are fastest so, on CPU and GPU; it changes how weights lie in memory, nothing else
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.weight.data = module.weight.data.contiguous(memory_format=th.channels_last)
        if self.compile_mode is not None:
            for extractor in {self.pi_features_extractor, self.vf_features_extractor}:
                extractor.compile(mode=self.compile_mode, dynamic=False)
        # SB3's optimizer does not know the heads
        self.optimizer = self.make_optimizer(lr_schedule(1))

    def make_heads(self) -> dict[str, nn.Module]:
        """
        The heads beside the action net, which are made before the optimizers are. Override it to add others, or to replace
        these by networks that have layers.

        :return: by the names of their attributes, with "value_net", from (B, latent_dim_vf) to (B, 1), and "aux_value_net",
            from (B, latent_dim_pi) to (B, 1)
        """
        return {
            "value_net": ValueHead(self.mlp_extractor.latent_dim_vf),
            "aux_value_net": ValueHead(self.mlp_extractor.latent_dim_pi),
        }

    def _initialize_heads(self, heads: list[nn.Module]) -> None:
        """
        :param heads: that SB3 does not know
        """
        if self.ortho_init:
            for head in heads:
                head.apply(partial(self.init_weights, gain=1))
        elif isinstance(self.features_extractor, ImpalaCNN):
            for head in (self.action_net, self.value_net, *heads):
                if isinstance(head, nn.Linear):
                    init_normed(head, scale=0.1)

    def _build_action_net(self) -> None:
        """Variants replace SB3's."""

    def make_optimizer(self, learning_rate: float, parameters: Iterable[nn.Parameter] | None = None) -> th.optim.Optimizer:
        """
        A new optimizer of ``optimizer_class``, with this policy's options; parameters that a loss does not reach are left
        alone.

        :param learning_rate: at the start
        :param parameters: to optimise. None: all of this policy
        """
        parameters = list(self.parameters() if parameters is None else parameters)
        kwargs = dict(self.optimizer_kwargs)
        # Torch's fused kernel takes parameters and its own moments, which may come from a file, for contiguous ones, and real
        plain = all(parameter.is_contiguous() and parameter.is_floating_point() for parameter in parameters)
        is_free = self.optimizer_class is th.optim.Adam and not kwargs.keys() & {"fused", "foreach", "differentiable"}
        if is_free and plain and self.device.type in ("cpu", "cuda"):
            kwargs["fused"] = True  # not False elsewhere, which would be torch's slowest way
        return self.optimizer_class(parameters, lr=learning_rate, **kwargs)  # type: ignore[call-arg]

    @property
    def value_unit(self) -> float:
        """The unit in which both value heads work, in the units of the (normalised) return: one, until it is changed."""
        return float(self.value_net.std) if isinstance(self.value_net, ValueHead) else 1.0

    def parameters_to_vector(self) -> np.ndarray:
        """
        All parameters in one array. (SB3's way needs contiguous ones.)

        :return: shape (n_parameters,)
        """
        return th.cat([parameter.detach().reshape(-1) for parameter in self.parameters()]).cpu().numpy()

    def predict_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        The true value function V(s). No gradient passes a detached trunk.

        :param obs: Observation
        :return: shape (B, 1)
        """
        with th.set_grad_enabled(th.is_grad_enabled() and self.architecture != "detached"):
            latent_vf = self.mlp_extractor.forward_critic(self._value_features(obs))
        return self.value_net(latent_vf)

    # What objectives evaluate. The arguments are those that the algorithm's ``network_inputs`` gives, for each policy its own

    def evaluate_policy(self, obs: PyTorchObs) -> tuple[Distribution, th.Tensor]:
        """
        The policy alone. Its network is run once.

        :param obs: Observation
        :return: π(.|s); what its heads read, shape (B, latent_dim_pi)
        """
        latent_pi = self.evaluate_latent(obs)
        return self._get_action_dist_from_latent(latent_pi), latent_pi

    def evaluate_latent(self, obs: PyTorchObs) -> th.Tensor:
        """
        :param obs: Observation
        :return: what the policy's heads read, shape (B, latent_dim_pi)
        """
        return self.mlp_extractor.forward_actor(self._policy_features(obs))

    def evaluate_values(self, obs: PyTorchObs) -> th.Tensor:
        """
        The true value function alone, as in the policy phase. Its network is run once.

        :param obs: Observation
        :return: V(s), shape (B,)
        """
        return self.predict_values(obs).flatten()

    def evaluate_auxiliary(self, obs: PyTorchObs) -> AuxiliaryEvaluation:
        """
        What the auxiliary phase trains. Each network is run once.

        :param obs: Observation
        :return: π(.|s), and both value functions
        """
        pi_features = self._policy_features(obs)
        latent_pi = self.mlp_extractor.forward_actor(pi_features)
        if self.architecture == "dual":
            vf_features = pi_features if self.share_features_extractor else self._value_features(obs)
            latent_vf = self.mlp_extractor.forward_critic(vf_features)
        else:
            latent_vf = latent_pi.detach() if self.detach_value_in_aux_phase else latent_pi
        return self._evaluate_heads(latent_pi, latent_vf)

    def _evaluate_heads(self, latent_pi: th.Tensor, latent_vf: th.Tensor) -> AuxiliaryEvaluation:
        distribution = self._get_action_dist_from_latent(latent_pi)
        values, aux_values = self.value_net(latent_vf).flatten(), self.aux_value_net(latent_pi).flatten()
        return AuxiliaryEvaluation(distribution, aux_values, values, latent_pi)

    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        """As in SB3, but in an object of its own: a thread that predicts would change the one of a training."""
        distribution = copy.copy(self.action_dist)
        if isinstance(distribution, StateDependentNoiseDistribution):
            return distribution.proba_distribution(self.action_net(latent_pi), self.log_std, latent_pi)
        if isinstance(distribution, DiagGaussianDistribution):
            return distribution.proba_distribution(self.action_net(latent_pi), self.log_std)
        return distribution.proba_distribution(self.action_net(latent_pi))

    def _policy_features(self, obs: PyTorchObs) -> th.Tensor:
        return super(ActorCriticPolicy, self).extract_features(obs, self.pi_features_extractor)

    def _value_features(self, obs: PyTorchObs) -> th.Tensor:
        return super(ActorCriticPolicy, self).extract_features(obs, self.vf_features_extractor)


class PhasicActorCriticCnnPolicy(PhasicActorCriticPolicy):
    """``PhasicActorCriticPolicy`` for images, by default through SB3's ``NatureCNN``; the paper's is ``ImpalaCNN``."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("features_extractor_class", NatureCNN)
        super().__init__(*args, **kwargs)


class MultiInputPhasicActorCriticPolicy(PhasicActorCriticPolicy):
    """``PhasicActorCriticPolicy`` for dictionaries of observations, by default through SB3's ``CombinedExtractor``."""

    def __init__(self, *args: Any, **kwargs: Any):
        kwargs.setdefault("features_extractor_class", CombinedExtractor)
        super().__init__(*args, **kwargs)


def _makes(features_extractor_class: Any, *classes: type) -> bool:
    """Whether it is one of these classes; any callable may be given for a class."""
    return isinstance(features_extractor_class, type) and issubclass(features_extractor_class, classes)


def _check_architecture(architecture: Any, detach_value_in_aux_phase: Any, share_features_extractor: Any) -> None:
    if architecture not in ARCHITECTURES:
        raise ArgumentError(f"`architecture`={architecture!r} is unknown: use one of {', '.join(ARCHITECTURES)}")
    if not isinstance(detach_value_in_aux_phase, bool):
        raise ArgumentError(f"`detach_value_in_aux_phase`={detach_value_in_aux_phase!r} cannot work: use True or False")
    if share_features_extractor not in (None, True, False):
        raise ArgumentError(f"`share_features_extractor`={share_features_extractor!r} cannot work: use True, False or None")
    if detach_value_in_aux_phase and architecture != "detached":
        raise ArgumentError(
            f"`detach_value_in_aux_phase`=True has no meaning with `architecture`={architecture!r}: "
            "use architecture='detached' or leave it False"
        )
    if share_features_extractor is False and architecture != "dual":
        raise ArgumentError(
            f"`share_features_extractor`=False contradicts `architecture`={architecture!r}, which is one network: "
            "use architecture='dual' or leave it out"
        )


def _check_net_arch(net_arch: Any) -> None:
    if net_arch is None or (isinstance(net_arch, list) and net_arch and isinstance(net_arch[0], dict)):
        return  # the latter is an old form of SB3, which warns about it
    branches = [net_arch]
    if isinstance(net_arch, dict):
        branches = list(net_arch.values())
        if not net_arch.keys() <= {"pi", "vf"}:
            raise ArgumentError(f"`net_arch`={net_arch} cannot work: its keys are 'pi' and 'vf'")
    for branch in branches:
        if not isinstance(branch, (list, tuple)) or not all(map(is_count, branch)):
            raise ArgumentError(f"`net_arch`={net_arch} cannot work: use lists of numbers of units, each at least 1")


MlpPolicy = PhasicActorCriticPolicy
CnnPolicy = PhasicActorCriticCnnPolicy
MultiInputPolicy = MultiInputPhasicActorCriticPolicy
