"""Whether a stream takes a message, and under which sequence.

A batch in which no message asks for anything is stored as ranges. Where one asks (for its id to be
new, for the last sequence to be so and so, ...), or may be refused, each is looked at in its turn.
A batch that comes again is answered as the first time; what of it may have been refused, and nobody
knows any more, is refused. Of an atomic batch every message is looked at before any is stored, and
what refuses one of them refuses all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, cast

from cluster.machine.admission import BODIES_MAX, NAME_CHARS_MAX, ONLY_BYTES, SEQNO_MAX, is_carrier
from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    Arriving,
    BodyPart,
    Enqueue,
    RestoreIds,
)
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import PURGED, REFUSED
from cluster.machine.effects import StreamStored
from cluster.machine.identity import QueueIdentity
from cluster.machine.limits import full
from cluster.machine.marks import TIME_MS_MAX
from cluster.machine.replies import (
    BAD_ARGUMENT,
    NOT_ALLOWED,
    OUT_OF_SEQUENCE,
    Enqueued,
    Ok,
    Refused,
    Reply,
)
from cluster.machine.runs import ranges_of
from cluster.machine.stream import errors
from cluster.machine.stream.leaving import Leaving
from cluster.machine.stream.publishers import Answer, MessageIds, StreamPublisher, StreamPublishers
from cluster.machine.stream.retained import Retained
from cluster.machine.stream.scheduling import Scheduling
from cluster.machine.stream.settings import (
    ASKED_COUNTED,
    ASKED_DUE_MS,
    ASKED_ENDS,
    ASKED_ID,
    ASKED_LAST,
    ASKED_LAST_ID,
    ASKED_LAST_SUBJECT,
    ASKED_MARKER,
    ASKED_MET,
    ASKED_ROLLUP,
    ASKED_STREAM,
    ASKED_SUBJECT,
    ASKED_TTL_MS,
    StreamSettings,
)
from cluster.machine.stream.subjects import matcher
from cluster.machine.stream.table import ConsumerTable
from cluster.machine.timetable import Deadline
from cluster.machine.uploads import NONE_LARGE, Large, Uploads
from cluster.machine.versions import (
    ASKS_ALL_SINCE,
    CARRIED_SINCE,
    MARKERS_SINCE,
    ROLLUPS_FIT_SINCE,
)
from cluster.types import BodyRef

_ROOM_MESSAGES: Final = (errors.NO_ROOM, 0)
_ROOM_BYTES: Final = (errors.NO_ROOM, 1)
_ROOM_SUBJECT: Final = (errors.NO_ROOM, 2)
_TYPES: Final[Mapping[int, type[Any]]] = {
    ASKED_ID: str,
    ASKED_STREAM: str,
    ASKED_LAST: int,
    ASKED_LAST_SUBJECT: int,
    ASKED_SUBJECT: bytes,
    ASKED_LAST_ID: str,
    ASKED_ROLLUP: str,
    ASKED_TTL_MS: int,
    ASKED_COUNTED: int,
    ASKED_DUE_MS: int,
    ASKED_ENDS: bytes,
    ASKED_MET: list,
    ASKED_MARKER: bool,
}


#: What a message asks for, by `settings.ASKED_*`.
Asked = Mapping[int, Any]
NOTHING_ASKED: Final[Asked] = {}


class Batch(NamedTuple):
    """One command, looked at."""

    subjects: Sequence[bytes]  # one for all, or one each
    asked: Sequence[Asked]  # empty: none asks
    sizes: Sequence[int]  # of bodies and headers
    large: Large

    def message(self, place: int) -> tuple[bytes, int, Asked]:
        """Subject, size, what it asks for."""
        subject = self.subjects[place if len(self.subjects) > 1 else 0]
        return subject, self.sizes[place], self.asked[place] if self.asked else NOTHING_ASKED


@dataclass(slots=True)
class _Ahead:
    """Messages of an atomic batch that would be stored before the one that is looked at."""

    count: int = 0
    subjects: Counter[bytes] = field(default_factory=Counter[bytes])
    ids: set[str] = field(default_factory=set[str])
    size: int = 0

    def add(self, subject: bytes, size: int, asked: Asked) -> None:
        self.count += 1
        self.size += size + len(subject)
        self.subjects[subject] += 1
        if message_id := asked.get(ASKED_ID):
            self.ids.add(message_id)


@dataclass(slots=True)
class Outcome:
    """What became of the messages of a batch, by their places."""

    stored: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    answers: list[tuple[int, Answer]] = field(default_factory=list[tuple[int, Answer]])

    def store(self, first: int, last: int, sequence: int) -> None:
        """At the places from `first` to `last`, from this sequence on."""
        if self.stored:
            start, end, known = self.stored[-1]
            if end + 1 == first and known + end + 1 - start == sequence:
                self.stored[-1] = (start, last, known)
                return
        self.stored.append((first, last, sequence))

    def sequence_of(self, place: int) -> int:
        """-1: nothing was stored there."""
        for first, last, sequence in self.stored:
            if first <= place <= last:
                return sequence + place - first
        return -1

    def reply(self) -> Enqueued:
        answers = dict(self.answers)
        runs = list(self.stored)
        count = 0
        first = 0
        while runs:
            start, end, sequence = runs[-1]
            size = end - start + 1
            if first and sequence + size != first:
                break
            first = sequence
            count += size
            runs.pop()
        for start, end, sequence in runs:
            for place in range(start, end + 1):
                answers[place] = (errors.STORED, sequence + place - start)
                count += 1
        if not answers:
            return Enqueued(first, count)
        refused = sorted(place for place, (code, _) in answers.items() if code > 0)
        duplicates = sum(code == errors.DUPLICATE for code, _ in answers.values())
        packed = {place: list(answer) for place, answer in sorted(answers.items())}
        return Enqueued(first, count, duplicates, ranges_of(refused), packed)


@dataclass(eq=False, slots=True)
class Appending:
    """Owns what the stream remembers of publishers: their numbers, ids, parts of large bodies."""

    identity: QueueIdentity
    retained: Retained
    leaving: Leaving
    table: ConsumerTable
    deadline: Deadline
    settings: StreamSettings
    publishers: StreamPublishers = field(default_factory=StreamPublishers)
    ids: MessageIds = field(default_factory=MessageIds)
    scheduling: Scheduling = field(default_factory=Scheduling)
    uploads: Uploads = field(default_factory=Uploads)
    reserved_count: int = 0
    reserved_bytes: int = 0

    def keep_part(self, context: ApplyContext, command: BodyPart) -> Reply:
        reply = self.uploads.keep(context, command)
        self.look_ahead()
        return reply

    def look_ahead(self) -> None:
        due_ms = self.uploads.due_ms
        if due_ms is not None:
            self.deadline.wake_at(due_ms)

    def enqueue(self, context: ApplyContext, command: Enqueue) -> Reply:
        """Store what is taken, and say of the rest why it is not."""
        count, publisher, seqno = len(command.bodies), command.publisher, command.seqno
        asks = count == 0 and seqno == 0 and publisher is not None
        if not (1 <= count <= BODIES_MAX or asks):
            return Refused(BAD_ARGUMENT, f"a batch holds from 1 to {BODIES_MAX} bodies")
        known: StreamPublisher | None = None
        skip = 0
        if publisher is not None:
            if not (1 <= seqno <= SEQNO_MAX or asks) or not 1 <= len(publisher) <= NAME_CHARS_MAX:
                return Refused(
                    BAD_ARGUMENT,
                    f"a publisher has a name of 1 to {NAME_CHARS_MAX} characters"
                    f" and numbers its messages from 1",
                )
            found = self.publishers.known(publisher, context.now_ms)
            known = found if isinstance(found, StreamPublisher) else None
            last = 0 if known is None else known.last
            if asks or (seqno > last + 1 and not is_carrier(publisher)):
                return Refused(
                    OUT_OF_SEQUENCE,
                    f"publisher {publisher} sent up to {last}: send from {last + 1} on, in order",
                    last + 1,
                )
            skip = max(0, min(count, last + 1 - seqno))
        batch = self.read(command, skip)
        if not isinstance(batch, Batch):
            return batch
        outcome = Outcome()
        if known is not None and skip:
            # What a carrier sends again is the last that it sent: all before is safe. Its numbers
            # have gaps, and refused it would wait for ever in the outbox of another queue.
            carried = publisher is not None and is_carrier(publisher)
            remembered_from = 0 if carried else known.remembered_from
            _recall(known, seqno, skip, remembered_from, outcome)
        before_stored, before_answers = len(outcome.stored), len(outcome.answers)
        answered = count
        if skip < count:
            objection = self._objection_to_any(context, batch) if command.atomic else None
            if objection is not None:
                outcome.answers += [(place, objection) for place in range(skip, count)]
                self.leaving.count(context, REFUSED, count - skip)
            elif self._is_plain(context, batch):
                self._store_all(context, command, batch, skip, outcome)
            else:
                answered = self._store_each(context, command, batch, skip, outcome)
        for place, (name, _) in batch.large.items():
            if place < answered:
                self.uploads.end(name)
        if publisher is not None:
            heard = self.publishers.heard(publisher, seqno + answered - 1, context.now_ms)
            if skip < answered:
                fresh = outcome.stored[max(0, before_stored - 1) :]
                stored = [
                    (max(first, skip), last, sequence + max(0, skip - first))
                    for first, last, sequence in fresh
                    if last >= skip
                ]
                answers = outcome.answers[before_answers:]
                heard.note(seqno, stored, [each for each in answers if each[0] < answered])
        return outcome.reply()

    # --- reading the command ----------------------------------------------------------------------

    def read(self, command: Enqueue, skip: int) -> Batch | Refused:
        bodies = command.bodies
        if not ONLY_BYTES.issuperset(map(type, bodies)):
            return Refused(BAD_ARGUMENT, "a body is bytes")
        sizes = weights(command)
        batch = batch_of(sizes, command.attrs)
        if isinstance(batch, Refused) or command.large is None:
            return batch
        large = self.uploads.large_of(command, skip, sizes)
        return large if isinstance(large, Refused) else batch._replace(large=large)

    def _is_plain(self, context: ApplyContext, batch: Batch) -> bool:
        """Will all of it be taken, whatever is there?"""
        settings = self.settings
        if batch.asked or batch.large or settings.sealed or settings.retention == "interest":
            return False
        if settings.republished is not None or settings.mirror is not None or settings.counter:
            return False
        if settings.discard_new and not context.decided:
            return False
        if settings.subject_messages_max is not None and (
            settings.messages_max is not None or settings.bytes_max is not None
        ):
            return False  # who makes room depends on which came when
        most = settings.message_bytes_max
        if most is not None and max(batch.sizes) > most:
            return False
        return all(map(self._takes, dict.fromkeys(batch.subjects)))

    def kept_as(self, subject: bytes) -> bytes:
        """The subject under which a message is stored that was published to this one."""
        transform = self.settings.transform
        return subject if transform is None else transform(subject) or subject

    def _takes(self, subject: bytes) -> bool:
        """Is it one of the stream's? What has none came by another door."""
        wanted = self.settings.subjects
        return not subject or not wanted or bool(matcher(wanted)(subject))

    def forget_ids(self, context: ApplyContext) -> None:
        """Those that are older than the window."""
        self.ids.forget(self.settings.dedup_window_ms, context.now_ms)

    def restore_ids(self, context: ApplyContext, command: RestoreIds) -> Reply:
        if self.settings.mirror is None:
            return Refused(NOT_ALLOWED, f"stream {self.identity.name} is not being restored")
        if not all(0 < at < self.retained.next and ms >= 0 for _, at, ms in command.ids):
            return Refused(BAD_ARGUMENT, "an id is of a message that was never stored")
        for message_id, sequence, stored_ms in command.ids:
            self.ids.remember(message_id, sequence, min(stored_ms, context.now_ms))
        self.ids.last = command.last
        return Ok(len(command.ids))

    # --- storing ----------------------------------------------------------------------------------

    def _store_all(
        self,
        context: ApplyContext,
        command: Enqueue,
        batch: Batch,
        skip: int,
        outcome: Outcome,
    ) -> None:
        retained, last = self.retained, len(batch.sizes) - 1
        count = last + 1 - skip
        id_for = retained.subjects.id_for
        index, offset = context.index, context.body_offset + skip
        sizes = batch.sizes[skip:] if skip else batch.sizes
        if len(batch.subjects) == 1:
            subject = self.kept_as(batch.subjects[0])
            if subject:
                length = len(subject)
                sizes = [size + length for size in sizes]
            subject_id = id_for(subject)
            first = retained.append(subject_id, index, offset, sizes, context.now_ms)
            counts = {subject_id: count}
        else:
            subjects = batch.subjects[skip:] if skip else batch.subjects
            if self.settings.transform is not None:
                subjects = list(map(self.kept_as, subjects))
            sizes = [size + len(subject) for size, subject in zip(sizes, subjects, strict=True)]
            ids = list(map(id_for, subjects))
            first = retained.append(ids, index, offset, sizes, context.now_ms)
            counts = dict(Counter(ids))
        self.table.appended(counts)
        self.ids.last = ""
        outcome.store(skip, last, first)
        self._record(context, command, skip, last, first)
        self.leaving.enforce(context, counts)

    def _store_each(
        self,
        context: ApplyContext,
        command: Enqueue,
        batch: Batch,
        skip: int,
        outcome: Outcome,
    ) -> int:
        """Up to which place they have their answer. What a carrier brings is not answered if it is
        not taken: it comes again, with all behind it.
        """
        self.forget_ids(context)
        publisher, count, refused = command.publisher, len(batch.sizes), 0
        carried = publisher is not None and is_carrier(publisher)
        carried &= context.version >= CARRIED_SINCE
        for place in range(skip, count):
            subject, size, asked = batch.message(place)
            if (ahead := asked.get(ASKED_COUNTED, 0)) < 0:
                asked = {**asked, ASKED_COUNTED: outcome.sequence_of(place + ahead)}
            answer = None
            if not command.atomic:
                answer = self._answer(context, subject, size, asked, carried=carried)
            if answer is not None and carried and answer[0] > 0:
                outcome.answers += [(each, answer) for each in range(place, count)]
                return place
            if answer is not None:
                outcome.answers.append((place, answer))
                refused += answer[0] > 0
                continue
            subject = self.kept_as(subject)
            now_ms = context.now_ms
            sequence = self.store(context, command, place, subject, size, batch.large, now_ms)
            outcome.store(place, place, sequence)
            self.do_asked(context, subject, sequence, asked, now_ms)
        if refused:
            self.leaving.count(context, REFUSED, refused)
        return count

    def store(
        self,
        context: ApplyContext,
        command: Enqueue,
        place: int,
        subject: bytes,
        size: int,
        large: Large,
        stored_ms: int,
    ) -> int:
        """Answers its sequence."""
        retained = self.retained
        if self.settings.retention == "interest" and not self.table.is_wanted(subject):
            retained.mix(len(subject))
            return retained.skip(1)
        subject_id = retained.subjects.id_for(subject)
        index, offset = context.index, context.body_offset + place
        sizes = [size + len(subject)]
        previous = retained.subjects.last_of(subject_id)
        sequence = retained.append(subject_id, index, offset, sizes, stored_ms)
        if (again := self.settings.republished) and (destination := again(subject)):
            where = BodyRef(index, offset, 1)
            stored = StreamStored(
                self.identity.id, sequence, subject, destination, where, stored_ms, previous
            )
            context.effects.append(stored)
        if place in large:
            _, parts = large[place]
            retained.add_parts(sequence, ranges_of(sorted({entry for entry, _, _ in parts})))
        self.table.appended({subject_id: 1})
        self._record(context, command, place, place, sequence)
        self.leaving.enforce(context, (subject_id,))
        return sequence

    def _record(
        self, context: ApplyContext, command: Enqueue, first: int, last: int, sequence: int
    ) -> None:
        """Messages at these places were stored from this sequence on."""
        if (recorder := self.identity.recorder) is not None:
            recorder.published(
                self.identity,
                sequence,
                sequence + last - first,
                context.index,
                context.body_offset + first,
                command.publisher,
                command.seqno and command.seqno + first,
            )

    def do_asked(
        self, context: ApplyContext, subject: bytes, sequence: int, asked: Asked, stored_ms: int
    ) -> None:
        """What a message asks for that was just stored."""
        message_id: str = asked.get(ASKED_ID, "")
        self.ids.last = message_id
        if not asked:
            return
        if message_id:
            self.ids.remember(message_id, sequence, context.now_ms)
        ttl_ms: int | None = asked.get(ASKED_TTL_MS)
        if ttl_ms is not None and self.retained.is_live(sequence):
            at_ms = stored_ms + min(ttl_ms, TIME_MS_MAX) if ttl_ms > 0 else 0
            self.leaving.live_until(sequence, at_ms)
        marks = ASKED_MARKER in asked and context.version >= MARKERS_SINCE
        if marks and self.settings.marker_ttl_ms is not None and self.retained.is_live(sequence):
            self.leaving.markers.add(sequence)
        rollup = asked.get(ASKED_ROLLUP)
        if rollup == "all":
            self.leaving.roll_up(context, sequence)
        elif rollup:
            self.leaving.roll_up(context, sequence, subject)
        due_ms: int | None = asked.get(ASKED_DUE_MS)
        if due_ms is not None and self.retained.is_live(sequence):
            self.scheduling.plan(sequence, due_ms)
        schedule, next_ms = 0, 0
        if ASKED_ENDS in asked:
            schedule = self.retained.subjects.last_matching(asked[ASKED_ENDS])
        elif ASKED_MET in asked:
            schedule, _, next_ms = asked[ASKED_MET]
        if schedule in self.scheduling.due_ms:
            if next_ms:
                self.scheduling.plan(schedule, next_ms)
            else:
                self.leaving.remove(context, schedule, schedule, PURGED)

    # --- whether it is taken ----------------------------------------------------------------------

    def _objection_to_any(self, context: ApplyContext, batch: Batch) -> Answer | None:
        """Why nothing of an atomic batch is stored; None: all of it is."""
        if not self.settings.atomic:
            return errors.NO_BATCHES, self.retained.next - 1
        return self._objection_to_all(context, [batch])

    def objection(self, context: ApplyContext, batches: Iterable[Arriving]) -> Refused | None:
        """Why not all of what a transaction has for the stream is taken. What was stored before is
        taken, and not stored again.
        """
        found: list[Batch] = []
        for sizes, attrs in batches:
            batch = batch_of(sizes, attrs)
            if isinstance(batch, Refused):
                return batch
            found.append(batch)
        answer = self._objection_to_all(context, found, repeats=True)
        if answer is None:
            return None
        name, (code, _) = self.identity.name, answer
        if code == errors.NO_ROOM:
            return full(name, sum(len(batch.sizes) for batch in found))
        reason = f"stream {name} does not take all messages of the transaction (JetStream: {code})"
        return Refused(NOT_ALLOWED, reason, code)

    def _objection_to_all(
        self, context: ApplyContext, batches: Iterable[Batch], *, repeats: bool = False
    ) -> Answer | None:
        """`repeats`: what was stored before is no objection."""
        self.forget_ids(context)
        ahead = _Ahead()
        for batch in batches:
            for place in range(len(batch.sizes)):
                subject, size, asked = batch.message(place)
                answer = self._answer(context, subject, size, asked, ahead)
                if answer is None:
                    ahead.add(self.kept_as(subject), size, asked)
                elif not (repeats and answer[0] == errors.DUPLICATE_IN_A_BATCH):
                    return answer
        return None

    def _answer(
        self,
        context: ApplyContext,
        subject: bytes,
        size: int,
        asked: Asked,
        ahead: _Ahead | None = None,
        *,
        carried: bool = False,
    ) -> Answer | None:
        """Why it is not stored; None: it is. `ahead`: it is of an atomic batch. `carried`: nobody
        is there to be told of `max_msg_size`.
        """
        settings = self.settings
        last = self.retained.next - 1 + (ahead.count if ahead else 0)
        if self._has_to(context) and settings.mirror is None and not settings.counter:
            known = self._known(asked)
            return (errors.DUPLICATE, known) if known else None
        if settings.sealed:
            return errors.SEALED, last
        if settings.mirror is not None or not self._takes(subject):
            return errors.WRONG_SUBJECT, last
        if settings.counter != (ASKED_COUNTED in asked):
            return errors.NO_INCREMENT if settings.counter else errors.NO_COUNTER, last
        subject = self.kept_as(subject)
        if asked:
            answer = self._objection(subject, asked, last, ahead)
            if answer is None and (code := self._schedule_objection(context, asked)):
                answer = code, last
            if answer is not None:
                return answer
        most = settings.message_bytes_max
        if most is not None and size > most and not carried:
            return errors.MESSAGE_TOO_LARGE, last
        if settings.discard_new and not context.decided:
            most = settings.bytes_max
            if carried and most is not None and size + len(subject) > most:
                return errors.MESSAGE_TOO_LARGE, last  # there will never be room
            rolls_up = self.rolls_up(context, asked)
            return self.lacks_room(subject, size, ahead, rolls_up=rolls_up)
        return None

    def _has_to(self, context: ApplyContext) -> bool:
        """It was asked before the transaction was decided, and nobody is there to be refused. No
        stream becomes a mirror or a counter later.
        """
        return context.decided and context.version >= ASKS_ALL_SINCE

    def _known(self, asked: Asked) -> int:
        """The sequence under which a message with this id was stored; 0: it was not."""
        message_id: str = asked.get(ASKED_ID, "")
        return self.ids.find(message_id) if message_id and self.settings.dedup_window_ms else 0

    def _objection(
        self, subject: bytes, asked: Asked, last: int, ahead: _Ahead | None
    ) -> Answer | None:
        settings, retained = self.settings, self.retained
        if ASKED_TTL_MS in asked and not settings.message_ttl:
            return errors.NO_TTL, last
        if asked.get(ASKED_STREAM, self.identity.name) != self.identity.name:
            return errors.WRONG_STREAM, last
        if known := self._known(asked):
            return errors.DUPLICATE if ahead is None else errors.DUPLICATE_IN_A_BATCH, known
        if ahead is not None and (code := _objection_within(subject, asked, last, ahead)):
            return code, last
        if ASKED_LAST_SUBJECT in asked:
            found = retained.subjects.last_matching(asked.get(ASKED_SUBJECT, subject))
            if found != asked[ASKED_LAST_SUBJECT]:
                return errors.WRONG_LAST_SEQUENCE, found
        counted: int | None = asked.get(ASKED_COUNTED)
        # Of a batch that is stored as a whole, so is the message that it is counted from.
        if counted is not None and (counted >= 0 or ahead is None):
            found = retained.subjects.last_matching(subject)
            if found != counted:
                return errors.WRONG_LAST_SEQUENCE, found
        if asked.get(ASKED_LAST, last) != last:
            return errors.WRONG_LAST_SEQUENCE, last
        if asked.get(ASKED_LAST_ID, self.ids.last) != self.ids.last:
            return errors.WRONG_LAST_ID, last
        if asked.get(ASKED_ROLLUP) and (not settings.rollup or settings.deny_purge):
            return errors.NO_ROLLUP, last
        return None

    def _schedule_objection(self, context: ApplyContext, asked: Asked) -> int:
        """0: nothing."""
        if asked.keys().isdisjoint((ASKED_DUE_MS, ASKED_ENDS, ASKED_MET)):
            return 0
        if not self.settings.schedules:
            return errors.NO_SCHEDULES
        due_ms = self.scheduling.due_ms
        if ASKED_ENDS in asked:
            found = self.retained.subjects.last_matching(asked[ASKED_ENDS])
            return errors.NO_SUCH_SCHEDULE if found and found not in due_ms else 0
        match asked.get(ASKED_MET):
            case None:
                return 0
            case [int(schedule), int(at_ms), int(next_ms)] if not next_ms or next_ms > at_ms:
                if self.scheduling.is_due(schedule, at_ms, context.now_ms):
                    return 0
            case _:
                pass
        return errors.NO_SUCH_SCHEDULE

    @staticmethod
    def rolls_up(context: ApplyContext, asked: Asked) -> bool:
        """It makes room of its subject itself. Before version 5 that was not seen."""
        return bool(asked.get(ASKED_ROLLUP)) and context.version >= ROLLUPS_FIT_SINCE

    def lacks_room(
        self, subject: bytes, size: int, ahead: _Ahead | None, *, rolls_up: bool
    ) -> Answer | None:
        settings, retained = self.settings, self.retained
        subjects = retained.subjects
        size += len(subject)
        subject_id = subjects.id_of(subject)
        most = settings.subject_messages_max
        of_subject = subjects.counts[subject_id] if subject_id else 0
        held = retained.count + self.reserved_count
        if ahead is not None:
            of_subject += ahead.subjects[subject]
            held += ahead.count
            size += ahead.size
        is_full = most is not None and of_subject >= most
        if is_full and settings.discard_new_per_subject and not rolls_up:
            return _ROOM_SUBJECT
        count_max, bytes_max = settings.messages_max, settings.bytes_max
        # A message that takes the place of another of its subject needs no room of its own; for an
        # atomic batch there must be room before anything of it makes some.
        is_full = is_full and ahead is None
        if count_max is not None and held >= count_max and not is_full:
            return _ROOM_MESSAGES
        if bytes_max is not None:
            freed = retained.size_of(subjects.first_of(subject_id)) if is_full else 0
            if retained.bytes + self.reserved_bytes + size - freed > bytes_max:
                return _ROOM_BYTES
        return None

    def takes_all(self, count: int, sizes: Iterable[int]) -> bool:
        """Is there surely room for so many more, with nothing to refuse?"""
        settings, retained = self.settings, self.retained
        if settings.sealed or settings.counter or settings.mirror is not None:
            return False
        if not settings.discard_new:
            return True
        count += retained.count + self.reserved_count
        size = sum(sizes) + retained.bytes + self.reserved_bytes
        return (settings.messages_max is None or count <= settings.messages_max) and (
            settings.bytes_max is None or size <= settings.bytes_max
        )


