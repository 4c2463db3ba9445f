"""Messages of one protocol, read by the other."""

from __future__ import annotations

from typing import Any

import pytest

from node.messages import properties as amqp
from node.messages.message import headers_of, nats_fields_of, on_wire, where_of
from node.messages.nats_headers import block_of
from tests.testkit.nesting import nested

PLAIN = amqp.build({"delivery_mode": 2})


@pytest.mark.parametrize(
    "headers", [{1: 1}, {"a": {2: 1}}, {"a": 2**64}, {"k" * 256: 1}, {"a": nested(10_000)}]
)
def test_headers_that_amqp_has_no_words_for_are_left_out(headers: dict[Any, Any]) -> None:
    """Whatever a native client wrote, it stops nobody's deliveries."""
    assert on_wire({"headers": headers}, "q") == (where_of("", "q"), PLAIN)


@pytest.mark.parametrize("name", [1, None, b"bytes", (1, 2), True])
def test_a_header_whose_name_is_no_text_is_passed_over(name: Any) -> None:
    """CBOR has such names. No exchange routes by them, and no client of NATS is to go without its
    deliveries for them.
    """
    meta = {"headers": {name: "x", "a": "y"}}
    assert headers_of(meta) == {"a": "y"}
    assert block_of(nats_fields_of(meta)) == b"NATS/1.0\r\na: y\r\n\r\n"
