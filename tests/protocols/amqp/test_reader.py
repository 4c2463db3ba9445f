from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from node.broker.bodies import PART_BYTES, PARTED_OVER_BYTES, PartedBody, in_one_piece
from node.messages import amqp_errors as errors
from node.messages.properties import NONE, build
from node.protocols.amqp.events import (
    Acks,
    ContentTooLarge,
    Heartbeat,
    Method,
    Publish,
    publish_of,
)
from node.protocols.amqp.methods import encode_method, made
from tests.protocols.amqp import frames
from tests.protocols.amqp.frames import (
    ack,
    body,
    flattened,
    frame,
    header,
    publish,
    publish_method,
    reader,
    where,
)

JSON = build({"content_type": "application/json", "delivery_mode": 2})


class TestPublishes:
    def test_a_message_comes_with_its_routing_flags_and_properties(self):
        route = where("events", "a.b")

        events = reader().feed(publish(b"hello", route=route, properties=JSON, flags=1))

        assert events == [publish_of(1, route, JSON, [b"hello"], mandatory=True)]

    @pytest.mark.parametrize(
        "bodies",
        [
            [b"a", b"bb", b"cc", b"dd", b"", b"ee", b"f" * 300, b"g" * 300, b"h" * 300],
            [bytes([n]) * 50 for n in range(20)],
            [bytes([n]) * (n + 1) for n in range(20)],
            [b"", b"", b""],
        ],
    )
    def test_equal_messages_but_for_their_bodies_are_one_event(self, bodies: list[bytes]):
        events = reader().feed(b"".join(publish(content) for content in bodies))

        assert events == [publish_of(1, where(), NONE, [*bodies])]

    @pytest.mark.parametrize(
        "others",
        [
            [publish(b"b", route=where(key="others")), publish(b"c", properties=JSON)],
            [publish(b"b", properties=JSON), publish(b"c", properties=JSON)],
            [publish(b"b", properties=build({"message_id": str(n)})) for n in range(9)],
            [publish(b"b", route=where(key=str(n % 3)), properties=JSON) for n in range(9)],
            [publish(b"bc", route=where(key="k" * 255)), publish(b"d", part_bytes_max=1)],
        ],
    )
    def test_messages_for_several_keys_and_with_any_properties_are_one_event(
        self, others: list[bytes]
    ):
        """Also those that are read frame by frame, as they come in several reads."""
        data = b"".join([publish(b"a"), *others, publish(b"a") * 3])
        one_by_one, subject = list[object](), reader()
        for byte in data:
            one_by_one += flattened(subject.feed(bytes([byte])))

        events = reader().feed(data)

        assert len(events) == 1
        assert flattened(events) == one_by_one

    @pytest.mark.parametrize(
        "other",
        [
            publish(b"b", channel=2),
            publish(b"b", flags=1),
            publish(b"b", flags=2),
            publish(b"b", properties=build({"priority": 0})),
            publish(b"b", properties=build({"headers": {}})),
        ],
    )
    def test_a_message_that_is_to_be_treated_otherwise_is_an_event_of_its_own(self, other: bytes):
        same = publish(b"a") * 3

        events = reader().feed(same + other + same)

        assert [type(event) for event in events] == [Publish] * 3
        assert [event.bodies for event in events if isinstance(event, Publish)] == [
            [b"a"] * 3,
            [b"b"],
            [b"a"] * 3,
        ]

    def test_routes_that_are_remembered_have_an_end(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("node.protocols.amqp.reader.METHODS_MAX", 3)
        routes = [where(key=str(n)) for n in range(10)] * 2

        [event] = reader().feed(b"".join(publish(route=route) for route in routes))

        assert isinstance(event, Publish)
        assert event.wheres == routes

    def test_a_streak_goes_on_in_the_next_read(self):
        subject = reader()
        subject.feed(publish(b"a") * 3)

        events = subject.feed(publish(b"b") * 3)

        assert events == [publish_of(1, where(), NONE, [b"b"] * 3)]

    def test_a_body_of_many_frames_is_one(self):
        content = bytes(range(256)) * 64

        events = reader().feed(publish(content) + publish(content, part_bytes_max=100))

        assert events == [publish_of(1, where(), NONE, [content, content])]

    def test_contents_of_channels_may_be_interleaved(self):
        data = b"".join(
            [
                frames.publish_method(1),
                frames.publish_method(2),
                header(2, 2),
                header(1, 2),
                body(1, b"a"),
                body(2, b"c"),
                publish(b"z", channel=3) * 3,
                body(2, b"d"),
                body(1, b"b"),
            ]
        )

        events = reader().feed(data)

        assert [(e.channel, e.bodies) for e in events if isinstance(e, Publish)] == [
            (3, [b"z"] * 3),
            (2, [b"cd"]),
            (1, [b"ab"]),
        ]

    def test_a_message_over_the_limit_is_skipped(self):
        subject = reader(message_bytes_max=10)

        events = subject.feed(publish(b"a" * 11) + publish(b"b"))

        assert events == [
            ContentTooLarge(1, 11, 10),
            publish_of(1, where(), NONE, [b"b"]),
        ]

    def test_a_message_over_the_limit_does_not_hide_in_a_streak(self):
        events = reader(message_bytes_max=10).feed(publish(b"b") * 3 + publish(b"a" * 11))

        assert events[1:] == [ContentTooLarge(1, 11, 10)]

    def test_the_end_of_a_channel_ends_a_message_that_was_half_said(self):
        close_ok = encode_method(1, commands.Channel.CloseOk())
        subject = reader()

        events = subject.feed(frames.publish_method(1) + header(1, 9) + close_ok + publish())

        assert subject.error is None
        assert [type(event) for event in events] == [Method, Publish]


class TestAcks:
    def test_tags_that_follow_each_other_are_one_range(self):
        data = b"".join(ack(tag) for tag in (1, 2, 3, 7, 8, 6))

        assert reader().feed(data) == [Acks(1, [(1, 3), (7, 8), (6, 6)])]

    def test_multiple_is_a_range_from_0(self):
        data = ack(5, multiple=True) + ack(6) + ack(0, multiple=True) + ack(1)

        assert reader().feed(data) == [Acks(1, [(0, 5), (6, 6), (0, 0), (1, 1)])]

    def test_each_channel_has_its_own(self):
        data = ack(1) + ack(2, channel=2) + ack(3)

        assert reader().feed(data) == [
            Acks(1, [(1, 1)]),
            Acks(2, [(2, 2)]),
            Acks(1, [(3, 3)]),
        ]

    def test_a_single_tag_0_names_nothing_and_is_left_to_the_channel(self):
        first, zero, third = reader().feed(ack(1) + ack(0) + ack(2))

        assert (first, third) == (Acks(1, [(1, 1)]), Acks(1, [(2, 2)]))
        assert isinstance(zero, Method)
        assert isinstance(zero.method, commands.Basic.Ack)
        assert (zero.method.delivery_tag, zero.method.multiple) == (0, False)

    def test_the_largest_tag_is_one(self):
        assert reader().feed(ack(2**64 - 1)) == [Acks(1, [(2**64 - 1, 2**64 - 1)])]


class TestMethods:
    def test_a_method_comes_with_its_arguments(self):
        declare = made(
            commands.Queue.Declare,
            queue="größe",
            durable=True,
            nowait=True,
            arguments={"x-max-length": 5, "x-dead-letter-exchange": "dead"},
        )

        [event] = reader().feed(encode_method(3, declare))

        assert isinstance(event, Method)
        assert isinstance(event.method, commands.Queue.Declare)
        assert event.channel == 3
        assert (event.method.queue, event.method.passive, event.method.durable) == (
            "größe",
            False,
            True,
        )
        assert event.method.arguments == {"x-max-length": 5, "x-dead-letter-exchange": "dead"}

    def test_a_heartbeat_is_an_event(self):
        assert reader().feed(frames.HEARTBEAT) == [Heartbeat()]

    @pytest.mark.parametrize("index", sorted(commands.INDEX_MAPPING))
    def test_every_method_survives_the_way_out_and_in(self, index: int):
        method = made(commands.INDEX_MAPPING[index])
        data = encode_method(1, method)
        if method.name in {"Basic.Publish", "Basic.Ack"}:
            return  # events of their own

        [event] = reader().feed(data)

        assert isinstance(event, Method)
        assert encode_method(1, event.method) == data


class TestErrors:
    @pytest.mark.parametrize(
        ("data", "code"),
        [
            pytest.param(frame(8, 0, b"", end=0), errors.FRAME_ERROR, id="frame end"),
            pytest.param(frame(1, 1, b"abcd", end=0), errors.FRAME_ERROR, id="method's frame end"),
            pytest.param(publish()[:-1] + b"x", errors.FRAME_ERROR, id="body's frame end"),
            pytest.param(frame(5, 0, b""), errors.FRAME_ERROR, id="frame type"),
            pytest.param(frame(8, 0, b"a"), errors.FRAME_ERROR, id="heartbeat with a payload"),
            pytest.param(b"\x01\x00\x01\x00\x00\x10\x01", errors.FRAME_ERROR, id="large frame"),
            pytest.param(b"GET / HTTP/1.1\r\n\r\n", errors.FRAME_ERROR, id="another protocol"),
            pytest.param(header(1, 1), errors.UNEXPECTED_FRAME, id="header of no method"),
            pytest.param(body(1, b"a"), errors.UNEXPECTED_FRAME, id="body of no method"),
            pytest.param(
                frames.publish_method() + body(1, b"a"), errors.UNEXPECTED_FRAME, id="no header"
            ),
            pytest.param(
                frames.publish_method() + header(1, 1) + header(1, 1),
                errors.UNEXPECTED_FRAME,
                id="two headers",
            ),
            pytest.param(
                frames.publish_method() + publish(), errors.UNEXPECTED_FRAME, id="no content"
            ),
            pytest.param(
                frames.publish_method() + header(1, 1, class_id=10) + body(1, b"a"),
                errors.UNEXPECTED_FRAME,
                id="header of another class",
            ),
            pytest.param(
                frames.publish_method() + header(1, 1) + body(1, b"ab"),
                errors.UNEXPECTED_FRAME,
                id="body too long",
            ),
            pytest.param(
                frames.publish_method() + frame(2, 1, b"\x00\x3c\x00\x00") + body(1, b"a"),
                errors.FRAME_ERROR,
                id="header too short",
            ),
            pytest.param(
                publish(properties=b"\x80\x00\x05a"), errors.SYNTAX_ERROR, id="bad properties"
            ),
            pytest.param(
                publish(properties=JSON) * 3 + publish(properties=JSON[:-1] + b"\xff\xff"),
                errors.SYNTAX_ERROR,
                id="bad properties behind good ones",
            ),
            pytest.param(publish(route=b"\x05a\x00"), errors.SYNTAX_ERROR, id="bad routing"),
            pytest.param(publish(route=b"\x00\x01\xff"), errors.SYNTAX_ERROR, id="key not text"),
            pytest.param(publish(channel=0), errors.CHANNEL_ERROR, id="publish on channel 0"),
            pytest.param(
                b"".join(publish_method(channel=number) for number in range(5, 16)),
                errors.CHANNEL_ERROR,
                id="more messages begun than there may be channels",
            ),
            pytest.param(
                frame(1, 1, struct.pack(">HH", 60, 99)), errors.NOT_IMPLEMENTED, id="method"
            ),
            pytest.param(frame(1, 1, b"ab"), errors.SYNTAX_ERROR, id="no method"),
            pytest.param(
                frame(1, 1, struct.pack(">IH", 0x32000A, 0) + b"\x09ab"),
                errors.SYNTAX_ERROR,
                id="arguments end too early",
            ),
        ],
    )
    def test_bytes_that_cannot_be_read_end_the_connection_with_a_code(self, data: bytes, code: int):
        subject = reader()

        events = subject.feed(publish(b"before", channel=4) + data)

        assert flattened(events)[:1] == flattened([publish_of(4, where(), NONE, [b"before"])])
        assert isinstance(subject.error, errors.ConnectionError_)
        assert subject.error.code == code
        assert subject.feed(publish()) == []


# --- properties -----------------------------------------------------------------------------------

_BODIES = st.binary(max_size=9000)
_PROPERTIES = st.sampled_from(
    [
        NONE,
        JSON,
        build({"headers": {"a": 1}, "timestamp": 5}),
        build({"headers": {"a": 1}, "timestamp": 2**63}),
        build({"message_id": "größe", "priority": 3}),
    ]
)
_ROUTES = st.sampled_from([where(), where("e", "k" * 255), where("", "größe")])
_PUBLISHES = st.builds(
    publish,
    _BODIES,
    channel=st.integers(1, 3),
    route=_ROUTES,
    properties=_PROPERTIES,
    flags=st.integers(0, 3),
    part_bytes_max=st.integers(1000, 4088),
)


def _repeated(data: bytes, count: int) -> bytes:
    return data * count


_STREAKS = st.builds(_repeated, _PUBLISHES, st.integers(1, 6))
_ACKS = st.builds(ack, st.integers(0, 5), channel=st.integers(1, 2), multiple=st.booleans())
_OTHERS = st.sampled_from(
    [
        frames.HEARTBEAT,
        encode_method(1, made(commands.Queue.Declare, queue="q")),
        encode_method(2, made(commands.Channel.Open)),
    ]
)
_STREAMS = st.lists(st.one_of(_PUBLISHES, _STREAKS, _ACKS, _OTHERS), max_size=20).map(b"".join)


def fed(data: bytes, cuts: list[int]) -> list[object]:
    subject = reader(message_bytes_max=8000)
    events: list[object] = []
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for begin, end in itertools.pairwise(places):
        events += flattened(subject.feed(data[begin:end]))
    events.append(None if subject.error is None else subject.error.code)
    return events


@given(_STREAMS, st.lists(st.integers(0, 2**20), max_size=30))
def test_events_are_the_same_however_the_bytes_are_cut(data: bytes, cuts: list[int]):
    assert fed(data, cuts) == fed(data, [])


@given(_STREAMS.filter(lambda data: len(data) < 3000))
def test_events_are_the_same_byte_by_byte(data: bytes):
    assert fed(data, list(range(len(data)))) == fed(data, [])


@given(_STREAMS, st.integers(0, 2**20), st.binary(min_size=1, max_size=4))
def test_damaged_bytes_are_read_or_refused_but_never_raise(data: bytes, at: int, damage: bytes):
    at %= len(data) + 1
    damaged = data[:at] + damage + data[at + len(damage) :]

    assert fed(damaged, []) == fed(damaged, [at, at + 1, at + 9])


@given(st.binary(max_size=200), st.sampled_from(sorted(commands.INDEX_MAPPING)))
def test_any_arguments_of_any_method_are_read_or_refused(payload: bytes, index: int):
    subject = reader()

    subject.feed(frame(1, 1, struct.pack(">I", index) + payload))

    assert subject.error is None or isinstance(subject.error, errors.AmqpError)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes):
    reader().feed(data)


