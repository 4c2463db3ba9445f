"""Messages by hand: published to an exchange, taken from a queue. For people and probes."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from cluster.groups.outcome import called_back
from cluster.machine.catalog import QueueInfo
from node.broker.ingress import Attrs, check_reply, shown
from node.broker.publishing import Done
from node.broker.stream_attrs import with_subjects
from node.errors import BrokerError, Elsewhere, OutcomeUnknown
from node.management.context import Call, Endpoint
from node.management.errors import bad_request, not_found
from node.management.messages_here import ACK_MODES
from node.management.queues import declare_queue, unlocked
from node.management.values import Body
from node.messages import properties as amqp
from node.messages.amqp_errors import AmqpError
from node.messages.message import exchange_and_key, on_wire, routing_key_of, where_of
from node.messages.plain_values import wrong_value
from node.protocols.amqp.deaths import marked
from node.protocols.amqp.direct_reply import PREFIX

PUBLISH_S_MAX = 10.0
#: How long a get waits for its queue to have a leader, and how often it looks.
LEADER_S_MAX = 10.0
RETRY_S = 0.05
#: What one answer may hold of messages.
GET_COUNT_MAX = 1_000

ALIVENESS_QUEUE = "aliveness-test"

Json = dict[str, Any]


async def publish(call: Call) -> Json:
    body = call.body
    properties = body.mapping("properties")
    key = body.text("routing_key")
    payload = _payload(body)
    return {"routed": await _publish(call, call.names["exchange"], key, payload, properties)}


def _payload(body: Body) -> bytes:
    encoding = body.text("payload_encoding")
    payload = body.text("payload")
    if encoding == "string":
        return payload.encode(errors="replace")
    if encoding != "base64":
        raise bad_request(f"unsupported encoding '{encoding}'")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request("the payload is no base64") from None


async def _publish(call: Call, exchange: str, key: str, payload: bytes, properties: Json) -> bool:
    """Whether any queue got it, safely."""
    services, access = call.services, call.access
    ingress, counted = services.broker.ingress, services.counters.http
    access.check("write", "exchange", exchange)
    ingress.check_size(len(payload), in_parts=False)
    ingress.check_alarms()
    wrong = wrong_value(properties)
    if wrong is not None:
        raise bad_request(f"invalid properties: {wrong}")
    try:
        where, given = where_of(exchange, key), amqp.build(properties)
    except (ValueError, TypeError) as error:
        raise bad_request(f"invalid properties or routing key: {error}") from None
    attrs, given = await ingress.interpret_in_time(access, given)
    if exchange == "" and key.startswith(PREFIX):
        return _reply(call, key, where, given, attrs, payload)
    route = ingress.route(access, exchange, key, given, attrs)
    if ingress.in_doubt(exchange, route):
        await call.catch_up()
        route = ingress.route(access, exchange, key, given, attrs)
    if route is None:
        raise not_found()
    if route.queues:
        ingress.check_vhost(access.vhost)
    given = shown(given)
    own = [ingress.attrs_for_queue(info, attrs, given) for info in route.queues]
    counted.published([payload], routed=len(route.queues), confirm=True)
    counted.dropped += not route.queues
    async with ingress.room.of(len(payload) + len(where) + len(given)):
        outcomes = [
            _stored(call, info, payload, where + given, each)
            for info, each in zip(route.queues, own, strict=True)
        ]
        try:
            async with asyncio.timeout(PUBLISH_S_MAX):
                refused = [name for name in await asyncio.gather(*outcomes) if name is not None]
        except TimeoutError:
            raise OutcomeUnknown("the queues did not answer in time") from None
    if refused:
        raise bad_request(f"queue '{refused[0]}' is full and did not take the message")
    counted.confirmed += 1
    return bool(route.queues)


def _reply(
    call: Call, name: str, where: bytes, properties: bytes, attrs: Attrs | None, payload: bytes
) -> bool:
    """To the requester that waits for an answer, through no queue."""
    check_reply(attrs)
    taken = call.services.direct_replies.deliver(name, where, properties, [payload])
    counted = call.services.counters.http
    counted.published([payload], routed=int(taken), confirm=True)
    counted.dropped += not taken
    counted.confirmed += 1
    return taken


async def _stored(
    call: Call, info: QueueInfo, payload: bytes, meta: bytes, attrs: Attrs | None
) -> str | None:
    """The name of the queue if it refused."""
    (attrs,) = with_subjects(info, [routing_key_of(meta)], [attrs])
    size_bytes = len(payload) + len(meta)

    def publish(done: Done) -> None:
        call.services.publisher.publish(info, [payload], meta, attrs, size_bytes, done)

    refused = await called_back(publish)
    return info.name if refused else None


# --- taking ---------------------------------------------------------------------------------------


async def get(call: Call) -> list[Json]:
    body = call.body
    if call.catalog.queue(call.vhost, call.names["queue"]) is None:
        await call.catch_up()
    info = unlocked(call)
    call.access.check("read", "queue", info.name)
    count = body.integer("count")
    if not 1 <= count <= GET_COUNT_MAX:
        raise bad_request(f"count must be from 1 to {GET_COUNT_MAX}")
    mode = body.text("ackmode")
    if mode not in ACK_MODES:
        raise bad_request(f"ackmode must be one of {', '.join(ACK_MODES)}")
    encoding = body.text("encoding")
    if encoding not in ("auto", "base64"):
        raise bad_request(f"unsupported encoding '{encoding}'")
    truncate = body.integer("truncate", -1)
    ready, rows = await _take_from_all(call, info, count, mode, truncate)
    return [
        _message(info, row, ready + len(rows) - 1 - place, encoding, truncate)
        for place, row in enumerate(rows)
    ]


async def _take_from_all(
    call: Call, info: QueueInfo, count: int, mode: str, truncate: int
) -> tuple[int, list[Any]]:
    """Of a split queue what is in itself, which waited longest, and then from its shards, of which
    the fullest is first.
    """
    shards = call.services.broker.parts(info)[1:]
    if not shards:
        return await _take(call, info, count, mode, truncate)
    facts = await call.observer.queues(shards)
    waiting = {queue: each.ready for queue, each in facts.items()}
    ready, rows = 0, list[Any]()
    failed: BrokerError | None = None
    for each in (info, *sorted(shards, key=lambda shard: -waiting.get(shard.queue, 0))):
        if len(rows) == count:
            ready += waiting.get(each.queue, 0)
            continue
        try:
            left, more = await _take(call, each, count - len(rows), mode, truncate)
        except BrokerError as error:  # what was taken before is shown to nobody else
            failed = failed or error
        else:
            ready += left
            rows += more
    if failed is not None and not rows:
        raise failed
    return ready, rows


async def _take(
    call: Call, info: QueueInfo, count: int, mode: str, truncate: int = -1
) -> tuple[int, list[Any]]:
    """A leader that changes is waited for: until one is asked, surely nothing was taken."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + LEADER_S_MAX
    while True:
        try:
            leader = call.services.broker.leader(info)
            if leader is None:
                raise Elsewhere(None)
            ready, rows = await call.services.peer_rpc.request(
                leader, "take", info.queue, count, mode, truncate
            )
            break
        except Elsewhere:
            if loop.time() >= deadline_s:
                raise
        await asyncio.sleep(RETRY_S)
    served = call.services.counters.http.of(info)
    served.got_manual += len(rows)
    served.got_empty += not rows
    served.redelivered += sum(1 for _, _, redelivered, *_ in rows if redelivered)
    served.acknowledged += len(rows) if mode == "ack_requeue_false" else 0
    return ready, rows


