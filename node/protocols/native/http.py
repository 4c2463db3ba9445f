"""One-off calls over plain HTTP: publish, receive, settle, look. JSON, or CBOR when asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast, get_args

from aiohttp import web

from cluster.machine import replies as codes
from cluster.machine.arguments import SPAN_MS_MAX
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    Discard,
    Extend,
    Return,
    Settle,
)
from cluster.machine.interface import RowState
from cluster.machine.replies import Ok
from cluster.machine.runs import joined
from cluster.types import ConsumerKey, GroupId, LargeBody, NodeId, QueueId, SessionId
from node.access.auth import Auth, User
from node.access.permissions import Operation
from node.broker.arrivals import Arrivals
from node.broker.broker import Broker, check_shared
from node.broker.moving import Moving
from node.broker.settle_retry import SettleCommand
from node.clients.sessions import Sessions
from node.dispatch.outgoing import MessageBatch
from node.errors import BrokerError, Elsewhere, Refused, reply_of
from node.messages.message import as_map
from node.messages.plain_values import loads
from node.metrics.client_counters import ClientCounters, Counts
from node.peer_rpc import PeerRpc
from node.protocols.basic_auth import BasicAuth
from node.protocols.native.frames import bodies_of, ranges_of, unpack
from node.protocols.native.http_answers import CBOR, answer, failure
from node.protocols.native.requests import BadField, MalformedFrame
from node.protocols.native.urls import url_of

LEASE_MS_DEFAULT = 30_000
LEASE_MS_MAX = 3_600_000
#: How long a receive may wait for a message.
WAIT_MS_MAX = 60_000
#: What is ready may not be for everybody, as when its key is held: looked at again after this long.
AGAIN_S_MIN = 0.05
AGAIN_S_MAX = 1.0

_ATTR_HEADERS = {
    "X-Quorate-Priority": ATTR_PRIORITY,
    "X-Quorate-TTL-Ms": ATTR_TTL_MS,
    "X-Quorate-Deliver-At-Ms": ATTR_DELIVER_AT_MS,
    "X-Quorate-Dedup-Id": ATTR_DEDUP_ID,
}
_META_HEADERS = {
    "X-Quorate-Key": "key",
    "X-Quorate-Message-Id": "message_id",
    "X-Quorate-Correlation-Id": "correlation_id",
    "X-Quorate-Reply-To": "reply_to",
    "Content-Type": "content_type",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Taken(NamedTuple):
    """What a get took."""

    about: dict[str, Any]  # is answered
    info: QueueInfo  # where it is to be settled
    session: SessionId  # holds it
    lender: NodeId  # of the session


class HttpRoutes:
    """The routes under /v1, but for the WebSocket."""

    def __init__(
        self,
        broker: Broker,
        sessions: Sessions,
        counts: Counts,
        auth: Auth,
        counters: ClientCounters,
        peer_rpc: PeerRpc,
        moving: Moving,
    ) -> None:
        self._moving = moving
        self._counted = counters.http
        self._auth = auth
        self._basic = BasicAuth(auth, "native")
        self._broker = broker
        self._counts = counts
        self._sessions = sessions
        self._arrivals = Arrivals(broker.cluster)
        self._peer_rpc = peer_rpc
        peer_rpc.on("lease", lambda _, fields: self._lease(*fields))
        peer_rpc.on("lease_over", lambda _, fields: self._lease_over(*fields))

    def add_to(self, app: web.Application) -> None:
        queue = "/v1/queues/{vhost}/{name}"
        router = app.router
        router.add_get("/v1/status", self.guarded(self._status))
        router.add_get("/v1/queues", self.guarded(self._queues))
        router.add_get(queue, self.guarded(self._queue))
        router.add_put(queue, self.guarded(self._declare, "configure"))
        router.add_delete(queue, self.guarded(self._delete, "configure"))
        router.add_post(f"{queue}/messages", self.guarded(self._publish, "write"))
        router.add_post(f"{queue}/get", self.guarded(self._get, "read"))
        router.add_post(f"{queue}/settle", self.guarded(self._settle, "read"))
        router.add_get(f"{queue}/peek", self.guarded(self._peek, "read"))
        router.add_post(f"{queue}/purge", self.guarded(self._purge, "configure"))
        router.add_post(f"{queue}/pause", self.guarded(self._pause, "configure"))

    def guarded(self, handler: Handler, operation: Operation | None = None) -> Handler:
        """For users who are known, may use the virtual host, and may do this to the queue."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            try:
                user = await self._basic.user(request)
                where = request.match_info
                if "vhost" in where:
                    access = await self._auth.admit(user, where["vhost"])
                    if operation is not None:
                        self._broker.check_queue(access, operation, where["name"])
                return await handler(request)
            except BrokerError as error:
                return self._failure(request, error)
            except BadField as error:
                return self._failure(request, Refused(codes.BAD_ARGUMENT, error.reason))

        return guarded

    async def user(self, request: web.Request) -> User:
        """Who asks; `guarded` has let it in."""
        return await self._basic.user(request)

    def _failure(self, request: web.Request, error: BrokerError) -> web.Response:
        if isinstance(error, Elsewhere) and error.leader is not None:
            cluster = self._broker.cluster
            url = url_of(cluster, error.leader, secure=request.secure)
            if url is not None and error.leader != cluster.node:
                return failure(request, error, location=f"{url}{request.rel_url}")
            error = Elsewhere(None)
        return failure(request, error)

    async def _find(self, request: web.Request) -> QueueInfo:
        return await self._broker.find(request.match_info["vhost"], request.match_info["name"])

    async def _led(self, request: web.Request) -> QueueInfo:
        info = await self._find(request)
        self._broker.led(info.group)
        return info

    async def _shared(self, request: web.Request) -> QueueInfo:
        """To be changed or emptied: not a queue that belongs to a connection."""
        info = await self._led(request)
        check_shared(info)
        return info

    # --- looking ----------------------------------------------------------------------------------

    async def _status(self, request: web.Request) -> web.Response:
        return answer(request, self._broker.cluster.status(digests="digests" in request.query))

    async def _queues(self, request: web.Request) -> web.Response:
        user = await self._basic.user(request)
        found = [
            self._broker.describe(info)
            for info in self._broker.cluster.queues()
            if self._auth.may_enter(user, info.vhost)
        ]
        return answer(request, {"queues": found})

    async def _queue(self, request: web.Request) -> web.Response:
        return answer(request, await self._broker.info(await self._led(request)))

    async def _peek(self, request: web.Request) -> web.Response:
        info = await self._find(request)
        check_shared(info)
        is_split = len(self._broker.parts(info)) > 1
        if not is_split:
            self._broker.led(info.group)
        start = _number(request.query.get("start", "1"), "start", 0, 2**63 - 1)
        count = _number(request.query.get("count", "10"), "count", 1, 1_000)
        state = request.query.get("state") or None
        if state not in {None, *get_args(RowState)}:
            raise Refused(codes.BAD_ARGUMENT, "state is ready, unsettled or delayed")
        if is_split:
            found = await self._moving.peek_at_all(info, start=start, count=count, state=state)
            rows = [{**row, "meta": as_map(row["meta"])} for row in found]
        else:
            rows = await self._broker.peek(
                info, start=start, count=count, state=cast("RowState | None", state)
            )
        return answer(request, {"messages": rows})

    # --- queues -----------------------------------------------------------------------------------

    async def _declare(self, request: web.Request) -> web.Response:
        arguments = (await _body(request)).get("arguments", {})
        if not isinstance(arguments, dict):
            raise Refused(codes.BAD_ARGUMENT, "arguments is a map")
        access = self._auth.access(await self._basic.user(request), request.match_info["vhost"])
        access.check_dead_letters(request.match_info["name"], cast("dict[str, Any]", arguments))
        declared = await self._broker.declare(
            request.match_info["vhost"],
            request.match_info["name"],
            cast("dict[str, Any]", arguments),
        )
        return answer(request, declared, status=201 if declared["created"] else 200)

    async def _delete(self, request: web.Request) -> web.Response:
        check_shared(await self._find(request))
        await self._broker.delete(
            request.match_info["vhost"],
            request.match_info["name"],
            if_unused=_flag(request, "if_unused"),
            if_empty=_flag(request, "if_empty"),
        )
        return answer(request, {"outcome": "ok"})

    async def _purge(self, request: web.Request) -> web.Response:
        count = await self._broker.purge(await self._shared(request))
        return answer(request, {"outcome": "ok", "count": count})

    async def _pause(self, request: web.Request) -> web.Response:
        info = await self._shared(request)
        paused = (await _body(request)).get("paused", True)
        if type(paused) is not bool:
            raise Refused(codes.BAD_ARGUMENT, "paused is true or false")
        await self._broker.pause(info, paused=paused)
        return answer(request, {"outcome": "ok", "paused": paused})

    # --- messages ---------------------------------------------------------------------------------

    async def _publish(self, request: web.Request) -> web.Response:
        info = await self._find(request)
        if not self._broker.ingress.router.is_split(info):
            self._broker.led(info.group)
        room = self._broker.ingress.room
        await room.free()  # until then it is not read
        data = await _read(request)
        async with room.of(len(data)):
            return await self._publish_now(request, info, data)

    async def _publish_now(
        self, request: web.Request, info: QueueInfo, data: bytes
    ) -> web.Response:
        if request.content_type == CBOR:
            fields = _fields(request, data)
            access = self._auth.access(await self._basic.user(request), info.vhost)
            parts = await self._broker.spread(
                access,
                info,
                _text_or_none(fields.get("publisher"), "publisher"),
                _number(fields.get("seqno", 0), "seqno", 0, 2**63 - 1),
                bodies_of(fields.get("bodies"), "bodies"),
                fields.get("meta"),
                fields.get("attrs"),
            )
        else:
            meta = {
                key: request.headers[header]
                for header, key in _META_HEADERS.items()
                if header in request.headers
            }
            parts = await self._broker.spread(
                None,  # nothing in it is anybody's name
                info,
                request.headers.get("X-Quorate-Publisher"),
                _number(request.headers.get("X-Quorate-Seqno", "0"), "seqno", 0, 2**63 - 1),
                [data],
                meta or None,
                _attrs(request),
            )
        bodies = [body for part in parts for body in part.command.bodies]
        self._counts.published += len(bodies)
        self._counted.published(bodies, routed=len(bodies), confirm=True)
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        reply = await self._broker.store(parts)
        self._counts.stored("http", reply, loop.time() - since_s)
        self._counted.confirmed += reply.stored + reply.duplicates
        if reply.refused and not reply.stored and not reply.duplicates:
            raise Refused(codes.QUEUE_FULL, "the queue is at its limit: try again later")
        return answer(
            request,
            {
                "outcome": "ok",
                "first": reply.first,
                "stored": reply.stored,
                "duplicates": reply.duplicates,
                "refused": [list(pair) for pair in reply.refused],
            },
        )

    async def _get(self, request: web.Request) -> web.Response:
        info = await self._shared(request)
        fields = await _body(request)
        auto_settle = fields.get("auto_settle", False)
        if type(auto_settle) is not bool:
            raise Refused(codes.BAD_ARGUMENT, "auto_settle is true or false")
        lease_ms = _number(fields.get("lease_ms", LEASE_MS_DEFAULT), "lease_ms", 1, LEASE_MS_MAX)
        count = _number(fields.get("count", 1), "count", 1, 2**31)
        positions = ranges_of(fields["positions"], "positions") if "positions" in fields else ()
        wait_ms = _number(fields.get("wait_ms", 0), "wait_ms", 0, WAIT_MS_MAX)
        if wait_ms and positions:
            raise Refused(codes.BAD_ARGUMENT, "wait_ms is for the next messages, not positions")
        self._broker.check_count(count)
        until_s = asyncio.get_running_loop().time() + wait_ms / 1000
        again_s = AGAIN_S_MIN
        while True:
            if positions:
                taken = await self._take(info, count, auto_settle, positions, lease_ms)
            else:
                taken = await self._take_from_all(info, count, auto_settle, lease_ms)
            about = taken.about
            left_s = until_s - asyncio.get_running_loop().time()
            if about["messages"] or left_s <= 0 or _is_gone(request):
                break
            again_s = min(AGAIN_S_MAX, again_s * 2)
            if about["ready"]:
                await asyncio.sleep(min(left_s, again_s))
            else:
                if self._broker.parts(info)[1:]:  # what comes to other nodes is not told here
                    left_s = min(left_s, again_s)
                group = self._broker.led(info.group)
                await self._arrivals.wait(group, info.queue, left_s)
            if _is_gone(request):
                break
        if _is_gone(request):  # nobody is there to settle them
            group, session = taken.info.group, taken.session
            self._peer_rpc.notify(taken.lender, "lease_over", group, session)
        return answer(request, about)

    async def _take_from_all(
        self, info: QueueInfo, count: int, auto_settle: bool, lease_ms: int
    ) -> _Taken:
        """Of a split queue what is in itself, which waited longest, or else in the fullest of its
        shards, whose leader lends it.
        """
        shards = self._broker.parts(info)[1:]
        waiting = await asyncio.gather(*map(self._ready, shards))
        taken = await self._take(info, count, auto_settle, (), lease_ms)
        taken.about["ready"] += sum(waiting)
        if taken.about["messages"]:
            return taken
        filled = [each for each in zip(waiting, shards, strict=True) if each[0]]
        failed: BrokerError | None = None
        for ready, shard in sorted(filled, key=lambda each: -each[0]):
            try:
                lender = self._leader(shard)
                about, session = await self._peer_rpc.request(
                    lender, "lease", shard.queue, count, auto_settle, lease_ms
                )
            except BrokerError as error:
                failed = failed or error
                continue
            about["ready"] += sum(waiting) - ready
            if about["messages"]:
                return _Taken(about, shard, SessionId(session), lender)
        if failed is not None:
            raise failed
        return taken

    def _leader(self, info: QueueInfo) -> NodeId:
        leader = self._broker.leader(info)
        if leader is None:
            raise Elsewhere(None)
        return leader

    async def _ready(self, info: QueueInfo) -> int:
        """None that anybody could be given, if nobody can say."""
        try:
            where = info.vhost, info.name
            about = await self._peer_rpc.request(self._leader(info), "queue_info", *where)
        except BrokerError:
            return 0
        return about.get("ready", 0)

    async def _lease(
        self, queue: int, count: int, auto_settle: bool, lease_ms: int
    ) -> tuple[dict[str, Any], str]:
        """For another node. The lease is this one's, who leads the queue: it settles and extends
        what was taken.
        """
        info = self._broker.cluster.catalog_machine.queue_by_id(QueueId(queue))
        if info is None:
            raise Refused(codes.NO_QUEUE, f"there is no queue {queue}")
        self._broker.led(info.group)
        taken = await self._take(info, count, auto_settle, (), lease_ms)
        return taken.about, taken.session

    async def _lease_over(self, group: int, session: str) -> None:
        self._sessions.take_back(GroupId(group), SessionId(session))

    async def _take(
        self,
        info: QueueInfo,
        count: int,
        auto_settle: bool,
        positions: Sequence[tuple[int, int]],
        lease_ms: int,
    ) -> _Taken:
        session = await self._sessions.lend(info.group, lease_ms)
        try:
            key, ready, batches = await self._broker.get(
                info, session, count=count, auto_settle=auto_settle, positions=positions
            )
            large = [batch for batch in batches if isinstance(batch.bodies[0], LargeBody)]
            if large:
                unseen = _given_back(info, key, large)
                self._broker.settle_retry.settle(info.group, unseen, by_client=False)
                batches = [b for b in batches if not isinstance(b.bodies[0], LargeBody)]
                ready += len(large)
            if large and not batches:
                raise Refused(
                    "message_too_large",
                    f"the message at position {large[0].first} has {len(large[0].bodies[0])} bytes:"
                    " bodies in parts are consumed by WebSocket or AMQP",
                )
        except BrokerError:
            self._sessions.take_back(info.group, session)
            raise
        if not batches:
            self._sessions.take_back(info.group, session)
        self._counted.of(info).got(batches, auto=auto_settle)
        self._counts.delivered += sum(len(batch.bodies) for batch in batches)
        self._counts.redelivered += sum(len(b.bodies) for b in batches if b.acquired_count)
        messages = [message for batch in batches for message in _messages(batch)]
        about = {
            "queue": info.name,
            "consumer": key,
            "ready": ready,
            "lease_ms": lease_ms,
            "messages": messages,
        }
        return _Taken(about, info, session, self._broker.cluster.node)

    async def _settle(self, request: web.Request) -> web.Response:
        info = await self._shared(request)
        fields = await _body(request)
        consumer = ConsumerKey(_number(fields.get("consumer"), "consumer", 0, 2**63 - 1))
        ranges = ranges_of(fields.get("ranges"), "ranges")
        token = None
        if fields.get("token") is not None:
            token = _number(fields["token"], "token", 0, 2**63 - 1)
        command: SettleCommand
        match fields.get("outcome", "settle"):
            case "settle":
                command = Settle(info.queue, consumer, ranges, token)
            case "return":
                delay_ms = fields.get("delay_ms")
                if delay_ms is not None:
                    delay_ms = _number(delay_ms, "delay_ms", 0, SPAN_MS_MAX)
                command = Return(info.queue, consumer, ranges, False, delay_ms, token)
            case "discard":
                command = Discard(info.queue, consumer, ranges, token)
            case "extend":
                lease_ms = _number(
                    fields.get("lease_ms", LEASE_MS_DEFAULT), "lease_ms", 1, LEASE_MS_MAX
                )
                self._sessions.extend_lease(info.group, self._holder(info, consumer), lease_ms)
                command = Extend(info.queue, consumer, ranges, lease_ms)
            case _:
                raise Refused(codes.BAD_ARGUMENT, "outcome is settle, return, discard or extend")
        served = self._counted.of(info)
        settle_retry = self._broker.settle_retry
        outcome = await settle_retry.ask(info.group, command, redirected=True, served=served)
        reply = reply_of(outcome)
        count = reply.count if isinstance(reply, Ok) else 0
        return answer(request, {"outcome": "ok", "count": count})

    def _holder(self, info: QueueInfo, consumer: ConsumerKey) -> SessionId:
        """Who has this consumer, for which messages were leased."""
        queue = self._broker.machine(info.group).queue(info.queue)
        for view in queue.consumers if queue is not None else ():
            if view.key == consumer:
                return view.session
        name = info.name
        raise Refused(
            codes.NO_CONSUMER, f"queue {name} has no consumer {consumer}: its lease is over"
        )


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


