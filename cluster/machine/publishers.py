"""What a queue remembers of its publishers, so that a repeated publish is stored once.

A named publisher numbers its messages densely; the queue remembers the last number, and which of
the recent ones it refused, so that a resend gets the answer of the first time. A publisher that is
idle for long is forgotten, by the time of the log, and starts at 1 again; names that begin with `~`
are made up by clients for one run and are forgotten sooner.

Names that begin with `dlx:` are the nodes' own: carriers of dead letters from another group, one a
source queue. Their numbers are those of the source's outbox, so they grow and may skip some, which
were not given, or went elsewhere. That is safe because a carrier sends nothing before all lower
numbers are safe.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from cluster.machine.runs import RangeMap

_SUM_BYTES = 16
_SUMS = 1 << (8 * _SUM_BYTES)
PUBLISHER_IDLE_MS = 7 * 24 * 3_600_000
EPHEMERAL_PUBLISHER_IDLE_MS = 3_600_000
EPHEMERAL_PREFIX = "~"
CARRIER_PREFIX = "dlx:"
PUBLISHERS_MAX = 100_000  # a queue; over it the one idle longest is forgotten
REFUSED_RANGES_MAX = 1_024  # a publisher
DEDUP_IDS_MAX = 1_000_000  # a queue


def is_carrier(name: str) -> bool:
    return name.startswith(CARRIER_PREFIX)


@dataclass(eq=False, slots=True)
class Publisher:
    last: int  # highest number answered
    seen_ms: int
    refused: RangeMap[None] | None = None  # numbers at or below `last`


@dataclass(eq=False, slots=True)
class Publishers:
    """Publishers of one queue, each kind in the order in which they were last heard of."""

    _named: OrderedDict[str, Publisher] = field(default_factory=OrderedDict[str, Publisher])
    _ephemeral: OrderedDict[str, Publisher] = field(default_factory=OrderedDict[str, Publisher])
    _forget_ms: int = 0  # nobody was idle for too long before

    def __len__(self) -> int:
        return len(self._named) + len(self._ephemeral)

    def known(self, name: str, now_ms: int) -> Publisher | None:
        """The publisher, unless it is new or was idle for too long."""
        if now_ms >= self._forget_ms:
            self._forget_idle(now_ms)
        return self._kind(name).get(name)

    def answered(
        self, name: str, last: int, now_ms: int, refused: Sequence[tuple[int, int]]
    ) -> None:
        """Numbers up to `last` have their answer; those in `refused` were refused."""
        kind = self._kind(name)
        publisher = kind.get(name)
        if publisher is None:
            publisher = kind[name] = Publisher(last, now_ms)
            if len(kind) > PUBLISHERS_MAX:
                kind.popitem(last=False)
        else:
            if last > publisher.last:
                publisher.last = last
            publisher.seen_ms = now_ms
            kind.move_to_end(name)
        if refused:
            if publisher.refused is None:
                publisher.refused = RangeMap()
            for first, end in refused:
                publisher.refused.put(first, end, None)
            while publisher.refused.range_count > REFUSED_RANGES_MAX:
                publisher.refused.cut(*publisher.refused.head)

    def _forget_idle(self, now_ms: int) -> None:
        self._forget_ms = min(
            _forget_idle(self._ephemeral, EPHEMERAL_PUBLISHER_IDLE_MS, now_ms),
            _forget_idle(self._named, PUBLISHER_IDLE_MS, now_ms),
        )

    def _kind(self, name: str) -> OrderedDict[str, Publisher]:
        return self._ephemeral if name.startswith(EPHEMERAL_PREFIX) else self._named

    def dump(self) -> list[Any]:
        rows: list[Any] = []
        for kind in (self._named, self._ephemeral):
            for name, publisher in kind.items():
                refused = [[first, last] for first, last, _ in publisher.refused or ()]
                rows.append([name, publisher.last, publisher.seen_ms, refused])
        return rows

    def load(self, rows: Sequence[Any]) -> None:
        for name, last, seen_ms, refused in rows:
            self.answered(name, last, seen_ms, refused)

    def invariants(self) -> None:
        for kind in (self._named, self._ephemeral):
            seen_ms = 0
            for publisher in kind.values():
                assert publisher.seen_ms >= seen_ms, "publishers are not in the order last heard of"
                seen_ms = publisher.seen_ms
                for _, last, _ in publisher.refused or ():
                    assert last <= publisher.last, "a number was refused before it was given"


def _forget_idle(kind: OrderedDict[str, Publisher], idle_ms: int, now_ms: int) -> int:
    """Those last heard of so long ago; they come first. Answers when to look again: whoever is
    heard of for the first time from now on is not idle before either.
    """
    while kind:
        name = next(iter(kind))
        due_ms = kind[name].seen_ms + idle_ms
        if due_ms > now_ms:
            return due_ms
        del kind[name]
    return now_ms + idle_ms


@dataclass(eq=False, slots=True)
class DedupIds:
    """Ids of messages stored within the window, oldest first."""

    _ids: OrderedDict[str, int] = field(default_factory=OrderedDict[str, int])
    _sum: int | None = None  # of the hashes of all; None: nobody asked yet

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, dedup_id: str) -> bool:
        return dedup_id in self._ids

    def remember(self, dedup_id: str, now_ms: int) -> None:
        self._ids[dedup_id] = now_ms
        if self._sum is not None:
            self._sum += _hash_of(dedup_id, now_ms)
        if len(self._ids) > DEDUP_IDS_MAX:
            self._drop(next(iter(self._ids)))

    def _drop(self, dedup_id: str) -> None:
        at_ms = self._ids.pop(dedup_id)
        if self._sum is not None:
            self._sum -= _hash_of(dedup_id, at_ms)

    def forget(self, window_ms: int | None, now_ms: int) -> None:
        """Drop what is older than the window."""
        ids = self._ids
        while ids:
            dedup_id = next(iter(ids))
            if window_ms is not None and ids[dedup_id] + window_ms > now_ms:
                break
            self._drop(dedup_id)

    def fingerprint(self) -> list[Any]:
        """What tells two sets of ids apart; after the first time it costs what changed."""
        if self._sum is None:
            self._sum = sum(_hash_of(dedup_id, at_ms) for dedup_id, at_ms in self._ids.items())
        return [len(self._ids), (self._sum % _SUMS).to_bytes(_SUM_BYTES, "big")]

    def dump(self) -> list[Any]:
        return list(self._ids.items())

    def load(self, rows: Sequence[Any]) -> None:
        self._ids = OrderedDict((dedup_id, at_ms) for dedup_id, at_ms in rows)
        self._sum = None


def _hash_of(dedup_id: str, at_ms: int) -> int:
    data = f"{at_ms} {dedup_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=_SUM_BYTES).digest(), "big")
