"""What waits in a queue: looked for, moved and copied elsewhere; delayed messages one by one."""

from __future__ import annotations

from shlex import quote
from typing import Any, cast, get_args

from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.checkout import SPAN_MS_MAX
from cluster.machine.interface import RowState
from cluster.types import MessageId
from node.broker.moving import Delayed
from node.errors import Refused
from node.management.context import DONE, Call, Endpoint, Response
from node.management.errors import bad_request, no_such, not_found
from node.management.messages import encoded, properties_of
from node.management.queues import unlocked
from node.messages.message import exchange_and_key, on_wire
from node.routing.shards import whole_of

Json = dict[str, Any]

#: Of a message that is looked at, unless more is asked for.
TRUNCATE = 64 * 1024


def _queue(call: Call) -> QueueInfo:
    """Whose messages may be taken."""
    info = unlocked(call)
    _no_stream(info)
    call.access.check("read", "queue", info.name)
    return info


def _no_stream(info: QueueInfo) -> None:
    if info.stream is not None:
        raise bad_request(f"{info.name} is a stream, which keeps its messages where they are")


def _target(call: Call, name: str) -> QueueInfo:
    info = call.catalog.queue(call.vhost, name)
    if info is None:
        raise no_such(f"there is no queue {name!r} to move to")
    _no_stream(info)
    call.access.check("write", "exchange", "")  # by which a queue is published to by its name
    return info


def _check_other(call: Call, info: QueueInfo, target: QueueInfo, done: str) -> None:
    if target.queue == info.queue:
        raise bad_request(f"a queue is not {done} to itself")
    if target == whole_of(call.catalog, info) and call.services.broker.ingress.router.is_split(
        target
    ):
        raise bad_request(
            f"{info.name} is a shard of {target.name}, and would get them back: to make that one"
            f" queue again, `quorate queue join {quote(target.name)}`"
        )


def _positions(call: Call) -> list[tuple[int, int]]:
    given: Any = call.body.values.get("positions")
    if not isinstance(given, list):
        raise bad_request("positions must be a list of [first, last]")
    found: list[tuple[int, int]] = []
    for each in cast("list[Any]", given):
        match each:
            case [int(first), int(last)]:
                found.append((first, last))
            case _:
                raise bad_request("positions must be a list of [first, last]")
    return found


async def select(call: Call) -> Json:
    info = _queue(call)
    body = call.body
    where = body.mapping("where", {})
    start, count = body.integer("start", 1), body.integer("count", 256)
    return await call.services.moving.select(info, where, start=start, count=count)


async def move(call: Call) -> Json:
    info = _queue(call)
    positions = _positions(call)
    name = call.body.text("to", "")
    if name:
        target = _target(call, name)
        _check_other(call, info, target, "moved")
    else:  # dead letters, to where they come from
        target = None
        call.access.check("write", "exchange", "")
    call.services.broker.ingress.check_alarms()
    return (await call.services.moving.move(info, positions, target))._asdict()


async def split(call: Call) -> Json:
    """Over so many `shards`; and, with `positions`, what waits goes there."""
    info = _queue(call)
    if "positions" in call.body:
        call.access.check("write", "exchange", "")
        return (await call.services.moving.spread(info, _positions(call)))._asdict()
    call.access.check("configure", "queue", info.name)
    shards = await call.services.splitting.split(info, call.body.integer("shards"))
    return {"shards": [shard.name for shard in shards]}


async def join(call: Call) -> Json:
    """Nothing is published to the `shards` that are left; without any it is one queue again."""
    info = _queue(call)
    call.access.check("configure", "queue", info.name)
    return {"shards": [shard.name for shard in await call.services.splitting.join(info)]}


async def copy(call: Call) -> Json:
    info = _queue(call)
    positions = _positions(call)
    target = _target(call, call.body.text("to"))
    _check_other(call, info, target, "copied")
    operation = call.body.text("operation")
    if not 1 <= len(operation) <= 64:
        raise bad_request("operation must be text of 1 to 64 characters")
    ingress = call.services.broker.ingress
    ingress.check_alarms()
    ingress.check_vhost(call.vhost)
    return (await call.services.moving.copy(info, positions, target, operation))._asdict()


async def peek(call: Call) -> list[Json]:
    """Messages as they are, without taking them: by position, `start` goes on behind the last."""
    info = _queue(call)
    start, count = _number(call, "start", 1), _number(call, "count", 20)
    truncate = _number(call, "truncate", TRUNCATE)
    state = call.query.get("state") or None
    if state not in {None, *get_args(RowState)}:
        raise bad_request(f"state is one of {', '.join(get_args(RowState))}")
    rows = await call.services.moving.peek_at_all(info, start=start, count=count, state=state)
    return [_peeked(info, row, truncate) for row in rows]


