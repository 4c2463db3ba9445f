"""Who takes part in a group: entries of its log that hold from the moment they are written.

One voter comes or goes at a time (Raft thesis, 4.1), so a majority of the old and one of the new
always share a member, and no two leaders can be elected by different ones. An entry holds the whole
list, so whoever reads only the newest knows all. A learner receives the log and counts for nothing.

When a majority was lost for good, a person may override that on each survivor (`Forced`). The
override is kept beside the log, which stays as it is. The first leader has the votes of all
survivors, so it has whatever one of them has; it writes the survivors as an entry of a new era, and
with that entry in its log a member goes by entries again. Learners survive as such, except for one
that leads (`cluster/raft/elections.py` says why).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from cluster.codec.cbor import pack, unpack
from cluster.codec.errors import CodecError
from cluster.log import MEMBERSHIP
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.quorum import majority
from cluster.types import NodeId

#: A snapshot begins with this when it says who the members were; those of 0.1 do not.
SNAPSHOT_MAGIC = b"QMBR"
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sorted ids of nodes."""

    voters: tuple[NodeId, ...]
    learners: tuple[NodeId, ...] = ()
    #: Declared lost for good, and not added again since: what they say is not listened to.
    lost: tuple[NodeId, ...] = ()
    era: int = 0  # of the last recovery without a majority; 0: there was none

    @property
    def members(self) -> tuple[NodeId, ...]:
        return tuple(sorted(self.voters + self.learners))

    @property
    def quorum(self) -> int:
        return majority(len(self.voters))

    def with_learner(self, node: NodeId) -> Configuration:
        lost = tuple(each for each in self.lost if each != node)
        return replace(self, learners=_sorted(*self.learners, node), lost=lost)

    def with_voter(self, node: NodeId) -> Configuration:
        """A new one, or a learner that may vote from now on."""
        voters = _sorted(*self.voters, node)
        return replace(self, voters=voters, learners=self._learners_but(node))

    def without(self, node: NodeId) -> Configuration:
        kept = tuple(voter for voter in self.voters if voter != node)
        return replace(self, voters=kept, learners=self._learners_but(node))

    def with_voters_only(self, nodes: Collection[NodeId], *, era: int) -> Configuration:
        """In a new era, with the others as learners."""
        voters = tuple(voter for voter in self.voters if voter in nodes)
        others = (voter for voter in self.voters if voter not in nodes)
        return replace(self, voters=voters, learners=_sorted(*self.learners, *others), era=era)

    def _learners_but(self, node: NodeId) -> tuple[NodeId, ...]:
        return tuple(learner for learner in self.learners if learner != node)

    def follows(self, other: Configuration) -> bool:
        """At most one voter came or went."""
        return len(set(self.voters) ^ set(other.voters)) <= 1


def _sorted(*nodes: NodeId) -> tuple[NodeId, ...]:
    return tuple(sorted(set(nodes)))


@dataclass(frozen=True, slots=True)
class Forced:
    """The members by order of a person, until an entry of this era or a later one says who they
    are.
    """

    configuration: Configuration

    @property
    def payload(self) -> bytes:
        """As the log keeps it."""
        return encode(self.configuration)[1:]

    @staticmethod
    def of(journal: RaftJournal) -> Forced | None:
        configuration = _unpacked(journal.forced) if journal.forced else None
        return None if configuration is None else Forced(configuration)


def encode(configuration: Configuration) -> bytes:
    """As the data of an entry."""
    return MEMBERSHIP + pack(_fields(configuration))


def _fields(configuration: Configuration) -> list[Any]:
    fields = [list(configuration.voters), list(configuration.learners)]
    if configuration.era:
        return [*fields, list(configuration.lost), configuration.era]
    return fields


def decode(data: bytes) -> Configuration | None:
    """None: it changes nothing, on any member, as a version that wrote it does not exist."""
    return _unpacked(bytes(data[1:]))


def _unpacked(data: bytes) -> Configuration | None:
    try:
        match unpack(data):
            case [[_, *_] as voters, [*learners]]:
                return Configuration(_nodes(voters), _nodes(learners))
            case [[_, *_] as voters, [*learners], [*lost], int(era)]:
                return Configuration(_nodes(voters), _nodes(learners), _nodes(lost), era)
            case _:
                return None
    except CodecError:
        return None


def _nodes(names: Sequence[Any]) -> tuple[NodeId, ...]:
    return tuple(NodeId(name) for name in names if isinstance(name, str))


class Configurations:
    """The one that holds, and those before it that a truncated log or a snapshot goes back to."""

    def __init__(self, first: Configuration, journal: RaftJournal, snapshot: bytes | None) -> None:
        self._journal = journal
        #: What a person said, until an entry of its era is committed.
        self.override = Forced.of(journal)
        known, _ = split(b"" if snapshot is None else snapshot)
        self._known = [known or (0, first)]
        for index, data in journal.memberships:
            self.add(index, data)

    @property
    def current(self) -> Configuration:
        forced = self.forced
        return self._known[-1][1] if forced is None else forced

    @property
    def forced(self) -> Configuration | None:
        """What holds in place of the newest entry, while that is of an earlier era."""
        if self.override is None or self._known[-1][1].era >= self.override.configuration.era:
            return None
        return self.override.configuration

    @property
    def voters_before(self) -> tuple[NodeId, ...]:
        """Of the members by order of a person those whom the log names as voters; all of them, if
        it names none.
        """
        voters = self.current.voters
        return tuple(node for node in voters if node in self._known[-1][1].voters) or voters

    @property
    def era(self) -> int:
        """Of what the log says."""
        return self._known[-1][1].era

    def committed(self, index: int) -> None:
        """Nothing can take entries up to `index` back: an override that one of them ended goes."""
        assert self.override is not None
        era = self.override.configuration.era
        if any(at <= index and each.era >= era for at, each in self._known):
            self.override = None
            self._journal.force(b"")

    @property
    def index(self) -> int:
        """Of the entry that holds it; 0: it is what the group began with."""
        return self._known[-1][0]

    def add(self, index: int, data: bytes) -> None:
        configuration = decode(data)
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
        self._known = [found or (index, self._known[-1][1])]
        return machine


def founded(members: Configuration, data: bytes) -> bytes:
    """A snapshot that a group begins with, as its first members have it."""
    return _joined(0, members, data)


def _joined(at: int, members: Configuration, data: bytes) -> bytes:
    packed = pack([at, *_fields(members)])
    return SNAPSHOT_MAGIC + _LENGTH.pack(len(packed)) + packed + data


def split(data: bytes) -> tuple[tuple[int, Configuration] | None, bytes]:
    """Since which entry who was a member, if the snapshot tells; and what is the machine's."""
    if data[: len(SNAPSHOT_MAGIC)] != SNAPSHOT_MAGIC:
        return None, data
    start = len(SNAPSHOT_MAGIC) + _LENGTH.size
    (length,) = cast("tuple[int]", _LENGTH.unpack_from(data, len(SNAPSHOT_MAGIC)))
    at, voters, learners, *later = cast("list[Any]", unpack(data[start : start + length]))
    lost, era = later or ((), 0)
    members = Configuration(_nodes(voters), _nodes(learners), _nodes(lost), era)
    return (at, members), data[start + length :]
