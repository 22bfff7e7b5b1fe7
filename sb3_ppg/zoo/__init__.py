"""PPG in RL Zoo. Needs the extra ``zoo``."""

from typing import TYPE_CHECKING, Any

from sb3_ppg.errors import missing_extras_named

__all__ = ["ALGOS", "patched", "register"]

if TYPE_CHECKING:
    from sb3_ppg.zoo.registration import ALGOS, patched, register
else:

    def __getattr__(name: str) -> Any:
        """Import the Zoo only when it is needed: the launcher lists its scripts without it."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with missing_extras_named():
            import rl_zoo3  # noqa: F401  first: its extra brings all that the others need

            from sb3_ppg.zoo import registration
        return getattr(registration, name)