def _peeked(info: QueueInfo, row: Json, truncate: int) -> Json:
    where, properties = on_wire(row.pop("meta"), info.name)
    exchange, key = exchange_and_key(where)
    return {
        "id": row.pop("message") or str(row["position"]),
        **encoded(row.pop("body")[:truncate]),
        "payload_bytes": row.pop("bytes"),
        "exchange": exchange,
        "routing_key": key,
        "properties": properties_of(properties),
        **row,
    }


# --- delayed messages -----------------------------------------------------------------------------


async def list_delayed(call: Call) -> list[Json]:
    """By position: `start` goes on behind the last one. Of a split queue those of its shards, too,
    which are their `queue`: positions count there.
    """
    info = _queue(call)
    start, count = _number(call, "start", 1), _number(call, "count", 100)
    found: list[Json] = []
    for each in call.services.broker.parts(info) if start <= 1 else (info,):
        rows = await call.services.moving.delayed(each, start=start, count=count)
        found += [_shown(each, row) for row in rows]
    return found[:count]


def _number(call: Call, name: str, default: int) -> int:
    text = call.query.get(name, str(default))
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise bad_request(f"{name} must be a whole number")
    return int(text)


def _shown(info: QueueInfo, row: Delayed) -> Json:
    where, properties = on_wire(row.meta, info.name)
    exchange, key = exchange_and_key(where)
    return {
        "id": row.message or str(row.position),
        "queue": info.name,
        "position": row.position,
        "due_ms": row.due_ms,
        "enqueued_ms": row.enqueued_ms,
        "payload_bytes": row.size_bytes,
        "exchange": exchange,
        "routing_key": key,
        "properties": properties_of(properties),
        **encoded(row.body),
    }


async def _found(call: Call) -> tuple[QueueInfo, int]:
    """A message by its id, also in a shard of the queue, or by its position in the queue."""
    info, text = _queue(call), call.names["id"]
    if text.isascii() and text.isdecimal() and 0 < len(text) <= 18:
        return info, int(text)
    message = MessageId.parse(text)
    if message is None:
        raise bad_request(f"{text!r} is no id of a message, and no position")
    for each in call.services.broker.parts(info):
        if message.group == each.group:
            position = await call.services.moving.find(each, message)
            if position is not None:
                return each, position
    raise not_found()


async def one_delayed(call: Call) -> Json:
    info, position = await _found(call)
    rows = await call.services.moving.delayed(info, start=position, count=1)
    if not rows or rows[0].position != position:
        raise not_found()
    return _shown(info, rows[0])


async def retime(call: Call) -> Response:
    """`{"due_ms": ...}`, since the epoch, or `{"delay_ms": ...}` from now."""
    info, position = await _found(call)
    due_ms, delay_ms = (
        call.body.integer(name) if name in call.body else None for name in ("due_ms", "delay_ms")
    )
    retime = call.services.broker.retime
    if not await retime(info, [(position, position)], due_ms=due_ms, delay_ms=delay_ms):
        raise not_found()
    return DONE


async def cancel(call: Call) -> Response:
    info, position = await _found(call)
    try:
        await call.services.moving.withdraw(info, [(position, position)])
    except Refused as refused:
        if refused.code != codes.UNKNOWN_DELIVERY:
            raise
        raise not_found() from refused
    return DONE


async def extend(call: Call) -> Json:
    """`{"timeout_ms": ...}`, from now: of all that consumers hold, whatever protocol they speak."""
    info = _queue(call)
    timeout_ms = call.body.integer("timeout_ms")
    if not 0 <= timeout_ms <= SPAN_MS_MAX:
        raise bad_request(f"timeout_ms must be from 0 (no limit) to {SPAN_MS_MAX}")
    every = call.services.broker.parts(info)
    return {"extended": sum([await call.services.moving.extend(i, timeout_ms) for i in every])}


_ONE = "queues/{vhost}/{queue}"

ROUTES = (
    Endpoint("GET", f"{_ONE}/peek", peek),
    Endpoint("POST", f"{_ONE}/select", select),
    Endpoint("POST", f"{_ONE}/move", move),
    Endpoint("POST", f"{_ONE}/copy", copy),
    Endpoint("POST", f"{_ONE}/split", split),
    Endpoint("POST", f"{_ONE}/join", join),
    Endpoint("POST", f"{_ONE}/extend", extend),
    Endpoint("GET", f"{_ONE}/delayed", list_delayed),
    Endpoint("GET", f"{_ONE}/delayed/{{id}}", one_delayed),
    Endpoint("PATCH", f"{_ONE}/delayed/{{id}}", retime),
    Endpoint("DELETE", f"{_ONE}/delayed/{{id}}", cancel),
)
