"""
A prior for fine-tuning: the pretrained policy that the policy in training stays near.

Source: Baker et al., "Video PreTraining (VPT)", https://arxiv.org/abs/2206.11795, who fine-tuned a cloned policy by PPG with a
KL divergence from that policy in place of the entropy bonus.
"""

import copy
from hashlib import sha256
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.utils import obs_as_tensor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from typing_extensions import override

from sb3_ppg.arrays import map_arrays
from sb3_ppg.buffers.rollouts import Observations
from sb3_ppg.environments.watched import only_normalizer, statistics
from sb3_ppg.errors import ArgumentError
from sb3_ppg.phasic_interface import PhasicInterface
from sb3_ppg.policies.mlp import KNOWN_INPUTS, TORCH_DISTRIBUTION_ATTRIBUTES

SELF = "self"  # as a value of the argument `prior`: the model's own policy when it begins to learn
PRIOR_LEFT_OUT = "not shared"  # as a value of the argument `prior` in files on the Hub, which do not hold the prior of a model
INFERENCE_BATCH = 256  # observations per forward pass without gradient (BCQ tries 100 actions for each)


class Prior:
    """
    A frozen copy of an agent's policy, with the current statistics of the agent's own ``VecNormalize``, which normalizes the
    observations for it. LSTMs have states of their own, which begin at zero with each episode.

    :param agent: a model of this package, or of SB3 or sb3-contrib with the same kind of action distribution, such as PPO
    :param model: model in training
    :raises ArgumentError: for an agent with another kind of action distribution or other spaces
    """

    follows_warm_start: bool = False  # whether it is the model's own policy as the latest `warm_start` has left it

    def __init__(self, agent: Any, model: PhasicInterface):
        self.name = type(agent).__name__
        theirs, ours = policy_signature(agent), policy_signature(model)
        if theirs != ours:
            raise ArgumentError(f"the agent has a {theirs}, the model a {ours}: use an agent like it")
        if (keys := tuple(getattr(agent.policy, "input_keys", ()))) not in KNOWN_INPUTS:
            raise ArgumentError(f"the agent's policy takes {', '.join(keys)}, which a prior does not have")
        normalizer = only_normalizer(agent.env)
        # Without its environments, like one that was unpickled
        self.normalizer = copy.deepcopy(normalizer) if normalizer is not None and normalizer.norm_obs else None
        self.policy = _frozen(agent.policy).to(model.device)
        self.has_memory = hasattr(self.policy, "lstm_actor")
        self.actions = model.policy.actions
        self.states: Any = None  # of LSTMs
        self._waiting: list[Any] = []  # observations, episode starts and masks of the steps before the next forward pass

    def before_step(self, model: PhasicInterface, env: VecEnv, rollout_buffer: Any, inputs: dict[str, Any]) -> None:
        """
        Take the latest observations while a rollout is collected. Once it is complete, the array ``prior`` of the buffer,
        (n_steps, n_envs, P), holds the parameters of π_prior(.|s). Without LSTMs, many steps share a forward pass. From
        ``inputs``, the policy's inputs in this step, the prior uses the action masks.
        """
        if rollout_buffer.pos == 0:
            self._waiting = []
        observations, normalizer = model._last_obs, only_normalizer(env)
        if normalizer is not None and normalizer.norm_obs:
            observations = normalizer.get_original_obs()
        masks = {} if inputs.get("action_masks") is None else {"action_masks": inputs["action_masks"]}
        self._waiting.append((observations, model._last_episode_starts, masks))
        n_steps, end = len(self._waiting), rollout_buffer.pos + 1
        if self.has_memory or n_steps * env.num_envs >= INFERENCE_BATCH or end == rollout_buffer.buffer_size:
            observations, starts, masks = map_arrays(lambda *arrays: np.concatenate(arrays), *self._waiting)
            parameters = self.parameters(observations, starts, **masks).reshape(n_steps, env.num_envs, -1)
            if end == n_steps:
                rollout_buffer.prior = np.empty((rollout_buffer.buffer_size, *parameters.shape[1:]), np.float32)
                rollout_buffer.has_prior = True
            rollout_buffer.prior[end - n_steps : end] = parameters
            self._waiting = []

    @th.no_grad()
    def parameters(self, observations: Observations, episode_starts: Any = None, **masks: Any) -> np.ndarray:
        """
        Return the parameters of π_prior(.|s), (B, P), see ``Actions.parameters``. LSTMs take a step in each environment.

        :param observations: as the environments gave them, (B, ...)
        :param episode_starts: whether they begin an episode, (B,); for LSTMs
        :param masks: ``action_masks``, if the policy takes them
        :raises ArgumentError: for LSTMs without ``episode_starts``
        """
        if self.normalizer is not None:
            observations = self.normalizer.normalize_obs(observations)
        tensors: Any = obs_as_tensor(observations, self.policy.device)
        if self.has_memory and episode_starts is None:
            raise ArgumentError(f"the agent is a {self.name}, which needs earlier observations: use one without memory")
        if self.has_memory:
            starts = th.as_tensor(episode_starts, dtype=th.float32, device=self.policy.device)
            if self.states is None or self.states[0].shape[1] != len(starts):
                lstm = self.policy.lstm_actor
                self.states = (th.zeros(lstm.num_layers, len(starts), lstm.hidden_size, device=self.policy.device),) * 2
            distribution, self.states = self.policy.get_distribution(tensors, self.states, starts)
        else:
            distribution = self.policy.get_distribution(tensors, **masks)
        return self.actions.parameters(distribution).cpu().numpy()

    @override
    def __getstate__(self) -> dict[str, Any]:
        """Return the state for a file: on the CPU, and without the states of LSTMs, as a resumed run begins new episodes."""
        # A VecNormalize cannot be pickled without environments
        normalizer = None if self.normalizer is None else vars(self.normalizer)
        changed = {"policy": copy.deepcopy(self.policy).cpu(), "normalizer": normalizer, "states": None, "_waiting": []}
        return vars(self) | changed

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if state["normalizer"] is not None:
            self.normalizer = VecNormalize.__new__(VecNormalize)
            vars(self.normalizer).update(state["normalizer"])

    @override
    def __repr__(self) -> str:
        """Return a text that is the same for equal priors, by which several processes compare theirs."""
        digest, rms = sha256(), {} if self.normalizer is None else statistics(self.normalizer)
        arrays = [weight.cpu().numpy() for weight in self.policy.state_dict().values()]
        for array in [*arrays, *(moment for key in rms for moment in (rms[key].mean, rms[key].var))]:
            digest.update(np.ascontiguousarray(array).tobytes())
        return f"Prior of {self.name}, {digest.hexdigest()[:8]}"


def policy_signature(agent: Any) -> str:
    """Return a text with an agent's spaces and kind of action distribution; a prior and its model must have the same."""
    distribution = getattr(agent.policy, "action_dist", None)
    if distribution is None:
        raise ArgumentError(f"{type(agent).__name__} has no action distribution: clone it by warm_start(data, agent=...)")
    kinds = " and ".join(type(part).__name__ for part in getattr(distribution, "templates", [distribution]))
    squashed = "squashed " if agent.policy.squash_output else ""
    return f"{squashed}{kinds} over {agent.action_space} for observations {agent.observation_space}"


def _frozen(policy: Any) -> Any:
    """Return a copy of a policy for evaluation alone."""
    distribution = copy.copy(policy.action_dist)
    for name, value in {**vars(distribution)}.items():  # torch cannot copy tensors that have a graph
        has_graph = isinstance(value, th.distributions.Distribution) or getattr(value, "requires_grad", False)
        if has_graph or name in TORCH_DISTRIBUTION_ATTRIBUTES:
            del vars(distribution)[name]
    frozen = copy.deepcopy(policy, {id(policy.action_dist): distribution, id(policy.optimizer): None})
    frozen.requires_grad_(False).set_training_mode(False)
    return frozen
