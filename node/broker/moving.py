"""Messages that wait are looked for, moved to other queues, copied and delayed otherwise.

All of it is done at the leader of their queue, by positions: these never change, so every request
may be repeated. A move is one transaction, a `Withdraw` and an `Enqueue` a target: whatever
crashes, a message is in one of both queues. A copy is numbered by positions, under the name of its
operation, as dead letters are by their numbers: what comes again is not stored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from cluster.codec.cbor import pack
from cluster.groups.group_like import GroupLike
from cluster.machine import replies as codes
from cluster.machine.admission import COPY_PREFIX
from cluster.machine.arguments import GROUP_KEY
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import (
    ATTR_DEATHS,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    ROUTING_KEY,
    Enqueue,
    Extend,
    Ranges,
    Step,
    Withdraw,
)
from cluster.machine.interface import Row, RowState
from cluster.machine.replies import Enqueued
from cluster.machine.runs import ranges_of
from cluster.types import ConsumerKey, GroupId, LargeBody, MessageId, QueueId
from node.broker.bodies import head_of, may_be_whole, whole
from node.broker.broker import PEEK_COUNT_MAX, Broker, message_id
from node.broker.transactions import TransactionCoordinator
from node.errors import Elsewhere, Refused, error_of
from node.messages.group_keys import with_group_keys
from node.messages.message import as_map, headers_of, key_of_dead, routing_key_of
from node.peer_rpc import PeerRpc
from node.routing.shards import whole_of

#: Messages that one request names, and that one looks at to find as many.
NAMED_MAX = 1_000
LOOKED_AT_MAX = 5_000
#: Of one transaction; a message that is larger goes alone.
BYTES_AT_ONCE = 1 << 20
COUNT_AT_ONCE = 256
#: A consumer may take what is about to be moved: then it is tried again, so often.
TRIES_MAX = 20
DECIDE_S_MAX = 15.0
ANSWER_S_MAX = 45.0

#: What messages may be told apart by, besides `header.NAME`.
FILTERS = ("key", "exchange", "state", "reason", "priority", "older-than-ms", "younger-than-ms")
_HEADER = "header."


class Moved(NamedTuple):
    """What became of the messages that a request named."""

    done: int
    gone: int  # do not wait there: a consumer has them, or they were moved before
    skipped: int  # too large for it, or it is not known where they come from
    full: str = ""  # the target that has no room for the next one; what is left was not tried


class Waiting(NamedTuple):
    """A message that waits, with what it was published with."""

    row: Row
    body: bytes
    meta: Any


class Delayed(NamedTuple):
    position: int
    message: str  # its id; empty: of a transient queue
    due_ms: int
    enqueued_ms: int
    size_bytes: int
    body: bytes  # how a large one begins
    meta: Any


class Moving:
    """One per node."""

    def __init__(
        self, broker: Broker, transactions: TransactionCoordinator, peer_rpc: PeerRpc
    ) -> None:
        self._broker = broker
        self._transactions = transactions
        self._peer_rpc = peer_rpc
        peer_rpc.on("waiting_select", lambda _, fields: self._select(*fields))
        peer_rpc.on("waiting_peek", lambda _, fields: self._peek(*fields))
        peer_rpc.on("waiting_move", lambda _, fields: self._move(*fields))
        peer_rpc.on("waiting_copy", lambda _, fields: self._copy(*fields))
        peer_rpc.on("waiting_find", lambda _, fields: self._find(*fields))
        peer_rpc.on("waiting_delayed", lambda _, fields: self._delayed(*fields))
        peer_rpc.on("held_extend", lambda _, fields: self._extend(*fields))

    # --- asked for at any node --------------------------------------------------------------------

    async def select(
        self, info: QueueInfo, where: Mapping[str, Any], *, start: int, count: int
    ) -> dict[str, Any]:
        """Positions of messages from `start` on for which all of `where` is true."""
        check_filter(where)
        if not 1 <= count <= NAMED_MAX:
            raise Refused(codes.BAD_ARGUMENT, f"count must be from 1 to {NAMED_MAX}")
        return await self._ask(info, "waiting_select", dict(where), start, count)

    async def peek(
        self, info: QueueInfo, *, start: int, count: int, state: str | None
    ) -> list[dict[str, Any]]:
        """As `Broker.peek`, with `meta` as it is stored."""
        return await self._ask(info, "waiting_peek", start, count, state)

    async def peek_at_all(
        self, info: QueueInfo, *, start: int, count: int, state: str | None
    ) -> list[dict[str, Any]]:
        """Of a split queue those that came first, in whichever of its shards, which is their
        `queue`. Positions count in each: what begins behind the first one is of the queue itself.
        """
        found: list[dict[str, Any]] = []
        for each in self._broker.parts(info) if start <= 1 else (info,):
            rows = await self.peek(each, start=start, count=count, state=state)
            found += [{**row, "queue": each.name} for row in rows]
            found = sorted(found, key=lambda row: row["enqueued_ms"])[:count]
        return found

    async def move(self, info: QueueInfo, positions: Ranges, to: QueueInfo | None) -> Moved:
        """To that queue; None: dead letters go back to the queues in which they died."""
        _check_named(positions)
        named = [list(each) for each in positions]
        target = None if to is None else to.queue
        return Moved(*await self._ask(info, "waiting_move", named, target))

    async def spread(self, info: QueueInfo, positions: Ranges) -> Moved:
        """Over the shards of a split queue, each to where it would be published to now."""
        _check_named(positions)
        named = [list(each) for each in positions]
        return Moved(*await self._ask(info, "waiting_move", named, info.queue))

    async def copy(
        self, info: QueueInfo, positions: Ranges, to: QueueInfo, operation: str
    ) -> Moved:
        """`operation`: positions ascend in what comes under one name."""
        _check_named(positions)
        named = [list(each) for each in positions]
        return Moved(*await self._ask(info, "waiting_copy", named, to.queue, operation))

    async def find(self, info: QueueInfo, message: MessageId) -> int | None:
        """The position of a message that waits; None: there is none."""
        return await self._ask(info, "waiting_find", message.entry, message.offset)

    async def delayed(self, info: QueueInfo, *, start: int, count: int) -> list[Delayed]:
        """Delayed messages from position `start` on."""
        if not 1 <= count <= PEEK_COUNT_MAX:
            raise Refused(codes.BAD_ARGUMENT, f"count must be from 1 to {PEEK_COUNT_MAX}")
        return [Delayed(*row) for row in await self._ask(info, "waiting_delayed", start, count)]

    async def withdraw(self, info: QueueInfo, positions: Ranges) -> None:
        """All of these leave the queue. Refused: one of them does not wait, and none leaves."""
        await self._broker.ask(info.group, Withdraw(info.queue, positions))

    async def extend(self, info: QueueInfo, timeout_ms: int) -> int:
        """How many messages are in the hands of consumers, each of which has so long from now to
        settle them.
        """
        return await self._ask(info, "held_extend", timeout_ms)

    async def _ask(self, info: QueueInfo, kind: str, *fields: Any) -> Any:
        leader = self._broker.leader(info)
        if leader is None:
            raise Elsewhere(None)
        return await self._peer_rpc.request(leader, kind, info.queue, *fields, wait_s=ANSWER_S_MAX)

    # --- at the leader ----------------------------------------------------------------------------

    def _led(self, queue: int) -> tuple[QueueInfo, GroupLike]:
        info = self._broker.cluster.catalog_machine.queue_by_id(QueueId(queue))
        if info is None:
            raise Refused(codes.NO_QUEUE, f"there is no queue {queue}")
        group = self._broker.led(info.group)
        if not group.ready:
            raise Elsewhere(None)
        return info, group

    def _waiting(self, info: QueueInfo, positions: Sequence[int]) -> list[Row]:
        """Of these ascending positions, those that wait."""
        machine = self._broker.machine(info.group)
        return [
            row
            for first, last in ranges_of(positions)
            for row in machine.browse(info.queue, first, last - first + 1)
            if row.position <= last and row.state != "unsettled"
        ]

    async def _select(
        self, queue: int, where: dict[str, Any], start: int, count: int
    ) -> dict[str, Any]:
        info, group = self._led(queue)
        now_ms = self._broker.machine(info.group).now_ms
        found: list[int] = []
        size = looked_at = 0
        after: int | None = None
        reads = any(name in ("key", "exchange") or name.startswith(_HEADER) for name in where)
        while len(found) < count and looked_at < LOOKED_AT_MAX:
            rows = self._broker.machine(info.group).browse(info.queue, start, COUNT_AT_ONCE)
            if not rows:
                after = None
                break
            for row in rows:
                looked_at += 1
                start = after = row.position + 1
                if row.state == "unsettled" or not _fits(row, where, now_ms):
                    continue
                if reads:
                    read = await group.load_bodies(row.chunk.bodies)
                    if not read or not _meta_fits(as_map(read[0][1]), where):
                        continue
                found.append(row.position)
                size += row.bytes
                if len(found) == count:
                    break
        positions = ranges_of(sorted(found))
        return {
            "positions": [list(each) for each in positions],
            "count": len(found),
            "bytes": size,
            "next": after,
        }

    async def _peek(
        self, queue: int, start: int, count: int, state: RowState | None
    ) -> list[dict[str, Any]]:
        info, _ = self._led(queue)
        return await self._broker.peek(info, start=start, count=count, state=state, plain=False)

    async def _delayed(self, queue: int, start: int, count: int) -> list[Delayed]:
        info, group = self._led(queue)
        found: list[Delayed] = []
        size = 0
        for row in self._broker.machine(info.group).browse(info.queue, start, count, "delayed"):
            read = await group.load_bodies(row.chunk.bodies)
            if not read:
                continue
            if found and size + row.bytes > BYTES_AT_ONCE:
                break
            body, meta = read[0]
            size += row.bytes
            named = message_id(info.group, row.chunk.bodies) or ""
            times = row.due_ms or 0, row.enqueued_ms
            found.append(Delayed(row.position, named, *times, row.bytes, head_of(body), meta))
        return found

    async def _extend(self, queue: int, timeout_ms: int) -> int:
        info, _ = self._led(queue)
        start, done = 1, 0
        while rows := self._broker.machine(info.group).browse(
            info.queue, start, COUNT_AT_ONCE, "unsettled"
        ):
            start = rows[-1].position + 1
            by_consumer: dict[ConsumerKey, list[int]] = {}
            for row in rows:
                if row.consumer is not None:
                    by_consumer.setdefault(row.consumer, []).append(row.position)
            for consumer, places in by_consumer.items():
                done += await self._extend_some(info, consumer, places, timeout_ms)
        return done

    async def _extend_some(
        self, info: QueueInfo, consumer: ConsumerKey, positions: list[int], timeout_ms: int
    ) -> int:
        """A command does all or none: what is settled meanwhile is left out of the next one."""
        left: list[int] = sorted(positions)
        while left:
            command = Extend(info.queue, consumer, ranges_of(left), timeout_ms)
            try:
                await self._broker.ask(info.group, command)
            except Refused as refused:
                if refused.code == codes.NO_CONSUMER:
                    return 0
                if refused.code != codes.UNKNOWN_DELIVERY:
                    raise
                left = [each for each in left if each != refused.detail]
            else:
                return len(left)
        return 0

    async def _find(self, queue: int, index: int, offset: int) -> int | None:
        info, _ = self._led(queue)
        start = 1
        while rows := self._broker.machine(info.group).browse(info.queue, start, COUNT_AT_ONCE):
            for row in rows:
                ref = row.chunk.bodies
                if row.state != "unsettled" and (ref.index, ref.offset) == (index, offset):
                    return row.position
            start = rows[-1].position + 1
        return None

    async def _read(
        self, info: QueueInfo, group: GroupLike, positions: Sequence[int]
    ) -> tuple[list[Waiting], int]:
        """Those that wait, as many as go at once, and how many of them are too large for it."""
        found: list[Waiting] = []
        size = too_large = 0
        for row in self._waiting(info, positions):
            read = await group.load_bodies(row.chunk.bodies)
            if not read:
                continue
            body, meta = read[0]
            size += len(body) + len(pack(meta))  # an entry holds headers, too
            if found and size > BYTES_AT_ONCE:
                break
            if isinstance(body, LargeBody):
                joined = await whole(group, body) if may_be_whole(body) else None
                if joined is None:
                    too_large += 1
                    continue
                body = joined
            found.append(Waiting(row, body, meta))
        return found, too_large

    async def _move(self, queue: int, named: list[list[int]], to: int | None) -> list[Any]:
        info, group = self._led(queue)
        left: list[int] = _each(named)
        done = skipped = tries = 0
        count = len(left)
        at_once = COUNT_AT_ONCE
        while left and tries < TRIES_MAX:
            part = left[:at_once]
            found, too_large = await self._read(info, group, part)
            sent = [each for each in found if self._target(info, each, to) is not None]
            skipped += too_large + len(found) - len(sent)
            # What lies behind the last one that was read is for the next round.
            end = found[-1].row.position if found and len(found) < len(part) else part[-1]
            if sent:
                try:
                    await self._transactions.commit(self._steps(info, sent, to))
                except Refused as refused:
                    if refused.code == codes.QUEUE_FULL and len(sent) == 1:
                        target = self._target(info, sent[0], to)
                        return [done, count - done - skipped - len(left), skipped, _name(target)]
                    if refused.code not in (codes.UNKNOWN_DELIVERY, codes.QUEUE_FULL):
                        raise
                    # A consumer was faster, or there is room for less.
                    skipped -= too_large + len(found) - len(sent)
                    at_once = max(1, at_once // 2)
                    tries += 1
                    continue
                tries = 0
            done += len(sent)
            left = [at for at in left if at > end]
        return [done, count - done - skipped - len(left), skipped]

    def _target(self, info: QueueInfo, message: Waiting, to: int | None) -> QueueInfo | None:
        catalog = self._broker.cluster.catalog_machine
        if to == info.queue:
            shard = self._shard(info, message, key_of_dead(message.row.chunk.deaths))
            return None if shard is info else shard
        if to is not None:
            target = catalog.queue_by_id(QueueId(to))
            return None if target is None else self._shard(target, message, None)
        for death in message.row.chunk.deaths or ():
            if death["queue"] != info.name:
                found = catalog.queue(info.vhost, death["queue"])
                if found is None or found.stream is not None:
                    return None
                # Where it died may be a shard, of a queue that is split otherwise now.
                keys = cast("list[str]", death.get("routing-keys") or [None])
                return self._shard(whole_of(catalog, found) or found, message, keys[0])
        return None

    def _shard(self, info: QueueInfo, message: Waiting, key: str | None) -> QueueInfo:
        """Where it would be published to now under this key, its own if that is None. A message
        that is looked at twice goes the same way.
        """
        if info.arguments.get(GROUP_KEY) == ROUTING_KEY:  # by which it is in a group there
            key = key_of_dead(message.row.chunk.deaths)
        return self._broker.ingress.router.shard(
            info,
            routing_key_of(message.meta) if key is None else key,
            lambda: headers_of(message.meta),
            otherwise=str(message.row.position),
        )

    def _steps(
        self, info: QueueInfo, messages: Sequence[Waiting], to: int | None
    ) -> dict[GroupId, list[Step]]:
        """Out of their queue and into those that they are for, in this order."""
        places = ranges_of(sorted(each.row.position for each in messages))
        steps: dict[GroupId, list[Step]] = {info.group: [Withdraw(info.queue, places)]}
        by_target: dict[QueueId, list[Waiting]] = {}
        infos: dict[QueueId, QueueInfo] = {}
        for each in messages:
            target = self._target(info, each, to)
            assert target is not None
            infos[target.queue] = target
            by_target.setdefault(target.queue, []).append(each)
        for queue, some in by_target.items():
            steps.setdefault(infos[queue].group, []).append(_enqueue(infos[queue], None, 0, some))
        return steps

    async def _copy(self, queue: int, named: list[list[int]], to: int, operation: str) -> list[Any]:
        info, group = self._led(queue)
        target = self._broker.cluster.catalog_machine.queue_by_id(QueueId(to))
        if target is None:
            raise Refused(codes.NO_QUEUE, f"there is no queue {to}")
        publisher = f"{COPY_PREFIX}{queue}:{operation}"
        left: list[int] = _each(named)
        done = skipped = 0
        count = len(left)
        while left:
            part = left[:COUNT_AT_ONCE]
            found, too_large = await self._read(info, group, part)
            skipped += too_large
            end = found[-1].row.position if found and len(found) < len(part) else part[-1]
            for into, run in self._runs(target, found):
                first = run[0].row.position
                command = _enqueue(into, publisher, first, run)
                outcome = await self._broker.cluster.retries.ask(
                    into.group, command, within_s=DECIDE_S_MAX
                )
                if outcome.kind != "ok":
                    raise error_of(outcome)
                reply = cast(Enqueued, outcome.reply)
                refused = sum(last - first + 1 for first, last in reply.refused)
                done += len(run) - refused
                if refused:
                    return [done, count - done - skipped - len(left), skipped, into.name]
            left = [at for at in left if at > end]
        return [done, count - done - skipped, skipped]

    def _runs(
        self, target: QueueInfo, messages: Sequence[Waiting]
    ) -> list[tuple[QueueInfo, list[Waiting]]]:
        """Neighbours, whose positions follow each other, that go to the same queue."""
        found: list[tuple[QueueInfo, list[Waiting]]] = []
        for each in messages:
            into = self._shard(target, each, None)
            if found and found[-1][0] is into:
                run = found[-1][1]
                if run[-1].row.position + 1 == each.row.position:
                    run.append(each)
                    continue
            found.append((into, [each]))
        return found


def _each(named: Sequence[Sequence[int]]) -> list[int]:
    return [at for first, last in named for at in range(first, last + 1)]


def _name(info: QueueInfo | None) -> str:
    return "" if info is None else info.name


def _enqueue(
    info: QueueInfo, publisher: str | None, seqno: int, messages: Sequence[Waiting]
) -> Enqueue:
    metas = [each.meta for each in messages]
    attrs = [_attrs(each.row) for each in messages]
    attrs = with_group_keys(info.arguments, metas, attrs, len(metas))
    bodies = [each.body for each in messages]
    return Enqueue(info.queue, publisher, seqno, bodies, metas, attrs)


def _attrs(row: Row) -> dict[int, Any] | None:
    """Its own time to live begins anew; a delay goes on."""
    mark = row.mark
    attrs = {
        ATTR_PRIORITY: mark.priority or None,
        ATTR_TTL_MS: mark.ttl_ms,
        ATTR_DELIVER_AT_MS: row.due_ms if row.state == "delayed" else None,
        ATTR_DEATHS: mark.deaths,
    }
    return {name: value for name, value in attrs.items() if value is not None} or None


# --- which messages -------------------------------------------------------------------------------


def check_filter(where: Mapping[str, Any]) -> None:
    for name, value in where.items():
        if name not in FILTERS and not (name.startswith(_HEADER) and name != _HEADER):
            allowed = ", ".join((*FILTERS, "header.NAME"))
            raise Refused(codes.BAD_ARGUMENT, f"cannot filter by {name!r}, only by {allowed}")
        if name.endswith("-ms") and type(value) is not int:
            raise Refused(codes.BAD_ARGUMENT, f"{name} must be a number of milliseconds")
        if name == "state" and value not in ("ready", "delayed"):
            raise Refused(codes.BAD_ARGUMENT, "state must be ready or delayed")


def _check_named(positions: Ranges) -> None:
    before = count = 0
    for first, last in positions:
        if not before < first <= last:
            raise Refused(
                codes.BAD_ARGUMENT,
                "positions are [first, last], from 1 on, ascending, and do not overlap",
            )
        before = last
        count += last - first + 1
    if not 1 <= count <= NAMED_MAX:
        raise Refused(codes.BAD_ARGUMENT, f"from 1 to {NAMED_MAX} messages are named at once")


def _fits(row: Row, where: Mapping[str, Any], now_ms: int) -> bool:
    age_ms = now_ms - row.enqueued_ms
    for name, wanted in where.items():
        match name:
            case "state" if row.state != wanted:
                return False
            case "priority" if str(row.priority) != str(wanted):
                return False
            case "older-than-ms" if age_ms < wanted:
                return False
            case "younger-than-ms" if age_ms > wanted:
                return False
            case "reason" if all(each["reason"] != wanted for each in row.chunk.deaths or ()):
                return False
            case _:
                pass
    return True


def _meta_fits(meta: Any, where: Mapping[str, Any]) -> bool:
    given = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    headers = cast("dict[str, Any]", given.get("headers") or {})
    for name, wanted in where.items():
        if name.startswith(_HEADER):
            header = name.removeprefix(_HEADER)
            if header not in headers or _text(headers[header]) != _text(wanted):
                return False
        elif name in ("key", "exchange") and _text(given.get(name, "")) != _text(wanted):
            return False
    return True


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return str(value).lower() if type(value) is bool else str(value)
