"""What NATS clients send, cut anywhere, and what they must not send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.protocols.nats.reader import (
    CONTROL_LINE_BYTES_MAX,
    Acks,
    Connect,
    Event,
    NatsReader,
    Ping,
    Pong,
    Publish,
    Requests,
    Subscribe,
    Unsubscribe,
    pieces,
)

PAYLOAD_BYTES_MAX = 1_000
HEADER = b"NATS/1.0\r\nA: 1\r\n\r\n"

#: Bytes, and what they mean.
SAID: list[tuple[bytes, list[Event]]] = [
    (b'CONNECT {"verbose":false,"name":"a b"}\r\n', [Connect({"verbose": False, "name": "a b"})]),
    (b"PING\r\n", [Ping()]),
    (b"pong\r\n", [Pong()]),
    (b"+OK\r\n", []),
    (b"INFO {}\r\n", []),
    (b"SUB a.* 1\r\n", [Subscribe(b"a.*", b"", b"1")]),
    (b"Sub\ta.>   workers  x7 \r\n", [Subscribe(b"a.>", b"workers", b"x7")]),
    (b"UNSUB 1\r\n", [Unsubscribe(b"1", 0)]),
    (b"UNSUB 1 5\n", [Unsubscribe(b"1", 5)]),
    (b"UNSUB 1 many\r\n", [Unsubscribe(b"1", 0)]),
    (b"PUB a 0\r\n\r\n", [Publish(b"a", b"", 0, 0, [b"\r\n"])]),
    (b"PUB a b.1 2\r\nhi\r\n", [Publish(b"a", b"b.1", 0, 2, [b"hi\r\n"])]),
    (
        b"PUB a 15\r\nPUB a 2\r\nPING\r\n\r\n",
        [Publish(b"a", b"", 0, 15, [b"PUB a 2\r\nPING\r\n\r\n"])],
    ),
    (
        b"HPUB a 18 20\r\n" + HEADER + b"hi\r\n",
        [Publish(b"a", b"", 18, 20, [HEADER + b"hi\r\n"])],
    ),
    (
        b"HPUB a r 18 18\r\n" + HEADER + b"\r\n",
        [Publish(b"a", b"r", 18, 18, [HEADER + b"\r\n"])],
    ),
]


def reader() -> NatsReader:
    return NatsReader(payload_bytes_max=PAYLOAD_BYTES_MAX)


def single(events: list[Event]) -> list[Event]:
    """Bursts taken apart: how much of a burst comes at once depends on where it is cut."""
    found: list[Event] = []
    for event in events:
        match event:
            case Publish():
                found += [event._replace(payloads=[payload]) for payload in event.payloads]
            case Requests() | Acks():
                found += event.each()
            case _:
                found.append(event)
    return found


@pytest.mark.parametrize(("data", "events"), SAID, ids=lambda value: repr(value)[:30])
def test_each_operation_is_read(data: bytes, events: list[Event]):
    found = reader()

    assert found.feed(data) == events
    assert found.error is None


def test_what_is_said_may_be_cut_at_every_byte():
    data = b"".join(said for said, _ in SAID)
    meant = [event for _, events in SAID for event in events]

    for cut in range(len(data) + 1):
        found = reader()
        assert found.feed(data[:cut]) + found.feed(data[cut:]) == meant
    byte_by_byte = reader()
    assert [e for at in range(len(data)) for e in byte_by_byte.feed(data[at : at + 1])] == meant


#: Of which runs are made.
ASKED: list[tuple[bytes, list[Event]]] = [
    (b"PUB a b.%d 2\r\nhi\r\n" % number, [Publish(b"a", b"b.%d" % number, 0, 2, [b"hi\r\n"])])
    for number in (1, 2, 3, 10, 11)
]


def ack(of: str, body: bytes = b"+ACK") -> tuple[bytes, list[Event]]:
    """And what it means; nats-py writes two spaces."""
    subject = b"$JS.ACK." + of.encode()
    said = b"PUB %b  %d\r\n%b\r\n" % (subject, len(body), body)
    return said, [Publish(subject, b"", 0, len(body), [body + b"\r\n"])]


ACKED: list[tuple[bytes, list[Event]]] = [
    *(ack(f"S.c.1.{number}.{number + 3}.1700000000000000000.{9 - number}") for number in range(9)),
    ack("S.d.1.5.5.1.1"),
    ack("S.c.1.5.5.1.1", b"-NAK"),
    ack("S.c.1.5.5.1.1", b""),
    ack("S.c.1.5.5.1"),
    ack("S.c.1.x.5.1.1"),
    ack("S.c.1.5.5.1.1.1.1"),
    ack("_.hash.S.c.1.5.5.1.1.token"),
]


@given(
    st.lists(
        st.sampled_from([*SAID, *SAID[-5:] * 3, *ASKED * 6])
        | st.sampled_from([*ACKED[:9] * 6, *ACKED, *SAID[:3]]),
        max_size=60,
    ),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_whatever_is_said_means_the_same_however_it_is_cut(
    said: list[tuple[bytes, list[Event]]], sizes: list[int]
):
    data = b"".join(each for each, _ in said)
    meant = [event for _, events in said for event in events]
    found, cut = reader(), reader()
    events: list[Event] = []
    at, turn = 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        events += cut.feed(data[at : at + size])
        at, turn = at + size, turn + 1

    assert single(found.feed(data)) == single(events) == single(meant)


def test_publishes_that_differ_only_in_their_payload_are_one_event():
    found = reader()

    events = found.feed(
        b"PUB a 1\r\n1\r\n" * 3 + b"PUB a 1\r\n2\r\nPUB b 1\r\n3\r\nPUB a 1\r\n4\r\n"
    )

    assert events == [
        Publish(b"a", b"", 0, 1, [b"1\r\n", b"1\r\n", b"1\r\n", b"2\r\n"]),
        Publish(b"b", b"", 0, 1, [b"3\r\n"]),
        Publish(b"a", b"", 0, 1, [b"4\r\n"]),
    ]


def test_acknowledgements_of_one_consumer_are_one_event():
    said = b"".join(said for said, _ in ACKED[:9])

    (event,) = reader().feed(said)

    assert isinstance(event, Acks)
    assert event.start == b"$JS.ACK.S.c."
    assert event.sequences == range(9)
    assert single([event]) == [event for _, events in ACKED[:9] for event in events]
    assert reader().feed(said + ACKED[9][0]) == [event, *ACKED[9][1]]


@pytest.mark.parametrize(
    "others",
    [
        "S.c.1.0.3.1700000000000000000.9",  # the first one again
        "S.c.1.9.13.1700000000000000000.0",
        "S.c.1.9.12.1700000000000000001.0",
        "S.c.2.9.12.1700000000000000000.0",
        "S.c.1.9.12.1700000000000000000.1",
        "S.c.1.09.12.1700000000000000000.0",
    ],
)
def test_acknowledgements_that_are_not_in_turn_say_each_what_they_say(others: str):
    (event,) = reader().feed(b"".join(said for said, _ in [*ACKED[:9], ack(others)]))

    assert isinstance(event, Acks)
    assert event.sequences == [*range(9), int(others.split(".")[3])]


def test_any_number_of_acknowledgements_in_turn_is_read():
    acks = [ack(f"S.c.1.{at}.{at}.17.{5_000 - at}")[0] for at in range(98, 5_001)]

    events = reader().feed(b"".join(acks))

    assert [at for event in events if isinstance(event, Acks) for at in event.sequences] == [
        *range(98, 5_001)
    ]
    assert len(events) < 20


def test_an_acknowledgement_that_is_missing_in_the_middle_is_not_made_up():
    said = [said for said, _ in ACKED[:9]]
    said[4] = said[3]

    (event,) = reader().feed(b"".join(said))

    assert isinstance(event, Acks)
    assert event.sequences == [0, 1, 2, 3, 3, 5, 6, 7, 8]


def request(reply: bytes, payload: bytes = b"hi") -> bytes:
    return b"PUB a %b %d\r\n%b\r\n" % (reply, len(payload), payload)


def test_requests_that_differ_only_in_the_last_token_of_their_reply_are_one_event():
    replies = [b"in.%d.%04d" % (number // 90, number) for number in range(100)]

    events = reader().feed(b"".join(map(request, replies)))

    assert events == [
        Requests(b"a", replies[:90], 2, [b"hi"] * 90),
        Requests(b"a", replies[90:], 2, [b"hi"] * 10),
    ]


@pytest.mark.parametrize(
    "odd",
    [
        request(b"in.x.y"),
        request(b"in.1 2"),
        request(b"in.1\t2"),
        request(b"in.123", b"longer"),
        request(b"in.1234"),
        request(b"on.123"),
        request(b"in123"),
        request(b"in."),
        b"PUB b in.123 2\r\nhi\r\n",
        b"PUB a in.123 2\nhi\r\n",
        b"PUB  a in.123 2\r\nhi\r\n",
        b"pub a in.123 2\r\nhi\r\n",
        b"HPUB a in.123 0 2\r\nhi\r\n",
        b"HPUB a in.123 18 20\r\n" + HEADER + b"hi\r\n",
        b"PUB a in.123 2\r\nhi??",
        b"PUB a in.1\r\n 2\r\nhi\r\n",
        b"PUB a in.123 2 ",
    ],
)
@pytest.mark.parametrize("before", [0, 1, 2, 20])
def test_a_run_of_requests_means_what_they_mean_one_by_one(odd: bytes, before: int):
    first, last = (
        b"".join(request(b"in.%03d" % each) for each in range(start, start + before))
        for start in (100, 200)
    )
    data = first + odd + last
    whole, cut = reader(), reader()

    events = [event for at in range(len(data)) for event in cut.feed(data[at : at + 1])]

    assert single(whole.feed(data)) == events
    assert type(whole.error) is type(cut.error)


def test_a_burst_ends_where_a_payload_does_not():
    found = reader()

    assert found.feed(b"PUB a 1\r\n1\r\nPUB a 1\r\n2??") == [Publish(b"a", b"", 0, 1, [b"1\r\n"])]
    assert found.error is not None


def test_a_large_payload_in_many_pieces_is_joined_once():
    found = NatsReader(payload_bytes_max=1 << 20)
    size = 1 << 20

    events = found.feed(b"PUB a %d\r\n" % size)
    for _ in range(1 << 10):
        events += found.feed(b"x" * (1 << 10))
        assert events == []

    assert found.feed(b"\r\nPING\r\n") == [
        Publish(b"a", b"", 0, size, [b"x" * size + b"\r\n"]),
        Ping(),
    ]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"FOO\r\n", "Unknown Protocol Operation"),
        (b"\r\n", "Unknown Protocol Operation"),
        (b"MSG a 1 1\r\n", "Unknown Protocol Operation"),
        (b"-ERR 'x'\r\n", "Unknown Protocol Operation"),
        (b"SUB\r\n", "Unknown Protocol Operation"),
        (b"UNSUB\r\n", "Unknown Protocol Operation"),
        (b"PUB a 2\r\nabcd\r\n", "Unknown Protocol Operation"),
        (b"PUB a 1\r\nabc", "Unknown Protocol Operation"),
        (b"SUB a\r\n", "Parser Error"),
        (b"SUB a b c d\r\n", "Parser Error"),
        (b"UNSUB 1 2 3\r\n", "Parser Error"),
        (b"PUB\r\n", "Parser Error"),
        (b"PUB a\r\n", "Parser Error"),
        (b"PUB a b c 1\r\n", "Parser Error"),
        (b"PUB a x\r\n", "Parser Error"),
        (b"PUB a -1\r\n", "Parser Error"),
        (b"PUB a +1\r\n", "Parser Error"),
        (b"PUB a 1.0\r\n", "Parser Error"),
        (b"HPUB a 1\r\n", "Parser Error"),
        (b"HPUB a 9 8\r\n", "Parser Error"),
        (b"HPUB a x 8\r\n", "Parser Error"),
        (b"CONNECT\r\n", "Parser Error"),
        (b"CONNECT {\r\n", "Parser Error"),
        (b"CONNECT []\r\n", "Parser Error"),
        (b"CONNECT \xff\r\n", "Parser Error"),
        (b'CONNECT {"user":"\\ud800"}\r\n', "Parser Error"),
        (b"CONNECT " + b"[" * 4_000 + b"\r\n", "Parser Error"),
        (b"PUB a 1001\r\n", "Maximum Payload Violation"),
        (b"PUB a %b\r\n" % (b"9" * 4_000), "Maximum Payload Violation"),
        (b"SUB " + b"a" * CONTROL_LINE_BYTES_MAX, "maximum control line exceeded"),
        (b"SUB " + b"a" * CONTROL_LINE_BYTES_MAX + b" 1\r\n", "maximum control line exceeded"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_wrong_ends_the_connection_with_a_text(data: bytes, text: str):
    found = reader()

    assert found.feed(b"PING\r\n" + data + b"PING\r\n") == [Ping()]

    assert found.error is not None
    assert found.error.text == text
    assert found.feed(b"PING\r\n") == []


@given(st.binary(max_size=200), st.integers(0, 200))
def test_whatever_comes_is_read_or_refused_wherever_it_is_cut(data: bytes, cut: int):
    whole, halves = reader(), reader()

    events = single(halves.feed(data[:cut]) + halves.feed(data[cut:]))

    assert single(whole.feed(data)) == events
    assert type(whole.error) is type(halves.error)


def test_pieces_have_one_size_and_may_skip_what_is_before_each():
    assert pieces(b"abcabd", 3) == [b"abc", b"abd"]
    assert pieces(b"__a__b", 1, skip=2) == [b"a", b"b"]
