"""PPG in RL Zoo. Needs the extra ``zoo``."""

from sb3_ppg.zoo.registration import register

__all__ = ["register"]
