"""The native protocol over a WebSocket: GET /v1/connect."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import structlog
from aiohttp import WSMessage, WSMsgType, web

from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Settle
from cluster.turns import next_turn
from cluster.types import ConsumerKey, LargeBody
from node.access.auth import Auth, User
from node.broker.bodies import Bodies, BodyGone, may_be_whole
from node.broker.broker import Broker
from node.broker.publishing import QueuePublisher
from node.broker.settle_retry import SettleRetry
from node.broker.transactions import TransactionCoordinator
from node.clients.client_session import ClientSession
from node.clients.clients import Clients
from node.clients.sessions import Sessions, name_of
from node.dispatch.outgoing import (
    Delivery,
    GetAnswer,
    MessageBatch,
    Outgoing,
    StreamMessages,
)
from node.dispatch.progress import keep_unsent_small
from node.errors import BrokerError, Refused
from node.metrics.client_counters import ClientCounters
from node.protocols.basic_auth import BasicAuth
from node.protocols.ends import Ends
from node.protocols.native import replies, requests
from node.protocols.native.frames import NativeProtocol
from node.protocols.native.handlers import Handlers
from node.protocols.native.http_answers import failure
from node.protocols.native.requests import (
    CloseCode,
    FrameError,
    Hello,
    HelloMissing,
    MalformedFrame,
)
from node.protocols.native.streams import Streams
from node.protocols.native.urls import url_of

log = structlog.get_logger(__name__)

HELLO_S_MAX = 10.0
HEARTBEAT_S = 20.0
CLOSE_S_MAX = 2.0
#: Frames waiting for a client that does not read; over it nothing more is read from it either.
OUTBOX_FRAMES_MAX = 10_000
#: How often is looked whether queues were split, when anything in the catalog changed.
FOLLOW_S = 0.2
#: In the parts of what a read of a stream found.
NO_CONSUMER = ConsumerKey(0)

#: By the reason for which a node ends a connection.
CLOSE_CODES = {
    "taken_over": CloseCode.TAKEN_OVER,
    "session_ended": CloseCode.SESSION_ENDED,
    "stopping": CloseCode.STOPPING,
}


class _Large(NamedTuple):
    """With bodies that are read as it leaves."""

    frame: Delivery | GetAnswer | StreamMessages
    info: QueueInfo | None  # None: the queue is gone


class SocketPeer:
    """One client's socket. A writer task sends in order; the reader waits while too much waits."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        url_of: Callable[[str], str | None],
        locate: Callable[[str, str], QueueInfo | None],
        bodies: Bodies,
        settle_retry: SettleRetry,
    ) -> None:
        self._locate = locate
        self._bodies = bodies
        self._settle_retry = settle_retry
        self.connection: ClientSession | None = None
        self.user_name = ""
        self.vhost = ""
        self.channel_count = 0
        self.expelled = False
        self.about: dict[str, Any] = {}  # for the management API
        self._socket = socket
        self.url_of = url_of
        self._outbox: deque[tuple[bytes | _Large, Delivery | None]] = deque()
        self._wake = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._paused = False
        self._closing: tuple[int, str] | None = None

    # --- called by the connection -----------------------------------------------------------------

    def send(self, frame: Outgoing) -> None:
        delivery = frame if type(frame) is Delivery else None
        if isinstance(frame, GetAnswer | StreamMessages) and any(
            _large_of(batch) is not None for batch in frame.batches
        ):
            self._put(self._large(frame), None)
        elif delivery is not None and _large_of(delivery.batches[-1]) is not None:
            self._put(self._large(delivery), delivery)
        else:
            self.send_bytes(replies.encode(frame, self.url_of), delivery)

    def send_bytes(self, data: bytes, delivery: Delivery | None = None) -> None:
        self._put(data, delivery)

    def _large(self, frame: Delivery | GetAnswer | StreamMessages) -> _Large:
        """Its queue is looked up now: once it leaves, another one may have that name."""
        connection = self.connection
        info = None if connection is None else self._locate(connection.vhost, frame.queue)
        return _Large(frame, info)

    def _put(self, data: bytes | _Large, delivery: Delivery | None) -> None:
        if self._closing is not None:
            return
        self._outbox.append((data, delivery))
        self._wake.set()
        if len(self._outbox) > OUTBOX_FRAMES_MAX:
            self._may_read.clear()

    def pause_reading(self) -> None:
        self._paused = True
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._paused = False
        if len(self._outbox) <= OUTBOX_FRAMES_MAX:
            self._may_read.set()

    def close(self, reason: str, detail: str) -> None:
        self.close_with(CLOSE_CODES[reason], detail)

    def close_with(self, code: int, reason: str) -> None:
        """Say goodbye once everything before it is sent."""
        if self._closing is None:
            self.send_bytes(replies.goodbye(code, reason))
            self._closing = (code, reason)
            self._may_read.set()

    def force_close(self, text: str) -> None:
        """Its user or its vhost is gone: its session ends too."""
        self.expelled = True
        self.close_with(CloseCode.ACCESS_REFUSED, text)

    # --- called by the handler --------------------------------------------------------------------

    async def readable(self) -> None:
        """Waits while the connection has too much in flight, or does not read its answers."""
        if not self._may_read.is_set():
            await self._may_read.wait()

    async def write(self) -> None:
        """The writer: until the goodbye is sent, or the socket is gone."""
        outbox, socket = self._outbox, self._socket
        while True:
            while outbox:
                data, delivery = outbox.popleft()
                if isinstance(data, _Large):
                    frame = await self._send_large(data)
                    if frame is None:
                        if delivery is not None and self.connection is not None:
                            self.connection.taken(delivery)
                        continue
                    data = replies.encode(frame, self.url_of)
                if delivery is not None and self.connection is not None:
                    self.connection.handed(delivery)
                await socket.send_bytes(data)
                if delivery is not None and self.connection is not None:
                    self.connection.taken(delivery)
            if not self._paused:
                self._may_read.set()
            if self._closing is not None:
                code, reason = self._closing
                # A reason may have 123 bytes (RFC 6455, 5.5).
                await socket.close(code=code, message=reason.encode()[:123])
                return
            self._wake.clear()
            await self._wake.wait()

    async def _send_large(self, large: _Large) -> Delivery | GetAnswer | StreamMessages | None:
        """The parts of its large bodies; and what follows them, with those whole that may be."""
        connection, (frame, info) = self.connection, large
        if connection is None or info is None:
            if connection is not None and not isinstance(frame, Delivery):
                gone = Refused(codes.NO_QUEUE, f"queue {frame.queue} was deleted")
                connection.fail(frame.request, frame.queue, gone)
            return None
        consumer, auto = NO_CONSUMER, False
        if not isinstance(frame, StreamMessages):
            consumer = frame.consumer
            known = connection.consumers.get((info.queue, consumer))
            auto = known is not None and known.auto_settle
        if isinstance(frame, GetAnswer):
            auto = frame.auto_settle
        batches: list[MessageBatch] = []
        for batch in frame.batches:
            body = _large_of(batch)
            if body is None:
                batches.append(batch)
                continue
            try:
                if may_be_whole(body):
                    pieces = [data async for data in self._bodies.stream(info.group, body)]
                    batches.append(batch._replace(bodies=[b"".join(pieces)]))
                else:
                    async for data in self._bodies.stream(info.group, body):
                        part = replies.part(frame.queue, consumer, batch.first, data)
                        await self._socket.send_bytes(part)
                    batches.append(batch)
            except BodyGone as error:
                self.close_with(CloseCode.SESSION_ENDED, f"a body was cut off: {error}")
                return None
            if auto:
                settle = Settle(info.queue, consumer, [(batch.first, batch.first)], batch.token)
                self._settle_retry.settle(info.group, settle, by_client=False)
        return replace(frame, batches=batches)


