"""
isaaclab: its class ``Sb3VecEnvWrapper``, its function ``process_sb3_cfg`` and its settings of CartPole for SB3's PPO.

Needs ``pip install --no-deps isaaclab==2.3.2.post1``. In place of the simulator, which nobody has run, there are 64 poles in
PyTorch that keep to its form: tensors, and resets within a step.
"""

import importlib.util
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch as th
import yaml
from gymnasium import spaces

from sb3_ppg import PPG


class Poles(SimpleNamespace):
    """Inverted pendulums, as a stand-in for Isaac Lab's environments. Episodes end if one falls, or after 100 steps."""

    def reset(self):
        self.state, self.n_steps = 0.1 * th.randn(self.num_envs, 2), th.zeros(self.num_envs)
        return {"policy": self.state}, {}

    def step(self, actions):
        angle, velocity = self.state.T
        velocity = velocity + 0.05 * (5 * angle + 10 * actions.flatten().clamp(-1, 1))
        self.state, self.n_steps = th.stack([angle + 0.05 * velocity, velocity], dim=1), self.n_steps + 1
        terminated, truncated = self.state[:, 0].abs() > 0.5, self.n_steps >= 100
        over = terminated | truncated
        self.n_steps = th.where(over, 0, self.n_steps)
        self.state = th.where(over[:, None], 0.1 * th.randn(self.num_envs, 2), self.state)
        return {"policy": self.state}, th.where(terminated, -1.0, 1.0), terminated, truncated, {}

    def seed(self, seed):
        return th.manual_seed(seed).initial_seed()


sys.modules["isaaclab.envs"] = SimpleNamespace(DirectRLEnv=Poles, ManagerBasedRLEnv=Poles)  # which import the simulator
source = Path(distribution("isaaclab").locate_file("isaaclab/source"))
spec = importlib.util.spec_from_file_location("isaaclab_sb3", source / "isaaclab_rl/isaaclab_rl/sb3.py")
sb3 = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sb3)

poles = Poles(num_envs=64, device="cpu", render_mode=None)
poles.unwrapped = poles
poles.single_observation_space = spaces.Dict(policy=spaces.Box(-np.inf, np.inf, (2,)))
poles.single_action_space = spaces.Box(-np.inf, np.inf, (1,))
env = sb3.Sb3VecEnvWrapper(poles)

settings = yaml.safe_load((source / "isaaclab_tasks/isaaclab_tasks/direct/cartpole/agents/sb3_ppo_cfg.yaml").read_text())
settings |= dict(n_minibatches=4, device="cpu")  # 4 instead of batches of 4,096, which are for 4,096 environments
settings.pop("n_timesteps")
arguments = sb3.process_sb3_cfg(settings, env.num_envs)
model, returns = PPG(env=env, **arguments), []
assert (model.n_steps, model.batch_size) == (16, 16 * 64 // 4)
for _ in range(2):
    model.learn(3 * 16 * 64 * 4, reset_num_timesteps=False)
    returns.append(np.mean([info["r"] for info in model.ep_info_buffer]))
assert model.n_aux_phases == 6 and returns[-1] > returns[0]
print(f"6 phases; returns {returns[0]:.0f} at the end of the third, {returns[1]:.0f} of the sixth")
