"""How simulated clients reach a node: connections like TCP's, and the least of a broker behind
them.

The door asks the cluster on behalf of clients, attaches sessions to connections, and sends a
session what the machine says it shall have. Messages are plain tuples: nothing here is replicated,
all of it may be lost.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from chaos.simulator.loop import NS, Process, World
from cluster.cluster_node import ClusterNode
from cluster.group import Group, Outcome, Role
from cluster.machine import QueueMachine
from cluster.machine.commands import Command, DetachSession, OpenSession, Subscribe
from cluster.machine.effects import ConsumerEnded, Deliver, Effect, SessionEnded
from cluster.machine.replies import Chunk, Subscribed
from cluster.types import CATALOG_GROUP, ConsumerKey, GroupId, QueueId, SessionId, Stamp

Message = tuple[Any, ...]

DETACH_AGAIN_S = 0.2


class Channel:
    """One connection of a client. Either side may find it broken."""

    def __init__(
        self, world: World, dice: random.Random, latency_ms: float, client: Process, node: Process
    ) -> None:
        self.client = client
        self.node = node
        self.open = True
        self.on_client: Callable[[Message], None] = lambda _message: None
        self.on_client_lost: Callable[[], None] = lambda: None
        self.on_node: Callable[[Message], None] = lambda _message: None
        self.on_node_lost: Callable[[], None] = lambda: None
        self._world = world
        self._dice = dice
        self._latency_ms = latency_ms
        self._due_ns = {client: 0, node: 0}

    def to_node(self, message: Message) -> None:
        self._send(self.node, lambda: self.on_node(message))

    def to_client(self, message: Message) -> None:
        self._send(self.client, lambda: self.on_client(message))

    def _send(self, target: Process, call: Callable[[], None]) -> None:
        if self.open:
            self._arrive(target, lambda: call() if self.open else None)

    def _arrive(self, target: Process, call: Callable[[], None]) -> None:
        delay_ns = round(self._latency_ms * self._dice.uniform(0.5, 2.0) * 1e6)
        due_ns = max(self._due_ns[target], self._world.now_ns + delay_ns)
        self._due_ns[target] = due_ns
        self._world.kernel.call_at(due_ns / NS, lambda: target.call_soon(call))

    def cut(self, *, told: bool = True) -> None:
        """Broken: both ends learn it, unless the node's machine is gone (`told` False)."""
        if self.open:
            self.open = False
            if told:
                self._arrive(self.client, self._tell_client)
            self._arrive(self.node, self._tell_node)

    def _tell_client(self) -> None:
        self.on_client_lost()

    def _tell_node(self) -> None:
        self.on_node_lost()


class Door:
    """A node's door. Lives and dies with its process."""

    def __init__(self, cluster: ClusterNode, process: Process) -> None:
        self._cluster = cluster
        self._process = process
        self._sessions: dict[SessionId, Channel] = {}
        self._opened: dict[Channel, dict[tuple[GroupId, SessionId], None]] = {}
        cluster.on_effects.append(self._on_effects)
        cluster.on_role.append(self._on_role)

    def accept(self, channel: Channel) -> None:
        self._opened[channel] = {}
        channel.on_node = lambda message: self._on_request(channel, message)
        channel.on_node_lost = lambda: self._on_lost(channel)

    # --- requests

    def _on_request(self, channel: Channel, message: Message) -> None:
        kind, number, *rest = message
        if kind == "ask":
            self._process.spawn(self._ask(channel, number, rest[0], rest[1]), "ask")
        elif kind == "declare":
            self._process.spawn(self._declare(channel, number, rest[0], rest[1]), "declare")
        elif kind == "where":
            info = self._cluster.queue_info("/", rest[0])
            leader = None if info is None else self._cluster.leader_of(info.group)
            channel.to_client(("answer", number, (info, leader)))

    async def _declare(self, channel: Channel, number: int, name: str, arguments: Any) -> None:
        channel.to_client(
            ("answer", number, await self._cluster.declare_queue("/", name, arguments))
        )

    async def _ask(self, channel: Channel, number: int, group: GroupId, command: Command) -> None:
        if isinstance(command, OpenSession):
            links = self._cluster.links
            command = replace(command, node=self._cluster.node, incarnation=links.incarnation)
            self._sessions[command.session] = channel
            self._opened[channel][group, command.session] = None
        outcome = await self._cluster.ask(group, command)
        channel.to_client(("answer", number, outcome))
        if isinstance(command, Subscribe) and isinstance(outcome.reply, Subscribed):
            self._send_holds(channel, group, command.queue, outcome.reply.consumer)

    def _send_holds(
        self, channel: Channel, group_id: GroupId, queue: QueueId, consumer: ConsumerKey
    ) -> None:
        """All that the consumer holds: it may have been handed out by another leader, or before a
        break.
        """
        group = self._cluster.groups.get(group_id)
        if group is not None and group.ready and isinstance(group.machine, QueueMachine):
            chunks = group.machine.consumer_holds(queue, consumer)
            channel.to_client(("holds", queue, consumer, _with_bodies(group, chunks)))

    def _on_lost(self, channel: Channel) -> None:
        for group, session in self._opened.pop(channel, {}):
            if self._sessions.get(session) is channel:
                del self._sessions[session]
            self._process.spawn(self._detach(group, session), "detach")

    async def _detach(self, group: GroupId, session: SessionId) -> None:
        """Until the group knows, or the session is back: else it would keep what it holds."""
        command = DetachSession(session, self._cluster.node, self._cluster.links.incarnation)
        while session not in self._sessions:
            outcome = await self._cluster.ask(group, command)
            if outcome.reply is not None:
                return
            await asyncio.sleep(DETACH_AGAIN_S)

    # --- effects

    def _on_role(self, group: Group, role: Role, _term: int) -> None:
        if group.id == CATALOG_GROUP:
            return
        if role is Role.LEADER:
            self._carry_out(group, group.machine.on_leader())
        else:
            for channel, opened in self._opened.items():
                if any(opened_group == group.id for opened_group, _ in opened):
                    channel.to_client(("moved", group.id))

    def _on_effects(self, group: Group, _stamp: Stamp, effects: Sequence[Effect]) -> None:
        self._carry_out(group, effects)

    def _carry_out(self, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                channel = self._sessions.get(effect.session)
                if channel is not None:
                    chunks = _with_bodies(group, effect.chunks)
                    channel.to_client(("deliver", effect.queue, effect.consumer, chunks))
            elif isinstance(effect, SessionEnded | ConsumerEnded):
                channel = self._sessions.get(effect.session)
                if channel is not None:
                    channel.to_client(("ended", effect.session, effect.reason))


def _with_bodies(group: Group, chunks: Sequence[Chunk]) -> list[tuple[Chunk, list[bytes]]]:
    return [(chunk, [body for body, _ in group.read_bodies(chunk.bodies)]) for chunk in chunks]


def refused_for_now(outcome: Outcome) -> bool:
    """Nothing wrong with the command: another moment or another node will take it."""
    return outcome.kind == "refused" and outcome.reply is None
