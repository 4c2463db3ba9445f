"""Methods as pamqp knows them, to bytes and back.

pamqp says which methods there are and what their arguments are called. Its own codec takes
strings that end too early for whole, and refuses names that RabbitMQ allows; so the bytes are ours.
"""

from __future__ import annotations

import struct
from typing import Any, TypeVar, cast

from pamqp import base, commands

from node.messages.amqp_errors import NOT_IMPLEMENTED, SYNTAX_ERROR, ConnectionError_
from node.messages.tables import decode_table, encode_table, text_or_bytes

T = TypeVar("T", bound=base.Frame)

_FRAME = struct.Struct(">BHII")
_NUMBERS = {
    "octet": struct.Struct(">B"),
    "short": struct.Struct(">H"),
    "long": struct.Struct(">I"),
    "longlong": struct.Struct(">Q"),
}
_LONG = _NUMBERS["long"]

#: By index: the class, and the names and types of its arguments in their order.
_METHODS: dict[int, tuple[type[base.Frame], tuple[tuple[str, str], ...]]] = {
    index: (kind, tuple((name, kind.amqp_type(name)) for name in kind.attributes()))
    for index, kind in cast("dict[int, type[base.Frame]]", commands.INDEX_MAPPING).items()
}


def method_ids(method: base.Frame) -> tuple[int, int]:
    """Class and method, as a close names the method that failed."""
    return method.index >> 16, method.index & 0xFFFF


def decode_method(index: int, data: bytes, at: int, stop: int) -> base.Frame:
    """The method `index` whose arguments lie between `at` and `stop`. Raises ConnectionError_."""
    found = _METHODS.get(index)
    if found is None:
        class_id, method_id = index >> 16, index & 0xFFFF
        raise ConnectionError_(
            NOT_IMPLEMENTED,
            f"there is no method {method_id} of class {class_id}",
            class_id,
            method_id,
        )
    kind, arguments = found
    method = kind.__new__(kind)  # all attributes are set below; no argument needs a default
    try:
        _fill(method, arguments, data, at, stop)
    except (ValueError, IndexError, struct.error) as error:
        raise ConnectionError_(
            SYNTAX_ERROR, f"arguments of {kind.name} cannot be read: {error}", *method_ids(method)
        ) from error
    return method


def _fill(
    method: base.Frame, arguments: tuple[tuple[str, str], ...], data: bytes, at: int, stop: int
) -> None:
    bit = 0
    for name, kind in arguments:
        if kind == "bit":
            if bit == 0:
                at += 1
            setattr(method, name, bool(data[at - 1] & 1 << bit))
            bit = (bit + 1) % 8
            continue
        bit = 0
        if kind == "shortstr":
            begin, at = at + 1, at + 1 + data[at]
            value: Any = data[begin:at].decode()
        elif kind == "table":
            value, at = decode_table(data, at, stop)
        elif kind == "longstr":
            begin = at + 4
            at = begin + _LONG.unpack_from(data, at)[0]
            value = text_or_bytes(data[begin:at])
        else:
            number = _NUMBERS[kind]
            value = number.unpack_from(data, at)[0]
            at += number.size
        setattr(method, name, value)
    if at > stop:
        raise ValueError("they end too early")


def made(kind: type[T], **arguments: Any) -> T:
    """A method to send. pamqp's own constructors refuse names that RabbitMQ allows."""
    method = kind.__new__(kind)
    for name in kind.attributes():
        setattr(method, name, arguments.pop(name, None))
    assert not arguments, arguments
    return method


def encode_method(channel: int, method: base.Frame) -> bytes:
    """The whole frame."""
    _, arguments = _METHODS[method.index]
    parts: list[bytes] = []
    bits, bit = 0, 0
    for name, kind in arguments:
        value = getattr(method, name)
        if kind == "bit":
            bits |= bool(value) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes([bits]))
            bits, bit = 0, 0
        parts.append(_encoded(kind, value))
    if bit:
        parts.append(bytes([bits]))
    body = b"".join(parts)
    return _FRAME.pack(1, channel, len(body) + 4, method.index) + body + b"\xce"


def _encoded(kind: str, value: Any) -> bytes:
    if kind == "table":
        return encode_table(value or {})
    if kind in {"shortstr", "longstr"}:
        raw = value if isinstance(value, bytes) else str(value or "").encode()
        return bytes([len(raw)]) + raw if kind == "shortstr" else _LONG.pack(len(raw)) + raw
    return _NUMBERS[kind].pack(value or 0)
