"""Header blocks of messages: what they ask of a stream, and those of the server's own. Pure.

A block is the bytes of the wire, from `NATS/1.0` to the empty line, and stays so.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from cluster.machine.stream.settings import (
    ASKED_ID,
    ASKED_LAST,
    ASKED_LAST_ID,
    ASKED_LAST_SUBJECT,
    ASKED_MARKER,
    ASKED_ROLLUP,
    ASKED_STREAM,
    ASKED_SUBJECT,
    ASKED_TTL_MS,
)
from node.messages.nats_headers import FIRST_LINE, lines
from node.messages.subjects import is_subject
from node.protocols.nats.jetstream.batching import Part
from node.protocols.nats.jetstream.errors import ApiError, known
from node.protocols.nats.jetstream.times import NS_PER_MS, NS_PER_S, ns_of_span

#: No block that asks something of a stream is without it.
MARK: Final = b"Nats-"
SOURCE: Final = b"Nats-Stream-Source"
BLOCK_BYTES_MAX: Final = 64 * 1024
TTL_NS_MIN: Final = NS_PER_S


def fields_of(block: bytes) -> dict[bytes, bytes]:
    """The first value of each key."""
    found: dict[bytes, bytes] = {}
    for key, value in lines(block):
        found.setdefault(key, value)
    return found


class Asked(NamedTuple):
    """What a message asks of a stream."""

    attrs: dict[int, Any] | None = None  # the map for `ATTR_ASKED`
    part: Part | None = None  # of an atomic batch
    increment: bytes | None = None  # of a counter, as it is written
    schedule: dict[bytes, bytes] | None = None  # all its headers, if some are of schedules


NOTHING: Final = Asked()


def asked(block_: bytes) -> Asked:
    """ApiError: it asks for what cannot be."""
    if MARK not in block_:
        return NOTHING
    given = fields_of(block_)
    part = _part(given)
    found: dict[int, Any] = {}
    for key, place in (
        (b"Nats-Msg-Id", ASKED_ID),
        (b"Nats-Expected-Stream", ASKED_STREAM),
        (b"Nats-Expected-Last-Msg-Id", ASKED_LAST_ID),
    ):
        if given.get(key):
            found[place] = given[key].decode(errors="replace")
    for key, place in (
        (b"Nats-Expected-Last-Sequence", ASKED_LAST),
        (b"Nats-Expected-Last-Subject-Sequence", ASKED_LAST_SUBJECT),
    ):
        text = given.get(key)
        if text is not None:
            if not text.isdigit() or len(text) > 19:
                raise known(10003)
            found[place] = int(text)
    subject = given.get(b"Nats-Expected-Last-Subject-Sequence-Subject")
    if subject:
        if ASKED_LAST_SUBJECT not in found or not is_subject(subject):
            raise known(10193)
        found[ASKED_SUBJECT] = subject
    rollup = given.get(b"Nats-Rollup")
    if rollup is not None:
        if rollup not in (b"sub", b"all"):
            raise ApiError(500, 10111, f"rollup value invalid: {rollup.decode(errors='replace')!r}")
        found[ASKED_ROLLUP] = rollup.decode()
    ttl = given.get(b"Nats-TTL")
    if ttl:
        found[ASKED_TTL_MS] = ttl_ms_of(ttl)
    if given.get(b"KV-Operation") == b"PURGE" or b"Nats-Marker-Reason" in given:
        found[ASKED_MARKER] = True
    schedule = given if b"Nats-Schedule" in block_ else None
    return Asked(found or None, part, given.get(b"Nats-Incr") or None, schedule)


def asked_by_client(block_: bytes) -> Asked:
    """The same; and no client says that a message was another stream's."""
    if SOURCE in block_ and fields_of(block_).get(SOURCE):
        raise known(10227)
    return asked(block_)


def copied(block: bytes) -> dict[int, Any]:
    """What a message asks for that comes from another stream, which took it."""
    with suppress(ApiError):
        return asked(block).attrs or {}
    return {}


def without(block: bytes, *names: bytes) -> bytes:
    """Less the headers whose names begin so."""
    if not any(name in block for name in names):
        return block
    first, *rest = block.split(b"\r\n")
    return b"\r\n".join([first, *(line for line in rest if not line.startswith(names))])


def _part(given: dict[bytes, bytes]) -> Part | None:
    name = given.get(b"Nats-Batch-Id")
    if not name:
        return None
    number = given.get(b"Nats-Batch-Sequence", b"")
    if not number.isdigit() or len(number) > 19:
        number = b"0"
    commit = given.get(b"Nats-Batch-Commit")
    last = "" if commit is None else commit.decode(errors="replace") or "none"
    return Part(name.decode(errors="replace"), int(number), last)


def ttl_ms_of(value: bytes) -> int:
    """0: never. ApiError: it is none."""
    if value == b"never":
        return 0
    number = value.isdigit() and len(value) < 12
    ns = int(value) * NS_PER_S if number else ns_of_span(value.decode(errors="replace"))
    if ns is None or ns < TTL_NS_MIN:
        raise known(10165)
    return ns // NS_PER_MS


def status(code: int, text: str, fields: Iterable[tuple[str, object]] = ()) -> bytes:
    """A block that says how something is, or ended."""
    rest = "".join(f"{key}: {value}\r\n" for key, value in fields)
    return f"NATS/1.0 {code} {text}\r\n{rest}\r\n".encode()


def block(fields: Iterable[tuple[str, object]]) -> bytes:
    return (
        "NATS/1.0\r\n" + "".join(f"{key}: {value}\r\n" for key, value in fields) + "\r\n"
    ).encode()


def with_fields(block_: bytes | None, fields: Iterable[tuple[str, object]]) -> bytes:
    """The block, or a new one, with more behind what it has."""
    more = "".join(f"{key}: {value}\r\n" for key, value in fields).encode()
    head = block_[:-2] if block_ else FIRST_LINE + b"\r\n"
    return head + more + b"\r\n"
