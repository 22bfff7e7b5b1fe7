"""Tables in Markdown, and curves in pictures."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

COLORS = {"PPO": "tab:red", "PPG": "tab:blue"}  # in all pictures; also of their variants


def page(title: str, *paragraphs: str) -> str:
    """Return a page in Markdown."""
    return "\n\n".join([f"# {title}", *paragraphs]) + "\n"


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [head, ["---"] * len(head), *rows])


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


def finish(axes: Axes, title: str, xlabel: str, ylabel: str = "return", legend: Any = None) -> None:
    """
    Add titles, a grid and a legend.

    :param legend: its place; None: there is none
    """
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    if legend is not None and axes.has_data():
        axes.legend(loc=legend)


def draw_seeds(axes: Axes, values: pd.DataFrame, label: str, color: str) -> None:
    """
    Draw the mean of several seeds, and their range.

    :param values: (n_points, n_seeds), against its index
    """
    axes.plot(values.index, values.mean(axis=1), label=label, color=color)
    axes.fill_between(values.index, values.min(axis=1), values.max(axis=1), alpha=0.2, color=color)
