"""What a NATS client sends, as events: bytes in, events out, no I/O.

Publishes whose control lines are equal and that follow each other are one event: clients publish in
bursts, and what was parsed once holds for all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple, cast

CRLF: Final = b"\r\n"
CONTROL_LINE_BYTES_MAX: Final = 4096


class NatsError(Exception):
    """Of the client. It is told the text, and its connection ends."""

    text = ""


class UnknownOperation(NatsError):
    text = "Unknown Protocol Operation"


class ParserError(NatsError):
    text = "Parser Error"


class ControlLineTooLong(NatsError):
    text = "maximum control line exceeded"


class PayloadTooLarge(NatsError):
    text = "Maximum Payload Violation"


class Connect(NamedTuple):
    options: Mapping[str, Any]


class Publish(NamedTuple):
    """One message or more that differ in nothing but their bytes."""

    subject: bytes
    reply: bytes  # empty: none
    header_bytes: int  # at the start of each payload; 0: it has none
    size: int  # bytes of each payload, headers included
    payloads: list[bytes]  # each with the CRLF behind it


class Subscribe(NamedTuple):
    subject: bytes
    queue: bytes  # empty: none
    sid: bytes


class Unsubscribe(NamedTuple):
    sid: bytes
    most: int  # after so many deliveries, counted from the beginning; 0: now


class Ping(NamedTuple):
    pass


class Pong(NamedTuple):
    pass


Event = Connect | Publish | Subscribe | Unsubscribe | Ping | Pong


class NatsReader:
    """Of one connection. After `error` is set nothing more is read."""

    def __init__(self, *, payload_bytes_max: int) -> None:
        self.error: NatsError | None = None
        self._payload_bytes_max = payload_bytes_max
        self._parts: list[bytes] = []  # of what is not complete yet
        self._held_bytes = 0
        self._needed_bytes = 0  # with fewer nothing more can be said

    def feed(self, data: bytes) -> list[Event]:
        if self.error is not None:
            return []
        if self._parts:
            self._parts.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        events: list[Event] = []
        try:
            position = self._read(data, events)
        except NatsError as error:
            self.error = error
            return events
        if position < len(data):
            rest = data[position:]
            self._parts.append(rest)
            self._held_bytes = len(rest)
        return events

    def _read(self, data: bytes, events: list[Event]) -> int:
        """Up to where: from there on something is missing."""
        position = 0
        while True:
            end = data.find(b"\n", position)
            if (len(data) if end < 0 else end) - position > CONTROL_LINE_BYTES_MAX:
                raise ControlLineTooLong
            if end < 0:
                self._needed_bytes = 0
                return position
            words = data[position:end].split()
            verb = words[0] if words else b""
            if verb not in _VERBS:
                verb = verb.upper()
            if verb == b"PUB" or verb == b"HPUB":
                stop = self._publishes(data, position, end + 1, words, events)
                if stop < 0:
                    return position
                position = stop
            else:
                event = _event(verb, words, data[position:end])
                if event is not None:
                    events.append(event)
                position = end + 1

    def _publishes(
        self, data: bytes, position: int, start: int, words: list[bytes], events: list[Event]
    ) -> int:
        """A publish, whose payload begins at `start`, and those that follow it under an equal
        control line. Where the last of them ends; -1: the first is not complete.
        """
        numbers = 1 if len(words[0]) == 3 else 2  # its last words
        strings = len(words) - 1 - numbers
        if strings not in (1, 2) or not all(map(bytes.isdigit, words[-numbers:])):
            raise ParserError
        size = int(words[-1])
        header_bytes = 0 if numbers == 1 else int(words[-2])
        if size > self._payload_bytes_max:
            raise PayloadTooLarge
        if header_bytes > size:
            raise ParserError
        stop = start + size + 2
        if stop > len(data):
            self._needed_bytes = stop - position
            return -1
        if not data.startswith(CRLF, stop - 2):
            raise UnknownOperation
        reply = words[2] if strings == 2 else b""
        line = data[position:start]
        if not data.startswith(line, stop):
            events.append(Publish(words[1], reply, header_bytes, size, [data[start:stop]]))
            return stop
        stride = stop - position
        while data.startswith(line, stop) and data.startswith(CRLF, stop + stride - 2):
            stop += stride
        payloads = pieces(data[position:stop], size + 2, skip=len(line))
        events.append(Publish(words[1], reply, header_bytes, size, payloads))
        return stop


_VERBS: Final = frozenset({b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG", b"CONNECT"})


def _event(verb: bytes, words: list[bytes], line: bytes) -> Event | None:
    """None: it is no news."""
    match verb, words[1:]:
        case b"PING", _:
            return Ping()
        case b"PONG", _:
            return Pong()
        case b"SUB", [subject, sid]:
            return Subscribe(subject, b"", sid)
        case b"SUB", [subject, queue, sid]:
            return Subscribe(subject, queue, sid)
        case b"UNSUB", [sid]:
            return Unsubscribe(sid, 0)
        case b"UNSUB", [sid, most]:
            return Unsubscribe(sid, int(most) if most.isdigit() else 0)
        case b"CONNECT", _:
            return Connect(_options(line))
        case b"+OK" | b"INFO", _:
            return None
        case b"SUB" | b"UNSUB", [_, *_]:
            raise ParserError
        case _:
            raise UnknownOperation


def _options(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line.split(None, 1)[1])
        json.dumps(found, ensure_ascii=False).encode()  # half a character is no text
    except (IndexError, ValueError, RecursionError):
        raise ParserError from None
    if not isinstance(found, dict):
        raise ParserError
    return cast("dict[str, Any]", found)


def pieces(data: bytes, size: int, *, skip: int = 0) -> list[bytes]:
    """Of equal size, each behind so many bytes to skip, which fill `data`."""
    return list(chain.from_iterable(_piece(size, skip).iter_unpack(data)))


@lru_cache(1024)
def _piece(size: int, skip: int) -> Struct:
    return Struct(f"{skip}x{size}s")
