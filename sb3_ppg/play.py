"""Evaluation and play with some random actions, or at a temperature."""

import copy
from functools import partial
from typing import Any

import numpy as np
import torch as th

from sb3_ppg.actions import by_leaf
from sb3_ppg.arguments import check_value
from sb3_ppg.arrays import n_samples
from sb3_ppg.errors import ArgumentError
from sb3_ppg.policies import PhasicActorCriticPolicy


class Player:
    """
    A model whose ``predict`` samples an action, instead of taking the most likely one, with a probability ε, as in ALF's
    evaluations. It has all attributes of the model, and can replace it, as in SB3's ``evaluate_policy``.

    Whether to sample is drawn for each environment and step from torch's generator, which ``set_random_seed`` seeds.

    Example::

        from stable_baselines3.common.evaluation import evaluate_policy
        from sb3_ppg import PPG, Player

        model = PPG("MlpPolicy", "CartPole-v1").learn(20_000)
        mean, std = evaluate_policy(Player(model, epsilon=0.05), model.get_env())

    :param model: an algorithm of this package, of SB3 or sb3-contrib
    :param epsilon: probability of a sample where ``deterministic`` actions are asked for
    :param temperature: T > 0: samples are drawn from π(a|s)^(1/T), normalized (before actions are squashed); T < 1 favors
        likely actions. For a Dict or Tuple action space also a temperature for each of its parts. Only algorithms of this
        package take it
    :raises ArgumentError: for numbers out of range, or a temperature for another algorithm
    """

    model: Any = None

    def __init__(self, model: Any, epsilon: float = 0.0, temperature: Any = 1.0):
        check_value("epsilon", epsilon)
        if temperature != 1:
            if not isinstance(model.policy, PhasicActorCriticPolicy):
                name = type(model).__name__
                raise ArgumentError(f"`temperature`={temperature} cannot work: {name} is no algorithm of sb3_ppg; leave it 1")
            for leaf_temperature in by_leaf(model.action_space, "temperature", temperature):
                check_value("temperature", leaf_temperature)
        self.model = model
        self.epsilon = epsilon
        self.temperature = temperature

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def predict(
        self,
        observation: np.ndarray | dict[str, np.ndarray],
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        **context: Any,
    ) -> tuple[Any, tuple[np.ndarray, ...] | None]:
        """
        Choose actions, with the arguments of the model's ``predict``. In steps where an environment takes a sample, a second
        pass through the networks draws it.

        :raises ArgumentError: for an ``epsilon`` if all actions are samples
        """
        if self.epsilon > 0 and not deterministic:
            remedy = "all actions are samples already; use deterministic=True (--deterministic)"
            raise ArgumentError(f"`epsilon`={self.epsilon} cannot work: {remedy}")
        sampler = self.model
        if self.temperature != 1:  # a copy with the same networks
            sampler, policy = copy.copy(self.model), copy.copy(self.model.policy)
            sampler.policy, policy.temperature = policy, self.temperature
        sample = partial(sampler.predict, observation, state, episode_start, deterministic=False, **context)
        if not deterministic:
            return sample()
        actions, next_state = self.model.predict(observation, state, episode_start, deterministic=True, **context)
        tensors, is_batch = self.model.policy.obs_to_tensor(observation)
        explores = th.rand(n_samples(tensors) if is_batch else ()).numpy() < self.epsilon
        if not explores.any():
            return actions, next_state
        samples, _ = sample()
        if not is_batch:
            return samples, next_state
        for index in np.flatnonzero(explores):
            actions[index] = samples[index]
        return actions, next_state