def weights(command: Enqueue) -> list[int]:
    """What counts of each message: its body and its headers."""
    sizes, meta = list(map(len, command.bodies)), command.meta
    if isinstance(meta, bytes):
        return [size + len(meta) for size in sizes]
    if isinstance(meta, (list, tuple)):
        for place, one in enumerate(cast("Sequence[Any]", meta)[: len(sizes)]):
            if isinstance(one, bytes):
                sizes[place] += len(one)
    return sizes


def batch_of(sizes: Sequence[int], attrs: Any) -> Batch | Refused:
    """Messages with these `weights`, and what is said of all of them, or of each."""
    count = len(sizes)
    if isinstance(attrs, (list, tuple)):
        each = cast("Sequence[Any]", attrs)
        if len(each) != count:
            return Refused(
                BAD_ARGUMENT, f"there are {count} bodies and {len(each)} sets of attributes"
            )
    else:
        each = [attrs]
    subjects: list[bytes] = []
    asked: list[Asked] = []
    for one in each:
        read = _attributes(one)
        if isinstance(read, str):
            return Refused(BAD_ARGUMENT, read)
        subjects.append(read[0])
        asked.append(read[1])
    if not any(asked):
        asked = []
    elif len(asked) == 1:
        asked *= count
    if len(subjects) > 1 and subjects.count(subjects[0]) == count:
        del subjects[1:]
    return Batch(subjects, asked, sizes, NONE_LARGE)


