"""One simulated computer, and a group's copy on it as the invariants see it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from chaos.simulator.channel import Channel
from chaos.simulator.clock import SimClock
from chaos.simulator.decay import Directories
from chaos.simulator.disk import Platter
from chaos.simulator.loop import Process, ProcessState
from chaos.simulator.sim_broker import SimBroker
from cluster.cluster_node import ClusterNode
from cluster.groups.group import Group, Role
from cluster.log import FatalDiskError
from cluster.types import GroupId, NodeId


@dataclass(eq=False)
class GroupView:
    """A group's copy as the invariants see it."""

    group: Group

    @property
    def term(self) -> int:
        return self.group.term

    @property
    def leads(self) -> bool:
        return self.group.role is Role.LEADER

    @property
    def last_index(self) -> int:
        return self.group.journal.last_index

    @property
    def commit_index(self) -> int:
        return self.group.commit_index

    def hash_at(self, index: int) -> bytes | None:
        """None: not known any more, or the disk failed, which is the node's to see."""
        try:
            return self.group.journal.hash_at(index)
        except FatalDiskError:
            return None

    def term_at(self, index: int) -> int | None:
        return self.group.journal.term_at(index)


class Machine:
    """Its platter and clock stay when processes come and go."""

    def __init__(self, name: NodeId, platter: Platter, clock: SimClock) -> None:
        self.name = name
        self.platter = platter
        self.clock = clock
        self.incarnation = 0
        self.failures_known = 0  # of its disk, before this process
        self.damaged = False  # on purpose: it may refuse to start
        self.forgot = False  # by a strike, which waits until it is trusted again
        self.copy: Directories | None = None  # of all its files
        self.process: Process | None = None
        self.cluster: ClusterNode | None = None
        self.broker: SimBroker | None = None
        self.channels: list[Channel] = []

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.state is ProcessState.RUNNING

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.alive

    @property
    def disk_failed(self) -> bool:
        """Under this process, which must end itself."""
        return self.platter.failures > self.failures_known

    @property
    def serves(self) -> bool:
        return self.running and self.broker is not None

    @property
    def refused_to_start(self) -> bool:
        return self.alive and self.broker is None and bool(self.process and self.process.crashes)

    @property
    def trusted(self) -> bool:
        return self.trusted_but(())

    def trusted_but(self, gone: Collection[GroupId]) -> bool:
        """Its disk holds again all that it should, as far as the node itself can say: the others
        know of this start, and its votes count, but for groups of which nothing is left.
        """
        cluster = self.cluster
        if not self.serves or cluster is None:
            return False
        info = cluster.catalog_machine.node(self.name)
        known = info is not None and info.incarnation == self.incarnation
        groups = [group for group in cluster.groups.values() if group.id not in gone]
        return known and not any(group.votes_suspended for group in groups)

    def groups(self) -> dict[GroupId, Group]:
        return {} if self.cluster is None else self.cluster.groups

    def lacks(self, queue: str) -> bool:
        return self.cluster is not None and self.cluster.queue_info("/", queue) is None
