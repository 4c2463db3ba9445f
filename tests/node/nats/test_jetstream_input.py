"""Requests to JetStream's API that nobody should make: each is answered, and the node goes on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.node.management.api import api_of
from tests.node.nats.conftest import Connect
from tests.node.nats.wire import Wire
from tests.node.nodes import Running
from tests.testkit.waiting import wait_until

VERBS = [
    "INFO",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.CREATE.S",
    "STREAM.UPDATE.S",
    "STREAM.INFO.S",
    "STREAM.PURGE.S",
    "STREAM.MSG.GET.S",
    "STREAM.MSG.DELETE.S",
    "DIRECT.GET.S",
    "DIRECT.GET.S.s.a",
    "CONSUMER.CREATE.S",
    "CONSUMER.CREATE.S.c",
    "CONSUMER.CREATE.S.c.s.a",
    "CONSUMER.DURABLE.CREATE.S.d",
    "CONSUMER.NAMES.S",
    "CONSUMER.LIST.S",
    "CONSUMER.INFO.S.c",
    "CONSUMER.PAUSE.S.c",
    "CONSUMER.DELETE.S.e",
]
FIELDS = [
    *("name", "subjects", "max_msgs", "max_age", "retention", "metadata", "first_seq", "placement"),
    *("config", "stream_name", "action", "durable_name", "ack_policy", "ack_wait", "backoff"),
    *("deliver_policy", "opt_start_seq", "opt_start_time", "filter_subject", "filter_subjects"),
    *("seq", "last_by_subj", "next_by_subj", "batch", "max_bytes", "multi_last", "up_to_seq"),
    *("start_time", "up_to_time", "no_hdr", "filter", "keep", "subject", "offset", "pause_until"),
    *("subjects_filter", "deleted_details", "deliver_subject", "idle_heartbeat", "num_replicas"),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        2**64,
        1e300,
        0.5,
        "",
        "S",
        "c",
        "s.a",
        "s.>",
        ">",
    ),
    *("a..b", "a b", "\u0000", "é", "\ud800", "2026-11-24T04:10:44Z", "9999-12-31T23:59:59Z"),
    *("0000-00-00T00:00:00Z", [], [[]], ["s.a"], ["s.*", "s.a"], [1], {}, {"a": 1}, {"a": "b"}),
    *("explicit", "all", "none", "last", "by_start_time", "workqueue", "create", "update"),
]


@pytest.fixture
def client(connect: Connect) -> Iterator[Wire]:
    client = connect()
    client.send(b"SUB inbox.* 1\r\n")
    client.sync()
    ask(client, "STREAM.CREATE.S", json.dumps({"name": "S", "subjects": ["s.*"]}).encode())
    yield client
    ask(client, "STREAM.DELETE.S", b"")


def ask(client: Wire, verb: str, body: bytes) -> bytes:
    client.send(b"PUB $JS.API.%b inbox.1 %d\r\n%b\r\n" % (verb.encode(), len(body), body))
    return client.message()[3]


def value(chance: random.Random, depth: int = 0) -> Any:
    if depth < 2 and chance.random() < 0.3:
        return {chance.choice(FIELDS): value(chance, depth + 1) for _ in range(3)}
    return chance.choice(VALUES)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_asked_is_answered(running: Running, client: Wire, seed: int):
    chance = random.Random(seed)
    for number in range(80):
        verb = chance.choice(VERBS)
        given = {chance.choice(FIELDS): value(chance) for _ in range(chance.randrange(3))}
        if chance.random() < 0.5:
            given |= {"name": "S"} if verb.startswith("STREAM") else {"config": {"name": "c"}}
        body = json.dumps(given).encode()
        if chance.random() < 0.05:
            body = body[: chance.randrange(len(body) + 1)] + bytes(chance.randrange(3))
        client.send(b"PUB s.a 1\r\n%d\r\n" % (number % 10))

        said = ask(client, verb, body)

        assert said.startswith((b"{", b"NATS/1.0")), (verb, body, said)
        assert b"10051" not in said, (verb, body, said)
        while verb.startswith("DIRECT") and b"Nats-Num-Pending" in said and b" 204 " not in said:
            said = client.message()[3]
        config = json.dumps({"name": "S", "subjects": ["s.*"]}).encode()
        ask(client, "STREAM.UPDATE.S", config)  # back to what can be read
        assert not running.node.failed.done()


@pytest.mark.parametrize(
    "said",
    [
        b"PUB $JS.ACK.S.c.1.1.1.1.1 4\r\n+ACK\r\n",
        b"PUB $JS.ACK.S.c.1.99999999999999999999.1.1.1 4\r\n+ACK\r\n",
        b"PUB $JS.ACK.S.nobody.1.1.1.1.1 7\r\n+NXT {}\r\n",
        b"PUB $JS.ACK.S.c.1.1.1.1.1 inbox.1 9\r\n-NAK {]}{\r\n",
        b"PUB $JS.ACK.\xff.\xfe.1.1.1.1.1 0\r\n\r\n",
        b"PUB $JS.ACK 0\r\n\r\n",
        b"PUB $JS.FC.S.c.x 0\r\n\r\n",
        b"PUB $JS.FC.\xff 0\r\n\r\n",
        b"PUB $JS.API.\xff 0\r\n\r\n",
        b"PUB $JS.API.STREAM.INFO.S 0\r\n\r\n",
        b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c 0\r\n\r\n",
        b"HPUB s.a 12 12\r\nNATS/1.0\r\n\r\n\r\n",
        b"HPUB s.a 4 4\r\nNats\r\n",
        b"HPUB s.a 30 30\r\nNATS/1.0\r\nNats-TTL: 99999h\r\n\r\n\r\n",
    ],
)
def test_whatever_is_published_the_node_goes_on(running: Running, client: Wire, said: bytes):
    client.send(said)

    assert b"stream_info_response" in ask(client, "STREAM.INFO.S", b"")
    assert not running.node.failed.done()


@pytest.mark.parametrize(
    "header",
    [b"NATS/1.0\r\nNats-Msg-Id: 1\r\n\r\n", b"NATS/1.0\r\n\r\n", b"\x03abc", b"\0", b"\xff" * 40],
)
def test_headers_at_the_head_of_a_stream_spoil_no_list_of_queues(
    running: Running, client: Wire, header: bytes
):
    ask(client, "STREAM.PURGE.S", b"")
    client.send(b"HPUB s.a %d %d\r\n%b\r\n" % (len(header), len(header), header))
    wait_until(lambda: b'"messages":1,' in ask(client, "STREAM.INFO.S", b""))

    api = api_of(running.node)
    [row] = [row for row in running.do(api.get("queues")) if row["name"] == "S"]
    assert row["head_message_timestamp"] is None


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b'""', b" null\n"])
def test_a_body_that_says_nothing_asks_for_what_none_asks_for(client: Wire, body: bytes):
    found = json.loads(ask(client, "STREAM.INFO.S", body))

    assert found["config"]["name"] == "S"
