"""The phasic actor-critic policies: SB3's, with an auxiliary value head on the policy network."""

import copy
import inspect
import math
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.distributions import (
    DiagGaussianDistribution,
    Distribution,
    StateDependentNoiseDistribution,
    make_proba_distribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.preprocessing import is_image_space, maybe_transpose, preprocess_obs
from stable_baselines3.common.torch_layers import (
    BaseFeaturesExtractor,
    CombinedExtractor,
    FlattenExtractor,
    MlpExtractor,
    NatureCNN,
)
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import is_vectorized_observation
from torch import nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from sb3_ppg.actions import (
    NESTED,
    Actions,
    NestedDistribution,
    SquashedGaussianDistribution,
    actions_class_of,
    flat_space,
    with_integers,
    with_python_integers,
)
from sb3_ppg.arguments import RULES, check_value, check_values, choice
from sb3_ppg.arrays import map_arrays
from sb3_ppg.errors import ArgumentError, NonFiniteActionError
from sb3_ppg.policies.extractors import ImpalaCNN, SharedTrunk, how_to_convolve, init_normed
from sb3_ppg.policies.heads import ValueHead, VectorValueHead, lacks_for_units
from sb3_ppg.policies.numpy_actor import NumpyActor

Architecture = Literal["dual", "detached", "shared"]
MixedPrecision = Literal["bf16"]
TORCH_DISTRIBUTION_ATTRIBUTES = {"distribution", "distributions"}  # torch's objects in those of SB3 and sb3-contrib
DERIVED_METHODS = ("evaluate_actions", "get_distribution", "predict_values")  # from `evaluate`
ALL_FIELDS = ("distribution", "latent_pi", "latent_vf")  # fields of `Evaluation` that need the networks


class Evaluation(NamedTuple):
    """
    The result of one pass through a policy's networks. Fields that the caller does not read may be None.

    :param distribution: π(.|s)
    :param latent_pi: features that the heads of the policy's network read, (B, latent_dim_pi)
    :param latent_vf: features that the true value head reads, (B, latent_dim_vf)
    :param lstm_states: states after the last step of each sequence, sb3-contrib's ``RNNStates`` of tensors, (n_layers, number
        of sequences, hidden size), of recurrent policies that are asked for them
    """

    distribution: Distribution = None  # type: ignore[assignment]
    latent_pi: th.Tensor = None  # type: ignore[assignment]
    latent_vf: th.Tensor = None  # type: ignore[assignment]
    lstm_states: Any = None


# `input_keys` of this package's policies: those of others are known to their own `predict` alone
KNOWN_INPUTS = ((), ("action_masks",), ("lstm_states", "episode_starts"))


class PhasicActorCriticPolicy(ActorCriticPolicy):
    """
    SB3's actor-critic policy with an auxiliary value head, ``aux_value_net``, on the policy network. Only the auxiliary phase
    uses this head. ``value_net`` is the true value function, for advantages and bootstrapping.

    ``evaluate`` runs the networks; all other methods use its result. A class that overrides ``evaluate_actions``,
    ``get_distribution`` or ``predict_values``, but not ``evaluate``, is refused, because the losses would ignore the override.
    An overridden ``forward`` only acts in rollouts, and is refused there if its log π(a|s) differs from that of ``evaluate``.

    Arguments that are not listed here are those of SB3's ``ActorCriticPolicy``.

    :param architecture: ``"dual"``: two networks (the paper's default); ``"detached"``: one network, the value gradient
        stops at its last shared layer in the policy phase (the paper's single-network variant); ``"shared"``: one network,
        nothing detached. Default: "detached" for ``CnnPolicy``, unless ``share_features_extractor`` is False or ``net_arch``
        has different layers for policy and value function, else "dual"
    :param detach_value_in_aux_phase: for ``"detached"`` only. False: the auxiliary phase lets the true value function's
        gradient through, as the paper says; True: it stays stopped, as in the authors' code
    :param net_arch: Layers after the features extractor. With one network they are shared: a list, or a dict with the
        same layers for ``pi`` and ``vf``. Default: none after ``NatureCNN`` or ``ImpalaCNN``, else two of 64 units
    :param ortho_init: SB3's orthogonal initialization. Default: yes, except with ``ImpalaCNN``, which has the authors'
    :param features_extractor_class: Features extractor. Default: ``FlattenExtractor``, for images ``NatureCNN``, for
        dictionaries ``CombinedExtractor``
    :param share_features_extractor: Whether policy and value function share the features extractor. Default: determined by the
        architecture. True with ``architecture="dual"`` shares the extractor under two separate trunks, like SB3's PPO
    :param distribution_class: Class of the action distribution, like SB3's and known to ``sb3_ppg.actions.register``; it is
        constructed with the action space. Default: SB3's distribution for the action space
    :param n_reward_components: K, the number of values of each value head for vector rewards; set by the algorithm. None:
        scalar rewards
    :raises ArgumentError: (a ``ValueError``) for arguments that contradict each other
    """

    algorithm: ClassVar[str] = "PPG"  # the algorithm that can train it
    default_architecture: ClassVar[Architecture] = "dual"
    default_extractor: ClassVar[type[BaseFeaturesExtractor]] = FlattenExtractor
    input_keys: ClassVar[tuple[str, ...]] = ()  # arrays that `evaluate` takes after the observations, in this order
    # Those of which a sequence of samples has only the value before its first step. Without any, each sample stands alone
    state_keys: ClassVar[tuple[str, ...]] = ()
    trunk_class: ClassVar[type[MlpExtractor]] = SharedTrunk  # base class of ``mlp_extractor`` in one network
    mixed_precision: MixedPrecision | None = None
    temperature: Any = 1.0  # temperature of the action distribution; only `Player` sets it, in a copy
    value_net: ValueHead
    aux_value_net: ValueHead
    actions: Actions
    preprocessed_space: spaces.Space  # of observations
    scaled_images: set[str]  # keys of the images that are divided by 255; {""} if the whole space is an image
    acted_on: tuple | None = None  # arguments of `evaluate` for the latest step, until `action_dist` has its distribution
    _numpy_actor: NumpyActor | None = None

    def __init__(
        self,
        observation_space: spaces.Space,
        action_space: spaces.Space,
        lr_schedule: Schedule,
        net_arch: list[int] | dict[str, list[int]] | None = None,
        activation_fn: type[nn.Module] = nn.Tanh,
        ortho_init: bool | None = None,
        use_sde: bool = False,
        *,
        squash_output: bool = False,
        features_extractor_class: type[BaseFeaturesExtractor] | None = None,
        share_features_extractor: bool | None = None,
        architecture: Architecture | None = None,
        detach_value_in_aux_phase: bool = False,
        distribution_class: type[Distribution] | None = None,
        n_reward_components: int | None = None,
        **kwargs: Any,
    ):
        _check_overrides(type(self))
        features_extractor_class = features_extractor_class or self.default_extractor
        check_values(**{name: value for name, value in (locals() | kwargs).items() if name in RULES})
        if architecture is None:
            layers = net_arch if isinstance(net_arch, dict) else {}
            is_dual = share_features_extractor is False or layers.get("pi", []) != layers.get("vf", [])
            architecture = "dual" if is_dual else self.default_architecture
        check_value("architecture", architecture, choice(*get_args(Architecture)))
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
        is_nested = isinstance(action_space, NESTED)
        if distribution_class is not None and is_nested:
            raise ArgumentError(
                f"`distribution_class`={distribution_class.__name__} cannot work with {action_space}, which has several "
                "distributions; override `make_leaf_distribution` of the policy"
            )
        if share_features_extractor is None:
            # A FlattenExtractor has no weights, so dual networks flatten once
            share_features_extractor = architecture != "dual" or features_extractor_class is FlattenExtractor
        extractor_class = features_extractor_class if isinstance(features_extractor_class, type) else object  # any callable
        if net_arch is None and issubclass(extractor_class, (NatureCNN, ImpalaCNN)):
            net_arch = []
        if ortho_init is None:
            ortho_init = not issubclass(extractor_class, ImpalaCNN)

        self.architecture = architecture
        self.detach_value_in_aux_phase = detach_value_in_aux_phase
        self.distribution_class = distribution_class
        self._given_action_space = action_space
        self.squash_leaves = squash_output and is_nested
        self.n_reward_components = n_reward_components
        self.preprocessed_space = with_integers(observation_space)
        by_name = observation_space.spaces if isinstance(observation_space, spaces.Dict) else {"": observation_space}
        scales = kwargs.get("normalize_images", True)
        self.scaled_images = {name for name, space in by_name.items() if scales and is_image_space(space)}
        super().__init__(
            observation_space,
            flat_space(action_space),
            lr_schedule,
            net_arch,
            activation_fn,
            ortho_init,
            use_sde,
            squash_output=squash_output and not self.squash_leaves,
            features_extractor_class=features_extractor_class,
            share_features_extractor=share_features_extractor,
            **kwargs,
        )
        if architecture != "dual" and not isinstance(self.mlp_extractor, self.trunk_class):
            raise ArgumentError(
                f"`architecture`={architecture!r} cannot work: the `mlp_extractor` is a "
                f"{type(self.mlp_extractor).__name__}; derive it from sb3_ppg.policies.SharedTrunk, or use architecture='dual'"
            )

    @override
    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        data.update(
            share_features_extractor=self.share_features_extractor,
            architecture=self.architecture,
            detach_value_in_aux_phase=self.detach_value_in_aux_phase,
            distribution_class=self.distribution_class,
            n_reward_components=self.n_reward_components,
        )
        if self.squash_leaves:
            data["squash_output"] = True
        return data

    @override
    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """
        Load weights as ``Module`` does. Weights without buffers, as from ``named_parameters``, keep this policy's value units.
        PPO's value head predicts in the unit of the return. A policy with one features extractor refuses the weights of two.
        """
        for name in ("value_net", "aux_value_net") if "aux_value_net.weight" in state_dict else ():
            units = {f"{name}.{unit}": value for unit, value in getattr(self, name).named_buffers() if unit in ("mean", "std")}
            state_dict = {**units, **state_dict} if units and not units.keys() & state_dict.keys() else state_dict
        for name, weight in state_dict.items() if self.pi_features_extractor is self.vf_features_extractor else ():
            other = state_dict.get(f"vf_{name[3:]}") if name.startswith("pi_features_extractor.") else None
            is_known = isinstance(weight, th.Tensor) and not is_lazy(weight)
            if is_known and other is not None and not weight.allclose(other, 0, 0, equal_nan=True):
                raise ArgumentError(
                    "the weights are those of two features extractors, of which this policy would keep the second: make it "
                    "with policy_kwargs=dict(architecture='dual')"
                )
        return super().load_state_dict(state_dict, *args, **kwargs)

    @override
    def _build_mlp_extractor(self) -> None:
        if self.architecture == "dual":
            super()._build_mlp_extractor()
        else:
            by_name = self.net_arch if isinstance(self.net_arch, dict) else dict(pi=self.net_arch, vf=self.net_arch)
            trunk = by_name.get("pi", [])
            if trunk != by_name.get("vf", []):
                raise ArgumentError(
                    f"`net_arch`={self.net_arch} has different layers for policy and value function, but "
                    f"`architecture`={self.architecture!r} is one network: pass a list, or use architecture='dual'"
                )
            self.mlp_extractor = SharedTrunk(self.features_dim, trunk, self.activation_fn, self.device)

    @override
    def _build(self, lr_schedule: Schedule) -> None:
        with th.no_grad():  # in SB3, gSDE's noise has a graph, so that it could not be copied
            super()._build(lr_schedule)
        self.action_space = vars(self).pop("_given_action_space")  # SB3 has built the networks for the flat space
        value_net = self.value_net  # SB3's; the true value head gets its weights
        with th.random.fork_rng(devices=[]):  # so that the first actions equal those of SB3's policy with the same seed
            heads = self.make_heads()
            for name, head in heads.items():
                setattr(self, name, head)
            self._build_action_net()
            self._initialize_heads(heads, value_net)
        # Convolutions are fastest in this memory format, on CPUs and GPUs
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not is_lazy(module.weight):
                module.weight.data = module.weight.data.contiguous(memory_format=th.channels_last)
        is_free = not self.optimizer_kwargs.keys() & {"fused", "foreach", "differentiable"}
        if self.optimizer_class is th.optim.Adam and is_free and self.device.type in ("cpu", "cuda"):
            self.optimizer.param_groups[0]["fused"] = True  # elsewhere unset: with False, torch would take its slowest kernel
        # SB3's optimizer does not know the heads
        self.optimizer = self.make_optimizer(lr_schedule(1), self.parameters())

    @override
    def make_features_extractor(self) -> BaseFeaturesExtractor:
        is_dict = isinstance(self.observation_space, spaces.Dict)
        for_dicts = "use 'MultiInputPolicy' (with LSTMs 'MultiInputLstmPolicy')"
        for_arrays = "use 'MlpPolicy', or 'CnnPolicy' for images (with LSTMs 'MlpLstmPolicy' or 'CnnLstmPolicy')"
        if self.features_extractor_class is (FlattenExtractor if is_dict else CombinedExtractor):
            remedy = for_dicts if is_dict else for_arrays
            if self.features_extractor_class is not self.default_extractor:
                remedy += f", without `features_extractor_class`={self.features_extractor_class.__name__}"
            raise ArgumentError(f"`policy`={type(self).__name__} cannot work with {self.observation_space}: {remedy}")
        if isinstance(self.observation_space, spaces.Dict) and self.features_extractor_class is CombinedExtractor:
            shapes = [part.shape for part in self.observation_space.values() if isinstance(part, spaces.Box)]
            if () in shapes or not self.observation_space.spaces:
                remedy = "give numbers an axis, shape (1,), and a Dict at least one part"
                raise ArgumentError(f"{self.observation_space} observations are not supported: {remedy}")
        try:
            extractor = super().make_features_extractor()
        except (AssertionError, RuntimeError) as error:
            if self.features_extractor_class not in (NatureCNN, CombinedExtractor):
                raise
            parts = [*getattr(self.observation_space, "spaces", {"": self.observation_space}).values()]
            remedy = how_to_convolve(next(filter(is_image_space, parts), parts[0]))
            if is_dict and self.features_extractor_class is NatureCNN:
                remedy = for_dicts
            name = type(self).__name__
            raise ArgumentError(f"`policy`={name} cannot work with {self.observation_space}: {remedy}") from error
        if not hasattr(extractor, "features_dim"):
            remedy = "derive it from stable_baselines3.common.torch_layers.BaseFeaturesExtractor"
            raise ArgumentError(f"`features_extractor_class`={self.features_extractor_class} cannot work: {remedy}")
        extractor._features_dim = int(extractor.features_dim)  # NumPy's for MultiDiscrete observations, which an LSTM refuses
        # Not inherited: a subclass may process images differently
        scales_images = vars(type(extractor)).get("scales_images", False)
        extractor.takes_uint8 = scales_images and self.normalize_images and is_image_space(self.observation_space)  # type: ignore[assignment]
        return extractor

    def make_heads(self) -> dict[str, nn.Module]:
        """
        Make the heads other than the action net. Override it to add or replace heads. A value head may be any module, and may
        have its own loss, see ``head_loss``.

        :return: heads by attribute name. "value_net" maps (B, latent_dim_vf) to (B, 1), "aux_value_net" maps (B,
            latent_dim_pi) to (B, 1); for vector rewards to (B, K)
        """
        n_components = self.n_reward_components
        head: Any = ValueHead if n_components is None else partial(VectorValueHead, n_components=n_components)
        return {"value_net": head(self.mlp_extractor.latent_dim_vf), "aux_value_net": head(self.mlp_extractor.latent_dim_pi)}

    def _initialize_heads(self, heads: dict[str, nn.Module], value_net: nn.Linear) -> None:
        """Initialize heads like SB3's value head; the true value head gets that head's weights if they fit."""
        rest = list(heads.values())
        true_head = heads["value_net"]
        if isinstance(true_head, nn.Linear) and true_head.weight.shape == value_net.weight.shape:
            true_head.load_state_dict(value_net.state_dict(), strict=False)
            rest = [*true_head.children(), *(head for head in rest if head is not true_head)]
        if self.ortho_init:
            for module in rest:
                module.apply(partial(self.init_weights, gain=1))
        elif isinstance(self.features_extractor, ImpalaCNN):
            for head in (self.action_net, *heads.values()):
                if isinstance(head, nn.Linear):
                    init_normed(head, scale=0.1)

    def make_action_distribution(self) -> Distribution:
        """Make the distribution over the action space, without parameters; that over a nested space is made of leaves'."""
        if isinstance(self.action_space, NESTED):
            return NestedDistribution(self.action_space, self.make_leaf_distribution, self.log_std_init)
        return self.action_dist if self.distribution_class is None else self.distribution_class(self.action_space)  # type: ignore[call-arg]

    def make_leaf_distribution(self, space: spaces.Space) -> Distribution:
        """Make the distribution over a leaf of a nested action space, which has one dimension if it is discrete."""
        if self.squash_leaves and isinstance(space, spaces.Box):
            return SquashedGaussianDistribution(math.prod(space.shape))
        return make_proba_distribution(space)

    def _build_action_net(self) -> None:
        """Replace SB3's action net if the distribution is not SB3's."""
        distribution = with_python_integers(self.make_action_distribution())
        if distribution is not self.action_dist:
            if isinstance(self.action_dist, DiagGaussianDistribution):
                del self.log_std
            self.action_dist = distribution
            make_net: Any = partial(distribution.proba_distribution_net, latent_dim=self.mlp_extractor.latent_dim_pi)
            if isinstance(distribution, DiagGaussianDistribution):
                self.action_net, self.log_std = make_net(log_std_init=self.log_std_init)
            else:
                self.action_net = make_net()
            if self.ortho_init:
                self.action_net.apply(partial(self.init_weights, gain=0.01))
        if isinstance(distribution, NestedDistribution):
            self.actions = distribution.actions
        else:
            self.actions = actions_class_of(type(distribution))(self.action_space)
            self.actions.bounded |= bool(self._squash_output)
        self.actions.check_conversion(distribution)

    @property
    @override
    def squash_output(self) -> bool:
        """True if the distribution's actions lie in [-1, 1], and are scaled to the action space's bounds."""
        return self.actions.bounded

    def make_optimizer(self, learning_rate: float, parameters: Iterable[nn.Parameter]) -> th.optim.Optimizer:
        """
        Make the optimizer for one kind of epochs, with the class, groups and options of ``optimizer``, which a policy may have
        set itself. Override it to make all optimizers in another way.

        :param learning_rate: initial learning rate
        :param parameters: parameters to optimize; those that are in no group of ``optimizer`` join its first one
        """
        cls: Any = type(self.optimizer)
        parameters, known = list(parameters), inspect.signature(cls).parameters
        groups: list[dict[str, Any]] = [
            {name: value for name, value in group.items() if name not in ("lr", "initial_lr", "param_names")} | {"params": []}
            for group in self.optimizer.param_groups
        ]
        places = {id(weight): place for place, group in enumerate(self.optimizer.param_groups) for weight in group["params"]}
        for weight in parameters:
            groups[places.get(id(weight), 0)]["params"].append(weight)
        # Torch's fused kernel assumes real numbers, and contiguous parameters and moments (which may come from a file)
        plain = all(not is_lazy(weight) and weight.is_contiguous() and weight.is_floating_point() for weight in parameters)
        for group in groups:
            if group.get("fused") and not plain:
                group["fused"] = None
        options = {name: value for name, value in self.optimizer.defaults.items() if name in known and name != "lr"}
        options = self.optimizer_kwargs if cls is self.optimizer_class else options
        return cls([group for group in groups if group["params"]], lr=learning_rate, **options)

    @property
    def value_unit(self) -> float:
        """Current unit of both value heads, in the units of the (normalized) return; initially one."""
        return 1.0 if lacks_for_units(self.value_net) else float(self.value_net.std.mean())

    @override
    def parameters_to_vector(self) -> np.ndarray:
        """Return all parameters in one array, (n_parameters,). (SB3's method needs contiguous parameters.)"""
        return th.cat([parameter.detach().reshape(-1) for parameter in self.parameters()]).cpu().numpy()

    # ---- evaluation ----

    def evaluate(self, obs: PyTorchObs, *, reads: Collection[str] = ALL_FIELDS, auxiliary: bool = False) -> Evaluation:
        """
        Run the networks, each at most once. All other methods use the result, so override this one to change all. Variants
        take further arguments, which ``network_inputs`` returns.

        :param obs: Observation
        :param reads: fields of ``Evaluation`` that the caller reads. Networks that none of these fields needs are not run
        :param auxiliary: whether this is for the auxiliary phase, in which the gradient of a detached value function may reach
            the shared network
        :return: at least these fields
        """
        detach = self.detach_value_in_aux_phase if auxiliary else self.architecture == "detached"
        unread: Any = None
        distribution = latent_pi = latent_vf = unread
        if "distribution" in reads or "latent_pi" in reads:
            pi_features = self.extract_features(obs, self.pi_features_extractor)
            latent_pi = self.mlp_extractor.forward_actor(pi_features)
        if "latent_vf" in reads:
            if self.architecture != "dual" and latent_pi is not None:
                latent_vf = latent_pi.detach() if detach else latent_pi
            else:
                shared = latent_pi is not None and self.share_features_extractor
                with th.set_grad_enabled(th.is_grad_enabled() and not detach):
                    features = pi_features if shared else self.extract_features(obs, self.vf_features_extractor)
                    latent_vf = self.mlp_extractor.forward_critic(features)
        if "distribution" in reads:
            distribution = self._get_action_dist_from_latent(latent_pi)
        return Evaluation(distribution, latent_pi, latent_vf)

    @override
    def extract_features(self, obs: PyTorchObs, features_extractor: BaseFeaturesExtractor | None = None) -> Any:
        """
        Extract features, in bfloat16 with ``mixed_precision="bf16"``; parameters and the result are float32.

        :param obs: Observation
        :param features_extractor: extractor of the policy or of the value function; one whose class sets ``scales_images``
            gets images as uint8. None: both
        :return: (B, features_dim); for both, as in SB3, a pair if policy and value function do not share an extractor
        """
        if features_extractor is None:
            features = self.extract_features(obs, self.pi_features_extractor)
            shared = self.share_features_extractor
            return features if shared else (features, self.extract_features(obs, self.vf_features_extractor))
        takes_uint8 = getattr(features_extractor, "takes_uint8", False)
        if not (takes_uint8 and isinstance(obs, th.Tensor) and obs.dtype == th.uint8):
            obs = preprocess(obs, self.preprocessed_space, normalize_images=False)
            if isinstance(obs, dict):
                obs = {key: part / 255 if key in self.scaled_images else part for key, part in obs.items()}
            elif self.scaled_images:
                obs = obs / 255
        if self.mixed_precision == "bf16":
            with th.autocast(self.device.type, th.bfloat16):
                return features_extractor(obs).float()
        return features_extractor(obs)

    @override
    def _get_action_dist_from_latent(self, latent_pi: th.Tensor) -> Distribution:
        """
        Return the distribution as a new object, unlike SB3, so that a thread that predicts does not change that of a thread
        that trains. As in SB3, ``action_dist`` has the latest distribution.
        """
        distribution = copy.copy(self._action_dist)
        parameters = [self.action_net(latent_pi)]
        if isinstance(distribution, (StateDependentNoiseDistribution, DiagGaussianDistribution)):
            parameters.append(self.log_std)
        if isinstance(distribution, StateDependentNoiseDistribution):
            parameters.append(latent_pi)
        distribution = distribution.proba_distribution(*parameters)
        if self.temperature != 1:
            distribution = self.actions.tempered(distribution, self.temperature)
        if th.compiler.is_compiling():  # compiled code must not store the object
            return distribution
        for name in TORCH_DISTRIBUTION_ATTRIBUTES & vars(distribution).keys():
            setattr(self._action_dist, name, getattr(distribution, name))
        self.acted_on = None
        return distribution

    @property  # type: ignore[explicit-override] # which mypy does not see on properties with a setter
    @override
    def action_dist(self) -> Distribution:
        """SB3's distribution object. Its latest distribution is computed here if a compiled function or NumPy has acted."""
        inputs, self.acted_on = self.acted_on, None
        if inputs is not None:
            with th.no_grad():
                self.evaluate(*inputs, reads=("distribution",))
        return self._action_dist

    @action_dist.setter
    def action_dist(self, distribution: Distribution) -> None:
        self._action_dist = distribution

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a copy or a pickle, without the latest distribution, which has a graph."""
        action_dist = copy.copy(self._action_dist)
        for name in TORCH_DISTRIBUTION_ATTRIBUTES:
            vars(action_dist).pop(name, None)
        return {**vars(self), "_action_dist": action_dist, "acted_on": None, "_numpy_actor": None}

    @override
    def reset_noise(self, n_envs: int = 1) -> None:
        with th.no_grad():  # without a graph
            super().reset_noise(n_envs)

    # ---- derived from `evaluate`; the context is its arguments after the observations ----

    @override
    def forward(
        self, obs: PyTorchObs, deterministic: bool = False, *context: Any, **named: Any
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Return actions, (B, ...); V(s), (B, 1); log π(a|s), (B,). ``context``: further arguments of ``evaluate``."""
        return self._act(self.evaluate(obs, *context, **named), deterministic)

    def _act(self, evaluation: Evaluation, deterministic: bool) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        values = self.value_net(evaluation.latent_vf)
        actions = evaluation.distribution.get_actions(deterministic=deterministic)
        log_prob = evaluation.distribution.log_prob(actions)
        return actions.reshape(-1, *self.actions.shape), values, log_prob

    @override
    def evaluate_actions(
        self, obs: PyTorchObs, actions: th.Tensor, *context: Any, **named: Any
    ) -> tuple[th.Tensor, th.Tensor, th.Tensor | None]:
        """Return V(s), (B, 1); log π(a|s), (B,); H(π(.|s)), (B,), or None where it has no closed form."""
        evaluation = self.evaluate(obs, *context, **named)
        distribution = evaluation.distribution
        return self.value_net(evaluation.latent_vf), distribution.log_prob(actions), distribution.entropy()

    @override
    def get_distribution(self, obs: PyTorchObs, *context: Any, **named: Any) -> Distribution:
        return self.evaluate(obs, *context, **named, reads=("distribution",)).distribution

    @override
    def predict_values(self, obs: PyTorchObs, *context: Any) -> th.Tensor:
        """Return V(s) of the true value function, (B, 1)."""
        return self.value_net(self.evaluate(obs, *context, reads=("latent_vf",)).latent_vf)

    # ---- acting, with a batch of one sample of each environment ----

    def initial_memory(self, n_envs: int) -> dict[str, th.Tensor]:
        """Return what a policy with memory takes to its first step: arrays of names in ``input_keys``, (n_envs, ...)."""
        return {}

    def step_batch(self, observations: PyTorchObs, episode_starts: np.ndarray, inputs: Mapping[str, Any]) -> Any:
        """
        Return a batch for ``act`` and ``next_values``.

        :param observations: (n_envs, ...)
        :param episode_starts: whether they begin an episode, (n_envs,)
        :param inputs: the policy's memory, and other arrays of ``input_keys``. One that is not there is None in the batch
        """
        if not self.input_keys:
            return SimpleNamespace(observations=observations)
        inputs = {"episode_starts": episode_starts.astype(np.float32), **inputs}
        found = [(key, inputs.get(key)) for key in self.input_keys]
        fields = {key: None if array is None else th.as_tensor(array, device=self.device) for key, array in found}
        return SimpleNamespace(observations=observations, **fields)

    def act(self, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        """Return actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,); the memory after the step."""
        observations, *context = self.network_inputs(batch)
        return *self(observations, **dict(zip(self.input_keys, context, strict=True))), {}

    def next_values(self, batch: Any) -> th.Tensor:
        """Return V of the observations after a step, with the memory after it: (n_envs, 1), for vector rewards (n_envs, K)."""
        return self.value_net(self.evaluate_batch(batch, reads=("latent_vf",)).latent_vf)

    def numpy_actor(self) -> NumpyActor | None:
        """Return the policy's current networks in NumPy; None if it has parts of other kinds, and acts through torch."""
        if self._numpy_actor is None or not self._numpy_actor.is_current():
            self._numpy_actor = NumpyActor(self)
        is_used = self._numpy_actor.covers and self.temperature == 1 and not th.is_autocast_enabled("cpu")
        return self._numpy_actor if is_used else None

    # ---- batches of a rollout, or of the auxiliary phase ----

    def network_inputs(self, batch: Any) -> tuple:
        """Return the arguments of ``evaluate``: ``observations`` of a batch, (B, ...), and ``input_keys`` in their order."""
        return (batch.observations, *(getattr(batch, key) for key in self.input_keys))

    def evaluate_batch(self, batch: Any, *, reads: Collection[str] = ALL_FIELDS, auxiliary: bool = False) -> Evaluation:
        """Run the networks on a batch; see ``evaluate`` for the arguments."""
        evaluation = self.evaluate(*self.network_inputs(batch), reads=reads, auxiliary=auxiliary)
        distribution: Any = evaluation.distribution
        if auxiliary and isinstance(distribution, StateDependentNoiseDistribution):
            # SB3 passes no gradient from gSDE's deviations to the features; the KL term needs it, as this phase trains them
            distribution.learn_features = True  # of this object alone
            distribution.proba_distribution(distribution.distribution.mean, self.log_std, evaluation.latent_pi)
        return evaluation

    @override
    def obs_to_tensor(self, observation: Any) -> tuple[PyTorchObs, bool]:
        """Convert an observation to tensors, like SB3's method, which fails for parts of shape (0,)."""
        is_batch: list[bool] = []

        def tensor(space: spaces.Space, values: Any) -> th.Tensor:
            array = np.array(values)
            if is_image_space(space):
                array = maybe_transpose(array, space)
            is_batch.append(is_vectorized_observation(array, space))
            return th.as_tensor(array if is_batch[-1] else array[None], device=self.device)

        parts = getattr(self.observation_space, "spaces", self.observation_space)
        return map_arrays(tensor, parts, observation), any(is_batch)

    @override
    def _predict(self, observation: PyTorchObs, deterministic: bool = False, **context: Any) -> th.Tensor:
        return self._chosen(self.get_distribution(observation, **context), deterministic)

    def _chosen(self, distribution: Distribution, deterministic: bool) -> th.Tensor:
        """Return the most likely actions, or samples. With gSDE, each sample has its own noise instead of the rollout's."""
        if deterministic or not isinstance(distribution, StateDependentNoiseDistribution):
            return distribution.get_actions(deterministic=deterministic)
        actions = distribution.distribution.sample()
        return actions if distribution.bijector is None else distribution.bijector.forward(actions)

    @override
    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        **context: Any,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """
        Choose actions, with SB3's arguments, of which ``state`` and ``episode_start`` are for policies with memory.

        :param context: further arguments of ``evaluate``
        :return: actions as environments take them, and the state for the next call
        """
        if isinstance(observation, tuple) and len(observation) == 2 and isinstance(observation[1], dict):
            raise ValueError(
                "`predict` got a tuple. You are probably mixing Gym API with SB3 VecEnv API: `obs, info = env.reset()` (Gym), "
                "`obs = vec_env.reset()` (VecEnv)"
            )
        tensors, vectorized_env = self.obs_to_tensor(observation)
        is_known = context.keys() <= {*self.input_keys}  # `evaluate` refuses what it does not take
        actor = self.numpy_actor() if is_known else None
        chosen = None if actor is None else actor.choose(np.asarray(tensors), deterministic, **context)
        if chosen is None or self.training:
            self.set_training_mode(False)
        if chosen is not None:
            self.acted_on = (tensors, *context.values())
            return self._taken(th.from_numpy(chosen), vectorized_env), state
        with th.no_grad():
            actions, state = self._predict_next(tensors, state, episode_start, deterministic, **context)
        return self._taken(actions, vectorized_env), state

    def _predict_next(
        self, obs: PyTorchObs, state: Any, starts: np.ndarray | None, deterministic: bool = False, **context: Any
    ) -> tuple[th.Tensor, Any]:
        return self._predict(obs, deterministic, **context), state

    def _taken(self, actions: th.Tensor, vectorized_env: bool) -> Any:
        """Return samples of the distribution, (B, ...), as environments take them: an array, for nested spaces a list."""
        if not np.isfinite(actions.cpu().numpy()).all():  # the bounds of the action space would hide it
            raise NonFiniteActionError(
                "The policy gives actions that are NaN or infinite: look for such numbers in the observation and the weights"
            )
        taken = self.actions.for_step(actions.reshape(-1, *self.actions.shape))
        if vectorized_env:
            return taken
        return taken[0] if isinstance(taken, list) else taken.squeeze(axis=0)


class PhasicActorCriticCnnPolicy(PhasicActorCriticPolicy):
    """
    ``PhasicActorCriticPolicy`` for images, by default with SB3's ``NatureCNN`` and one network, because two take 1.6
    to 1.9 times the time; the paper uses ``ImpalaCNN`` and two.
    """

    default_architecture, default_extractor = "detached", NatureCNN


class MultiInputPhasicActorCriticPolicy(PhasicActorCriticPolicy):
    """``PhasicActorCriticPolicy`` for dictionaries of observations, by default with SB3's ``CombinedExtractor``."""

    default_extractor = CombinedExtractor


def preprocess(obs: Any, space: Any, normalize_images: bool) -> Any:
    """Preprocess as SB3's ``preprocess_obs`` does, but count Discrete and MultiDiscrete values from their ``start``."""
    if isinstance(obs, dict):
        return {key: preprocess(part, space[key], normalize_images) for key, part in obs.items()}
    start = getattr(space, "start", 0)
    return preprocess_obs(obs if start == 0 else obs - th.as_tensor(start, device=obs.device), space, normalize_images)


def _check_overrides(cls: type) -> None:
    def depth(method: str) -> int:
        return next(number for number, base in enumerate(cls.__mro__) if method in vars(base))

    if overridden := [method for method in DERIVED_METHODS if depth(method) < depth("evaluate")]:
        raise ArgumentError(
            f"`policy`={cls.__name__} cannot work: it overrides {' and '.join(overridden)}, which the losses do not call; "
            "override `evaluate`, whose result they use, see docs/guides/own_networks.md"
        )


MlpPolicy = PhasicActorCriticPolicy
CnnPolicy = PhasicActorCriticCnnPolicy
MultiInputPolicy = MultiInputPhasicActorCriticPolicy
