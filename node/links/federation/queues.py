"""The link of a federated queue: while consumers here have nothing to do, it fetches from upstream.

What is here is consumed first. The consumer upstream has a priority below those of clients there,
which so come first, too; and such a consumer is no reason to fetch for the queue that it consumes.
"""

from __future__ import annotations

import asyncio
from typing import Final

from cluster.machine.interface import ConsumerView, QueueView
from node.broker.broker import Broker
from node.errors import Elsewhere
from node.links.amqp import LinkConnection
from node.links.federation.arriving import Arriving
from node.links.federation.connecting import Connecting, Federated, as_longs, passively
from node.links.federation.downstream import Downstream
from node.links.federation.source import UpstreamQueue
from node.links.link import Link

#: How often a link looks whether consumers here have nothing to do.
DEMAND_S: Final = 0.05
PRIORITY: Final = -1
#: Arguments with a meaning in this cluster alone.
_OURS: Final = frozenset({"x-queue-group"})


class QueueLink:
    """One for each time that the link connects."""

    def __init__(
        self, federated: Federated, connecting: Connecting, downstream: Downstream, broker: Broker
    ) -> None:
        self._federated = federated
        self._connecting = connecting
        self._downstream = downstream
        self._broker = broker

    async def run(self, link: Link) -> None:
        upstream = self._federated.upstream
        async with self._connecting.open(self._federated) as connection:
            up = self._federated.upstream_end(connection)
            await self._declare(connection, up.name)
            channel = await connection.channel()
            await channel.basic_qos(prefetch_count=upstream.prefetch)
            source = UpstreamQueue(
                connection,
                channel,
                up.name,
                upstream.consumer_tag,
                priority=PRIORITY,
                settles_at_once=upstream.ack_mode == "no-ack",
            )
            arriving = Arriving(
                link, self._federated, self._downstream, source, up, connection.place
            )
            await arriving.run(self._follow(source))

    async def _declare(self, connection: LinkConnection, name: str) -> None:
        """As it is here, unless there is one."""
        if await passively(connection, lambda new: new.queue_declare(name, passive=True)):
            return
        info = self._connecting.queue(self._federated)
        arguments = {key: value for key, value in info.arguments.items() if key not in _OURS}
        channel = await connection.channel()
        await channel.queue_declare(
            name,
            durable=info.durable,
            auto_delete=info.auto_delete,
            arguments=as_longs(arguments),
        )
        await channel.close()

    async def _follow(self, source: UpstreamQueue) -> None:
        while True:
            wanted = self._wanted()
            if wanted and not source.consuming:
                await source.start()
            elif source.consuming and not wanted:
                await source.pause()
            await asyncio.sleep(DEMAND_S)

    def _wanted(self) -> bool:
        """Nobody who leads the queue elsewhere has this link: then it ends here."""
        info = self._connecting.queue(self._federated)
        try:
            view = self._broker.machine(info.group).queue(info.queue)
        except Elsewhere:
            return False
        return view is not None and wants_more(view)


def wants_more(view: QueueView) -> bool:
    """Consumers wait, and the queue has nothing for them."""
    return view.ready_count == 0 and not view.paused and any(map(_waits, view.consumers))


def _waits(consumer: ConsumerView) -> bool:
    waits = consumer.status == "up" and consumer.active and consumer.room > 0
    return waits and consumer.priority >= 0
