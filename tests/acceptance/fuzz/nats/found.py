"""Input that once found something: every run begins with it."""

from __future__ import annotations

from tests.acceptance.fuzz.inputs import Draft
from tests.acceptance.fuzz.nats import wire
from tests.acceptance.fuzz.nats.kinds import survived

FOUND: dict[str, Draft] = {
    "headers at the head of a stream, and no list of queues could be read": survived(
        [
            wire.hpub(b"fuzz.fuzz-0.h", header, b"", wire.INBOX + b"%d" % number)
            for number, header in enumerate((b"\xff" * 40, b"NATS/1.0\r\n\r\n"))
        ],
        2,
    ),
}
