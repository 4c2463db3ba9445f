"""The broker of a simulated node: the parts of `node.parts`, behind channels in place of sockets.

Frames travel as the values that they are; what encodes them has tests of its own.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from chaos.simulator.amqp_host import AmqpHello, AmqpHost
from chaos.simulator.channel import Channel, Closed, Welcome
from chaos.simulator.ledger import Ledger, WatchedSettleRetry
from chaos.simulator.loop import Process
from chaos.simulator.nats_host import NatsHello, SimNats
from cluster.cluster_node import ClusterNode
from node.broker.broker import Broker
from node.clients.client_session import ClientSession, ClientTransport
from node.clients.relay import Relay
from node.clients.sessions import Sessions
from node.clients.traffic import Traffic
from node.dispatch.outgoing import Delivery, Failure, Outgoing
from node.errors import BrokerError, Refused
from node.operating.watchdog import Watchdog
from node.parts import Parts
from node.protocols.amqp.services import AmqpServices
from node.protocols.native.handlers import Handlers
from node.protocols.native.requests import Goodbye, Hello, Ping, Pong
from node.settings.sections import LimitSettings
from node.settings.settings import Settings
from node.tasks import Tasks


class WatchedTasks(Tasks):
    """A task that fails is logged by a node, and ends a run."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = super().start(work, name=name)
        task.add_done_callback(self._look)
        return task

    def _look(self, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None and not isinstance(error, BrokerError):
            self._process.crashes.append(error)


class ChannelPeer:
    """The client's end as the node sees it."""

    def __init__(self, channel: Channel) -> None:
        self.connection: ClientSession | None = None
        self.may_read = asyncio.Event()
        self.may_read.set()
        self._channel = channel
        self._closing = False

    def send(self, frame: Outgoing) -> None:
        if self._closing:
            return
        self._channel.to_client(frame)
        if type(frame) is Delivery:
            if self.connection is not None and self._channel.open:
                self.connection.handed(frame)
            self._channel.soon_at_node(lambda: self._taken(frame))

    def _taken(self, frame: Delivery) -> None:
        if self.connection is not None:
            self.connection.taken(frame)

    def pause_reading(self) -> None:
        self.may_read.clear()

    def resume_reading(self) -> None:
        self.may_read.set()

    def close(self, reason: str, detail: str) -> None:
        if not self._closing:
            self._closing = True
            self._channel.to_client(Closed(reason))
            self.may_read.set()


class NamedSessions(Sessions):
    """A run is a function of its seed: sessions without a name get one that is not random."""

    def __init__(self, broker: Broker, traffic: Traffic, relay: Relay, tasks: Tasks) -> None:
        super().__init__(broker, traffic, relay, tasks)
        self._made = 0
        cluster = broker.cluster
        self._prefix = f"amqp-{cluster.node}-{cluster.links.incarnation}"

    def connect(
        self, peer: ClientTransport, *, session: str | None, **how: Any
    ) -> tuple[ClientSession, bool]:
        if session is None:
            self._made += 1
            session = f"{self._prefix}-{self._made}"
        return super().connect(peer, session=session, **how)


class SimBroker:
    """A node's door, and the broker behind it. Lives and dies with its process."""

    def __init__(
        self, cluster: ClusterNode, process: Process, limits: LimitSettings, ledger: Ledger
    ) -> None:
        self._process = process
        self._ledger = ledger
        self._begun = AsyncExitStack()
        tasks = WatchedTasks(process)
        self._begun.push_async_callback(tasks.stop)
        self.parts = Parts(
            Settings(limits=limits),
            cluster,
            tasks,
            memory_bytes=lambda: 0,
            memory_bytes_max=1,
            watchdog=Watchdog(stall_s=math.inf),
            make_sessions=NamedSessions,
            make_settle_retry=partial(WatchedSettleRetry, ledger=ledger),
        )
        self.backups = self.parts.backups
        self.sessions = self.parts.sessions
        self.transactions = self.parts.transactions
        self._handlers = Handlers(
            self.parts.broker, self.parts.streams, self.parts.publisher, self.parts.transactions
        )
        self._amqp: AmqpServices
        self._nats: SimNats

    def open(self) -> None:
        """The cluster has started."""
        self.parts.start(self._begun)
        self._amqp = self.parts.amqp_services()
        self._nats = SimNats(self.parts, self._begun)

    async def close(self) -> None:
        """As a node that is told to stop, before its cluster node does."""
        await self.parts.shut_down(transfer=True)
        self.sessions.stop()
        await self._begun.aclose()

    def accept(self, channel: Channel) -> None:
        inbox: asyncio.Queue[Any] = asyncio.Queue()
        channel.on_node = inbox.put_nowait
        channel.on_node_lost = lambda: inbox.put_nowait(None)
        self._process.spawn(self._serve(channel, inbox), "serve")

    async def _serve(self, channel: Channel, inbox: asyncio.Queue[Any]) -> None:
        """One connection, from its HELLO to its end: as `node.protocols.native.websocket`."""
        hello = await inbox.get()
        if hello is None:
            return
        if type(hello) is AmqpHello:
            await self._serve_amqp(AmqpHost(channel, hello, self._amqp, self._ledger), inbox)
            return
        if type(hello) is NatsHello:
            await self._nats.serve(channel, inbox)
            return
        peer = ChannelPeer(channel)
        connection = self._greet(channel, peer, hello)
        if connection is None:
            return
        peer.connection = connection
        goodbye = False
        while (request := await self._next(peer, inbox)) is not None:
            if type(request) is Goodbye:
                peer.close("goodbye", "")
                goodbye = True
                break
            if type(request) is Ping:
                channel.to_client(Pong(request.number))
            else:
                await self._handlers.handle(connection, request)
        self.sessions.disconnect(connection, goodbye=goodbye)

    async def _serve_amqp(self, host: AmqpHost, inbox: asyncio.Queue[Any]) -> None:
        while (events := await self._next(host, inbox)) is not None:
            if type(events) is Goodbye:
                await host.goodbye()
                return
            await host.receive(events)
        host.end(lost=True)

    def _greet(self, channel: Channel, peer: ChannelPeer, hello: Hello) -> ClientSession | None:
        try:
            connection, resumed = self.sessions.connect(
                peer,
                session=hello.session,
                resume_ms=hello.resume_ms,
                vhost=hello.vhost,
                forward=hello.forward,
            )
        except Refused as error:
            channel.to_client(Failure(0, error.code, error.reason, error.detail))
            channel.to_client(Closed(error.code))
            return None
        channel.to_client(Welcome(connection.session, resumed))
        return connection

    async def _next(self, peer: ChannelPeer | AmqpHost, inbox: asyncio.Queue[Any]) -> Any:
        await peer.may_read.wait()
        return await inbox.get()
