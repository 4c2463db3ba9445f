"""What the group's machine asks of a queue, whatever its type.

The types are a closed set, named by `QueueConfig.type`. `queue` is the one there is. A retained
stream, whose consumers are cursors over messages that stay, is another class with these methods
and another line in `KINDS`, made of the same parts; the group's machine does not change for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from cluster.machine.checkout import Checkout
from cluster.machine.commands import QueueCommand
from cluster.machine.context import ApplyContext, DeadLetterTarget
from cluster.machine.disposal import Disposal
from cluster.machine.effects import Effect
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import QueueGauges, QueueView, Row, RowState
from cluster.machine.lifetime import QueueLifetime
from cluster.machine.limits import QueueLimits
from cluster.machine.queue import Queue
from cluster.machine.replies import Chunk, Reply
from cluster.machine.subscribing import Subscriptions
from cluster.machine.timetable import Timed
from cluster.types import ConsumerKey


class QueueKind(DeadLetterTarget, Timed, Protocol):
    identity: QueueIdentity
    disposal: Disposal
    checkout: Checkout
    lifetime: QueueLifetime
    subscriptions: Subscriptions
    limits: QueueLimits

    @property
    def message_count(self) -> int: ...
    @property
    def waiting_count(self) -> int:
        """Those of them that are with no consumer."""
        ...

    @property
    def is_held_up(self) -> bool:
        """Messages are ready, and those who are subscribed may not have them now."""
        ...

    # What changes it; all of this is followed by `advance`.
    def apply(self, context: ApplyContext, command: QueueCommand, /) -> Reply: ...
    def set_version(self, version: int, /) -> None: ...
    def close(self, context: ApplyContext, /) -> None: ...
    def advance(self, context: ApplyContext, /) -> None: ...

    # Looking.
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


KINDS: dict[str, Callable[[QueueIdentity, int], QueueKind]] = {"queue": Queue}
