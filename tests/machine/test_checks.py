"""What comes from outside is bounded before it is kept."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from cluster.machine.checks import (
    INTEGER_MAX,
    PLAIN_BYTES_MAX,
    PLAIN_DEPTH_MAX,
    PLAIN_VALUES_MAX,
    is_finite,
    is_plain,
    shown,
)
from cluster.machine.marks import (
    ATTR_DEDUP_ID,
    ATTR_DELIVER_AT_MS,
    ATTR_PRIORITY,
    ATTR_TTL_MS,
    DEDUP_ID_CHARS_MAX,
    NO_ATTRS,
    PRIORITY_MAX,
    parse_attrs,
)
from tests.testkit.nesting import nested


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"a": [1, 1.5, None, True, b"x", "y"]}, True),
        (nested(PLAIN_DEPTH_MAX), True),
        (nested(PLAIN_DEPTH_MAX + 1), False),
        (INTEGER_MAX, True),
        (-INTEGER_MAX - 1, False),
        ("x" * PLAIN_BYTES_MAX, True),
        ("x" * (PLAIN_BYTES_MAX + 1), False),
        ([b"x" * PLAIN_BYTES_MAX, b"y"], False),
        ("\ud800", False),
        ([0] * (PLAIN_VALUES_MAX - 1), True),
        ([0] * PLAIN_VALUES_MAX, False),
        ([0] * (2 * PLAIN_VALUES_MAX), False),
        ({str(n): 0 for n in range(PLAIN_VALUES_MAX + 1)}, False),
        ({1: "a number is no name"}, False),
        (object(), False),
        ({1, 2}, False),
    ],
    ids=lambda value: shown(value)[:20],
)
def test_what_a_snapshot_can_hold_is_plain(value: Any, plain: bool) -> None:
    assert is_plain(value) is plain


@pytest.mark.parametrize(
    ("value", "finite"),
    [(1.5, True), ({"a": [1, 2.5]}, True), (nan, False), ({"a": [inf]}, False), ([[-inf]], False)],
)
def test_numbers_that_json_does_not_have_are_found_however_deep(value: Any, finite: bool) -> None:
    assert is_finite(value) is finite


def test_a_value_in_an_error_is_never_long() -> None:
    assert shown("é") == "'\\xe9'"
    assert shown("x" * 1_000) == "'" + "x" * 76 + "..."
    assert shown(nested(100_000)) == "a value that is nested too deeply"


@pytest.mark.parametrize(
    ("attrs", "why"),
    [
        ("text", "must be a map"),
        ({ATTR_PRIORITY: PRIORITY_MAX + 1}, "priority must be"),
        ({ATTR_PRIORITY: True}, "priority must be"),
        ({ATTR_TTL_MS: -1}, "time to live"),
        ({ATTR_TTL_MS: "1"}, "time to live"),
        ({ATTR_DELIVER_AT_MS: 1.5}, "time of delivery"),
        ({ATTR_DELIVER_AT_MS: 2**63}, "time of delivery"),
        ({ATTR_DEDUP_ID: 7}, "de-duplication id"),
        ({ATTR_DEDUP_ID: "x" * (DEDUP_ID_CHARS_MAX + 1)}, "de-duplication id"),
    ],
    ids=str,
)
def test_wrong_attributes_of_a_message_are_said_in_a_sentence(attrs: Any, why: str) -> None:
    assert why in str(parse_attrs(attrs))


def test_no_attributes_are_fine() -> None:
    assert parse_attrs(None) == NO_ATTRS
