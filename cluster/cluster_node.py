"""One node's share of the cluster: its groups, its copy of the catalog, and the ways to reach every
leader.

The broker above asks by queue name and gets outcomes; it never sees Raft. The same class runs under
the simulator.
"""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from cluster.caretaker import Caretaker
from cluster.codec.cbor import pack
from cluster.forwarding import ASK_AGAIN_S, ASK_PATIENCE_S, NODE_LEVEL, Forwarder, refused
from cluster.group import (
    SNAPSHOT_BYTES,
    SNAPSHOT_ENTRIES,
    Group,
    GroupOptions,
    Outcome,
    Role,
)
from cluster.log import KIND_CLOCK, KIND_LINK_DOWN, KIND_LINK_UP, Identity, Log, LogOptions
from cluster.machine import QueueMachine
from cluster.machine.arguments import ArgumentError, parse_arguments
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.commands import (
    Barrier,
    Command,
    DeclareQueue,
    DeleteQueue,
    NodeDown,
    NodeUp,
    RegisterNode,
    RemoveQueue,
)
from cluster.machine.effects import Effect
from cluster.machine.replies import Declared
from cluster.peers import Peers
from cluster.placement import place
from cluster.raft.link_protocol import ClockSample
from cluster.raft.rounds import Rounds
from cluster.reconcile import create_command, presence_commands
from cluster.seams import Clock, Disk, Links
from cluster.types import CATALOG_GROUP, GroupId, NodeId, Stamp

log = structlog.get_logger(__name__)

#: Messages between the broker layers of two nodes start with this instead of a group.
BROKER_LEVEL = -2
LEADS = "leads"

#: How often a node looks whether its groups agree with the catalog, tells others what it leads, and
#: cleans its log.
CARE_PERIOD_S = 1.0
#: A leader hands over to the preferred member only when that one has been heard for this long.
BALANCE_AFTER_S = 5.0
STOP_PATIENCE_S = 3.0

