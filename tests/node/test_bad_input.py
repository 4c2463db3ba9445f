"""What clients may get wrong: each has its named error and closes no more than it must."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import cbor2
import pytest

from tests.node.nodes import Client, Nodes


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    """One node with small limits."""
    limits = {"limits.message_bytes_max": 1000, "limits.frame_bytes_max": 70_000}
    async with Nodes(tmp_path, **limits, **{"limits.connections_max": 3}) as nodes:
        await nodes.declare("orders", max_length=5, overflow="reject-publish")
        yield nodes
        async with Client(nodes.url("n1")) as client:  # whatever happened, it still serves
            assert (await client.ask(54, 1, "orders"))[0] == 3


async def test_malformed_cbor_is_named_and_closes_only_its_connection(nodes: Nodes):
    async with Client(nodes.url("n1")) as client, Client(nodes.url("n1")) as bystander:
        await client.socket.send_bytes(b"\xff\xff")
        frame = await client.expect(4)
        assert (frame[1], frame[2]) == (0, "malformed_frame")
        assert await client.closed() == 4000
        assert (await bystander.publish("orders", b"a"))[0] == 11


async def test_text_is_no_frame(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        await client.socket.send_str("hello")
        assert (await client.expect(4))[2] == "malformed_frame"
        assert await client.closed() == 4000


async def test_an_unknown_opcode_leaves_the_connection_open(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        assert (await client.ask(99, 7))[2] == "unknown_opcode"
        assert (await client.publish("orders", b"a"))[0] == 11


async def test_a_bad_field_leaves_the_connection_open(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        assert (await client.ask(10, 7, "orders", None, 0, ["text"], None, None))[2] == "bad_frame"
        assert (await client.publish("orders", b"a"))[0] == 11


async def test_an_oversize_frame_is_named_and_closes(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        await client.send(10, 1, "orders", None, 0, [b"x" * 500] * 200, None, None)
        frame = await client.expect(4)
        assert (frame[2], "70000 bytes" in frame[3]) == ("frame_too_large", True)
        assert await client.closed() == 4002


async def test_a_frame_too_large_to_be_read_closes(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        await client.socket.send_bytes(b"x" * 200_000)
        assert await client.closed() == 1009


async def test_another_version_is_told_which_ones_there_are(nodes: Nodes):
    async with Client(nodes.url("n1"), hello=False) as client:
        await client.send(1, 2, {})
        frame = await client.expect(4)
        assert (frame[2], frame[4]) == ("unsupported_version", {"versions": [1]})
        assert await client.closed() == 4001


async def test_the_first_frame_must_be_hello(nodes: Nodes):
    async with Client(nodes.url("n1"), hello=False) as client:
        await client.send(54, 1, "orders")
        assert (await client.expect(4))[2] == "hello_missing"
        assert await client.closed() == 4003


async def test_an_unknown_queue_is_named_to_every_request(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        for opcode, fields in [
            (10, (None, 0, [b"a"], None, None)),
            (20, ({},)),
            (30, (5, [[1, 1]])),
            (40, (1, False)),
            (51, (False, False)),
            (52, ()),
            (53, (True,)),
            (54, ()),
        ]:
            answer = await client.ask(opcode, 1, "nowhere", *fields)
            assert answer[:3] == [4, 1, "no_queue"], opcode
            assert "nowhere" in answer[3]


async def test_declare_with_other_arguments_is_refused(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        same = {"x-max-length": 5, "x-overflow": "reject-publish"}
        assert (await client.ask(50, 1, "orders", same))[2]["created"] is False
        answer = await client.ask(50, 2, "orders", {"x-max-length": 6})
        assert answer[:3] == [4, 2, "inequivalent_arguments"]
        answer = await client.ask(50, 3, "others", {"x-max-lenght": 6})
        assert answer[:3] == [4, 3, "bad_argument"]
        answer = await client.ask(50, 3, "others", {"x-max-age": "7D"})
        assert answer[:3] == [4, 3, "bad_argument"]
        assert "'others' in vhost '/' of queue type rabbit_quorum_queue" in answer[3]
        answer = await client.ask(50, 4, "a\nb", {})
        assert answer[:3] == [4, 4, "bad_argument"]


async def test_settling_an_unknown_delivery_is_refused_and_keeps_the_consumer(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        _, _, consumer, _ = await client.ask(20, 1, "orders", {})
        answer = await client.ask(30, 2, "orders", consumer, [[7, 9]])
        assert answer[:3] == [4, 2, "unknown_delivery"]
        answer = await client.ask(30, 3, "orders", 12345, [[1, 1]])
        assert answer[:3] == [4, 3, "no_consumer"]
        await client.send(30, 0, "orders", consumer, [[7, 9]])
        assert (await client.expect(4))[1:3] == [0, "unknown_delivery"]
        await client.publish("orders", b"a", request=4)
        assert await client.deliveries(1) == [(1, b"a")]


async def test_a_publish_over_a_limit_of_the_node_is_refused_whole(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        answer = await client.publish("orders", b"a", b"x" * 1001)
        assert answer[:3] == [4, 1, "message_too_large"]
        assert "1000 bytes" in answer[3]
        assert (await client.ask(54, 2, "orders"))[2]["messages"] == 0


async def test_a_publish_over_a_limit_of_the_queue_says_which_messages_were_refused(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        answer = await client.publish("orders", *[b"x"] * 7)
        assert answer == [11, [[1, 1, 5, 0, [[5, 6]]]]]


async def test_a_publisher_that_is_not_known_starts_at_1(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        answer = await client.ask(10, 1, "orders", "p", 2, [b"b"], None, None)
        assert answer[:3] == [4, 1, "out_of_sequence"]
        assert answer[4] == 1


async def test_an_empty_batch_with_number_0_asks_for_the_next_number(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        for request, expected in ((1, 1), (2, 3)):
            answer = await client.ask(10, request, "orders", "p", 0, [], None, None)
            assert answer[:3] == [4, request, "out_of_sequence"]
            assert answer[4] == expected
            await client.ask(10, 9, "orders", "p", 1, [b"a", b"b"], None, None)
        for publisher, seqno in ((None, 0), ("p", 3)):
            answer = await client.ask(10, 3, "orders", publisher, seqno, [], None, None)
            assert answer[:3] == [4, 3, "bad_argument"]


async def test_a_gap_in_the_numbers_of_a_publisher_is_refused(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        await client.ask(10, 1, "orders", "p", 1, [b"a"], None, None)
        answer = await client.ask(10, 2, "orders", "p", 3, [b"c"], None, None)
        assert answer[:3] == [4, 2, "out_of_sequence"]
        assert answer[4] == 2


@pytest.mark.parametrize(
    ("publisher", "seqno", "meta", "attrs"),
    [
        ("p", 0, None, None),
        ("dlx:5", 1, None, None),
        ("", 1, None, None),
        (None, 0, [{}, {}], None),
        (None, 0, None, [None, None]),
        (None, 0, None, 5),
        (None, 0, None, {9: 1}),
        (None, 0, None, {5: []}),
        (None, 0, None, {1: 256}),
        (None, 0, None, {2: -1}),
        (None, 0, None, {4: 7}),
    ],
)
async def test_bad_properties_of_a_publish_are_refused(
    nodes: Nodes, publisher: str | None, seqno: int, meta: object, attrs: object
):
    async with Client(nodes.url("n1")) as client:
        answer = await client.ask(10, 1, "orders", publisher, seqno, [b"a"], meta, attrs)
        assert answer[:3] == [4, 1, "bad_argument"]


async def test_one_connection_too_many_is_told_so(nodes: Nodes):
    url = nodes.url("n1")
    async with Client(url), Client(url), Client(url), Client(url, hello=False) as late:
        await late.send(1, 1, {})
        assert (await late.expect(4))[2] == "too_many_connections"
        assert await late.closed() == 4029


async def test_frames_after_an_error_that_closes_are_not_obeyed(nodes: Nodes):
    async with Client(nodes.url("n1")) as client:
        await client.socket.send_bytes(b"\xff")
        await client.socket.send_bytes(cbor2.dumps([51, 1, "orders", False, False]))
        assert await client.closed() == 4000
