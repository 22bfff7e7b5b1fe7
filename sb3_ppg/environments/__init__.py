"""EnvPool's environments, which need the extra ``envpool`` or ``procgen``, and Gymnasium's vector environments."""

from sb3_ppg.environments.envpool_env import EnvPoolEnv
from sb3_ppg.environments.envpool_vec_env import EnvPoolVecEnv
from sb3_ppg.environments.gymnasium_vec_env import GymnasiumVecEnv

__all__ = ["EnvPoolEnv", "EnvPoolVecEnv", "GymnasiumVecEnv"]
