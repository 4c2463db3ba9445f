"""Values that would spoil what others see: no numbers, and tables that are nested too deeply."""

from __future__ import annotations

import asyncio
import json
import math
import struct
import urllib.error
import urllib.request
from base64 import b64encode
from typing import Any

import cbor2
import pytest
from pamqp import base
from pamqp.commands import Basic, Exchange, Queue

from cluster.machine.commands import ATTR_DEDUP_ID
from cluster.machine.marks import DEDUP_ID_CHARS_MAX
from node.broker.ingress import check_attrs
from node.errors import Refused
from node.messages import tables
from node.messages.plain_values import (
    DEPTH_MAX,
    HALF_A_CHARACTER,
    as_json,
    loads,
    wrong_beside_bodies,
    wrong_value,
)
from tests.acceptance.fuzz.amqp import wire as raw
from tests.acceptance.semantics.wire import Closed
from tests.node.amqp.conftest import Connect, Running
from tests.node.nodes import Client
from tests.testkit.nesting import nested

NO_NUMBERS = [math.nan, math.inf, -math.inf]
QUEUE = "values"


def strict(text: bytes) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def api(
    running: Running, method: str, path: str, body: bytes | None = None, kind: str = "json"
) -> tuple[int, Any]:
    """Strict JSON comes back whatever was sent."""
    request = urllib.request.Request(
        f"http://{running.node.http_address}{path}",
        body,
        {
            "Authorization": "Basic " + b64encode(b"guest:guest").decode(),
            "Content-Type": f"application/{kind}",
        },
        method=method,
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, strict(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        return error.code, strict(error.read() or b"null")


def all_lists(running: Running) -> None:
    for path in ("queues", "exchanges", "bindings", "definitions", "consumers", "connections"):
        assert api(running, "GET", f"/api/{path}")[0] == 200


@pytest.mark.parametrize("number", NO_NUMBERS)
@pytest.mark.parametrize("what", ["queue", "transient", "exchange", "binding"])
def test_an_argument_of_amqp_that_is_no_number_is_refused(
    connect: Connect, running: Running, what: str, number: float
) -> None:
    arguments: Any = {"x-mine": {"deep": [number]}}
    frames: dict[str, tuple[base.Frame, type[base.Frame]]] = {
        "queue": (Queue.Declare(queue="nan", durable=True, arguments=arguments), Queue.DeclareOk),
        "transient": (
            Queue.Declare(queue="nan", exclusive=True, arguments=arguments),
            Queue.DeclareOk,
        ),
        "exchange": (
            Exchange.Declare(exchange="nan", exchange_type="direct", arguments=arguments),
            Exchange.DeclareOk,
        ),
        "binding": (
            Queue.Bind(queue=QUEUE, exchange="amq.headers", arguments=arguments),
            Queue.BindOk,
        ),
    }
    wire = connect()
    wire.call(Queue.Declare(queue=QUEUE, durable=True), Queue.DeclareOk)
    with pytest.raises(Closed) as caught:
        wire.call(*frames[what])
    assert (caught.value.level, caught.value.code) == ("channel", 406)
    all_lists(running)


@pytest.mark.parametrize(
    "headers",
    [
        raw.entry("x", b"d", struct.pack(">d", math.nan)),
        raw.entry("x", b"f", struct.pack(">f", -math.inf)),
        raw.entry("x", b"A", raw.long(b"d" + struct.pack(">d", math.inf))),
        tables.encode_entries({"x": nested(DEPTH_MAX + 1)}),
    ],
)
def test_headers_of_that_kind_close_the_channel_of_who_publishes_them(
    connect: Connect, headers: bytes
) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue=QUEUE, durable=True), Queue.DeclareOk)
    frames = [raw.method(1, Basic.Publish, routing_key=QUEUE)]
    frames += raw.content(1, b"body", b"\x20\x00" + raw.long(headers))
    wire.send_bytes(b"".join(frames))
    with pytest.raises(Closed) as caught:
        wire.call(Basic.Get(queue=QUEUE, no_ack=True), Basic.GetOk)
    assert (caught.value.level, caught.value.code) == ("channel", 406)
    assert "invalid headers" in caught.value.text


def deep_headers(depth: int) -> bytes:
    value = b"t\1"
    for _ in range(depth):
        value = b"A" + raw.long(value)
    return raw.short("x") + value


