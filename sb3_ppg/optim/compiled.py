"""
When and how torch compiles the optimizer steps (``steps``) and the policy that acts. A network of a few small layers spends
most of an update in Python and in the autograd engine; compiling saves that time.
"""

import inspect
import math
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import PyTorchObs
from torch import nn
from typing_extensions import override

from sb3_ppg.actions import unvalidated_distributions
from sb3_ppg.arrays import map_arrays, n_samples, parameters_of
from sb3_ppg.distributed import n_processes
from sb3_ppg.errors import cause, warn
from sb3_ppg.objectives import Objective
from sb3_ppg.optim.steps import FlatAdam, Gradient, MinibatchLosses, loss_gradient, run_adam_steps
from sb3_ppg.optim.update import Update
from sb3_ppg.policies import PhasicActorCriticPolicy
from sb3_ppg.policies.extractors import has_convolutions

# Number of optimizer steps in a run from which "auto" compiles
WORTHWHILE_STEPS = 20_000
# Size of an observation up to which convolutions are faster compiled. MinAtar's have 400 to 1,000 numbers
SMALL_IMAGE = 1024
# Compiling saves as much time on this many samples of a small CNN as on one optimizer step of an MLP
SAMPLES_PER_STEP = 50
# Maximum number of minibatch sizes to compile; minibatches of an evenly split epoch differ by at most one sequence
MAX_SIZES = 2
# Most steps in one call of a compiled function, whose minibatches are copied
STEPS_PER_CALL = 32
# Attributes in which torch stores registered hooks
STEPS = "forward forward_pre backward backward_pre post_accumulate_grad optimizer_step_pre optimizer_step_post"
HOOKS = [f"_{step}_hooks" for step in STEPS.split()]


class CompiledFunction:
    """
    A function that torch compiles when it is first called, as one graph, which is independent of the graphs of other models.
    After an error of any kind it is not called again, and the caller does its work without; "auto" then compiles nothing more
    in this run. ``options`` are arguments of ``torch.compile``.
    """

    def __init__(self, training: "CompiledTraining", name: str, function: Callable[..., Any], **options: Any):
        self.training = training
        self.name = name
        self.has_failed = False
        self._function = _only_compiled(function)
        self._options = dict(fullgraph=True, isolate_recompiles=True) | options  # torch's own types do not have the latter
        self._compiled: Any = None

    def call(self, *arguments: Any, is_new: bool) -> Any:
        """Return the result, or None after an error; ``is_new``: whether torch compiles for these arguments."""
        start, is_announced = time.perf_counter(), is_new and self.training.verbose >= 1
        if is_announced:
            print(f"Compiling the {self.name}, ", end="", flush=True)
        try:
            return self._call(*arguments)
        except Exception as error:
            self.has_failed = True
            message, reported = cause(error), self.training.reported
            if not self.training.is_asked_for:
                self.training.stop()
            if message not in reported:  # a compiler that is missing fails for each function
                reported.add(message)
                warn(f"The {self.name} is not compiled: torch cannot compile it ({message})")
            return None
        finally:
            if is_announced:
                print(f"{time.perf_counter() - start:.0f} s")

    def _call(self, *arguments: Any) -> Any:
        if self._compiled is None:
            with unvalidated_distributions():  # the first use of the compiler turns validation off for the process
                self._compiled = th.compile(self._function, **self._options)
        return self._compiled(*arguments)

    def give_up(self, reason: str, is_avoidable: bool = False) -> None:
        """Leave the work to the caller from now on. Warn if the user has asked for compiled code, or can avoid the reason."""
        if not self.has_failed and (self.training.is_asked_for or is_avoidable):
            warn(f"The {self.name} is not compiled: {reason}")
        self.has_failed = True


