"""AMQP as bytes, right or deliberately wrong: nothing here checks what it writes."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from pamqp import base, commands

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL_HEADER = b"AMQP\0\0\x09\x01"
FRAME_END = b"\xce"
FRAME_BYTES_MAX = 131_072
PERSISTENT = b"\x10\x00\x02"  # the properties of a message with nothing but delivery mode 2

METHODS: list[type[base.Frame]] = [method for _, method in sorted(commands.INDEX_MAPPING.items())]

#: Most of these are there, with a limit of length, before the first input.
QUEUES = [f"fuzz-{number}" for number in range(8)]
EXCHANGES = ["", "amq.direct", "amq.topic", "amq.fanout", "amq.headers", "fuzz-x", "fuzz-y"]

_SIZES = {"octet": 1, "short": 2, "long": 4, "longlong": 8, "timestamp": 8}


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + FRAME_END


def short(text: bytes | str) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return bytes([len(raw[:255])]) + raw[:255]


def long(text: bytes | str) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(">I", len(raw)) + raw


def payload(method: type[base.Frame], values: dict[str, Any]) -> bytes:
    """Class, method and arguments; those not named in `values` are zero or empty."""
    written = [struct.pack(">I", method.index)]
    bits: list[bool] = []
    for name in method.attributes():
        kind = method.amqp_type(name)
        value = values.get(name)
        if kind == "bit":
            bits.append(bool(value))
            continue
        written += _octets(bits)
        if kind in _SIZES:
            size = _SIZES[kind]
            written.append((int(value or 0) % 256**size).to_bytes(size))
        elif kind == "shortstr":
            written.append(short(value or b""))
        else:  # long strings and tables: what is after the length
            written.append(long(value or b""))
    return b"".join(written + _octets(bits))


def _octets(bits: list[bool]) -> list[bytes]:
    octets = [
        bytes([sum(bit << place for place, bit in enumerate(bits[at : at + 8]))])
        for at in range(0, len(bits), 8)
    ]
    bits.clear()
    return octets


def method(channel: int, kind: type[base.Frame], **values: Any) -> bytes:
    return frame(METHOD, channel, payload(kind, values))


def content(
    channel: int, body: bytes, properties: bytes = PERSISTENT, size: int | None = None
) -> list[bytes]:
    """Header and body frames."""
    announced = len(body) if size is None else size
    header = struct.pack(">HHQ", 60, 0, announced % 2**64) + properties
    room = FRAME_BYTES_MAX - 8
    return [
        frame(HEADER, channel, header),
        *(frame(BODY, channel, body[at : at + room]) for at in range(0, len(body), room)),
    ]


def publish(channel: int, key: str, body: bytes, exchange: str = "", **flags: bool) -> list[bytes]:
    return [
        method(channel, commands.Basic.Publish, exchange=exchange, routing_key=key, **flags),
        *content(channel, body),
    ]


def handshake(*, heartbeat_s: int = 0, vhost: str = "/") -> list[bytes]:
    """All that a client says until its vhost is open."""
    capabilities = entry("capabilities", b"F", long(entry("basic.nack", b"t", b"\1")))
    return [
        PROTOCOL_HEADER,
        method(
            0,
            commands.Connection.StartOk,
            client_properties=entry("product", b"S", long("fuzz")) + capabilities,
            mechanism="PLAIN",
            response=b"\0guest\0guest",
            locale="en_US",
        ),
        method(
            0,
            commands.Connection.TuneOk,
            channel_max=2047,
            frame_max=FRAME_BYTES_MAX,
            heartbeat=heartbeat_s,
        ),
        method(0, commands.Connection.Open, virtual_host=vhost),
    ]


def opened(*channels: int) -> list[bytes]:
    return handshake() + [method(each, commands.Channel.Open) for each in channels]


def goodbye() -> bytes:
    return method(0, commands.Connection.Close, reply_code=200, reply_text="bye")


def entry(name: bytes | str, kind: bytes, value: bytes) -> bytes:
    """One field of a table."""
    return short(name) + kind + value


def random_table(random: Random, depth: int = 3) -> bytes:
    """Entries of any type, well formed."""
    names = [
        "x-max-length",
        "x-message-ttl",
        "x-queue-type",
        "x-dead-letter-exchange",
        "x-expires",
        "x-priority",
        "x-max-priority",
        "x-overflow",
        "x-single-active-consumer",
        "x-match",
        "alternate-exchange",
        "hash-header",
        "x-delivery-limit",
        "\u00fc",
    ]
    return b"".join(
        entry(random.choice(names), *_random_field(random, depth))
        for _ in range(random.choice((0, 1, 1, 2, 5)))
    )


def _random_field(random: Random, depth: int) -> tuple[bytes, bytes]:
    kind = random.choice(b"tbBsUuIilLfdDSxFATV")
    size = {
        **dict.fromkeys(b"tbB", 1),
        **dict.fromkeys(b"sUu", 2),
        **dict.fromkeys(b"Iif", 4),
        **dict.fromkeys(b"lLdT", 8),
        ord("D"): 5,
        ord("V"): 0,
    }.get(kind)
    name = bytes([kind])
    if size is not None:
        return name, random.choice((bytes(size), b"\xff" * size, random.randbytes(size)))
    if kind == ord("F"):
        return name, long(random_table(random, depth - 1) if depth else b"")
    if kind == ord("A"):
        fields = [_random_field(random, depth - 1) for _ in range(random.randrange(4))]
        return name, long(b"".join(kind + value for kind, value in fields) if depth else b"")
    words = (b"quorum", b"classic", b"all", b"any", b"amq.topic", b"reject-publish", b"", b"\xff")
    return name, long(random.choice(words))
