"""Learning from recorded data: BCQ, data sets, and PPG's start from them."""

from sb3_ppg.offline.bcq import BCQ
from sb3_ppg.offline.data import Dataset, load_dataset, record, save_as_minari
from sb3_ppg.offline.policies import BCQPolicy

__all__ = ["BCQ", "BCQPolicy", "Dataset", "load_dataset", "record", "save_as_minari"]
