"""Export of trained policies to ONNX files, which need neither this package nor Python."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.vec_env import VecNormalize
from torch import nn
from typing_extensions import override

from sb3_ppg.actions import NestedActions, dtype_of, leaves, moderate, n_choices, unvalidated_distributions
from sb3_ppg.environments.watched import only_normalizer
from sb3_ppg.errors import ArgumentError, missing_extras_named
from sb3_ppg.maskable import MaskablePhasicActorCriticPolicy
from sb3_ppg.policies.lstm import RecurrentPhasicActorCriticPolicy
from sb3_ppg.policies.mlp import KNOWN_INPUTS
from sb3_ppg.ppg import PPG
from sb3_ppg.saving.files import atomic_writes

__all__ = ["DeterministicPolicy", "to_onnx"]


class DeterministicPolicy(nn.Module):
    """
    The computation of ``model.predict(..., deterministic=True)``, with tensors in and out, on the CPU, in float32. It has a
    copy of the weights, so the model can be trained further. B is the number of environments.

    ================== ================================= ==========================================================
    for                inputs, in this order             shape and type
    ================== ================================= ==========================================================
    all                ``observation``, or one for each  (B, ...) as in ``model.observation_space`` (images channel
                       key of a Dict space, by its name  first), in its type, not normalized
    ``MaskablePPG``    ``action_masks``                  (B, n), bool: True where an action is possible
    ``RecurrentPPG``   ``hidden``, ``cell``              (n_layers, B, hidden size), float32; zeros at first
    ``RecurrentPPG``   ``episode_start``                 (B,), bool: whether an episode begins
    ================== ================================= ==========================================================

    It returns ``action``, (B, ...) as the environment takes it; for a nested action space ``action.path`` for each leaf, with
    the keys and indices that lead to it; and for ``RecurrentPPG`` also ``next_hidden`` and ``next_cell``.

    :param model: a model of this package
    :param vec_normalize: wrapper that normalizes observations. None: that of the model's environment, if it has one.
        A model that was loaded without its environment has none
    :raises ArgumentError: if the model's environments have several ``VecNormalize``, or if a key of its observations is the
        name of another input or output
    """

    policy: Any  # of one of the classes of this package

    def __init__(self, model: PPG, vec_normalize: VecNormalize | None = None):
        super().__init__()
        if (keys := tuple(model.policy.input_keys)) not in KNOWN_INPUTS:
            raise ArgumentError(f"the policy takes {', '.join(keys)}, which an exported policy does not have")
        self.policy = copy.deepcopy(model.policy, {id(model.policy.optimizer): None}).cpu()
        self.policy.mixed_precision = None
        space = copy.deepcopy(model.observation_space)  # whose random generator the environment may use
        self.is_dict = isinstance(space, spaces.Dict)
        self.parts: dict[str, spaces.Space] = dict(space.spaces) if isinstance(space, spaces.Dict) else {"observation": space}
        self.input_names, self.output_names = [*self.parts], ["action"]
        if isinstance(self.policy.actions, NestedActions):
            self.output_names = [f"action.{path}" for path, _ in leaves(model.action_space)]
        if isinstance(self.policy, MaskablePhasicActorCriticPolicy):
            self.input_names += ["action_masks"]
        if isinstance(self.policy, RecurrentPhasicActorCriticPolicy):
            vars(self.policy)["_process_sequence"] = _one_step
            self.input_names += ["hidden", "cell", "episode_start"]
            self.output_names += ["next_hidden", "next_cell"]
        names = self.input_names + self.output_names
        if clashing := {name for name in names if names.count(name) > 1}:
            raise ArgumentError(f"the observation's keys {sorted(clashing)} are names of other inputs or outputs: rename them")
        self.statistics: dict[str, tuple[th.Tensor, th.Tensor, float]] = {}  # in VecNormalize's float64
        vec_normalize = vec_normalize or only_normalizer(model.env)
        if vec_normalize is not None and vec_normalize.norm_obs:
            statistics = vec_normalize.obs_rms
            for name, rms in (statistics if isinstance(statistics, dict) else {"observation": statistics}).items():
                if name not in self.parts or rms.mean.shape != self.parts[name].shape:
                    raise ArgumentError(f"VecNormalize must be outermost: a wrapper around it changes {name!r}")
                std = th.as_tensor(np.sqrt(rms.var + vec_normalize.epsilon))
                self.statistics[name] = th.as_tensor(rms.mean.copy()), std, vec_normalize.clip_obs
        self.eval().requires_grad_(False)

    @unvalidated_distributions()
    @override
    def forward(self, *inputs: th.Tensor) -> th.Tensor | tuple[th.Tensor, ...]:
        given = dict(zip(self.input_names, inputs, strict=True))
        parts = {name: given.pop(name) for name in self.parts}
        for name, (mean, std, clip) in self.statistics.items():
            parts[name] = ((parts[name].double() - mean) / std).clamp(-clip, clip).float()
        observation = parts if self.is_dict else parts["observation"]
        if "hidden" in given:
            before = RNNStates(*[(given["hidden"], given["cell"])] * 2)
            reads = ("distribution", "lstm_states")
            evaluation = self.policy.evaluate(observation, before, given["episode_start"].float(), reads=reads)
            distribution, states = evaluation.distribution, evaluation.lstm_states.pi
        else:
            distribution, states = self.policy.evaluate(observation, **given, reads=("distribution",)).distribution, ()
        actions = self.policy.actions.for_environments(distribution.mode().reshape(-1, *self.policy.actions.shape))
        if isinstance(actions, th.Tensor):
            actions = [actions.to(dtype_of(self.policy.action_space))]
        outputs = (*actions, *states)
        return outputs if len(outputs) > 1 else outputs[0]

    def example_inputs(self, n_envs: int = 2) -> tuple[th.Tensor, ...]:
        """Return inputs for B = ``n_envs``: samples of the observation space, every action possible, new episodes."""
        parts = [moderate(space) for space in self.parts.values()]
        inputs = [th.as_tensor(np.stack([space.sample() for _ in range(n_envs)])) for space in parts]
        if "action_masks" in self.input_names:
            inputs.append(th.ones(n_envs, sum(n_choices(self.policy.action_space)), dtype=th.bool))
        if "hidden" in self.input_names:
            hidden = th.zeros(self.policy.lstm_actor.num_layers, n_envs, self.policy.lstm_actor.hidden_size)
            inputs += [hidden, hidden.clone(), th.ones(n_envs, dtype=th.bool)]  # not one tensor: that would be one input
        return tuple(inputs)


def _one_step(
    features: th.Tensor, states: tuple[th.Tensor, ...], episode_starts: th.Tensor, lstm: nn.LSTM
) -> tuple[th.Tensor, tuple[th.Tensor, ...]]:
    """Run an LSTM as sb3-contrib's method does, without its branch on whether an episode begins, which cannot be traced."""
    continues = (1 - episode_starts)[:, None]
    memory, after = lstm(features[None], (states[0] * continues, states[1] * continues))
    return memory[0], after


def to_onnx(model: PPG, path: str | Path, vec_normalize: VecNormalize | None = None) -> None:
    """
    Write an ONNX file for any number of environments, with the inputs and outputs of ``DeterministicPolicy``, by name.

    :param model: a model of this package
    :param path: path of the file
    :param vec_normalize: wrapper whose statistics normalize observations. None: that of the model's environment, if it has one
    :raises ArgumentError: see ``DeterministicPolicy``
    :raises MissingExtraError: (an ``ImportError``) without ``sb3-ppg[export]``
    :raises OSError: if the file cannot be written; a previous one is left unchanged
    """
    policy = DeterministicPolicy(model, vec_normalize)
    axes = tuple({1 if name in ("hidden", "cell") else 0: "n_envs"} for name in policy.input_names)
    with missing_extras_named(), th.no_grad(), warnings.catch_warnings(), atomic_writes(Path(path)) as (temporary,):
        warnings.simplefilter("ignore")  # warnings of torch's exporter about itself
        th.onnx.export(
            policy,
            policy.example_inputs(),
            str(temporary),
            input_names=policy.input_names,
            output_names=policy.output_names,
            dynamic_shapes=(axes,),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
