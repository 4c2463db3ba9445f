"""Cutting and joining runs of messages: pure helpers of the dispatcher."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from cluster.machine.replies import Chunk
from cluster.types import Body, BodyRef
from node.dispatch.outgoing import MessageBatch

#: Bodies that one delivery frame aims at: large enough to cost nothing, small enough to take turns.
DELIVERY_BYTES_TARGET = 1 << 20

Held = Sequence[tuple[int, int, int]]  # first, last, token


def batch_of(chunk: Chunk, bodies: Sequence[tuple[Body, Any]]) -> MessageBatch:
    """A chunk with its bodies. Equal meta of all is said once."""
    metas = [meta for _, meta in bodies]
    first = metas[0] if metas else None
    shared = len(set(map(id, metas))) == 1
    return MessageBatch(
        chunk.first,
        chunk.token,
        chunk.delivery_count,
        chunk.acquired_count,
        [body for body, _ in bodies],
        # A list always means one a body, so a shared value that is itself a list is spelled out.
        first if shared and type(first) is not list else metas,
        chunk.deaths,
    )


def lacking(holds: Iterable[Chunk], held: Held) -> list[Chunk]:
    """The parts of `holds` that are not in `held` under the same token: oldest decision first, and
    what one decision handed out in the order of `holds`, which is that of priorities.
    """
    by_token: dict[int, list[tuple[int, int]]] = {}
    for first, last, token in held:
        by_token.setdefault(token, []).append((first, last))
    parts: list[Chunk] = []
    for chunk in holds:
        start, end = chunk.first, chunk.first + chunk.bodies.count - 1
        for first, last in sorted(by_token.get(chunk.token, ())):
            if last < start or first > end:
                continue
            if first > start:
                parts.append(_part(chunk, start, first - 1))
            start = last + 1
        if start <= end:
            parts.append(_part(chunk, start, end))
    parts.sort(key=lambda chunk: chunk.token)
    return parts


def had(holds: Iterable[Chunk], progress: DeliveryProgress) -> list[tuple[int, int]]:
    """The parts of `holds` that a client so far has."""
    by_token: dict[int, list[tuple[int, int]]] = {}
    for first, last, token in progress.held:
        by_token.setdefault(token, []).append((first, last))
    found: list[tuple[int, int]] = []
    for chunk in holds:
        start, end = chunk.first, chunk.first + chunk.bodies.count - 1
        if chunk.token <= progress.mark:
            found.append((start, end))
            continue
        for first, last in by_token.get(chunk.token, ()):
            if first <= end and last >= start:
                found.append((max(first, start), min(last, end)))
    return found


def merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ascending ranges, neighbours joined."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


def overlap(first: int, last: int, ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many of these positions are in the ranges, and the highest of them."""
    count = end = 0
    for start, stop in ranges:
        low, high = max(first, start), min(last, stop)
        if low <= high:
            count += high - low + 1
            end = max(end, high)
    return count, end


def _part(chunk: Chunk, first: int, last: int) -> Chunk:
    if first == chunk.first and last - first + 1 == chunk.bodies.count:
        return chunk
    ref = chunk.bodies
    offset = ref.offset + first - chunk.first
    return replace(chunk, first=first, bodies=BodyRef(ref.index, offset, last - first + 1))


def rest(chunk: Chunk, taken: int) -> Chunk:
    return _part(chunk, chunk.first + taken, chunk.first + chunk.bodies.count - 1)


def fitting(bodies: Sequence[tuple[Body, Any]], room: int) -> int:
    """How many of the first bodies fit, at least one: a single large one must leave too."""
    for count, (body, _) in enumerate(bodies):
        room -= len(body)
        if room < 0:
            return max(1, count)
    return len(bodies)


class DeliveryProgress:
    """How far a client is: it has every chunk up to the token `mark`, and `held` beyond."""

    __slots__ = ("_token", "held", "mark")

    def __init__(self, mark: int = 0, held: Held = ()) -> None:
        self.mark = mark
        self.held = list(held)
        self._token = 0

    def sent(self, batch: MessageBatch) -> None:
        self.advance(batch.first, batch.first + len(batch.bodies) - 1, batch.token)

    def advance(self, first: int, last: int, token: int) -> None:
        """Tokens come in ascending order; the chunks of one token may leave in several frames."""
        if token > self._token:
            self._token = token
            self.mark = max(self.mark, token - 1)
            if self.held:
                self.held = [each for each in self.held if each[2] >= token]
        held = self.held
        if held and held[-1][2] == token and held[-1][1] == first - 1:
            held[-1] = (held[-1][0], last, token)
        else:
            held.append((first, last, token))
