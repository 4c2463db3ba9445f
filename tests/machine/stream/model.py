"""A stream as plain as can be: one dict of messages, everything found by looking at all of it."""

# pyright: basic
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cluster.machine.stream import errors
from cluster.machine.stream.settings import (
    ASKED_COUNTED,
    ASKED_ID,
    ASKED_LAST,
    ASKED_LAST_ID,
    ASKED_LAST_SUBJECT,
    ASKED_MARKER,
    ASKED_ROLLUP,
    ASKED_STREAM,
    ASKED_SUBJECT,
    ASKED_TTL_MS,
    ConsumerSettings,
    StreamSettings,
    consumer_settings,
    matches,
    overlap,
)

Given = tuple[int, int, int, int]


@dataclass
class Message:
    subject: bytes
    size: int  # with the subject
    at_ms: int
    ttl_until_ms: int | None = None  # 0: never
    marks: bool = False  # a client's own marker
    where: tuple[int, int] = (0, 0)  # entry and place there; of a marker, which lies nowhere

    @property
    def marker(self) -> bool:
        return self.where == (0, 0)


def wait_of(backoff: tuple[int, ...], ack_wait_ms: int, count: int) -> int:
    return backoff[min(count, len(backoff)) - 1] if backoff else ack_wait_ms


@dataclass
class Delivery:
    number: int  # the consumer's, of the first time
    count: int
    due_ms: int  # 0: waits to be delivered again


@dataclass
class ModelConsumer:
    settings: ConsumerSettings
    cursor: int
    picked: list[int]
    delivered: int = 0
    delivered_stream: int = 0
    floor: int = 0
    floor_stream: int = 0
    held: dict[int, Delivery] = field(default_factory=dict[int, Delivery])
    again: list[int] = field(default_factory=list[int])
    exhausted: set[int] = field(default_factory=set[int])
    #: (sequence, consumer's number, deliveries) of the last fetch, which nothing else brings again.
    perhaps_unsent: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])

    def means(self, subject: bytes) -> bool:
        filters = self.settings.filters
        return not filters or any(subject and matches(each, subject) for each in filters)

    def wait_ms(self, count: int) -> int:
        return wait_of(self.settings.backoff_ms, self.settings.ack_wait_ms, count)

    def raise_floor(self) -> None:
        first = min(self.held, default=None)
        if first is None:
            self.floor = max(self.floor, self.delivered)
            self.floor_stream = max(self.floor_stream, self.delivered_stream)
        else:
            self.floor = max(self.floor, min(self.held[first].number - 1, self.delivered))
            self.floor_stream = max(self.floor_stream, first - 1)


