"""What a NATS client sends, as events: bytes in, events out, no I/O.

Publishes that follow each other are one event if their control lines are equal, or differ in the
last token of their reply subjects only: clients publish in bursts, and what was parsed once holds
for all of them. So are plain acknowledgements of one consumer's deliveries, in JetStream's form.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any, Final, NamedTuple, cast

CRLF: Final = b"\r\n"
CONTROL_LINE_BYTES_MAX: Final = 4096
#: So many messages are looked at as one first; then four times as many, as long as they are alike.
REQUESTS_FIRST: Final = 16
#: As far ahead acknowledgements are looked for that are in turn: what is not is looked at in vain.
IN_TURN_BYTES_MAX: Final = 1 << 15
#: How the subjects of acknowledgements begin; a stream and a consumer follow.
ACK: Final = b"$JS.ACK."
ACKED: Final = b"+ACK"


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


class Requests(NamedTuple):
    """Two messages or more without headers that differ in nothing but their bytes and the last
    token of their reply subjects.
    """

    subject: bytes
    replies: list[bytes]
    size: int  # bytes of each payload
    payloads: list[bytes]  # each without the CRLF behind it

    def each(self) -> Iterator[Publish]:
        subject, replies, size, payloads = self
        for reply, payload in zip(replies, payloads, strict=True):
            yield Publish(subject, reply, 0, size, [payload + CRLF])


class Burst(NamedTuple):
    """Messages that a client is sent, under one subject and with one size of headers and of all;
    their reply subjects differ in numbers.
    """

    subject: bytes
    reply: bytes  # of each: a format for its numbers
    numbers: Sequence[Sequence[int]]  # the first one of each message, the second one ...
    header_bytes: int
    size: int
    payloads: Sequence[bytes]  # each without the CRLF behind it

    def replies(self) -> list[bytes]:
        return [self.reply % numbers for numbers in zip(*self.numbers, strict=True)]

    def each(self) -> list[Publish]:
        subject, _, _, header_bytes, size, payloads = self
        return [
            Publish(subject, reply, header_bytes, size, [payload + CRLF])
            for reply, payload in zip(self.replies(), payloads, strict=True)
        ]

    def lines(self, sid: bytes) -> bytes:
        """As a subscription is sent them, all by one format: most of what a delivery costs."""
        subject, reply, numbers, header_bytes, size, payloads = self
        start = (b"%b %b " % (subject, sid)).replace(b"%", b"%%")
        if header_bytes:
            form = b"HMSG %b%b %d %d\r\n%%b\r\n" % (start, reply, header_bytes, size)
        else:
            form = b"MSG %b%b %d\r\n%%b\r\n" % (start, reply, size)
        each = zip(*numbers, payloads, strict=True)
        return form * len(payloads) % tuple(chain.from_iterable(each))


class Acks(NamedTuple):
    """Two acknowledgements or more of one consumer's deliveries: `+ACK`, without headers and
    without a reply.
    """

    start: bytes  # of all subjects, as far as the dot behind the consumer's name
    sequences: Sequence[int]  # of the stream, as they came; a range: of deliveries in turn
    data: bytes  # of all of them

    def each(self) -> Iterator[Publish]:
        for line in self.data.split(CRLF)[:-1:2]:
            yield Publish(line.split()[1], b"", 0, len(ACKED), [ACKED + CRLF])


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


Event = Connect | Publish | Requests | Acks | Subscribe | Unsubscribe | Ping | Pong


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
        """Up to where: from there on something is missing. A publish is one event with those that
        follow it under an equal control line.
        """
        position = 0
        while True:
            start = data.find(b"\n", position) + 1  # of a payload, if it is a publish
            if (start or len(data) + 1) - position > CONTROL_LINE_BYTES_MAX + 1:
                raise ControlLineTooLong
            if not start:
                self._needed_bytes = 0
                return position
            line = data[position:start]
            words = line.split() or [b""]
            if words[0] not in _VERBS:
                words[0] = words[0].upper()
            match words:
                case [b"PUB", subject, number]:
                    reply, header_number = b"", b"0"
                case [b"PUB", subject, reply, number]:
                    header_number = b"0"
                case [b"HPUB", subject, header_number, number]:
                    reply = b""
                case [b"HPUB", subject, reply, header_number, number]:
                    pass
                case _:
                    event = _event(words, line)
                    if event is not None:
                        events.append(event)
                    position = start
                    continue
            if not number.isdigit() or not header_number.isdigit():
                raise ParserError
            size, header_bytes = int(number), int(header_number)
            if size > self._payload_bytes_max:
                raise PayloadTooLarge
            if header_bytes > size:
                raise ParserError
            stop = start + size + 2
            if stop > len(data):
                self._needed_bytes = stop - position
                return position
            if data[stop - 2 : stop] != CRLF:
                raise UnknownOperation
            if not data.startswith(line, stop):
                if reply:
                    run = None if header_bytes else _requests(data, position, line, stop)
                    if run is not None:
                        tails, bodies = run
                        start = reply[: reply.rfind(b".") + 1]
                        replies = [start + tail for tail in tails]
                        events.append(Requests(subject, replies, size, bodies))
                        position += len(bodies) * (stop - position)
                        continue
                elif subject.startswith(ACK) and (acks := _acks(data, position, stop)):
                    event, position = acks
                    events.append(event)
                    continue
                payloads = [data[start:stop]]
            else:
                stride = stop - position
                while data.startswith(line, stop) and data.startswith(CRLF, stop + stride - 2):
                    stop += stride
                payloads = pieces(data[position:stop], size + 2, skip=len(line))
            events.append(_new(Publish, (subject, reply, header_bytes, size, payloads)))
            position = stop


def _requests(
    data: bytes, position: int, line: bytes, stop: int
) -> tuple[list[bytes], list[bytes]] | None:
    """Last tokens of the reply subjects and payloads of the publishes without headers that begin
    at `position`, the first of which has this control line and ends at `stop`. None: it is alone.
    """
    words = line.split()
    dot = line.rfind(b".")
    end = dot + len(words[2]) - words[2].rfind(b".")
    if dot < 0 or b"." not in words[2] or end - dot < 2:
        return None
    head, tail = line[: dot + 1], line[end:]
    if not (data.startswith(head, stop) and data.startswith(tail, stop + end)):
        return None
    stride = stop - position
    shape = _shape(len(head), end - dot - 1, len(tail), stride - len(line) - 2)
    tokens, bodies = list[bytes](), list[bytes]()
    count = REQUESTS_FIRST
    while found := min(count, (len(data) - position) // stride):
        rows = shape.iter_unpack(data[position : position + found * stride])
        heads, some, tails, payloads, ends = zip(*rows, strict=True)
        joined = b"".join(some)
        if not (
            heads.count(head) == tails.count(tail) == ends.count(CRLF) == found
            and b"." not in joined
            and len(joined.split()[0]) == len(joined)
        ):
            columns = zip(heads, some, tails, ends, strict=True)
            found = next(at for at, row in enumerate(columns) if not _is_next(row, head, tail))
            some, payloads, count = some[:found], payloads[:found], 0
        tokens += some
        bodies += payloads
        position += found * stride
        count *= 4
    return (tokens, bodies) if len(bodies) > 1 else None


def _is_next(row: tuple[bytes, bytes, bytes, bytes], head: bytes, tail: bytes) -> bool:
    token = row[1]
    return row == (head, token, tail, CRLF) and b"." not in token and token.split() == [token]


def _acks(data: bytes, position: int, stop: int) -> tuple[Acks, int] | None:
    """The acknowledgements that begin at `position`, the first of which ends at `stop`, and where
    they end. None: it is alone.
    """
    name = data.find(b".", data.find(b".", position + len(b"PUB ") + len(ACK)) + 1) + 1
    if not 0 < name <= stop or not data.startswith(data[position:name], stop):
        return None
    start = data[position + len(b"PUB ") : name]
    in_turn = _acks_in_turn(data, position, name, stop)
    if in_turn is not None:
        sequences, end = in_turn
        return Acks(start, sequences, data[position:end]), end
    one, run = _ack(data[position:name])
    match = run.match(data, position)
    if match is None or match.end() <= stop:
        return None
    end = match.end()
    return Acks(start, [*map(int, one.findall(data, position, end))], data[position:end]), end


def _acks_in_turn(
    data: bytes, position: int, name: int, stop: int
) -> tuple[Sequence[int], int] | None:
    """Nearly always all that is there are of deliveries that followed each other. Then they can be
    nothing but what is made of the first one here, and to compare is cheaper than to parse.
    """
    first = _NUMBERS.match(data, name)
    if first is None or first.end() != stop:
        return None
    deliveries, sequence, own, stored_ns, pending = map(int, first.groups()[:5])
    head, until = data[position:name], position + IN_TURN_BYTES_MAX
    more = data.count(head, stop, until)
    if not 0 < more <= pending:
        return None
    form = b"%b%d.%%d.%%d.%d.%%d%b" % (head.replace(b"%", b"%%"), deliveries, stored_ns, first[6])
    last = form % (sequence + more, own + more, pending - more)
    last_at = data.rfind(head, stop, until)
    if not data.startswith(last, last_at):
        return None
    count, end = more + 1, last_at + len(last)
    sequences = range(sequence, sequence + count)
    each = zip(sequences, range(own, own + count), range(pending, pending - count, -1), strict=True)
    said = form * count % tuple(chain.from_iterable(each))
    return (sequences, end) if data[position:end] == said else None


#: What tells deliveries of one consumer apart: see `acks.reply_subject`.
_NUMBERS: Final = re.compile(rb"(\d++)\.(\d{1,18}+)\.(\d++)\.(\d++)\.(\d++)( ++4\r\n\+ACK\r\n)")


@lru_cache(256)
def _ack(start: bytes) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """One acknowledgement (the sequence in its subject), and all of a run."""
    numbers = rb"\d++\.(\d{1,18}+)\.\d++\.\d++\.\d++"  # see `acks.reply_subject`
    one = re.escape(start) + numbers + rb" ++4\r\n\+ACK\r\n"
    return re.compile(one), re.compile(rb"(?:" + one + rb")++")


_VERBS: Final = frozenset({b"PUB", b"HPUB", b"SUB", b"UNSUB", b"PING", b"PONG", b"CONNECT"})
#: Half of the constructor's time.
_new: Final = cast("type[tuple[Any, ...]]", tuple).__new__


def _event(words: list[bytes], line: bytes) -> Event | None:
    """Of what is no publish. None: it is no news."""
    match words[0], words[1:]:
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
        case b"PUB" | b"HPUB", _:
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


def plain_messages(subjects: Sequence[bytes], bodies: Sequence[bytes]) -> list[Publish]:
    """One of each pair, without reply and headers."""
    return [
        Publish(subject, b"", 0, len(body), [body + CRLF])
        for subject, body in zip(subjects, bodies, strict=True)
        if subject
    ]


def pieces(data: bytes, size: int, *, skip: int = 0) -> list[bytes]:
    """Of equal size, each behind so many bytes to skip, which fill `data`."""
    return list(chain.from_iterable(_piece(size, skip).iter_unpack(data)))


@lru_cache(1024)
def _piece(size: int, skip: int) -> Struct:
    return Struct(f"{skip}x{size}s")


@lru_cache(1024)
def _shape(head: int, token: int, tail: int, size: int) -> Struct:
    return Struct(f"{head}s{token}s{tail}s{size}s2s")
