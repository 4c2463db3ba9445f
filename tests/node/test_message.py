"""Messages of one protocol, read by the other."""

from __future__ import annotations

from typing import Any

import pytest

from node.messages import properties as amqp
from node.messages.message import on_wire, where_of

PLAIN = amqp.build({"delivery_mode": 2})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "headers", [{1: 1}, {"a": {2: 1}}, {"a": 2**64}, {"k" * 256: 1}, {"a": nested(10_000)}]
)
def test_headers_that_amqp_has_no_words_for_are_left_out(headers: dict[Any, Any]) -> None:
    """Whatever a native client wrote, it stops nobody's deliveries."""
    assert on_wire({"headers": headers}, "q") == (where_of("", "q"), PLAIN)
