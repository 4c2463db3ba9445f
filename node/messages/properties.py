"""Properties of a message as they stand in a content header: 2 bytes of flags and the values.

They travel through the broker as these bytes. What is asked of most messages is answered by the
flags alone; the rest is parsed once for equal bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Final, cast

from node.messages import tables
from node.messages.amqp_errors import SYNTAX_ERROR, ConnectionError_

CACHE_COUNT_MAX: Final = 4096
CACHED_BYTES_MAX: Final = 1024

_SHORT, _TABLE, _OCTET, _TIME = "shortstr", "table", "octet", "timestamp"
#: In the order of the wire, each with its flag.
_PROPERTIES: Final = (
    ("content_type", _SHORT, 1 << 15),
    ("content_encoding", _SHORT, 1 << 14),
    ("headers", _TABLE, 1 << 13),
    ("delivery_mode", _OCTET, 1 << 12),
    ("priority", _OCTET, 1 << 11),
    ("correlation_id", _SHORT, 1 << 10),
    ("reply_to", _SHORT, 1 << 9),
    ("expiration", _SHORT, 1 << 8),
    ("message_id", _SHORT, 1 << 7),
    ("timestamp", _TIME, 1 << 6),
    ("type", _SHORT, 1 << 5),
    ("user_id", _SHORT, 1 << 4),
    ("app_id", _SHORT, 1 << 3),
    ("cluster_id", _SHORT, 1 << 2),
)
_FLAG: Final = {name: flag for name, _, flag in _PROPERTIES}
_NO_FLAG: Final = 0b11  # one is unused, one would say that more flags follow: there are no more
HEADERS: Final = _FLAG["headers"]
#: Flags of what may concern the broker.
ASKS: Final = (
    _FLAG["priority"] | _FLAG["expiration"] | _FLAG["user_id"] | _FLAG["reply_to"] | HEADERS
)
_WIDTH: Final = {_OCTET: 1, _TIME: 8}
_HAS_ID: Final = _FLAG["message_id"] | _FLAG["headers"]
_FLAGS = struct.Struct(">H")
_LENGTH = struct.Struct(">I")

NONE: Final = b"\x00\x00"


@dataclass(frozen=True)
class Properties:
    """None: not there. `timestamp` is in seconds."""

    content_type: str | None = None
    content_encoding: str | None = None
    raw_headers: bytes | None = None  # the table's entries, without its length
    delivery_mode: int | None = None
    priority: int | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    expiration: str | None = None
    message_id: str | None = None
    timestamp: int | None = None
    type: str | None = None
    user_id: str | None = None
    app_id: str | None = None
    cluster_id: str | None = None

    @cached_property
    def headers(self) -> Mapping[str, Any]:
        """Parsed when asked for; ConnectionError_ if they cannot be."""
        raw = self.raw_headers
        if not raw:
            return {}
        try:
            return tables.decode_entries(raw, 0, len(raw))
        except ValueError as error:
            raise _malformed(str(error)) from error

    @cached_property
    def wrong_headers(self) -> str | None:
        """What is wrong with them, as far as the broker looks at them: too deep, or no numbers."""
        return tables.wrong_entries(self.raw_headers) if self.raw_headers else None

    def as_map(self) -> dict[str, Any]:
        """Those that are there, by name."""
        found = {
            name: value
            for field in fields(self)
            if (name := field.name) != "raw_headers" and (value := getattr(self, name)) is not None
        }
        if self.raw_headers is not None:
            found["headers"] = dict(self.headers)
        return found


def asks(properties: bytes) -> int:
    """Those of `ASKS` that it has; 0: nothing in it concerns the broker."""
    return (properties[0] << 8 | properties[1]) & ASKS


def may_have_id(properties: bytes) -> bool:
    """False: nothing in it tells this message from others."""
    return bool((properties[0] << 8 | properties[1]) & _HAS_ID)


def check(properties: bytes) -> None:
    """Every value ends where it should; what is in the table of headers is not looked at."""
    size = len(properties)
    if size < 2:
        raise _malformed("they have no flags")
    at, steps = _layout(properties[0] << 8 | properties[1])
    try:
        for fixed in steps:
            if fixed >= 0:
                begin = at
                at += 1 + properties[begin]
                # A length over 127 looks like foreign text, too: no error, but seldom.
                if not properties[begin:at].isascii():
                    _spans(properties)
                    return
                at += fixed
            else:
                at += 4 + int.from_bytes(properties[at : at + 4]) + ~fixed
    except IndexError:
        at = -1
    if at != size:  # what looks wrong is looked at with care
        _spans(properties)


def parse(properties: bytes) -> Properties:
    """Parsed once for equal bytes, if they are few."""
    if len(properties) <= CACHED_BYTES_MAX:
        return _parse_cached(properties)
    return _parse(properties)


def build(values: Mapping[str, Any]) -> bytes:
    """From names as in `Properties`, and `headers`. ValueError: a value that cannot be sent."""
    found = 0
    parts: list[bytes] = []
    unknown = values.keys() - _FLAG.keys()
    if unknown:
        raise ValueError(f"there are no properties {', '.join(sorted(unknown))}")
    for name, kind, flag in _PROPERTIES:
        value = values.get(name)
        if value is not None:
            found |= flag
            parts.append(_encoded(name, kind, value))
    return _FLAGS.pack(found) + b"".join(parts)


def replace(properties: bytes, **values: str | int | None) -> bytes:
    """Other values for some of them (not for headers); None takes one away."""
    assert "headers" not in values
    kinds = {name: kind for name, kind, _ in _PROPERTIES}
    raw = _raw_values(properties)
    for name, value in values.items():
        if value is None:
            raw.pop(name, None)
        else:
            raw[name] = _encoded(name, kinds[name], value)
    return _joined(raw)


def with_headers(
    properties: bytes, extra: Mapping[str, Any], *, drop: Collection[str] = ()
) -> bytes:
    """Headers `extra` added, or put in place of those of the same names, and those of `drop` left
    out. All others stay as the publisher wrote them, byte for byte.
    """
    raw = _raw_values(properties)
    table = raw.pop("headers", None)
    kept: list[bytes] = []
    if table is not None:
        try:
            kept = [
                entry
                for name, entry in tables.raw_entries(table, 4, len(table))
                if name not in extra and name not in drop
            ]
        except ValueError as error:
            raise _malformed(str(error)) from error
    if kept or extra or table is not None:
        raw["headers"] = tables.join_entries([*kept, tables.encode_entries(extra)])
    return _joined(raw)


def around_number(properties: bytes, name: str) -> tuple[bytes, bytes]:
    """Properties with one more header, a whole number: what is before its 8 bytes, and behind."""
    marked = with_headers(properties, {name: 0})
    end = next(end for found, _, end in _spans(marked) if found == "headers")
    return marked[: end - 8], marked[end:]


def _spans(properties: bytes) -> list[tuple[str, int, int]]:
    """Where the value of each property that is there begins and ends, its length included."""
    size = len(properties)
    if size < 2:
        raise _malformed("they have no flags")
    found = properties[0] << 8 | properties[1]
    if found & _NO_FLAG:
        raise _malformed("they have flags that mean nothing")
    spans: list[tuple[str, int, int]] = []
    at = 2
    for name, kind in _present(found):
        begin = at
        if kind is _SHORT:
            at += 1 + properties[at] if at < size else 1
        elif kind is _OCTET:
            at += 1
        elif kind is _TIME:
            at += 8
        else:
            at += 4 + _LENGTH.unpack_from(properties, at)[0] if at + 4 <= size else 4
        if at > size:
            raise _malformed(f"{name} ends too early")
        if kind is _SHORT:
            _check_text(name, properties[begin + 1 : at])
        spans.append((name, begin, at))
    if at != size:
        raise _malformed(f"{size - at} bytes too many")
    return spans


@lru_cache(maxsize=CACHE_COUNT_MAX)
def _layout(found: int) -> tuple[int, tuple[int, ...]]:
    """Where the first value begins whose size is not fixed; and of each of those, in order, how
    many bytes of fixed size are behind it: so many for a short string, ~so many for a table.
    """
    if found & _NO_FLAG:
        return -1, ()  # never the size
    at, steps = 2, list[int]()
    for _, kind in _present(found):
        if kind is _SHORT:
            steps.append(0)
        elif kind is _TABLE:
            steps.append(~0)
        elif not steps:
            at += _WIDTH[kind]
        elif steps[-1] >= 0:
            steps[-1] += _WIDTH[kind]
        else:
            steps[-1] -= _WIDTH[kind]
    return at, tuple(steps)


@lru_cache(maxsize=CACHE_COUNT_MAX)
def _present(found: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, kind, flag in _PROPERTIES if found & flag)


def _check_text(name: str, raw: bytes) -> None:
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError as error:
            raise _malformed(f"{name} is not UTF-8") from error


def _parse(properties: bytes) -> Properties:
    values: dict[str, Any] = {}
    for name, begin, end in _spans(properties):
        match name:
            case "headers":
                values["raw_headers"] = properties[begin + 4 : end]
            case "delivery_mode" | "priority":
                values[name] = properties[begin]
            case "timestamp":
                values[name] = int.from_bytes(properties[begin:end])
            case _:
                values[name] = properties[begin + 1 : end].decode()
    return Properties(**values)


_parse_cached = lru_cache(maxsize=CACHE_COUNT_MAX)(_parse)


def _raw_values(properties: bytes) -> dict[str, bytes]:
    return {name: properties[begin:end] for name, begin, end in _spans(properties)}


def _joined(raw: Mapping[str, bytes]) -> bytes:
    found = 0
    for name in raw:
        found |= _FLAG[name]
    values = [raw[name] for name, _, _ in _PROPERTIES if name in raw]
    return _FLAGS.pack(found) + b"".join(values)


def _encoded(name: str, kind: str, value: Any) -> bytes:
    if kind is _TABLE:
        if not isinstance(value, Mapping):
            raise ValueError(f"{name} is {value!r}; allowed: names with values")
        return tables.encode_table(cast("Mapping[str, Any]", value))
    if kind is _SHORT:
        raw = str(value).encode()
        if len(raw) > 255:
            raise ValueError(f"{name} has {len(raw)} bytes; allowed: at most 255")
        return bytes([len(raw)]) + raw
    size = 1 if kind is _OCTET else 8
    if not isinstance(value, int) or not 0 <= value < 1 << 8 * size:
        raise ValueError(f"{name} is {value!r}; allowed: whole numbers of {size} bytes")
    return value.to_bytes(size)


def _malformed(why: str) -> ConnectionError_:
    return ConnectionError_(SYNTAX_ERROR, f"properties cannot be read: {why}", 60, 40)
