"""Who takes part in a group: entries of its log that hold from the moment they are written.

One voter comes or goes at a time (Raft thesis, 4.1), so a majority of the old and one of the new
always share a member, and no two leaders can be elected by different ones. An entry holds the whole
list, so whoever reads only the newest knows all. A learner receives the log and counts for nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.log import MEMBERSHIP
from cluster.raft.journal import RaftJournal
from cluster.types import NodeId

#: A snapshot begins with this when it says who the members were; those of 0.1 do not.
SNAPSHOT_MAGIC = b"QMBR"
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sorted ids of nodes."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()

    @property
    def members(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self.voters + self.learners))

    @property
    def quorum(self) -> int:
        return len(self.voters) // 2 + 1

    def with_learner(self, node: NodeId) -> Configuration:
        return Configuration(self.voters, _sorted(*self.learners, node))

    def with_voter(self, node: NodeId) -> Configuration:
        """A new one, or a learner that may vote from now on."""
        return Configuration(_sorted(*self.voters, node), self._learners_but(node))

    def without(self, node: NodeId) -> Configuration:
        kept = tuple(voter for voter in self.voters if voter != node)
        return Configuration(kept, self._learners_but(node))

    def _learners_but(self, node: NodeId) -> tuple[NodeId, ...]:
        return tuple(learner for learner in self.learners if learner != node)

    def follows(self, other: Configuration) -> bool:
        """At most one voter came or went."""
        return len(set(self.voters) ^ set(other.voters)) <= 1


def _sorted(*nodes: NodeId) -> tuple[NodeId, ...]:
    return tuple(sorted(set(nodes)))


def encode(configuration: Configuration) -> bytes:
    """As a command of the log."""
    return MEMBERSHIP + pack([list(configuration.voters), list(configuration.learners)])


def decode(command: bytes) -> Configuration | None:
    """None: it changes nothing, on any member, as a version that wrote it does not exist."""
    try:
        match unpack(bytes(command[1:])):
            case [[_, *_] as voters, [*learners]]:
                return Configuration(_nodes(voters), _nodes(learners))
            case _:
                return None
    except CodecError:
        return None


def _nodes(names: Sequence[Any]) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names if isinstance(name, str))


class Configurations:
    """The one that holds, and those before it that a truncated log or a snapshot goes back to."""

    def __init__(self, first: Configuration, journal: RaftJournal, snapshot: bytes | None) -> None:
        known, _ = split(b"" if snapshot is None else snapshot)
        self._known = [known or (0, first)]
        for index, command in journal.memberships:
            self.add(index, command)

    @property
    def current(self) -> Configuration:
        return self._known[-1][1]

    @property
    def index(self) -> int:
        """Of the entry that holds it; 0: it is what the group began with."""
        return self._known[-1][0]

    def add(self, index: int, command: bytes) -> None:
        configuration = decode(command)
        if configuration is not None:
            self._known.append((index, configuration))

    def truncate(self, index: int) -> None:
        """The entries from `index` on are gone."""
        while self._known[-1][0] >= index and len(self._known) > 1:
            self._known.pop()

    def joined(self, index: int, data: bytes) -> bytes:
        """A snapshot of the machine after `index`, and who the members were."""
        while len(self._known) > 1 and self._known[1][0] <= index:
            self._known.pop(0)  # nothing goes back behind a snapshot
        return _joined(*self._known[0], data)

    def install(self, index: int, data: bytes) -> bytes:
        """A snapshot took the place of all that was; returns the machine's part of it."""
        found, machine = split(data)
        self._known = [found or (index, self.current)]
        return machine


def founded(members: Configuration, data: bytes) -> bytes:
    """A snapshot that a group begins with, as its first members have it."""
    return _joined(0, members, data)


def _joined(at: int, members: Configuration, data: bytes) -> bytes:
    packed = pack([at, list(members.voters), list(members.learners)])
    return SNAPSHOT_MAGIC + _LENGTH.pack(len(packed)) + packed + data


def split(data: bytes) -> tuple[tuple[int, Configuration] | None, bytes]:
    """Since which entry who was a member, if the snapshot tells; and what is the machine's."""
    if data[: len(SNAPSHOT_MAGIC)] != SNAPSHOT_MAGIC:
        return None, data
    start = len(SNAPSHOT_MAGIC) + _LENGTH.size
    (length,) = cast("tuple[int]", _LENGTH.unpack_from(data, len(SNAPSHOT_MAGIC)))
    at, voters, learners = cast("list[Any]", unpack(data[start : start + length]))
    return (at, Configuration(_nodes(voters), _nodes(learners))), data[start + length :]
