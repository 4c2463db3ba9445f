"""Input that once found something: every run begins with it."""

from __future__ import annotations

from pamqp.commands import Basic, Channel, Queue

from tests.fuzz import wire
from tests.fuzz.inputs import Input, Step


def found() -> list[Input]:
    """Numbers below zero, so that no generated one is meant."""
    return [
        Input(0, -number, what, [Step(b"".join(frames))], polite=polite)
        for number, (what, polite, frames) in enumerate(_FOUND, 1)
    ]


_FOUND: list[tuple[str, bool, list[bytes]]] = [
    (
        "a channel closed before the method that waits has begun",
        False,
        [
            *wire.opened(1),
            *wire.publish(1, "nowhere", b"x", mandatory=True),
            wire.method(1, Channel.Close),
            wire.method(1, Basic.Get, queue="fuzz-0"),
        ],
    ),
    (
        "the name of a queue that pamqp refuses to write",
        True,
        [
            *wire.opened(1),
            wire.method(1, Queue.Declare, queue=b"\n\r", exclusive=True),
            wire.goodbye(),
        ],
    ),
]
