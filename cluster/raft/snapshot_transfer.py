"""A snapshot on its way to a follower that is behind the leader's log: positions first, then the
live entries.

Parts are numbered. The follower takes them in order and acknowledges each; whatever does not fit
(a new leader, a broken link, a newer snapshot) starts again at part 0, which drops what was
received before. Only the last part is answered with a match, once everything is on the follower's
disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from cluster.raft.journal_protocol import RaftJournal, Snapshot, live_entry

#: Size of one part: small enough that other groups' messages get between them.
PART_BYTES = 512 << 10
#: Bytes of parts on their way to one follower and not yet acknowledged.
INSTALL_WINDOW_BYTES_MAX = 4 << 20
#: A snapshot larger than this is a bug somewhere: it holds positions, never bodies.
SNAPSHOT_BYTES_MAX = 1 << 30
#: Answers to appends without one to a part: the first may be to an append of before.
IGNORED_MAX = 2
#: Sent parts that stay unanswered for this long are taken for lost.
STALLED_S = 10.0

BEGIN = 0  # term, hash, size, live ranges
DATA = 1  # bytes
LIVE = 2  # [[index, term, data, hash], ...]
END = 3

Part = list[Any]


class Outgoing:
    """One snapshot on its way from this leader to one follower."""

    def __init__(self, snapshot: Snapshot, journal: RaftJournal, now: float) -> None:
        self.index = snapshot.index
        self.answered_at = now
        self._parts = self._read(snapshot, journal)
        self._number = 0
        self._waiting: tuple[Part, int] | None = None  # the link was full: goes first
        self._in_flight: deque[tuple[int, int]] = deque()
        self._in_flight_bytes = 0
        self.outdated = False  # an entry is gone: a newer snapshot replaced this one
        self._ignored: int | None = 0  # answers to other messages; None: a part was answered

    def pump(self, send: Callable[[int, Part], bool]) -> bool:
        """Send as much as the window allows; True when anything left."""
        sent = False
        while self._in_flight_bytes < INSTALL_WINDOW_BYTES_MAX and not self.outdated:
            step = self._waiting or next(self._parts, None)
            if step is None:
                break
            self._waiting = step
            part, size = step
            if not send(self._number, part):
                break
            self._waiting = None
            self._in_flight.append((self._number, size))
            self._in_flight_bytes += size
            self._number += 1
            sent = True
        return sent

    def answered(self, number: int, now: float) -> None:
        """The follower holds all parts up to `number`."""
        self.answered_at = now
        self._ignored = None
        while self._in_flight and self._in_flight[0][0] <= number:
            self._in_flight_bytes -= self._in_flight.popleft()[1]

    def ignored(self) -> bool:
        """It answers other messages, which came after the first parts, and knows of none of these:
        it was not ready for them yet.
        """
        if self._ignored is None or not self._in_flight:
            return False
        self._ignored += 1
        return self._ignored >= IGNORED_MAX

    def stalled(self, now: float) -> bool:
        return now - self.answered_at > STALLED_S

    def _read(self, snapshot: Snapshot, journal: RaftJournal) -> Iterator[tuple[Part, int]]:
        data = snapshot.data
        live = [list(each) for each in snapshot.live]
        yield [BEGIN, snapshot.term, snapshot.hash, len(data), live], 64 + 16 * len(live)
        for start in range(0, len(data), PART_BYTES):
            part = bytes(data[start : start + PART_BYTES])
            yield [DATA, part], len(part)
        batch: list[Any] = []
        size = 0
        for first, last in snapshot.live:
            for index in range(first, last + 1):
                entry = live_entry(journal, index)
                if entry is None:
                    self.outdated = True
                    return
                entry_data, term, chain = entry
                batch.append([index, term, entry_data, chain])
                size += len(entry_data) + 48
                if size >= PART_BYTES:
                    yield [LIVE, batch], size
                    batch, size = [], 0
        if batch:
            yield [LIVE, batch], size
        yield [END], 64


class Incoming:
    """The same snapshot where it arrives: gathers the positions, then hands everything to the
    journal.
    """

    def __init__(self, index: int, journal: RaftJournal) -> None:
        self.index = index
        self._journal = journal
        self._expected = 0
        self._term = 0
        self._hash = b""
        self._size = 0
        self._live: list[tuple[int, int]] = []
        self._data = bytearray()
        self._begun = False

    def take(self, number: int, part: Part) -> bool | None:
        """True: complete. False: taken, more to come. None: this part does not follow; start
        again.
        """
        if number != self._expected or (number == 0) != (part[0] == BEGIN):
            return None
        self._expected += 1
        match part:
            case [0, int(term), bytes(chain), int(size), live] if size <= SNAPSHOT_BYTES_MAX:
                self._term, self._hash, self._size = term, chain, size
                self._live = [(first, last) for first, last in live]
            case [1, bytes(data)] if len(self._data) + len(data) <= self._size:
                self._data += data
            case [2, entries] if len(self._data) == self._size:
                self._begin()
                for index, term, data, chain in entries:
                    self._journal.add_live(index, term, data, chain)
            case [3] if len(self._data) == self._size:
                self._begin()
                return True
            case _:
                return None
        return False

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._journal.begin_install(
                self.index, self._term, self._hash, bytes(self._data), self._live
            )

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    @property
    def term(self) -> int:
        return self._term
