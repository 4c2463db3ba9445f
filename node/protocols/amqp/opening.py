"""The first part of a connection's life: the handshake, with the questions that take time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final, Protocol

from pamqp import base, commands

from node.access.auth import User
from node.access.permissions import Access
from node.messages.amqp_errors import CHANNEL_ERROR, AmqpError, ConnectionError_
from node.protocols.amqp.admission import Admission
from node.protocols.amqp.events import Event, Heartbeat, Method
from node.protocols.amqp.handshake import (
    PROTOCOL_HEADER,
    VERSIONS,
    AmqpHandshake,
    Credentials,
    HandshakeState,
    OpenVhost,
    Terms,
)
from node.protocols.amqp.phase import Phase
from node.protocols.amqp.reader import Reader
from node.protocols.amqp.services import AmqpServices
from node.protocols.ends import Ends

BUSY: Final = "handshake"


class OpeningHome(Protocol):
    services: AmqpServices
    offer: Terms
    admission: Admission

    @property
    def server_properties(self) -> Mapping[str, Any]: ...


class NewWire(Protocol):
    def write(self, data: bytes) -> None: ...
    def pause(self, why: str) -> None: ...
    def resume(self, why: str) -> None: ...
    def close(self) -> None: ...


class NewConnection(Protocol):
    """What is opened."""

    phase: Phase
    user: User
    access: Access
    vhost: str
    client_capabilities: Mapping[str, Any]
    ends: Ends
    reader: Reader

    @property
    def wire(self) -> NewWire: ...
    def receive(self, events: list[Event]) -> None: ...
    def send_method(self, method: base.Frame) -> None: ...
    def tuned(self, terms: Terms) -> None: ...
    def opened(self) -> None: ...
    def connection_error(self, error: AmqpError) -> None: ...
    def closed_by_client(self) -> None: ...


class Opening:
    """Of one connection, until its vhost is open."""

    def __init__(self, connection: NewConnection, home: OpeningHome, user: str | None) -> None:
        self.handshake = AmqpHandshake(home.offer, home.server_properties, user)
        self._connection = connection
        self._home = home
        self._header = b""
        self._held: list[Event] = []  # what came while a step took its time
        self._task: asyncio.Task[Any] | None = None

    def stop(self) -> None:
        """The connection is over."""
        self._held.clear()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()

    def receive(self, data: bytes) -> None:
        if self.handshake.state is HandshakeState.HEADER:
            missing = len(PROTOCOL_HEADER) - len(self._header)
            self._header += data[:missing]
            data = data[missing:]
            if len(self._header) < len(PROTOCOL_HEADER) and any(
                known.startswith(self._header) for known in VERSIONS
            ):
                return
            start = self.handshake.begin(self._header)
            if start is None:
                self._connection.wire.write(PROTOCOL_HEADER)
                self._connection.phase = Phase.CLOSED
                self._connection.wire.close()
                return
            self._connection.send_method(start)
        self._held += self._connection.reader.feed(data)
        self._shake()

    def _shake(self) -> None:
        """The events held back, until one of them takes time or the connection is open."""
        while self._held and self._connection.phase is Phase.STARTING and self._task is None:
            event = self._held.pop(0)
            try:
                self._step(event)
            except AmqpError as error:
                self._connection.connection_error(error)
                return
        if self._connection.phase is Phase.RUNNING and self._held:
            held, self._held = self._held, []
            self._connection.receive(held)
        if self._connection.reader.error is not None and not self._held and self._task is None:
            self._connection.connection_error(self._connection.reader.error)

    def _step(self, event: Event) -> None:
        if isinstance(event, Heartbeat):
            return
        if not isinstance(event, Method) or event.channel != 0:
            raise ConnectionError_(CHANNEL_ERROR, "a channel is used before the vhost is open")
        if isinstance(event.method, commands.Connection.Close):
            self._connection.closed_by_client()
            return
        answer = self.handshake.receive(event.method)
        match answer:
            case None:  # tuned
                self._connection.tuned(self.handshake.terms)
            case Credentials():
                self._begin(self._login(answer), "amqp_login")
            case OpenVhost(vhost):
                self._begin(self._enter(vhost), "amqp_open")
            case base.Frame():
                self._connection.send_method(answer)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._connection.wire.pause(BUSY)
        self._task = self._home.services.tasks.start(self._carry_out(work), name=name)

    async def _carry_out(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except AmqpError as error:
            self._connection.connection_error(error)
        finally:
            self._task = None
            self._connection.wire.resume(BUSY)
        self._shake()

    async def _login(self, credentials: Credentials) -> None:
        user = await self._home.admission.login(credentials, host=self._connection.ends.peer_host)
        if self._connection.phase is not Phase.STARTING:
            return
        self._connection.client_capabilities = self.handshake.client_capabilities
        if user is not None:
            self._connection.user = user
            self._connection.send_method(self.handshake.accepted())
        elif (error := self.handshake.refused()) is not None:
            self._connection.connection_error(error)
        else:
            self._connection.phase = Phase.CLOSED
            self._connection.wire.close()

    async def _enter(self, vhost: str) -> None:
        self._connection.access = await self._home.admission.enter(self._connection.user, vhost)
        if self._connection.phase is not Phase.STARTING:
            return
        self._connection.vhost = vhost
        self._connection.opened()
        self._connection.send_method(self.handshake.opened())