OnEffects = Callable[[Group, Stamp, Sequence[Effect]], None]
OnRole = Callable[[Group, Role, int], None]
OnNodeMessage = Callable[[NodeId, list[Any]], None]


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What a node must know before it can speak to anyone. Times in ms."""

    node: NodeId
    cluster: str
    members: Sequence[NodeId]  # the initial members, the same list on every node
    data_dir: str
    default_groups: int = 8
    replication: int = 3
    election_min_ms: int = 1000
    election_max_ms: int = 2000
    heartbeat_ms: int = 200
    addresses: dict[str, str] = field(default_factory=dict[str, str])  # own: "peer", "http"
    log: LogOptions = field(default_factory=LogOptions)
    snapshot_entries: int = SNAPSHOT_ENTRIES
    snapshot_bytes: int = SNAPSHOT_BYTES


class ClusterNode:
    """Owns the log, the links, the rounds and the groups of one node."""

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
        self.on_effects: list[OnEffects] = []
        self.on_role: list[OnRole] = []
        self.on_node_message: list[OnNodeMessage] = []
        self.peers = Peers(config.node, links.incarnation)
        self._disk = disk
        self._clock = clock
        self._random = random
        self._forwarder = Forwarder(
            config.node,
            links,
            random=random,
            group_of=self.groups.get,
            leader_of=self.leader_of,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._reconciled: dict[
            GroupId, int
        ] = {}  # applied index at which commands were last proposed
        self._caretaker = Caretaker(self)
        self.stopping = False
        self.log: Log
        self.rounds: Rounds

    # --- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the log, start the catalog and every group it places on this node."""
        config = self.config
        self.log = await Log.open(
            config.data_dir,
            disk=self._disk,
            clock=self._clock,
            identity=Identity(config.node, config.cluster),
            options=config.log,
        )
        self.rounds = Rounds(self.log, self.links, self._clock)
        self._add_group(CATALOG_GROUP, "catalog", config.members, CatalogMachine())
        await self.links.start(self._on_message, self._on_up, self._on_down)
        self._tasks = [
            asyncio.create_task(self.rounds.run(), name="rounds"),
            asyncio.create_task(self._caretaker.run(), name="care"),
            asyncio.create_task(self._register(), name="register"),
        ]

    async def stop(self, *, transfer: bool = True) -> None:
        """Hand leaderships over, let the rounds finish, close. Safe to call at any time after
        `start`.
        """
        self.stopping = True
        if transfer:
            await self._hand_over()
        for task in self._tasks[1:]:
            task.cancel()
        await self.rounds.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.links.stop()
        await self.log.close()

    @property
    def failed(self) -> BaseException | None:
        """The error that stopped the rounds (a disk that cannot be trusted), if any."""
        task = self._tasks[0] if self._tasks else None
        if task is not None and task.done() and not task.cancelled():
            return task.exception()
        return None

    async def _hand_over(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STOP_PATIENCE_S
        while loop.time() < deadline:
            led = [g for g in self.groups.values() if g.role is Role.LEADER and len(g.members) > 1]
            if not led:
                return
            for group in led:
                group.transfer(None)
            await asyncio.sleep(ASK_AGAIN_S)

    # --- groups -----------------------------------------------------------------------------------

    @property
    def catalog(self) -> Group:
        return self.groups[CATALOG_GROUP]

    @property
    def catalog_machine(self) -> CatalogMachine:
        return cast(CatalogMachine, self.catalog.machine)

    def _add_group(
        self,
        group_id: GroupId,
        name: str,
        members: Sequence[NodeId],
        machine: CatalogMachine | QueueMachine,
    ) -> None:
        config = self.config
        group = Group(
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
            options=GroupOptions(
                election_min_ms=config.election_min_ms,
                election_max_ms=config.election_max_ms,
                heartbeat_ms=config.heartbeat_ms,
                snapshot_entries=config.snapshot_entries,
                snapshot_bytes=config.snapshot_bytes,
            ),
        )
        group.on_applied.append(self._on_applied)
        group.on_role.append(self._on_group_role)
        self.groups[group_id] = group
        self.rounds.add(group)
        for peer, state in self.peers.states.items():
            if peer in group.members and peer != self.node and state.up:
                group.peer_up(peer)

    def start_groups(self) -> None:
        for info in self.catalog_machine.groups():
            if info.id not in self.groups and self.node in info.members:
                self._add_group(info.id, info.name, info.members, QueueMachine())

    def _on_applied(self, group: Group, stamp: Stamp, effects: Sequence[Effect]) -> None:
        if group.id == CATALOG_GROUP:
            self._caretaker.wake()
        elif group.ready:
            for listener in self.on_effects:
                listener(group, stamp, effects)

    def _on_group_role(self, group: Group, role: Role, term: int) -> None:
        self._caretaker.role_changed(group.id)
        if role is Role.LEADER:
            self.peers.forget_leader(group.id)
            if group.id != CATALOG_GROUP:
                for command in presence_commands(self.peers.states):
                    group.propose(command)
        for listener in self.on_role:
            listener(group, role, term)
        self._caretaker.wake()

    # --- peers ------------------------------------------------------------------------------------

    def _on_message(self, peer: NodeId, message: list[Any]) -> None:
        match message:
            case [-1, "leads", list(led)]:
                self.peers.learn_leads(peer, cast("list[int]", led))
            case [-1, *_]:
                self._forwarder.on_message(peer, message)
            case [-2, *_]:
                for listener in self.on_node_message:
                    listener(peer, message)
            case [int() as group_id, *_] if group_id in self.groups:
                self.rounds.receive(GroupId(group_id), peer, message)
            case _:
                pass  # a group that this node has not started yet: Raft sends again

    def _on_up(self, peer: NodeId, incarnation: int) -> None:
        self.peers.up(peer, incarnation, asyncio.get_running_loop().time())
        log.info("link_up", peer=peer, incarnation=incarnation)
        self._note(KIND_LINK_UP, [peer, incarnation])
        for group in self.groups.values():
            if peer in group.members:
                group.peer_up(peer)
        self._tell_groups(NodeUp(peer, incarnation))
        self.tell_leads([peer])
        self.rounds.wake()

    def _on_down(self, peer: NodeId, gone: bool) -> None:
        incarnation = self.peers.down(peer, gone=gone, now=asyncio.get_running_loop().time())
        log.info("link_down", peer=peer, gone=gone)
        self._note(KIND_LINK_DOWN, [peer, incarnation, gone])
        self._forwarder.on_down(peer)
        for group in self.groups.values():
            if peer in group.members:
                group.peer_down(peer, gone=gone)
        if incarnation:
            self._tell_groups(NodeDown(peer, incarnation, gone))
        self.rounds.wake()

    def note_clock(self, sample: ClockSample) -> None:
        """For a later reader: how far a peer's clock is from ours."""
        times = [sample.sent_ns, sample.received_ns, sample.answered_ns, sample.returned_ns]
        self._note(KIND_CLOCK, [sample.peer, *times])

    def _note(self, kind: int, fields: list[Any]) -> None:
        self.log.note(kind, CATALOG_GROUP, 0, 0, pack(fields))

    def _tell_groups(self, command: Command) -> None:
        for group in self.groups.values():
            if group.id != CATALOG_GROUP and group.role is Role.LEADER:
                group.propose(command)

    def tell_leads(self, peers: Sequence[NodeId]) -> None:
        led: list[int] = [g.id for g in self.groups.values() if g.role is Role.LEADER]
        for peer in peers:
            self.links.send(peer, [NODE_LEVEL, LEADS, led])
        self.links.flush()

    def send(self, peer: NodeId, message: list[Any]) -> bool:
        """A message to the broker layer of another node; it must start with BROKER_LEVEL."""
        assert message[0] == BROKER_LEVEL
        sent = self.links.send(peer, message)
        self.links.flush()
        return sent

    # --- asking -----------------------------------------------------------------------------------

    async def _register(self) -> None:
        command = RegisterNode(self.node, self.links.incarnation, self.config.addresses)
        while True:
            outcome = await self._forwarder.ask_until(CATALOG_GROUP, command)
            if outcome.kind == "ok":
                log.info("node_registered", node=self.node, incarnation=self.links.incarnation)
                return
            if outcome.reply is not None:
                # A newer process of this node's name is about: this one must not act for it.
                log.error("node_not_registered", node=self.node, reason=outcome.reason)
                return

    def leader_of(self, group_id: GroupId) -> NodeId | None:
        """The leader as far as this node knows."""
        group = self.groups.get(group_id)
        if group is not None and group.leader is not None:
            return group.leader
        return self.peers.leader_of(group_id)

    async def ask(self, group_id: GroupId, command: Command) -> Outcome:
        """Propose at the group's leader, here or over the link. One try: see the outcome."""
        return await self._forwarder.ask(group_id, command)

    # --- queues -----------------------------------------------------------------------------------

    def queue_info(self, vhost: str, name: str) -> QueueInfo | None:
        """From this node's own copy of the catalog, which may lag."""
        return self.catalog_machine.queue(vhost, name)

    def queues(self) -> list[QueueInfo]:
        return list(self.catalog_machine.queues())

    async def find_queue(self, vhost: str, name: str) -> QueueInfo | None:
        """A miss in the own copy is looked at again behind a barrier before it counts as a miss."""
        info = self.queue_info(vhost, name)
        if info is None:
            await self.catalog_barrier()
            info = self.queue_info(vhost, name)
        return info

    async def catalog_barrier(self) -> None:
        """All that the catalog's leader had applied when this was called is applied here when it
        returns.
        """
        outcome = await self._forwarder.ask_until(CATALOG_GROUP, Barrier())
        if outcome.kind != "ok" or outcome.stamp is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_PATIENCE_S
        while self.catalog.applied_index < outcome.stamp.index and loop.time() < deadline:
            await asyncio.sleep(ASK_AGAIN_S / 10)

    async def declare_queue(self, vhost: str, name: str, arguments: dict[str, Any]) -> Outcome:
        """The queue is in the catalog and in its group when this answers ok with `Declared`."""
        config = parse_arguments(arguments)
        if isinstance(config, ArgumentError):
            return refused(config.code, config.reason)
        group_name = arguments.get("x-queue-group")
        members: Sequence[NodeId] | None = None
        if group_name is not None:
            size = int(arguments.get("x-quorum-initial-group-size", self.config.replication))
            members = self._place_group(size)
        command = DeclareQueue(vhost, name, arguments, group_name, members)
        outcome = await self._forwarder.ask_until(CATALOG_GROUP, command)
        reply = outcome.reply
        if outcome.kind != "ok" or not isinstance(reply, Declared):
            return outcome
        info = QueueInfo(reply.queue, reply.group, vhost, name, arguments)
        made = await self._forwarder.ask_until(
            reply.group, create_command(self.catalog_machine, info)
        )
        return outcome if made.kind == "ok" else made

    def _place_group(self, size: int) -> Sequence[NodeId]:
        held: dict[NodeId, int] = {}
        for info in self.catalog_machine.groups():
            for member in info.members:
                held[member] = held.get(member, 0) + 1
        return place(self.config.members, size, held)

    async def remove_queue(
        self, vhost: str, name: str, *, if_unused: bool = False, if_empty: bool = False
    ) -> Outcome:
        """Conditions are judged in the queue's group, then the name is dropped from the catalog."""
        info = await self.find_queue(vhost, name)
        if info is None:
            return refused("no_queue", f"no queue {name!r} in vhost {vhost!r}")
        outcome = await self._forwarder.ask_until(
            info.group, DeleteQueue(info.queue, if_unused, if_empty)
        )
        if outcome.kind != "ok":
            return outcome
        removed = await self._forwarder.ask_until(CATALOG_GROUP, RemoveQueue(vhost, name))
        return outcome if removed.kind == "ok" else removed

    def address_of(self, node: NodeId, kind: str) -> str | None:
        """From the catalog: kind is "http" or "peer"."""
        info = self.catalog_machine.node(node)
        return None if info is None else info.addresses.get(kind)

    # --- looking ----------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What this node knows, for people and tests: see `Group.status` for the parts."""
        return {
            "node": self.node,
            "cluster": self.config.cluster,
            "incarnation": self.links.incarnation,
            "nodes": [
                {
                    "node": node,
                    "up": state.up,
                    "incarnation": state.incarnation,
                    "addresses": (
                        {} if (n := self.catalog_machine.node(node)) is None else n.addresses
                    ),
                }
                for node, state in sorted(self.peers.states.items())
            ],
            "groups": [
                {**group.status(), "leader": self.leader_of(group.id)}
                for _, group in sorted(self.groups.items())
            ],
        }
