"""The next message for a consumer, among however many others.

Where its filter means few subjects these are asked. Else the messages are looked at in their order,
and when there is nothing among many, the subjects are asked once and kept in a heap, which then
says what comes next up to the message that was the last one then. What is kept is a short cut: it
is no state, and who has none finds the same.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Final

from cluster.machine.stream.retained import SEGMENT, Retained
from cluster.machine.stream.subjects import Filter

#: Up to so many subjects are asked one by one.
ASKED_ONE_BY_ONE: Final = 8
#: Messages that are looked at before the subjects are asked.
LOOKED_AT_MAX: Final = 4 * SEGMENT
#: A subject is asked at the price of so many messages looked at.
ASKED_FOR: Final = 16


class Finder:
    """Of one consumer, which only goes forward."""

    __slots__ = ("_heap", "_until")

    def __init__(self) -> None:
        #: (a sequence that the subject's next one is not below, subject), up to `_until`.
        self._heap: list[tuple[int, int]] = []
        self._until = 0

    def next_of(self, retained: Retained, wanted: Filter, sequence: int) -> int:
        """The first living message at `sequence` or behind it that the filter means; 0: none."""
        subjects, ids = retained.subjects, wanted.ids
        if not wanted.patterns or len(ids) == len(subjects):
            return retained.next_live(sequence)
        if len(ids) <= ASKED_ONE_BY_ONE:
            found = [subjects.next_of(each, sequence) for each in ids]
            return min(filter(None, found), default=0)
        while True:
            if sequence <= self._until:
                if found_at := self._known(retained, wanted, sequence):
                    return found_at
                sequence = self._until + 1
            end = sequence + LOOKED_AT_MAX
            left = retained.next - end
            if left <= 0 or len(ids) * ASKED_FOR > left:
                return retained.next_meant(ids, sequence, retained.next)
            if found_at := retained.next_meant(ids, sequence, end):
                return found_at
            sequence, self._until = end, retained.next - 1
            self._heap = [(at, each) for each in ids if (at := subjects.next_of(each, end))]
            heapify(self._heap)

    def _known(self, retained: Retained, wanted: Filter, sequence: int) -> int:
        """0: there is none up to `_until`."""
        heap, next_of = self._heap, retained.subjects.next_of
        while heap and heap[0][0] <= self._until:
            at, subject_id = heap[0]
            # Another subject may have the id by now: then all that is its own lies behind.
            found = next_of(subject_id, max(at, sequence)) if subject_id in wanted.ids else 0
            if found == at:
                return found
            if found:
                heapreplace(heap, (found, subject_id))
            else:
                heappop(heap)
        return 0
