"""Messages that are schedules: from each, others are made at certain times.

When is said by whoever proposes: the node that leads the stream reads what a schedule says, and
makes the message that is due. The machine stores it only if that schedule is due then, and plans
the next time with it; so one comes of each time, whoever leads meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

#: Entries of the heap that may be out of date, beside one for each schedule.
HEAP_SLACK: Final = 64


@dataclass(eq=False, slots=True)
class Scheduling:
    #: By sequence of the schedule: when it is due next.
    due_ms: dict[int, int] = field(default_factory=dict[int, int])
    #: Somebody is to be told that times are others.
    is_news: bool = False
    #: Times and sequences, some out of date.
    _heap: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def plan(self, sequence: int, due_ms: int) -> None:
        self.due_ms[sequence] = due_ms
        self.is_news = True
        heappush(self._heap, (due_ms, sequence))
        if len(self._heap) > 2 * len(self.due_ms) + HEAP_SLACK:
            self._plan_anew()

    def _plan_anew(self) -> None:
        self._heap = [(due_ms, sequence) for sequence, due_ms in self.due_ms.items()]
        heapify(self._heap)

    def forget(self, first: int, last: int) -> None:
        """These messages are gone."""
        if last - first < len(self.due_ms):
            for sequence in range(first, last + 1):
                self.due_ms.pop(sequence, None)
        else:
            for sequence in [each for each in self.due_ms if first <= each <= last]:
                del self.due_ms[sequence]

    def next_ms(self) -> int | None:
        """When the next one is due."""
        while self._heap and self.due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take_news(self) -> bool:
        news, self.is_news = self.is_news, False
        return news

    def is_due(self, sequence: int, due_ms: int, now_ms: int) -> bool:
        return self.due_ms.get(sequence) == due_ms <= now_ms

    def due_by(self, now_ms: int) -> list[tuple[int, int]]:
        """Schedules and their times, the earliest first."""
        found = [(at_ms, each) for each, at_ms in self.due_ms.items() if at_ms <= now_ms]
        return [(sequence, at_ms) for at_ms, sequence in sorted(found)]

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[list[int]]:
        return [[sequence, due_ms] for sequence, due_ms in sorted(self.due_ms.items())]

    def load(self, rows: Sequence[tuple[int, int]]) -> None:
        self.due_ms = dict(rows)
        self._plan_anew()
