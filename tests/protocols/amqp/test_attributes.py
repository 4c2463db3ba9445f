"""What headers and properties ask of queues: delays, and ids by which duplicates are known."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from cluster.machine.arguments import SPAN_MS_MAX
from node.messages import properties as props
from node.messages.attributes import (
    dedup_id,
    due_ms,
    may_be_delayed,
    negated,
)

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ({}, None),
        ({"x-delay": 5_000}, NOW_MS + 5_000),
        ({"x-delay": "5000"}, NOW_MS + 5_000),
        ({"x-delay": 0}, None),
        ({"x-delay": -5_000}, None),
        ({"x-delay": "-5"}, None),
        ({"x-opt-delivery-time": NOW_MS + 7}, NOW_MS + 7),
        ({"x-opt-delivery-time": NOW_MS - 7}, None),
        ({"x-opt-delivery-time": dt.datetime.fromtimestamp(2_000_000_000, dt.UTC)}, 2 * 10**12),
        ({"x-opt-delivery-time": NOW_MS + 7, "x-delay": 9}, NOW_MS + 9),
        ({"x-opt-delivery-time": NOW_MS + 9, "x-delay": 7}, NOW_MS + 9),
        ({"x-delay": SPAN_MS_MAX}, NOW_MS + SPAN_MS_MAX),
    ],
)
def test_a_message_is_due_at_the_later_of_both_times(headers: Any, due: int | None) -> None:
    assert due_ms(headers, NOW_MS) == due


@pytest.mark.parametrize(
    "headers",
    [
        {"x-delay": "soon"},
        {"x-delay": "1.5"},
        {"x-delay": ""},
        {"x-delay": "٣"},
        {"x-delay": 1.5},
        {"x-delay": True},
        {"x-delay": []},
        {"x-delay": b"5"},
        {"x-delay": SPAN_MS_MAX + 1},
        {"x-delay": "9" * 400},
        {"x-opt-delivery-time": 10**30},
        {"x-opt-delivery-time": {}},
    ],
)
def test_a_delay_that_nobody_could_keep_is_an_error(headers: Any) -> None:
    with pytest.raises(ValueError, match="ms"):
        due_ms(headers, NOW_MS)


def test_consumers_see_the_delay_negated() -> None:
    assert negated({"x-delay": "5000", "other": 1}) == {"x-delay": -5_000}
    assert negated({"x-opt-delivery-time": 5}) == {}


def test_most_messages_are_not_looked_at() -> None:
    plain = props.build({"content_type": "text/plain", "priority": 3})
    headers = props.build({"headers": {"x-delay": 5}})

    assert not may_be_delayed(plain)
    assert not props.may_have_id(plain)
    assert may_be_delayed(headers)
    assert props.may_have_id(headers)
    assert props.may_have_id(props.build({"message_id": "1"}))


@pytest.mark.parametrize(
    ("arguments", "message_id", "headers", "known_by"),
    [
        ({}, "17", {"order": "a"}, "17"),
        ({}, "", {}, None),
        ({}, None, {"order": "a"}, None),
        ({"x-dedup-header": "order"}, "17", {"order": "a"}, "a"),
        ({"x-dedup-header": "order"}, "17", {"order": 5}, "5"),
        ({"x-dedup-header": "order"}, "17", {}, None),
    ],
)
def test_a_message_is_known_by_its_id_or_by_the_header_that_the_queue_names(
    arguments: Any, message_id: Any, headers: Any, known_by: str | None
) -> None:
    assert dedup_id(arguments, message_id, headers) == known_by


@pytest.mark.parametrize("value", [1.5, True, [], {}, b"bytes", "x" * 257])
def test_what_is_no_id_is_an_error(value: Any) -> None:
    with pytest.raises(ValueError, match="header 'order' must be text"):
        dedup_id({"x-dedup-header": "order"}, "17", {"order": value})
