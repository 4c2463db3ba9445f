"""What queues held and did in the last minutes, and what the node had, for curves and averages.

One bounded store a node, of the copies that it has. A queue in which nothing happens costs nothing:
a sample is kept only when it differs from the one before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple

from cluster.types import QueueId
from node.management.errors import bad_request
from node.management.facts import COUNTED, QueueFacts, Sample

Json = dict[str, Any]
#: What is counted, as COUNTED says, and then messages: all, ready, unsettled.
Row = tuple[int, ...]

#: Kept by a node, of all its queues: some 30 MB. Ten minutes of 800 queues that are all busy.
SAMPLES_MAX = 100_000
SPAN_MS = 610_000
#: Points of a curve that may be asked for.
POINTS_MAX = 1_000
ROW_SIZE = len(COUNTED) + 3
_PACKED = Struct(f"{ROW_SIZE}q")
LENGTHS = ("messages", "messages_ready", "messages_unacknowledged")


class Samples:
    """By queue, and all in the order of time."""

    def __init__(self, samples_max: int = SAMPLES_MAX) -> None:
        self._max = samples_max
        self._order: deque[tuple[int, QueueId]] = deque()
        self._of: dict[QueueId, deque[tuple[int, bytes]]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def changed(self, queue: QueueId, at_ms: int, now: Sample, before: tuple[int, Sample]) -> None:
        """`before`: when it was last as it had been."""
        kept, row = self._of.get(queue), _row(now)
        if row == (_row(before[1]) if kept is None else kept[-1][1]):
            return  # only its consumers changed, or it is new
        if kept is None:
            kept = self._of[queue] = deque()
            self._keep(kept, queue, before[0], _row(before[1]))
        self._keep(kept, queue, at_ms, row)

    def _keep(self, kept: deque[tuple[int, bytes]], queue: QueueId, at_ms: int, row: bytes) -> None:
        kept.append((at_ms, row))
        self._order.append((at_ms, queue))
        if len(self._order) > self._max:
            self._drop()

    def forget_before(self, at_ms: int) -> None:
        while self._order and self._order[0][0] < at_ms:
            self._drop()

    def _drop(self) -> None:
        """The oldest, or one of the oldest: each queue's own are in order."""
        _, queue = self._order.popleft()
        kept = self._of[queue]
        kept.popleft()
        if not kept:
            del self._of[queue]

    def queues(self) -> list[QueueId]:
        """Those in which something happened."""
        return list(self._of)

    def at(self, queue: QueueId, times_ms: Sequence[int]) -> list[Row] | None:
        """What it was like at each of these times. None: as it is now, as far as is known."""
        kept = self._of.get(queue)
        if not kept:
            return None
        known = list(kept)
        moments = [at_ms for at_ms, _ in known]
        rows = [known[max(0, bisect_right(moments, at_ms) - 1)][1] for at_ms in times_ms]
        return [_PACKED.unpack(row) for row in rows]


class NodeSamples:
    """What the node itself measured, by name."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Mapping[str, int]]] = deque()

    def add(self, at_ms: int, now: Mapping[str, int]) -> None:
        self._kept.append((at_ms, now))

    def forget_before(self, at_ms: int) -> None:
        while self._kept and self._kept[0][0] < at_ms:
            self._kept.popleft()

    def curves(self, names: Sequence[str], times_ms: Sequence[int]) -> Json:
        """Samples and averages of each name; 0 before anything was measured."""
        moments = [at_ms for at_ms, _ in self._kept]
        places = [bisect_right(moments, at_ms) - 1 for at_ms in times_ms]
        nothing: dict[str, int] = {}
        rows = [self._kept[place][1] if place >= 0 else nothing for place in places]
        return {name: _curve(times_ms, [row.get(name, 0) for row in rows]) for name in names}


def _row(sample: Sample) -> bytes:
    """A third of what a tuple takes."""
    return _PACKED.pack(*sample.counts, *sample.messages)


# --- what is asked --------------------------------------------------------------------------------


class Asked(NamedTuple):
    """The times of two curves, the latest first; empty: it is not asked for."""

    rates_ms: Sequence[int]
    lengths_ms: Sequence[int]


def asked(query: Mapping[str, str], now_ms: int) -> Asked | None:
    """`msg_rates_age` and `_incr`, `lengths_age` and `_incr`, in seconds."""
    rates, lengths = times(query, "msg_rates", now_ms), times(query, "lengths", now_ms)
    return Asked(rates, lengths) if rates or lengths else None


def times(query: Mapping[str, str], what: str, now_ms: int) -> list[int]:
    """Of the curve `what`, the latest first; none: it is not asked for."""
    given = [query.get(f"{what}_{part}") for part in ("age", "incr")]
    if None in given:
        return []
    if not all(text and text.isascii() and text.isdecimal() and len(text) <= 9 for text in given):
        raise bad_request(f"{what}_age and {what}_incr are seconds")
    age, step = (int(text or 0) for text in given)
    if step < 1 or age // step >= POINTS_MAX:
        raise bad_request(f"{what}_age and {what}_incr ask for more than {POINTS_MAX} points")
    last = now_ms // 1000 // step * step
    return [1000 * (last - step * place) for place in range(age // step + 1)]


# --- what is shown --------------------------------------------------------------------------------


def now_row(facts: QueueFacts) -> Row:
    return (*facts.counts, facts.messages, facts.ready, facts.unsettled)


def add_curves(shown: Json, wanted: Asked, rates: Sequence[Row], lengths: Sequence[Row]) -> None:
    """`rates` and `lengths` are rows at the times that are wanted."""
    if wanted.lengths_ms:
        for place, name in enumerate(LENGTHS, start=len(COUNTED)):
            column = [row[place] for row in lengths]
            _add(shown, name, wanted.lengths_ms, column)
    stats = shown.get("message_stats")
    if wanted.rates_ms and stats is not None:
        columns = {name: [row[place] for row in rates] for place, name in enumerate(COUNTED)}
        given = zip(*(columns[name] for name in ("deliver", "get", "get_no_ack")), strict=True)
        columns["deliver_get"] = [sum(each) for each in given]
        columns["deliver_no_ack"] = [0] * len(rates)
        for name, column in columns.items():
            _add(stats, name, wanted.rates_ms, column)


def _add(shown: Json, name: str, times_ms: Sequence[int], column: Sequence[int]) -> None:
    shown[f"{name}_details"] = shown.get(f"{name}_details", {}) | _curve(times_ms, column)


def _curve(times_ms: Sequence[int], column: Sequence[int]) -> Json:
    span_s = (times_ms[0] - times_ms[-1]) / 1000
    return {
        "samples": [
            {"sample": value, "timestamp": at_ms}
            for at_ms, value in zip(times_ms, column, strict=True)
        ],
        "avg_rate": round((column[0] - column[-1]) / span_s, 4) if span_s else 0.0,
        "avg": round(sum(column) / len(column), 4),
    }
