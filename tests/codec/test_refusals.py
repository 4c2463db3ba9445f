"""What is no reply, stamp or plain data is refused in words; parts of large bodies are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cluster.codec.cbor import pack
from cluster.codec.entries import (
    DEPTH_MAX,
    Entry,
    decode_entry,
    decode_reply,
    encode_entry,
    encode_reply,
    part_of,
)
from cluster.codec.errors import CodecError
from cluster.machine.commands import (
    BodyPart,
    ChangeCatalog,
    CreateQueue,
    DeclareQueue,
    Enqueue,
    PutConsumer,
    PutEntry,
    QueueConfig,
    Transaction,
)
from cluster.machine.replies import Ok
from cluster.types import GroupId, NodeId, QueueId
from tests.testkit.nesting import nested

QUEUE = QueueId(1)


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        ({}, "starts with its number"),
        ([], "starts with its number"),
        ([250], "no reply has the number 250"),
        (["a"], "no reply has the number 'a'"),
    ],
)
def test_what_is_no_reply_is_refused(packed: Any, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        decode_reply(pack(packed))


def test_what_cbor_does_not_have_is_refused() -> None:
    with pytest.raises(CodecError, match="cannot be written as CBOR"):
        pack({"a": object()})


HOLDING: list[Callable[[Any], Any]] = [
    lambda value: PutEntry("parameters", ("a", "", "b"), {"value": value}),
    lambda value: ChangeCatalog([DeclareQueue("/", "q", {"x": value})]),
    lambda value: PutConsumer(QUEUE, {"name": "c", "x": value}),
    lambda value: CreateQueue(QUEUE, "/", "q", QueueConfig(type="stream", stream={"x": value})),
    lambda value: Enqueue(QUEUE, None, 0, [b"a"], {"headers": value}),
    lambda value: Enqueue(QUEUE, None, 0, [b"a", b"b"], [b"plain", {"headers": value}]),
    lambda value: Transaction(
        NodeId("n1"), 1, 1, 0, [], [(GroupId(2), [Enqueue(QUEUE, None, 0, [b"a"], [value])])]
    ),
]


@pytest.mark.parametrize("holding", HOLDING)
def test_what_can_be_written_can_be_read(holding: Callable[[Any], Any]) -> None:
    """Or no copy could go beyond the entry."""
    deepest = holding(nested(DEPTH_MAX - 3))
    assert decode_entry(encode_entry(1, [deepest], 5)).commands
    for depth in (DEPTH_MAX, 390, 100_000):
        with pytest.raises(CodecError, match="nested deeper than"):
            encode_entry(1, [holding(nested(depth))], 5)


def test_a_reply_comes_back_as_it_was() -> None:
    assert decode_reply(encode_reply(Ok(3))) == Ok(3)


def test_a_part_is_found_by_its_place_among_the_bodies_of_its_entry() -> None:
    two = Enqueue(QUEUE, None, 0, [b"a", b"b"])
    first, second = (BodyPart(QUEUE, "u", number, b"%d" % number) for number in range(2))
    entry = Entry(3, 0, [two, first, second])

    assert [part_of(entry, place) for place in range(5)] == [None, None, b"0", b"1", None]
