"""Death records of messages, the rule that ends cycles, the dead-letter outbox.

A record is a map as CBOR and AMQP's `x-death` want it: `queue`, `reason`, `count`, `exchange`,
`routing-keys`, `time` (ms, of the first such death) and, when a per-message TTL was taken off,
`original-expiration`. The last death is first in the list; the record of the very first one says
`first`. `exchange` and `routing-keys` are None
when they are the message's own, which only its opaque meta knows. `to` is [exchange, routing key or
None] of where the message was sent: from then on it counts as published there. It is for the
machine and the node, not for clients to see.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter
from typing import Any, Final, NamedTuple, cast

from cluster.machine.commands import Ranges, SafeIn
from cluster.types import QueueId

Deaths = list[dict[str, Any]]

REJECTED = "rejected"
EXPIRED = "expired"
MAXLEN = "maxlen"
DELIVERY_LIMIT = "delivery_limit"
# Not deaths: these never become dead letters.
PURGED = "purged"
DELETED = "deleted"  # with their queue
REFUSED = "refused"  # at publish, over a limit
WITHDRAWN = "withdrawn"  # one by one, perhaps to another queue

DEATH_RECORDS_MAX = 256


def died(
    deaths: Deaths | None,
    *,
    queue: str,
    reason: str,
    now_ms: int,
    ttl_ms: int | None,
    to: tuple[str | None, str | None],
) -> Deaths:
    """The records after one more death: one record a (queue, reason), the last death first."""
    before = deaths or []
    record: dict[str, Any] = {}
    rest: Deaths = []
    for old in before:
        if not record and old["queue"] == queue and old["reason"] == reason:
            record = old
        else:
            rest.append(old)
    if record:
        record = {**record, "count": record["count"] + 1}
    else:
        sent_to = before[0].get("to") if before else None
        key = sent_to[1] if sent_to else None
        record = {
            "queue": queue,
            "reason": reason,
            "count": 1,
            "exchange": sent_to[0] if sent_to else None,
            "routing-keys": None if key is None else [key],
            "time": now_ms,
        }
        if not before:
            record["first"] = True
        if ttl_ms is not None:
            record["original-expiration"] = ttl_ms
    before_key = before[0]["to"][1] if before and before[0].get("to") else None
    record["to"] = [to[0], before_key if to[1] is None else to[1]]
    return [record, *rest][:DEATH_RECORDS_MAX]


def is_cycle(deaths: Deaths, queue: str) -> bool:
    """Would it come back to `queue` with no consumer having rejected it since it left?

    When so many queues were left that the first ones are forgotten, it is taken for one.
    """
    for record in deaths:
        if record["reason"] == REJECTED:
            return False
        if record["queue"] == queue:
            return True
    return len(deaths) >= DEATH_RECORDS_MAX


def valid_deaths(value: Any) -> Deaths | None:
    """Records that came with a message, when they have the form of records.

    Only what we know of them is kept: replicas compare records, and not every value that can be
    written equals what is read.
    """
    if not isinstance(value, (list, tuple)):
        return None
    records: Deaths = []
    for item in cast("Sequence[Any]", value):
        if not isinstance(item, dict):
            return None
        record = cast("dict[Any, Any]", item)
        if not (
            _is_text(record.get("queue"))
            and _is_text(record.get("reason"))
            and _is_whole(record.get("count"))
            and (record.get("to") is None or _is_destination(record["to"]))
        ):
            return None
        fits = {name: record[name] for name, fit in _FIELDS.items() if fit(record.get(name))}
        records.append(fits)
    return records[:DEATH_RECORDS_MAX]


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, cast("list[Any]", value)))


def _is_destination(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    parts = cast("list[Any]", value)
    return len(parts) == 2 and all(part is None or _is_text(part) for part in parts)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "queue": _is_text,
    "reason": _is_text,
    "count": _is_whole,
    "exchange": _is_text,
    "routing-keys": _is_texts,
    "time": _is_whole,
    "original-expiration": _is_whole,
    "first": lambda value: value is True,
    "to": _is_destination,
}


class DeadLetterBatch(NamedTuple):
    """Neighbouring messages that died alike, numbered from `number` on."""

    number: int
    first: int  # position in the source queue, whose store still knows the bodies
    last: int
    deaths: Deaths
    exchange: str
    routing_key: str | None
    priority: int = 0
    died: int = 0  # the number that it had until it was put off; 0: it never was
    safe_in: tuple[QueueId, ...] = ()  # targets that have it, since before it was put off

    def cut(self, count: int) -> tuple[DeadLetterBatch, DeadLetterBatch]:
        """The first `count`, and the rest."""
        middle = self.first + count
        rest = self._replace(
            number=self.number + count, first=middle, died=self.died and self.died + count
        )
        return self._replace(last=middle - 1), rest

    @property
    def end(self) -> int:
        """The number behind its last one."""
        return self.number + self.last - self.first + 1


_NUMBER: Final = attrgetter("number")


@dataclass(eq=False, slots=True)
class DeadLetterOutbox:
    """Dead letters that wait to be carried, in the order in which they died.

    Their target is in another group; or it is in this one and has no room.

    Those that cannot go now are put off once others can, and everything that dies later waits
    behind them; so what has to wait stays in order. What is put off is not sent. It gets a new
    number when it goes: targets may have taken higher ones by then.
    """

    batches: deque[DeadLetterBatch] = field(default_factory=deque[DeadLetterBatch])  # go in turn
    put_off: list[DeadLetterBatch] = field(default_factory=list[DeadLetterBatch])  # since version 5
    next: int = 1  # the next dead letter has this number, or a higher one
    count: int = 0  # of both

    def add(
        self,
        number: int,
        first: int,
        last: int,
        deaths: Deaths,
        to: tuple[str, str | None],
        priority: int,
    ) -> None:
        """`number`: of the first one, at least `next`; `to`: exchange and routing key."""
        batch = DeadLetterBatch(number, first, last, deaths, *to, priority)
        (self.put_off or self.batches).append(batch)
        self.next = batch.end
        self.count += last - first + 1

    def take(self, number: int) -> list[DeadLetterBatch]:
        """Those that go next numbered up to `number`, which are not in it any more."""
        taken: list[DeadLetterBatch] = []
        while self.batches and self.batches[0].number <= number:
            batch = self.batches.popleft()
            if batch.end > number + 1:
                batch, rest = batch.cut(number + 1 - batch.number)
                self.batches.appendleft(rest)
            taken.append(batch)
            self.count -= batch.last - batch.first + 1
        return taken

    def wait(self, ranges: Ranges, safe_in: SafeIn = ()) -> int:
        """Those that go with these numbers are put off; how many. `safe_in`: see the command."""
        going, count = list(self.batches), 0
        picked, known = _picked(going, ranges), list[DeadLetterBatch]()
        picked.sort(key=_NUMBER)
        for first, last, queues in safe_in:
            known += [
                batch._replace(safe_in=tuple(sorted({*batch.safe_in, *queues})))
                for batch in _picked(picked, [(first, last)])
            ]
        for batch in chain(picked, known):
            self.put_off.append(batch._replace(number=batch.died or batch.number, died=0))
            count += batch.last - batch.first + 1
        self.put_off.sort(key=_NUMBER)
        self.batches = deque(going)
        return count

    def go(self, ranges: Sequence[tuple[int, int]], number_after: Callable[[int], int]) -> int:
        """Those put off with these numbers go, under new ones, behind what goes already; how
        many.
        """
        count = 0
        for batch in _picked(self.put_off, ranges):
            batch = batch._replace(number=number_after(self.next - 1), died=batch.number)
            self.batches.append(batch)
            self.next = batch.end
            count += batch.last - batch.first + 1
        return count

    def everything(self) -> Iterator[DeadLetterBatch]:
        return chain(self.batches, self.put_off)

    def behind(self, number: int, *, put_off: bool) -> Iterator[tuple[DeadLetterBatch, bool]]:
        """What comes after that one, and whether it is put off; those that go come first."""
        if not put_off:
            yield from ((batch, False) for batch in _behind(self.batches, number))
            number = 0
        yield from ((batch, True) for batch in _behind(self.put_off, number))

    def dump(self) -> list[Any]:
        row = [self.next, [_dumped(batch) for batch in self.batches]]
        if self.put_off:
            row.append([_dumped(batch) for batch in self.put_off])
        return row

    def load(self, data: Sequence[Any]) -> None:
        self.next, batches, *put_off = data
        self.batches = deque(map(_loaded, batches))
        self.put_off = [_loaded(batch) for batch in put_off[0]] if put_off else []
        self.count = sum(batch.last - batch.first + 1 for batch in self.everything())

    def invariants(self) -> None:
        for batches in (self.batches, self.put_off):
            number = 1
            for batch in batches:
                assert number <= batch.number, "numbers of dead letters are not in order"
                number = batch.end
            assert number <= self.next, "the next number is wrong"
        count = sum(batch.last - batch.first + 1 for batch in self.everything())
        assert count == self.count, "dead letters are miscounted"


def _picked(
    batches: list[DeadLetterBatch], ranges: Sequence[tuple[int, int]]
) -> list[DeadLetterBatch]:
    """What has these numbers, which is not among them any more."""
    picked: list[DeadLetterBatch] = []
    for first, last in ranges:
        start, end = (bisect_right(batches, number, key=_NUMBER) for number in (first, last))
        if start and batches[start - 1].end > first:
            start -= 1
        found = batches[start:end] if first <= last else []
        if not found:
            continue
        left: list[DeadLetterBatch] = []
        if found[0].number < first:
            before, found[0] = found[0].cut(first - found[0].number)
            left.append(before)
        if found[-1].end > last + 1:
            found[-1], behind = found[-1].cut(last + 1 - found[-1].number)
            left.append(behind)
        batches[start:end] = left
        picked += found
    return picked


def _behind(batches: Sequence[DeadLetterBatch], number: int) -> Iterator[DeadLetterBatch]:
    start = bisect_right(batches, number, key=_NUMBER)
    if start and (before := batches[start - 1]).end > number + 1:
        yield before.cut(number + 1 - before.number)[1]
    yield from islice(batches, start, None)


def _dumped(batch: DeadLetterBatch) -> list[Any]:
    row = list(batch)
    if batch.safe_in:
        return [*row[:-1], list(batch.safe_in)]
    return row[:-1] if batch.died else row[:-2]  # as before version 5


def _loaded(row: Sequence[Any]) -> DeadLetterBatch:
    batch = DeadLetterBatch(*row)
    return batch._replace(safe_in=tuple(batch.safe_in)) if batch.safe_in else batch
