"""The client: one session with a cluster, however many connections that takes."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, cast
from urllib.parse import quote, urlencode

from quorate import wire
from quorate.batches import Confirmed, Meta, Published
from quorate.consumer import BatchConsumer, Consumer
from quorate.core import Core
from quorate.delivery import Chunk, Delivery, Range
from quorate.errors import OutcomeUnknown, Refused
from quorate.holdings import add_range
from quorate.places import nearest
from quorate.publisher import Publisher
from quorate.reader import Reader, Start
from quorate.transaction import Transaction, through
from quorate.worker import Handler, Retrying, Worker

#: Numbers of a frame are smaller: a node closes the connection of a client that sends another.
NUMBER_END = 1 << 63


class Client:
    """Made by `connect`. Every call waits for the cluster and has one of three outcomes:

    it returns (ok), raises `Refused` (surely did not happen; `Unreachable` when nobody could be
    asked), or raises `OutcomeUnknown` (the deadline passed after it was sent). `timeout` is in
    seconds, None means the client's own.
    """

    def __init__(
        self,
        addresses: str | Iterable[str],
        *,
        vhost: str = "/",
        session: str | None = None,
        resume_ms: int = wire.RESUME_MS_DEFAULT,
        timeout: float = wire.TIMEOUT_S_DEFAULT,
        name: str = "quorate-python",
        forward: bool = False,
        tls: ssl.SSLContext | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self._addresses = addresses.split(",") if isinstance(addresses, str) else list(addresses)
        self._vhost = vhost
        self._options: dict[str, Any] = {
            "vhost": vhost,
            "session": session,
            "resume_ms": resume_ms,
            "timeout_s": timeout,
            "name": name,
            "forward": forward,
            "tls": tls,
            "user": user,
            "password": password,
        }
        self._core_or_none: Core | None = None
        self._publishers: dict[str, Publisher] = {}

    async def __aenter__(self) -> Self:
        # Connections are made when first needed, so a cluster that is just starting is no error
        # yet.
        self._core_or_none = Core(self._addresses, **self._options)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the session: everything unsettled returns to its queue at once. Idempotent."""
        if self._core_or_none is not None:
            await self._core_or_none.close()

    @property
    def _core(self) -> Core:
        if self._core_or_none is None:
            raise RuntimeError("use it as `async with quorate.connect(...) as client`")
        return self._core_or_none

    @property
    def session(self) -> str:
        """The session's id, the same over all reconnects."""
        return self._core.session

    async def reach(self, timeout: float | None = None) -> None:
        """Wait until any node answers. Not needed before other calls. Raises Unreachable."""
        await self._core.reach(timeout)

    # --- publishing -------------------------------------------------------------------------------

    def publisher(
        self, queue: str, name: str | None = None, *, next_seqno: int | None = None
    ) -> Publisher:
        """A publisher with a name of its own, whose numbers the queue remembers over restarts of
        the program.

        A name must be used by one program at a time. `next_seqno`: the number of its next message;
        None asks the queue. Without a name, one is generated that lasts as long as the object.
        """
        return Publisher(self._core, queue, name, next_seqno)

    def _publisher(self, queue: str) -> Publisher:
        publisher = self._publishers.get(queue)
        if publisher is None:
            publisher = self._publishers[queue] = Publisher(self._core, queue, None, None)
        return publisher

    async def publish(
        self,
        queue: str,
        body: bytes,
        *,
        key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_id: str | None = None,
        timeout: float | None = None,
    ) -> Published:
        """One message; returns when a majority has it on disk. See `Publisher.publish`."""
        return await self._publisher(queue).publish(
            body,
            key=key,
            headers=headers,
            meta=meta,
            priority=priority,
            ttl_ms=ttl_ms,
            deliver_at_ms=deliver_at_ms,
            dedup_id=dedup_id,
            timeout=timeout,
        )

    async def publish_many(
        self,
        queue: str,
        bodies: Iterable[bytes],
        *,
        meta: Meta | Sequence[Meta | None] | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        dedup_ids: Sequence[str] | None = None,
        batch: int = wire.BATCH_COUNT_MAX,
        on_confirm: Callable[[int, float], None] | None = None,
        timeout: float | None = None,
    ) -> Confirmed:
        """Many messages, in order; returns when all are safe. See `Publisher.publish_many`."""
        return await self._publisher(queue).publish_many(
            bodies,
            meta=meta,
            priority=priority,
            ttl_ms=ttl_ms,
            deliver_at_ms=deliver_at_ms,
            dedup_ids=dedup_ids,
            batch=batch,
            on_confirm=on_confirm,
            timeout=timeout,
        )

    # --- consuming --------------------------------------------------------------------------------

    def consume(
        self,
        queue: str,
        *,
        credit: int = wire.CREDIT_DEFAULT,
        priority: int = 0,
        exclusive: bool = False,
        auto_settle: bool = False,
        tag: str | None = None,
        timeout_ms: int | None = None,
    ) -> Consumer:
        """Messages as they come: `async for delivery in client.consume("orders")`.

        credit: most unsettled deliveries it holds, 0 for no limit. priority: higher ones are served
        first. exclusive: no other consumer beside it. auto_settle: settled when delivered, so a
        message is lost if this program is. timeout_ms: how long it may hold one, instead of the
        queue's limit. It lasts until the client is closed; to end it before, use it as `async with
        client.consume(...) as consumer`.
        """
        return Consumer(
            self._core,
            queue,
            tag=tag,
            credit=credit,
            priority=priority,
            exclusive=exclusive,
            auto_settle=auto_settle,
            timeout_ms=timeout_ms,
        )

    def consume_batches(
        self,
        queue: str,
        *,
        count_max: int = BatchConsumer.count_max,
        credit: int = wire.CREDIT_DEFAULT,
        priority: int = 0,
        exclusive: bool = False,
        auto_settle: bool = False,
        tag: str | None = None,
        timeout_ms: int | None = None,
    ) -> BatchConsumer:
        """Like `consume`, in batches of up to about `count_max`: much less work a message."""
        consumer = BatchConsumer(
            self._core,
            queue,
            tag=tag,
            credit=credit,
            priority=priority,
            exclusive=exclusive,
            auto_settle=auto_settle,
            timeout_ms=timeout_ms,
        )
        consumer.count_max = count_max
        return consumer

    async def work(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 10,
        attempts: int = 5,
        retry_ms: int = 1_000,
        retry_ms_max: int = 60_000,
        lease_ms: int = 60_000,
        grace_s: float = 30.0,
        failures_max: int | None = None,
        stop: asyncio.Event | None = None,
    ) -> None:
        """Call `handler(delivery)` for each message, up to `concurrency` at a time, until `stop` is
        set or this is cancelled (as Ctrl-C does under `asyncio.run`).

        A message whose handler returns is settled. When it raises, the message comes again after
        `retry_ms`, twice that, and so on up to `retry_ms_max`; the last of `attempts`, or Reject,
        dead-letters it. Attempts are counted by the queue, so a restart begins none anew. While a
        handler is at work its message is held on to: `lease_ms` after this program dies it is given
        to another one. At the end handlers have `grace_s` to finish; what they do not finish is
        given back. A plain function is called in a thread. Handlers begin in the order of
        deliveries, and with a `concurrency` of 1 each ends before the next begins.

        When a handler raises CannotWork, or `failures_max` of them fail with no success in between,
        the worker gives back what it holds, cancels its consumer, and raises that, or an
        ExceptionGroup of what they raised. Else it raises what `consume` does.
        """
        await Worker(
            self.consume(queue, credit=concurrency, timeout_ms=lease_ms),
            handler,
            concurrency=concurrency,
            retrying=Retrying(attempts, retry_ms, retry_ms_max),
            lease_ms=lease_ms,
            grace_s=grace_s,
            stop=stop,
            failures_max=failures_max,
        ).run()

    async def get(
        self,
        queue: str,
        count: int = 1,
        *,
        auto_settle: bool = False,
        timeout: float | None = None,
    ) -> list[Delivery]:
        """Up to `count` messages that are ready now, without subscribing; an empty list when there
        are none. Of a queue that is split from one of its shards.
        """
        try:
            return await self._get(queue, count, auto_settle, timeout)
        except Refused as refused:
            if refused.code != wire.SPLIT_QUEUE:
                raise
            shards: list[str] = list(refused.detail)
        for shard in random.sample(shards, len(shards)):
            try:
                found = await self._get(shard, count, auto_settle, timeout)
            except Refused as refused:
                if refused.code != "no_queue":  # else it was joined meanwhile
                    raise
            else:
                if found:
                    return found
        return []

    async def _get(
        self, queue: str, count: int, auto_settle: bool, timeout: float | None
    ) -> list[Delivery]:
        _, frame = await self._core.ask_once(queue, wire.GET, count, auto_settle, timeout_s=timeout)
        return self._got(queue, frame, auto_settle=auto_settle)

    async def fetch(
        self,
        queue: str,
        positions: int | Iterable[int],
        *,
        auto_settle: bool = False,
        timeout: float | None = None,
    ) -> list[Delivery]:
        """These messages, whether they were deferred, are delayed or ready; those are left out that
        do not wait: they are gone, or a consumer has them. A single active consumer's queue refuses
        it (`single_active_consumer`): retime them to now there.
        """
        ranges = _ranges(positions)
        if not ranges:
            return []
        count = sum(last - first + 1 for first, last in ranges)
        _, frame = await self._core.ask_once(
            queue, wire.GET, count, auto_settle, ranges, timeout_s=timeout
        )
        return self._got(queue, frame, auto_settle=auto_settle)

    def _got(self, queue: str, frame: list[Any], *, auto_settle: bool) -> list[Delivery]:
        keeper = _GetKeeper(self._core, queue, auto_settle=auto_settle)
        return [
            Delivery(keeper, frame[3], chunk, offset)
            for chunk in map(Chunk, frame[5])
            for offset in range(len(chunk.bodies))
        ]

    # --- what waits -------------------------------------------------------------------------------

    async def withdraw(
        self, queue: str, positions: int | Iterable[int], *, timeout: float | None = None
    ) -> int:
        """Take messages out that wait, ready or delayed: all of these, or none. Returns how many.

        Raises Refused: `unknown_delivery` when one does not wait; `detail` is the first such.
        """
        ranges = _ranges(positions)
        if not ranges:
            return 0
        try:
            frame, _ = await self._core.ask(queue, wire.WITHDRAW, ranges, timeout_s=timeout)
        except Refused as refused:
            if refused.code == "unknown_delivery" and refused.again:
                raise OutcomeUnknown(
                    "an earlier attempt was not answered: it may have withdrawn them"
                ) from refused
            raise
        return int(frame[2] or 0)

    async def retime(
        self,
        queue: str,
        positions: int | Iterable[int],
        *,
        at_ms: int | None = None,
        in_ms: int | None = None,
        timeout: float | None = None,
    ) -> int:
        """Those of these messages that wait, ready or delayed, are ready at another time: `at_ms`
        since the epoch, or `in_ms` from now, 0 for at once. Returns how many waited.
        """
        given = [each for each in (at_ms, in_ms) if each is not None]
        if len(given) != 1:
            raise ValueError("give one of at_ms and in_ms")
        if not 0 <= given[0] < NUMBER_END:
            raise ValueError("a time is a number of milliseconds, 0 or more")
        ranges = _ranges(positions)
        if not ranges:
            return 0
        frame, _ = await self._core.ask(queue, wire.RETIME, ranges, at_ms, in_ms, timeout_s=timeout)
        return int(frame[2] or 0)

    # --- streams ----------------------------------------------------------------------------------

    def read(
        self,
        stream: str,
        *,
        start: Start = "next",
        cursor: str | None = None,
        count_max: int = wire.READ_COUNT_MAX,
    ) -> Reader:
        """Messages of a stream as they come: `async for message in client.read("orders")`.

        start: "first", "last", "next" (those to come), a sequence, or a datetime; the program keeps
        its place (`message.position`). cursor: the cluster keeps the place, under this name
        (`add_cursor`); what is not settled comes again. count_max: messages read ahead.
        """
        return Reader(self._core, stream, start=start, cursor=cursor, count_max=count_max)

    async def add_cursor(
        self,
        stream: str,
        cursor: str,
        settings: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
    ) -> bool:
        """Make sure that the stream has this cursor, with JetStream's settings of a consumer, such
        as `{"deliver_policy": "new", "filter_subject": "orders.*.paid", "ack_wait": "1m"}`; each
        message is to be settled unless `ack_policy` is `all` or `none`. Whether it is new.

        Raises Refused: `inequivalent_arguments` when it exists with others, `bad_argument`.
        """
        frame, _ = await self._core.ask(
            stream, wire.PUT_CURSOR, cursor, dict(settings or {}), timeout_s=timeout
        )
        return bool(frame[2]["created"])

    async def delete_cursor(
        self, stream: str, cursor: str, *, timeout: float | None = None
    ) -> None:
        """Its place is forgotten; the messages stay. Raises Refused: `no_cursor`."""
        try:
            await self._core.ask(stream, wire.DELETE_CURSOR, cursor, timeout_s=timeout)
        except Refused as refused:
            if refused.code != "no_cursor" or not refused.again:
                raise

    # --- exchanges and transactions ---------------------------------------------------------------

    async def declare_exchange(
        self,
        exchange: str,
        type: str = "direct",  # noqa: A002 -- its name everywhere else
        *,
        durable: bool = True,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> None:
        """Make sure that the exchange exists; type: direct, fanout, topic, headers and others of
        AMQP. Raises Refused: `inequivalent_arguments` when it exists as another one.
        """
        options = {
            "durable": durable,
            "auto_delete": auto_delete,
            "internal": internal,
            "arguments": dict(arguments or {}),
        }
        await self._core.ask_anyone(
            wire.DECLARE_EXCHANGE, exchange, type, options, timeout_s=timeout, again=True
        )

    async def delete_exchange(
        self, exchange: str, *, if_unused: bool = False, timeout: float | None = None
    ) -> None:
        """Delete it and its bindings. Raises Refused: `in_use`."""
        await self._core.ask_anyone(
            wire.DELETE_EXCHANGE, exchange, if_unused, timeout_s=timeout, again=True
        )

    async def bind(
        self,
        exchange: str,
        queue: str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        kind: Literal["queue", "exchange"] = "queue",
        timeout: float | None = None,
    ) -> None:
        """Messages to `exchange` with this key go to `queue`, too (kind="exchange": to an exchange
        of that name). Raises Refused: `no_queue`, `no_exchange`.
        """
        fields = exchange, kind, queue, key, dict(arguments or {})
        await self._core.ask_anyone(wire.BIND, *fields, timeout_s=timeout, again=True)

    async def unbind(
        self,
        exchange: str,
        queue: str,
        key: str = "",
        *,
        arguments: Mapping[str, Any] | None = None,
        kind: Literal["queue", "exchange"] = "queue",
        timeout: float | None = None,
    ) -> None:
        """No more of them go there."""
        fields = exchange, kind, queue, key, dict(arguments or {})
        await self._core.ask_anyone(wire.UNBIND, *fields, timeout_s=timeout, again=True)

    async def publish_to(
        self,
        exchange: str,
        body: bytes,
        *,
        key: str = "",
        headers: Mapping[str, Any] | None = None,
        meta: Meta | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        deliver_at_ms: int | None = None,
        timeout: float | None = None,
    ) -> bool:
        """One message through an exchange; returns when all its queues have it on a majority's
        disks. False: no queue is bound for it, and it was dropped.

        It has no number that a queue would know again: after OutcomeUnknown some queues may have
        it, and to publish it again may double it. With a header `x-once-id` it is stored once.
        """
        fields = through(
            exchange,
            body,
            key=key,
            headers=headers,
            meta=meta,
            priority=priority,
            ttl_ms=ttl_ms,
            deliver_at_ms=deliver_at_ms,
        )
        frame = await self._core.ask_anyone(wire.PUBLISH_TO, *fields, timeout_s=timeout)
        return bool(frame[2])

    def transaction(self, *, timeout: float | None = None) -> Transaction:
        """Publishes and answers to deliveries, in any queues: all of them happen, or none.

        `async with client.transaction() as together: ...` commits at its end, and nothing when the
        block raises. See `Transaction`.
        """
        return Transaction(self._core, timeout_s=timeout)

    # --- queues -----------------------------------------------------------------------------------

    async def declare(
        self,
        queue: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        type: Literal["stream"] | None = None,  # noqa: A002 -- its name everywhere else
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """Make sure that the queue exists, with RabbitMQ's `x-` arguments: `{"created", "leader",
        "group"}`. `type="stream"` makes a stream, with JetStream's settings for arguments, such as
        `{"subjects": ["orders.>"], "max_age": "24h"}`.

        Raises Refused: `inequivalent_arguments` when it exists with others, `bad_argument`.
        """
        given = dict(arguments or {})
        if type is not None:
            given["x-queue-type"] = type
        frame, _ = await self._core.ask(queue, wire.DECLARE, given, timeout_s=timeout)
        return cast("dict[str, Any]", frame[2] or {})

    async def delete(
        self,
        queue: str,
        *,
        if_unused: bool = False,
        if_empty: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Delete the queue and its messages. Raises Refused: `in_use`, `not_empty`, `no_queue`."""
        try:
            await self._core.ask(queue, wire.DELETE, if_unused, if_empty, timeout_s=timeout)
        except Refused as refused:
            if refused.code != "no_queue" or not refused.again:
                raise
        self._publishers.pop(queue, None)

    async def purge(self, queue: str, *, timeout: float | None = None) -> int:
        """Drop all messages that are ready or delayed; returns how many."""
        frame, _ = await self._core.ask(queue, wire.PURGE, timeout_s=timeout)
        return int(frame[2] or 0)

    async def pause(self, queue: str, paused: bool = True, *, timeout: float | None = None) -> None:
        """Stop its deliveries, or resume them. Publishing goes on."""
        await self._core.ask(queue, wire.PAUSE, paused, timeout_s=timeout)

    async def info(self, queue: str, *, timeout: float | None = None) -> dict[str, Any]:
        """What the queue's leader knows of it, behind a barrier: everything confirmed before is in
        it.
        """
        frame, _ = await self._core.ask(queue, wire.INFO, timeout_s=timeout)
        return cast("dict[str, Any]", frame[2])

    async def peek(
        self,
        queue: str,
        *,
        start: int = 1,
        count: int = 10,
        state: str | None = None,
        timeout: float | None = None,
    ) -> list[dict[str, Any]]:
        """Look at messages from position `start` on without taking them; `state`: ready, unsettled
        or delayed.
        """
        vhost, name = quote(self._vhost, safe=""), quote(queue, safe="")
        path = f"/v1/queues/{vhost}/{name}/peek?start={start}&count={count}"
        if state is not None:
            path += f"&state={quote(state)}"
        return _rows(await self._core.http_get(path, timeout_s=timeout))

    async def history(
        self,
        message: str | None = None,
        *,
        queue: str | None = None,
        position: int | None = None,
        publisher: str | None = None,
        seqno: int | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """What happened to one message, as far back as a node's log goes: by its id (`peek` shows
        it), or by `queue` and either `position` or `publisher` and `seqno`. May take long.

        Raises Refused: `no_message`, or `out_of_reach` when it would take too much.
        """
        if message is not None:
            path = f"/v1/messages/{quote(message, safe='')}/history"
        elif queue is None:
            raise ValueError("give the id of a message, or its queue")
        else:
            vhost, name = quote(self._vhost, safe=""), quote(queue, safe="")
            given = {"position": position, "publisher": publisher, "seqno": seqno}
            query = urlencode({key: value for key, value in given.items() if value is not None})
            path = f"/v1/queues/{vhost}/{name}/history?{query}"
        return cast("dict[str, Any]", await self._core.http_get(path, timeout_s=timeout))

    async def queues(self, *, timeout: float | None = None) -> list[dict[str, Any]]:
        """All queues that the answering node knows, of every virtual host."""
        return _rows(await self._core.http_get("/v1/queues", timeout_s=timeout))

    async def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Nodes, groups, leaders and lag, as the answering node sees them."""
        return cast("dict[str, Any]", await self._core.http_get("/v1/status", timeout_s=timeout))


class _GetKeeper:
    """Settles what `get` took: each answer is a round trip."""

    def __init__(self, core: Core, queue: str, *, auto_settle: bool) -> None:
        self.queue = queue
        self._core = core
        self._auto_settle = auto_settle

    def may_commit(self, key: int) -> None:
        """See `delivery.Keeper`."""
        if self._auto_settle:
            raise ValueError("with auto_settle, deliveries are settled already")

    def committed(self, ranges: list[Range], token: int) -> None:
        """See `delivery.Keeper`."""

    async def finish(
        self,
        opcode: int,
        key: int,
        ranges: list[Range],
        token: int,
        arguments: tuple[Any, ...],
        wait: bool,
    ) -> None:
        del wait
        if not self._auto_settle:
            rows = [list(pair) for pair in ranges]
            tokens = () if opcode == wire.EXTEND else (token,)
            await self._core.ask(self.queue, opcode, key, rows, *arguments, *tokens)


def _ranges(positions: int | Iterable[int]) -> list[list[int]]:
    """As frames want them: ascending, neighbours together."""
    ranges: list[list[int]] = []
    for position in sorted({positions} if isinstance(positions, int) else set(positions)):
        if not 0 < position < NUMBER_END:
            raise ValueError(f"{position} is no position of a message")
        add_range(ranges, position, position)
    return ranges


def _rows(answer: Any) -> list[dict[str, Any]]:
    """A list of maps, or the only list in a map."""
    if isinstance(answer, dict):
        for value in cast("dict[str, Any]", answer).values():
            if isinstance(value, list):
                return cast("list[dict[str, Any]]", value)
        return []
    return cast("list[dict[str, Any]]", answer)


def connect(
    addresses: str | Iterable[str] | None = None,
    *,
    vhost: str = "/",
    session: str | None = None,
    resume_ms: int = wire.RESUME_MS_DEFAULT,
    timeout: float = wire.TIMEOUT_S_DEFAULT,
    name: str = "quorate-python",
    forward: bool = False,
    tls: ssl.SSLContext | None = None,
    user: str | None = None,
    password: str | None = None,
) -> Client:
    """`async with quorate.connect("127.0.0.1:8081,127.0.0.1:8082") as client: ...`

    addresses: any nodes, as host:port or URLs, a list or separated by commas; the others are
    learned. Without: those of QUORATE_URL, or of the cluster that `quorate up` started here or in a
    folder above; PlaceError where there is none. resume_ms: how long unsettled messages wait for
    this client when it loses its connection. forward: talk to the given nodes only and let them
    pass everything on, for networks where the nodes' own addresses cannot be reached. user,
    password: or in the addresses, as `http://user:password@host:port`, percent-encoded; on a node's
    own machine it goes without.
    """
    return Client(
        nearest() if addresses is None else addresses,
        vhost=vhost,
        session=session,
        resume_ms=resume_ms,
        timeout=timeout,
        name=name,
        forward=forward,
        tls=tls,
        user=user,
        password=password,
    )
