"""NATS as bytes, right or deliberately wrong: nothing here checks what it writes."""

from __future__ import annotations

import json
from typing import Any

OPTIONS: dict[str, Any] = {
    "verbose": False,
    "pedantic": False,
    "headers": True,
    "no_responders": True,
    "protocol": 1,
    "user": "guest",
    "pass": "guest",
}
PAYLOAD_BYTES_MAX = 1 << 20
CONTROL_LINE_BYTES_MAX = 4096

#: There with limits, a consumer and all that may be allowed; they have `fuzz.<name>.>`.
STREAMS = [f"fuzz-{number}" for number in range(3)]
CONSUMER = "reader"
#: What inputs make, change and delete.
OWN_STREAMS = [f"fuzz-own-{number}" for number in range(4)]
#: May publish to and read `mine.>` and inboxes, and nothing else.
LIMITED = "fuzz-limited"
#: A public key, of nobody.
NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
#: Where replies that are counted go.
INBOX = b"_INBOX.fuzz."


def connect(**options: Any) -> bytes:
    return b"CONNECT %b\r\n" % json.dumps({**OPTIONS, **options}).encode()


def pub(subject: bytes, payload: bytes = b"", reply: bytes = b"") -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(payload), payload)


def hpub(subject: bytes, header: bytes, payload: bytes = b"", reply: bytes = b"") -> bytes:
    size = len(header) + len(payload)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, payload)


def header(*fields: tuple[bytes, bytes]) -> bytes:
    return b"NATS/1.0\r\n%b\r\n" % b"".join(b"%b: %b\r\n" % each for each in fields)


def sub(subject: bytes, sid: bytes, queue: bytes = b"") -> bytes:
    return b"SUB %b %b %b\r\n" % (subject, queue, sid)


def unsub(sid: bytes, most: bytes = b"") -> bytes:
    return b"UNSUB %b %b\r\n" % (sid, most)


def opened(**options: Any) -> list[bytes]:
    return [connect(**options)]


def asking(**options: Any) -> list[bytes]:
    """And with an inbox whose messages are counted."""
    return [connect(**options), sub(INBOX + b"*", b"inbox")]


def ask(subject: bytes, body: Any, number: int = 0) -> bytes:
    """A request; its body is JSON, or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return pub(subject, data, INBOX + b"%d" % number)


PING = b"PING\r\n"
#: No operation: the node says so, and closes.
GOODBYE = b"GOODBYE\r\n"
