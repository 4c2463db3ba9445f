"""Deliveries of a chunk against what one would write for each of its messages."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.replies import StreamChunk
from cluster.types import Body, BodyRef, LargeBody
from node.protocols.nats.jetstream.acks import Acked, acked_by, reply_subject
from node.protocols.nats.jetstream.bursts import bursts_of
from node.protocols.nats.jetstream.headers import block
from node.protocols.nats.reader import Burst, Publish

NAMES = {1: b"orders.new", 2: b"orders.100%d"}
HEADER = block([("Kind", "50%")])
metas = st.sampled_from([b"", HEADER])
texts: st.SearchStrategy[Body] = st.one_of(
    st.binary(max_size=3), st.builds(LargeBody, st.binary(max_size=2), st.just(((1, 0, 5),)))
)
messages = st.tuples(st.sampled_from([0, 1, 2]), texts, metas)
alike = st.builds(lambda one, count: [one] * count, messages, st.integers(1, 30))
chunks = st.one_of(alike, st.lists(messages, min_size=1, max_size=8))


def bursts(rows: list[tuple[int, Body, bytes]], pending: int = 100, **options: Any) -> list[Burst]:
    ids, bodies = [id_ for id_, _, _ in rows], [(text, meta) for _, text, meta in rows]
    ref = BodyRef(7, 0, len(rows))
    chunk = StreamChunk(41, ref, 51, 2, pending, 1_234)
    reply = reply_subject("orders%d", "billing")
    options.setdefault("headers_only", False)
    return bursts_of(chunk, bodies, ids, NAMES.__getitem__, reply, lambda m: m or b"", **options)


def each(found: list[Burst]) -> list[Publish]:
    return [message for burst in found for message in burst.each()]


@given(chunks, st.integers(0, 40), st.booleans())
def test_each_message_has_its_own_subject_reply_header_and_body(
    rows: list[tuple[int, Body, bytes]], pending: int, pinned: bool
):
    more = [("Nats-Pin-Id", "p")] if pinned else []
    found = each(bursts(rows, pending, more=more))

    expected: list[Publish] = []
    for at, (id_, text, meta) in enumerate(rows):
        if id_ == 0:
            continue
        fields = ([("Kind", "50%")] if meta else []) + more
        header = block(fields) if fields else b""
        body = text.head if isinstance(text, LargeBody) else text
        numbers = b"2.%d.%d.1234000000.%d" % (41 + at, 51 + at, max(0, pending - at))
        reply = b"$JS.ACK.orders%d.billing." + numbers
        whole = header + body
        expected.append(Publish(NAMES[id_], reply, len(header), len(whole), [whole + b"\r\n"]))
    assert found == expected


@given(chunks)
def test_what_a_client_is_sent_is_each_of_them(rows: list[tuple[int, Body, bytes]]):
    for burst in bursts(rows):
        sent = b""
        for subject, reply, header_bytes, size, (payload,) in burst.each():
            sizes = b"%d %d" % (header_bytes, size) if header_bytes else b"%d" % size
            verb = b"HMSG" if header_bytes else b"MSG"
            sent += b"%b %b %b %b %b\r\n%b" % (verb, subject, b"5%s", reply, sizes, payload)
        assert burst.lines(b"5%s") == sent


def test_messages_that_are_alike_are_one_burst():
    assert len(bursts([(1, b"abc", b"")] * 30)) == 1
    assert len(bursts([(1, b"abc", b"")] * 30 + [(2, b"abc", b"")])) == 2


def test_with_headers_only_the_size_of_the_body_is_said():
    (message,) = each(bursts([(1, b"abc", b"")], headers_only=True))
    assert message.payloads == [block([("Nats-Msg-Size", "3")]) + b"\r\n"]


def test_a_reply_says_which_delivery_it_acknowledges():
    _, second = each(bursts([(1, b"abc", b"")] * 2))
    assert acked_by(second.reply) == Acked("orders%d", "billing", 2, 42)
