"""The link of a federated exchange: what is published to its upstream comes here, too."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from aiormq.exceptions import ConnectionCommandInvalid

from cluster.machine.catalog_routing import FEDERATION_UPSTREAM
from node.links.amqp import LinkChannel, LinkConnection
from node.links.federation import plan
from node.links.federation.arriving import Arriving
from node.links.federation.connecting import Connecting, Federated, as_longs, passively
from node.links.federation.downstream import Downstream
from node.links.federation.source import UpstreamQueue
from node.links.link import Link
from node.links.moving import move

_NAMESAKE: Final = (
    "the upstream is this virtual host itself, or one of another cluster with the same name"
    " '{cluster}': give each cluster a name of its own (PUT /api/cluster-name), by which federation"
    " tells where messages have been"
)
#: How often a link looks whether the bindings here have changed.
FOLLOW_S: Final = 0.1


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
        self._bound: dict[bytes, plan.Wanted] = {}
        self._suffix = plan.SUFFIXES[0]

    async def run(self, link: Link) -> None:
        upstream = self._upstream
        async with self._connecting.open(self._federated) as connection:
            up = self._up = self._federated.upstream_end(connection)
            if (up.cluster, up.vhost) == (self._down.cluster, self._down.vhost):
                raise ValueError(_NAMESAKE.format(cluster=up.cluster))
            self._queue = plan.queue_name(up, self._down)
            channel = await connection.channel()
            await self._declare(connection, channel)
            await self._bind_anew(connection, channel)
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
            link.running(uri=connection.place)
            arriving = Arriving(self._federated, self._downstream, source, up, connection.place)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow(channel))
                group.create_task(
                    move(
                        link,
                        source,
                        arriving,
                        upstream.ack_mode,
                        under_way_max=upstream.under_way_max,
                    )
                )

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

    async def _bind_anew(self, connection: LinkConnection, channel: LinkChannel) -> None:
        """To a new exchange beside the one of last time, so that nothing is missed meanwhile."""
        present = [each for each in plan.SUFFIXES if await self._is_there(connection, each)]
        if len(present) > 1:  # the last time ended in between: the older one gets all it may lack
            await self._bind(channel, present[0])
            await channel.exchange_delete(plan.exchange_name(self._queue, present.pop()))
        suffix = plan.SUFFIXES[0] if present == [plan.SUFFIXES[1]] else plan.SUFFIXES[1]
        internal = plan.exchange_name(self._queue, suffix)
        await self._declare_internal(channel, internal)
        await channel.queue_bind(self._queue, internal)
        self._bound = await self._bind(channel, suffix)
        self._suffix = suffix
        for older in present:
            await channel.exchange_delete(plan.exchange_name(self._queue, older))

    async def _is_there(self, connection: LinkConnection, suffix: str) -> bool:
        name = plan.exchange_name(self._queue, suffix)
        return await passively(connection, lambda new: new.exchange_declare(name, passive=True))

    async def _declare_internal(self, channel: LinkChannel, name: str) -> None:
        """Upstreams without federation do not know the type, and close the connection for it: there
        a fanout does, and what has been here is dropped on arrival.
        """
        how: dict[str, Any] = {"durable": True, "auto_delete": True, "internal": True}
        arguments = as_longs(plan.exchange_arguments(self._upstream, self._down))
        try:
            async with self._connecting.open(self._federated) as trial:
                await (await trial.channel()).exchange_declare(
                    name, exchange_type=FEDERATION_UPSTREAM, arguments=arguments, **how
                )
        except ConnectionCommandInvalid:
            await channel.exchange_declare(
                name, exchange_type="fanout", arguments=dict(plan.OURS), **how
            )

    # --- bindings ---------------------------------------------------------------------------------

    def _wanted(self, suffix: str) -> dict[bytes, plan.Wanted]:
        return plan.wanted_bindings(
            self._connecting.bindings(self._federated),
            self._up,
            self._down,
            hops_max=self._upstream.hops_max,
            suffix=suffix,
        )

    async def _bind(self, channel: LinkChannel, suffix: str) -> dict[bytes, plan.Wanted]:
        wanted = self._wanted(suffix)
        for each in wanted.values():
            await self._bind_one(channel, suffix, each)
        return wanted

    async def _bind_one(self, channel: LinkChannel, suffix: str, binding: plan.Wanted) -> None:
        await channel.exchange_bind(
            plan.exchange_name(self._queue, suffix),
            self._up.name,
            binding.key,
            arguments=as_longs(binding.arguments),
            nowait=self._upstream.bind_nowait,
        )

    async def _follow(self, channel: LinkChannel) -> None:
        """For as long as the link is open: what is bound here is bound there."""
        seen: int | None = None
        while True:
            version = self._connecting.routing_version(self._federated)
            if version != seen:
                seen = version
                wanted = self._wanted(self._suffix)
                bind, unbind = plan.changes(self._bound, wanted)
                for each in bind:
                    await self._bind_one(channel, self._suffix, each)
                for each in unbind:
                    await channel.exchange_unbind(
                        plan.exchange_name(self._queue, self._suffix),
                        self._up.name,
                        each.key,
                        arguments=as_longs(each.arguments),
                    )
                self._bound = wanted
            await asyncio.sleep(FOLLOW_S)