def _large_of(batch: MessageBatch) -> LargeBody | None:
    """It is alone in its batch."""
    body = batch.bodies[0]
    return body if isinstance(body, LargeBody) else None


class WebSockets:
    """Serves the WebSocket route."""

    def __init__(
        self,
        broker: Broker,
        sessions: Sessions,
        auth: Auth,
        clients: Clients,
        counters: ClientCounters,
        bodies: Bodies,
        streams: Streams,
        publisher: QueuePublisher,
        transactions: TransactionCoordinator,
    ) -> None:
        self._bodies = bodies
        self._broker = broker
        self._counted = counters.quorate
        self._sessions = sessions
        self._clients = clients
        self._basic = BasicAuth(auth, "native")
        self._open: dict[SocketPeer, None] = {}
        self._handlers = Handlers(broker, streams, publisher, transactions)

    async def follow_shards(self) -> None:
        """Clients that ask for it are told when queues that they consume are split, or joined."""
        cluster = self._broker.cluster
        catalog, clock, followed = cluster.catalog_machine, cluster.log.wal.clock, -1
        while True:
            changes = catalog.changes
            if changes != followed:
                for peer in list(self._open):
                    if peer.connection is not None and peer.connection.follows_shards:
                        for consumer in list(peer.connection.consumers.values()):
                            peer.connection.tell_shards(consumer.info)
                followed = changes
            await next_turn(clock, FOLLOW_S)

    # --- as the management API shows them ---------------------------------------------------------

    def connections(self) -> list[dict[str, Any]]:
        node = self._broker.cluster.node
        return [{**peer.about, "node": node} for peer in list(self._open)]

    def channels(self) -> list[dict[str, Any]]:
        """There are none: a connection is all that a client has."""
        return []

    def close_connection(self, name: str, reason: str) -> bool:
        found = [peer for peer in self._open if peer.about["name"] == name]
        for peer in found:
            peer.force_close(reason)
        return bool(found)

    # --- one connection ---------------------------------------------------------------------------

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """One connection, from its HELLO to its end."""
        try:
            user = await self._basic.user(request)
        except BrokerError as error:
            return failure(request, error)
        frame_bytes_max = self._broker.limits.frame_bytes_max
        socket = web.WebSocketResponse(
            timeout=CLOSE_S_MAX,
            heartbeat=HEARTBEAT_S,
            compress=False,
            # What is a little too large is read and gets a reason; beyond, WebSocket's own 1009.
            max_msg_size=frame_bytes_max * 2,
        )
        await socket.prepare(request)
        keep_unsent_small(request.transport)
        cluster, secure = self._broker.cluster, request.secure
        peer = SocketPeer(
            socket,
            lambda node: url_of(cluster, node, secure=secure),
            self._broker.locate,
            self._bodies,
            self._broker.settle_retry,
        )
        writer = asyncio.create_task(peer.write(), name="websocket_writer")
        protocol = NativeProtocol(frame_bytes_max=frame_bytes_max)
        goodbye = False
        try:
            if await self._greet(socket, peer, protocol, user) and peer.connection is not None:
                peer.about |= Ends.of(request.transport, tls=request.secure).as_shown()
                self._open[peer] = None
                goodbye = await self._converse(socket, peer, peer.connection, protocol)
        finally:
            self._open.pop(peer, None)
            if peer.connection is not None:
                self._clients.remove(peer)
                self._handlers.closed(peer.connection)
                self._sessions.disconnect(peer.connection, goodbye=goodbye or peer.expelled)
            await _finish(request, socket, peer, writer)
        return socket

    async def _greet(
        self,
        socket: web.WebSocketResponse,
        peer: SocketPeer,
        protocol: NativeProtocol,
        user: User,
    ) -> bool:
        """HELLO and WELCOME. False: the connection is refused."""
        try:
            try:
                async with asyncio.timeout(HELLO_S_MAX):
                    message = await socket.receive()
            except TimeoutError as error:
                raise HelloMissing(f"no HELLO within {HELLO_S_MAX:g} s") from error
            if message.type in {WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED}:
                return False
            hello = protocol.receive(_binary(message))
            assert isinstance(hello, Hello), "the first request is HELLO or an error"
            access = await self._clients.admit(user, hello.vhost)
            peer.connection, resumed = self._sessions.connect(
                peer,
                session=hello.session,
                resume_ms=hello.resume_ms,
                vhost=hello.vhost,
                forward=hello.forward,
                user=user.name,
            )
        except FrameError as error:
            _refuse(peer, error)
            return False
        except Refused as error:
            peer.send_bytes(replies.error(0, error.code, error.reason, error.detail))
            close_codes = {
                "stopping": CloseCode.STOPPING,
                "too_many_connections": CloseCode.TOO_MANY,
                "access_refused": CloseCode.ACCESS_REFUSED,
                codes.NO_VHOST: CloseCode.ACCESS_REFUSED,
            }
            peer.close_with(close_codes.get(error.code, CloseCode.HELLO_MISSING), error.reason)
            return False
        peer.connection.counted = self._counted
        peer.connection.follows_shards = hello.shards
        peer.connection.access = access
        peer.user_name, peer.vhost = user.name, hello.vhost
        peer.about = {
            "type": "network",
            "protocol": "Quorate",
            "state": "running",
            "user": user.name,
            "user_who_performed_action": user.name,
            "vhost": hello.vhost,
            "session": peer.connection.session,
            "channels": 0,
            "connected_at": time.time_ns() // 1_000_000,
            "client_properties": {"product": hello.client},
        }
        self._clients.add(peer)
        peer.send_bytes(self._welcome(peer, peer.connection, resumed=resumed))
        return True

    def _welcome(self, peer: SocketPeer, connection: ClientSession, *, resumed: bool) -> bytes:
        cluster, limits = self._broker.cluster, self._broker.limits
        urls: Mapping[str, str] = {
            node: url
            for node in sorted(cluster.peers.states)
            if (url := peer.url_of(node)) is not None
        }
        return replies.welcome(
            node=cluster.node,
            cluster=cluster.config.cluster,
            session=name_of(connection.session),
            resumed=resumed,
            limits={
                "frame_bytes_max": int(limits.frame_bytes_max),
                "message_bytes_max": int(limits.message_bytes_max),
                "in_flight_bytes_max": int(limits.in_flight_bytes_max),
            },
            nodes=urls,
        )

    async def _converse(
        self,
        socket: web.WebSocketResponse,
        peer: SocketPeer,
        connection: ClientSession,
        protocol: NativeProtocol,
    ) -> bool:
        """Frames until the end. True: the client said goodbye."""
        while True:
            await peer.readable()
            message = await socket.receive()
            if message.type is not WSMsgType.BINARY and message.type is not WSMsgType.TEXT:
                return False
            try:
                request = protocol.receive(_binary(message))
            except FrameError as error:
                _refuse(peer, error)
                if error.close_code is not None:
                    return False
                continue
            if request is None:
                return False
            if type(request) is requests.Goodbye:
                peer.close_with(CloseCode.NORMAL, "goodbye")
                return True
            if type(request) is requests.Ping:
                peer.send_bytes(replies.pong(request.number))
            else:
                await self._handlers.handle(connection, request)


def _binary(message: WSMessage) -> bytes:
    if message.type is not WSMsgType.BINARY:
        raise MalformedFrame("frames are binary WebSocket messages that hold CBOR")
    return message.data


def _refuse(peer: SocketPeer, error: FrameError) -> None:
    log.info("frame_refused", code=error.code, reason=error.reason)
    peer.send_bytes(replies.error(error.request, error.code, error.reason, error.detail))
    if error.close_code is not None:
        peer.close_with(error.close_code, error.reason)


async def _finish(
    request: web.Request,
    socket: web.WebSocketResponse,
    peer: SocketPeer,
    writer: asyncio.Task[None],
) -> None:
    """Let the last frames out, but not for longer than a client may take."""
    if not socket.closed:
        peer.close_with(CloseCode.NORMAL, "")
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await asyncio.wait({writer})
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