def _only_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises an error if torch calls it without compiling it, because its compiler is switched off."""

    def compiled(*arguments: Any) -> Any:
        if not th.compiler.is_compiling():
            raise RuntimeError("TORCH_COMPILE_DISABLE, TORCHDYNAMO_DISABLE or another setting switches torch's compiler off")
        return function(*arguments)

    compiled.__code__ = compiled.__code__.replace()  # torch compiles code objects, each of them 256 times at most
    return compiled


def _stacked(leaves: Sequence[Any], n: int) -> Any:
    """Stack tensors; fewer than ``n`` are followed by empty ones. Other leaves are the same in all minibatches."""
    first = leaves[0]
    if not isinstance(first, th.Tensor):
        return first
    stack = first.new_empty(n, *first.shape)
    th.stack([*leaves], out=stack[: len(leaves)])
    return stack


class CompiledStep(CompiledFunction):
    """
    Compiled optimizer steps on one kind of losses or, without ``takes_step``, only compiled gradients, if something must
    happen between gradient and step. Each minibatch size is compiled once.

    The caller runs some minibatches in eager mode: the first one of each update, which shows which parameters the losses reach
    and creates the optimizer's state, and those of a size that does not occur twice in a row, like a truncated minibatch.
    """

    def __init__(self, training: "CompiledTraining", update: Update, takes_step: bool):
        function = run_adam_steps if takes_step else loss_gradient
        # Kernels are started without Python, and torch keeps the compiled loop, as it does with other code
        self.device = update.policy.device
        options: dict[str, Any] = dict(cpp_wrapper=self.device.type == "cpu")
        options["unsafe_marked_cacheable_functions"] = {"torch.ops.higher_order.while_loop": th.__version__}
        super().__init__(training, f"{update.kind} update", function, options=options)
        self.losses_of = MinibatchLosses(update.policy, update.objective, update.losses)
        self.takes_step = takes_step
        self.n_at_once = 1 if not takes_step or update.acts_after_step else STEPS_PER_CALL
        self._compiled_sizes: set[int] = set()

    def begin(self, update: Update) -> None:
        """Prepare for an update: its parameters, its numbers as tensors, and reasons to give up."""
        self.has_run = False  # in this update
        self._optimizer = update.optimizer
        self._parameters = parameters_of(update.optimizer)
        # Tensors, as torch would compile again for another number
        numbers = (update.coefficients, update.max_grad_norm, update.largest_kl)
        self._coefficients, *self._limits = map_arrays(
            lambda value: None if value is None else self._parameters[0].new_tensor(value), numbers
        )
        self._micro_batch_size = update.micro_batch_size
        self._restart()
        if has_hooks(self.losses_of, update.optimizer):
            self.give_up("hooks are registered, which compiled code does not call", is_avoidable=True)
        self._names = {parameter: name for name, parameter in self.losses_of.named_parameters()}
        if not {*self._parameters} <= self._names.keys():
            self.give_up("the optimizer has parameters that belong to neither the policy nor the objective")

    def _restart(self) -> None:
        """Leave the next minibatch to the caller."""
        self._previous_size: int | None = None
        self._sizes: set[int] = set()  # of minibatches that are not left to the caller
        self._requires_grad = [parameter.requires_grad for parameter in self._parameters]
        self._reached: list[list[nn.Parameter]] = []  # parameters that the losses reach, in each group

    def gradients(self, minibatches: Iterable[Any], eager: Callable[[Any], Gradient]) -> Generator[Gradient, None, None]:
        """
        Compute the gradient of each minibatch of an epoch, and take the steps if ``takes_step``. Parameters and optimizer
        state are only up to date when the epoch ends or, for an objective that acts after each step, after each step.
        """
        self._flat: FlatAdam | None = None
        self._latest: Sequence[th.Tensor] | None = None
        owners = (self.losses_of.objective, self.losses_of.policy)
        may_change = not all(type(owner).__module__.startswith("sb3_ppg.") for owner in owners)  # what its losses reach
        if may_change or self._requires_grad != [parameter.requires_grad for parameter in self._parameters]:
            self._restart()
        waiting: list[Any] = []
        try:
            with tracing():
                for minibatch in minibatches:
                    size = n_samples(minibatch[0])
                    if waiting and (size != self._previous_size or len(waiting) == self.n_at_once):
                        yield from self._run(waiting, eager)
                        waiting = []
                    if self._is_compiled(size):
                        waiting.append(minibatch)
                    else:
                        self._copy_back()
                        self._eager = eager(minibatch)
                        yield self._eager
                if waiting:
                    yield from self._run(waiting, eager)
        finally:
            self._copy_back()

    def _run(self, minibatches: list[Any], eager: Callable[[Any], Gradient]) -> Iterator[Gradient]:
        """Run at most ``n_at_once`` minibatches of the same size in one call of the compiled function."""
        size = n_samples(minibatches[0][0])
        gradient = self._take_steps(minibatches, size) if self.takes_step else self._gradient(minibatches[0], size)
        if gradient is not None:
            self._compiled_sizes.add(size)
            self.has_run = True
        if gradient is None or self.n_at_once == 1:
            self._copy_back()
        yield from map(eager, minibatches) if gradient is None else [gradient]

    def _gradient(self, minibatch: Any, size: int) -> Gradient | None:
        arguments = (self.losses_of, self._coefficients, minibatch, [*chain(*self._reached)])
        result = self.call(*arguments, is_new=size not in self._compiled_sizes)
        if result is None:
            return None
        gradient, self._latest = result
        return gradient

    def _take_steps(self, minibatches: list[Any], size: int) -> Gradient | None:
        """Take a step on each of the minibatches; return None after an error."""
        n, n_at_once, like = len(minibatches), self.n_at_once, self._eager
        flat = self._flat = self._flat or FlatAdam(self._optimizer, self._reached, self._names)
        n_ratios = len(like.log_ratio) * size // like.size  # none in the auxiliary phase
        records = (
            like.values.new_empty(n_at_once, len(like.values)),
            like.log_ratio.new_empty(n_at_once, n_ratios),
            self._parameters[0].new_empty(n_at_once),
        )
        stacked = map_arrays(lambda *leaves: _stacked(leaves, n_at_once), *minibatches)
        arguments = (
            self.losses_of,
            self._coefficients,
            stacked,
            th.tensor(n, device=self.device),
            flat.groups,
            *self._limits,
            records,
        )
        result = self.call(*arguments, is_new=size not in self._compiled_sizes)
        if result is None:
            return None
        records, states, self._latest, number, stopped = result
        is_limited = self._limits[1] is not None  # else read nothing, because that would wait for a GPU
        n, stopped = (int(number), bool(stopped)) if is_limited else (n, False)
        flat.groups = [group._replace(state=state) for group, state in zip(flat.groups, states, strict=True)]
        values, log_ratios, norms = (record[:n] for record in records)
        return Gradient(like.names, values, log_ratios.flatten(), size, norms, n, stopped)

    def _copy_back(self) -> None:
        """Bring the parameters, their gradients and the optimizer's state up to date."""
        if self._flat is not None:
            self._flat.copy_back(self._latest)
        elif self._latest is not None:
            for parameter, gradient in zip(chain(*self._reached), self._latest, strict=True):
                parameter.grad = gradient
        self._flat = self._latest = None

    def _is_compiled(self, size: int) -> bool:
        """Return whether to run a minibatch of this size compiled, by the earlier ones of its update alone."""
        previous, self._previous_size = self._previous_size, size
        if self._micro_batch_size is not None and self._micro_batch_size < size:
            self.give_up(f"minibatches run in micro-batches of {self._micro_batch_size} samples")
        if self.has_failed:
            return False
        if previous is None:
            self._generator_states = self._get_generator_states()
            return False
        if not self._reached:
            if not all(map(th.equal, self._generator_states, self._get_generator_states())):
                self.give_up("it draws random numbers, and compiled code would draw different ones")
                return False
            groups = self._optimizer.param_groups
            self._reached = [[weight for weight in group["params"] if weight.grad is not None] for group in groups]
        if size == previous and len(self._sizes) < MAX_SIZES:
            self._sizes.add(size)
        return size in self._sizes

    def _get_generator_states(self) -> list[th.Tensor]:
        return [
            th.get_rng_state(),
            th.tensor(random.getstate()[1]),
            *([th.cuda.get_rng_state(self.device)] if self.device.type == "cuda" else []),
        ]


