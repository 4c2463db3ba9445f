"""Message groups: the key of a message, whichever protocol it came by."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.machine.arguments import GROUP_KEY
from cluster.machine.commands import ATTR_DEATHS, ATTR_GROUP_KEY, ATTR_TTL_MS, ROUTING_KEY
from cluster.machine.marks import GROUP_KEY_CHARS_MAX
from node.messages import properties
from node.messages.group_keys import with_group_keys
from node.messages.message import where_of

BY_HEADER, BY_ROUTING_KEY = {GROUP_KEY: "order"}, {GROUP_KEY: ROUTING_KEY}


def amqp(key: str = "", **headers: Any) -> bytes:
    return where_of("ex", key) + properties.build({"headers": headers} if headers else {})


@pytest.mark.parametrize(
    ("meta", "key"),
    [
        (amqp(order="7"), "7"),
        (amqp(order=7), "7"),
        (amqp(order=True), "True"),
        (amqp(order=""), None),
        (amqp(other="7"), None),
        (amqp("order"), None),
        ({"headers": {"order": "7"}}, "7"),
        ({"headers": {}}, None),
        ({"order": "7"}, None),
        (b"NATS/1.0\r\norder: 7\r\n\r\n", "7"),
        (None, None),
    ],
)
def test_a_header_is_the_key(meta: Any, key: str | None):
    expected = None if key is None else {ATTR_GROUP_KEY: key}
    assert with_group_keys(BY_HEADER, meta, None, 1) == expected


def test_long_keys_are_made_shorter():
    for number in range(10):
        long = f"{number}" * 100_000
        meta = amqp(order=long)
        (key,) = with_group_keys(BY_HEADER, [meta], None, 1)[ATTR_GROUP_KEY]
        assert {ATTR_GROUP_KEY: key} == with_group_keys(BY_HEADER, meta, None, 1)
        assert len(key) <= GROUP_KEY_CHARS_MAX


@pytest.mark.parametrize("size", [0, 1, 300])
def test_a_batch_has_the_keys_that_each_has_alone(size: int):
    """The usual ones are read in another way."""
    others: list[dict[str, Any]] = [
        {},
        {"content_type": "t", "content_encoding": "e", "message_id": "m"},
        {"content_type": "t", "priority": 3},
    ]
    metas: list[Any] = [
        where_of("ex", "k") + properties.build({**other, "headers": headers})
        for other in others
        for headers in (
            {"order": "k" * size},
            {"order": "é", "more": 1},
            {"more": "x", "order": "k" * size},
            {"n": 1, "order": 2},
            {"order": b"\xff"},
        )
    ]
    metas += [b"", b"\x01", {"headers": {"order": "a"}}, None]
    metas += [b"NATS/1.0\r\norder: 7\r\n\r\n", where_of("", "") + b"\x00\x00"]

    def alone(meta: Any) -> Any:
        try:
            attrs = with_group_keys(BY_HEADER, meta, None, 1)
        except IndexError:
            return "no meta at all"
        return attrs and attrs[ATTR_GROUP_KEY]

    expected = [alone(meta) for meta in metas]
    whole = [each for each in zip(metas, expected, strict=True) if each[1] != "no meta at all"]
    together = with_group_keys(BY_HEADER, [meta for meta, _ in whole], None, len(whole))
    assert together == {ATTR_GROUP_KEY: [key for _, key in whole]}
    assert sum(key is not None for _, key in whole) >= 10


@pytest.mark.parametrize(
    "other",
    [
        amqp(order="b" * 255),
        amqp(order="b" * 256),
        amqp(order=""),
        amqp(order=7),
        amqp(more="x", order="b"),
        amqp(),
        where_of("ex", "") + properties.build({"headers": {"order": "b"}, "content_type": "t"}),
        where_of("ex", "k") + properties.build({"headers": {"order": "b"}, "message_id": "m"}),
        amqp(order="bbb")[:-1],
        # No headers, and what follows looks like one.
        where_of("ex", "")
        + properties.build(
            {"headers": {"n": 1}, "correlation_id": "order", "reply_to": "\0\0\0\3" + "x" * 79}
        ).replace(b"\0\0\0\x07\1nI\0\0\0\1", bytes(4)),
        {"headers": {"order": "b"}},
        None,
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_the_keys_of_messages_that_are_alike_but_for_one(other: Any, first: bool):
    alike = [amqp(order="a"), amqp(order="key"), amqp(order="é")]
    metas = [other, *alike] if first else [*alike, other]
    alone = [with_group_keys(BY_HEADER, meta, None, 1) or {} for meta in metas]
    keys = [attrs.get(ATTR_GROUP_KEY) for attrs in alone]
    assert keys != [None] * len(keys)
    assert with_group_keys(BY_HEADER, metas, None, len(metas)) == {ATTR_GROUP_KEY: keys}


def test_a_batch_without_any_key_says_nothing():
    assert with_group_keys(BY_HEADER, [amqp(), amqp(other="a")], None, 2) is None


@pytest.mark.parametrize(
    ("meta", "key"), [(amqp("k"), "k"), (amqp(), None), ({"key": "k"}, "k"), (None, None)]
)
def test_a_routing_key_is_the_key(meta: Any, key: str | None):
    expected = None if key is None else {ATTR_GROUP_KEY: key}
    assert with_group_keys(BY_ROUTING_KEY, meta, None, 1) == expected


def test_of_a_dead_letter_it_is_the_key_that_it_was_given_when_it_died():
    def keys(*deaths: Any) -> list[str | None]:
        found = with_group_keys(BY_ROUTING_KEY, [amqp("k")], [{ATTR_DEATHS: [*deaths]}], 1)
        return [attrs.get(ATTR_GROUP_KEY) for attrs in found]

    assert keys({"to": ["ex", "new"]}, {"to": ["ex", "old"]}) == ["new"]
    assert keys({"to": ["ex", None]}) == keys({}) == keys() == ["k"]
    deaths = {ATTR_DEATHS: [{"to": ["ex", "new"]}]}
    assert with_group_keys(BY_HEADER, [amqp("k", order="a")], [deaths], 1) == [
        deaths | {ATTR_GROUP_KEY: "a"}
    ]


def test_other_attributes_stay():
    ttl = {ATTR_TTL_MS: 5}
    metas = [amqp(order="a"), amqp()]
    both = {ATTR_TTL_MS: 5, ATTR_GROUP_KEY: "a"}
    assert with_group_keys(BY_HEADER, metas, ttl, 2) == [both, ttl]
    assert ttl == {ATTR_TTL_MS: 5}
    assert with_group_keys(BY_HEADER, metas[0], [None, ttl], 2) == [{ATTR_GROUP_KEY: "a"}, both]


def test_a_queue_without_groups_is_told_nothing():
    assert with_group_keys({}, [amqp(order="a")], None, 1) is None


def test_long_keys_stay_apart():
    one, two = (
        with_group_keys(BY_HEADER, {"headers": {"order": "x" * 300 + end}}, None, 1)[ATTR_GROUP_KEY]
        for end in "ab"
    )
    assert one != two
    assert len(one) <= GROUP_KEY_CHARS_MAX
