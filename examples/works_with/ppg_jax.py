"""
gymnax, brax: environments in JAX as an SB3 vector environment, which steps all of them in one compiled call.

Needs ``pip install gymnax==1.0.1 brax==0.14.2``.
"""

from functools import partial

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
from brax import envs
from gymnasium import spaces
from gymnax.environments.spaces import gymnax_space_to_gym_space
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from sb3_ppg import PPG


class JaxVecEnv(VecEnv):
    """
    Functions of one environment as a vector environment.

    :param reset: from a key: observation, state
    :param step: from a key, a state and an action: observation, state, reward, terminated, truncated, last observation
    """

    def __init__(self, reset, step, n_envs: int, observation_space: spaces.Space, action_space: spaces.Space):
        self.resets, self.steps = jax.jit(jax.vmap(reset)), jax.jit(jax.vmap(step))
        super().__init__(n_envs, observation_space, action_space)
        self.seed(0)

    def keys(self):
        self.key, key = jax.random.split(self.key)
        return jax.random.split(key, self.num_envs)

    def reset(self):
        observations, self.state = self.resets(self.keys())
        return np.array(observations)

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        observations, self.state, *rest = self.steps(self.keys(), self.state, self.actions)
        # Copies, because JAX's arrays cannot be written to
        observations, rewards, terminated, truncated, last = map(np.array, (observations, *rest))
        infos = [{} for _ in range(self.num_envs)]
        for n in (terminated | truncated).nonzero()[0]:
            infos[n] = {"terminal_observation": last[n], "TimeLimit.truncated": truncated[n] and not terminated[n]}
        return observations, rewards, terminated | truncated, infos

    def seed(self, seed=None):
        self.key = jax.random.PRNGKey(seed or 0)
        return [seed] * self.num_envs

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name)] * len(self._get_indices(indices))

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False] * len(self._get_indices(indices))

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError

    def env_method(self, method_name, *method_args, indices=None, **method_kwargs):
        raise NotImplementedError

    def close(self):
        pass


def gymnax_env(name: str, n_envs: int) -> VecEnv:
    """Return environments of gymnax."""
    env, params = gymnax.make(name)

    def step(key, state, action):
        observation, state, reward, terminated, truncated, info = env.step(key, state, action, params)
        return observation, state, reward, terminated, truncated, info["final_observation"]

    own = (gymnax_space_to_gym_space(space) for space in (env.observation_space(params), env.action_space(params)))
    return VecMonitor(JaxVecEnv(partial(env.reset, params=params), step, n_envs, *own))


def brax_env(name: str, n_envs: int, max_steps: int = 1000) -> VecEnv:
    """Return environments of Brax, whose own wrappers for Gym need the old package ``gym``."""
    env = envs.get_environment(name, backend="generalized")

    def reset(key):
        state = env.reset(key)
        return state.obs, (state, state, 0)

    def step(key, states_and_time, action):
        """Episodes of one environment begin alike, as in Brax's own ``AutoResetWrapper``."""
        first, state, time = states_and_time
        state, time = env.step(state, action), time + 1
        terminated, truncated = state.done > 0, time >= max_steps
        kept, time = jax.tree.map(partial(jnp.where, terminated | truncated), (first, 0), (state, time))
        return kept.obs, (first, kept, time), state.reward, terminated, truncated, state.obs

    seen, acting = spaces.Box(-np.inf, np.inf, (env.observation_size,)), spaces.Box(-1, 1, (env.action_size,))
    return VecMonitor(JaxVecEnv(reset, step, n_envs, seen, acting))


for name, env in {"gymnax": gymnax_env("CartPole-v1", 16), "Brax": brax_env("inverted_pendulum", 16)}.items():
    model = PPG("MlpPolicy", env, n_steps=64, n_policy_iterations=2, batch_size=256, seed=0)
    returns = []
    for _ in range(2):
        model.learn(3 * 2048, reset_num_timesteps=False)
        returns.append(np.mean([info["r"] for info in model.ep_info_buffer]))
    assert model.n_aux_phases == 6 and returns[1] > returns[0]
    print(f"{name}: returns {returns[0]:.0f} after three phases, {returns[1]:.0f} after six", end="; ")