@pytest.mark.parametrize("depth", [DEPTH_MAX + 1, 900])
def test_headers_nested_deeply_are_refused_at_every_door(
    connect: Connect, running: Running, depth: int
) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue=QUEUE, durable=True), Queue.DeclareOk)
    properties = b"\x20\x00" + raw.long(deep_headers(depth))
    frames = [raw.method(1, Basic.Publish, routing_key=QUEUE), *raw.content(1, b"b", properties)]
    wire.send_bytes(b"".join(frames))
    with pytest.raises(Closed) as caught:
        wire.call(Basic.Get(queue=QUEUE, no_ack=True), Basic.GetOk)
    assert (caught.value.level, caught.value.code) == ("channel", 406)

    value = b"[" * depth + b"]" * depth
    about = b'{"routing_key":"%s","payload":"b","payload_encoding":"string","properties":{%s}}'
    path = "/api/exchanges/%2F/amq.default/publish"
    body = about % (QUEUE.encode(), b'"headers":{"x":' + value + b"}")
    status, refusal = api(running, "POST", path, body)
    assert (status, refusal["error"]) == (400, "bad_request")
    body = b"\xa2" + cbor2.dumps("bodies") + cbor2.dumps([b"b"]) + cbor2.dumps("meta")
    body += b"\xa1" + cbor2.dumps("headers") + b"\xa1" + cbor2.dumps("x") + b"\x81" * depth + b"\0"
    assert api(running, "POST", f"/v1/queues/%2F/{QUEUE}/messages", body, "cbor")[0] == 400
    get = b'{"count":10,"ackmode":"ack_requeue_false","encoding":"auto"}'
    assert api(running, "POST", f"/api/queues/%2F/{QUEUE}/get", get) == (200, [])


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
def test_json_has_no_such_numbers(running: Running, word: bytes) -> None:
    for method, path, body in (
        ("PUT", "/api/queues/%2F/nan", b'{"arguments":{"x-mine":%s}}'),
        ("PUT", "/api/exchanges/%2F/nan", b'{"type":"direct","arguments":{"x-mine":[%s]}}'),
        ("POST", "/api/bindings/%2F/e/amq.direct/q/values", b'{"arguments":{"a":%s}}'),
        ("PUT", "/api/parameters/mine/%2F/nan", b'{"value":%s}'),
        ("PUT", "/api/global-parameters/nan", b'{"value":{"a":%s}}'),
        ("PUT", "/v1/queues/%2F/nan", b'{"arguments":{"x-mine":%s}}'),
    ):
        status, refusal = api(running, method, path, body % word)
        assert status == 400, (path, refusal)
    all_lists(running)


@pytest.mark.parametrize("number", NO_NUMBERS)
async def test_cbor_has_them_and_they_are_refused(running: Running, number: float) -> None:
    url = f"http://{running.node.http_address}"
    durable = b'{"durable":true}'
    made = await asyncio.to_thread(api, running, "PUT", f"/api/queues/%2F/{QUEUE}", durable)
    assert made[0] in (201, 204)
    body = cbor2.dumps({"bodies": [b"b"], "meta": {"headers": {"x": [number]}}})
    path = f"/v1/queues/%2F/{QUEUE}/messages"
    assert (await asyncio.to_thread(api, running, "POST", path, body, "cbor"))[0] == 400
    body = cbor2.dumps({"arguments": {"x-mine": number}})
    assert (await asyncio.to_thread(api, running, "PUT", "/v1/queues/%2F/nan", body, "cbor"))[
        0
    ] == 400
    async with Client(url) as client:
        metas = [{"headers": {"x": 1.5}}, {"headers": {"x": number}}]
        refusal = await client.ask(10, 1, QUEUE, None, 0, [b"a", b"b"], metas, None)
        assert refusal[2] == "bad_argument"
        assert (await client.ask(50, 2, "nan", {"x-mine": number}))[2] == "bad_argument"


def test_what_is_right_is_taken_at_every_depth_that_is_allowed(
    connect: Connect, running: Running
) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue=QUEUE, durable=True), Queue.DeclareOk)
    wire.call(Queue.Purge(queue=QUEUE), Queue.PurgeOk)
    headers = {"x": nested(DEPTH_MAX - 2), "y": 1.7e308, "F" * 90: "A" * 90}
    properties = b"\x20\x00" + tables.encode_table(headers)
    frames = [raw.method(1, Basic.Publish, routing_key=QUEUE), *raw.content(1, b"b", properties)]
    wire.send_bytes(b"".join(frames))
    wire.call(Queue.Declare(queue=QUEUE, durable=True), Queue.DeclareOk)
    get = b'{"count":1,"ackmode":"ack_requeue_false","encoding":"auto"}'
    found: Any = None
    while not found:
        status, found = api(running, "POST", f"/api/queues/%2F/{QUEUE}/get", get)
        assert status == 200
    assert found[0]["properties"]["headers"] == headers


def test_what_an_older_log_has_is_shown_as_null() -> None:
    value = {"a": [1.5, math.nan, {"b": -math.inf}], "c": b"x"}
    assert strict(as_json(value, lambda _: "y").encode()) == {
        "a": [1.5, None, {"b": None}],
        "c": "y",
    }
    assert strict(as_json(nested(5_000), str).encode())


def test_beside_bodies_only_what_is_wrong_is_found() -> None:
    fine = [{"headers": {"a": b"bytes", "b": [1.0, None, "NaN"]}}, None, {"d": 2**70}]
    assert wrong_beside_bodies(fine) is None
    assert wrong_value(fine) is None
    for bad in (*NO_NUMBERS, nested(DEPTH_MAX + 1, math.nan), nested(3_000)):
        assert wrong_beside_bodies([*fine, {"headers": {"x": bad}}])
    for half in ({"key": "\ud800"}, {"headers": {"\udfff": 1}}, [None, {b"a name": ["\ud800"]}]):
        assert wrong_beside_bodies(half) == HALF_A_CHARACTER
    assert wrong_beside_bodies({b"a name": "whole: \U0001f600"}) is None
    assert wrong_beside_bodies({b"a name": 1}) is None
    assert wrong_beside_bodies({b"a name": math.nan})
    with pytest.raises(ValueError, match="nested"):
        loads("[" * 100_000)


def test_an_id_by_which_a_message_is_stored_once_is_text() -> None:
    """By HTTP, a header's bytes may be anything."""
    check_attrs({ATTR_DEDUP_ID: "\U0001f600" * DEDUP_ID_CHARS_MAX}, 1, 0)
    for wrong in ("", "x" * (DEDUP_ID_CHARS_MAX + 1), "\udcff"):
        with pytest.raises(Refused, match="attr 4 is text"):
            check_attrs({ATTR_DEDUP_ID: wrong}, 1, 0)