class Model:
    def __init__(self, name: str, settings: StreamSettings) -> None:
        self.name = name
        self.settings = settings
        self.messages: dict[int, Message] = {}
        self.next = settings.first_seq
        self.now_ms = 0
        self.last_id = ""
        self.ids: dict[str, tuple[int, int]] = {}
        self.consumers: dict[str, ModelConsumer] = {}
        self.publishers: dict[str, list[tuple[int, int]]] = {}  # outcomes: code (1: stored), number

    # --- messages leave ---------------------------------------------------------------------------

    def remove(self, sequence: int) -> None:
        del self.messages[sequence]
        for each in self.consumers.values():
            if sequence in each.picked:
                each.picked.remove(sequence)
            each.exhausted.discard(sequence)
            if each.held.pop(sequence, None) is not None:
                if sequence in each.again:
                    each.again.remove(sequence)
                each.raise_floor()

    def of(self, subject: bytes) -> list[int]:
        return sorted(at for at, message in self.messages.items() if message.subject == subject)

    def enforce(self, *subjects: bytes) -> None:
        s = self.settings
        if s.subject_messages_max is not None and not s.discard_new_per_subject:
            for subject in subjects:
                while len(self.of(subject)) > s.subject_messages_max:
                    self.remove(self.of(subject)[0])
        if not s.discard_new:
            while s.messages_max is not None and len(self.messages) > s.messages_max:
                self.remove(min(self.messages))
            while s.bytes_max is not None and self.bytes > s.bytes_max:
                self.remove(min(self.messages))

    @property
    def bytes(self) -> int:
        return sum(message.size for message in self.messages.values())

    def expire(self) -> None:
        age_ms = self.settings.age_max_ms
        aged = [
            at
            for at, message in sorted(self.messages.items())
            if age_ms is not None
            and message.at_ms + age_ms <= self.now_ms
            and message.ttl_until_ms != 0
        ]
        for at in aged:
            self.expire_one(at)
        own = sorted(
            (message.ttl_until_ms, at)
            for at, message in self.messages.items()
            if message.ttl_until_ms and message.ttl_until_ms <= self.now_ms
        )
        for _, at in own:
            self.expire_one(at)

    def expire_one(self, sequence: int) -> None:
        message = self.messages[sequence]
        self.remove(sequence)
        ttl_ms = self.settings.marker_ttl_ms
        marks = message.marker or message.marks
        if ttl_ms is not None and not marks and not self.of(message.subject):
            marker = Message(message.subject, len(message.subject), self.now_ms)
            marker.ttl_until_ms = self.now_ms + ttl_ms
            self.messages[self.next] = marker
            self.next += 1

    def purge(self, pattern: bytes | None, below: int, keep: int) -> int:
        wanted = [
            at
            for at, message in sorted(self.messages.items())
            if (pattern is None or (message.subject and matches(pattern, message.subject)))
            and (not below or at < below)
        ]
        if keep:
            wanted = wanted[: max(0, len(wanted) - keep)]
        for at in wanted:
            self.remove(at)
        if pattern is None and not keep:
            self.next = max(self.next, below)
        if pattern is None and not below and not keep:
            for each in self.consumers.values():
                each.cursor = max(each.cursor, self.next)
                each.perhaps_unsent = []
                each.raise_floor()
        return len(wanted)

    # --- messages come ----------------------------------------------------------------------------

    def publish(
        self,
        publisher: str | None,
        seqno: int,
        batch: list[tuple[bytes, int, dict[int, Any]]],
        index: int,
        atomic: bool = False,
    ) -> list[tuple[int, int]]:
        """The outcome of each: (1, sequence) for stored, else (code, number)."""
        known = [] if publisher is None else self.publishers.setdefault(publisher, [])
        outcomes: list[tuple[int, int]] = []
        against = self.objection_to_any(batch) if atomic else None
        for place, (subject, size, asked) in enumerate(batch):
            if publisher is not None and seqno + place <= len(known):
                outcomes.append(known[seqno + place - 1])
                continue
            outcome = against if atomic else self.objection(subject, size, asked)
            if outcome is None:
                outcome = 1, self.store(subject, size, asked, (index, place))
            outcomes.append(outcome)
            known.append(outcome)
        return outcomes

    def objection_to_any(
        self, batch: list[tuple[bytes, int, dict[int, Any]]]
    ) -> tuple[int, int] | None:
        if not self.settings.atomic:
            return errors.NO_BATCHES, self.next - 1
        found = [self.objection(*each, batch[:place]) for place, each in enumerate(batch)]
        return next((each for each in found if each is not None), None)

    def objection(
        self,
        subject: bytes,
        size: int,
        asked: dict[int, Any],
        batch: list[tuple[bytes, int, dict[int, Any]]] | None = None,
    ) -> tuple[int, int] | None:
        """`batch`: what is before it of an atomic one."""
        s, before = self.settings, batch or []
        last = self.next - 1 + len(before)
        if s.subjects and not any(matches(each, subject) for each in s.subjects):
            return errors.WRONG_SUBJECT, last
        if s.counter != (ASKED_COUNTED in asked):
            return errors.NO_INCREMENT if s.counter else errors.NO_COUNTER, last
        subject = self.kept_as(subject)
        if ASKED_TTL_MS in asked and not s.message_ttl:
            return errors.NO_TTL, last
        if asked.get(ASKED_STREAM, self.name) != self.name:
            return errors.WRONG_STREAM, last
        self.ids = {
            one: (at, ms)
            for one, (at, ms) in self.ids.items()
            if ms + s.dedup_window_ms > self.now_ms
        }
        if asked.get(ASKED_ID) in self.ids:
            code = errors.DUPLICATE if batch is None else errors.DUPLICATE_IN_A_BATCH
            return code, self.ids[asked[ASKED_ID]][0]
        pattern = asked.get(ASKED_SUBJECT, subject)
        subjects = [self.kept_as(each) for each, _, _ in before]
        if batch is not None:
            if ASKED_ID in asked and asked[ASKED_ID] in [each.get(ASKED_ID) for *_, each in before]:
                return errors.DUPLICATE_IN_A_BATCH, last
            if ASKED_COUNTED in asked and subject in subjects:
                return errors.WRONG_LAST_SEQUENCE, last
            if ASKED_LAST_ID in asked:
                return errors.NOT_IN_A_BATCH, last
            if before and asked.get(ASKED_LAST) == last:
                return errors.SEQUENCE_UNCLEAR, last
            if ASKED_LAST_SUBJECT in asked and any(matches(pattern, each) for each in subjects):
                return errors.SEQUENCE_UNCLEAR, last
            if {"all": bool(before), "sub": subject in subjects}.get(asked.get(ASKED_ROLLUP, "")):
                return errors.NO_ROLLUP, last
        if ASKED_LAST_SUBJECT in asked:
            same = [at for at, m in self.messages.items() if matches(pattern, m.subject)]
            if max(same, default=0) != asked[ASKED_LAST_SUBJECT]:
                return errors.WRONG_LAST_SEQUENCE, max(same, default=0)
        if ASKED_COUNTED in asked:
            found = max(self.of(subject), default=0)
            if asked[ASKED_COUNTED] != found:
                return errors.WRONG_LAST_SEQUENCE, found
        if asked.get(ASKED_LAST, last) != last:
            return errors.WRONG_LAST_SEQUENCE, last
        if asked.get(ASKED_LAST_ID, self.last_id) != self.last_id:
            return errors.WRONG_LAST_ID, last
        if ASKED_ROLLUP in asked and not s.rollup:
            return errors.NO_ROLLUP, last
        if s.message_bytes_max is not None and size > s.message_bytes_max:
            return errors.MESSAGE_TOO_LARGE, last
        if s.discard_new:
            same = self.of(subject)
            alike = len(same) + subjects.count(subject)
            full = s.subject_messages_max is not None and alike >= s.subject_messages_max
            if full and s.discard_new_per_subject and ASKED_ROLLUP not in asked:
                return errors.NO_ROOM, 2
            replaces = full and batch is None
            held = len(self.messages) + len(before)
            if s.messages_max is not None and held >= s.messages_max and not replaces:
                return errors.NO_ROOM, 0
            freed = self.messages[same[0]].size if replaces else 0
            size += len(subject) + sum(map(len, subjects)) + sum(n for _, n, _ in before)
            if s.bytes_max is not None and self.bytes - freed + size > s.bytes_max:
                return errors.NO_ROOM, 1
        return None

    def kept_as(self, subject: bytes) -> bytes:
        moved = self.settings.transform is not None and matches(b"c.*", subject)
        return b"d." + subject if moved else subject

    def store(
        self, subject: bytes, size: int, asked: dict[int, Any], where: tuple[int, int]
    ) -> int:
        subject = self.kept_as(subject)
        sequence = self.next
        self.next += 1
        self.last_id = asked.get(ASKED_ID, "")
        if self.last_id:
            self.ids[self.last_id] = sequence, self.now_ms
        consumers = self.consumers.values()
        wanted = any(each.means(subject) and each.cursor <= sequence for each in consumers)
        if self.settings.retention != "interest" or wanted:
            message = Message(subject, size + len(subject), self.now_ms, where=where)
            message.marks = ASKED_MARKER in asked and self.settings.marker_ttl_ms is not None
            self.messages[sequence] = message
            self.enforce(subject)
            if ASKED_TTL_MS in asked:
                ttl_ms = asked[ASKED_TTL_MS]
                message.ttl_until_ms = self.now_ms + ttl_ms if ttl_ms else 0
        rollup = asked.get(ASKED_ROLLUP)
        for at in sorted(self.messages) if rollup else ():
            if at < sequence and (rollup == "all" or self.messages[at].subject == subject):
                self.remove(at)
        return sequence

    # --- consumers --------------------------------------------------------------------------------

    def put(self, config: dict[str, Any]) -> str | int:
        """1: made; 0: changed; else why not."""
        settings = consumer_settings(config)
        known = self.consumers.get(settings.name)
        for other in self.consumers.values():
            if self.settings.retention == "workqueue" and other is not known:
                mine = settings.filters or (b">",)
                theirs = other.settings.filters or (b">",)
                if any(overlap(a, b) for a in mine for b in theirs):
                    return "refused"
        if known is not None:
            before = known.settings
            known.settings = ConsumerSettings(
                **{
                    **{name: getattr(settings, name) for name in settings.__slots__},
                    "ack_policy": before.ack_policy,
                    "deliver_policy": before.deliver_policy,
                }
            )
            for each in known.held.values():
                if each.due_ms:
                    wait_ms = (before.backoff_ms, before.ack_wait_ms)
                    each.due_ms += known.wait_ms(each.count) - wait_of(*wait_ms, each.count)
            most = known.settings.deliveries_max if before.ack_policy != "none" else None
            for at in [*known.again]:
                if most is not None and known.held[at].count >= most:
                    known.again.remove(at)
                    self.wait_again(known, at)
            if before.filters != settings.filters:
                self.let_go()
            return 0
        made = ModelConsumer(settings, self.next, [])
        meant = [at for at, m in sorted(self.messages.items()) if made.means(m.subject)]
        match settings.deliver_policy:
            case "all":
                made.cursor = min(self.messages, default=self.next)
            case "last":
                made.cursor = max(meant, default=self.next)
            case "last_per_subject":
                lasts = {self.messages[at].subject: at for at in meant}
                made.picked = sorted(lasts.values())
            case "by_start_sequence":
                first = min(self.messages, default=self.next)
                made.cursor = max(settings.start_seq, first)
            case "by_start_time":
                since = [at for at, m in self.messages.items() if m.at_ms >= settings.start_ms]
                made.cursor = min(since, default=self.next)
            case _:
                pass
        made.delivered_stream = made.floor_stream = min([*made.picked, made.cursor]) - 1
        self.consumers[settings.name] = made
        return 1

    def drop(self, name: str) -> None:
        del self.consumers[name]
        self.let_go()

    def update(self, settings: StreamSettings) -> None:
        was, self.settings = self.settings.retention, settings
        self.enforce(*{message.subject for message in self.messages.values()})
        if settings.retention != was:
            self.let_go()

    def let_go(self) -> None:
        if self.settings.retention == "interest":
            for at in sorted(self.messages):
                self.leave_unwanted(at)

    def leave_unwanted(self, sequence: int) -> None:
        subject = self.messages[sequence].subject
        for each in self.consumers.values():
            waits = sequence >= each.cursor or sequence in each.picked or sequence in each.held
            waits |= sequence in each.exhausted
            if each.settings.ack_policy == "none":
                waits |= any(at == sequence for at, _, _ in each.perhaps_unsent)
            if each.means(subject) and waits:
                return
        self.remove(sequence)

    def pending(self, consumer: ModelConsumer) -> list[int]:
        behind = [
            at
            for at, message in sorted(self.messages.items())
            if at >= consumer.cursor and consumer.means(message.subject)
        ]
        return consumer.picked + behind

    def room(self, consumer: ModelConsumer) -> int:
        most = consumer.settings.ack_pending_max
        if most is None or consumer.settings.ack_policy == "none":
            return 1 << 30
        return most - len(consumer.held)

    def may_fetch(self, name: str) -> bool:
        consumer = self.consumers[name]
        paused = consumer.settings.pause_until_ms > self.now_ms
        new = bool(self.pending(consumer)) and self.room(consumer) > 0
        return not paused and (bool(consumer.again) or new)

    def fetch(
        self, name: str, count: int, size: int
    ) -> tuple[list[tuple[int, int, int, int]], str]:
        """(sequence, consumer's number, deliveries, pending) each, and the note."""
        consumer = self.consumers[name]
        found: list[Given] = []
        left = size
        while len(found) < count and self.may_fetch(name):
            again = bool(consumer.again)
            sequence = consumer.again[0] if again else self.pending(consumer)[0]
            if size and self.messages[sequence].size > left:
                return found, "too_large"
            left -= self.messages[sequence].size
            consumer.delivered += 1
            if again:
                consumer.again.pop(0)
                held = consumer.held[sequence]
                held.count += 1
                if held.count == 1 and consumer.settings.ack_policy == "none":
                    held.number = consumer.delivered
                if not self.holds(consumer):
                    del consumer.held[sequence]
                    consumer.raise_floor()
            else:
                if sequence in consumer.picked:
                    consumer.picked.remove(sequence)
                else:
                    consumer.cursor = sequence + 1
                held = Delivery(consumer.delivered, 1, 0)
                consumer.delivered_stream = sequence
                if self.holds(consumer):
                    consumer.held[sequence] = held
                elif not consumer.held:
                    consumer.floor, consumer.floor_stream = consumer.delivered, sequence
            held.due_ms = self.now_ms + consumer.wait_ms(held.count)
            unsent = sum(not consumer.held[at].count for at in consumer.again)
            pending = len(self.pending(consumer)) + unsent
            found.append((sequence, consumer.delivered, held.count, pending))
        return found, ""

    def holds(self, consumer: ModelConsumer) -> bool:
        return consumer.settings.ack_policy != "none" or self.settings.retention != "limits"

    def fetched(self, name: str, rows: list[tuple[int, int, int]]) -> None:
        """By all requests together."""
        consumer = self.consumers[name]
        most = consumer.settings.deliveries_max
        none = consumer.settings.ack_policy == "none"
        before = consumer.perhaps_unsent
        consumer.perhaps_unsent = [
            row
            for row in rows
            if not self.holds(consumer) or not (none or most is None or row[2] < most)
        ]
        for at, _, _ in before if none else ():
            if at in self.messages:
                self.acknowledged(at)

    def unsent(
        self,
        name: str,
        rows: list[tuple[int, int, int]],
        in_doubt: set[tuple[int, int, int]],
    ) -> None:
        """(sequence, consumer's number, deliveries) each. `in_doubt`: those of them that are told
        as they were handed out last.
        """
        consumer = self.consumers[name]
        before, consumer.perhaps_unsent = consumer.perhaps_unsent, []
        none = consumer.settings.ack_policy == "none"
        begin = rows[0][1]
        is_tail = [number for _, number, _ in rows] == [*range(begin, consumer.delivered + 1)]
        for at, number, count in reversed(rows) if self.holds(consumer) else ():
            if (at, number, count) in in_doubt and at in consumer.exhausted:
                consumer.exhausted.remove(at)
                consumer.held[at] = Delivery(number, count, 1)
                consumer.floor = min(consumer.floor, number - 1)
                consumer.floor_stream = min(consumer.floor_stream, at - 1)
        for at, number, count in reversed(rows):
            if at >= consumer.cursor:
                continue
            known = at in consumer.held or at in consumer.picked or at in consumer.exhausted
            given = 0 < number <= consumer.delivered and at in self.messages
            doubted = none and (at, number, count) in in_doubt
            if given and not known and (doubted or not self.holds(consumer)):
                own = number - (count > 1)
                consumer.held[at] = Delivery(own, count, 1)
                consumer.floor = min(consumer.floor, own - 1)
                consumer.floor_stream = min(consumer.floor_stream, at - 1)
            held = consumer.held.get(at)
            if held is not None and held.count == count:
                if not held.due_ms:
                    consumer.again.remove(at)
                held.count, held.due_ms = count - 1, 0
                consumer.again.insert(0, at)
        sent = [each.number for each in consumer.held.values() if each.count]
        if none and is_tail and max(sent, default=0) < begin:
            consumer.delivered = begin - 1
            consumer.floor = min(consumer.floor, consumer.delivered)
        for at, _, _ in before if none else ():
            if at in self.messages:
                self.acknowledged(at)

    def acknowledged(self, sequence: int) -> None:
        if self.settings.retention == "workqueue":
            self.remove(sequence)
        elif self.settings.retention == "interest":
            self.leave_unwanted(sequence)

    def done(self, consumer: ModelConsumer, sequence: int) -> int:
        if sequence in consumer.exhausted:
            consumer.exhausted.remove(sequence)
        elif consumer.held.pop(sequence, None) is None:
            return 0
        if sequence in consumer.again:
            consumer.again.remove(sequence)
        self.acknowledged(sequence)
        return 1

    def acknowledge(
        self,
        name: str,
        done: list[int],
        again: list[tuple[int, int]],
        working: list[int],
        never: list[int],
    ) -> int:
        consumer = self.consumers[name]
        if consumer.settings.ack_policy == "all":
            highest = max((at for at in done if at < consumer.cursor), default=0)
            done = [at for at in {*consumer.held, *consumer.exhausted} if at <= highest]
        count = sum(self.done(consumer, at) for at in sorted({*done}))
        count += sum(self.done(consumer, at) for at in never)
        for at, delay_ms in again:
            held = consumer.held.get(at)
            waits = at in consumer.again
            if held is not None and delay_ms > 0 and not (waits and not held.count):
                held.due_ms = self.now_ms + delay_ms
                if waits:
                    consumer.again.remove(at)
            elif held is not None and not waits:
                self.wait_again(consumer, at)
        for at in working:
            held = consumer.held.get(at)
            if held is not None:
                held.due_ms = self.now_ms + consumer.wait_ms(held.count)
                if at in consumer.again:
                    consumer.again.remove(at)
        if count:
            consumer.raise_floor()
        return count

    def wait_again(self, consumer: ModelConsumer, sequence: int) -> None:
        held = consumer.held[sequence]
        most = consumer.settings.deliveries_max
        if consumer.settings.ack_policy == "none":
            most = None
        if most is not None and held.count >= most:
            del consumer.held[sequence]
            consumer.exhausted.add(sequence)
        else:
            held.due_ms = 0
            consumer.again.append(sequence)

    def pass_time(self) -> None:
        self.expire()
        for consumer in self.consumers.values():
            for at in sorted(consumer.held):
                if 0 < consumer.held[at].due_ms <= self.now_ms:
                    self.wait_again(consumer, at)
