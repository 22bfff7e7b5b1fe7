"""Share models on the Hugging Face Hub, or in a folder, without pickle. The files are those of ``sb3_ppg.hub.pretrained``."""

from sb3_ppg.errors import missing_extras_named

with missing_extras_named():
    from sb3_ppg.hub.pretrained import from_pretrained, save_pretrained
    from sb3_ppg.hub.repository import EvaluationResult, download, load, push, write_repository

__all__ = [
    "EvaluationResult",
    "download",
    "from_pretrained",
    "load",
    "push",
    "save_pretrained",
    "write_repository",
]
