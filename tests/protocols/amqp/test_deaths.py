"""Headers that tell of a message's past, made from the broker's records."""

from __future__ import annotations

from typing import Any

import pytest

from node.messages import properties as amqp
from node.messages.message import where_of
from node.messages.tables import encode_entries
from node.protocols.amqp.deaths import marked

WHERE = where_of("", "q")
#: A table of headers with a value of a type that there is not.
UNREADABLE = b"\x20\x00" + b"\x00\x00\x00\x05" + b"\x02ab?x"


def test_headers_that_cannot_be_read_are_left_as_they_are() -> None:
    """A message that is delivered again must not stop all others."""
    assert marked(WHERE, UNREADABLE, None, 1) == (WHERE, UNREADABLE)


def test_unreadable_headers_do_not_hide_where_a_dead_letter_went() -> None:
    record = {"queue": "a", "reason": "expired", "count": 1, "to": ["dead", None]}
    assert marked(WHERE, UNREADABLE, [record], 1) == (where_of("dead", "q"), UNREADABLE)


@pytest.mark.parametrize("seconds", [1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_time_that_a_publisher_made_up_stops_nobody(seconds: int) -> None:
    """It counts its message's deaths on, and says when the last one was: beyond all calendars."""
    before = encode_entries({"queue": "a", "reason": "expired", "count": 1})
    before += b"\x04timeT" + seconds.to_bytes(8)
    entry = b"F" + len(before).to_bytes(4) + before
    table = b"\x07x-deathA" + len(entry).to_bytes(4) + entry
    properties = b"\x20\x00" + len(table).to_bytes(4) + table
    record: dict[str, Any] = {"queue": "b", "reason": "expired", "count": 1}

    _, shown = marked(WHERE, properties, [record | {"time": 1 << 53}], 0)

    own, *given = amqp.parse(shown).headers["x-death"]
    assert (own["queue"], own["time"]) == ("b", (1 << 53) // 1000)
    assert [each["time"] for each in given] == ([seconds] if seconds < 1 << 63 else [])


def test_what_no_table_can_hold_is_left_out() -> None:
    record = {"queue": "q" * 10, "reason": "expired", "count": 1 << 63}
    assert marked(WHERE, amqp.NONE, [record], 0) == (WHERE, amqp.NONE)
