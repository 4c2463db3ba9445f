"""Pictures without a screen. Matplotlib's types are half unknown, so they end here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

GRID = {"color": "#dddddd", "linewidth": 0.6}
PROTOCOL_COLOURS = {"native": "#0072B2", "amqp": "#D55E00", "nats": "#009E73"}
OTHER_COLOUR = "#555555"

_STYLE: Any = {"font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"}
_matplotlib: Any = mpl


def draw(path: Path, size_inches: tuple[float, float], content: Callable[[Any], None]) -> None:
    """`content` gets the figure and fills it."""
    with _matplotlib.rc_context(_STYLE):
        figure: Any = Figure(figsize=size_inches, layout="constrained")
        content(figure)
        figure.savefig(path, dpi=110)


def colour_of(name_of_map: str, share: float) -> tuple[float, float, float]:
    red, green, blue, _ = _matplotlib.colormaps[name_of_map](share)
    return red, green, blue


def numbers(template: str) -> FuncFormatter:
    """Labels of an axis, such as `{:,.0f}`."""

    def label(value: float, _place: int | None) -> str:
        return template.format(value)

    return FuncFormatter(label)
