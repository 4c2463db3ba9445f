"""Clusters that federate with each other, each with a client of its own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import aiormq
from pamqp import commands

from tests.node.management.api import Api
from tests.node.nodes import Nodes
from tests.testkit.waiting import stays, until

#: Of links that failed.
RECONNECT_S = 0.2


class Site:
    """A cluster, and a client of it."""

    def __init__(self, name: str, uri: str, api: str) -> None:
        """`api`: where its management listens."""
        self.name = name
        self.uri = uri
        self.api = Api(api, "guest", "guest")

    async def open(self) -> None:
        self.connection = await aiormq.connect(self.uri)
        self.channel = await self.connection.channel()

    async def follows(self, *others: Site, **upstream: Any) -> None:
        for other in others:
            value = {"uri": other.uri, "reconnect-delay": RECONNECT_S, **upstream}
            path = f"parameters/federation-upstream/%2F/{other.name}"
            assert (await self.api.ask("PUT", path, {"value": value})).status == 201
        definition = {"federation-upstream-set": "all"}
        await self.api.put("policies/%2F/federated", pattern="^fed", definition=definition)

    async def collects(self, queue: str, key: str = "#", exchange: str = "fed.x") -> None:
        await self.channel.exchange_declare(exchange, exchange_type="topic", durable=True)
        await self.channel.queue_declare(queue, durable=True)
        await self.channel.queue_bind(queue, exchange, key)

    async def publish(self, key: str, body: bytes, exchange: str = "fed.x", **more: Any) -> None:
        properties = commands.Basic.Properties(**more)
        await self.channel.basic_publish(
            body, exchange=exchange, routing_key=key, properties=properties
        )

    async def taken(self, queue: str) -> list[tuple[bytes, list[str]]]:
        """All that waits there: bodies, and through which clusters each came, the last first."""
        found: list[tuple[bytes, list[str]]] = []
        while True:
            message = await self.channel.basic_get(queue, no_ack=True)
            if not isinstance(message.delivery, commands.Basic.GetOk):
                return found
            properties = message.header.properties
            assert isinstance(properties, commands.Basic.Properties)
            hops: Any = (properties.headers or {}).get("x-received-from") or []
            found.append((message.body, [hop["cluster-name"] for hop in hops]))

    async def has(self, queue: str, count: int) -> None:
        """Waits until as many messages are there."""

        async def there() -> bool:
            declared = await self.channel.queue_declare(queue, passive=True)
            return (declared.message_count or 0) >= count

        await until(there)

    async def consume(self, queue: str, take: Callable[[Any], Coroutine[Any, Any, None]]) -> str:
        """The consumer's tag."""
        return (await self.channel.basic_consume(queue, take)).consumer_tag or ""

    async def links(self) -> list[dict[str, Any]]:
        return await self.api.get("federation-links")

    async def linked(self, count: int) -> None:
        async def running() -> bool:
            links = await self.links()
            return len(links) == count and all(link["status"] == "running" for link in links)

        await until(running)

    async def bound_for(self, other: Site, key: str, exchange: str = "fed.x") -> bool:
        """Whether the other cluster collects messages with this key here."""
        collected = f"federation: {exchange} -> {other.name}"
        bindings = await self.api.get(f"exchanges/%2F/{exchange}/bindings/source")
        return any(
            binding["routing_key"] == key and binding["destination"].startswith(collected)
            for binding in bindings
        )


class OurSite(Site):
    """Of nodes in this process."""

    def __init__(self, name: str, nodes: Nodes) -> None:
        node = nodes.one
        uri = f"amqp://guest:guest@{node.amqp.address}/%2F"
        super().__init__(name, uri, f"http://{node.http_address}")
        self.nodes = nodes

    def consumers(self, queue: str) -> list[Any]:
        info = self.nodes.one.broker.locate("/", queue)
        return [] if info is None else self.nodes.one.broker.describe(info)["consumers"]

    async def keeps(self, queue: str, count: int) -> None:
        """Waits until as many messages are there; and no more come."""
        await self.has(queue, count)
        info = self.nodes.one.broker.locate("/", queue)
        assert info is not None
        await stays(lambda: self.nodes.one.broker.describe(info)["messages"] == count)
