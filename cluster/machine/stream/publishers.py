"""What a stream remembers of those who publish into it: their numbers, and ids of messages."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cluster.machine.admission import (
    DEDUP_IDS_MAX,
    EPHEMERAL_PREFIX,
    PUBLISHERS_MAX,
    Publishers,
    PublisherState,
)
from cluster.machine.runs import RangeMap
from cluster.machine.store import CHAIN_FACTOR, CHAIN_MASK
from cluster.machine.sums import factor

#: Of one publisher: runs of what was stored, and of answers, that can be given once more.
RUNS_MAX: Final = 1_024

#: [code, number]: see `Enqueued.answers`.
Answer = tuple[int, int]


@dataclass(eq=False, slots=True)
class StreamPublisher(PublisherState):
    #: From its numbers to how much higher the sequences are.
    stored: RangeMap[int] = field(default_factory=RangeMap[int])
    answers: RangeMap[Answer] = field(default_factory=RangeMap[Answer])

    @property
    def remembered_from(self) -> int:
        """Lower numbers that are not in `stored` either may have been refused. What is in neither
        map from here on was stored: of answers only the lowest runs are ever cut.
        """
        return 0 if self.answers.range_count < RUNS_MAX else self.answers.head[0]

    def note(
        self,
        seqno: int,
        stored: Sequence[tuple[int, int, int]],
        answers: Sequence[tuple[int, Answer]],
    ) -> None:
        """What became of a batch: (first place, last place, first sequence), (place, answer)."""
        for first, last, sequence in stored:
            self.stored.put(seqno + first, seqno + last, sequence - seqno - first)
        for place, answer in answers:
            self.answers.put(seqno + place, seqno + place, answer)
        for kept in (self.stored, self.answers):
            while kept.range_count > RUNS_MAX and kept.head[1] < seqno:
                kept.cut(*kept.head)


class StreamPublishers(Publishers):
    """Of one stream."""

    def heard(self, name: str, last: int, now_ms: int) -> StreamPublisher:
        """Numbers up to `last` have their answer."""
        kind = self._kinds[name.startswith(EPHEMERAL_PREFIX)]
        if name not in kind:
            kind[name] = StreamPublisher(0, now_ms)
            if len(kind) > PUBLISHERS_MAX:
                kind.popitem(last=False)
        self.answered(name, last, now_ms, ())
        found = kind[name]
        assert isinstance(found, StreamPublisher), "a publisher of a queue"
        return found

    def dump(self) -> list[Any]:
        return [
            [
                name,
                publisher.last,
                publisher.seen_ms,
                [list(row) for row in publisher.stored],
                [[first, last, *answer] for first, last, answer in publisher.answers],
            ]
            for name, publisher in self._all()
        ]

    def fingerprint(self) -> list[Any]:
        """What was stored for them is in the stream's own."""
        return [
            [name, publisher.last, publisher.seen_ms, publisher.answers.count]
            for name, publisher in self._all()
        ]

    def _all(self) -> list[tuple[str, StreamPublisher]]:
        return [
            (name, publisher)
            for kind in self._kinds
            for name, publisher in kind.items()
            if isinstance(publisher, StreamPublisher)
        ]

    def load(self, rows: Sequence[Any]) -> None:
        for name, last, seen_ms, stored, answers in rows:
            publisher = self.heard(name, last, seen_ms)
            for first, end, ahead in stored:
                publisher.stored.put(first, end, ahead)
            for first, end, code, number in answers:
                publisher.answers.put(first, end, (code, number))

    def invariants(self) -> None:
        Publishers.invariants(self)
        for _, publisher in self._all():
            for kept in (publisher.stored, publisher.answers):
                kept.invariants()
                assert kept.end <= publisher.last, "an answer to what never came"


class MessageIds:
    """Ids of messages stored within the window, oldest first, and of the last one of all."""

    __slots__ = ("_chain", "_ids", "_known", "last")

    def __init__(self) -> None:
        self._ids: OrderedDict[str, tuple[int, int]] = OrderedDict()  # (sequence, stored ms)
        self._known = 0  # that ever were remembered
        self._chain = 0  # of all of these
        self.last = ""  # of the message stored last; "": it had none

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, message_id: str) -> int:
        """The sequence under which it was stored; 0: it was not, within the window."""
        found = self._ids.get(message_id)
        return 0 if found is None else found[0]

    def remember(self, message_id: str, sequence: int, now_ms: int) -> None:
        self._ids[message_id] = sequence, now_ms
        self._known += 1
        mixed = factor(message_id.encode("utf-8", "surrogatepass")) + (sequence << 32) + now_ms
        self._chain = (self._chain * CHAIN_FACTOR + mixed) & CHAIN_MASK
        if len(self._ids) > DEDUP_IDS_MAX:
            self._ids.popitem(last=False)

    def forget(self, window_ms: int, now_ms: int) -> None:
        """What is older than the window."""
        ids = self._ids
        while ids:
            message_id = next(iter(ids))
            if ids[message_id][1] + window_ms > now_ms:
                break
            del ids[message_id]

    def rows(self, after: int = 0) -> Iterator[tuple[str, int, int]]:
        """(id, sequence, stored ms) of those behind that sequence, oldest first."""
        ids = self._ids.items()
        return ((message_id, at, ms) for message_id, (at, ms) in ids if at > after)

    def clear(self) -> None:
        self._ids.clear()

    def fingerprint(self) -> list[Any]:
        return [self._known, self._chain, len(self._ids), self.last]

    def dump(self) -> list[Any]:
        return [self._known, self._chain, self.last, list(map(list, self.rows()))]

    def load(self, data: Sequence[Any]) -> None:
        self._known, self._chain, self.last, rows = data
        for message_id, sequence, at_ms in rows:
            self._ids[message_id] = sequence, at_ms
