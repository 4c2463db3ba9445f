"""Where a time or a value lies in a picture, and which of them are written at the axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from chaos.postmortem.report.facts import Window
from chaos.postmortem.report.units import moment

#: Of all pictures, so that they stand exactly under each other.
WIDTH: Final = 1_180
LEFT: Final = 150
RIGHT: Final = 1_164

_STEPS_S: Final = (
    *(1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1_800),
    *(3_600, 7_200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800),
)
_TICKS_MAX: Final = 12
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TimeAxis:
    window: Window

    def x(self, at_ns: int) -> float:
        """Times outside lie on the border."""
        length_ns = self.window.to_ns - self.window.from_ns
        share = (at_ns - self.window.from_ns) / length_ns
        return LEFT + min(max(share, 0.0), 1.0) * (RIGHT - LEFT)

    def shows(self, from_ns: int, to_ns: int) -> bool:
        return from_ns < self.window.to_ns and to_ns >= self.window.from_ns

    def ticks(self) -> list[tuple[int, str]]:
        """At round times of the clock, with as much of it as differs."""
        first, last = self.window.from_ns, self.window.to_ns
        length_s = (last - first) / _SECOND_NS
        step_s = next((s for s in _STEPS_S if length_s / s <= _TICKS_MAX), _STEPS_S[-1])
        step_ns = step_s * _SECOND_NS
        form = "%H:%M:%S" if step_s < 60 else "%H:%M" if length_s <= 86_400 else "%d %b %H:%M"
        if step_s >= 86_400:
            form = "%d %b"
        begin = -(-first // step_ns) * step_ns
        return [(at, moment(at).strftime(form)) for at in range(begin, last + 1, step_ns)]


@dataclass(frozen=True, slots=True)
class ValueAxis:
    """From `low` at the bottom to `high` at the top; `log`: powers of ten have equal distances."""

    low: float
    high: float
    top: float
    bottom: float
    log: bool = False

    def y(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)

    def ticks(self) -> list[float]:
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            step = 1 if last - first <= 4 else 2
            return [10.0**power for power in range(first, last + 1, step)]
        step = (self.high - self.low) / (4 if self.bottom - self.top >= 90 else 2)
        count = round((self.high - self.low) / step)
        return [self.low + step * number for number in range(count + 1)]


def linear(highest: float, top: float, bottom: float) -> ValueAxis:
    """From 0 to a round number."""
    return ValueAxis(0.0, _round_up(highest), top, bottom)


def logarithmic(lowest: float, highest: float, top: float, bottom: float) -> ValueAxis:
    """Whole decades, two at least."""
    first = math.floor(math.log10(max(lowest, 0.01)))
    last = max(math.ceil(math.log10(max(highest, 0.1))), first + 2)
    return ValueAxis(10.0**first, 10.0**last, top, bottom, log=True)


def _round_up(value: float) -> float:
    """To 1, 2, 4, 6 or 8 times a power of ten: a quarter of it is a round number as well."""
    if value <= 0:
        return 4.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(digit * power for digit in (1, 2, 4, 6, 8, 10) if digit * power >= value)
