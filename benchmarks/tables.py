"""Parts of tables in Markdown."""

from collections.abc import Iterable, Mapping

import pandas as pd

from sb3_ppg.comparison.report import table

COLORS = {"PPO": "tab:red", "PPG": "tab:blue"}  # in all pictures; also of their variants


def formatted(rows: pd.DataFrame, columns: Mapping[str, str]) -> str:
    """
    Return a table in Markdown.

    :param rows: a row for each line
    :param columns: by title, a format with names of columns: ``{"steps/s": "{speed:.1f}"}``
    """
    return table(list(columns), ([text.format(**row) for text in columns.values()] for row in rows.to_dict("records")))


def listed(values: Iterable[float], digits: int = 1) -> str:
    """Return numbers with commas between them."""
    return ", ".join(f"{value:.{digits}f}" for value in values)


def machines(rows: pd.DataFrame) -> str:
    """Return a sentence that names the machines of the rows."""
    return f"{' and '.join(rows['machine'].unique())}."
