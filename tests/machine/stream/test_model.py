"""The stream against one that is as plain as can be, under random commands."""

# pyright: basic
from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.commands import Acknowledge, DeleteMessage, Enqueue, Fetch, Purge
from cluster.machine.replies import Enqueued, Fetched, Ok, Refused
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
    stream_settings,
)
from tests.machine.stream.model import Model
from tests.machine.stream.streams import MS, START_MS, STREAM, Streams

SUBJECTS = ["a", "b", "c.x", "c.y", "c.x.z"]
PATTERNS = ["a", "b", "c.*", "c.>", "*", ">", "c.x"]
NAMES = ["c", "d", "e"]
POLICIES = ["all", "last", "new", "by_start_sequence", "by_start_time", "last_per_subject"]
#: What a stream and a consumer may be set to; each of it or nothing.
STREAM_SETTINGS: dict[str, Callable[[Random], Any]] = {
    "subjects": lambda r: ["a", "b", r.choice(["c.>", "c.*"])],
    "retention": lambda r: r.choice(["limits", "interest", "workqueue"]),
    "max_msgs": lambda r: r.randint(1, 8),
    "max_bytes": lambda r: r.randint(4, 60),
    "max_age": lambda _: 500 * MS,
    "max_msgs_per_subject": lambda r: r.randint(1, 4),
    "max_msg_size": lambda _: 4,
    "discard": lambda r: r.choice(["old", "new"]),
    "discard_new_per_subject": lambda r: r.random() < 0.5,
    "duplicate_window": lambda _: 300 * MS,
    "first_seq": lambda r: r.choice([1, 7, 4_090]),
    "allow_rollup_hdrs": lambda _: True,
    "allow_msg_ttl": lambda _: True,
    "subject_delete_marker_ttl": lambda _: 200 * MS,
    "allow_atomic": lambda _: True,
    "allow_msg_counter": lambda r: r.random() < 0.3,
    "subject_transform": lambda _: {"src": "c.*", "dest": "d.c.$1"},
}
CONSUMER_SETTINGS: dict[str, Callable[[Random], Any]] = {
    "deliver_policy": lambda r: r.choice(POLICIES),
    "opt_start_seq": lambda r: r.randint(1, 20),
    "opt_start_ms": lambda r: START_MS + r.randint(0, 1_000),
    "ack_policy": lambda r: r.choice(["none", "all", "explicit"]),
    "ack_wait": lambda r: r.randint(50, 300) * MS,
    "backoff": lambda r: [r.randint(50, 300) * MS for _ in range(r.randint(0, 3))],
    "max_deliver": lambda r: r.randint(1, 3),
    "filter_subjects": lambda r: r.sample(PATTERNS, r.randint(1, 2)),
    "max_ack_pending": lambda r: r.randint(1, 6),
    "pause_until_ms": lambda r: START_MS + r.randint(0, 1_000),
}


def some(random: Random, settings: dict[str, Callable[[Random], Any]], odds: float) -> Any:
    return {name: make(random) for name, make in settings.items() if random.random() < odds}


def last_of(_: Random, model: Model, subject: str | bytes) -> int:
    name = subject if isinstance(subject, bytes) else subject.encode()
    return max(model.of(name), default=0)


VALUES: dict[int, Callable[[Random, Model, str], Any]] = {
    ASKED_ID: lambda r, _m, _s: f"id{r.randint(0, 3)}",
    ASKED_STREAM: lambda r, _m, _s: r.choice(["S", "S", "S", "other"]),
    ASKED_LAST: lambda r, m, _: m.next - r.choice([1, 1, 1, 2]),
    ASKED_LAST_SUBJECT: last_of,
    ASKED_SUBJECT: lambda r, _m, _s: r.choice(PATTERNS).encode(),
    ASKED_LAST_ID: lambda r, m, _: r.choice([m.last_id, "id1"]),
    ASKED_ROLLUP: lambda r, _m, _s: r.choice(["all", "sub"]),
    ASKED_TTL_MS: lambda r, _m, _s: r.choice([0, 30, 150, 400]),
    ASKED_MARKER: lambda _r, _m, _s: True,
}


