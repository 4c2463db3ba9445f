"""Requests of the native protocol, carried out: by the node's WebSockets, and under virtual time by
the simulator, which has no sockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import Discard, Extend, Return, SetCredit, Settle
from cluster.types import ConsumerKey
from node.access.permissions import Operation
from node.broker import settle_retry
from node.broker.broker import Broker
from node.broker.publishing import QueuePublisher
from node.broker.transactions import TransactionCoordinator
from node.clients.client_session import ClientSession
from node.errors import BrokerError, Refused
from node.protocols.native import requests
from node.protocols.native.exchanges import Exchanges
from node.protocols.native.requests import Request
from node.protocols.native.streams import Streams, is_stream
from node.protocols.native.transactions import NativeTransactions
from node.routing.shards import split_of

#: What is said of deliveries.
SettleFrame = (
    requests.Settle | requests.Return | requests.Discard | requests.Extend | requests.Credit
)

#: What a user must be allowed to do with the queue. INFO needs no more than the virtual host.
_OPERATIONS: dict[type, Operation] = {
    requests.Publish: "write",
    requests.PublishPart: "write",
    requests.DeclareExchange: "configure",
    requests.DeleteExchange: "configure",
    requests.Subscribe: "read",
    requests.Cancel: "read",
    requests.Credit: "read",
    requests.Settle: "read",
    requests.Return: "read",
    requests.Discard: "read",
    requests.Extend: "read",
    requests.Withdraw: "read",
    requests.Retime: "read",
    requests.Get: "read",
    requests.Read: "read",
    requests.PutCursor: "read",
    requests.DeleteCursor: "read",
    requests.Declare: "configure",
    requests.Delete: "configure",
    requests.Purge: "configure",
    requests.Pause: "configure",
}


_OF_EXCHANGES = frozenset({requests.DeclareExchange, requests.DeleteExchange})


class Handlers:
    """What to do for each kind of request."""

    def __init__(
        self,
        broker: Broker,
        streams: Streams,
        publisher: QueuePublisher,
        transactions: TransactionCoordinator,
    ) -> None:
        self._broker = broker
        self._streams = streams
        self._exchanges = Exchanges(broker, publisher)
        self._transactions = NativeTransactions(broker, self._exchanges, transactions)
        self._handlers: dict[type, Callable[[ClientSession, Any], Awaitable[None]]] = {
            requests.Publish: self._publish,
            requests.PublishPart: self._publish_part,
            requests.Settle: self._settle,
            requests.Return: self._settle,
            requests.Discard: self._settle,
            requests.Extend: self._settle,
            requests.Credit: self._settle,
            requests.Subscribe: self._subscribe,
            requests.Cancel: self._cancel,
            requests.Withdraw: self._withdraw,
            requests.Retime: self._retime,
            requests.Get: self._get,
            requests.Declare: self._declare,
            requests.Delete: self._delete,
            requests.Purge: self._purge,
            requests.Pause: self._pause,
            requests.Info: self._info,
            requests.Read: self._read,
            requests.PutCursor: self._put_cursor,
            requests.DeleteCursor: self._delete_cursor,
            requests.PublishTo: self._publish_to,
            requests.Transact: self._transact,
            requests.DeclareExchange: self._declare_exchange,
            requests.DeleteExchange: self._delete_exchange,
            requests.Bind: self._bind,
        }

    def closed(self, connection: ClientSession) -> None:
        """Its client is gone."""
        self._streams.closed(connection)

    async def handle(self, connection: ClientSession, request: Request) -> None:
        """Returns when the next request of this connection may be read."""
        handler = self._handlers.get(type(request))
        if handler is None:
            return
        try:
            access = connection.access
            operation = _OPERATIONS.get(type(request))
            if access is not None and operation is not None:
                if type(request) in _OF_EXCHANGES:
                    access.check(operation, "exchange", request.queue)  # type: ignore[union-attr]
                else:
                    self._broker.check_queue(access, operation, request.queue)  # type: ignore[union-attr]
                if type(request) is requests.Declare:
                    access.check_dead_letters(request.queue, request.arguments)
            await handler(connection, request)
        except BrokerError as error:
            connection.fail(request.request, request.queue, error)  # type: ignore[union-attr]

    # --- one per request --------------------------------------------------------------------------

    async def _publish(self, connection: ClientSession, frame: requests.Publish) -> None:
        request, queue, publisher, seqno, bodies, meta, attrs, large = frame
        info = self._broker.locate(connection.vhost, queue)
        if info is None:
            info = await self._broker.find(connection.vhost, queue)
        ingress = self._broker.ingress
        if ingress.router.is_split(info):
            given = publisher, seqno, bodies, meta, attrs, large
            parts = await self._broker.spread(connection.access, info, *given)
            if parts[0].info is not info:
                await ingress.room.free()
                work = connection.publish_spread
                await connection.run(request, queue, lambda: work(request, bodies, parts))
                return
        connection.publish(request, info, publisher, seqno, bodies, meta, attrs, large)

    async def _publish_part(self, connection: ClientSession, frame: requests.PublishPart) -> None:
        request, queue, upload, number, data = frame
        info = await self._broker.find(connection.vhost, queue)
        await connection.run(
            request,
            queue,
            lambda: connection.publish_part(request, info, upload, number, data),
        )

    async def _settle(self, connection: ClientSession, frame: SettleFrame) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        cursor = frame.consumer
        if isinstance(cursor, str):
            assert not isinstance(frame, requests.Credit)
            settle = self._streams.settle
            await connection.run(
                frame.request, frame.queue, lambda: settle(connection, info, frame, cursor)
            )
            return
        consumer = ConsumerKey(cursor)
        command: settle_retry.SettleCommand
        match frame:
            case requests.Settle(_, _, _, ranges, token):
                command = Settle(info.queue, consumer, ranges, token)
            case requests.Return(_, _, _, ranges, failed, delay_ms, token):
                command = Return(info.queue, consumer, ranges, failed, delay_ms, token)
            case requests.Discard(_, _, _, ranges, token):
                command = Discard(info.queue, consumer, ranges, token)
            case requests.Extend(_, _, _, ranges, timeout_ms):
                command = Extend(info.queue, consumer, ranges, timeout_ms)
            case requests.Credit(_, _, _, credit):
                command = SetCredit(info.queue, consumer, credit)
        connection.settle(frame.request, info, command)

    async def _subscribe(self, connection: ClientSession, frame: requests.Subscribe) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        split = split_of(self._broker.cluster.catalog_machine, info)
        if split is not None and not split.joining and not connection.follows_shards:
            raise Refused(
                codes.WRONG_KIND,
                f"{info.name} is split, and has next to nothing itself: consume each of"
                f" {', '.join(split.shards)}; or `quorate queue join {info.name}` first",
            )
        await connection.run(
            frame.request, frame.queue, lambda: self._subscribed(connection, info, frame)
        )

    async def _subscribed(
        self, connection: ClientSession, info: QueueInfo, frame: requests.Subscribe
    ) -> None:
        await connection.subscribe(
            frame.request,
            info,
            frame.tag,
            credit=frame.credit,
            priority=frame.priority,
            exclusive=frame.exclusive,
            auto_settle=frame.auto_settle,
            timeout_ms=frame.timeout_ms,
            held=frame.held,
        )
        connection.tell_shards(info)

    async def _cancel(self, connection: ClientSession, frame: requests.Cancel) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        consumer = frame.consumer
        if isinstance(consumer, str):
            self._streams.cancel(connection, frame.queue, consumer)
            connection.answer(frame.request)
            return
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.cancel(frame.request, info, consumer, give_back=frame.give_back),
        )

    async def _get(self, connection: ClientSession, frame: requests.Get) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.get(
                frame.request,
                info,
                frame.messages,
                auto_settle=frame.auto_settle,
                positions=frame.ranges or (),
                shards=() if frame.ranges else self._broker.shard_names(info),
            ),
        )

    async def _withdraw(self, connection: ClientSession, frame: requests.Withdraw) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.withdraw(frame.request, info, frame.ranges),
        )

    async def _retime(self, connection: ClientSession, frame: requests.Retime) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.retime(
                frame.request, info, frame.ranges, due_ms=frame.due_ms, delay_ms=frame.delay_ms
            ),
        )

    async def _publish_to(self, connection: ClientSession, frame: requests.PublishTo) -> None:
        await self._broker.ingress.room.free()  # until then nothing more is read
        work = self._exchanges.publish
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _transact(self, connection: ClientSession, frame: requests.Transact) -> None:
        await self._broker.ingress.room.free()
        work = self._transactions.commit
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _declare_exchange(
        self, connection: ClientSession, frame: requests.DeclareExchange
    ) -> None:
        work = self._exchanges.declare
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _delete_exchange(
        self, connection: ClientSession, frame: requests.DeleteExchange
    ) -> None:
        work = self._exchanges.delete
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _bind(self, connection: ClientSession, frame: requests.Bind) -> None:
        work = self._exchanges.bind
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _read(self, connection: ClientSession, frame: requests.Read) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        self._streams.read(connection, info, frame)

    async def _put_cursor(self, connection: ClientSession, frame: requests.PutCursor) -> None:
        work = self._streams.put_cursor
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _delete_cursor(self, connection: ClientSession, frame: requests.DeleteCursor) -> None:
        work = self._streams.delete_cursor
        await connection.run(frame.request, frame.queue, lambda: work(connection, frame))

    async def _declare(self, connection: ClientSession, frame: requests.Declare) -> None:
        await connection.run(
            frame.request,
            frame.queue,
            lambda: (
                self._streams.declare(connection, frame)
                if is_stream(frame.arguments)
                else connection.declare(frame.request, frame.queue, frame.arguments)
            ),
        )

    async def _delete(self, connection: ClientSession, frame: requests.Delete) -> None:
        await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.delete(
                frame.request, frame.queue, if_unused=frame.if_unused, if_empty=frame.if_empty
            ),
        )

    async def _purge(self, connection: ClientSession, frame: requests.Purge) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request, frame.queue, lambda: connection.purge(frame.request, info)
        )

    async def _pause(self, connection: ClientSession, frame: requests.Pause) -> None:
        info = await self._broker.find_shared(connection.vhost, frame.queue)
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.pause(frame.request, info, paused=frame.paused),
        )

    async def _info(self, connection: ClientSession, frame: requests.Info) -> None:
        info = await self._broker.find(connection.vhost, frame.queue)
        await connection.run(
            frame.request, frame.queue, lambda: connection.info(frame.request, info)
        )
