"""Transactions of native clients: publishes and settles in any queues, all of them or none.

They become the same steps as an AMQP channel's, and `node.broker.transactions` carries them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Discard, Enqueue, Return, Settle, Step
from cluster.machine.replies import BAD_ARGUMENT
from cluster.types import ConsumerKey, GroupId
from node.broker.broker import Broker
from node.broker.transactions import TransactionCoordinator
from node.clients.client_session import ClientSession
from node.errors import Refused
from node.messages.group_keys import with_group_keys
from node.protocols.native import requests
from node.protocols.native.exchanges import Exchanges, attrs_of


class NativeTransactions:
    """Commits what a TRANSACT holds."""

    def __init__(
        self,
        broker: Broker,
        exchanges: Exchanges,
        transactions: TransactionCoordinator,
    ) -> None:
        self._broker = broker
        self._exchanges = exchanges
        self._transactions = transactions

    async def commit(self, connection: ClientSession, frame: requests.Transact) -> None:
        """OK: all of it is done. Raises BrokerError: see `TransactionCoordinator.commit`."""
        steps: dict[GroupId, list[Step]] = {}
        for each in frame.steps:
            for info, step in await self._steps(connection, each):
                steps.setdefault(info.group, []).append(step)
        size_bytes = sum(
            sum(map(len, step.bodies))
            for group in steps.values()
            for step in group
            if isinstance(step, Enqueue)
        )
        async with self._broker.ingress.room.of(size_bytes):
            await self._transactions.commit(steps)
        connection.answer(frame.request)

    async def _steps(
        self, connection: ClientSession, frame: requests.TransactionStep
    ) -> Sequence[tuple[QueueInfo, Step]]:
        access, vhost = connection.access, connection.vhost
        if isinstance(frame, requests.PublishTo):
            return await self._routed(connection, frame)
        if access is not None:
            operation = "write" if isinstance(frame, requests.Publish) else "read"
            self._broker.check_queue(access, operation, frame.queue)
        if isinstance(frame, requests.Publish):
            info = await self._broker.find(vhost, frame.queue)
            parts = self._broker.ingress.spread(
                access, info, None, 0, frame.bodies, frame.meta, frame.attrs
            )
            return [(part.info, part.command) for part in parts]
        info = await self._broker.find_shared(vhost, frame.queue)
        if isinstance(frame.consumer, str):
            raise Refused(BAD_ARGUMENT, "what a cursor of a stream has is no part of a transaction")
        consumer = ConsumerKey(frame.consumer)
        match frame:
            case requests.Settle(_, _, _, ranges, token):
                return [(info, Settle(info.queue, consumer, ranges, token))]
            case requests.Return(_, _, _, ranges, failed, delay_ms, token):
                return [(info, Return(info.queue, consumer, ranges, failed, delay_ms, token))]
            case requests.Discard(_, _, _, ranges, token):
                return [(info, Discard(info.queue, consumer, ranges, token))]
            case _:
                assert_never(frame)

    async def _routed(
        self, connection: ClientSession, frame: requests.PublishTo
    ) -> Sequence[tuple[QueueInfo, Step]]:
        shares, _ = await self._exchanges.shares(connection, frame)
        found: list[tuple[QueueInfo, Step]] = []
        for share in shares:
            info, count = share.info, len(share.bodies)
            attrs = with_group_keys(info.arguments, share.metas, attrs_of(share), count)
            step = Enqueue(info.queue, None, 0, share.bodies, share.metas, attrs)
            found.append((info, step))
        return found
