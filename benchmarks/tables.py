"""Parts of tables in Markdown."""

from collections.abc import Iterable

import pandas as pd

COLORS = {"PPO": "tab:red", "PPG": "tab:blue"}  # in all pictures; also of their variants


def listed(values: Iterable[float], digits: int = 1) -> str:
    """Return numbers with commas between them."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def machines(rows: pd.DataFrame) -> str:
    """Return a sentence that names the machines of the rows."""
    return f"{' and '.join(rows['machine'].unique())}."
