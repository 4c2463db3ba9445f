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

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

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


@dataclass(eq=False, slots=True)
class DeadLetterOutbox:
    """Dead letters that wait to be carried, in the order in which they died.

    Their target is in another group; or it is in this one and has no room.
    """

    batches: deque[DeadLetterBatch] = field(default_factory=deque[DeadLetterBatch])
    next: int = 1  # the next dead letter has this number, or a higher one
    count: int = 0

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
        self.batches.append(DeadLetterBatch(number, first, last, deaths, *to, priority))
        self.next = number + last - first + 1
        self.count += last - first + 1

    def take(self, number: int) -> list[DeadLetterBatch]:
        """The dead letters numbered up to `number`, which are not in it any more."""
        taken: list[DeadLetterBatch] = []
        while self.batches and self.batches[0].number <= number:
            batch = self.batches.popleft()
            last = min(batch.last, batch.first + number - batch.number)
            taken.append(batch._replace(last=last))
            self.count -= last - batch.first + 1
            if last < batch.last:
                self.batches.appendleft(batch._replace(number=number + 1, first=last + 1))
        return taken

    def dump(self) -> list[Any]:
        return [self.next, [list(batch) for batch in self.batches]]

    def load(self, data: Sequence[Any]) -> None:
        self.next = data[0]
        self.batches = deque(DeadLetterBatch(*batch) for batch in data[1])
        self.count = sum(batch.last - batch.first + 1 for batch in self.batches)

    def invariants(self) -> None:
        number = 1
        for batch in self.batches:
            assert number <= batch.number, "numbers of dead letters are not in order"
            number = batch.number + batch.last - batch.first + 1
        assert number <= self.next, "the next number is wrong"
