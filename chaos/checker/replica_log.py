"""What the log of one node tells of its groups, read without the node.

Read once, in order. Segments that the cleaner dropped leave holes: what may have been in them is
not known, which is something else than that it did not happen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cluster.codec.cbor import unpack
from cluster.codec.errors import CodecError
from cluster.log.reader import BODIES, CORRUPT, TORN, Record, detail, read, segments
from cluster.types import NodeId

#: Hears of every committed entry: group, index, term, chain hash (None: not known).
OnCommitted = Callable[[int, int, int, bytes | None], None]

MEMBERSHIP = b"\x02"
CHAIN_BROKEN = "hash chain broken"


@dataclass(frozen=True, slots=True)
class Lead:
    """A member said that it leads from now on."""

    term: int
    last_index: int
    voters: tuple[NodeId, ...] | None  # as its own log has them; None: it says nothing of them
    by_all: bool = False  # after a lost majority the first one needs the votes of all survivors


@dataclass
class GroupLog:
    """One group on one node."""

    leads: list[Lead] = field(default_factory=list[Lead])
    votes: dict[int, NodeId] = field(default_factory=dict[int, NodeId])  # by term
    digests: dict[int, bytes] = field(default_factory=dict[int, bytes])
    broken: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # which rule, what
    says_members: bool = False
    whole: bool = True  # no hole anywhere
    commit: int = 0
    term: int = 0
    # Entries that count and are not known to be committed, ascending: index, term, hash.
    pending: deque[tuple[int, int, bytes | None]] = field(
        default_factory=deque[tuple[int, int, bytes | None]]
    )
    _voters: list[tuple[int, tuple[NodeId, ...]]] = field(
        default_factory=list[tuple[int, tuple[NodeId, ...]]]
    )
    _survivors: tuple[NodeId, ...] | None = None  # as a person told it, until an entry says so
    _holes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _hole_from: int | None = None
    _cut: tuple[int, int, bytes | None] | None = None  # the first entry that was truncated last

    def vote(self, term: int) -> NodeId | bool | None:
        """For whom it voted; None: for nobody; False: its records of that term may be gone."""
        if term in self.votes:
            return self.votes[term]
        if self._hole_from is not None and term >= self._hole_from:
            return False
        return False if any(low <= term < high for low, high in self._holes) else None

    def hole(self) -> None:
        """From here on records are missing, until the next one of a term."""
        self.whole = False
        self._cut = None
        self.pending.clear()
        self._voters.clear()
        if self._hole_from is None:
            self._hole_from = self.term

    def hard_state(self, term: int, voted_for: NodeId | None, place: str) -> None:
        if self._hole_from is not None:
            self._holes.append((self._hole_from, term))
            self._hole_from = None
        self._cut = None
        if term < self.term:
            self.broken.append(("term went back", f"{place}: {self.term} -> {term}"))
        self.term = term
        if voted_for is not None:
            before = self.votes.setdefault(term, voted_for)
            if before != voted_for:
                text = f"{place}: for {before} and {voted_for} in term {term}"
                self.broken.append(("voted twice", text))

    def void(self, index: int, place: str, *, committed: bool) -> None:
        """Nothing from this index on counts any more."""
        if committed and index <= self.commit:
            text = f"{place}: from {index} on, though {self.commit} was committed"
            self.broken.append(("committed entries truncated", text))
        while self.pending and self.pending[-1][0] >= index:
            self._cut = self.pending.pop()
        while self._voters and self._voters[-1][0] >= index:
            self._voters.pop()

    def put(self, index: int, term: int, digest: bytes | None, place: str) -> None:
        """Only a conflict truncates: in the same term the entry that was cut does not come back."""
        if digest is not None and self._cut == (index, term, digest):
            text = f"{place}: entry {index} was cut, and is the same again"
            self.broken.append(("truncated without a conflict", text))
        self._cut = None
        self.pending.append((index, term, digest))

    def membership(self, index: int, command: bytes) -> None:
        """Lists of voters and of learners; what else it may say is not known."""
        self.says_members = True
        voters = _voters_of(command[1:])
        if self._survivors == voters:
            self._survivors = None
        self._voters.append((index, voters))

    def forced(self, payload: bytes) -> None:
        """The members by order of a person; nothing: not any more."""
        self._survivors = _voters_of(payload) if payload else None

    def led(self, term: int, index: int) -> None:
        voters = self._voters[-1][1] if self._voters else None
        by_all = self._survivors is not None
        self.leads.append(Lead(term, index, self._survivors if by_all else voters, by_all))


def _voters_of(payload: bytes) -> tuple[NodeId, ...]:
    told: Any = None
    with suppress(CodecError):
        told = unpack(payload)
    if isinstance(told, list) and isinstance(told[0], list):
        return tuple(cast("list[NodeId]", told[0]))
    return ()


class NodeLog:
    """Reads the data folder of one node, which may not run meanwhile."""

    def __init__(self, folder: Path, on_committed: OnCommitted) -> None:
        self.groups: dict[int, GroupLog] = {}
        self.unreadable: list[str] = []
        self.chain_broken: list[str] = []
        self.records = 0
        self._on_committed = on_committed
        try:
            self._read(str(folder))
        except OSError as error:
            self.unreadable.append(str(error))

    def _read(self, directory: str) -> None:
        numbers = {file.path: file.number for file in segments(directory)}
        present = set(numbers.values())
        file, at = "", 0
        self._holed = False
        for record in read(directory):
            if record.file != file and record.file in numbers:
                file, number = record.file, numbers[record.file]
                if any(each not in present for each in range(at + 1, number)):
                    self._hole()
                at = number
            if record.kind == TORN:
                continue
            if record.kind == CORRUPT:
                text = f"{record.file} at {record.offset}: {detail(record)}"
                if detail(record) == CHAIN_BROKEN:
                    self.chain_broken.append(text)
                    continue
                self.unreadable.append(text)
                self._hole()  # nothing behind it is sure to be in its place
                return
            self.records += 1
            self._take(record)

    def _hole(self) -> None:
        self._holed = True
        for group in self.groups.values():
            group.hole()

    def _group(self, number: int) -> GroupLog:
        group = self.groups.get(number)
        if group is None:
            group = self.groups[number] = GroupLog()
            if self._holed:
                group.hole()
        return group

    def _take(self, record: Record) -> None:
        kind, index, term = record.kind, record.index, record.term
        if kind in BODIES:
            self._body(record)
        elif kind == "commit":
            self._commit(self._group(record.group), record.group, index, _place(record))
        elif kind == "hard-state":
            told: Any = detail(record)
            self._group(record.group).hard_state(term, told[0], _place(record))
        elif kind == "forced-members":
            self._group(record.group).forced(record.payload)
        elif kind == "truncate":
            self._group(record.group).void(index, _place(record), committed=True)
        elif kind == "snapshot":
            self._snapshot(record)
        elif kind == "role":
            told = detail(record)
            if told[0] == "leader":
                self._group(record.group).led(term, index)
        elif kind == "digest":
            self._group(record.group).digests[index] = record.payload
        elif kind == "group-removed":
            self._removed(self._group(record.group))

    def _body(self, record: Record) -> None:
        group, index, digest = self._group(record.group), record.index, record.hash
        if record.kind == "entry":
            group.void(index, _place(record), committed=True)
            group.put(index, record.term, digest, _place(record))
            command = record.command or b""
            if command[:1] == MEMBERSHIP:
                group.membership(index, command)
        elif record.kind == "installed-entry" or index <= group.commit:
            # What comes with a snapshot is committed where it comes from.
            self._on_committed(record.group, index, record.term, digest)

    def _commit(self, group: GroupLog, number: int, index: int, place: str) -> None:
        if index < group.commit:
            group.broken.append(("commit went back", f"{place}: {group.commit} -> {index}"))
        group.commit = max(group.commit, index)
        pending = group.pending
        while pending and pending[0][0] <= index:
            self._on_committed(number, *pending.popleft())

    def _snapshot(self, record: Record) -> None:
        told: Any = detail(record)
        flags, digest = told[0], told[1]
        if record.index <= 1:
            return
        group = self._group(record.group)
        self._on_committed(record.group, record.index, record.term, digest)
        if flags & 1:  # all above is void, and was not needed: the leader's snapshot is further on
            group.void(record.index + 1, _place(record), committed=True)
            while group.pending and group.pending[0][0] <= record.index:
                group.pending.popleft()
        else:
            self._commit(group, record.group, max(record.index, group.commit), _place(record))
        group.commit = max(group.commit, record.index)

    def _removed(self, group: GroupLog) -> None:
        """It left this node. Should it come back, it starts from nothing, votes included."""
        group.void(0, "", committed=False)
        group.commit = group.term = 0
        group.hole()


def _place(record: Record) -> str:
    return f"group {record.group} in {Path(record.file).name} at {record.offset}"
