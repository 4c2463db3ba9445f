"""When queues have something to do by themselves.

Every queue knows a time before which nothing is due. It may be too early, since deadlines are met
all the time and nobody updates it then; it is never too late. Looking when nothing is due changes
nothing, so replicas may look at different times and stay equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Protocol

from cluster.types import QueueId

#: Entries of the timetable that may be out of date, beside one for each queue.
TIMETABLE_SLACK = 64


@dataclass(eq=False, slots=True)
class Deadline:
    """Of one queue."""

    due_ms: int | None = None  # nothing happens by itself before; perhaps nothing then
    scheduled_ms: int | None = None  # what the group's timetable says

    def wake_at(self, due_ms: int) -> None:
        if self.due_ms is None or due_ms < self.due_ms:
            self.due_ms = due_ms


class Timed(Protocol):
    id: QueueId
    deadline: Deadline


@dataclass(eq=False, slots=True)
class Timetable:
    """Of a group: the queue that is due first."""

    queues: Mapping[int, Timed]  # the group's own
    #: (due ms, queue), some out of date.
    heap: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def schedule(self, queue: Timed) -> None:
        deadline = queue.deadline
        due_ms, scheduled_ms = deadline.due_ms, deadline.scheduled_ms
        if due_ms is not None and (scheduled_ms is None or due_ms < scheduled_ms):
            deadline.scheduled_ms = due_ms
            heappush(self.heap, (due_ms, queue.id))
            if len(self.heap) > 2 * len(self.queues) + TIMETABLE_SLACK:
                self.heap = [
                    (each.deadline.scheduled_ms, each.id)
                    for each in self.queues.values()
                    if each.deadline.scheduled_ms is not None
                ]
                heapify(self.heap)

    def next_due_ms(self) -> int | None:
        heap = self.heap
        while heap:
            due_ms, queue_id = heap[0]
            queue = self.queues.get(queue_id)
            if queue is not None and queue.deadline.scheduled_ms == due_ms:
                return due_ms
            heappop(heap)
        return None

    def take_due(self, now_ms: int) -> list[QueueId]:
        """The queues in which something may be due by now."""
        found: list[QueueId] = []
        heap = self.heap
        while heap and heap[0][0] <= now_ms:
            due_ms, queue_id = heappop(heap)
            queue = self.queues.get(queue_id)
            if queue is not None and queue.deadline.scheduled_ms == due_ms:
                queue.deadline.scheduled_ms = None
                found.append(queue.id)
        return found
