"""An observer of what becomes of messages, for those who read a log afterwards.

A machine that runs in a node has none. A witness only looks: it changes nothing, so a machine with
one is in the same states as one without. It is told of ranges, in the order in which things happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cluster.machine.consumers import Consumer
    from cluster.machine.effects import Effect
    from cluster.machine.kinds import QueueKind
    from cluster.machine.queue import Queue
    from cluster.machine.replies import Chunk


class Witness(Protocol):
    """What it is told; `first` and `last` are positions of the queue, both included."""

    def queue_created(self, queue: QueueKind) -> None: ...

    def queue_deleted(self, queue: Queue) -> None:
        """Now, with all that is in it."""
        ...

    def published(
        self,
        queue: Queue,
        first: int,
        last: int,
        entry: int,
        offset: int,
        publisher: str | None,
        seqno: int,
    ) -> None:
        """Stored. `seqno`: of the first one; 0 when nobody numbered them."""
        ...

    def letter(
        self, queue: Queue, first: int, last: int, entry: int, offset: int, reason: str
    ) -> None:
        """Stored as dead letters of another queue of the group."""
        ...

    def answered(self, step: Any, reply: Any, body_offset: int) -> None:
        """A step of a transaction was carried out."""
        ...

    def delivered(self, queue: Queue, consumer: Consumer, chunks: Sequence[Chunk]) -> None:
        """To be settled, unless the consumer settles by taking."""
        ...

    def settled(self, queue: Queue, consumer: Consumer, first: int, last: int) -> None: ...

    def returned(
        self,
        queue: Queue,
        consumer: Consumer,
        first: int,
        last: int,
        *,
        failed: bool,
        asked: bool,
        sent: bool = True,
    ) -> None:
        """`asked`: else the consumer ended. Not `sent`: they never left, and nothing is counted."""
        ...

    def died(self, queue: Queue, first: int, last: int, reason: str, *, goes: bool) -> None:
        """`goes`: on as dead letters."""
        ...

    def moved(self, queue: Queue, first: int, last: int) -> None:
        """Dead letters that are safe in another group."""
        ...

    def purged(self, queue: Queue, first: int, last: int) -> None: ...

    def active(self, queue: Queue) -> None:
        """Another consumer is the single active one, or none is."""
        ...

    def subscribed(self, queue: Queue, consumer: Consumer) -> None: ...

    def consumer_ended(self, queue: Queue, consumer: Consumer, effects: Sequence[Effect]) -> None:
        """It gets nothing any more; `effects` so far, which tell when its session ended."""
        ...
