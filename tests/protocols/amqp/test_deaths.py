"""Headers that tell of a message's past, made from the broker's records."""

from __future__ import annotations

from node.messages.message import where_of
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
