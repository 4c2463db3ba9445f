"""What links of federation have in common: what is federated with what, and how they connect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

from aiormq.exceptions import ChannelNotFoundEntity

from cluster.cluster_node import ClusterNode
from cluster.machine.catalog_tables import BindingInfo, ExchangeInfo, QueueInfo
from node.links.amqp import AmqpClient, LinkChannel, LinkConnection
from node.links.definition import place_of
from node.links.federation.plan import End
from node.links.federation.upstreams import Upstream

#: Where a URI that names no virtual host leads to in another cluster.
DEFAULT_VHOST = "/"

What = Literal["exchange", "queue"]


@dataclass(frozen=True, slots=True)
class Federated:
    """An exchange or queue here, and one upstream of it. `user`: who made the upstream."""

    what: What
    end: End
    upstream: Upstream
    user: str

    @property
    def upstream_name(self) -> str:
        """Of the exchange or queue there."""
        own = self.upstream.exchange if self.what == "exchange" else self.upstream.queue
        return own or self.end.name

    def upstream_end(self, connection: LinkConnection) -> End:
        place = place_of(connection.uri)
        vhost = place.vhost or (DEFAULT_VHOST if place.host else self.end.vhost)
        return End(connection.cluster, vhost, self.upstream_name)


class Connecting:
    """One per node: opens connections to upstreams, and reads this node's copy of the catalog."""

    def __init__(self, cluster: ClusterNode, client: AmqpClient) -> None:
        self._cluster = cluster
        self._client = client

    @asynccontextmanager
    async def open(self, federated: Federated) -> AsyncGenerator[LinkConnection]:
        upstream, end = federated.upstream, federated.end
        connection = await self._client.connect(
            upstream.uris,
            user=federated.user,
            vhost=end.vhost,
            name=f"Federation link (upstream: {upstream.name}, {federated.what}: {end.name})",
        )
        try:
            yield connection
        finally:
            await connection.close()

    def exchange(self, federated: Federated) -> ExchangeInfo:
        end = federated.end
        info = self._cluster.catalog_machine.exchange(end.vhost, end.name)
        if info is None:
            raise ConnectionError(f"exchange '{end.name}' in vhost '{end.vhost}' is gone")
        return info

    def queue(self, federated: Federated) -> QueueInfo:
        end = federated.end
        info = self._cluster.catalog_machine.queue(end.vhost, end.name)
        if info is None:
            raise ConnectionError(f"queue '{end.name}' in vhost '{end.vhost}' is gone")
        return info

    def bindings(self, federated: Federated) -> Sequence[BindingInfo]:
        return self._cluster.catalog_machine.bindings_from(federated.end.vhost, federated.end.name)

    def routing_version(self, federated: Federated) -> int:
        return self._cluster.catalog_machine.routing_version(federated.end.vhost)


async def passively(
    connection: LinkConnection, declare: Callable[[LinkChannel], Awaitable[Any]]
) -> bool:
    """Whether it is there. On a channel of its own, which the answer no would close."""
    channel = await connection.channel()
    try:
        await declare(channel)
    except ChannelNotFoundEntity:
        return False
    await channel.close()
    return True


class _Long(int):
    """Written with 64 bits. pamqp takes as few as it can, and RabbitMQ's plugin reads the hops of
    an exchange only where they are a long: no narrower type has room for this number.
    """

    def __ge__(self, other: int) -> bool:
        return other <= -(2**63)


def as_longs(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _longs(value) for name, value in arguments.items()}


def _longs(value: Any) -> Any:
    if type(value) is int:
        return _Long(value)
    if isinstance(value, Mapping):
        return as_longs(cast("Mapping[str, Any]", value))
    if isinstance(value, (list, tuple)):
        return [_longs(each) for each in cast("Sequence[Any]", value)]
    return bytearray(value) if isinstance(value, bytes) else value
