"""Field tables, the typed maps of AMQP, as RabbitMQ and its clients read and write them.

Decoding is linear in the size, never recurses deeper than `TABLE_DEPTH_MAX`, and raises only
ValueError. Entries can be kept as the bytes that they came in, so that what we do not understand,
or would write with another type, reaches the consumer unchanged.
"""

from __future__ import annotations

import datetime as dt
import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

from node.messages.plain_values import DEPTH_MAX, wrong_value

TABLE_DEPTH_MAX = DEPTH_MAX
#: A float or double that may be NaN or infinite: its type and its first two bytes. Text has no such
#: bytes, so hardly anything else looks like one.
_PERHAPS_NO_NUMBER = re.compile(rb"[df][\x7f\xff][\x80-\xff]")

#: What is nested deeper than it may be: each level has its type and its length.
_DEEP_BYTES_MIN = 5 * TABLE_DEPTH_MAX

_LONG = struct.Struct(">I")
_DECIMAL = struct.Struct(">Bi")
_FIXED = {
    kind: struct.Struct(format_)
    for kind, format_ in {
        ord("t"): ">?",
        ord("b"): ">b",
        ord("B"): ">B",
        ord("s"): ">h",
        ord("U"): ">h",
        ord("u"): ">H",
        ord("I"): ">i",
        ord("i"): ">I",
        ord("l"): ">q",
        ord("L"): ">q",
        ord("f"): ">f",
        ord("d"): ">d",
    }.items()
}
_TEXT, _BYTES, _TABLE, _ARRAY, _TIME, _VOID, _NUMBER = b"SxFATVD"


def decode_table(data: bytes, at: int, stop: int) -> tuple[dict[str, Any], int]:
    """The table whose length stands at `at`, and where it ends: at `stop` or before."""
    try:
        return _table(data, at, stop, 0)
    except (IndexError, struct.error) as error:
        raise ValueError("a field table ends too early") from error


def decode_entries(data: bytes, at: int, stop: int) -> dict[str, Any]:
    """A table without its length."""
    try:
        return _entries(data, at, stop, 0)
    except (IndexError, struct.error) as error:
        raise ValueError("a field table ends too early") from error


def wrong_entries(data: bytes) -> str | None:
    """What is wrong with a table without its length. It is read only if it may hold what is no
    number, or be nested too deeply.
    """
    if not may_be_wrong([data], data):
        return None
    try:
        return wrong_value(decode_entries(data, 0, len(data)))
    except ValueError as error:
        return str(error)


def may_be_wrong(each: Sequence[bytes], joined: bytes) -> bool:
    """False: there is surely nothing wrong with the tables in these bytes, as `wrong_entries`
    understands it.
    """
    if max(map(len, each), default=0) > _DEEP_BYTES_MIN and any(map(_may_be_deep, each)):
        return True
    # Bytes that are quickly searched for, and in few texts.
    if b"\x7f" not in joined and b"\xff" not in joined:
        return False
    return _PERHAPS_NO_NUMBER.search(joined) is not None


def _may_be_deep(data: bytes) -> bool:
    return data.count(b"F") + data.count(b"A") >= TABLE_DEPTH_MAX


def raw_entries(data: bytes, at: int, stop: int) -> list[tuple[str, bytes]]:
    """The entries of a table without its length, each with its name as it stands there."""
    found: list[tuple[str, bytes]] = []
    try:
        while at < stop:
            start = at
            name, at = _name(data, at, stop)
            _, at = _value(data, at, stop, 0)
            found.append((name, data[start:at]))
    except (IndexError, struct.error) as error:
        raise ValueError("a field table ends too early") from error
    return found


def encode_table(table: Mapping[str, Any]) -> bytes:
    """With its length. ValueError: a value that AMQP has no type for."""
    entries = encode_entries(table)
    return _LONG.pack(len(entries)) + entries


def encode_entries(table: Mapping[str, Any]) -> bytes:
    """Without its length. Every whole number is a long, as in the headers that RabbitMQ writes:
    clients in typed languages rely on it.
    """
    return b"".join(_entry(name, value) for name, value in table.items())


def join_entries(entries: Iterable[bytes]) -> bytes:
    """A table, with its length, of entries as `raw_entries` gave or `encode_entries` made them."""
    joined = b"".join(entries)
    return _LONG.pack(len(joined)) + joined


def plain(value: Any) -> Any:
    """As the catalog holds it and bindings compare it: times in seconds, decimals as floats."""
    if type(value) is dict:
        return {name: plain(each) for name, each in cast("dict[str, Any]", value).items()}
    if type(value) is list:
        return [plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, dt.datetime):
        return int(value.timestamp())
    return float(value) if isinstance(value, Decimal) else value


# --- decoding -------------------------------------------------------------------------------------


