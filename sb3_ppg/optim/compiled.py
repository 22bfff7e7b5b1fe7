"""
Optimizer steps that torch compiles: losses, gradient, clipping and Adam in one function. A network of a few small layers
spends most of an update in Python and in the autograd engine; compiling saves that time.
"""

import inspect
import math
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch as th
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from torch.optim.adam import adam

from sb3_ppg.buffers.nested import map_arrays, n_samples
from sb3_ppg.distributed.collectives import n_processes
from sb3_ppg.errors import warn
from sb3_ppg.losses import Losses
from sb3_ppg.optim.micro_batches import has_convolutions
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.protocols import PhasicModel

# Optimizer steps in a training from which on "auto" compiles: docs/guides/speed.md has the measurements
WORTHWHILE_STEPS = 100_000
# The most sizes of minibatches that are compiled: those of an epoch that is spread evenly differ by one sequence
MAX_SIZES = 2
# Names of the state and the options of torch's Adam that its function takes
ADAM_STATE = ("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
ADAM_OPTIONS = ("amsgrad", "weight_decay", "eps", "maximize", "decoupled_weight_decay")
# Where torch keeps what users have registered with modules, parameters and optimizers
HOOKS = (
    *("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_post_accumulate_grad_hooks"),
    *("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"),
)


class AdamGroup(NamedTuple):
    """
    A parameter group of Adam.

    :param parameters: the parameters that the losses reach
    :param state: for each of them, as the optimizer keeps it: means of its gradients, means of their squares, and the largest
        of the latter, an empty list without ``amsgrad``
    :param steps: for each of them the number of steps so far, ()
    :param learning_rate: ()
    :param options: further arguments of ``torch.optim.adam.adam``
    """

    parameters: list[nn.Parameter]
    state: Any = ()
    steps: Sequence[th.Tensor] = ()
    learning_rate: th.Tensor | None = None
    options: Mapping[str, Any] | None = None


class CompiledResult(NamedTuple):
    """
    Result of a compiled function for one minibatch.

    :param names: names of the losses
    :param values: their values, (n_losses,)
    :param log_ratio: see ``Losses``
    :param gradients: gradients of the parameters that the losses reach; clipped if the step was taken
    :param norm: L2 norm of the gradient before it was clipped, (); None if the step was not taken
    """

    names: list[str]
    values: th.Tensor
    log_ratio: th.Tensor
    gradients: tuple[th.Tensor, ...]
    norm: th.Tensor | None = None


def gradient(losses_of: Callable[[Any, Any], Losses], coefficients: Any, minibatch: Any, groups: Any) -> CompiledResult:
    """
    Compute the gradient of a minibatch's loss.

    :param losses_of: returns the losses for coefficients and a minibatch
    :param coefficients: weights of the losses' terms, () each
    :param minibatch: B samples
    :param groups: parameter groups
    """
    losses = losses_of(coefficients, minibatch)
    gradients = th.autograd.grad(losses.total, _parameters(groups))
    return CompiledResult(losses.names, losses.values, losses.log_ratio.detach(), gradients)


def adam_step(
    losses_of: Callable[[Any, Any], Losses], coefficients: Any, minibatch: Any, groups: Any, max_grad_norm: float | None
) -> CompiledResult:
    """
    Take an optimizer step, like ``optim.epoch.compute_gradient`` followed by ``Adam.step``.

    :param losses_of: returns the losses for coefficients and a minibatch
    :param coefficients: weights of the losses' terms, () each
    :param minibatch: B samples
    :param groups: parameter groups, whose parameters and state are changed in place
    :param max_grad_norm: the largest L2 norm; a larger gradient is scaled down to it. None: no clipping
    """
    names, values, log_ratio, gradients, _ = gradient(losses_of, coefficients, minibatch, groups)
    norm = th.stack([part.square().sum() for part in gradients]).sum().sqrt()
    if max_grad_norm is not None:
        scale = th.clamp(max_grad_norm / (norm + 1e-6), max=1.0)
        gradients = tuple(part * scale for part in gradients)
    n_done = 0
    with th.no_grad():
        for parameters, state, steps, learning_rate, options in groups:
            exact_steps = [step.double() for step in steps]  # the uncompiled optimizer corrects its bias in Python's floats
            of_group = list(gradients[n_done : n_done + len(parameters)])
            n_done += len(parameters)
            adam(parameters, of_group, *state, exact_steps, lr=learning_rate, **options)  # type: ignore[call-arg,arg-type]
            for step, exact in zip(steps, exact_steps, strict=True):
                step.copy_(exact)
    return CompiledResult(names, values, log_ratio, gradients, norm)


class CompiledStep:
    """
    Compiled optimizer steps on one kind of losses, or, where something has to happen between gradient and step, compiled
    gradients. They are compiled once for each size of minibatches.

    The first minibatch of each update is left to the caller: it shows which parameters the losses reach, and makes the
    optimizer's state. So are sizes that do not occur twice in a row, like that of a truncated minibatch.

    :param name: "policy", "value" or "auxiliary"
    :param losses_of: returns the losses for coefficients and a minibatch
    :param takes_step: False: the gradient alone
    :param device: device of the networks
    :param verbose: whether to print how long compiling takes
    """

    def __init__(self, name: str, losses_of: Callable[[Any, Any], Losses], takes_step: bool, device: th.device, verbose: bool):
        self.name = name
        self.losses_of = losses_of
        self.takes_step = takes_step
        self.device = device
        self.verbose = verbose
        self.has_failed = False
        mode = "reduce-overhead" if device.type == "cuda" else None  # with CUDA graphs
        isolated: dict[str, Any] = dict(isolate_recompiles=True)  # torch's types do not have it
        self._function = th.compile(adam_step if takes_step else gradient, fullgraph=True, mode=mode, **isolated)
        self._compiled_sizes: set[int] = set()

    def begin_update(
        self,
        networks: Iterable[nn.Module],
        optimizer: th.optim.Optimizer,
        coefficients: Any,
        max_grad_norm: float | None,
    ) -> None:
        """
        :param networks: networks that the losses run
        :param optimizer: optimizer of some of their parameters
        :param coefficients: weights of the losses' terms, a named tuple of numbers and None
        :param max_grad_norm: see ``adam_step``
        """
        first = optimizer.param_groups[0]["params"][0]
        self._optimizer = optimizer
        scalars = (None if one is None else first.new_tensor(one) for one in coefficients)
        self._coefficients = type(coefficients)(*scalars)  # tensors, as torch compiles again for another number
        self._clipping = (max_grad_norm,) if self.takes_step else ()
        self._sizes: set[int] = set()  # of this update's minibatches that are not left to the caller
        self._previous_size: int | None = None
        self._generator_state: th.Tensor | None = None
        if has_hooks(networks, optimizer):
            self._give_up("it would not call the hooks that are registered")

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Surround an epoch, which leaves the gradient of its last step with the parameters, for callbacks that look at it."""
        self._groups: list[AdamGroup] | None = None
        self._latest: CompiledResult | None = None
        self._marked: list[th.Tensor] = []
        with th._dynamo.config.patch(trace_autograd_ops=True, automatic_dynamic_shapes=False):
            yield
        self._set_gradients()
        for tensor in self._marked:
            vars(tensor).pop("_dynamo_static_input_type", None)  # torch.save would store it

    def __call__(self, minibatch: Any) -> CompiledResult | None:
        """
        :param minibatch: named tuple of tensors, or of dictionaries of tensors, of shape (B, ...)
        :return: result; None if the minibatch is left to the caller
        """
        size = n_samples(minibatch[0])
        if self.has_failed or not self._is_for(size):
            self._latest = None
            return None
        start = time.perf_counter()
        is_new = size not in self._compiled_sizes
        if is_new and self.verbose:
            print(f"Compiling the {self.name} update, ", end="", flush=True)
        try:
            result = self._function(self.losses_of, self._coefficients, minibatch, self._groups, *self._clipping)
        except compiler_errors() as error:
            self._give_up(f"torch cannot compile these losses ({first_line(error)})")
            return None
        finally:
            if is_new and self.verbose:
                print(f"{time.perf_counter() - start:.0f} s")
        self._compiled_sizes.add(size)
        if self.device.type == "cuda":  # CUDA graphs write each result to the same place
            result = map_arrays(lambda one: one.clone() if isinstance(one, th.Tensor) else one, result)
        self._latest = result
        if not self.takes_step:
            self._set_gradients()
        return result

    def _is_for(self, size: int) -> bool:
        """
        Return whether a minibatch of so many samples is not left to the caller. This depends on the minibatches of the same
        update alone, so that a resumed training takes the same steps.
        """
        previous, self._previous_size = self._previous_size, size
        if previous is None:
            self._generator_state = self._get_generator_state()
            return False
        if self._generator_state is not None:
            if not th.equal(self._generator_state, self._get_generator_state()):
                self._give_up("they draw random numbers, and compiled ones would be others")
                return False
            self._generator_state = None
        if size == previous and len(self._sizes) < MAX_SIZES:
            self._sizes.add(size)
        if self._groups is None:
            self._groups = _groups(self._optimizer, self.takes_step)
            if self.device.type == "cuda":  # CUDA graphs change in place only what is known to stay where it is
                self._marked = [tensor for group in self._groups for tensor in chain(group.steps, *group.state)]
                for tensor in self._marked:
                    th._dynamo.mark_static_address(tensor)
        return size in self._sizes

    def _get_generator_state(self) -> th.Tensor:
        return th.cuda.get_rng_state(self.device) if self.device.type == "cuda" else th.get_rng_state()

    def _set_gradients(self) -> None:
        if self._latest is not None and self._groups is not None:
            for parameter, its_gradient in zip(_parameters(self._groups), self._latest.gradients, strict=True):
                parameter.grad = its_gradient

    def _give_up(self, reason: str) -> None:
        if not self.has_failed:
            warn(f"The {self.name} updates are not compiled: {reason}")
        self.has_failed = True


def _parameters(groups: list[AdamGroup]) -> list[nn.Parameter]:
    return [parameter for group in groups for parameter in group.parameters]


def _groups(optimizer: th.optim.Optimizer, takes_step: bool) -> list[AdamGroup]:
    """Return the parameters that have a gradient, with the state of the optimizer, which is Adam, if the step is taken."""
    groups = []
    for group in optimizer.param_groups:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not takes_step:
            groups.append(AdamGroup(parameters))
            continue
        states = [optimizer.state[parameter] for parameter in parameters]
        steps, *moments = ([one[name] for one in states if name in one] for name in ADAM_STATE)
        learning_rate = th.as_tensor(group["lr"], dtype=th.float64, device=group["params"][0].device)
        options = {name: group[name] for name in ADAM_OPTIONS}
        options |= dict(zip(("beta1", "beta2"), group["betas"], strict=True), foreach=False, fused=False)
        groups.append(AdamGroup(parameters, tuple(moments), steps, learning_rate, options))
    return groups


class CompiledPolicy:
    """
    A policy that acts for a fixed number of environments, compiled. Actions are drawn from torch's generators, as without.

    :param policy: the policy
    """

    def __init__(self, policy: PhasicActorCriticPolicy):
        self.policy = policy
        options: dict[str, Any] = dict(isolate_recompiles=True, options=dict(fallback_random=True))
        self._function: Any = th.compile(policy.forward, fullgraph=True, **options)

    def __call__(self, observations: PyTorchObs) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """
        :param observations: (n_envs, ...)
        :return: actions, (n_envs, ...); V(s), (n_envs, 1); log π(a|s), (n_envs,)
        """
        if th.distributions.Distribution._validate_args:  # after an error, whose cause this is to find
            return self.policy(observations)
        try:
            result = self._function(observations)
        except compiler_errors() as error:
            warn(f"The acting policy is not compiled: torch cannot compile it ({first_line(error)})")
            self._function = self.policy
            return self.policy(observations)
        self.policy.acted_on = observations
        return result


# ---- a training ----


class CompiledSteps:
    """
    Compiled optimizer steps and compiled policy of one training.

    :param model: algorithm with its environments, complete
    :param total_timesteps: budget of the training
    """

    def __init__(self, model: PhasicModel, total_timesteps: float):
        self.model = model
        self._steps: dict[tuple[str, bool], CompiledStep] = {}
        self._policy: CompiledPolicy | None = None
        reason = reason_against(model) if model.compile_updates else "they are not asked for"
        if model.compile_updates is True and reason is not None:
            warn(f"`compile_updates`=True has no effect: {reason}")
        self.enabled = reason is None and (model.compile_updates is True or is_worthwhile(model, total_timesteps))

    def acting_policy(self) -> CompiledPolicy | None:
        """Return the policy for the next rollout, or None if it is not compiled."""
        policy = self.model.policy
        if not self.enabled or self.model.use_sde or has_hooks([policy]):
            return None
        if self._policy is None or self._policy.policy is not policy:
            self._policy = CompiledPolicy(policy)
        return self._policy

    def begin_update(
        self, name: str, losses: Callable[..., Losses], optimizer: th.optim.Optimizer, coefficients: Any
    ) -> CompiledStep | None:
        """
        :param name: "policy", "value" or "auxiliary"
        :param losses: method of the objective
        :param optimizer: optimizer of the epochs
        :param coefficients: weights of the losses' terms
        :return: the steps of this update's epochs, or None if they are not compiled
        """
        if not self.enabled:
            return None
        model = self.model
        looks_at_kl = name == "policy" and model.target_kl is not None
        takes_step = type(optimizer) in (th.optim.Adam, th.optim.AdamW) and n_processes() == 1 and not looks_at_kl
        key = (name, takes_step)
        if key not in self._steps:
            losses_of = partial(model.minibatch_losses, losses)
            self._steps[key] = CompiledStep(name, losses_of, takes_step, model.device, verbose=model.verbose >= 1)
        self._steps[key].begin_update([model.policy, model.objective], optimizer, coefficients, model.max_grad_norm)
        return self._steps[key]


def has_hooks(networks: Iterable[nn.Module], optimizer: th.optim.Optimizer | None = None) -> bool:
    """Return whether somebody has registered hooks with networks, their parameters or an optimizer."""
    modules = [module for network in networks for module in network.modules()]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    return any(getattr(one, name, None) for one in (optimizer, *modules, *parameters) for name in HOOKS)


def compiler_errors() -> tuple[type[Exception], ...]:
    """Return the errors of torch's compiler, which is imported when it is needed: it takes a second."""
    return th._dynamo.exc.TorchDynamoException, th._dynamo.exc.FailOnRecompileLimitHit


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().splitlines()[0]


def reason_against(model: PhasicModel) -> str | None:
    """
    Return why a model's updates cannot be compiled.

    :param model: algorithm with its environments, complete
    :return: reason, or None
    """
    if "isolate_recompiles" not in inspect.signature(th.compile).parameters:
        return f"this needs torch 2.13, and {th.__version__} is installed"
    if model.has_memory:
        return "torch does not compile LSTMs"
    if model.objective.adversary_optimizer is not None:
        return f"{type(model.objective).__name__} has an adversary, which takes steps of its own"
    micro_batch_size = model.resolved_micro_batch_size()
    if micro_batch_size is not None and micro_batch_size < model.batch_size:
        return f"minibatches run in micro-batches of {micro_batch_size} samples"
    return None


def is_worthwhile(model: PhasicModel, total_timesteps: float) -> bool:
    """
    Return whether compiling makes a training faster, as far as its length and its networks tell.

    :param model: algorithm with its environments, complete
    :param total_timesteps: budget of the training
    """
    if model.device.type == "cpu" and (has_convolutions(model.policy) or not has_cpp_compiler()):
        return False
    return WORTHWHILE_STEPS <= n_optimizer_steps(model, total_timesteps) < math.inf  # unless a callback ends it


def n_optimizer_steps(model: PhasicModel, total_timesteps: float) -> float:
    """
    Return the number of optimizer steps in a training, about.

    :param model: algorithm with its environments
    :param total_timesteps: budget of the training
    """
    n_epochs = model.n_epochs + (model.n_value_epochs or 0)
    aux_batch_size = model.aux_batch_size or max(model.n_steps * model.n_envs / 16, model.batch_size)
    per_sample = n_epochs / model.batch_size + model.n_aux_epochs / aux_batch_size
    return total_timesteps / n_processes() * per_sample


def has_cpp_compiler() -> bool:
    """Return whether there is the C++ compiler that torch would use."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    return shutil.which(os.environ.get("CXX", default)) is not None