def _objection_within(subject: bytes, asked: Asked, last: int, ahead: _Ahead) -> int:
    """What speaks against this message of an atomic batch behind those; 0: nothing."""
    if asked.get(ASKED_ID) in ahead.ids:
        return errors.DUPLICATE_IN_A_BATCH
    if asked.get(ASKED_COUNTED, -1) >= 0 and subject in ahead.subjects:
        return errors.WRONG_LAST_SEQUENCE
    if ASKED_LAST_ID in asked:
        return errors.NOT_IN_A_BATCH
    if ahead.count and asked.get(ASKED_LAST) == last:
        return errors.SEQUENCE_UNCLEAR
    if ASKED_LAST_SUBJECT in asked:
        pattern: bytes = asked.get(ASKED_SUBJECT, subject)
        if any(map(matcher((pattern,)), ahead.subjects)):
            return errors.SEQUENCE_UNCLEAR
    rollup = asked.get(ASKED_ROLLUP)
    if rollup and (ahead.count if rollup == "all" else subject in ahead.subjects):
        return errors.NO_ROLLUP
    return 0


def _attributes(attrs: Any) -> tuple[bytes, Asked] | str:
    """Subject and what is asked, of one message; or what is wrong with them."""
    if attrs is None:
        return b"", NOTHING_ASKED
    if not isinstance(attrs, dict):
        return "attributes must be a map"
    given = cast("dict[Any, Any]", attrs)
    subject = given.get(ATTR_SUBJECT, b"")
    asked = given.get(ATTR_ASKED)
    if type(subject) is not bytes:
        return "a subject is bytes"
    if asked is None:
        return subject, NOTHING_ASKED
    if not isinstance(asked, dict):
        return "what is asked is a map"
    wanted = cast("dict[Any, Any]", asked)
    for key, value in wanted.items():
        wanted_type = _TYPES.get(key)
        if wanted_type is not None and type(value) is not wanted_type:
            return f"what is asked by {key!r} has a wrong type"
    return subject, wanted


def _recall(
    known: StreamPublisher, seqno: int, count: int, remembered_from: int, outcome: Outcome
) -> None:
    """What became of messages that came before."""
    last = seqno + count - 1
    found: list[tuple[int, int, int, Answer | None]] = [
        (first, end, first + ahead, None) for first, end, ahead in known.stored.pieces(seqno, last)
    ]
    found += [(first, end, 0, answer) for first, end, answer in known.answers.pieces(seqno, last)]
    number = seqno
    for first, end, sequence, answer in [*sorted(found), (last + 1, last, 0, None)]:
        # Of what is between them nobody knows any more as what it was stored, or whether it was.
        outcome.answers += [
            (each - seqno, (errors.FORGOTTEN if each < remembered_from else errors.DUPLICATE, 0))
            for each in range(number, first)
        ]
        number = end + 1
        if answer is not None:
            outcome.answers += [(each - seqno, answer) for each in range(first, end + 1)]
        elif first <= end:
            outcome.store(first - seqno, end - seqno, sequence)
