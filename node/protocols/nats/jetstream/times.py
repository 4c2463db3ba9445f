"""Points in time and spans as NATS writes them. Points are ms since the epoch here, spans ns."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
#: No point in time at all.
NEVER: Final = "0001-01-01T00:00:00Z"

_POINT: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\d*(Z|z|[+-]\d\d:\d\d)"
)
_SPAN: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_UNITS_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": NS_PER_MS,
    "s": NS_PER_S,
    "m": 60 * NS_PER_S,
    "h": 3_600 * NS_PER_S,
}


def text_of_ms(ms: int) -> str:
    """RFC 3339, in UTC. 0: no point in time."""
    if ms <= 0:
        return NEVER
    try:
        seconds = datetime.fromtimestamp(ms // 1000, UTC)
    except (OverflowError, ValueError):
        return NEVER
    fraction = f".{ms % 1000:03d}".rstrip("0").rstrip(".")
    return f"{seconds:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def ms_of_text(text: object) -> int | None:
    """Rounded down. None: it is no such point. One before the epoch is 0, as none at all is."""
    found = _POINT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    day, time, fraction, zone = found.groups()
    try:
        point = datetime.fromisoformat(f"{day}T{time}{'+00:00' if zone in 'Zz' else zone}")
        seconds = int(point.timestamp())
    except (OverflowError, ValueError):
        return None
    return max(0, seconds * 1000 + int((fraction or "0").ljust(9, "0")) // NS_PER_MS)


def ns_of_span(text: str) -> int | None:
    """Of Go's form: 1h30m, 1.5s. None: it is none, or longer than Go knows."""
    sign = -1 if text.startswith("-") else 1
    text = text.lstrip("+-") if text[:1] in {"+", "-"} else text
    if text == "0":
        return 0
    if not text or _SPAN.sub("", text):
        return None
    parts = [float(number) * _UNITS_NS[unit] for number, unit in _SPAN.findall(text)]
    return sign * sum(map(int, parts)) if sum(parts) < 1 << 63 else None


def span_of_ns(ns: int) -> str:
    """As Go prints it."""
    if ns < NS_PER_S:
        for unit in ("ms", "µs"):
            if ns >= _UNITS_NS[unit]:
                return f"{ns / _UNITS_NS[unit]:.9g}{unit}"
        return f"{ns}ns" if ns else "0s"
    minutes, rest = divmod(ns, 60 * NS_PER_S)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / NS_PER_S:.9f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text
