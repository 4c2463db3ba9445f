"""What stands upstream between a federated exchange's upstream exchange and the queue of its link.

An internal exchange, bound to the upstream exchange as the exchange here has bindings. AMQP cannot
list what is bound there, so a link that starts makes a second one, A and B in turn, and deletes the
first when the second is whole: leads to the queue, and has all bindings. At every moment one must
be whole, whenever a link ends and even while two nodes start the same one: what is published while
none is leads nowhere, and nobody ever hears of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from aiormq.exceptions import ConnectionCommandInvalid

from cluster.machine.catalog_routing import FEDERATION_UPSTREAM
from node.links.amqp import LinkChannel, LinkConnection
from node.links.federation import plan
from node.links.federation.connecting import Connecting, Federated, as_longs, passively

#: How often a link looks whether the bindings here have changed.
FOLLOW_S: Final = 0.1
#: How often it checks that its exchange is still there upstream, and renews it where it found two:
#: by then no other node starts the same link any more.
CHECK_S: Final = 10.0


class InternalExchanges:
    """Those of one link, for as long as it is connected."""

    def __init__(
        self,
        federated: Federated,
        connecting: Connecting,
        connection: LinkConnection,
        channel: LinkChannel,
        queue: str,
    ) -> None:
        """`queue`: of the link, upstream."""
        self._federated = federated
        self._upstream = federated.upstream
        self._connecting = connecting
        self._connection = connection
        self._channel = channel
        self._queue = queue
        self._up = federated.upstream_end(connection)
        #: By suffix, those that are whole, and what is bound to each.
        self._bound: dict[str, dict[bytes, plan.Wanted]] = {}

    async def bind_anew(self) -> None:
        """If two are there, the last start ended in between, or another node starts this link too.
        Either may be the one that is whole, so both are made whole and neither is deleted yet.
        """
        present = [each for each in plan.SUFFIXES if await self._is_there(each)]
        if len(present) > 1:
            for suffix in present:
                await self._make_whole(suffix)
        else:
            await self._renew(present)

    async def follow(self) -> None:
        """What is bound here is bound there. ConnectionError: what was there is gone."""
        loop = asyncio.get_running_loop()
        check_s, seen = loop.time() + CHECK_S, None
        while True:
            version = self._connecting.routing_version(self._federated)
            if version != seen:
                seen = version
                for suffix in self._bound:
                    await self._rebind(suffix)
            if loop.time() >= check_s:
                await self._check()
                check_s = loop.time() + CHECK_S
            await asyncio.sleep(FOLLOW_S)

    async def _check(self) -> None:
        for suffix in self._bound:
            if not await self._is_there(suffix):
                raise ConnectionError(f"exchange '{self._name(suffix)}' is gone upstream")
        if len(self._bound) > 1:  # and what was unbound before they were found may be bound to both
            first, second = self._bound
            await self._delete(second)
            await self._renew([first])

    async def _renew(self, older: Sequence[str]) -> None:
        """A new one in the place of the older one, if there is one."""
        first, second = plan.SUFFIXES
        suffix = first if list(older) == [second] else second
        await self._declare(self._name(suffix))
        await self._make_whole(suffix)
        for each in older:
            await self._delete(each)

    def _name(self, suffix: str) -> str:
        return plan.exchange_name(self._queue, suffix)

    async def _is_there(self, suffix: str) -> bool:
        name = self._name(suffix)
        return await passively(
            self._connection, lambda new: new.exchange_declare(name, passive=True)
        )

    async def _declare(self, name: str) -> None:
        """Upstreams without federation do not know the type, and close the connection for it: there
        a fanout does, and what has been here is dropped on arrival.
        """
        how: dict[str, Any] = {"durable": True, "auto_delete": True, "internal": True}
        arguments = as_longs(plan.exchange_arguments(self._upstream, self._federated.end))
        try:
            async with self._connecting.open(self._federated) as trial:
                await (await trial.channel()).exchange_declare(
                    name, exchange_type=FEDERATION_UPSTREAM, arguments=arguments, **how
                )
        except ConnectionCommandInvalid:
            await self._channel.exchange_declare(
                name, exchange_type="fanout", arguments=dict(plan.OURS), **how
            )

    async def _make_whole(self, suffix: str) -> None:
        await self._channel.queue_bind(self._queue, self._name(suffix))
        self._bound[suffix] = {}
        await self._rebind(suffix)

    async def _delete(self, suffix: str) -> None:
        self._bound.pop(suffix, None)
        await self._channel.exchange_delete(self._name(suffix))

    async def _rebind(self, suffix: str) -> None:
        channel, name, upstream = self._channel, self._name(suffix), self._up.name
        wanted = plan.wanted_bindings(
            self._connecting.bindings(self._federated),
            self._up,
            self._federated.end,
            hops_max=self._upstream.hops_max,
            suffix=suffix,
        )
        bind, unbind = plan.changes(self._bound[suffix], wanted)
        for each in bind:
            await channel.exchange_bind(
                name,
                upstream,
                each.key,
                arguments=as_longs(each.arguments),
                nowait=self._upstream.bind_nowait,
            )
        for each in unbind:
            await channel.exchange_unbind(
                name, upstream, each.key, arguments=as_longs(each.arguments)
            )
        self._bound[suffix] = wanted
