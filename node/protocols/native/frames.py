"""Frames of clients: bytes in, requests out, a named error for each way they can be wrong.

One WebSocket message is one frame, so an error inside a frame leaves the next one readable: only
what makes the rest of the connection meaningless closes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Any, NoReturn, cast

import cbor2

from node.protocols.native.requests import (
    VERSION,
    BadField,
    Bind,
    Cancel,
    Credit,
    Declare,
    DeclareExchange,
    Delete,
    DeleteCursor,
    DeleteExchange,
    Discard,
    Extend,
    FrameError,
    FrameTooLarge,
    Get,
    Goodbye,
    Hello,
    HelloMissing,
    Info,
    MalformedFrame,
    Opcode,
    Pause,
    Ping,
    Pong,
    Publish,
    PublishPart,
    PublishTo,
    Purge,
    PutCursor,
    Read,
    Request,
    Retime,
    Return,
    Settle,
    Subscribe,
    Transact,
    TransactionStep,
    UnknownOpcode,
    UnsupportedVersion,
    Withdraw,
)

CBOR_DEPTH_MAX = 64
RANGES_MAX = 65_536
NUMBER_MAX = 2**63 - 1
#: Of one READ: messages, and how long it waits for them.
READ_COUNT_MAX = 1_000
READ_MS_MAX = 60_000
#: Of one transaction.
STEPS_MAX = 10_000


# --- fields ---------------------------------------------------------------------------------------


def _complain(name: str, must: str, value: Any) -> NoReturn:
    raise BadField(f"`{name}` must be {must}, not {str(value)[:60]!r}")


def _text(value: Any, name: str) -> str:
    if type(value) is not str:
        _complain(name, "text", value)
    return value


def _text_or_none(value: Any, name: str) -> str | None:
    return None if value is None else _text(value, name)


def _number(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= NUMBER_MAX:
        _complain(name, "a number from 0 to 2^63-1", value)
    return value


def _number_or_none(value: Any, name: str) -> int | None:
    return None if value is None else _number(value, name)


def _consumer(value: Any, name: str) -> int | str:
    """A consumer of a queue, or a cursor of a stream."""
    return value if type(value) is str else _number(value, name)


def _signed(value: Any, name: str) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        _complain(name, "a number of 32 bits", value)
    return value


def _flag(value: Any, name: str) -> bool:
    if type(value) is not bool:
        _complain(name, "true or false", value)
    return value


def _map(value: Any, name: str) -> dict[str, Any]:
    if type(value) is not dict or not all(
        type(key) is str for key in cast("dict[Any, Any]", value)
    ):
        _complain(name, "a map with text as keys", value)
    return cast("dict[str, Any]", value)


def _map_or_empty(value: Any, name: str) -> dict[str, Any]:
    return {} if value is None else _map(value, name)


def bodies_of(value: Any, name: str) -> list[bytes]:
    if type(value) is not list or not set(map(type, cast("list[Any]", value))) <= {bytes}:
        _complain(name, "a list of byte strings", value)
    return cast("list[bytes]", value)


def _bytes(value: Any, name: str) -> bytes:
    if type(value) is not bytes:
        _complain(name, "a byte string", value)
    return value


def _large(value: Any, name: str) -> dict[int, Any] | None:
    """Which bodies were sent in parts before: of each its upload and its parts."""
    must = "a map from the place of a body to [upload, [[entry, offset, size], ...]]"
    if value is None:
        return None
    if type(value) is not dict:
        _complain(name, must, value)
    large: dict[int, Any] = {}
    for place, each in cast("dict[Any, Any]", value).items():
        match each:
            case [str(upload), list()] if type(place) is int:
                rows = cast("list[Any]", each[1])
                if not rows or not all(map(_is_part, rows)):
                    _complain(name, must, value)
                large[place] = str(upload), tuple([(*row,) for row in rows])
            case _:
                _complain(name, must, value)
    return large or None


def _is_part(row: Any) -> bool:
    if type(row) is not list:
        return False
    numbers = cast("list[Any]", row)
    return len(numbers) == 3 and all(type(n) is int and 0 <= n <= NUMBER_MAX for n in numbers)


def _place(value: Any, name: str) -> Any:
    match value:
        case "first" | "last" | "next":
            return value
        case int() if type(value) is int and 1 <= value <= NUMBER_MAX:
            return value
        case {"time": int(ms), **rest} if not rest and type(ms) is int and 0 <= ms <= NUMBER_MAX:
            return value
        case _:
            _complain(name, 'first, last, next, a sequence, or {"time": ms}', value)


def _read_count(value: Any, name: str) -> int:
    if type(value) is not int or not 1 <= value <= READ_COUNT_MAX:
        _complain(name, f"a number from 1 to {READ_COUNT_MAX}", value)
    return value


def _wait_ms(value: Any, name: str) -> int:
    if type(value) is not int or not 0 <= value <= READ_MS_MAX:
        _complain(name, f"a number from 0 to {READ_MS_MAX}", value)
    return value


def _any(value: Any, _: str) -> Any:
    return value


def ranges_of(value: Any, name: str) -> list[tuple[int, int]]:
    must = "a list of [first, last], ascending, not overlapping"
    if type(value) is not list:
        _complain(name, must, value)
    items = cast("list[Any]", value)
    if not items or len(items) > RANGES_MAX:
        _complain(name, f"{must}, from 1 to {RANGES_MAX} of them", f"{len(items)} of them")
    ranges: list[tuple[int, int]] = []
    before = 0
    for item in items:
        match item:
            case [int(first), int(last)] if before < first <= last <= NUMBER_MAX:
                ranges.append((int(first), int(last)))  # true is an int to Python, not to us
                before = last
            case _:
                _complain(name, must, item)
    return ranges


def _ranges_or_none(value: Any, name: str) -> list[tuple[int, int]] | None:
    return None if value is None else ranges_of(value, name)


def _held(value: Any, name: str) -> list[tuple[int, int, int]]:
    must = "a list of [first, last, token]"
    if value is None:
        return []
    if type(value) is not list or len(cast("list[Any]", value)) > RANGES_MAX:
        _complain(name, f"{must}, at most {RANGES_MAX} of them", value)
    held: list[tuple[int, int, int]] = []
    for item in cast("list[Any]", value):
        match item:
            case [int(first), int(last), int(token)] if 0 < first <= last:
                held.append((int(first), int(last), int(token)))
            case _:
                _complain(name, must, item)
    return held


def _destination_kind(value: Any, name: str) -> str:
    if value not in ("queue", "exchange"):
        _complain(name, "queue or exchange", value)
    return value


def _steps(value: Any, name: str) -> list[TransactionStep]:
    """As frames, without their requests."""
    must = f"a list of 1 to {STEPS_MAX} steps, each [opcode, ...]"
    if type(value) is not list or not 1 <= len(cast("list[Any]", value)) <= STEPS_MAX:
        _complain(name, must, value)
    return [_step(each, name) for each in cast("list[Any]", value)]


def _step(value: Any, name: str) -> TransactionStep:
    match value:
        case [10, queue, bodies, meta, attrs]:
            return Publish(
                0, _text(queue, "queue"), None, 0, bodies_of(bodies, "bodies"), meta, attrs
            )
        case [13 | 30 | 31 | 32 as opcode, *fields]:
            return cast("TransactionStep", _fixed(opcode, [0, *fields]))
        case _:
            _complain(name, "steps of PUBLISH, PUBLISH_TO, SETTLE, RETURN and DISCARD", value)


Check = Callable[[Any, str], Any]
_REQUEST: tuple[str, Check] = ("request", _number)
_QUEUE: tuple[str, Check] = ("queue", _text)
_CONSUMER: tuple[str, Check] = ("consumer", _number)
_EITHER: tuple[str, Check] = ("consumer", _consumer)
_CURSOR: tuple[str, Check] = ("cursor", _text)
_RANGES: tuple[str, Check] = ("ranges", ranges_of)
_TOKEN: tuple[str, Check] = ("token", _number_or_none)
_ENDS: list[tuple[str, Check]] = [
    _REQUEST,
    ("source", _text),
    ("kind", _destination_kind),
    ("destination", _text),
    ("key", _text),
    ("arguments", _map_or_empty),
]

_LAYOUTS: dict[int, tuple[Callable[..., Request], Sequence[tuple[str, Check]]]] = {
    Opcode.PING: (Ping, [("number", _number)]),
    Opcode.PONG: (Pong, [("number", _number)]),
    Opcode.CLOSE: (Goodbye, [("code", _number), ("reason", _text)]),
    Opcode.PUBLISH: (
        Publish,
        [
            _REQUEST,
            _QUEUE,
            ("publisher", _text_or_none),
            ("seqno", _number),
            ("bodies", bodies_of),
            ("meta", _any),
            ("attrs", _any),
            ("large", _large),
        ],
    ),
    Opcode.PUBLISH_PART: (
        PublishPart,
        [_REQUEST, _QUEUE, ("upload", _text), ("number", _number), ("data", _bytes)],
    ),
    Opcode.PUBLISH_TO: (
        PublishTo,
        [
            _REQUEST,
            ("exchange", _text),
            ("key", _text),
            ("bodies", bodies_of),
            ("meta", _any),
            ("attrs", _any),
        ],
    ),
    Opcode.TRANSACT: (Transact, [_REQUEST, ("steps", _steps)]),
    Opcode.CANCEL: (Cancel, [_REQUEST, _QUEUE, _EITHER, ("give_back", _flag)]),
    Opcode.CREDIT: (Credit, [_REQUEST, _QUEUE, _CONSUMER, ("credit", _number)]),
    Opcode.SETTLE: (Settle, [_REQUEST, _QUEUE, _EITHER, _RANGES, _TOKEN]),
    Opcode.RETURN: (
        Return,
        [
            _REQUEST,
            _QUEUE,
            _EITHER,
            _RANGES,
            ("failed", _flag),
            ("delay_ms", _number_or_none),
            _TOKEN,
        ],
    ),
    Opcode.DISCARD: (Discard, [_REQUEST, _QUEUE, _EITHER, _RANGES, _TOKEN]),
    Opcode.EXTEND: (
        Extend,
        [_REQUEST, _QUEUE, _EITHER, _RANGES, ("timeout_ms", _number_or_none)],
    ),
    Opcode.WITHDRAW: (Withdraw, [_REQUEST, _QUEUE, _RANGES]),
    Opcode.RETIME: (
        Retime,
        [_REQUEST, _QUEUE, _RANGES, ("due_ms", _number_or_none), ("delay_ms", _number_or_none)],
    ),
    Opcode.GET: (
        Get,
        [
            _REQUEST,
            _QUEUE,
            ("messages", _number),
            ("auto_settle", _flag),
            ("ranges", _ranges_or_none),
        ],
    ),
    Opcode.DECLARE: (Declare, [_REQUEST, _QUEUE, ("arguments", _map_or_empty)]),
    Opcode.DELETE: (Delete, [_REQUEST, _QUEUE, ("if_unused", _flag), ("if_empty", _flag)]),
    Opcode.PURGE: (Purge, [_REQUEST, _QUEUE]),
    Opcode.PAUSE: (Pause, [_REQUEST, _QUEUE, ("paused", _flag)]),
    Opcode.INFO: (Info, [_REQUEST, _QUEUE]),
    Opcode.PUT_CURSOR: (
        PutCursor,
        [_REQUEST, _QUEUE, _CURSOR, ("settings", _map_or_empty)],
    ),
    Opcode.DELETE_CURSOR: (DeleteCursor, [_REQUEST, _QUEUE, _CURSOR]),
    Opcode.DELETE_EXCHANGE: (
        DeleteExchange,
        [_REQUEST, ("exchange", _text), ("if_unused", _flag)],
    ),
    Opcode.BIND: (Bind, _ENDS),
    Opcode.UNBIND: (partial(Bind, bound=False), _ENDS),
}
#: Whose last field may be missing: it came later.
_GROWN = frozenset(
    {
        Opcode.PUBLISH,
        Opcode.CANCEL,
        Opcode.SETTLE,
        Opcode.RETURN,
        Opcode.DISCARD,
        Opcode.RETIME,
        Opcode.GET,
    }
)
_OPTIONS: dict[str, tuple[Check, Any]] = {
    "tag": (_text, ""),
    "credit": (_number_or_none, None),
    "priority": (_signed, 0),
    "exclusive": (_flag, False),
    "auto_settle": (_flag, False),
    "timeout_ms": (_number_or_none, None),
    "held": (_held, ()),
}
_READ_OPTIONS: dict[str, tuple[Check, Any]] = {
    "cursor": (_text_or_none, None),
    "from": (_place, None),
    "count": (_read_count, READ_COUNT_MAX),
    "wait_ms": (_wait_ms, 0),
    "have": (_number, 0),
}


_EXCHANGE_OPTIONS: dict[str, tuple[Check, Any]] = {
    "durable": (_flag, True),
    "auto_delete": (_flag, False),
    "internal": (_flag, False),
    "arguments": (_map_or_empty, None),
}


# --- decoding -------------------------------------------------------------------------------------


def _refuse(*_: Any) -> NoReturn:
    raise ValueError("tagged values are not plain data")


#: Every tag that the decoder would turn into something other than plain data.
_TAGS: dict[int, Any] = dict.fromkeys(
    [*range(6), 25, 28, 29, 30, 35, 36, 37, 43, 52, 54, 100, 256, 258, 260, 261, 1004, 43000],
    _refuse,
)


def unpack(data: bytes) -> Any:
    """Plain data from untrusted CBOR: no tags, no deep nesting. MalformedFrame otherwise."""
    try:
        return cbor2.loads(
            data, tag_hook=_refuse, semantic_decoders=_TAGS, max_depth=CBOR_DEPTH_MAX
        )
    except (cbor2.CBORError, ValueError, TypeError, RecursionError, OverflowError) as error:
        reason = f"not CBOR of plain values nested at most {CBOR_DEPTH_MAX} deep: {error}"
        raise MalformedFrame(reason) from error


class ProtocolState(Enum):
    HELLO_AWAITED = "hello_awaited"
    OPEN = "open"
    CLOSED = "closed"


class NativeProtocol:
    """One connection's frames: `receive` gives a request or raises a FrameError."""

    def __init__(self, *, frame_bytes_max: int) -> None:
        self.state = ProtocolState.HELLO_AWAITED
        self._frame_bytes_max = frame_bytes_max

    def receive(self, data: bytes) -> Request | None:
        """The request in this frame. None: the connection is closed, so nobody listens."""
        if self.state is ProtocolState.CLOSED:
            return None
        try:
            request = self._decode(data)
        except FrameError as error:
            if error.close_code is not None:
                self.state = ProtocolState.CLOSED
            raise
        if type(request) is Hello:
            self.state = ProtocolState.OPEN
        elif type(request) is Goodbye:
            self.state = ProtocolState.CLOSED
        return request

    def _decode(self, data: bytes) -> Request:
        if len(data) > self._frame_bytes_max:
            raise FrameTooLarge(
                f"a frame may have {self._frame_bytes_max} bytes, this one has {len(data)}: "
                "publish in smaller batches"
            )
        frame = unpack(data)
        if type(frame) is not list or not frame or type(cast("list[Any]", frame)[0]) is not int:
            raise MalformedFrame("a frame is an array that starts with its opcode")
        opcode, *values = cast("list[Any]", frame)
        if opcode == Opcode.HELLO:
            return self._hello(values)
        if self.state is ProtocolState.HELLO_AWAITED:
            raise HelloMissing(f"the first frame must be HELLO, not opcode {opcode}")
        request = values[0] if values and type(values[0]) is int else 0
        if opcode not in _WITH_OPTIONS and opcode not in _LAYOUTS:
            raise UnknownOpcode(f"opcode {opcode} is not one that clients send", request)
        try:
            decode = _WITH_OPTIONS.get(opcode)
            return _fixed(opcode, values) if decode is None else decode(values)
        except BadField as error:
            error.request = request if opcode >= Opcode.PUBLISH else 0
            raise

    def _hello(self, values: list[Any]) -> Hello:
        if self.state is not ProtocolState.HELLO_AWAITED:
            raise BadField("HELLO is only the first frame of a connection")
        if not values or type(values[0]) is not int or values[0] != VERSION:
            version = str(values[0])[:20] if values else None
            raise UnsupportedVersion(
                f"this node speaks version {VERSION}, not {version}", detail={"versions": [VERSION]}
            )
        try:
            options = _map_or_empty(values[1] if len(values) > 1 else None, "options")
            return Hello(
                session=_text_or_none(options.get("session"), "session"),
                resume_ms=_number(options.get("resume_ms", 0), "resume_ms"),
                client=_text(options.get("client", ""), "client"),
                vhost=_text(options.get("vhost", "/"), "vhost"),
                forward=_flag(options.get("forward", False), "forward"),
                shards=_flag(options.get("shards", False), "shards"),
            )
        except BadField as error:
            raise HelloMissing(f"HELLO: {error.reason}") from error


