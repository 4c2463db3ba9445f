"""The consumers of one stream by their names, and what their acknowledgements do to the stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cluster.machine.commands import (
    Acknowledge,
    DropConsumer,
    Fetch,
    PutConsumer,
    RestoreConsumer,
)
from cluster.machine.context import ApplyContext
from cluster.machine.effects import StreamAcked, StreamAdvisory
from cluster.machine.identity import QueueIdentity
from cluster.machine.replies import (
    BAD_ARGUMENT,
    IN_USE,
    LIMIT_REACHED,
    NO_CONSUMER,
    NOT_ALLOWED,
    Fetched,
    Ok,
    Refused,
    Reply,
    StreamChunk,
)
from cluster.machine.stream.consumers import (
    NUMBER_MAX,
    Held,
    StreamConsumer,
    is_state,
    without,
)
from cluster.machine.stream.errors import (
    CONSUMER_EXISTS,
    CONSUMER_MISSING,
    MANY_UNFILTERED,
    OVERLAPPING_FILTERS,
)
from cluster.machine.stream.leaving import Leaving
from cluster.machine.stream.retained import Retained
from cluster.machine.stream.settings import (
    ConsumerSettings,
    StreamSettings,
    consumer_settings,
    overlap,
)
from cluster.machine.stream.subjects import Patterns
from cluster.machine.timetable import Deadline
from cluster.machine.versions import (
    AHEAD_SINCE,
    EXHAUSTED_STAY_SINCE,
    FOLLOWS_SINCE,
    MOVES_SINCE,
    SENT_SINCE,
)
from cluster.types import ConsumerKey

CONSUMERS_MAX: Final = 65_536
NAME_CHARS_MAX: Final = 512


class ConsumerTable:
    __slots__ = ("_deadline", "_identity", "_leaving", "_retained", "by_name", "news", "settings")

    def __init__(
        self,
        identity: QueueIdentity,
        retained: Retained,
        leaving: Leaving,
        deadline: Deadline,
    ) -> None:
        self._identity = identity
        self._retained = retained
        self._leaving = leaving
        self._deadline = deadline
        self.settings: StreamSettings = leaving.settings
        self.by_name: dict[str, StreamConsumer] = {}  # in the order in which they were made
        self.news = False  # one came or went since somebody was told

    # --- they come, change and go -----------------------------------------------------------------

    def put(self, context: ApplyContext, command: PutConsumer) -> Reply:
        config = self._whole(command)
        consumer = StreamConsumer(ConsumerKey(context.key), config, context.now_ms)
        settings = consumer.settings
        if not 1 <= len(settings.name) <= NAME_CHARS_MAX:
            return Refused(BAD_ARGUMENT, f"a consumer has a name of 1 to {NAME_CHARS_MAX} letters")
        known = self.by_name.get(settings.name)
        refusal = self._objection(command.action, consumer, known)
        if refusal is not None:
            return refusal
        if known is not None:
            if known.config != config:
                self._change(context, known, config)
            if command.begin > 0:
                self._begin_anew(context, known, command.begin)
            return Ok(0)
        self._start(context, consumer)
        self.by_name[settings.name] = consumer
        consumer.paused = settings.pause_until_ms > context.now_ms
        self._wake(consumer)
        self.news = True
        return Ok(1)

    def _whole(self, command: PutConsumer) -> dict[str, Any]:
        """With what it says of its consumer, all that it leaves as it is."""
        known = self.by_name.get(consumer_settings(command.config).name) if command.only else None
        if known is None:
            return command.config
        config = known.config | command.config
        return {field: value for field, value in config.items() if value is not None}

    def _objection(
        self, action: str, wanted: StreamConsumer, known: StreamConsumer | None
    ) -> Refused | None:
        settings = wanted.settings
        name = f"consumer {settings.name} of stream {self._identity.name}"
        if known is None and action == "update":
            return Refused(NO_CONSUMER, f"there is no {name}: create it first", CONSUMER_MISSING)
        if known is not None and action == "create" and known.config != wanted.config:
            return Refused(IN_USE, f"{name} exists, with other settings", CONSUMER_EXISTS)
        most = min(CONSUMERS_MAX, self.settings.consumers_max or CONSUMERS_MAX)
        if known is None and len(self.by_name) >= most:
            return Refused(
                LIMIT_REACHED, f"stream {self._identity.name} has {most} consumers already"
            )
        if self.settings.retention == "workqueue":
            for other in self.by_name.values():
                if other is not known and (code := _shares(settings, other.settings)):
                    return Refused(
                        IN_USE,
                        f"{name} would get messages that {other.settings.name} gets, and in a work"
                        " queue each goes to one: give them filters that do not overlap",
                        code,
                    )
        return None

    def _start(self, context: ApplyContext, consumer: StreamConsumer) -> None:
        """Where it begins, and how much there is for it."""
        retained, settings = self._retained, consumer.settings
        consumer.filter = wanted = retained.subjects.use(settings.filters)
        cursor = retained.next
        match settings.deliver_policy:
            case "all":
                cursor = retained.first
            case "last":
                last_of = retained.subjects.last_of
                ids = retained.subjects.matching(settings.filters)
                if settings.filters:
                    cursor = max(map(last_of, ids), default=0) or retained.next
                elif retained.count:
                    cursor = retained.last_live(retained.next)
            case "last_per_subject":
                last_of = retained.subjects.last_of
                for at in sorted(map(last_of, retained.subjects.matching(settings.filters))):
                    consumer.picked.put(at, at, None)
            case "by_start_sequence":
                cursor = self._ahead(context, max(settings.start_seq, retained.first))
            case "by_start_time":
                cursor = retained.since(settings.start_ms)
            case "new":
                pass
        consumer.cursor = cursor
        consumer.pending = consumer.picked.count + retained.count_of(wanted, cursor)
        begins = consumer.picked.head[0] if consumer.picked else cursor
        consumer.delivered_stream = consumer.floor_stream = begins - 1

    def _change(
        self, context: ApplyContext, consumer: StreamConsumer, config: dict[str, Any]
    ) -> None:
        """How it acknowledges and where it began stay as they are. Before version 5 so did until
        when what was delivered is to be acknowledged.
        """
        retained, before = self._retained, consumer.settings
        consumer.set_config(config)
        if context.version >= FOLLOWS_SINCE:
            consumer.follow(before)
            for first, last, held in consumer.take_exceeding():
                self._again(context, consumer, first, last, held)
        consumer.paused = consumer.settings.pause_until_ms > context.now_ms
        if consumer.settings.filters != before.filters:
            was = consumer.filter
            consumer.set_filter(retained.subjects.use(consumer.settings.filters))
            retained.subjects.release(was)
            consumer.pending = consumer.picked.count + retained.count_of(
                consumer.filter, consumer.cursor
            )
            self.let_go()
        self._wake(consumer)
        self.news = True

    def _ahead(self, context: ApplyContext, sequence: int) -> int:
        """Where one begins that is to begin there. Before version 5 none waited for a message that
        was yet to come: it began with the next one.
        """
        most = NUMBER_MAX if context.version >= AHEAD_SINCE else self._retained.next
        return min(sequence, most)

    def _begin_anew(self, context: ApplyContext, consumer: StreamConsumer, sequence: int) -> None:
        """As if nothing had been delivered."""
        retained = self._retained
        consumer.begin_at(self._ahead(context, sequence))
        consumer.pending = retained.count_of(consumer.filter, consumer.cursor)
        self.let_go()
        self._wake(consumer)
        self.news = True

    def restore(self, context: ApplyContext, command: RestoreConsumer) -> Reply:
        consumer = self.by_name.get(command.name)
        if consumer is None:
            return self._missing(command.name)
        if self.settings.mirror is None:
            return Refused(NOT_ALLOWED, f"stream {self._identity.name} is not being restored")
        if not is_state(command):
            return Refused(BAD_ARGUMENT, f"consumer {command.name} cannot have been like that")
        consumer.restore(self._retained, command, context.now_ms)
        if (recorder := self._identity.recorder) is not None:
            for first, last, held in consumer.held:
                pieces = self._retained.pieces(first, last)
                chunks = [
                    StreamChunk(start, bodies, start + held.ahead, held.deliveries, 0, stored_ms)
                    for start, _, bodies, stored_ms in pieces
                ]
                recorder.handed(self._identity, consumer.key, command.name, chunks)
        self._wake(consumer)
        self.news = True
        return Ok(1)

    def drop(self, command: DropConsumer) -> Reply:
        consumer = self.by_name.get(command.name)
        if consumer is None or command.key not in (None, consumer.key):
            return self._missing(command.name)
        del self.by_name[command.name]
        self._retained.subjects.release(consumer.filter)
        self.news = True
        self.let_go()
        return Ok(1)

    def _missing(self, name: str) -> Refused:
        return Refused(
            NO_CONSUMER,
            f"stream {self._identity.name} has no consumer {name}: create it first",
            CONSUMER_MISSING,
        )

    # --- handing out ------------------------------------------------------------------------------

    def fetch(self, context: ApplyContext, command: Fetch) -> Reply:
        consumer = self.by_name.get(command.name)
        if consumer is None:
            return self._missing(command.name)
        holds = self._holds(context, consumer)
        given = consumer.fetch(
            self._retained, command.requests, context.now_ms, command.overhead, holds=holds
        )
        before = consumer.perhaps_unsent
        if context.version >= SENT_SINCE:
            consumer.note_handed(given, holds=holds)
        self._were_sent(consumer, before)
        self._wake(consumer)
        if (recorder := self._identity.recorder) is not None:
            for each in given:
                recorder.handed(self._identity, consumer.key, command.name, each.chunks)
        if not holds and self.settings.retention != "limits":
            for each in given:
                for chunk in each.chunks:
                    self._are_done(chunk.first, chunk.first + chunk.bodies.count - 1)
        return Fetched(consumer.key, [(each.number, each.chunks, each.note) for each in given])

    def _holds(self, context: ApplyContext, consumer: StreamConsumer) -> bool:
        """Where messages go once those who want them have them, also who does not acknowledge holds
        them until its leader says that they were sent. Before version 5 they went when they were
        handed out: before anybody could read and send them.
        """
        if consumer.settings.ack_policy != "none":
            return True
        return self.settings.retention != "limits" and context.version >= SENT_SINCE

    def acknowledge(self, context: ApplyContext, command: Acknowledge) -> Reply:
        consumer = self.by_name.get(command.name)
        if consumer is None:
            return self._missing(command.name)
        now_ms, count = context.now_ms, 0
        policy = consumer.settings.ack_policy
        if policy == "all":
            ends = [last for _, last in command.done if last < consumer.cursor]
            ranges: Iterable[tuple[int, int]] = [(1, max(ends))] if ends else []
        else:
            ranges = command.done
        for first, last in ranges:
            if first <= last:
                if consumer.settings.sampled and policy != "none":
                    self._sample(context, consumer, first, last)
                count += self._done(consumer, first, last)
        reasons = dict(command.reasons)
        for sequence in command.never:
            held = consumer.held.get(sequence)
            if held is not None:
                reason = reasons.get(sequence, "")
                self._advise(context, "terminated", consumer, sequence, held, reason)
            count += self._done(consumer, sequence, sequence)
        moves = context.version >= MOVES_SINCE
        for sequence, delay_ms in command.again:
            waiting = consumer.held.get(sequence)
            held = consumer.give_back(sequence, delay_ms, now_ms, moves=moves)
            if held is not None:
                if delay_ms or context.version < SENT_SINCE:
                    self._advise(context, "nak", consumer, sequence, held)
                if delay_ms <= 0:
                    self._again(context, consumer, sequence, sequence, held)
            elif waiting is not None and waiting.deliveries and delay_ms and moves:
                self._advise(context, "nak", consumer, sequence, waiting)
        for sequence in command.working:
            consumer.works(sequence, now_ms)
        if command.unsent:
            before = consumer.perhaps_unsent
            consumer.take_back(self._retained, command.unsent, self._holds(context, consumer))
            self._were_sent(consumer, before)  # what was not is held now
        if count:
            consumer.acknowledged(now_ms)
        self._wake(consumer)
        return Ok(count)

    def _sample(
        self, context: ApplyContext, consumer: StreamConsumer, first: int, last: int
    ) -> None:
        name = consumer.settings.name
        for start, end, held, waited_ms in consumer.waits(first, last, context.now_ms):
            acked = StreamAcked(
                self._identity.id, name, start, end, held.ahead, held.deliveries, waited_ms
            )
            context.effects.append(acked)

    def _done(self, consumer: StreamConsumer, first: int, last: int) -> int:
        count, recorder = 0, self._identity.recorder
        for start, end in consumer.done(first, last):
            count += end - start + 1
            if recorder is not None:
                name = consumer.settings.name
                recorder.acknowledged(self._identity, consumer.key, name, start, end)
            if self.settings.retention != "limits":
                self._are_done(start, end)
        return count

    def _again(
        self, context: ApplyContext, consumer: StreamConsumer, first: int, last: int, held: Held
    ) -> None:
        if not consumer.wait_again(first, last, held):
            for sequence in range(first, last + 1):
                self._advise(context, "max_deliver", consumer, sequence, held)

    def _advise(
        self,
        context: ApplyContext,
        kind: str,
        consumer: StreamConsumer,
        sequence: int,
        held: Held,
        reason: str = "",
    ) -> None:
        context.effects.append(
            StreamAdvisory(
                self._identity.id,
                kind,
                consumer.settings.name,
                sequence,
                held.deliveries,
                sequence + held.ahead,
                reason,
            )
        )

    # --- messages that nobody wants any more ------------------------------------------------------

    def _are_done(self, first: int, last: int) -> None:
        """One of the consumers is done with these: in a work queue that ends them, by interest when
        no other wants them.
        """
        for start, end in self._retained.extents(first, last):
            if self.settings.retention == "workqueue":
                self._leaving.acknowledged(start, end)
            else:
                self._leave_unwanted(start, end)

    def _leave_unwanted(self, first: int, last: int) -> None:
        """Of these, which all live, what no consumer wants goes."""
        id_at = self._retained.id_at
        subject_id, start = id_at(first), first
        for sequence in range(first + 1, last + 2):
            other = id_at(sequence) if sequence <= last else 0
            if other != subject_id:
                for gone_first, gone_last in self._unwanted(subject_id, start, sequence - 1):
                    self._leaving.acknowledged(gone_first, gone_last)
                subject_id, start = other, sequence

    def _unwanted(self, subject_id: int, first: int, last: int) -> list[tuple[int, int]]:
        left = [(first, last)]
        exhausted = self._identity.version >= EXHAUSTED_STAY_SINCE
        for consumer in self.by_name.values():
            if not left:
                break
            for start, end in consumer.wants(subject_id, first, last, exhausted=exhausted):
                left = [part for each in left for part in without(each, start, end)]
        return left

    def _were_sent(
        self, consumer: StreamConsumer, rows: Sequence[tuple[int, int, int, int]]
    ) -> None:
        """Who does not acknowledge is done with what was perhaps unsent so far. The stream was one
        of limits when that was handed out: else it was held.
        """
        if self.settings.retention == "interest" and consumer.settings.ack_policy == "none":
            for first, last, _, _ in rows:
                self._are_done(first, last)

    def let_go(self) -> None:
        """A consumer or its filter went, or the retention is another."""
        if self.settings.retention == "interest":
            for first, last in list(self._retained.extents()):
                self._leave_unwanted(first, last)

    def is_wanted(self, subject: bytes) -> bool:
        """Does any consumer wait for the next message, if it is of this subject?"""
        if not any(each.matches(subject) for each in self._retained.subjects.filters.values()):
            return False
        sequence = self._retained.next
        consumers = self.by_name.values()
        return any(each.cursor <= sequence and each.filter.matches(subject) for each in consumers)

    # --- what happens to the stream, and time -----------------------------------------------------

    def appended(self, counts: Mapping[int, int]) -> None:
        """So many messages of these subjects came, the last of all."""
        if not self.by_name:
            return
        retained = self._retained
        found: dict[Patterns, int] = {}
        for each in retained.subjects.filters.values():
            if each.patterns:
                total = sum(count for one, count in counts.items() if one in each.ids)
            else:
                total = sum(counts.values())
            if total:
                found[each.patterns] = total
        first = retained.next - sum(counts.values())
        for consumer in self.by_name.values() if found else ():
            if consumer.cursor <= first:
                consumer.pending += found.get(consumer.filter.patterns, 0)
            elif consumer.cursor < retained.next:  # it waited for one of these
                consumer.pending = retained.count_of(consumer.filter, consumer.cursor)

    def removed(self, first: int, last: int, subject_id: int) -> None:
        for consumer in self.by_name.values():
            consumer.removed(first, last, subject_id)

    def cleared(self) -> None:
        for consumer in self.by_name.values():
            consumer.all_removed(self._retained.next)

    def meet_deadlines(self, context: ApplyContext) -> None:
        for consumer in self.by_name.values():
            for first, last, held in consumer.take_due(context.now_ms):
                self._again(context, consumer, first, last, held)
            if consumer.paused and consumer.settings.pause_until_ms <= context.now_ms:
                consumer.paused = False
                self.news = True

    def take_news(self) -> bool:
        """Is there something to fetch that was not there, or did a consumer come or go?"""
        news, self.news = self.news, False
        for consumer in self.by_name.values():
            is_ready = consumer.may_fetch
            news = news or (is_ready and not consumer.was_ready)
            consumer.was_ready = is_ready
        return news

    def look_ahead(self) -> None:
        for consumer in self.by_name.values():
            self._wake(consumer)

    def _wake(self, consumer: StreamConsumer) -> None:
        due_ms = consumer.due_ms
        if due_ms is not None:
            self._deadline.wake_at(due_ms)

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        return [consumer.dump() for consumer in self.by_name.values()]

    def load(self, rows: Sequence[Any]) -> None:
        for row in rows:
            consumer = StreamConsumer.of(row)
            consumer.filter = self._retained.subjects.use(consumer.settings.filters)
            self.by_name[consumer.settings.name] = consumer

    def invariants(self) -> None:
        retained = self._retained
        for name, consumer in self.by_name.items():
            assert consumer.settings.name == name, "a consumer has another's name"
            used = retained.subjects.filters[consumer.settings.filters]
            assert consumer.filter is used, "a filter of its own"
            consumer.invariants(retained)
        users = sum(each.users for each in retained.subjects.filters.values())
        assert users == len(self.by_name), "a filter that nobody uses"


def _shares(one: ConsumerSettings, other: ConsumerSettings) -> int:
    """Why they cannot both take from a work queue; 0: they can."""
    if not one.filters or not other.filters:
        return MANY_UNFILTERED
    shared = any(overlap(a, b) for a in one.filters for b in other.filters)
    return OVERLAPPING_FILTERS if shared else 0
