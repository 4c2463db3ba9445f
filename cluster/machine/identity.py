"""Who a queue is and how it is configured: all its parts read this, the queue alone changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.machine.commands import QueueConfig
from cluster.machine.consumers import Consumer
from cluster.machine.effects import Effect
from cluster.machine.replies import Chunk, StreamChunk
from cluster.machine.versions import AS_OF_SINCE
from cluster.types import AS_OF_NOTHING, AsOf, ConsumerKey, QueueId


@dataclass(eq=False, slots=True)
class QueueIdentity:
    id: QueueId
    vhost: str
    name: str
    config: QueueConfig
    version: int = 1  # of the group's machine
    recorder: EventRecorder | None = None
    as_of: AsOf = AS_OF_NOTHING  # what the settings hold as of

    def configure(self, config: QueueConfig, as_of: AsOf) -> None:
        self.config = config
        if self.version >= AS_OF_SINCE:
            self.as_of = as_of

    def is_stale(self, as_of: AsOf) -> bool:
        """Settings as of this moment are older than those that it has."""
        return self.version >= AS_OF_SINCE and as_of < self.as_of

    def capped(self, priority: int) -> int:
        return min(priority, self.config.max_priority)


class EventRecorder(Protocol):
    """Hears what becomes of messages while a log is replayed for people; a node has none.

    It only looks, so a machine with one goes through the same states as one without. `first` and
    `last` are positions of the queue, both included; events come in the order in which they happen.
    """

    def queue_created(self, queue: QueueIdentity) -> None: ...

    def queue_deleted(
        self,
        queue: QueueIdentity,
        positions: Sequence[tuple[int, int]],
        consumers: Sequence[Consumer],
    ) -> None:
        """With all messages in it, and those who are subscribed."""

    def published(
        self,
        queue: QueueIdentity,
        first: int,
        last: int,
        entry: int,
        offset: int,
        publisher: str | None,
        seqno: int,
    ) -> None:
        """Stored. `seqno`: of the first one; 0 when nobody numbered them."""

    def dead_lettered(
        self, queue: QueueIdentity, first: int, last: int, entry: int, offset: int, reason: str
    ) -> None:
        """Stored as dead letters of another queue of the group."""

    def answered(self, step: Any, reply: Any, body_offset: int) -> None:
        """A step of a transaction was carried out."""

    def delivered(self, queue: QueueIdentity, consumer: Consumer, chunks: Sequence[Chunk]) -> None:
        """To be settled, unless the consumer settles by taking."""

    def settled(self, queue: QueueIdentity, consumer: Consumer, first: int, last: int) -> None: ...

    def returned(
        self,
        queue: QueueIdentity,
        consumer: Consumer,
        first: int,
        last: int,
        *,
        failed: bool,
        asked: bool,
        sent: bool = True,
    ) -> None:
        """`asked`: else the consumer ended. Not `sent`: they never left, and nothing is counted."""

    def died(self, queue: QueueIdentity, first: int, last: int, reason: str, *, goes: bool) -> None:
        """`goes`: on as dead letters."""

    def moved(self, queue: QueueIdentity, first: int, last: int) -> None:
        """Dead letters that are safe in another group."""

    def purged(self, queue: QueueIdentity, first: int, last: int) -> None: ...

    def withdrawn(self, queue: QueueIdentity, first: int, last: int) -> None:
        """Taken out while they waited, perhaps into another queue."""

    def active(self, queue: QueueIdentity, consumer: Consumer | None, token: int) -> None:
        """The single active consumer changed."""

    def subscribed(self, queue: QueueIdentity, consumer: Consumer) -> None: ...

    def consumer_ended(
        self, queue: QueueIdentity, consumer: Consumer, effects: Sequence[Effect]
    ) -> None:
        """It gets nothing any more; `effects` so far, which tell when its session ended."""

    # Consumers of streams have names, and what one has done with a message is nothing to another.

    def handed(
        self, queue: QueueIdentity, key: ConsumerKey, name: str, chunks: Sequence[StreamChunk]
    ) -> None: ...

    def acknowledged(
        self, queue: QueueIdentity, key: ConsumerKey, name: str, first: int, last: int
    ) -> None: ...

    def done(self, queue: QueueIdentity, first: int, last: int) -> None:
        """They leave the stream: whoever wanted them has acknowledged them."""