def _fixed(opcode: int, values: list[Any]) -> Request:
    make, layout = _LAYOUTS[opcode]
    if opcode in _GROWN and len(values) == len(layout) - 1:
        layout = layout[:-1]
    if len(values) != len(layout):
        names = ", ".join(name for name, _ in layout)
        raise BadField(
            f"{Opcode(opcode).name} has the fields {names}: {len(layout)}, not {len(values)}"
        )
    return make(*[check(value, name) for value, (name, check) in zip(values, layout, strict=True)])


def _optional(
    name: str, values: list[Any], known: dict[str, tuple[Check, Any]]
) -> tuple[int, str, dict[str, Any]]:
    """Request, queue and options, with defaults filled in."""
    if len(values) != 3:
        raise BadField(f"{name} has the fields request, queue, options")
    request, queue = _number(values[0], "request"), _text(values[1], "queue")
    options = _map_or_empty(values[2], "options")
    unknown = sorted(options.keys() - known.keys())
    if unknown:
        raise BadField(f"{name} knows the options {', '.join(known)}, not {unknown[0]!r}")
    checked = {
        each: check(options[each], each) if each in options else default
        for each, (check, default) in known.items()
    }
    return request, queue, checked


def _subscribe(values: list[Any]) -> Subscribe:
    request, queue, options = _optional("SUBSCRIBE", values, _OPTIONS)
    return Subscribe(request, queue, **options)


def _read(values: list[Any]) -> Read:
    request, queue, options = _optional("READ", values, _READ_OPTIONS)
    cursor, start = options["cursor"], options["from"]
    if (cursor is None) == (start is None):
        raise BadField("READ has either a cursor, or where to read from")
    return Read(
        request, queue, cursor, start, options["count"], options["wait_ms"], options["have"]
    )


def _declare_exchange(values: list[Any]) -> DeclareExchange:
    if len(values) != 4:
        raise BadField("DECLARE_EXCHANGE has the fields request, exchange, type, options")
    kind = _text(values.pop(2), "type")
    request, exchange, options = _optional("DECLARE_EXCHANGE", values, _EXCHANGE_OPTIONS)
    options["arguments"] = options["arguments"] or {}
    return DeclareExchange(request, exchange, kind, **options)


_WITH_OPTIONS: dict[int, Callable[[list[Any]], Request]] = {
    Opcode.DECLARE_EXCHANGE: _declare_exchange,
    Opcode.SUBSCRIBE: _subscribe,
    Opcode.READ: _read,
}
