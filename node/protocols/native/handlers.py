"""Requests of the native protocol, carried out: by the node's WebSockets, and under virtual time by
the simulator, which has no sockets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cluster.machine.commands import Discard, Extend, Return, SetCredit, Settle
from cluster.types import ConsumerKey
from node.access.permissions import Operation
from node.broker import settle_retry
from node.broker.broker import Broker
from node.clients.client_session import ClientSession
from node.errors import BrokerError
from node.protocols.native import requests
from node.protocols.native.requests import Request
from node.protocols.native.streams import Streams, is_stream

#: What is said of deliveries.
SettleFrame = (
    requests.Settle | requests.Return | requests.Discard | requests.Extend | requests.Credit
)

#: What a user must be allowed to do with the queue. INFO needs no more than the virtual host.
_OPERATIONS: dict[type, Operation] = {
    requests.Publish: "write",
    requests.PublishPart: "write",
    requests.Subscribe: "read",
    requests.Cancel: "read",
    requests.Credit: "read",
    requests.Settle: "read",
    requests.Return: "read",
    requests.Discard: "read",
    requests.Extend: "read",
    requests.Get: "read",
    requests.Read: "read",
    requests.PutCursor: "read",
    requests.DeleteCursor: "read",
    requests.Declare: "configure",
    requests.Delete: "configure",
    requests.Purge: "configure",
    requests.Pause: "configure",
}


class Handlers:
    """What to do for each kind of request."""

    def __init__(self, broker: Broker, streams: Streams) -> None:
        self._broker = broker
        self._streams = streams
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
            requests.Get: self._get,
            requests.Declare: self._declare,
            requests.Delete: self._delete,
            requests.Purge: self._purge,
            requests.Pause: self._pause,
            requests.Info: self._info,
            requests.Read: self._read,
            requests.PutCursor: self._put_cursor,
            requests.DeleteCursor: self._delete_cursor,
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
                access.check(operation, "queue", request.queue)  # type: ignore[union-attr]
                if type(request) is requests.Declare:
                    access.check_dead_letters(request.queue, request.arguments)
            await handler(connection, request)
        except BrokerError as error:
            connection.fail(request.request, request.queue, error)  # type: ignore[union-attr]

    # --- one a request ----------------------------------------------------------------------------

    async def _publish(self, connection: ClientSession, frame: requests.Publish) -> None:
        request, queue, publisher, seqno, bodies, meta, attrs, large = frame
        info = self._broker.locate(connection.vhost, queue)
        if info is None:
            info = await self._broker.find(connection.vhost, queue)
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
        await connection.run(
            frame.request,
            frame.queue,
            lambda: connection.subscribe(
                frame.request,
                info,
                frame.tag,
                credit=frame.credit,
                priority=frame.priority,
                exclusive=frame.exclusive,
                auto_settle=frame.auto_settle,
                timeout_ms=frame.timeout_ms,
                held=frame.held,
            ),
        )

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
                frame.request, info, frame.messages, auto_settle=frame.auto_settle
            ),
        )

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
