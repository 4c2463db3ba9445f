"""The native protocol: bytes in, requests out; every wrong byte has its named error."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.dispatch.outgoing import (
    Active,
    Confirm,
    Delivery,
    Ended,
    Failure,
    GetAnswer,
    MessageBatch,
    Moved,
    PublishConfirms,
    RequestAnswer,
    SubscribeAnswer,
)
from node.protocols.native import replies, requests
from node.protocols.native.frames import NativeProtocol, ProtocolState
from node.protocols.native.requests import (
    BadField,
    FrameError,
    FrameTooLarge,
    HelloMissing,
    MalformedFrame,
    UnknownOpcode,
    UnsupportedVersion,
)
from tests.protocols.frames import frame, hello, opened, publish

CONSUMER = 1 << 16

GOOD: dict[str, tuple[list[Any], Any]] = {
    "ping": ([6, 7], requests.Ping(7)),
    "pong": ([7, 7], requests.Pong(7)),
    "close": ([8, 1000, "bye"], requests.Goodbye(1000, "bye")),
    "publish": (
        [10, 1, "q", "p", 3, [b"a", b"b"], {"key": "k"}, None],
        requests.Publish(1, "q", "p", 3, [b"a", b"b"], {"key": "k"}, None),
    ),
    "publish_to": (
        [13, 1, "x", "k", [b"a"], None, None],
        requests.PublishTo(1, "x", "k", [b"a"], None, None),
    ),
    "transact": (
        [
            14,
            1,
            [
                [10, "q", [b"a"], {"key": "k"}, {1: 5}],
                [13, "x", "k", [b"b"], None, None],
                [30, "q", CONSUMER, [[1, 2]], 9],
                [31, "q", CONSUMER, [[3, 3]], True, 500],
                [32, "q", CONSUMER, [[4, 4]], None],
            ],
        ],
        requests.Transact(
            1,
            [
                requests.Publish(0, "q", None, 0, [b"a"], {"key": "k"}, {1: 5}),
                requests.PublishTo(0, "x", "k", [b"b"], None, None),
                requests.Settle(0, "q", CONSUMER, [(1, 2)], 9),
                requests.Return(0, "q", CONSUMER, [(3, 3)], True, 500),
                requests.Discard(0, "q", CONSUMER, [(4, 4)], None),
            ],
        ),
    ),
    "declare_exchange": (
        [57, 1, "x", "topic", {"durable": False}],
        requests.DeclareExchange(1, "x", "topic", False, False, False, {}),
    ),
    "delete_exchange": ([58, 1, "x", True], requests.DeleteExchange(1, "x", True)),
    "bind": (
        [59, 1, "x", "queue", "q", "k", {"x-match": "any"}],
        requests.Bind(1, "x", "queue", "q", "k", {"x-match": "any"}),
    ),
    "unbind": (
        [60, 1, "x", "exchange", "y", "k", None],
        requests.Bind(1, "x", "exchange", "y", "k", {}, bound=False),
    ),
    "subscribe": (
        [20, 1, "q", {"tag": "t", "credit": 5, "held": [[1, 2, 9]]}],
        requests.Subscribe(1, "q", "t", 5, 0, False, False, None, [(1, 2, 9)]),
    ),
    "cancel": ([22, 1, "q", CONSUMER], requests.Cancel(1, "q", CONSUMER)),
    "cancel_and_give_back": (
        [22, 1, "q", CONSUMER, True],
        requests.Cancel(1, "q", CONSUMER, True),
    ),
    "credit": ([23, 1, "q", CONSUMER, 9], requests.Credit(1, "q", CONSUMER, 9)),
    "settle": (
        [30, 0, "q", CONSUMER, [[1, 2], [4, 4]]],
        requests.Settle(0, "q", CONSUMER, [(1, 2), (4, 4)]),
    ),
    "settle_up_to_token": (
        [30, 0, "q", CONSUMER, [[1, 2]], 7],
        requests.Settle(0, "q", CONSUMER, [(1, 2)], 7),
    ),
    "return": (
        [31, 0, "q", CONSUMER, [[1, 1]], True, None],
        requests.Return(0, "q", CONSUMER, [(1, 1)], True, None),
    ),
    "return_up_to_token": (
        [31, 0, "q", CONSUMER, [[1, 1]], False, 50, 7],
        requests.Return(0, "q", CONSUMER, [(1, 1)], False, 50, 7),
    ),
    "discard_up_to_token": (
        [32, 0, "q", CONSUMER, [[1, 1]], None],
        requests.Discard(0, "q", CONSUMER, [(1, 1)]),
    ),
    "discard": ([32, 0, "q", CONSUMER, [[1, 1]]], requests.Discard(0, "q", CONSUMER, [(1, 1)])),
    "extend": (
        [33, 0, "q", CONSUMER, [[1, 1]], 50],
        requests.Extend(0, "q", CONSUMER, [(1, 1)], 50),
    ),
    "get": ([40, 1, "q", 10, False], requests.Get(1, "q", 10, False)),
    "declare": ([50, 1, "q", None], requests.Declare(1, "q", {})),
    "delete": ([51, 1, "q", True, False], requests.Delete(1, "q", True, False)),
    "purge": ([52, 1, "q"], requests.Purge(1, "q")),
    "pause": ([53, 1, "q", True], requests.Pause(1, "q", True)),
    "info": ([54, 1, "q"], requests.Info(1, "q")),
    "read_from_a_sequence": (
        [42, 1, "s", {"from": 7, "count": 5, "wait_ms": 100}],
        requests.Read(1, "s", None, 7, 5, 100),
    ),
    "read_from_a_time": (
        [42, 1, "s", {"from": {"time": 5}}],
        requests.Read(1, "s", None, {"time": 5}, 1_000, 0),
    ),
    "read_by_a_cursor": (
        [42, 1, "s", {"cursor": "c", "have": 9}],
        requests.Read(1, "s", "c", None, 1_000, 0, 9),
    ),
    "settle_by_a_cursor": (
        [30, 1, "s", "c", [[1, 2]], 0],
        requests.Settle(1, "s", "c", [(1, 2)], 0),
    ),
    "cancel_by_a_cursor": ([22, 1, "s", "c", True], requests.Cancel(1, "s", "c", True)),
    "put_cursor": (
        [55, 1, "s", "c", {"ack_wait": "1m"}],
        requests.PutCursor(1, "s", "c", {"ack_wait": "1m"}),
    ),
    "delete_cursor": ([56, 1, "s", "c"], requests.DeleteCursor(1, "s", "c")),
}


@pytest.mark.parametrize("name", GOOD)
def test_every_frame_of_the_table_becomes_its_request(name: str):
    fields, request = GOOD[name]

    assert opened().receive(frame(*fields)) == request


def test_hello_opens_and_has_defaults():
    protocol = NativeProtocol(frame_bytes_max=1000)

    request = protocol.receive(hello())

    assert request == requests.Hello(None, 0, "", "/", False)
    assert protocol.state is ProtocolState.OPEN


def test_goodbye_closes():
    protocol = opened()
    protocol.receive(frame(8, 1000, ""))

    assert protocol.state is ProtocolState.CLOSED
    assert protocol.receive(publish()) is None


def refusal(protocol: NativeProtocol, data: bytes) -> FrameError:
    with pytest.raises(FrameError) as caught:
        protocol.receive(data)
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x8a\x01",
        frame(),
        cbor2.dumps({"a": 1}),
        frame("publish"),
        frame(True, 1),
        b"\x81" * 100_000 + b"\x01",  # nested deeper than anyone needs
        b"\x82\x0a\xd8\x1c\x81\xd8\x1d\x00",  # an array that contains itself
        cbor2.dumps([10, 1, "q", None, 0, [b"a"], {"big": 2**80}, None]),  # a tag, not plain data
    ],
)
def test_malformed_cbor_closes_with_a_protocol_error(data: bytes):
    protocol = opened()

    error = refusal(protocol, data)

    assert isinstance(error, MalformedFrame)
    assert (error.code, error.close_code) == ("malformed_frame", 4000)
    assert protocol.state is ProtocolState.CLOSED


@pytest.mark.parametrize("opcode", [0, 2, 3, 9, 24, 99, -1, 2**40])
def test_an_unknown_opcode_is_refused_and_the_connection_stays(opcode: int):
    protocol = opened()

    error = refusal(protocol, frame(opcode, 5))

    assert isinstance(error, UnknownOpcode)
    assert (error.code, error.close_code, error.request) == ("unknown_opcode", None, 5)
    assert protocol.receive(publish()) is not None


def test_an_oversize_frame_says_the_limit_and_closes():
    error = refusal(opened(frame_bytes_max=100), publish(bodies=[b"x" * 101]))

    assert isinstance(error, FrameTooLarge)
    assert (error.code, error.close_code) == ("frame_too_large", 4002)
    assert "100 bytes" in error.reason


def test_another_version_is_told_which_ones_there_are():
    error = refusal(NativeProtocol(frame_bytes_max=1000), hello(version=2))

    assert isinstance(error, UnsupportedVersion)
    assert (error.code, error.close_code, error.detail) == (
        "unsupported_version",
        4001,
        {"versions": [1]},
    )


def test_the_first_frame_must_be_hello():
    error = refusal(NativeProtocol(frame_bytes_max=1000), publish())

    assert isinstance(error, HelloMissing)
    assert (error.code, error.close_code) == ("hello_missing", 4003)


def test_a_hello_with_bad_options_is_no_hello():
    error = refusal(NativeProtocol(frame_bytes_max=1000), hello(session=5))

    assert (error.code, error.close_code) == ("hello_missing", 4003)
    assert "session" in error.reason


def test_a_second_hello_is_refused_and_the_connection_stays():
    protocol = opened()

    assert refusal(protocol, hello()).close_code is None
    assert protocol.state is ProtocolState.OPEN


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (publish(bodies=["text"]), "bodies"),
        (publish(bodies=b"one"), "bodies"),
        (publish(queue=5), "queue"),  # type: ignore[arg-type]
        (publish(publisher=5), "publisher"),
        (publish(seqno=-1), "seqno"),
        (publish(seqno=True), "seqno"),
        (frame(10, 1, "q"), "PUBLISH has the fields"),
        (frame(20, 1, "q", {"credit": "many"}), "credit"),
        (frame(20, 1, "q", {"colour": 1}), "colour"),
        (frame(20, 1, "q", {"held": [[1, 2]]}), "held"),
        (frame(20, 1), "SUBSCRIBE has the fields"),
        (frame(30, 1, "q", 1, [[2, 1]]), "ranges"),
        (frame(30, 1, "q", 1, [[1, 2], [2, 3]]), "ranges"),
        (frame(30, 1, "q", 1, [[0, 2]]), "ranges"),
        (frame(30, 1, "q", 1, []), "ranges"),
        (frame(31, 1, "q", 1, [[1, 2]], "no", None), "failed"),
        (frame(50, 1, "q", {1: 2}), "arguments"),
        (frame(42, 1, "s", {}), "either a cursor, or where"),
        (frame(42, 1, "s", {"from": 1, "cursor": "c"}), "either a cursor, or where"),
        (frame(42, 1, "s", {"from": 0}), "from"),
        (frame(42, 1, "s", {"from": True}), "from"),
        (frame(42, 1, "s", {"from": "middle"}), "from"),
        (frame(42, 1, "s", {"from": {"time": 1, "more": 2}}), "from"),
        (frame(42, 1, "s", {"from": {"time": True}}), "from"),
        (frame(42, 1, "s", {"from": 1, "count": 0}), "count"),
        (frame(42, 1, "s", {"from": 1, "wait_ms": 60_001}), "wait_ms"),
        (frame(42, 1, "s", {"cursor": "c", "have": -1}), "have"),
        (frame(30, 1, "s", b"c", [[1, 1]]), "consumer"),
        (frame(23, 1, "s", "c", 9), "consumer"),
        (frame(55, 1, "s", 5, {}), "cursor"),
        (frame(55, 1, "s", "c", []), "settings"),
    ],
)
def test_a_bad_field_is_named_to_its_request_and_the_connection_stays(data: bytes, word: str):
    protocol = opened()

    error = refusal(protocol, data)

    assert isinstance(error, BadField)
    assert (error.code, error.close_code, error.request) == ("bad_frame", None, 1)
    assert word in error.reason
    assert protocol.receive(publish()) is not None


def outcome(protocol: NativeProtocol, data: bytes) -> FrameError | None:
    """None when it was a request."""
    try:
        request = protocol.receive(data)
    except FrameError as error:
        return error
    assert request is not None
    return None


@given(st.binary(max_size=200))
def test_any_bytes_give_a_request_or_a_named_error(data: bytes):
    for protocol in (opened(), NativeProtocol(frame_bytes_max=150)):
        error = outcome(protocol, data)

        if error is not None:
            assert (error.close_code is not None) == (protocol.state is ProtocolState.CLOSED)
        assert error is None or error.reason


FIELDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**64)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@given(st.sampled_from([int(o) for o in requests.Opcode]), st.lists(FIELDS, max_size=8))
def test_any_fields_give_a_request_or_a_named_error(opcode: int, fields: list[Any]):
    error = outcome(opened(), frame(opcode, *fields))

    assert error is None or error.reason


def test_every_outgoing_value_has_its_frame():
    batch = MessageBatch(1, 9, 0, 0, [b"a"], None, None)
    pairs = [
        (PublishConfirms([Confirm(1, 5, 2, 0, [(0, 0)])]), [11, [[1, 5, 2, 0, [[0, 0]]]]]),
        (Delivery("q", 7, [batch], 1), [24, "q", 7, [[1, 9, 0, 0, [b"a"], None, None]]]),
        (RequestAnswer(1, 2), [3, 1, 2]),
        (SubscribeAnswer(1, 7, True), [21, 1, 7, True]),
        (GetAnswer(1, "q", 7, 3, [batch]), [41, 1, "q", 7, 3, [[1, 9, 0, 0, [b"a"], None, None]]]),
        (Failure(1, "no_queue", "why"), [4, 1, "no_queue", "why", None]),
        (Moved(1, "q", "b"), [5, 1, "q", "b", "ws://b"]),
        (Moved(1, "q", None), [5, 1, "q", None, None]),
        (Ended("q", 7, "timeout"), [25, "q", 7, "timeout"]),
        (Active("q", 7, True, 4), [26, "q", 7, True, 4]),
    ]
    for outgoing, expected in pairs:
        assert cbor2.loads(replies.encode(outgoing, lambda node: f"ws://{node}")) == expected
