"""How messages leave a stream: over a limit, too old, purged, or acknowledged where that ends them.

A marker is a message that the stream itself stores when a subject's last message expired, for those
who follow that subject. It has no body and lies in no entry: its place in the log is entry 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, nlargest
from itertools import accumulate
from typing import Final

from cluster.machine.commands import DeleteMessage, Purge
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import EXPIRED, MAXLEN, PURGED
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import Removed
from cluster.machine.replies import BAD_ARGUMENT, NO_MESSAGE, NOT_ALLOWED, Ok, Refused, Reply
from cluster.machine.runs import ranges_of
from cluster.machine.stream.errors import SEALED
from cluster.machine.stream.retained import Found, Retained
from cluster.machine.stream.settings import FIRST_SEQ_MAX, StreamSettings
from cluster.machine.timetable import Deadline
from cluster.machine.versions import PURGES_AHEAD_SINCE
from cluster.types import BodyRef

#: The entry of markers.
NO_ENTRY: Final = 0
NO_TIME: Final = -1
#: Sequences that one command may find too old, in ranges or one by one; the next one goes on.
EXPIRED_AT_ONCE: Final = 1 << 17
EXPIRED_SINGLY: Final = 1 << 12
SIZES_AT_ONCE: Final = 1_024
#: Times to live of messages that are gone, beside one for each that is not.
TTLS_SLACK: Final = 64
NOTHING_REMOVED: Final = Removed()


def is_marker(bodies: BodyRef) -> bool:
    return bodies.index == NO_ENTRY


@dataclass(eq=False, slots=True)
class Leaving:
    """Owns the messages' own times to live, and the counts of what left."""

    identity: QueueIdentity
    retained: Retained
    settings: StreamSettings
    deadline: Deadline
    removed: dict[str, Removed] = field(default_factory=dict[str, Removed])
    #: By sequence: when it expires; 0: never.
    ttls: dict[int, int] = field(default_factory=dict[int, int])
    #: Other messages that are none the less markers, to those who follow: none comes for them. They
    #: stand among the times in snapshots, with one that is no time.
    markers: set[int] = field(default_factory=set[int])
    #: Told of the subject of a marker that was stored.
    on_marked: Callable[[int], None] | None = None
    _ttl_heap: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _aged: int = 0  # what lives below it is never too old

    def configure(self, settings: StreamSettings) -> None:
        self.settings = settings
        self._aged = 0

    # --- one way for all --------------------------------------------------------------------------

    def remove(self, context: ApplyContext, first: int, last: int, reason: str) -> int:
        """All that lives of this range. Answers how many."""
        if (recorder := self.identity.recorder) is not None:
            for start, end in self.retained.extents(first, last):
                if reason == PURGED:
                    recorder.purged(self.identity, start, end)
                else:
                    recorder.died(self.identity, start, end, reason, goes=False)
        count, _ = self.retained.remove(first, last)
        self.count(context, reason, count)
        return count

    def acknowledged(self, first: int, last: int) -> None:
        """They go since those who want them have them."""
        if (recorder := self.identity.recorder) is not None:
            recorder.done(self.identity, first, last)
        self.retained.remove(first, last)

    def count(self, context: ApplyContext, reason: str, count: int) -> None:
        if count:
            context.group.died(reason, count, goes=False)
            known = self.removed.get(reason, NOTHING_REMOVED)
            self.removed[reason] = known.and_also(count, goes=False)

    def forget(self, first: int, last: int) -> None:
        """These live no longer."""
        if self.markers:
            gone = range(first, last + 1)
            if len(gone) < len(self.markers):
                self.markers.difference_update(gone)
            else:
                self.markers = {each for each in self.markers if each not in gone}
        if self.ttls:
            if last - first < len(self.ttls):
                for sequence in range(first, last + 1):
                    self.ttls.pop(sequence, None)
            else:
                for sequence in [each for each in self.ttls if first <= each <= last]:
                    del self.ttls[sequence]

    # --- limits -----------------------------------------------------------------------------------

    def enforce(self, context: ApplyContext, subject_ids: Iterable[int]) -> None:
        """Messages of these subjects came: the oldest make room."""
        settings, retained = self.settings, self.retained
        subjects = retained.subjects
        most = settings.subject_messages_max
        if most is not None and not settings.discard_new_per_subject:
            for subject_id in subject_ids:
                while (over := subjects.counts[subject_id] - most) > 0:
                    first = last = subjects.first_of(subject_id)
                    while over > 1 and retained.id_at(last + 1) == subject_id:
                        last += 1
                        over -= 1
                    self.remove(context, first, last, MAXLEN)
        if settings.discard_new:
            return
        if settings.messages_max is not None:
            while (over := retained.count - settings.messages_max) > 0:
                first = retained.first
                self.remove(context, first, retained.live_end(first, first + over - 1), MAXLEN)
        if settings.bytes_max is not None:
            while (over := retained.bytes - settings.bytes_max) > 0:
                first = retained.first
                last = retained.live_end(first, first + SIZES_AT_ONCE - 1)
                sums = list(accumulate(retained.sizes_of(first, last)))
                self.remove(context, first, min(last, first + bisect_left(sums, over)), MAXLEN)

    def enforce_all(self, context: ApplyContext) -> None:
        """The limits are others."""
        subject_ids = [subject_id for _, subject_id in self.retained.subjects]
        self.enforce(context, sorted(subject_ids))

    # --- time -------------------------------------------------------------------------------------

    def live_until(self, sequence: int, expires_at_ms: int) -> None:
        """This message has a time of its own; 0: it never expires."""
        self.ttls[sequence] = expires_at_ms
        self.retained.mix(expires_at_ms)
        if expires_at_ms:
            heappush(self._ttl_heap, (expires_at_ms, sequence))
            if len(self._ttl_heap) > 2 * len(self.ttls) + TTLS_SLACK:
                self._plan_anew()
            self.deadline.wake_at(expires_at_ms)

    def expire(self, context: ApplyContext) -> None:
        """What is too old by now."""
        self._expire_aged(context)
        heap = self._ttl_heap
        for _ in range(EXPIRED_SINGLY):
            if not heap or heap[0][0] > context.now_ms:
                break
            expires_at_ms, sequence = heappop(heap)
            if self.ttls.get(sequence) == expires_at_ms:
                self._expire(context, sequence)

    def _expire_aged(self, context: ApplyContext) -> None:
        age_ms, retained = self.settings.age_max_ms, self.retained
        if age_ms is None:
            return
        if not self.ttls and self.settings.marker_ttl_ms is None:
            first = retained.first
            last = retained.since(context.now_ms - age_ms + 1) - 1
            if first <= last:
                self.remove(context, first, min(last, first + EXPIRED_AT_ONCE - 1), EXPIRED)
            return
        sequence = retained.next_live(self._aged)
        for _ in range(EXPIRED_SINGLY):
            if not sequence or retained.time_of(sequence) + age_ms > context.now_ms:
                break
            if self.ttls.get(sequence) != 0:
                self._expire(context, sequence)
            sequence = retained.next_live(sequence + 1)
        self._aged = sequence or retained.next

    def _expire(self, context: ApplyContext, sequence: int) -> None:
        found = self.retained.find(sequence)
        assert found is not None, "what expires is gone already"
        marks = sequence in self.markers or is_marker(found.bodies)
        self.remove(context, sequence, sequence, EXPIRED)
        ttl_ms = self.settings.marker_ttl_ms
        if ttl_ms is None or marks:
            return
        if not self.retained.subjects.id_of(found.subject):
            self._mark(context, found.subject, ttl_ms)

    def _mark(self, context: ApplyContext, subject: bytes, ttl_ms: int) -> None:
        retained = self.retained
        subject_id = retained.subjects.id_for(subject)
        sizes = [len(subject)]
        sequence = retained.append(subject_id, NO_ENTRY, 0, sizes, context.now_ms)
        self.live_until(sequence, context.now_ms + ttl_ms)
        if self.on_marked is not None:
            self.on_marked(subject_id)

    def expires_at_ms(self, found: Found) -> int | None:
        own_ms, age_ms = self.ttls.get(found.sequence), self.settings.age_max_ms
        if own_ms == 0:
            return None
        times = [at_ms for at_ms in (own_ms, age_ms and found.stored_ms + age_ms) if at_ms]
        return min(times, default=None)

    def look_ahead(self) -> None:
        age_ms, retained = self.settings.age_max_ms, self.retained
        if age_ms is not None:
            sequence = retained.next_live(self._aged)
            if sequence:
                self.deadline.wake_at(retained.time_of(sequence) + age_ms)
        if self._ttl_heap:
            self.deadline.wake_at(self._ttl_heap[0][0])

    # --- on command -------------------------------------------------------------------------------

    def delete(self, context: ApplyContext, command: DeleteMessage) -> Reply:
        if self.settings.sealed or self.settings.deny_delete:
            return self._denied("messages of it are not deleted")
        if not self.retained.is_live(command.position):
            return Refused(NO_MESSAGE, f"stream {self.identity.name} has no such message")
        return Ok(self.remove(context, command.position, command.position, PURGED))

    def purge(self, context: ApplyContext, command: Purge) -> Reply:
        if self.settings.sealed or self.settings.deny_purge:
            return self._denied("it is not purged")
        retained = self.retained
        if command.below < 0 or command.keep < 0 or (command.below and command.keep):
            return Refused(BAD_ARGUMENT, "give `below` or `keep`, of at least 0, and not both")
        if command.subject is not None:
            return Ok(self._purge_subject(context, command.subject, command.below, command.keep))
        if command.below:
            removed = self.remove(context, retained.first, command.below - 1, PURGED)
            ahead = min(command.below, FIRST_SEQ_MAX) - retained.next
            # A mirror gives no sequences of its own.
            if ahead > 0 and self.settings.mirror is None and context.version >= PURGES_AHEAD_SINCE:
                retained.skip(ahead)
            return Ok(removed)
        if command.keep:
            return Ok(self.keep(context, command.keep))
        return Ok(self.clear(context))

    def _denied(self, what: str) -> Refused:
        code = SEALED if self.settings.sealed else None
        return Refused(NOT_ALLOWED, f"by the settings of stream {self.identity.name} {what}", code)

    def keep(self, context: ApplyContext, count: int) -> int:
        """So many of the newest stay."""
        retained, removed = self.retained, 0
        while (over := retained.count - count) > 0:
            first = retained.first
            last = retained.live_end(first, first + over - 1)
            removed += self.remove(context, first, last, PURGED)
        return removed

    def roll_up(self, context: ApplyContext, sequence: int, subject: bytes | None = None) -> None:
        """This message stands for all before it, or for those before it of its subject."""
        retained = self.retained
        if subject is None:
            self.remove(context, retained.first, sequence - 1, PURGED)
            return
        subjects = retained.subjects
        before = [at for at in subjects.all_of(subjects.id_of(subject)) if at < sequence]
        for first, last in ranges_of(sorted(before)):
            self.remove(context, first, last, PURGED)

    def clear(self, context: ApplyContext) -> int:
        retained, recorder = self.retained, self.identity.recorder
        count = retained.count
        if count and recorder is not None:
            for first, last in retained.extents():
                recorder.purged(self.identity, first, last)
        self.count(context, PURGED, count)
        retained.clear()
        self.ttls.clear()
        self.markers.clear()
        self._ttl_heap.clear()
        return count

    def _purge_subject(self, context: ApplyContext, subject: bytes, below: int, keep: int) -> int:
        subjects = self.retained.subjects
        ids = subjects.matching((subject,))
        wanted = [at for each in ids for at in subjects.all_of(each) if not below or at < below]
        if keep:
            kept = set(nlargest(keep, wanted)) if keep < len(wanted) else set(wanted)
            wanted = [at for at in wanted if at not in kept]
        return sum(
            self.remove(context, first, last, PURGED) for first, last in ranges_of(sorted(wanted))
        )

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[list[int]]:
        marks = [[sequence, NO_TIME] for sequence in sorted(self.markers)]
        return [[sequence, at_ms] for sequence, at_ms in sorted(self.ttls.items())] + marks

    def load(self, rows: Sequence[tuple[int, int]]) -> None:
        self.ttls = {sequence: at_ms for sequence, at_ms in rows if at_ms != NO_TIME}
        self.markers = {sequence for sequence, at_ms in rows if at_ms == NO_TIME}
        self._plan_anew()

    def _plan_anew(self) -> None:
        self._ttl_heap = [(at_ms, sequence) for sequence, at_ms in self.ttls.items() if at_ms]
        heapify(self._ttl_heap)

    def invariants(self) -> None:
        assert all(map(self.retained.is_live, self.ttls)), "a message that is gone has a time"
        assert all(map(self.retained.is_live, self.markers)), "a marker is gone, and known"
        for sequence, at_ms in self.ttls.items():
            assert not at_ms or (at_ms, sequence) in self._ttl_heap, "it would never expire"
        assert self.retained.next_live(0) == self.retained.next_live(self._aged) or all(
            self.ttls.get(at) == 0
            for first, last in self.retained.extents()
            for at in range(first, last + 1)
            if at < self._aged
        ), "it would never be too old"
