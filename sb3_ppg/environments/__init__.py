"""Environments by EnvPool. Needs the extra ``envpool``, or ``procgen``."""

from sb3_ppg.environments.envpool_env import EnvPoolEnv
from sb3_ppg.environments.envpool_vec_env import EnvPoolVecEnv

__all__ = ["EnvPoolEnv", "EnvPoolVecEnv"]
