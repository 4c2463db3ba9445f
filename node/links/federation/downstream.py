"""The near end of federation: what comes from upstreams is published in this cluster.

In this process, and in nobody's name: a policy has said so. What a queue refuses because it is
full is offered to it again until it has room, and what publishers have to wait for is waited for:
meanwhile the messages stay unacknowledged upstream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from pamqp import commands

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import called_back
from cluster.groups.proposals import WHOLE_BODY_BYTES_MAX
from cluster.machine.arguments import SHARD_OF
from cluster.machine.catalog import QueueInfo
from node.access.permissions import Access, Operation, TopicOperation
from node.broker.bodies import PartedBody
from node.broker.broker import Broker
from node.broker.ingress import PART_BYTES_MAX, Attrs, shown
from node.broker.publishing import QueuePublisher
from node.messages import properties as amqp
from node.messages.message import where_of

#: A queue that is full, and an alarm, are looked at again after this.
RETRY_S: Final = 0.2

#: Properties, by AMQP's name and by pamqp's.
_NAMES: Final = {
    **{
        name: name
        for name in (
            "content_type",
            "content_encoding",
            "delivery_mode",
            "priority",
            "correlation_id",
            "reply_to",
            "expiration",
            "message_id",
            "user_id",
            "app_id",
            "cluster_id",
        )
    },
    "type": "message_type",
}


class _Everything(Access):
    """Of a link: whatever it brings was published by somebody who might, upstream."""

    def may(self, operation: Operation, name: str) -> bool:
        return True

    def may_topic(self, operation: TopicOperation, exchange: str, key: str) -> bool:
        return True

    @property
    def impersonates(self) -> bool:
        return True


def properties_of(
    given: commands.Basic.Properties, headers: Mapping[str, Any], *, user_id: bool
) -> bytes:
    """As the broker keeps them. ValueError: what AMQP has no type for."""
    values: dict[str, Any] = {
        name: value
        for name, theirs in _NAMES.items()
        if (value := getattr(given, theirs, None)) is not None
    }
    if not user_id:
        values.pop("user_id", None)
    if given.timestamp is not None:
        values["timestamp"] = max(0, int(given.timestamp.timestamp()))
    return amqp.build({**values, "headers": dict(headers)})


class Downstream:
    """One per node: publishes for its links."""

    def __init__(self, cluster: ClusterNode, broker: Broker, publisher: QueuePublisher) -> None:
        self._cluster = cluster
        self._broker = broker
        self._publisher = publisher

    async def publish(
        self, vhost: str, exchange: str, key: str, body: bytes, properties: bytes
    ) -> None:
        """Returns when all queues that it goes to have it; without an exchange that is the queue
        of this name. Raises Refused if the message is one that this cluster does not take, and
        ConnectionError if it cannot be published now.
        """
        ingress = self._broker.ingress
        access = _Everything(self._cluster, "", vhost)
        ingress.check_size(len(body), in_parts=True)
        attrs, properties = await ingress.interpret_in_time(access, properties)
        while self._held_back(vhost):  # noqa: ASYNC110 - alarms have listeners, but quotas none
            await asyncio.sleep(RETRY_S)
        queues = await self._queues(access, exchange, key, properties, attrs)
        properties = shown(properties)
        meta = where_of(exchange, key) + properties
        stored = [
            asyncio.ensure_future(
                self._store(info, body, meta, ingress.attrs_for_queue(info, attrs, properties))
            )
            for info in queues
        ]
        await asyncio.gather(*stored)

    async def _queues(
        self, access: Access, exchange: str, key: str, properties: bytes, attrs: Attrs | None
    ) -> Sequence[QueueInfo]:
        if not exchange:  # its headers may name more queues, of where it was published
            info = self._cluster.catalog_machine.queue(access.vhost, key)
            if info is None:
                raise ConnectionError(f"queue '{key}' in vhost '{access.vhost}' is gone")
            return [info]
        ingress = self._broker.ingress
        route = ingress.route(access, exchange, key, properties, attrs)
        if ingress.in_doubt(exchange, route):
            if not await self._broker.catch_up():
                raise ConnectionError("this node is cut off from the others")
            route = ingress.route(access, exchange, key, properties, attrs)
        if route is None:
            raise ConnectionError(f"exchange '{exchange}' in vhost '{access.vhost}' is gone")
        return route.queues

    def _held_back(self, vhost: str) -> bool:
        ingress = self._broker.ingress
        return ingress.lack.disk or ingress.lack.memory or vhost in ingress.full_vhosts

    async def _store(self, info: QueueInfo, body: bytes, meta: bytes, attrs: Attrs | None) -> None:
        while True:
            refused = await self._offered(info, body, meta, attrs)
            if not refused:
                return
            if self._cluster.catalog_machine.queue_by_id(info.queue) is None:
                if SHARD_OF in info.arguments:  # joined: the queue that it is of is there
                    raise ConnectionError(f"queue '{info.name}' was joined: it is routed again")
                return
            await asyncio.sleep(RETRY_S)

    async def _offered(
        self, info: QueueInfo, body: bytes, meta: bytes, attrs: Attrs | None
    ) -> bool:
        """Whether the queue refused."""
        size_bytes, publisher = len(body) + len(meta), self._publisher
        if len(body) > WHOLE_BODY_BYTES_MAX:
            pieces = [body[at : at + PART_BYTES_MAX] for at in range(0, len(body), PART_BYTES_MAX)]
            uploaded = await publisher.upload(info, [PartedBody(pieces)])
            publish = partial(
                publisher.publish_large, info, uploaded, meta, attrs, size_bytes, count=1
            )
        else:
            publish = partial(publisher.publish, info, [body], meta, attrs, size_bytes)
        return bool(await called_back(publish))
