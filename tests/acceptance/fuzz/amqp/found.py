"""Input that once found something: every run begins with it."""

from __future__ import annotations

import math
import struct

from pamqp.commands import Basic, Channel, Queue

from tests.acceptance.fuzz.amqp import wire
from tests.acceptance.fuzz.inputs import Draft

_NO_NUMBER = wire.entry("x-mine", b"d", struct.pack(">d", math.nan))


def _deep(depth: int) -> bytes:
    value = b"t\1"
    for _ in range(depth):
        value = b"A" + wire.long(value)
    return value


def _with_headers(headers: bytes) -> list[bytes]:
    return [
        wire.method(1, Basic.Publish, routing_key="fuzz-0"),
        *wire.content(1, b"x", b"\x20\x00" + wire.long(headers)),
    ]


FOUND: dict[str, Draft] = {
    "a channel closed before the method that waits has begun": Draft(
        [
            *wire.opened(1),
            *wire.publish(1, "nowhere", b"x", mandatory=True),
            wire.method(1, Channel.Close),
            wire.method(1, Basic.Get, queue="fuzz-0"),
        ],
    ),
    "the name of a queue that pamqp refuses to write": Draft(
        [
            *wire.opened(1),
            wire.method(1, Queue.Declare, queue=b"\n\r", exclusive=True),
        ],
        polite=True,
    ),
    "an argument that is no number, and no list of queues could be read": Draft(
        [
            *wire.opened(1),
            wire.method(1, Queue.Declare, queue="fuzz-nan", durable=True, arguments=_NO_NUMBER),
        ],
    ),
    "a binding's argument that is no number": Draft(
        [
            *wire.opened(1),
            wire.method(
                1, Queue.Bind, queue="fuzz-0", exchange="amq.headers", arguments=_NO_NUMBER
            ),
        ],
    ),
    "headers nested 900 deep, and no message behind them could be got": Draft(
        [*wire.opened(1), *_with_headers(wire.short("n") + _deep(900))],
    ),
    "headers that hold what is no number": Draft(
        [*wire.opened(1), *_with_headers(_NO_NUMBER)],
    ),
}