class CompiledPolicy(CompiledFunction):
    """
    A compiled policy for a fixed number of environments. Actions are drawn from torch's generators, as in eager mode. In the
    first step of a rollout, torch checks whether the networks have changed since they were compiled. Later steps call the
    compiled graph directly, because this check takes longer than the graph itself.
    """

    def __init__(self, training: "CompiledTraining", policy: PhasicActorCriticPolicy):
        self.policy = policy
        self.graph: Callable[[PyTorchObs], Any] | None = None  # of the current rollout
        self.types: Any = None  # types of the observations that this graph takes
        super().__init__(training, "acting policy", policy.forward, backend=self._compile_graph)

    def act(self, batch: Any) -> tuple[th.Tensor, th.Tensor, th.Tensor, dict[str, th.Tensor]]:
        """Act like the policy."""
        result, observations = None, batch.observations
        if not self.has_failed and not th.distributions.Distribution._validate_args:  # only after an error, to find its cause
            result = self.call(observations, is_new=self._compiled is None)
        if result is None:
            return self.policy.act(batch)
        self.policy.acted_on = (observations,)
        return *result, {}

    def _compile_graph(self, graph: th.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled = th._inductor.compile(graph, inputs, options=dict(fallback_random=True))

        def run(*inputs: Any) -> Any:
            self._latest = compiled, inputs, compiled(*inputs)
            return self._latest[-1]

        return run

    @override
    def _call(self, observations: PyTorchObs) -> Any:
        types = map_arrays(lambda leaf: leaf.dtype, observations)  # which the graph does not check
        if self.graph is not None and types == self.types:
            return self.graph(observations)
        before = self._attributes()
        with tracing():
            result = super()._call(observations)
        graph, inputs, outputs = self._latest
        input_places = {id(tensor): place for place, tensor in enumerate(inputs)}
        output_places = {id(tensor): place for place, tensor in enumerate(outputs)}
        observed = map_arrays(lambda leaf: input_places.get(id(leaf), -1), observations)
        returned = [output_places.get(id(tensor)) for tensor in result]

        def act(observations: PyTorchObs) -> Any:
            latest = [*inputs, None]  # at its end, observations that the policy does not use
            map_arrays(latest.__setitem__, observed, observations)
            return [*map(graph(*latest[:-1]).__getitem__, returned)]

        if None not in returned and [*map(id, before)] == [*map(id, self._attributes())]:
            self.graph, self.types = act, types  # nothing else happens in the policy
        return result

    def _attributes(self) -> list[Any]:
        return [value for module in self.policy.modules() for value in vars(module).values()]


# ---- a run ----


class CompiledTraining:
    """Compiled optimizer steps and compiled policy of a model, which its next call of ``learn`` reuses."""

    def __init__(self) -> None:
        self.is_enabled = False
        self.is_asked_for = False  # not chosen by "auto"
        self.verbose = 0
        self._steps: dict[tuple[Any, ...], CompiledStep] = {}
        self._policy: CompiledPolicy | None = None
        self.has_stopped = False  # after an error, in this run and what continues it
        self.reported: set[str] = set()  # errors that the user has been warned about

    def actor(self, policy: PhasicActorCriticPolicy) -> PhasicActorCriticPolicy | CompiledPolicy:
        """Return what acts in the next rollout: the policy, or its compiled form."""
        methods = [getattr(method, "__func__", None) for method in (policy.forward, policy.act)]
        acts_otherwise = methods != [PhasicActorCriticPolicy.forward, PhasicActorCriticPolicy.act]
        if not self.is_enabled or policy.input_keys or policy.use_sde or acts_otherwise or has_hooks(policy):
            return policy
        if self._policy is None or self._policy.policy is not policy:
            self._policy = CompiledPolicy(self, policy)
        self._policy.graph = None
        return self._policy

    def steps_of(self, update: Update) -> CompiledStep | None:
        """Return the compiled steps of an update's epochs, or None if they are not compiled."""
        if not self.is_enabled:
            return None
        is_adam = type(update.optimizer) in (th.optim.Adam, th.optim.AdamW)
        is_small = not has_convolutions(update.policy)  # which are slower on views of a flat tensor
        is_real = not any(parameter.is_complex() for parameter in parameters_of(update.optimizer))
        takes_step = is_adam and is_real and is_small and n_processes() == 1
        key = (update.policy, update.losses, takes_step)
        if key not in self._steps:
            self._steps[key] = CompiledStep(self, update, takes_step)
        self._steps[key].begin(update)
        return self._steps[key]

    def stop(self) -> None:
        """Go on without compiled functions, also in a run that continues this one."""
        self.is_enabled, self.has_stopped = False, True
        self._steps, self._policy = {}, None


def reason_against(policy: PhasicActorCriticPolicy, objective: Objective) -> str | None:
    """Return the reason why updates cannot be compiled, or None."""
    if "isolate_recompiles" not in inspect.signature(th.compile).parameters:
        return f"this needs torch 2.13, and {th.__version__} is installed"
    if policy.device.type not in ("cpu", "cuda"):
        return f"this is for CPUs and NVIDIA GPUs, not for {policy.device}"
    if policy.state_keys:
        return "torch does not compile LSTMs"
    if objective.adversary_optimizer is not None:
        return f"{type(objective).__name__} has an adversary, which takes steps of its own"
    return None


def missing_compiler(device: th.device) -> str | None:
    """Return the reason why torch's compiler cannot work on this machine, or None."""
    default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    if device.type == "cpu" and shutil.which(compiler := os.environ.get("CXX", default)) is None:
        return f"torch needs a C++ compiler for this, and there is no {compiler}: install it, or use compile_updates=False"
    return None


def is_worthwhile(policy: PhasicActorCriticPolicy, n_steps: float, n_passes: float) -> bool:
    """
    Return whether compiling is likely to make a run faster.

    :param n_steps: number of optimizer steps in the run
    :param n_passes: number of samples that it passes through the networks and back; infinite if a callback ends it
    """
    is_image = has_convolutions(policy)
    if policy.device.type != "cpu" or (is_image and spaces.flatdim(policy.observation_space) > SMALL_IMAGE):
        return False
    return WORTHWHILE_STEPS <= n_steps + (n_passes / SAMPLES_PER_STEP if is_image else 0) < math.inf


# ---- torch's compiler ----


def tracing() -> AbstractContextManager[None]:
    """Return a context in which torch captures gradients, takes sizes as constants, and refuses NumPy's random numbers."""
    return th._dynamo.config.patch(trace_autograd_ops=True, automatic_dynamic_shapes=False, use_numpy_random_stream=True)


def has_hooks(network: nn.Module, optimizer: th.optim.Optimizer | None = None) -> bool:
    """Return whether hooks are registered with a network, its parameters or an optimizer."""
    owners = (optimizer, *network.modules(), *network.parameters())
    return any(getattr(owner, name, None) for owner in owners for name in HOOKS)
