"""The queue type `stream`: messages stay until a limit, a purge or their age ends them; consumers
are cursors over them.

The parts decide, as in `cluster.machine.queue`; the stream puts them together, says in which order
they come at the end of a command, and reads and writes their state as one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from cluster.machine.commands import (
    Acknowledge,
    Arriving,
    BodyPart,
    DeleteMessage,
    DropConsumer,
    Enqueue,
    Fetch,
    HandedTo,
    Pause,
    Purge,
    PutConsumer,
    QueueCommand,
    QueueConfig,
    Ranges,
    RestoreConsumer,
    RestoreIds,
    UpdateQueue,
)
from cluster.machine.context import ApplyContext
from cluster.machine.deadletters import DELETED, Deaths
from cluster.machine.disposal import dump_removed, load_removed
from cluster.machine.effects import DeadLetter, Effect, StreamChanged
from cluster.machine.identity import QueueIdentity
from cluster.machine.interface import QueueGauges, QueueView, Removed, Row, RowState
from cluster.machine.limits import full
from cluster.machine.replies import BAD_ARGUMENT, WRONG_KIND, Chunk, Ok, Refused, Reply
from cluster.machine.settings import wrong_settings
from cluster.machine.stream.appending import Appending, weights
from cluster.machine.stream.consumers import NO_FILTER, StreamConsumer
from cluster.machine.stream.following import Following
from cluster.machine.stream.leaving import Leaving
from cluster.machine.stream.retained import HEAD_ITEMS, Found, Retained
from cluster.machine.stream.scheduling import Scheduling
from cluster.machine.stream.settings import StreamSettings, stream_settings
from cluster.machine.stream.subjects import Patterns
from cluster.machine.stream.table import ConsumerTable
from cluster.machine.timetable import Deadline
from cluster.machine.versions import ASKS_ALL_SINCE, IDS_STAY_SINCE
from cluster.types import ConsumerKey, numbers_skipped

NOT_LIKE_A_QUEUE: Final = (
    "messages of a stream stay: read them by a consumer of the stream, and acknowledge to that"
)


class StreamState(NamedTuple):
    messages: int
    bytes: int
    first_seq: int
    first_ms: int  # 0: there is no message
    last_seq: int
    last_ms: int
    subjects: int
    deleted: int  # sequences between the first and the last that are gone
    consumers: int


class Stream:
    __slots__ = (
        "appending",
        "deadline",
        "following",
        "id",
        "identity",
        "leaving",
        "name",
        "retained",
        "settings",
        "table",
    )

    def __init__(self, identity: QueueIdentity, now_ms: int) -> None:
        self.id = identity.id
        self.name = identity.name
        self.identity = identity
        self.deadline = Deadline()
        self.settings: StreamSettings = stream_settings(_config_of(identity.config))
        self.retained = Retained(self.settings.first_seq)
        self.leaving = Leaving(identity, self.retained, self.settings, self.deadline)
        self.table = ConsumerTable(identity, self.retained, self.leaving, self.deadline)
        self.appending = Appending(
            identity, self.retained, self.leaving, self.table, self.deadline, self.settings
        )
        self.following = Following(self.appending)
        self.following.configured(None, 0)
        self.retained.on_removed = self._removed
        self.leaving.on_marked = self._marked

    def _removed(self, first: int, last: int, subject_id: int) -> None:
        if self.table.by_name:
            self.table.removed(first, last, subject_id)
        self.leaving.forget(first, last)
        self.appending.scheduling.forget(first, last)

    def _marked(self, subject_id: int) -> None:
        self.table.appended({subject_id: 1})

    # --- commands ---------------------------------------------------------------------------------

    def apply(self, context: ApplyContext, command: QueueCommand) -> Reply:
        """What the command says. What is too old by then is gone before."""
        self.leaving.expire(context)
        match command:
            case Enqueue():
                if command.origin is not None:
                    return self.following.take(context, command, command.origin)
                return self.appending.enqueue(context, command)
            case Acknowledge():
                return self.table.acknowledge(context, command)
            case Fetch():
                return self.table.fetch(context, command)
            case BodyPart():
                return self.appending.keep_part(context, command)
            case PutConsumer():
                return self.table.put(context, command)
            case DropConsumer():
                return self.table.drop(command)
            case RestoreConsumer():
                return self.table.restore(context, command)
            case RestoreIds():
                return self.appending.restore_ids(context, command)
            case Purge():
                return self._purge(context, command)
            case DeleteMessage():
                return self.leaving.delete(context, command)
            case UpdateQueue():
                return self._update(context, command)
            case Pause():
                return Refused(WRONG_KIND, "a stream is not paused, but its consumers are")
            case _:
                return Refused(WRONG_KIND, f"{self.name} is a stream; {NOT_LIKE_A_QUEUE}")

    def _purge(self, context: ApplyContext, command: Purge) -> Reply:
        reply = self.leaving.purge(context, command)
        if isinstance(reply, Ok) and command.subject is None and not command.keep + command.below:
            self.table.cleared()
            if context.version < IDS_STAY_SINCE:
                self.appending.ids.clear()
            self.appending.scheduling.due_ms.clear()
        return reply

    def _update(self, context: ApplyContext, command: UpdateQueue) -> Reply:
        config = command.config
        wrong = wrong_settings(config)
        if wrong is not None:
            return Refused(BAD_ARGUMENT, wrong)
        if self.identity.is_stale(command.as_of):
            return Ok()
        config = dataclasses.replace(config, type=self.identity.config.type)
        self.identity.configure(config, command.as_of)
        before = self.settings
        settings = self.settings = stream_settings(_config_of(config))
        self.leaving.configure(settings)
        self.table.settings = self.appending.settings = settings
        self.following.configured(before, context.index)
        self.leaving.enforce_all(context)
        self.leaving.expire(context)
        if settings.retention != before.retention:
            self.table.let_go()
        return Ok()

    def set_version(self, version: int) -> None:
        self.identity.version = version

    def skip_lost(self, _context: ApplyContext, term: int) -> None:
        """A mirror takes once more what is gone here."""
        if self.settings.mirror is None:
            self.retained.skip(numbers_skipped(term))

    def unskip(self, term: int) -> None:
        """It was made in this term by who did not know that its id is new: nothing was lost. What
        has numbers by now keeps them.
        """
        if not self.table.by_name:
            self.retained.unskip(self.settings.first_seq, numbers_skipped(term))

    def close(self, context: ApplyContext) -> None:
        """It is being deleted."""
        self.leaving.count(context, DELETED, self.retained.count)
        if self.identity.recorder is not None:
            positions = list(self.retained.extents())
            self.identity.recorder.queue_deleted(self.identity, positions, ())
        context.effects.append(StreamChanged(self.id))

    # --- as a part of the group -------------------------------------------------------------------

    @property
    def group_key(self) -> str | None:
        return None

    def takes_all(self, count: int, sizes: Sequence[int]) -> bool:
        return self.appending.takes_all(count, sizes)

    def objection(self, context: ApplyContext, steps: Sequence[Enqueue]) -> Refused | None:
        sizes = [len(body) for step in steps for body in step.bodies]
        batches = [(weights(step), step.attrs) for step in steps]
        return self.no_room(context, len(sizes), sum(sizes), batches)

    def no_room(
        self, context: ApplyContext, count: int, size: int, batches: Sequence[Arriving]
    ) -> Refused | None:
        if not batches or context.version < ASKS_ALL_SINCE:
            return None if self.takes_all(count, (size,)) else full(self.name, count)
        context.touch(self.id)
        self.leaving.expire(context)
        return self.appending.objection(context, batches)

    def reserve(self, count: int, size: int) -> None:
        self.appending.reserved_count += count
        self.appending.reserved_bytes += size

    @property
    def reserved(self) -> tuple[int, int]:
        return self.appending.reserved_count, self.appending.reserved_bytes

    def lacks(
        self, _consumer: ConsumerKey, _ranges: Ranges, _token: int | None = None
    ) -> Refused | None:
        return Refused(WRONG_KIND, f"{self.name} is a stream; {NOT_LIKE_A_QUEUE}")

    def keeps(self, _ranges: Ranges) -> Refused | None:
        return Refused(WRONG_KIND, f"{self.name} is a stream; {NOT_LIKE_A_QUEUE}")

    def take_dead_letters(
        self,
        context: ApplyContext,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        priority: int,
        deaths: Deaths,
        parts: Mapping[int, Sequence[tuple[int, int]]],
        names: Sequence[str | None] | None,
    ) -> None:
        """They have no subject. How they died is not kept."""
        subject_id = self.retained.subjects.id_for(b"")
        first = self.retained.append(subject_id, index, offset, sizes, context.now_ms)
        for place, indexes in parts.items():
            self.retained.add_parts(first + place, indexes)
        self.table.appended({subject_id: len(sizes)})
        if (recorder := self.identity.recorder) is not None:
            last, reason = first + len(sizes) - 1, deaths[0]["reason"]
            recorder.dead_lettered(self.identity, first, last, index, offset, reason)
        self.leaving.enforce(context, (subject_id,))

    def used(self, now_ms: int) -> None:
        """A stream does not go for want of use."""

    @property
    def in_use(self) -> bool:
        return bool(self.table.by_name)

    @property
    def removed(self) -> Mapping[str, Removed]:
        return self.leaving.removed

    def dead_letters(self, _count: int, _after: DeadLetter | None) -> Sequence[DeadLetter]:
        return ()

    # No session has consumers here.

    def consumer_connected(self, key: ConsumerKey, *, connected: bool) -> None: ...

    def consumer_was_handed(self, key: ConsumerKey, handed: HandedTo | None) -> None: ...

    def end_consumer(self, context: ApplyContext, key: ConsumerKey, *, failed: bool) -> None: ...

    # --- the end of a command ---------------------------------------------------------------------

    def advance(self, context: ApplyContext) -> bool:
        due_ms = self.deadline.due_ms
        if due_ms is not None and due_ms <= context.now_ms:
            self.leaving.expire(context)
            self.table.meet_deadlines(context)
            self.appending.uploads.forget_idle(context.now_ms)
            self.deadline.due_ms = None
            self.table.look_ahead()
            self.appending.look_ahead()
        self.leaving.look_ahead()
        if self.table.take_news() | self.following.take_news() | self.scheduling.take_news():
            context.effects.append(StreamChanged(self.id))
        return False

    # --- looking: what the doors read -------------------------------------------------------------

    @property
    def scheduling(self) -> Scheduling:
        return self.appending.scheduling

    @property
    def consumers(self) -> Mapping[str, StreamConsumer]:
        return self.table.by_name

    def state(self) -> StreamState:
        retained = self.retained
        first, last = retained.first, retained.next - 1
        return StreamState(
            messages=retained.count,
            bytes=retained.bytes,
            first_seq=first,
            first_ms=retained.time_of(first) if retained.count else 0,
            last_seq=last,
            last_ms=retained.last_ms,
            subjects=len(retained.subjects),
            deleted=last - first + 1 - retained.count,
            consumers=len(self.table.by_name),
        )

    def subject_counts(self, pattern: bytes, count: int, offset: int) -> list[tuple[bytes, int]]:
        """Subjects that the pattern means and their messages, by the order of their names."""
        subjects = self.retained.subjects
        names = sorted((subjects.name_of(each), each) for each in subjects.matching((pattern,)))
        some = names[max(0, offset) : max(0, offset) + max(0, count)]
        return [(name, subjects.counts[each]) for name, each in some]

    def deleted(self, count: int) -> list[int]:
        """The first sequences that are missing between the first and the last."""
        gaps = self.retained.gaps()
        return list(islice((at for first, last in gaps for at in range(first, last + 1)), count))

    def find(self, sequence: int) -> Found | None:
        return self.retained.find(sequence)

    def next_of(self, pattern: bytes, sequence: int) -> Found | None:
        """The first message at this sequence or behind it whose subject the pattern means; b">":
        of any subject, or of none.
        """
        retained = self.retained
        if pattern == b">":
            return retained.find(retained.next_live(sequence))
        next_of = retained.subjects.next_of
        found = [next_of(each, sequence) for each in retained.subjects.matching((pattern,))]
        return retained.find(min(filter(None, found), default=0))

    def count_of(self, pattern: bytes, sequence: int) -> int:
        """Messages at this sequence or behind it whose subject the pattern means, as above."""
        retained = self.retained
        if pattern == b">":
            return retained.count_of(NO_FILTER, sequence)
        subjects = retained.subjects
        return sum(subjects.count_from(each, sequence) for each in subjects.matching((pattern,)))

    def last_of(self, subject: bytes) -> Found | None:
        """The last message of the subject, which may be a pattern."""
        return self.retained.find(self.retained.subjects.last_matching(subject))

    def last_of_each(self, patterns: Patterns, up_to: int, count: int) -> list[Found]:
        """The last message at `up_to` or before it of each subject that the patterns mean, ordered
        by sequence; 0: up to the last one. At most `count`.
        """
        retained, subjects = self.retained, self.retained.subjects
        last = up_to or retained.next - 1
        found = [subjects.last_until(each, last) for each in subjects.matching(tuple(patterns))]
        some = sorted(filter(None, found))[: max(0, count)]
        return [each for each in map(retained.find, some) if each is not None]

    def seq_at(self, at_ms: int) -> int:
        """The first sequence stored then or later; the next one when there is none."""
        return self.retained.since(at_ms)

    def subject_of(self, sequence: int) -> bytes:
        return self.retained.subjects.name_of(self.retained.id_at(sequence))

    # --- looking: as a queue of the group ---------------------------------------------------------

    @property
    def message_count(self) -> int:
        return self.retained.count

    @property
    def waiting_count(self) -> int:
        return self.retained.count

    def effects_on_leader(self) -> list[Effect]:
        """What a new leader must do again."""
        is_served = self.table.by_name or self.settings.origins or self.scheduling.due_ms
        return [StreamChanged(self.id)] if is_served else []

    def consumer_holds(self, _key: ConsumerKey) -> Sequence[Chunk] | None:
        return None

    def is_windowed(self, _key: ConsumerKey) -> bool:
        return False

    def is_large(self, position: int) -> bool:
        return self.retained.is_large(position)

    def consumer_keys(self) -> Sequence[tuple[str, ConsumerKey]]:
        """Of sessions: none."""
        return ()

    def live_indexes(self) -> list[tuple[int, int]]:
        return self.retained.live_indexes() + self.appending.uploads.live_indexes()

    def view(self) -> QueueView:
        state = self.state()
        return QueueView(
            id=self.id,
            name=self.name,
            vhost=self.identity.vhost,
            config=self.identity.config,
            ready_count=state.messages,
            unsettled_count=0,
            delayed_count=0,
            dead_letter_count=0,
            bytes=state.bytes,
            ready_bytes=state.bytes,
            upload_bytes=self.appending.uploads.bytes,
            paused=False,
            publishers=len(self.appending.publishers),
            oldest_ready_ms=state.first_ms if state.messages else None,
            last_token=0,
            removed=dict(self.removed),
            consumers=(),
        )

    def gauges(self) -> QueueGauges:
        first_ms = self.retained.time_of(self.retained.first) if self.retained.count else None
        consumers = len(self.table.by_name)
        return QueueGauges(self.identity.vhost, self.name, consumers, first_ms, None, False)

    def rows(self, start: int, count: int, state: RowState | None = None) -> list[Row]:
        if state not in (None, "ready"):
            return []
        rows: list[Row] = []
        sequence = self.retained.next_live(start)
        while sequence and len(rows) < count:
            found = self.retained.find(sequence)
            assert found is not None, "the next living message does not live"
            rows.append(
                Row(
                    position=sequence,
                    state="ready",
                    chunk=Chunk(sequence, found.bodies, 0, 0, 0),
                    bytes=found.size,
                    enqueued_ms=found.stored_ms,
                    expires_at_ms=self.leaving.expires_at_ms(found),
                    due_ms=None,
                    priority=0,
                    consumer=None,
                )
            )
            sequence = self.retained.next_live(sequence + 1)
        return rows

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        """Each segment is an item of its own, so that none takes long to encode."""
        head, segments = self.retained.dump()
        return [
            head + self._dump_more(),
            self.table.dump(),
            self.appending.publishers.dump(),
            self.appending.ids.dump(),
            self.appending.uploads.dump(),
            self.leaving.dump(),
            dump_removed(self.leaving.removed),
            *segments,
        ]

    def fingerprint(self) -> list[Any]:
        return [
            self.retained.fingerprint(),
            self.table.dump(),
            self.appending.publishers.fingerprint(),
            self.appending.ids.fingerprint(),
            self.appending.uploads.dump(),
            len(self.leaving.ttls) + len(self.leaving.markers),
            dump_removed(self.leaving.removed),
            *self._dump_more(),
        ]

    def _dump_more(self) -> list[Any]:
        """Nothing where nothing was: as machine version 4 has it."""
        more = [self.following.dump(), self.appending.scheduling.dump()]
        while more and not more[-1]:
            more.pop()
        return more

    def load(self, data: Sequence[Any], now_ms: int) -> None:
        """Fill a stream that was just made."""
        head, consumers, publishers, ids, uploads, ttls, removed, *segments = data
        head, more = head[:HEAD_ITEMS], head[HEAD_ITEMS:]
        self.retained.load(head, segments)
        self.following.is_news = False
        for part, rows in zip((self.following, self.appending.scheduling), more, strict=False):
            part.load(rows)
        self.table.load(consumers)
        self.appending.publishers.load(publishers)
        self.appending.ids.load(ids)
        self.appending.uploads.load(uploads)
        self.leaving.load(ttls)
        self.leaving.removed = load_removed(removed)
        self.table.look_ahead()
        self.appending.look_ahead()
        self.leaving.look_ahead()

    def invariants(self) -> None:
        """Asserts what must hold between commands."""
        self.retained.invariants()
        self.leaving.invariants()
        self.table.invariants()
        self.appending.publishers.invariants()
        self.appending.uploads.invariants()
        self.following.invariants()
        scheduled = self.appending.scheduling.due_ms
        assert all(map(self.retained.is_live, scheduled)), "a schedule that is gone has a time"


def _config_of(config: QueueConfig) -> dict[str, Any]:
    given: Any = config.stream
    return cast("dict[str, Any]", given) if isinstance(given, dict) else {}
