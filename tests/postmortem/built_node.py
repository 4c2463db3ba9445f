"""One node of a built cluster: its clock, its disk, its log."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cluster.codec.cbor import pack
from cluster.log import Journal, Log, RealDisk
from cluster.log.disk import RealFile
from cluster.log.format import FORMAT_VERSION, KIND_STARTED
from cluster.types import NodeId

#: 2026-01-05 10:00:00 UTC
START_NS = 1_767_607_200_000_000_000
SECOND_NS = 1_000_000_000
MS_NS = 1_000_000
#: What a sync takes when nobody says otherwise.
SYNC_NS = 300_000

T = TypeVar("T")


def finished(work: Coroutine[Any, Any, T]) -> T:
    """What it returns. Nothing in these logs ever waits for anybody."""
    while True:
        try:
            work.send(None)
        except StopIteration as stop:
            return stop.value


class Time:
    """What is true, whatever the clocks of the nodes say."""

    def __init__(self) -> None:
        self.now_ns = START_NS
        #: Done at every full second while somebody waits for long.
        self.each_second: Callable[[], None] = lambda: None

    def passes(self, ns: int) -> None:
        self.now_ns += ns

    def passes_slowly(self, ns: int) -> None:
        """All others go on meanwhile."""
        stop = self.now_ns + ns
        while (full := self.now_ns // SECOND_NS * SECOND_NS + SECOND_NS) <= stop:
            self.now_ns = full
            self.each_second()
        self.now_ns = max(stop, self.now_ns)


class NodeClock:
    """A node's view of it: its wall clock may be wrong, its monotonic clock began at some time."""

    def __init__(self, time: Time, number: int) -> None:
        self.wrong_ns = 0
        self.held_ns = 0  # so long the monotonic clock stood still
        self._time = time
        self._began_ns = START_NS - number * 1_000 * SECOND_NS

    def wall_ns(self) -> int:
        return self._time.now_ns + self.wrong_ns

    def wall_ms(self) -> int:
        return self.wall_ns() // MS_NS

    def monotonic_ns(self) -> int:
        return self._time.now_ns - self._began_ns - self.held_ns


class _Syncs:
    """In place of the threads: a sync is done at once, and time passes."""

    def __init__(self, time: Time) -> None:
        self.takes_ns = SYNC_NS
        self._time = time

    async def start(self, _call: Callable[[Any], None], _argument: Any) -> None:
        if self.takes_ns < SECOND_NS:
            self._time.passes(self.takes_ns)
        else:
            self._time.passes_slowly(self.takes_ns)

    def close(self) -> None:
        """There is no thread."""


class BuiltFile(RealFile):
    async def fetch(self, offset: int, size: int) -> bytes:
        """There is no loop that others would need meanwhile."""
        return self.read(offset, size)


class BuiltDisk(RealDisk):
    """Real files. They are for reading in this process: no power fails here."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.syncs: Any = _Syncs(time)

    def open(self, path: str, *, create: bool = False) -> BuiltFile:
        flags = os.O_RDWR | (os.O_CREAT if create else 0)
        return BuiltFile(os.open(path, flags | os.O_CLOEXEC, 0o600), self)


class Where(NamedTuple):
    """Of a record."""

    file: str
    offset: int


@dataclass(eq=False)
class BuiltNode:
    """One node's process, and what it left."""

    name: NodeId
    folder: Path  # its data folder
    clock: NodeClock
    disk: BuiltDisk
    log: Log
    incarnation: int = 1
    up: bool = True
    paused: bool = False  # up, and does nothing
    lagging: bool = False  # up, and gets no entries
    wrong_digest: bytes | None = None  # what it says of its state instead of the truth
    applied: dict[int, int] = field(default_factory=dict[int, int])  # by group

    @property
    def active(self) -> bool:
        return self.up and not self.paused

    def journal(self, group: int) -> Journal:
        return self.log.journal(group)

    def round(self) -> None:
        """What a node does at the end of each of its rounds."""
        if self.log.write():
            finished(self.log.sync())

    def started(self) -> None:
        fields = [self.incarnation, "1.0", 1, FORMAT_VERSION]
        self.note(KIND_STARTED, 0, 0, 0, fields)

    def note(self, kind: int, group: int, index: int, term: int, fields: Any) -> None:
        self.log.note(kind, group, index, term, pack(fields))
