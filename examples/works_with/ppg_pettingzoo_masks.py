"""
pettingzoo: two players of tic-tac-toe share one policy, which never chooses an occupied field, as in PettingZoo's tutorial.

Needs ``pip install pettingzoo==1.27.0 pygame-ce==2.5.8``.
"""

import gymnasium as gym
import numpy as np
from pettingzoo.classic import tictactoe_v3
from pettingzoo.utils import BaseWrapper
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from sb3_contrib.common.wrappers import ActionMasker

from sb3_ppg import MaskablePPG


class Turns(BaseWrapper, gym.Env):
    """The player whose turn it is, as a Gymnasium environment."""

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        player = self.possible_agents[0]
        self.observation_space = super().observation_space(player)["observation"]
        self.action_space = super().action_space(player)
        return self.observe(self.agent_selection), {}

    def step(self, action):
        player = self.agent_selection
        super().step(action)
        seen = self.observe(self.agent_selection)
        return seen, self._cumulative_rewards[player], self.terminations[player], self.truncations[player], {}

    def observe(self, agent):
        return super().observe(agent)["observation"]

    def action_mask(self):
        return super().observe(self.agent_selection)["action_mask"]


turns = Turns(tictactoe_v3.env())
turns.reset(seed=0)  # which sets its spaces
env = ActionMasker(turns, Turns.action_mask)
model = MaskablePPG(MaskableActorCriticPolicy, env, n_steps=256, n_policy_iterations=2, seed=0).learn(4 * 512)
data = model.rollout_buffer
allowed = np.take_along_axis(data.action_masks.reshape(-1, 9), data.actions.reshape(-1, 1).astype(int), axis=1)
assert model.n_aux_phases == 4 and allowed.all()
wins = (data.rewards == 1).sum()
print(f"4 phases; in the last rollout, {wins} games are won, and no field is taken twice")
