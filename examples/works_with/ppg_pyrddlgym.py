"""
pyRDDLGym: domains in RDDL. Their actions are Dict spaces, which PPG takes as they are.

Needs ``pip install pyRDDLGym==2.7 rddlrepository==2.2``.
"""

import numpy as np
import pyRDDLGym
from stable_baselines3.common.monitor import Monitor

from sb3_ppg import PPG

env = pyRDDLGym.make("CartPole_Discrete_gym", "0", vectorized=True)
model = PPG("MultiInputPolicy", Monitor(env), n_steps=256, n_policy_iterations=2, seed=0)
model.learn(3 * 512)
first = np.mean([info["r"] for info in model.ep_info_buffer])
model.learn(6 * 512, reset_num_timesteps=False)
last = np.mean([info["r"] for info in model.ep_info_buffer][-10:])
assert model.n_aux_phases == 9 and last > first
print(f"returns {first:.0f} in three phases, {last:.0f} at the end of nine")