def _message(info: QueueInfo, row: Sequence[Any], left: int, encoding: str, truncate: int) -> Json:
    body, meta, redelivered, delivery_count, deaths, *later = row
    size_bytes = later[0] if later else len(body)  # a node of an older release says none
    where, properties = marked(*on_wire(meta, info.name), deaths, delivery_count)
    exchange, key = exchange_and_key(where)
    shown = body if truncate < 0 else body[:truncate]
    return {
        "payload_bytes": size_bytes,
        "redelivered": redelivered,
        "exchange": exchange,
        "routing_key": key,
        "message_count": left,
        "properties": properties_of(properties),
        **encoded(shown, encoding),
    }


def encoded(payload: bytes, encoding: str = "auto") -> Json:
    """As text if it is some and that is wanted."""
    if encoding == "auto":
        try:
            return {"payload": payload.decode(), "payload_encoding": "string"}
        except UnicodeDecodeError:
            pass
    return {"payload": base64.b64encode(payload).decode(), "payload_encoding": "base64"}


def properties_of(properties: bytes) -> Json:
    """What cannot be read is left out: its publisher's headers are looked at by nobody else."""
    parsed = amqp.parse(properties)
    try:
        return parsed.as_map()
    except AmqpError:
        return replace(parsed, raw_headers=None).as_map()


# --- probing --------------------------------------------------------------------------------------


async def aliveness(call: Call) -> Json:
    """A message goes through a queue of its own and comes out again."""
    call.access.check("configure", "queue", ALIVENESS_QUEUE)
    call.access.check("read", "queue", ALIVENESS_QUEUE)
    if call.catalog.queue(call.vhost, ALIVENESS_QUEUE) is None:
        await declare_queue(call, call.vhost, ALIVENESS_QUEUE, Body({"durable": True}))
    info = call.catalog.queue(call.vhost, ALIVENESS_QUEUE)
    if info is None:
        raise not_found()
    await _publish(call, "", ALIVENESS_QUEUE, b"test_message", {})
    _, rows = await _take(call, info, 1, "ack_requeue_false")
    return {"status": "ok" if rows else "failed"}


ROUTES = (
    Endpoint("POST", "exchanges/{vhost}/{exchange}/publish", publish),
    Endpoint("POST", "queues/{vhost}/{queue}/get", get),
    Endpoint("GET", "aliveness-test/{vhost}", aliveness),
)
