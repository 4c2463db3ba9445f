"""Headers as NATS has them: a block of the wire, from `NATS/1.0` to the empty line, and what AMQP's
headers are in it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from node.messages.tables import text_or_bytes

FIRST_LINE: Final = b"NATS/1.0"
#: No part of a header may have these, nor a name a colon.
_NOT_IN_NAMES: Final = frozenset(":\r\n")
_NOT_IN_VALUES: Final = frozenset("\r\n")


def is_block(meta: bytes) -> bool:
    """As what stands beside a body in the log."""
    return meta.startswith(FIRST_LINE)


def lines(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Name and value of each header."""
    for line in block.split(b"\r\n")[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            yield name, value.strip()


def fields(block: bytes) -> dict[str, Any]:
    """For other protocols: text by name, and a list of texts where a name came more than once."""
    found: dict[str, list[str | bytes]] = {}
    for name, value in lines(block):
        found.setdefault(name.decode(errors="replace"), []).append(text_or_bytes(value))
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def block_of(headers: Mapping[str, Any]) -> bytes:
    """Those headers of another protocol that are texts, numbers or truth values, or lists of these.
    Empty: none is.
    """
    found: list[str] = []
    for name, value in headers.items():
        if not name or not _NOT_IN_NAMES.isdisjoint(name):
            continue
        values = cast("list[Any]", value) if isinstance(value, list) else [value]
        found += [
            f"{name}: {text}\r\n"
            for each in values
            if (text := _text(each)) is not None and _NOT_IN_VALUES.isdisjoint(text)
        ]
    return f"NATS/1.0\r\n{''.join(found)}\r\n".encode() if found else b""


def _text(value: Any) -> str | None:
    """None: it has none."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case _:
            return None
