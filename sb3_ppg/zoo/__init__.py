"""PPG in RL Zoo. Needs the extra ``zoo``."""

from sb3_ppg.zoo.registration import ALGOS, register

__all__ = ["ALGOS", "register"]