def _extent(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Where the content of what has a length of 4 bytes begins and ends."""
    begin = at + 4
    end = begin + _LONG.unpack_from(data, at)[0]
    if end > stop:
        raise ValueError("a field is longer than what holds it")
    return begin, end


def _name(data: bytes, at: int, stop: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    if end > stop:
        raise ValueError("a field's name is longer than what holds it")
    return data[at + 1 : end].decode(), end


def _table(data: bytes, at: int, stop: int, depth: int) -> tuple[dict[str, Any], int]:
    begin, end = _extent(data, at, stop)
    return _entries(data, begin, end, depth), end


def _entries(data: bytes, at: int, stop: int, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while at < stop:
        name, at = _name(data, at, stop)
        found[name], at = _value(data, at, stop, depth)
    return found


def _array(data: bytes, at: int, stop: int, depth: int) -> tuple[list[Any], int]:
    at, end = _extent(data, at, stop)
    found: list[Any] = []
    while at < end:
        value, at = _value(data, at, end, depth)
        found.append(value)
    return found, end


def _value(data: bytes, at: int, stop: int, depth: int) -> tuple[Any, int]:
    if at >= stop:
        raise ValueError("a field has no value")
    kind = data[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        end = at + fixed.size
        if end > stop:
            raise ValueError("a field is longer than what holds it")
        return fixed.unpack_from(data, at)[0], end
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ValueError(f"there is no field type {chr(kind)!r}")
    if depth >= TABLE_DEPTH_MAX:
        raise ValueError(f"fields are nested deeper than {TABLE_DEPTH_MAX}")
    value, end = decoder(data, at, stop, depth + 1)
    if end > stop:
        raise ValueError("a field is longer than what holds it")
    return value, end


def _text(data: bytes, at: int, stop: int, _depth: int) -> tuple[str | bytes, int]:
    begin, end = _extent(data, at, stop)
    return text_or_bytes(data[begin:end]), end


def text_or_bytes(value: bytes) -> str | bytes:
    """A long string is bytes by the standard, and nearly always UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def _bytes(data: bytes, at: int, stop: int, _depth: int) -> tuple[bytes, int]:
    begin, end = _extent(data, at, stop)
    return data[begin:end], end


def _time(data: bytes, at: int, _stop: int, _depth: int) -> tuple[dt.datetime | int, int]:
    seconds = int.from_bytes(data[at : at + 8])
    return time_of(seconds), at + 8


def time_of(seconds: int) -> dt.datetime | int:
    """What no calendar holds (some clients send milliseconds) stays a number."""
    try:
        return dt.datetime.fromtimestamp(seconds, tz=dt.UTC)
    except (ValueError, OverflowError, OSError):
        return seconds


def _decimal(data: bytes, at: int, _stop: int, _depth: int) -> tuple[Decimal, int]:
    places, unscaled = _DECIMAL.unpack_from(data, at)
    return Decimal(unscaled).scaleb(-places), at + 5


def _void(_data: bytes, at: int, _stop: int, _depth: int) -> tuple[None, int]:
    return None, at


_DECODERS: dict[int, Callable[[bytes, int, int, int], tuple[Any, int]]] = {
    _TEXT: _text,
    _BYTES: _bytes,
    _TABLE: _table,
    _ARRAY: _array,
    _TIME: _time,
    _VOID: _void,
    _NUMBER: _decimal,
}


# --- encoding -------------------------------------------------------------------------------------


def _entry(name: Any, value: Any) -> bytes:
    if type(name) is not str:
        raise ValueError(f"a field's name is text, not a {type(name).__name__}")
    raw = name.encode()
    if len(raw) > 255:
        raise ValueError(f"a field's name has at most 255 bytes: {name[:32]!r}...")
    return bytes([len(raw)]) + raw + encode_value(value)


def encode_value(value: Any) -> bytes:
    """With the byte that says its type."""
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"{value} needs more than 64 bits")
            return b"l" + value.to_bytes(8, signed=True)
        case float():
            return b"d" + struct.pack(">d", value)
        case str():
            raw = value.encode()
            return b"S" + _LONG.pack(len(raw)) + raw
        case bytes() | bytearray():
            return b"x" + _LONG.pack(len(value)) + value
        case dt.datetime():
            return b"T" + max(0, int(value.timestamp())).to_bytes(8)
        case Decimal():
            return b"D" + _encode_decimal(value)
        case Mapping():
            return b"F" + encode_table(cast("Mapping[str, Any]", value))
        case list() | tuple():
            items = b"".join(encode_value(item) for item in cast("list[Any]", value))
            return b"A" + _LONG.pack(len(items)) + items
        case _:
            raise ValueError(f"a field cannot hold a {type(value).__name__}")


def _encode_decimal(value: Decimal) -> bytes:
    _, _, exponent = value.as_tuple()
    places = max(0, -exponent) if isinstance(exponent, int) else 256
    unscaled = int(value.scaleb(places)) if places < 256 else 2**31
    if not -(2**31) <= unscaled < 2**31:
        raise ValueError(f"{value} needs more than 32 bits")
    return _DECIMAL.pack(places, unscaled)
