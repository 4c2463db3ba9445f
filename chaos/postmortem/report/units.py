"""Numbers, times and foreign text as people read them. All times are UTC."""

from __future__ import annotations

import json
import unicodedata
from datetime import UTC, datetime
from typing import cast

from cluster.machine.runs import ranges_of


def moment(at_ns: int) -> datetime:
    """Exact to the microsecond: floats of nanoseconds since 1970 are not."""
    seconds, rest_ns = divmod(at_ns, 1_000_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest_ns // 1_000)


def stamp(at_ns: int | None) -> str:
    """2026-11-18 03:04:10.400"""
    return "" if at_ns is None else moment(at_ns).isoformat(" ", "milliseconds")[:23]


def clock(at_ns: int | None) -> str:
    """03:04:10.4"""
    return "" if at_ns is None else moment(at_ns).strftime("%H:%M:%S.%f")[:10]


def iso(at_ns: int | None) -> str | None:
    return None if at_ns is None else moment(at_ns).isoformat().replace("+00:00", "Z")


def span_of(from_ns: int, to_ns: int) -> str:
    """2026-11-18 03:00:00 – 03:20:00; the day is said again where it is another."""
    begin, end = moment(from_ns), moment(to_ns)
    later = "%H:%M:%S" if begin.date() == end.date() else "%Y-%m-%d %H:%M:%S"
    return f"{begin:%Y-%m-%d %H:%M:%S} – {end.strftime(later)}"


def duration(ms: float | None) -> str:
    """With about three digits that matter: 0.4 ms, 8.1 s, 2 min 5 s, 3 h 20 min."""
    if ms is None:
        return ""
    if ms < 1_000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return _two(minutes, "min", rest_s, "s")
    hours, minutes = divmod(minutes, 60)
    return _two(hours, "h", minutes, "min") if hours < 48 else _two(*_days(hours))


def _days(hours: int) -> tuple[int, str, int, str]:
    return hours // 24, "d", hours % 24, "h"


def _two(whole: int, unit: str, rest: int, lesser: str) -> str:
    return f"{whole:,} {unit} {rest} {lesser}" if rest else f"{whole:,} {unit}"


def duration_ns(ns: int) -> str:
    return duration(ns / 1_000_000)


def number(value: float | None) -> str:
    """1,234,567; small ones with a digit behind the point if they need it."""
    if value is None:
        return ""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 else f"{value:.2g}"


def short(value: float) -> str:
    """For the labels of an axis: 0, 250, 1.5k, 20k, 3M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def size(count: float | None) -> str:
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1_024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1_024
    return f"{count:,.1f} TiB"


def plural(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def numbers(values: list[int]) -> str:
    """0, 2, 4–6: runs are joined."""
    return ", ".join(
        f"{first}"
        if first == last
        else f"{first}, {last}"
        if last == first + 1
        else f"{first}–{last}"
        for first, last in ranges_of(sorted(set(values)))
    )


def facts_told(detail: str) -> str:
    """Details are prose, or facts as a JSON object: those become `name value, name value`."""
    try:
        facts = json.loads(detail)
    except ValueError:
        return detail
    if not isinstance(facts, dict):
        return detail
    known = cast("dict[str, object]", facts).items()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in known)


def visible(text: str) -> str:
    """Names come from users: nothing in them may hide, turn the text around, or move a terminal's
    cursor. Line ends stay, they are made harmless where they matter.
    """
    return "".join(
        letter
        if letter == "\n" or unicodedata.category(letter) not in ("Cc", "Cf", "Cs", "Co", "Cn")
        else f"\\u{ord(letter):04x}"
        for letter in text
    )
