"""When a queue itself ends: unused for too long (`expires_ms`), or left by its last consumer."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.machine.consumers import Consumers
from cluster.machine.context import ApplyContext
from cluster.machine.effects import QueueExpired
from cluster.machine.identity import QueueIdentity
from cluster.machine.timetable import Deadline

#: The effect QueueExpired is repeated after this, should the catalog not have heard it.
EXPIRY_REPEAT_MS = 10_000


@dataclass(eq=False, slots=True)
class QueueLifetime:
    """Owns when the queue was last used."""

    identity: QueueIdentity
    consumers: Consumers
    deadline: Deadline
    unused_since_ms: int  # of no meaning while a consumer is registered
    had_consumer: bool = False
    reported_ms: int | None = None  # when QueueExpired was last emitted

    def used(self, now_ms: int) -> None:
        """Its expiry starts anew."""
        self.unused_since_ms = now_ms
        self.reported_ms = None

    def subscribed(self) -> None:
        self.reported_ms = None
        self.had_consumer = True

    def unused(self, now_ms: int) -> None:
        """A consumer went, perhaps the last one."""
        self.unused_since_ms = now_ms
        if self._auto_delete_is_due:
            self.deadline.wake_at(now_ms)

    @property
    def _auto_delete_is_due(self) -> bool:
        """Unless somebody is subscribed."""
        return self.had_consumer and self.identity.config.auto_delete

    def _due_ms(self) -> int | None:
        """When the queue is to be dropped, or to be reported once more."""
        idle_ms = 0 if self._auto_delete_is_due else self.identity.config.expires_ms
        if idle_ms is None or self.consumers.in_use:
            return None
        if self.reported_ms is not None:
            return self.reported_ms + EXPIRY_REPEAT_MS
        return self.unused_since_ms + idle_ms

    def end(self, context: ApplyContext) -> None:
        """If it is time."""
        due_ms = self._due_ms()
        if due_ms is not None and due_ms <= context.now_ms:
            self.reported_ms = context.now_ms
            context.effects.append(QueueExpired(self.identity.id))

    def look_ahead(self) -> None:
        """Of a queue that may end by itself."""
        due_ms = self._due_ms()
        if due_ms is not None:
            self.deadline.wake_at(due_ms)
