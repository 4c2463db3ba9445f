"""What a channel is to its parts, and what a connection is to its channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from pamqp import base

from cluster.machine.catalog import QueueInfo
from node.access.auth import User
from node.access.permissions import Access
from node.dispatch.in_flight import InFlight
from node.dispatch.progress import WrittenPiece
from node.messages.amqp_errors import AmqpError
from node.protocols.amqp.services import AmqpServices

T = TypeVar("T")


class ChannelHost(Protocol):
    """What a channel may use of its connection."""

    name: str
    id: str
    vhost: str
    user: User
    access: Access
    frame_max: int
    client_capabilities: Mapping[str, Any]
    exclusive_queues: dict[str, None]
    in_flight: InFlight  # of all its channels

    def write(self, data: bytes, piece: WrittenPiece | None = None) -> None: ...
    def report_handed(self) -> None:
        """The progress of consumers says now what the network has of their deliveries."""
        ...

    @property
    def congested(self) -> bool: ...
    def channel_error(self, number: int, error: AmqpError) -> None: ...
    def connection_error(self, error: AmqpError) -> None: ...
    def pause_reading(self, why: str) -> None: ...
    def resume_reading(self, why: str) -> None: ...


class ChannelContext(Protocol):
    """What the parts of a channel may use of it."""

    host: ChannelHost
    number: int
    services: AmqpServices
    closed: bool

    def send_method(self, method: base.Frame) -> None: ...
    def fail(self, error: AmqpError) -> None: ...
    def writable(self) -> None: ...
    def start(self, work: Coroutine[Any, Any, None], name: str) -> None: ...
    async def patiently(
        self, work: Callable[[], Awaitable[T]], queue: QueueInfo | None = None
    ) -> T: ...
