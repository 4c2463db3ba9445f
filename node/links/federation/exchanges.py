"""The link of a federated exchange: what is published to its upstream comes here, too."""

from __future__ import annotations

from typing import Final

from node.links.amqp import LinkChannel, LinkConnection
from node.links.federation import plan
from node.links.federation.arriving import Arriving
from node.links.federation.connecting import Connecting, Federated, as_longs, passively
from node.links.federation.downstream import Downstream
from node.links.federation.internal_exchanges import InternalExchanges
from node.links.federation.source import UpstreamQueue
from node.links.link import Link

_NAMESAKE: Final = (
    "the upstream is this virtual host itself, or one of another cluster with the same name"
    " '{cluster}': give each cluster a name of its own (PUT /api/cluster-name), by which federation"
    " tells where messages have been"
)


class ExchangeLink:
    """One for each time that the link connects."""

    def __init__(
        self, federated: Federated, connecting: Connecting, downstream: Downstream
    ) -> None:
        self._federated = federated
        self._upstream = federated.upstream
        self._connecting = connecting
        self._downstream = downstream
        self._down = federated.end

    async def run(self, link: Link) -> None:
        upstream = self._upstream
        async with self._connecting.open(self._federated) as connection:
            up = self._up = self._federated.upstream_end(connection)
            if (up.cluster, up.vhost) == (self._down.cluster, self._down.vhost):
                raise ValueError(_NAMESAKE.format(cluster=up.cluster))
            self._queue = plan.queue_name(up, self._down)
            channel = await connection.channel()
            await self._declare(connection, channel)
            internal = InternalExchanges(
                self._federated, self._connecting, connection, channel, self._queue
            )
            await internal.bind_anew()
            consuming = channel if upstream.one_channel else await connection.channel()
            await consuming.basic_qos(prefetch_count=upstream.prefetch)
            source = UpstreamQueue(
                connection,
                consuming,
                self._queue,
                upstream.consumer_tag,
                settles_at_once=upstream.ack_mode == "no-ack",
            )
            await source.start()
            arriving = Arriving(
                link, self._federated, self._downstream, source, up, connection.place
            )
            await arriving.run(internal.follow())

    # --- what is upstream -------------------------------------------------------------------------

    async def _declare(self, connection: LinkConnection, channel: LinkChannel) -> None:
        """The exchange as it is here, unless there is one; and the queue."""
        name = self._up.name
        if not await passively(connection, lambda new: new.exchange_declare(name, passive=True)):
            info = self._connecting.exchange(self._federated)
            await channel.exchange_declare(
                name,
                exchange_type=info.type,
                durable=info.durable,
                auto_delete=info.auto_delete,
                arguments=as_longs(info.arguments),
            )
        arguments = as_longs(plan.queue_arguments(self._upstream))
        await channel.queue_declare(self._queue, durable=True, arguments=arguments)
