"""Learning from recorded data: BCQ, data sets, and PPG's start from them."""

from sb3_ppg.offline.data import Dataset, load_dataset

__all__ = ["Dataset", "load_dataset"]
