"""What a group's copy is, as those around it see it: nothing here changes anything."""

from __future__ import annotations

from typing import Any

from cluster.applying import Applying
from cluster.group_status import group_status
from cluster.machine.interface import Machine
from cluster.machine.versions import NeedsNewer
from cluster.proposals import Proposals
from cluster.raft.configuration import Configuration
from cluster.raft.journal import RaftJournal
from cluster.raft.member import Member, Role
from cluster.types import GroupId, NodeId


class GroupFacts:
    """The half of `Group` that only tells."""

    id: GroupId
    name: str
    node: NodeId
    machine: Machine
    journal: RaftJournal
    member: Member
    failed: str | None
    needs_newer: NeedsNewer | None
    _proposals: Proposals
    _applying: Applying
    _ready: bool
    #: Index, own digest and the leader's of the last comparison, when they differed.
    diverged: tuple[int, bytes, bytes] | None

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners, as this copy knows them."""
        return self.configuration.members

    @property
    def configuration(self) -> Configuration:
        return self.member.configuration

    @property
    def configured_at(self) -> int:
        """Index of the entry that says so."""
        return self.member.configurations.index

    @property
    def role(self) -> Role:
        return Role.FOLLOWER if self.failed is not None else self.member.role

    @property
    def ready(self) -> bool:
        """Leads, and the machine holds everything that was ever confirmed."""
        return self._ready

    @property
    def leader(self) -> NodeId | None:
        leader = self.member.leader
        return None if leader is None or self.failed is not None else leader.id

    @property
    def term(self) -> int:
        return self.member.term

    @property
    def commit_index(self) -> int:
        return self.member.commit_index

    @property
    def applied_index(self) -> int:
        return self.member.applied_index

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def pending_bytes(self) -> int:
        """Proposed here and not applied yet."""
        return self._proposals.bytes

    @property
    def poisoned(self) -> str | None:
        """Why this copy stopped, if it did: a bug, or what a later release wrote; never a client's
        doing.
        """
        return self.failed or self.member.poisoned

    @property
    def withholds_votes(self) -> bool:
        return self.member.withholds_votes

    @property
    def skipped(self) -> int:
        """Commands at which the machine raised, since the process started."""
        return self._applying.skipped_count

    def caught_up(self, node: NodeId) -> bool:
        """As the leader: `node` could take over now or in a moment."""
        return self.lacks(node) <= 1

    def lacks(self, node: NodeId) -> int:
        return self.member.replication.lacks(node)

    def lag(self) -> dict[NodeId, int]:
        """As the leader: entries that each other member lacks."""
        return self.member.replication.lag()

    def status(self) -> dict[str, Any]:
        return group_status(self)