# --- reading --------------------------------------------------------------------------------------


async def _read(request: web.Request) -> bytes:
    size_bytes, size_bytes_max = request.content_length or 0, request.client_max_size
    try:
        if size_bytes > size_bytes_max:
            raise web.HTTPRequestEntityTooLarge(size_bytes_max, size_bytes)
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise Refused("message_too_large", f"the body is too large: {error.text}") from error


async def _body(request: web.Request) -> dict[str, Any]:
    return _fields(request, await _read(request))


def _fields(request: web.Request, data: bytes) -> dict[str, Any]:
    """The map that a request brings, in JSON or CBOR; an empty one when it brings nothing."""
    if not data:
        return {}
    try:
        value = unpack(data) if request.content_type == CBOR else loads(data)
    except (MalformedFrame, ValueError) as error:
        raise Refused(codes.BAD_ARGUMENT, f"the body cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise Refused(codes.BAD_ARGUMENT, "the body is a map")
    return cast("dict[str, Any]", value)


def _number(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise Refused(codes.BAD_ARGUMENT, f"{name} is a number from {low} to {high}")
    return value


def _text_or_none(value: Any, name: str) -> str | None:
    if value is not None and type(value) is not str:
        raise Refused(codes.BAD_ARGUMENT, f"{name} is text")
    return value


def _flag(request: web.Request, name: str) -> bool:
    value = request.query.get(name, "false")
    if value not in {"true", "false"}:
        raise Refused(codes.BAD_ARGUMENT, f"{name} is true or false")
    return value == "true"


def _attrs(request: web.Request) -> dict[int, Any] | None:
    attrs: dict[int, Any] = {}
    for header, key in _ATTR_HEADERS.items():
        if header in request.headers:
            value = request.headers[header]
            attrs[key] = value if key == ATTR_DEDUP_ID else _number(value, header, 0, 2**53)
    return attrs or None


# --- answering ------------------------------------------------------------------------------------


def _given_back(info: QueueInfo, key: ConsumerKey, batches: Sequence[MessageBatch]) -> Return:
    """Others of the same answer may be settled already, so they are shown."""
    ranges = joined(sorted([(b.first, b.first + len(b.bodies) - 1) for b in batches]))
    token = max([batch.token for batch in batches])
    return Return(info.queue, key, ranges, token=token, unsent=True)


def _messages(batch: MessageBatch) -> list[dict[str, Any]]:
    shared = as_map(batch.meta)
    each = cast("list[Any]", shared) if type(shared) is list else None
    return [
        {
            "position": batch.first + offset,
            "token": batch.token,
            "delivery_count": batch.delivery_count,
            "redelivered": batch.acquired_count > 0,
            "body": body,
            "meta": shared if each is None else each[offset],
            "deaths": batch.deaths,
        }
        for offset, body in enumerate(batch.bodies)
    ]