@pytest.mark.parametrize("frame_bytes", [4_096, 131_072, 4 << 20])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("over", [-1, 0, 1, PART_BYTES])
def test_a_body_over_the_limit_comes_in_parts_however_it_is_framed(
    frame_bytes: int, count: int, over: int
):
    """Three equal ones in a row are read another way than the first."""
    content = bytes(range(251)) * ((PARTED_OVER_BYTES + PART_BYTES) // 251 + 1)
    content = content[: PARTED_OVER_BYTES + over]
    sent = publish(content, part_bytes_max=frame_bytes - 8)

    subject = reader(frame_bytes_max=frame_bytes, message_bytes_max=1 << 24)
    bodies = [
        found
        for event in subject.feed(sent * count)
        if isinstance(event, Publish)
        for found in event.bodies
    ]

    assert subject.error is None
    assert [isinstance(found, PartedBody) for found in bodies] == [over > 0] * count
    assert all(in_one_piece(found) == content for found in bodies)
    for found in bodies:
        if isinstance(found, PartedBody):
            assert len(found) == len(content)
            assert max(found.sizes) <= PART_BYTES


def test_empty_frames_of_a_body_are_not_kept():
    subject = reader()
    subject.feed(publish_method() + header(1, 2))
    for _ in range(100):
        assert subject.feed(body(1, b"") * 100) == []

    [content] = subject._contents.values()  # pyright: ignore[reportPrivateUsage]
    assert content.parts == []
    assert flattened(subject.feed(body(1, b"hi")))
