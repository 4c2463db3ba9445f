"""A machine with one stream, and a log and a clock around it.

Every command is also applied to a copy that is restored from the snapshot before it: it must answer
alike and end alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import (
    ATTR_ASKED,
    ATTR_SUBJECT,
    Acknowledge,
    CreateQueue,
    DropConsumer,
    Enqueue,
    Fetch,
    Purge,
    PutConsumer,
    QueueConfig,
    Tick,
    UpdateQueue,
    UpgradeMachine,
)
from cluster.machine.effects import Applied, StreamAdvisory, StreamChanged
from cluster.machine.replies import Enqueued, Fetched, Ok, Refused
from cluster.machine.stream.consumers import StreamConsumer
from cluster.machine.stream.stream import Stream
from cluster.types import QueueId, Stamp

START_MS = 1_000_000
MS = 1_000_000  # ns
STREAM = QueueId(1)


class Streams:
    def __init__(
        self, *, copies: bool = True, version: int = MACHINE_VERSION, **config: Any
    ) -> None:
        self.machine = QueueMachine()
        self.copies = copies
        self.now_ms = START_MS
        self.index = self.term = 1
        self.bodies: dict[tuple[int, int], bytes] = {}
        self.effects: list[Any] = []
        assert self.apply(UpgradeMachine(version)) == Ok(version)
        config = {"subjects": [">"], **config}
        created = CreateQueue(STREAM, "/", "S", QueueConfig(type="stream", stream=config))
        assert self.apply(created) == Ok(1)

    @property
    def stream(self) -> Stream:
        found = self.machine.find(STREAM)
        assert isinstance(found, Stream)
        return found

    def apply(self, command: Any) -> Any:
        self.index += 1
        if isinstance(command, Enqueue):
            for place, body in enumerate(command.bodies):
                self.bodies[self.index, place] = body
        stamp = Stamp(self.index, self.term, self.now_ms)
        copy = QueueMachine()
        if self.copies:
            copy.restore(self.machine.snapshot())
            copy.invariants()
        applied: Applied = self.machine.apply(stamp, command)
        self.effects = list(applied.effects)
        if self.copies:
            self.machine.invariants()
            assert copy.apply(stamp, command) == applied, "a restored machine answers otherwise"
            assert copy.snapshot() == self.machine.snapshot(), "a restored machine ends otherwise"
            pieces = b"".join(self.machine.snapshot_pieces())
            assert pieces == self.machine.snapshot(), "pieces are another snapshot"
            assert copy.digest() == self.machine.digest(), "equal states, different digests"
            assert copy.live_indexes() == self.machine.live_indexes()
            due, due_copy = self.machine.next_due_ms(), copy.next_due_ms()
            assert (due is None or due_copy is None) or due <= due_copy or due_copy > self.now_ms
        return applied.reply

    def at(self, ms: int) -> None:
        """So long after the start."""
        self.now_ms = START_MS + ms
        self.apply(Tick())

    def publish(
        self,
        *subjects: str,
        publisher: str | None = None,
        seqno: int = 0,
        size: int = 1,
        meta: Any = None,
        asked: Sequence[Mapping[int, Any] | None] | Mapping[int, Any] | None = None,
        atomic: bool = False,
    ) -> Any:
        """One message each; `asked`: of all, or of each."""
        each = [asked] * len(subjects) if asked is None or isinstance(asked, Mapping) else asked
        attrs: list[Any] = []
        for subject, one in zip(subjects, each, strict=True):
            attrs.append({ATTR_SUBJECT: subject.encode()} | ({ATTR_ASKED: one} if one else {}))
        bodies = [b"x" * size] * len(subjects)
        return self.apply(Enqueue(STREAM, publisher, seqno, bodies, meta, attrs, None, atomic))

    def stored(self, *subjects: str, **more: Any) -> int:
        """The first sequence."""
        reply = self.publish(*subjects, **more)
        assert isinstance(reply, Enqueued)
        assert reply.stored == len(subjects), reply
        return reply.first

    def answers(self, *subjects: str, **more: Any) -> Any:
        reply = self.publish(*subjects, **more)
        assert isinstance(reply, Enqueued)
        return reply.answers

    def configure(self, **config: Any) -> Any:
        stream = {"subjects": [">"], **config}
        return self.apply(UpdateQueue(STREAM, QueueConfig(type="stream", stream=stream)))

    def purge(self, subject: str | None = None, below: int = 0, keep: int = 0) -> Purge:
        return Purge(STREAM, None if subject is None else subject.encode(), below, keep)

    def held(self) -> dict[int, str]:
        """Sequences and subjects of all that is kept."""
        stream, found = self.stream, stream_next(self.stream, 0)
        kept: dict[int, str] = {}
        while found is not None:
            kept[found.sequence] = found.subject.decode()
            found = stream_next(stream, found.sequence + 1)
        return kept

    # --- consumers --------------------------------------------------------------------------------

    def consumer(self, name: str = "c", **config: Any) -> Any:
        return self.apply(PutConsumer(STREAM, {"name": name, "durable_name": name, **config}))

    def drop(self, name: str = "c") -> Any:
        return self.apply(DropConsumer(STREAM, name))

    def of(self, name: str = "c") -> StreamConsumer:
        return self.stream.consumers[name]

    def fetched(self, count: int = 10, size: int = 0, name: str = "c") -> Fetched:
        reply = self.apply(Fetch(STREAM, name, [(7, count, size)]))
        assert isinstance(reply, Fetched), reply
        return reply

    def fetch(self, count: int = 10, size: int = 0, name: str = "c") -> list[int]:
        """The sequences that it got."""
        return [
            chunk.first + nth
            for _, chunks, _ in self.fetched(count, size, name).batches
            for chunk in chunks
            for nth in range(chunk.bodies.count)
        ]

    def ack(self, *sequences: int, name: str = "c", **more: Any) -> int:
        done = [(each, each) for each in sequences]
        reply = self.apply(Acknowledge(STREAM, name, done, **more))
        assert isinstance(reply, Ok), reply
        return reply.count

    def refused(self, command: Any) -> Refused:
        reply = self.apply(command)
        assert isinstance(reply, Refused), reply
        return reply

    @property
    def changed(self) -> int:
        """How often somebody was told that there is something, by the last command."""
        return sum(isinstance(effect, StreamChanged) for effect in self.effects)

    @property
    def advisories(self) -> list[tuple[str, int, int]]:
        return [
            (effect.kind, effect.position, effect.delivery_count)
            for effect in self.effects
            if isinstance(effect, StreamAdvisory)
        ]


def stream_next(stream: Stream, sequence: int) -> Any:
    return stream.next_of(b">", sequence)
