"""What was done to each queue since this copy began, for people who look at rates.

No state: it is in no snapshot and no digest, and two replicas that began at different times count
differently. Whatever is asked of it is asked of two moments and subtracted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from cluster.machine.commands import (
    Acknowledge,
    CreateQueue,
    DeleteQueue,
    Enqueue,
    Fetch,
    Get,
    Ranges,
    Settle,
    Transaction,
    TransactionPart,
)
from cluster.machine.effects import ConsumerEnded, Deliver, Effect
from cluster.machine.replies import Enqueued, Fetched, Got, Ok, Refused, Reply


@dataclass(slots=True)
class QueueCounters:
    """Of one queue; messages, not batches."""

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    got: int = 0  # to be settled
    got_settled: int = 0
    got_empty: int = 0
    settled: int = 0
    used_ms: int = 0  # when a message last came or went, or the queue was made
    changes: int = 0  # grows whenever anything may have happened in the queue
    #: Messages waited although somebody was subscribed: every consumer had all that it may have.
    held_up_ms: int = 0
    held_up_since_ms: int | None = None
    timed_out_ms: int | None = None  # when a consumer was last ended for not settling in time

    def held_up_until(self, now_ms: int) -> int:
        """In all."""
        return held_up_until(self.held_up_ms, self.held_up_since_ms, now_ms)


def held_up_until(held_up_ms: int, since_ms: int | None, now_ms: int) -> int:
    return held_up_ms if since_ms is None else held_up_ms + max(0, now_ms - since_ms)


class GroupCounters:
    """Those of one group. Its work is that of a command, not of a message."""

    __slots__ = ("_watchers", "dead", "of")

    def __init__(self) -> None:
        self.of = defaultdict[int, QueueCounters](QueueCounters)
        self._watchers: list[dict[int, None]] = []
        #: By why, and whether they went on as dead letters: what left otherwise than settled.
        self.dead: dict[tuple[str, bool], int] = {}

    def watch(self) -> dict[int, None]:
        """Queues in which anything may happen from now on. The caller takes them from it, until
        `unwatch`: queues may come and go for ever.
        """
        changed: dict[int, None] = {}
        self._watchers.append(changed)
        return changed

    def unwatch(self, changed: dict[int, None]) -> None:
        self._watchers = [each for each in self._watchers if each is not changed]

    @property
    def watched(self) -> int:
        return len(self._watchers)

    def advanced(self, queue: int, held_up: bool, now_ms: int) -> None:
        """What could happen in the queue has happened. `held_up`: as `QueueKind.advance` says."""
        counters = self.of[queue]
        counters.changes += 1
        for changed in self._watchers:
            changed[queue] = None
        if held_up:
            if counters.held_up_since_ms is None:
                counters.held_up_since_ms = now_ms
        elif counters.held_up_since_ms is not None:
            counters.held_up_ms += now_ms - counters.held_up_since_ms
            counters.held_up_since_ms = None

    def died(self, reason: str, count: int, *, goes: bool) -> None:
        key = (reason, goes)
        self.dead[key] = self.dead.get(key, 0) + count

    def applied(self, now_ms: int, command: Any, reply: Reply, effects: Sequence[Effect]) -> None:
        if type(reply) is Refused:
            return
        kind = cast("type[Any]", type(command))
        if kind is Enqueue:
            if type(reply) is Enqueued:
                counters = self.of[command.queue]
                counters.published += reply.stored
                counters.used_ms = now_ms
        elif kind is Settle:
            if type(reply) is Ok:
                self.of[command.queue].settled += reply.count
        elif kind is Fetch:
            if type(reply) is Fetched:
                self._fetched(command, reply, now_ms)
        elif kind is Acknowledge:
            if type(reply) is Ok:
                self.of[command.queue].settled += reply.count
        elif kind is Get:
            if type(reply) is Got:
                self._got(command, reply, now_ms)
        elif kind is Transaction or kind is TransactionPart:
            for step in command.steps:
                if type(step) is Enqueue:
                    self.of[step.queue].published += len(step.bodies)
                elif type(step) is Settle:
                    self.of[step.queue].settled += _count(step.ranges)
        elif kind is CreateQueue:
            if type(reply) is Ok and reply.count:
                self.of[command.queue].used_ms = now_ms
        elif kind is DeleteQueue:
            self.of.pop(command.queue, None)
            for changed in self._watchers:
                changed[command.queue] = None
        for effect in effects:
            if type(effect) is Deliver:
                counters = self.of[effect.queue]
                counters.used_ms = now_ms
                for chunk in effect.chunks:
                    counters.delivered += chunk.bodies.count
                    if chunk.acquired_count:
                        counters.redelivered += chunk.bodies.count
            elif type(effect) is ConsumerEnded and effect.reason == "timeout":
                self.of[effect.queue].timed_out_ms = now_ms

    def _fetched(self, command: Fetch, reply: Fetched, now_ms: int) -> None:
        counters = self.of[command.queue]
        for _, chunks, _ in reply.batches:
            counters.used_ms = now_ms
            for chunk in chunks:
                counters.delivered += chunk.bodies.count
                if chunk.delivery_count > 1:
                    counters.redelivered += chunk.bodies.count

    def _got(self, command: Get, reply: Got, now_ms: int) -> None:
        counters = self.of[command.queue]
        counters.used_ms = now_ms
        count = sum(chunk.bodies.count for chunk in reply.chunks)
        if not count:
            counters.got_empty += 1
        elif command.auto_settle:
            counters.got_settled += count
        else:
            counters.got += count
        counters.redelivered += sum(c.bodies.count for c in reply.chunks if c.acquired_count)


def _count(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)
