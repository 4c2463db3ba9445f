"""What a node looks after once a second, and after every change of the catalog.

Groups are started, default groups made, queues brought in line with the catalog, leaderships spread
and the log cleaned. All of it can be repeated or skipped without harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, cast

import structlog

from cluster.catalog.continuity import ClusterContinuity
from cluster.catalog.placement import Hosts, place_all, preferred_leader
from cluster.catalog.reconcile import commands_for, queues_to_compare
from cluster.groups.group_like import GroupLike
from cluster.groups.outcome import Outcome
from cluster.machine import QueueMachine
from cluster.machine.commands import CreateGroup, ForgetNode, ForgetVolatile, NodeDown, RemoveQueue
from cluster.members.moving import Moving, MovingNode
from cluster.turns import until_turn
from cluster.types import CATALOG_GROUP, GroupId, NodeId

log = structlog.get_logger(__name__)

#: A group that agreed with the catalog is compared again after so many periods though neither seems
#: to have changed.
COMPARE_PERIODS = 10
#: Queues that are compared before others get their turn.
QUEUES_AT_ONCE = 250
#: The transient queues of a node go when it is gone, and when nothing was heard of it for so long:
#: until then it may be a partition.
FORGET_SILENT_S = 60.0


class Maintained(MovingNode, Protocol):
    """The node that is looked after."""

    continuity: ClusterContinuity
    stopping: bool

    def start_groups(self) -> None: ...
    def group(self, group_id: GroupId, /) -> GroupLike | None: ...
    def homes(self) -> list[NodeId]: ...
    def hosts(self) -> Hosts: ...
    def linked(self) -> list[NodeId]: ...
    def ask_clocks(self, peers: Sequence[NodeId]) -> None: ...


class MaintenanceLoop:
    """One task; `wake` makes it look at once."""

    def __init__(self, cluster: Maintained) -> None:
        self._cluster = cluster
        self._moving = Moving(cluster)
        self._now = asyncio.Event()
        self._proposed: set[GroupId] = set()  # asked already since the last period: wait and see
        self._due: set[GroupId] = set()  # lead since a moment ago: compare at once
        self._agreed: dict[GroupId, tuple[int, ...]] = {}  # what was compared, and found equal
        self._role_at: dict[GroupId, float] = {}  # loop time of the last change, s
        self._leaders_changed = (
            False  # who leads what has changed: nodes without a copy want to know
        )
        self._down_since: dict[NodeId, float] = {}
        self._forgotten: set[NodeId] = set()  # proposed since the last period
        self._forgetting_volatile = False
        self._policy_version = 0
        self._period = 0
        self._started_s = 0.0

    @property
    def moves(self) -> bool:
        """Copies come or go, step by step: a look a period is too few."""
        return self._moving.moves

    def wake(self) -> None:
        self._now.set()

    def role_changed(self, group: GroupId) -> None:
        """What was proposed under another leader may be lost: propose again."""
        self._proposed.discard(group)
        self._due.add(group)
        self._leaders_changed = True
        self._role_at[group] = asyncio.get_running_loop().time()
        self.wake()

    async def run(self) -> None:
        cluster = self._cluster
        loop = asyncio.get_running_loop()
        clock, period_s = cluster.log.wal.clock, cluster.config.care_period_s
        self._started_s = loop.time()
        next_period = self._started_s + period_s
        while True:
            try:
                async with asyncio.timeout(max(0.0, next_period - loop.time())):
                    await self._now.wait()
            except TimeoutError:
                next_period = loop.time() + until_turn(clock, period_s)
                self._proposed.clear()
                self._forgotten.clear()
                self._balance()
                self._miss_unheard()
                cluster.liveness.retry()
                self._mind_clocks()
                self._announce()  # in one frame with the question for the time
                await cluster.log.maintain()
                self._period += 1
                self._due.update(cluster.groups)
                own = cluster.transient.own
                if own is not None:
                    own.tidy()
                    self._due.add(own.id)
            self._now.clear()
            if self._leaders_changed:
                self._announce()
            cluster.start_groups()
            for group in cluster.groups.values():
                group.upgrade_machine()
            self._moving.look()
            self._make_default_groups()
            await self._reconcile()
            self._forget_nodes()
            self._forget_volatile()

    def _announce(self) -> None:
        self._leaders_changed = False
        links = self._cluster.links
        self._cluster.liveness.announce([p for p in links.peers() if links.connected(p)])

    def _make_default_groups(self) -> None:
        """The leader of a catalog without default groups makes them: the birth of a cluster."""
        cluster = self._cluster
        catalog = cluster.catalog
        if not catalog.ready or CATALOG_GROUP in self._proposed:
            return
        if any(info.default for info in cluster.catalog_machine.groups()):
            return
        self._proposed.add(CATALOG_GROUP)
        config = cluster.config
        nodes, hosts = cluster.homes(), cluster.hosts()
        placed = place_all(nodes, config.replication, config.default_groups, hosts)
        for number, members in enumerate(placed, start=1):
            catalog.propose(CreateGroup(f"default-{number}", members, default=True))

    # --- queues

    async def _reconcile(self) -> None:
        version = self._cluster.catalog_machine.policy_version
        if version != self._policy_version:  # whoever set one expects it to hold at once
            self._policy_version = version
            self._proposed -= self._cluster.groups.keys()
            self._due.update(self._cluster.groups)
            if self._cluster.transient.own is not None:
                self._due.add(self._cluster.transient.own.id)
        due, self._due = self._due, set()
        for group_id in due:
            group = self._cluster.group(group_id)
            if group is None or group_id == CATALOG_GROUP or not group.ready:
                continue
            if group_id not in self._proposed:
                await self._compare(group)

    async def _compare(self, group: GroupLike) -> None:
        catalog, tables = self._cluster.catalog, self._cluster.catalog_machine
        machine = cast(QueueMachine, group.machine)
        queues = len(machine.queues())
        state = (catalog.applied_index, group.term, queues, self._period // COMPARE_PERIODS)
        if self._agreed.get(group.id) == state:
            return
        agrees = True
        compared = queues_to_compare(tables, machine, group.id)
        for start in range(0, len(compared), QUEUES_AT_ONCE):
            if start:
                await asyncio.sleep(0)  # nothing is taken along: both machines may be others then
            if not group.ready:
                return
            some = compared[start : start + QUEUES_AT_ONCE]
            for command in commands_for(tables, machine, group.id, some):
                agrees = False
                if isinstance(command, RemoveQueue):
                    self._cluster.propose(CATALOG_GROUP, command)
                else:
                    group.propose(command)
        if agrees:
            self._agreed[group.id] = state
        else:
            self._agreed.pop(group.id, None)
            self._proposed.add(group.id)

    # --- nodes

    def _miss_unheard(self) -> None:
        """Nodes that were here before this one started, and are not heard: their sessions must not
        live for ever.
        """
        cluster = self._cluster
        now = asyncio.get_running_loop().time()
        if now - self._started_s < cluster.config.election_max_ms / 1000:
            return
        for info in cluster.catalog_machine.nodes():
            if info.incarnation and cluster.peers.miss(info.node, info.incarnation, now):
                gone = cluster.peers.states[info.node].gone
                cluster.liveness.broadcast(NodeDown(info.node, info.incarnation, gone))

    def _forget_nodes(self) -> None:
        """The leader of the catalog gives up the transient queues of nodes that are down."""
        cluster = self._cluster
        now = asyncio.get_running_loop().time()
        catalog = cluster.catalog_machine
        for node, state in cluster.peers.states.items():
            if state.up:
                self._down_since.pop(node, None)
                continue
            down_s = now - self._down_since.setdefault(node, now)
            info = catalog.node(node)
            if not (state.gone or down_s >= FORGET_SILENT_S) or info is None:
                continue
            if not cluster.catalog.ready or node in self._forgotten:
                continue
            lost = catalog.queues_of(info.transient_group)
            if any(queue.incarnation <= state.incarnation for queue in lost):
                log.info("node_forgotten", node=node, incarnation=state.incarnation)
                self._forgotten.add(node)
                cluster.catalog.propose(ForgetNode(node, state.incarnation))

    def _forget_volatile(self) -> None:
        """The leader of the catalog sees to it after all nodes were down."""
        cluster = self._cluster
        continuity = cluster.continuity
        connected = [peer for peer in cluster.linked() if cluster.links.connected(peer)]
        if not cluster.catalog.ready or self._forgetting_volatile:
            return
        if not continuity.all_cold(connected):
            return

        def done(outcome: Outcome) -> None:
            self._forgetting_volatile = False
            if outcome.reply is not None:
                continuity.establish()
                self._leaders_changed = True
                self.wake()  # what was not taken waits for the next period

        self._forgetting_volatile = True
        cluster.catalog.propose(ForgetVolatile(cluster.catalog_machine.generation), done)

    def _balance(self) -> None:
        cluster = self._cluster
        now = asyncio.get_running_loop().time()
        if cluster.stopping:
            return
        leaving = {info.node for info in cluster.catalog_machine.nodes() if info.state == "leaving"}
        for group in cluster.groups.values():
            voters = group.configuration.voters
            preferred = preferred_leader(group.id, sorted({*voters} - leaving) or voters)
            if not group.ready or preferred == cluster.node:
                continue
            if cluster.time.out_of_bounds or not cluster.time.trusts(preferred):
                continue
            # Who has just been handed one keeps it for a while: somebody may have wanted that.
            led_s = now - self._role_at.get(group.id, self._started_s)
            heard_s = min(cluster.peers.stays_for(preferred, now), led_s)
            if heard_s >= cluster.config.balance_after_s and group.caught_up(preferred):
                log.info("leadership_balanced", group=group.name, to=preferred)
                group.transfer(preferred)

    def _mind_clocks(self) -> None:
        """Compare clocks; a node whose own is out of bounds gives its leaderships away."""
        cluster = self._cluster
        cluster.ask_clocks([p for p in cluster.linked() if cluster.links.connected(p)])
        if not cluster.time.out_of_bounds or cluster.time.in_doubt or cluster.stopping:
            return
        for group in cluster.groups.values():
            if not group.ready:
                continue
            voters = [node for node in group.configuration.voters if node != cluster.node]
            able = [n for n in voters if cluster.peers.stays(n) and cluster.time.trusts(n)]
            able = [node for node in able if group.caught_up(node)]
            if able:
                to = able[group.id % len(able)]
                log.warning("leadership_left", group=group.name, to=to, why=cluster.time.advice)
                group.transfer(to)
