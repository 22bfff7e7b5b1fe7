"""EnvPool's environments, which need the extra ``envpool`` or ``procgen``, and Gymnasium's vector environments."""

from sb3_ppg.environments.vec_envs import EnvPoolEnv, EnvPoolVecEnv, GymnasiumVecEnv

__all__ = ["EnvPoolEnv", "EnvPoolVecEnv", "GymnasiumVecEnv"]
