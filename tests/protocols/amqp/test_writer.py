from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands
from pamqp.body import ContentBody
from pamqp.frame import unmarshal
from pamqp.header import ContentHeader

from node.messages.properties import NONE, build
from node.protocols.amqp import writer
from node.protocols.amqp.methods import encode_method, made
from tests.protocols.amqp.frames import where

FRAME_BYTES_MAX = 4096
JSON = build({"content_type": "application/json"})


def read(data: bytes) -> list[object]:
    """By another codec."""
    found: list[object] = []
    while data:
        size, channel, frame = unmarshal(data)
        assert size <= FRAME_BYTES_MAX
        assert channel == 5
        found.append(frame)
        data = data[size:]
    return found


def messages(data: bytes) -> list[tuple[object, bytes]]:
    found: list[tuple[object, bytes]] = []
    frames = read(data)
    while frames:
        method = frames.pop(0)
        header = frames.pop(0)
        assert isinstance(header, ContentHeader)
        body = b""
        while len(body) < header.body_size:
            part = frames.pop(0)
            assert isinstance(part, ContentBody)
            body += part.value
        found.append((method, body))
    return found


def deliveries(bodies: list[bytes], **changes: object) -> bytes:
    options = {
        "redelivered": False,
        "where": where("events", "a.b"),
        "properties": JSON,
        "bodies": bodies,
        "frame_bytes_max": FRAME_BYTES_MAX,
        **changes,
    }
    return writer.deliveries(5, b"\x03tag", 7, **options)  # type: ignore[arg-type]


class TestDeliveries:
    @given(
        st.lists(
            st.one_of(
                st.binary(max_size=20),
                st.just(b"same"),
                st.integers(4080, 4100).map(bytes),
                st.integers(8000, 20_000).map(bytes),
            ),
            min_size=1,
            max_size=20,
        )
    )
    def test_bodies_of_every_size_come_out_as_they_are(self, bodies: list[bytes]):
        found = messages(deliveries(bodies))

        assert [body for _, body in found] == bodies
        tags = [m.delivery_tag for m, _ in found if isinstance(m, commands.Basic.Deliver)]
        assert tags == list(range(7, 7 + len(bodies)))

    @pytest.mark.parametrize("redelivered", [False, True])
    def test_a_delivery_says_where_it_was_published(self, redelivered: bool):
        [(method, _)] = messages(deliveries([b"a"], redelivered=redelivered))

        assert isinstance(method, commands.Basic.Deliver)
        assert (method.consumer_tag, method.exchange, method.routing_key, method.redelivered) == (
            "tag",
            "events",
            "a.b",
            redelivered,
        )

    def test_properties_are_those_of_the_publisher(self):
        header = read(deliveries([b"a"]))[1]

        assert isinstance(header, ContentHeader)
        assert header.properties.content_type == "application/json"


class TestOthers:
    def test_an_answer_to_get_says_how_many_are_left(self):
        head = writer.get_ok_head(
            5,
            9,
            redelivered=True,
            where=where("e", "k"),
            message_count=3,
            properties=NONE,
            size_bytes=5000,
        )
        frames = writer.body_frames(5, b"x" * 5000, FRAME_BYTES_MAX)

        [(method, body)] = messages(b"".join((head, *frames)))

        assert isinstance(method, commands.Basic.GetOk)
        assert (method.delivery_tag, method.redelivered, method.message_count) == (9, True, 3)
        assert (method.exchange, method.routing_key, body) == ("e", "k", b"x" * 5000)

    def test_a_returned_message_says_why(self):
        data = writer.returned(
            5,
            312,
            "NO_ROUTE",
            where=where("e", "k"),
            properties=JSON,
            body=b"",
            frame_bytes_max=FRAME_BYTES_MAX,
        )

        [(method, body)] = messages(data)

        assert isinstance(method, commands.Basic.Return)
        assert (method.reply_code, method.reply_text, body) == (312, "NO_ROUTE", b"")

    def test_confirms_name_a_tag_and_perhaps_all_before_it(self):
        data = writer.ack(5, 2**63, multiple=True) + writer.nack(5, 2, multiple=False)

        ack, nack = read(data)

        assert isinstance(ack, commands.Basic.Ack)
        assert isinstance(nack, commands.Basic.Nack)
        assert ack.multiple is True
        assert (nack.delivery_tag, nack.multiple, nack.requeue) == (2, False, False)

    def test_methods_are_as_another_codec_reads_them(self):
        declare = made(
            commands.Queue.Declare,
            queue="q",
            passive=True,
            exclusive=True,
            nowait=True,
            arguments={"a": 1, "b": "c", "d": [True, None, 2.5]},
        )

        [found] = read(encode_method(5, declare))

        assert isinstance(found, commands.Queue.Declare)
        assert {name: getattr(found, name) for name in found.attributes()} == {
            "ticket": 0,
            "queue": "q",
            "passive": True,
            "durable": False,
            "exclusive": True,
            "auto_delete": False,
            "nowait": True,
            "arguments": {"a": 1, "b": "c", "d": [True, None, 2.5]},
        }
