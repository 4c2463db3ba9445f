"""Messages of an upstream on their last step: where they come from is noted, and they are published
here.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any, cast

import structlog
from aiormq.abc import DeliveredMessage
from pamqp import commands

from node.errors import Refused
from node.links.amqp import message_of
from node.links.federation import plan
from node.links.federation.connecting import Federated
from node.links.federation.downstream import Downstream, properties_of
from node.links.federation.source import UpstreamQueue
from node.links.link import Link
from node.links.moving import Item, move
from node.routing.federation import may_forward
from node.tasks import together

log = structlog.get_logger(__name__)


class Arriving:
    """The destination of one link. `uri`: of the upstream, for the header."""

    def __init__(
        self,
        link: Link,
        federated: Federated,
        downstream: Downstream,
        source: UpstreamQueue,
        upstream: plan.End,
        uri: str,
    ) -> None:
        self._link = link
        self._federated = federated
        self._downstream = downstream
        self._source = source
        self._upstream = upstream
        self._uri = uri

    async def run(self, beside: Coroutine[Any, Any, None]) -> None:
        """All that comes from upstream is published here, and `beside` is done meanwhile."""
        upstream = self._federated.upstream
        self._link.running(uri=self._uri)
        moving = move(
            self._link, self._source, self, upstream.ack_mode, under_way_max=upstream.under_way_max
        )
        await together(beside, moving)

    def publish(self, item: Item) -> Coroutine[Any, Any, None]:
        return self._publish(item.tag, item.message)

    async def _publish(self, tag: int, message: DeliveredMessage) -> None:
        federated, here = self._federated, self._federated.end
        body, given = message_of(message)
        delivery = cast("commands.Basic.Deliver", message.delivery)
        headers = cast("Mapping[str, Any]", given.headers or {})
        exchange, key, note = "", here.name, plan.moved
        if federated.what == "exchange":
            exchange, key, note = here.name, delivery.routing_key or "", plan.received
            hops_max = federated.upstream.hops_max
            # The upstream has looked already, if it knows federation.
            if not may_forward(headers, hops_max=hops_max, cluster=here.cluster, vhost=here.vhost):
                return
        redelivered = bool(delivery.redelivered)
        try:
            noted = note(headers, self._uri, self._upstream, redelivered=redelivered)
            properties = properties_of(given, noted, user_id=federated.upstream.trusts_user_id)
            await self._downstream.publish(here.vhost, exchange, key, body, properties)
        except (Refused, ValueError) as error:
            # The message itself is at fault: it must not hold up the others, nor be lost. Upstream
            # nobody may have said where what is rejected goes.
            stays = self._source.keep(tag)
            if stays:
                self._link.keeps(str(error))
            log.warning(
                "federated_message_refused",
                vhost=here.vhost,
                name=here.name,
                reason=str(error),
                stays=stays,
            )