def singly(rows: Iterable[tuple[int, int, int, int]]) -> list[tuple[int, int, int]]:
    """One message each: its sequence, the consumer's number, deliveries."""
    return [
        (at, number + at - first, count)
        for first, last, number, count in rows
        for at in range(first, last + 1)
    ]


class Both:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        config = {"subjects": ["a", "b", "c.>"], **some(random, STREAM_SETTINGS, 0.3)}
        self.streams = Streams(**config)
        self.model = Model("S", stream_settings(config))
        self.base = self.model.next - 1
        self.numbers = 0
        #: By consumer: sequence, its number and deliveries.
        self.handed: dict[str, list[tuple[int, int, int]]] = {}
        self.verbs = random.choices(
            [
                self.publish,
                self.wait,
                self.put,
                self.drop,
                self.fetch,
                self.ack,
                self.unsent,
                self.purge,
                self.update,
            ],
            [5, 3, 2, 0.3, 6, 6, 2, 0.4, 0.3],
            k=random.randint(1, 60),
        )

    def run(self) -> None:
        for verb in self.verbs:
            self.model.now_ms = self.streams.now_ms
            verb()
            self.model.pass_time()
            self.compare()
            if self.random.random() < 0.05:
                self.delete()

    def name(self) -> str:
        known = list(self.model.consumers)
        return self.random.choice(known if known and self.random.random() < 0.9 else NAMES)

    def near(self, wanted: Iterable[int]) -> list[int]:
        """Some of these, or of any sequences."""
        random, known = self.random, list(wanted)
        return [
            random.choice(known)
            if known and random.random() < 0.8
            else self.base + random.randint(0, 30)
            for _ in range(random.choice([0, 1, 1, 2, 4]))
        ]

    def batch(self) -> list[tuple[bytes, int, dict[int, Any]]]:
        random, model = self.random, self.model
        messages: list[tuple[bytes, int, dict[int, Any]]] = []
        subjects = random.sample(SUBJECTS, random.randint(1, 3))
        asks = random.random() < 0.5
        for _ in range(random.choice([1, 1, 2, 3, 6])):
            subject = random.choice(subjects)
            asked: dict[int, Any] = {}
            for key in random.sample(list(VALUES), random.choice([0, 1, 1, 2])) if asks else ():
                asked[key] = VALUES[key](random, model, subject)
            if model.settings.counter and random.random() < 0.9:
                asked[ASKED_COUNTED] = last_of(random, model, model.kept_as(subject.encode()))
            messages.append((subject.encode(), random.randint(0, 5), asked))
        return messages

    def publish(self) -> None:
        """By nobody, or by a publisher, who may repeat some of the last ones."""
        publisher, seqno, batch, repeats = None, 0, self.batch(), False
        if self.random.random() < 0.4:
            publisher, back = "p", self.random.choice([0, 0, 1, 2, 5])
            seqno = max(1, self.numbers + 1 - back)
            repeats = seqno <= self.numbers
            self.numbers = max(self.numbers, seqno + len(batch) - 1)
        atomic = not repeats and self.random.random() < 0.4
        expected = self.model.publish(publisher, seqno, batch, self.streams.index + 1, atomic)
        attrs: Any = [{6: subject} | ({7: asked} if asked else {}) for subject, _, asked in batch]
        bodies = [b"x" * size for _, size, _ in batch]
        if all(each == attrs[0] for each in attrs):
            attrs = attrs[0]
        command = Enqueue(STREAM, publisher, seqno, bodies, None, attrs, None, atomic)
        reply = self.streams.apply(command)
        assert isinstance(reply, Enqueued)
        assert outcomes(reply, len(batch)) == expected

    def wait(self) -> None:
        self.model.now_ms += self.random.choice([0, 10, 50, 250])
        self.model.expire()
        self.streams.at(self.model.now_ms - START_MS)

    def put(self) -> None:
        name = self.random.choice(NAMES)
        config = {"name": name, "durable_name": name, **some(self.random, CONSUMER_SETTINGS, 0.3)}
        if "opt_start_seq" in config:
            config["opt_start_seq"] += self.base
        expected = self.model.put(config)
        reply = self.streams.consumer(**config)
        if isinstance(expected, int):
            assert reply == Ok(expected)
        else:
            assert isinstance(reply, Refused)

    def drop(self) -> None:
        name = self.name()
        reply = self.streams.drop(name)
        if name in self.model.consumers:
            self.model.drop(name)
            assert reply == Ok(1)
        else:
            assert isinstance(reply, Refused)

    def fetch(self) -> None:
        random, name = self.random, self.name()
        places = {at: message.where for at, message in self.model.messages.items()}
        requests = [
            (number, random.randint(1, 5), random.choice([0, 0, 4, 9]))
            for number in range(random.choice([1, 1, 2]))
        ]
        reply = self.streams.apply(Fetch(STREAM, name, requests))
        if name not in self.model.consumers:
            assert isinstance(reply, Refused)
            return
        assert isinstance(reply, Fetched)
        expected: dict[int, Any] = {}
        handed: list[tuple[int, int, int]] = []
        for number, count, size in requests:
            messages, note = self.model.fetch(name, count, size)
            handed += [each[:3] for each in messages]
            if messages or note:
                expected[number] = messages, note
        self.model.fetched(name, handed)
        self.handed.setdefault(name, []).extend(handed)
        got = {
            number: (
                [
                    (chunk.first + n, chunk.consumer_first + n, chunk.delivery_count, left - n)
                    for chunk in chunks
                    for left in [chunk.pending]
                    for n in range(chunk.bodies.count)
                ],
                note,
            )
            for number, chunks, note in reply.batches
        }
        assert got == expected
        for _, chunks, _ in reply.batches:
            for chunk in chunks:
                entry, place, count = chunk.bodies
                wanted = [(entry, place + n if entry else 0) for n in range(count)]
                assert [places[chunk.first + n] for n in range(count)] == wanted

    def ack(self) -> None:
        name = self.name()
        consumer = self.model.consumers.get(name)
        held = [] if consumer is None else [*consumer.held, *consumer.exhausted]
        done, working, never = self.near(held), self.near(held), self.near(held)
        waits = [-1, 0, 20, 200]
        again = [(at, self.random.choice(waits)) for at in self.near(held)]
        if self.random.random() < 0.5:
            done = []
        ranges = [(at, at) for at in done]
        reply = self.streams.apply(Acknowledge(STREAM, name, ranges, again, working, never))
        if consumer is None:
            assert isinstance(reply, Refused)
        else:
            assert reply == Ok(self.model.acknowledge(name, done, again, working, never))

    def unsent(self) -> None:
        name = self.name()
        handed = self.handed.get(name, [])[-8:]
        some = self.random.sample(handed, self.random.randint(1, len(handed))) if handed else []
        if self.random.random() < 0.3:
            some = handed[-self.random.randint(1, 8) :]
        rows = [(at, at, number, count) for at, number, count in some]
        consumer = self.streams.stream.consumers.get(name)
        known = [] if consumer is None else consumer.perhaps_unsent
        if known and self.random.random() < 0.5:
            rows, some = known, singly(known)
        in_doubt = {*singly(each for each in rows if each in known)}
        reply = self.streams.apply(Acknowledge(STREAM, name, (), unsent=rows))
        if name in self.model.consumers:
            assert reply == Ok(0)
            if rows:
                self.model.unsent(name, some, in_doubt)
        else:
            assert isinstance(reply, Refused)

    def purge(self) -> None:
        random = self.random
        subject = random.choice([None, random.choice(PATTERNS).encode()])
        below = random.choice([0, self.base + random.randint(1, 30)])
        keep = random.choice([0, 0, 1, 3])
        reply = self.streams.apply(Purge(STREAM, subject, below, keep))
        if below and keep:
            assert isinstance(reply, Refused)
        else:
            assert reply == Ok(self.model.purge(subject, below, keep))

    def update(self) -> None:
        config = {"subjects": ["a", "b", "c.>"], **some(self.random, STREAM_SETTINGS, 0.3)}
        workqueue = self.model.settings.retention == "workqueue"
        if workqueue or config.get("retention") == "workqueue":
            config["retention"] = self.model.settings.retention
        self.model.update(stream_settings(config))
        assert self.streams.configure(**config) == Ok()

    def delete(self) -> None:
        self.model.now_ms = self.streams.now_ms
        for sequence in self.near(self.model.messages):
            reply = self.streams.apply(DeleteMessage(STREAM, sequence))
            if sequence in self.model.messages:
                self.model.remove(sequence)
                assert reply == Ok(1)
            else:
                assert isinstance(reply, Refused)

    # --- they are alike ---------------------------------------------------------------------------

    def compare(self) -> None:
        stream, model = self.streams.stream, self.model
        state, messages = stream.state(), model.messages
        assert state.messages == len(messages)
        assert state.bytes == model.bytes
        assert state.first_seq == min(messages, default=model.next)
        assert state.last_seq == model.next - 1
        assert state.subjects == len({message.subject for message in messages.values()})
        gone = [at for at in range(state.first_seq, model.next) if at not in messages]
        assert stream.deleted(100) == gone
        assert state.deleted == len(gone)
        for at in range(self.base, model.next + 1):
            found, known = stream.find(at), messages.get(at)
            assert (found is None) == (known is None)
            if found is not None and known is not None:
                assert found.subject == known.subject == stream.subject_of(at)
                assert (found.size, found.stored_ms) == (known.size, known.at_ms)
                assert found.bodies == (*known.where, 1)
        self.compare_subjects()
        assert list(stream.consumers) == list(model.consumers)
        for name, known in model.consumers.items():
            info = stream.consumers[name].info()
            assert singly(stream.consumers[name].perhaps_unsent) == known.perhaps_unsent
            unsent = sum(not known.held[at].count for at in known.again)
            assert info.pending == len(model.pending(known)) + unsent
            acknowledges = known.settings.ack_policy != "none"
            assert info.ack_pending == (len(known.held) - unsent if acknowledges else 0)
            assert (info.delivered_consumer, info.delivered_stream) == (
                known.delivered,
                known.delivered_stream,
            )
            assert (info.floor_consumer, info.floor_stream) == (known.floor, known.floor_stream)
            again = sum(each.count > 1 for each in known.held.values())
            assert info.redelivered == again + len(known.exhausted)
            assert stream.consumers[name].may_fetch == model.may_fetch(name)

    def compare_subjects(self) -> None:
        stream, model = self.streams.stream, self.model
        for subject in SUBJECTS:
            found = stream.last_of(subject.encode())
            same = model.of(subject.encode())
            assert (found.sequence if found else 0) == max(same, default=0)
            at = self.base + 5
            found = stream.next_of(subject.encode(), at)
            assert (found.sequence if found else 0) == min((s for s in same if s >= at), default=0)
        counts = dict(stream.subject_counts(b"c.>", 100, 0))
        inside = [each for each in SUBJECTS if each.startswith("c.") and model.of(each.encode())]
        assert counts == {each.encode(): len(model.of(each.encode())) for each in inside}
        up_to = self.base + 6
        lasts = [max([at for at in model.of(s.encode()) if at <= up_to], default=0) for s in inside]
        found_lasts = stream.last_of_each((b"c.*", b"c.x.z"), up_to, 100)
        assert [each.sequence for each in found_lasts] == sorted(filter(None, lasts))


def outcomes(reply: Enqueued, count: int) -> list[tuple[int, int]]:
    """As the model says it."""
    answers, sequence = reply.answers or {}, reply.first
    found: list[tuple[int, int]] = []
    for place in range(count):
        code, number = answers.get(place, (1, sequence))
        sequence += place not in answers
        found.append((1 if code == errors.STORED else code, number))
    refused = [place for place, (code, _) in enumerate(found) if code > 1]
    assert [at for first, last in reply.refused for at in range(first, last + 1)] == refused
    assert reply.duplicates == sum(code == errors.DUPLICATE for code, _ in found)
    assert reply.stored == sum(code == 1 for code, _ in found)
    return found


@given(st.integers(0, 1 << 32))
def test_it_does_what_a_plain_one_does(seed: int):
    Both(seed).run()
