"""The sums in messages of counters."""

from __future__ import annotations

import pytest

from node.protocols.nats.jetstream.counting import sum_of


def test_a_sum_is_read() -> None:
    assert [sum_of(b'{"val":"%b"}' % each) for each in (b"0", b"-5", b"+7")] == [0, -5, 7]


@pytest.mark.parametrize(
    "body",
    [b"", b"5", b'{"val":5}', b'{"val":"x"}', b'{"val":"\\ud800"}', b"[" * 100_000, b"\xff"],
)
def test_what_is_none_is_said_to_be_none(body: bytes) -> None:
    """A stream that was restored may hold anything."""
    with pytest.raises(ValueError, match=r"."):
        sum_of(body)
