"""One node's share of the cluster: its groups, its copy of the catalog, and the ways to reach every
leader.

The broker above proposes commands to groups and gets outcomes; of Raft it sees who leads. The same
class runs under the simulator.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import structlog

from cluster.agreed_time import AgreedTime
from cluster.catalog.catalog_read_index import CatalogGroup, CatalogReadIndex
from cluster.catalog.continuity import ClusterContinuity
from cluster.catalog.overview import status_of
from cluster.catalog.placement import Hosts, hosts_of
from cluster.catalog.queue_names import Heard, QueueNames
from cluster.catalog.transient import TransientGroups
from cluster.catalog.upgrading import version_for
from cluster.cluster_config import ClusterConfig
from cluster.groups.group import Group, Outcome, Role
from cluster.groups.group_like import GroupLike
from cluster.log import Log, LogIdentity, RecoveryProgress
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine, GroupInfo, QueueInfo
from cluster.machine.commands import Command, DeclareQueue, NodeDown, NodeUp
from cluster.machine.effects import Effect
from cluster.members.disk_identity import DiskIdentity
from cluster.members.liveness import LivenessBroadcast
from cluster.members.maintenance import MaintenanceLoop
from cluster.members.readmission import EMPTY, GIVEN_UP, GivenUp, Readmission
from cluster.members.registration import Registration
from cluster.members.relief import Relief
from cluster.members.unknown_peers import MEMBER, REMOVED, WHO, UnknownPeers
from cluster.peers.forwarding import Forwarder
from cluster.peers.node_notes import NodeNotes
from cluster.peers.peers import Peers
from cluster.raft.drive_loop import DriveLoop
from cluster.raft.messages import singles
from cluster.seams import Clock, Disk, Down, Links
from cluster.types import CATALOG_GROUP, TRANSIENT_GROUPS, GroupId, NodeId, QueueId, Stamp

log = structlog.get_logger(__name__)

#: Messages between the broker layers of two nodes start with this instead of a group.
BROKER_LEVEL = -2
#: A node that leaves, and holds nothing, was let go when none of the others was up for so long.
LEFT_S = 5.0

OnEffects = Callable[[GroupLike, Stamp, Sequence[Effect]], None]
OnRole = Callable[[Group, Role, int], None]
OnNodeMessage = Callable[[NodeId, list[Any]], None]


class ClusterNode:
    """Owns the log, the links, the drive loop and the groups of one node."""

    def __init__(
        self,
        config: ClusterConfig,
        *,
        disk: Disk,
        clock: Clock,
        links: Links,
        random: random_module.Random,
    ) -> None:
        self.config = config
        self.node = config.node
        self.links = links
        self.groups: dict[GroupId, Group] = {}
        self._copies: dict[GroupId, GroupLike] = {}
        #: This node's copy of a replicated group, or its own group of transient queues.
        self.group: Callable[[GroupId], GroupLike | None] = self._copies.get
        #: Called with all effects of a command where this node leads, if any is of these kinds.
        self.on_effects: list[tuple[frozenset[type] | None, OnEffects]] = []  # None: of any
        self.on_role: list[OnRole] = []
        self.on_node_message: list[OnNodeMessage] = []
        self.on_link_up: list[Callable[[NodeId], None]] = []
        self.on_link_lost: list[Callable[[NodeId], None]] = []
        self.peers = Peers(config.node, links.incarnation)
        self.time = AgreedTime(
            config.node,
            clock,
            self.linked,
            offset_ms_max=config.clock_offset_ms_max,
            confirm_ms=config.clock_confirm_ms,
        )
        self._disk = disk
        self._clock = clock
        self._random = random
        self.forwarder = Forwarder(
            config.node, links, random=random, group_of=self.group, leader_of=self.leader_of
        )
        #: Propose at the group's leader, here or over the link; `done` is called once, perhaps at
        #: once. What is proposed first at a leader is applied first.
        self.propose = self.forwarder.propose
        self.ask = self.forwarder.ask  # the same, waiting for the outcome
        #: Proposals of this node that are made again until they are decided.
        self.retries = self.forwarder.new_retries()
        self.transient = TransientGroups(
            config.node,
            lambda: links.incarnation,
            self.peers,
            clock,
            bytes_max=config.transient_bytes_max,
            confirm_hold_ms_max=config.confirm_hold_ms_max,
            agreed_time=self.time,
        )
        self.catalog_read_index = CatalogReadIndex(
            config.node, links, self.peers, self.forwarder.answers
        )
        self.liveness = LivenessBroadcast(self)
        self._begun = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.readmission = Readmission(self, read_catalog=self._read_catalog)
        self.unknown_peers = UnknownPeers(
            config.node,
            links,
            joins=config.join,
            groups=self.groups,
            read_catalog=self._read_catalog,
            ask_lost=self.readmission.ask_node,
        )
        self._maintenance = MaintenanceLoop(self)
        self._registration = Registration(self, DiskIdentity(disk, config.data_dir))
        self._failure: BaseException | None = None
        self._recovered_index = 0  # committed of the catalog when this process started
        self._has_read = False  # the catalog, once: this node's copy is no older than this process
        self.replay = RecoveryProgress()
        self.stopping = False
        self.catalog: Group
        self.catalog_machine: CatalogMachine
        self.log: Log
        self.notes: NodeNotes
        self.drive_loop: DriveLoop
        self.names: QueueNames
        self.continuity: ClusterContinuity

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the log, start the catalog and every group it places on this node. What was begun
        is ended when it fails.
        """
        async with AsyncExitStack() as begun:
            await self._start(begun)
            self._begun = begun.pop_all()

    async def _start(self, begun: AsyncExitStack) -> None:
        config = self.config
        self.log = await Log.open(
            config.data_dir,
            disk=self._disk,
            clock=self._clock,
            identity=LogIdentity(config.node, config.cluster),
            options=config.log,
            progress=self.replay,
        )
        begun.push_async_callback(self.log.close)
        self.notes = NodeNotes(self.log)
        self.notes.started(self.links.incarnation)
        begun.callback(self._registration.disk_identity.close)
        await self._registration.disk_identity.open()
        now = asyncio.get_running_loop().time()
        self.peers.begin(config.node, self.links.incarnation, now)
        self._registration.renumber_above(self._registration.disk_identity.registered)
        self.drive_loop = DriveLoop(self.log.wal, self.links, self._clock)
        self._start_catalog()
        begun.callback(self._note_end)
        begun.push_async_callback(self.links.stop)
        await self.links.start(self._on_message, self._on_up, self._on_down)
        begun.push_async_callback(self._end_work)
        self._tasks = [
            self._spawn(self.drive_loop.run(), "drive_loop"),
            self._spawn(self._maintenance.run(), "care"),
            self._spawn(Relief(self.log, lambda: self.groups).run(), "relief"),
            self._spawn(self._registration.run(), "register"),
            self._spawn(self.unknown_peers.run(), "unknown_peers"),
            self._spawn(self.readmission.run(), "readmission"),
        ]

    def _start_catalog(self) -> None:
        config = self.config
        machine = self.catalog_machine = config.machines[0]()
        self._add_group(CATALOG_GROUP, "catalog", config.founders, machine, CatalogGroup)
        catalog = cast(CatalogGroup, self.groups[CATALOG_GROUP])
        self.catalog = catalog
        if catalog.needs_newer is not None:
            raise catalog.needs_newer
        catalog.on_needs_newer = self._fail
        if config.join and catalog.term == 0:
            # The folder is empty. Perhaps there was an earlier one, and those that are asked for
            # votes with this node have not heard of it.
            catalog.suspend_votes()
        self._recovered_index = catalog.commit_index
        self.continuity = ClusterContinuity(catalog.last_index)
        self.names = QueueNames(
            config,
            self.catalog_machine,
            self.retries,
            catalog_read_index=self.catalog_read_index,
            continuity=self.continuity,
            transient=self.transient,
            incarnation=lambda: self.links.incarnation,
            is_up=self.peers.is_up,
            homes=self.homes,
            unsettled=self.unsettled,
            hosts=self.hosts,
            heard=self._catalog_heard,
            copies=self.groups.values,
        )
        self.forwarder.cluster_version = lambda: self.catalog_machine.version
        self.forwarder.why_no_leader = self._why_no_leader
        index = self.catalog_read_index
        index.trust_s = catalog.member.elections.break_s
        index.nodes = lambda: [info.node for info in self.catalog_machine.nodes()]
        index.leader = lambda: (
            None if catalog.member.leads and not catalog.ready else catalog.leader
        )
        catalog.moved = self._catalog_moved
        self._catalog_moved(catalog.applied_index)

    async def _read_catalog(self) -> bool:
        """All that was in it when this was called is in this node's copy; False: not in time."""
        done = await self.names.barrier()
        if done and not self._has_read:
            self._has_read = True
            self._maintenance.wake()
        return done

    def _catalog_heard(self) -> Heard | None:
        leader, since = self.catalog.leader, self.catalog.member.heard_since()
        return None if leader is None or since is None else (leader, self.catalog.term, since)

    def _catalog_moved(self, index: int) -> None:
        self.catalog_read_index.moved(index, self.catalog.term, self.catalog_machine.changes)
        self.continuity.moved(index, self.catalog_machine.generation)

    def renumber(self, incarnation: int) -> None:
        """Known by this number from now on. Only before this start is registered."""
        self.links.renumber(incarnation)
        self.notes.started(incarnation)
        self.peers.begin(self.node, incarnation, asyncio.get_running_loop().time())

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            log.error("node_failed", node=self.node, task=task.get_name(), exc_info=error)
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """A node that cannot trust its disk, has a bug here, or cannot read the catalog, must not
        go on as if it served.
        """
        self._failure = error
        for each in self._tasks:
            each.cancel()
        self.forwarder.stop()
        for group in self.groups.values():
            group.stop()
        self.transient.stop()

    async def stop(self, *, transfer: bool = True) -> None:
        """Hand leaderships over, let the drive loop finish, close. Safe to call at any time,
        and more than once.
        """
        self.stopping = True
        try:
            if transfer and self._tasks and self._failure is None:
                await self.liveness.hand_over()
        finally:
            await self._begun.aclose()

    async def _end_work(self) -> None:
        """The drive loop last: it writes what the others have left, and answers the proposers."""
        for task in self._tasks[1:]:
            task.cancel()
        self.forwarder.stop()
        self.catalog_read_index.stop()
        self.transient.stop()
        await self.drive_loop.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _note_end(self) -> None:
        if self.stopping and self._failure is None:
            self.notes.stopped()

    @property
    def failed(self) -> BaseException | None:
        """The error that stopped this node (a disk that cannot be trusted, a bug), if any."""
        return self._failure

    @property
    def sound(self) -> bool:
        """None of its copies has stopped, or diverged from the others."""
        groups = self.groups.values()
        return not any(group.poisoned or group.member.diverged for group in groups)

    # --- groups -----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """What time the nodes agree that it is."""
        return self.time.at(self._clock.monotonic_ns())

    def _add_group(
        self,
        group_id: GroupId,
        name: str,
        members: Sequence[NodeId],
        machine: CatalogMachine | QueueMachine,
        kind: type[Group] = Group,
    ) -> None:
        config = self.config
        group = kind(
            group_id,
            name,
            tuple(members),
            self.node,
            machine=machine,
            journal=self.log.journal(group_id),
            log=self.log,
            links=self.links,
            clock=self._clock,
            random=self._random,
            options=config.catalog_options if group_id == CATALOG_GROUP else config.group_options,
            agreed_time=self.time,
        )
        group.version_of_members = lambda: version_for(
            self.catalog_machine, group.id, group.members, machine.newest
        )
        group.let_in = lambda node: self.readmission.is_empty(group_id, node)
        group.room_bytes = self.log.room_bytes
        group.on_effects.append(self._on_effects)
        group.on_role.append(self._on_group_role)
        self.groups[group_id] = self._copies[group_id] = group
        if self._registration.stale:
            group.suspend_votes()
        self.drive_loop.add(group)
        for peer, state in self.peers.states.items():
            if peer != self.node and state.up:
                group.peer_up(peer)
        for unknown in self.unknown_peers.connected:
            group.peer_up(unknown)

    def start_groups(self) -> None:
        if self.catalog.applied_index < self._recovered_index:
            return  # this copy of the catalog knew more before the restart
        if self._registration.records:
            return
        kept = self.log.groups()
        for info in self.catalog_machine.groups():
            if info.id not in self.groups and (self.node in info.homes or info.id in kept):
                if info.id in kept and self.log.journal(info.id).forced and not self._has_read:
                    # By order of a person it might serve at once what others hold by now.
                    self.readmission.want_catalog()
                    continue
                machine = self.config.machines[1]()
                self._add_group(info.id, info.name, info.founders, machine)
                if self.groups[info.id].term == 0 and self._may_have_dropped(info):
                    self.groups[info.id].suspend_votes()
        own = self.transient.start(self.catalog_machine)
        if own is not None:
            self._copies[own.id] = own
            own.on_effects.append(self._on_effects)
            self.liveness.on_leadership(own)

    def _may_have_dropped(self, info: GroupInfo) -> bool:
        """Perhaps there was an earlier copy here, and what it had promised went with it. Founders
        keep theirs until others are known to hold the group.
        """
        return bool(info.moves) and (info.held_at > 0 or self.node not in info.founders)

    def drop_group(self, group_id: GroupId) -> None:
        """This node's copy is not wanted any more, and counts for nothing."""
        self.groups[group_id].member.step_down(None)  # an old leader's clients go elsewhere
        self.drive_loop.remove(group_id)
        group = self.groups.pop(group_id)
        del self._copies[group_id]
        self.log.remove_group(group_id)
        group.call_next()
        self.drive_loop.wake()

    def homes(self) -> list[NodeId]:
        """The nodes that may be given groups: members, and not about to leave."""
        stays = {info.node: info.state == "member" for info in self.catalog_machine.nodes_ever()}
        return [node for node in self.catalog.members if stays.get(node, True)]

    def hosts(self) -> Hosts:
        """Which nodes share a machine, by their addresses."""
        known = {info.node: info.endpoints for info in self.catalog_machine.nodes()}
        said = {node: each["peer"] for node, each in known.items() if "peer" in each}
        return hosts_of({**self.config.peers, **said})

    def unsettled(self) -> set[NodeId]:
        """Of these, the ones that learn the catalog, and those whose latest start is not registered
        yet. Their folders may be new: then their votes are suspended also in a group that is
        created just now, and two such nodes of three would keep it without a leader.
        """
        voters, machine = self.catalog.configuration.voters, self.catalog_machine

        def settled(node: NodeId) -> bool:
            info, state = machine.node(node), self.peers.states.get(node)
            if info is None or not info.incarnation or state is None:
                return True  # nobody knows of an earlier start, or of a later one
            return state.incarnation <= info.incarnation

        return {node for node in self.homes() if node not in voters or not settled(node)}

    def copies_wanted(self, group_id: GroupId) -> int:
        """With fewer a group is less safe than it was meant to be, or can be on as many nodes."""
        nodes = len(self.homes())
        info = self.catalog_machine.group(group_id)
        if info is None:
            return nodes
        return min(nodes, self.config.replication if info.default else len(info.founders))

    @property
    def left(self) -> bool:
        """This node was removed from the cluster: others have taken over all that it had. They tell
        it, or it knows, and they hang up on it (those of an earlier release tell nobody). A short
        silence says nothing: they may be starting, or let it in again.
        """
        if self._failure is not None:
            return False  # perhaps since the others do not have what it had
        if self.unknown_peers.is_removed:
            return True
        info = self.catalog_machine.node(self.node)
        if info is None or info.state == "member" or len(self.groups) > 1:
            return False
        if self.peers.alone_s(asyncio.get_running_loop().time()) < LEFT_S:
            return False
        return not any(self.node in group.homes for group in self.catalog_machine.groups())

    def forget(self, peer: NodeId) -> None:
        """It was removed from the cluster: its process counts as gone, and is not let in again."""
        self.links.remove_peer(peer)
        self._on_down(peer, Down.GONE)
        self.peers.forget(peer)

    def _on_effects(self, group: GroupLike, stamp: Stamp, effects: Sequence[Effect]) -> None:
        if group.id == CATALOG_GROUP:
            self.transient.removed(effects)
            self._maintenance.wake()
        elif group.ready:
            found = set(map(type, effects))
            for kinds, listener in self.on_effects:
                if kinds is None or not kinds.isdisjoint(found):
                    listener(group, stamp, effects)

    def _on_group_role(self, group: Group, role: Role, term: int) -> None:
        self._maintenance.role_changed(group.id)
        if role is Role.LEADER:
            self.peers.forget_leader(group.id)
            if group.id != CATALOG_GROUP:
                self.liveness.on_leadership(group)
        for listener in self.on_role:
            listener(group, role, term)
        self._maintenance.wake()

    # --- peers ------------------------------------------------------------------------------------

    def linked(self) -> list[NodeId]:
        """The nodes to which there are to be links, without unknown peers."""
        return [node for node in self.links.peers() if not self.unknown_peers.is_unknown_peer(node)]

    def _on_message(self, peer: NodeId, message: list[Any]) -> None:
        if self.unknown_peers.is_unknown_peer(peer):
            self._on_message_of_unknown_peer(peer, message)
            return
        head = message[0] if message else None
        if type(head) is int and head in self.groups:  # nearly all of them, and there are many
            self.drive_loop.receive(GroupId(head), peer, message)
            return
        match message:  # -1: NODE_LEVEL, -2: BROKER_LEVEL
            case [-1, "beats" | "beats_answered" as kind, joined]:
                self.drive_loop.receive_joined(peer, kind, joined)
            case [-1, "leads", led, int(known), *rest]:
                news = self.peers.learn_leads(peer, led)
                self._registration.on_known_incarnation(known)
                # Versions that do not say it have nothing that must be forgotten.
                news |= self.continuity.on_peer(peer, continuous=rest[:1] != [False])
                if news or self._maintenance.moves:
                    self._maintenance.wake()
            case [-1, "leaving" | "staying" | "waiting" as word]:
                self.peers.leaving(peer, leaves=word == "leaving", waits=word == "waiting")
            case [-1, "clock?", int(asked_ns)]:
                self.links.send(peer, [-1, "clock", asked_ns, self._clock.wall_ns()])
                self.links.flush()
            case [-1, "clock", int(asked_ns), int(wall_ns)]:
                self.time.heard(peer, asked_ns, wall_ns)
            case [-1, "applied?" | "applied" | "everywhere?" | "everywhere", _]:
                self.catalog_read_index.on_message(peer, message)
            case [-1, word, int(index)] if word == REMOVED:
                self.unknown_peers.on_message(peer, index)
            case [-1, word, str(node)] if word == WHO:
                self.unknown_peers.on_who(peer, NodeId(node))
            case [-1, word, str(node), str(address)] if word == MEMBER:
                self.unknown_peers.on_member(NodeId(node), address)
            case [-1, word, *_] if word in (GIVEN_UP, EMPTY):
                self._on_readmission(peer, message)
            case [-1, *_]:
                self.forwarder.on_message(peer, message)
            case [-2, *_]:
                for listener in self.on_node_message:
                    listener(peer, message)
            case _:
                pass  # a group that this node has not started yet: Raft sends again

    def _on_message_of_unknown_peer(self, unknown: NodeId, message: list[Any]) -> None:
        match message:
            case [-1, "leads", _, int(known), *_]:
                self._registration.on_known_incarnation(known)
            case [-1, "beats" | "beats_answered" as kind, joined]:
                for single in singles(kind, joined):
                    self._on_message_of_unknown_peer(unknown, single)
            case [-1, *_]:
                self.forwarder.refuse(unknown, message)
            case _ if self.unknown_peers.takes(unknown, message):
                self.drive_loop.receive(GroupId(message[0]), unknown, message)
            case _:
                pass

    def _on_readmission(self, peer: NodeId, message: list[Any]) -> None:
        try:
            self.readmission.on_message(peer, message)
        except GivenUp as error:
            if self._failure is None:
                log.error("node_given_up", node=self.node, reason=str(error))
                self._fail(error)

    def _on_up(self, peer: NodeId, incarnation: int) -> None:
        if self.unknown_peers.on_up(peer, incarnation):
            self.liveness.announce([peer])  # it may be one that the log has, and was wiped
            for group in self.groups.values():
                group.peer_up(peer)
            return
        self.peers.up(peer, incarnation, asyncio.get_running_loop().time())
        self.catalog_read_index.up()
        self.notes.link_up(peer, incarnation)
        for group in self.groups.values():
            group.peer_up(peer)
        self.liveness.broadcast(NodeUp(peer, incarnation))
        self.ask_clocks([peer])
        self.liveness.announce([peer])
        for listener in self.on_link_up:
            listener(peer)
        self.drive_loop.wake()

    def _on_down(self, peer: NodeId, down: Down) -> None:
        """An election need not wait when the link was closed. What clients of that node hold waits
        until it is gone for certain: it may live behind a firewall.
        """
        if self.unknown_peers.is_unknown_peer(peer):
            self.unknown_peers.on_down(peer)
            for group in self.groups.values():
                group.peer_down(peer, closed=down is not Down.SILENT)
            return
        gone, closed = down is Down.GONE, down is not Down.SILENT
        incarnation = self.peers.down(peer, gone=gone, now=asyncio.get_running_loop().time())
        self.time.forget(peer)
        self.notes.link_down(peer, incarnation, gone=closed)
        self.forwarder.on_down(peer)
        for listener in self.on_link_lost:
            listener(peer)
        self.catalog_read_index.down(peer)
        self.continuity.down(peer)
        for group in self.groups.values():
            group.peer_down(peer, closed=closed)
        if incarnation:
            self.liveness.broadcast(NodeDown(peer, incarnation, gone))
        self.drive_loop.wake()

    def ask_clocks(self, peers: Sequence[NodeId]) -> None:
        """The round trip is measured by the monotonic clock: the wall clocks are in question.
        The caller flushes at once: until then the round trip runs.
        """
        for peer in peers:
            self.links.send(peer, [-1, "clock?", self._clock.monotonic_ns()])

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        """A message to the broker layer of another node; it must start with BROKER_LEVEL."""
        assert message[0] == BROKER_LEVEL
        return self.forwarder.batches.send(peer, message)

    def answer(self, peer: NodeId, message: list[Any], *, dropped: list[Any]) -> None:
        """The same for what that node waits for: a link that is full has room later. `dropped`: see
        `Answers.send`.
        """
        assert message[0] == dropped[0] == BROKER_LEVEL
        self.forwarder.answers.send(peer, message, dropped=dropped)

    # --- asking -----------------------------------------------------------------------------------

    def leader_of(self, group_id: GroupId) -> NodeId | None:
        """The leader as far as this node knows."""
        if group_id >= TRANSIENT_GROUPS:
            return self.transient.leader_of(group_id, self.catalog_machine)
        group = self.groups.get(group_id)
        leader = None if group is None else group.leader
        if (
            leader is not None
            and leader != self.node
            and self.unknown_peers.is_unknown_peer(leader)
        ):
            return None  # followed, but its answers would not be taken
        return self.peers.leader_of(group_id) if leader is None else leader

    def _why_no_leader(self, group_id: GroupId) -> str:
        info = self.catalog_machine.group(group_id)
        name = f"{group_id}" if info is None else info.name
        lost = {*self.catalog.configuration.lost}
        if info is not None and info.homes <= lost and group_id not in self.groups:
            homes = ", ".join(sorted(info.homes))
            return f"group {name} has no copy left: {homes} had them, and were declared lost"
        return f"group {name} has no known leader now; try again"

    # --- queues -----------------------------------------------------------------------------------

    def queue_info(self, vhost: str, name: str) -> QueueInfo | None:
        """From this node's own copy of the catalog, which may lag."""
        return self.catalog_machine.queue(vhost, name)

    def queues(self) -> list[QueueInfo]:
        return list(self.catalog_machine.queues())

    async def change(self, command: Command) -> Outcome:
        """Any command of the catalog but those about queues. When this answers ok, this node and
        every other one that is up has applied it.
        """
        return await self.names.change(command)

    async def declare_queue(
        self,
        vhost: str,
        name: str,
        arguments: dict[str, Any],
        *,
        durable: bool = True,
        auto_delete: bool = False,
        exclusive: bool = False,
        transient: bool = False,
        owner: str | None = None,
    ) -> Outcome:
        """The queue is in the catalog, as every node that is up knows it, and in its group when
        this answers ok with `Declared`. A transient one is kept by this node alone.
        """
        node = self.node if transient else None
        flags = (durable, auto_delete, exclusive, node, 0, owner)
        return await self.names.declare(DeclareQueue(vhost, name, arguments, None, None, *flags))

    async def change_stream(self, info: QueueInfo, arguments: dict[str, Any]) -> Outcome:
        """When this answers ok, every node that is up knows this stream by these. Refused: it is
        gone, though another one may have its name.
        """
        return await self.names.change_stream(info, arguments)

    async def remove_queue(
        self,
        vhost: str,
        name: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        if_settled: bool = False,
        owner: str | None = None,
        queue: QueueId | None = None,
    ) -> Outcome:
        """The queue is gone from its group and from every node's catalog when this answers ok."""
        how = {"if_unused": if_unused, "if_empty": if_empty, "if_settled": if_settled}
        return await self.names.remove(vhost, name, **how, owner=owner, queue=queue)

    async def remove_unchanged(self, info: QueueInfo) -> Outcome:
        """This queue, and only while its arguments are these, is gone from every node's catalog
        when this answers ok; or it had been removed or changed before, or its name is another's.
        """
        return await self.names.remove_unchanged(info)

    def address_of(self, node: NodeId, kind: str) -> str | None:
        """From the catalog: kind is "http" or "peer"."""
        info = self.catalog_machine.node(node)
        return None if info is None else info.addresses.get(kind)

    def status(self, *, digests: bool = False) -> dict[str, Any]:
        """What this node knows, for people and tests."""
        return status_of(self, digests=digests)
