"""What the group's machine asks of a queue, whatever its type.

The types are a closed set, named by `QueueConfig.type`: queues, from which a message goes to one
consumer, and streams, whose consumers are cursors over messages that stay. Another one is a class
with these methods and a line in `KINDS`; the group's machine does not change for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from cluster.machine.commands import Arriving, Enqueue, HandedTo, QueueCommand, Ranges
from cluster.machine.context import ApplyContext, DeadLetterTarget
from cluster.machine.effects import DeadLetter, Effect
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import QueueGauges, QueueView, Removed, Row, RowState
from cluster.machine.queue import Queue
from cluster.machine.replies import Chunk, Refused, Reply
from cluster.machine.stream.stream import Stream
from cluster.machine.timetable import Timed
from cluster.types import ConsumerKey


class QueueKind(DeadLetterTarget, Timed, Protocol):
    identity: QueueIdentity

    @property
    def message_count(self) -> int: ...
    @property
    def waiting_count(self) -> int:
        """Those of them that are with no consumer."""
        ...

    @property
    def in_use(self) -> bool:
        """Somebody is subscribed."""
        ...

    @property
    def removed(self) -> Mapping[str, Removed]:
        """What left it otherwise than settled, by reason; since machine version 2."""
        ...

    @property
    def reserved(self) -> tuple[int, int]:
        """Room kept for transactions: messages, bytes."""
        ...

    # What changes it; all of this is followed by `advance`.
    def apply(self, context: ApplyContext, command: QueueCommand, /) -> Reply: ...
    def used(self, now_ms: int, /) -> None:
        """Its expiry starts anew."""

    def reserve(self, count: int, size: int, /) -> None:
        """Room for so many messages, of so many bytes in all; of less than none: give it back."""

    # Of the consumers that `consumer_keys` names.
    def consumer_connected(self, key: ConsumerKey, /, *, connected: bool) -> None:
        """Its session is suspected, or back."""

    def consumer_was_handed(self, key: ConsumerKey, handed: HandedTo | None, /) -> None:
        """How far it is, whose session is about to end; None: its node does not know."""

    def end_consumer(self, context: ApplyContext, key: ConsumerKey, /, *, failed: bool) -> None:
        """Nothing is left of it: all it holds is returned (B11)."""

    def set_version(self, version: int, /) -> None: ...
    def skip_lost(self, context: ApplyContext, term: int, /) -> None:
        """An era begins, in this term: no number stands for two messages, since others may know
        what is lost.
        """

    def close(self, context: ApplyContext, /) -> None: ...
    def advance(self, context: ApplyContext, /) -> bool:
        """Let everything happen that can happen now: doing it twice changes nothing. True: messages
        are ready, and those who are subscribed may not have them now.
        """
        ...

    # Looking.
    def objection(self, context: ApplyContext, steps: Sequence[Enqueue], /) -> Refused | None:
        """Why not all of these would be taken now."""
        ...

    def no_room(
        self, context: ApplyContext, count: int, size: int, batches: Sequence[Arriving], /
    ) -> Refused | None:
        """Why room cannot be kept for so many messages, of so many bytes in all. `batches`: the
        same in detail, for a stream.
        """
        ...

    def lacks(
        self, consumer: ConsumerKey, ranges: Ranges, token: int | None = None, /
    ) -> Refused | None:
        """Why the consumer cannot settle these."""
        ...

    def keeps(self, ranges: Ranges, /) -> Refused | None:
        """Why these cannot all be withdrawn."""
        ...

    def dead_letters(self, count: int, after: DeadLetter | None, /) -> Sequence[DeadLetter]:
        """The first ones on their way to other groups, or the first behind that one; those that
        were put off come last.
        """
        ...

    def effects_on_leader(self) -> Sequence[Effect]: ...
    def view(self) -> QueueView: ...
    def gauges(self) -> QueueGauges: ...
    def rows(self, start: int, count: int, state: RowState | None, /) -> Sequence[Row]: ...
    def consumer_holds(self, key: ConsumerKey, /) -> Sequence[Chunk] | None: ...
    def is_windowed(self, key: ConsumerKey, /) -> bool: ...
    def is_large(self, position: int, /) -> bool: ...
    def consumer_keys(self) -> Sequence[tuple[str, ConsumerKey]]:
        """(session, key) of every consumer, oldest first."""
        ...

    def live_indexes(self) -> list[tuple[int, int]]: ...
    def dump(self) -> list[Any]: ...
    def fingerprint(self) -> list[Any]:
        """Less than `dump`, yet different when it is."""
        ...

    def load(self, data: Sequence[Any], now_ms: int, /) -> None: ...
    def invariants(self) -> None: ...


class Kind(NamedTuple):
    make: Callable[[QueueIdentity, int], QueueKind]
    since: int  # machine version


KINDS: dict[str, Kind] = {"queue": Kind(Queue, 1), "stream": Kind(Stream, 4)}
