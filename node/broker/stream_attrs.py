"""What a stream is told of messages that come with a key, by its name or through an exchange: the
subject, and what NATS's clients ask by headers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, cast

from cluster.machine import replies as codes
from cluster.machine.catalog import QueueInfo
from cluster.machine.commands import ATTR_ASKED, ATTR_DEDUP_ID, ATTR_SUBJECT, ATTR_TTL_MS
from cluster.machine.stream.settings import ASKED_ID, ASKED_TTL_MS, matches
from node.errors import Refused
from node.messages.subjects import is_literal

TTL_MS_MIN: Final = 1_000
_WANTED: Final = {ATTR_DEDUP_ID, ATTR_TTL_MS}


def stream_attrs(info: QueueInfo, bodies: Sequence[bytes], meta: Any, attrs: Any) -> Any:
    """Attributes for the machine: one for all, or one each. Refused: the stream would not take it,
    or has no such thing.
    """
    config: Mapping[str, Any] = info.stream or {}
    if config.get("sealed"):
        raise _bad(f"stream {info.name} is sealed: it takes no more messages")
    largest = config.get("max_msg_size", -1)
    if 0 < largest < max(map(len, bodies)):
        reason = f"a message of stream {info.name} has at most {largest} bytes (max_msg_size)"
        raise Refused("message_too_large", reason)
    if type(meta) is not list and type(attrs) is not list:
        return _one(info, config, meta, attrs)
    count = len(bodies)
    both = zip(_each(meta, count), _each(attrs, count), strict=True)
    return [_one(info, config, *each) for each in both]


def with_subjects(info: QueueInfo, keys: Iterable[str | None], attrs: list[Any]) -> list[Any]:
    """Of messages that come through an exchange; `attrs` of each, or of none. A routing key that is
    among the stream's subjects is the message's. With another one it has none.
    """
    subjects: Sequence[str] = (info.stream or {}).get("subjects") or ()
    if not subjects:
        return attrs
    patterns = tuple(subjects)
    found = [_subject_of(patterns, key) for key in keys]
    if not any(found):
        return attrs
    return [
        {**(own or {}), ATTR_SUBJECT: subject} if subject else own
        for subject, own in zip(found, attrs or [None] * len(found), strict=True)
    ]


@lru_cache(4096)
def _subject_of(patterns: tuple[str, ...], key: str | None) -> bytes:
    subject = (key or "").encode(errors="replace")
    return subject if _is_one_of(patterns, subject) else b""


def _is_one_of(patterns: Sequence[str], subject: bytes) -> bool:
    literal = is_literal(subject) and subject.split() == [subject]
    return literal and any(matches(each.encode(), subject) for each in patterns)


def _each(said: Any, count: int) -> list[Any]:
    return cast("list[Any]", said) if type(said) is list else [said] * count


def _one(
    info: QueueInfo, config: Mapping[str, Any], meta: Any, attrs: Any
) -> dict[int, Any] | None:
    found: dict[int, Any] = {}
    subject = _subject(info, config.get("subjects") or [], meta)
    if subject:
        found[ATTR_SUBJECT] = subject
    if attrs:
        found[ATTR_ASKED] = _asked(info, config, cast("dict[int, Any]", attrs))
    return found or None


def _subject(info: QueueInfo, subjects: Sequence[str], meta: Any) -> bytes:
    """Empty: what exchanges fill has none."""
    if not subjects:
        return b""
    key = cast("dict[str, Any]", meta).get("key") if type(meta) is dict else None
    if key is None and len(subjects) == 1 and is_literal(subjects[0].encode()):
        return subjects[0].encode()
    subject = key.encode(errors="replace") if isinstance(key, str) else b""
    if not is_literal(subject) or subject.split() != [subject]:
        raise _bad(f"stream {info.name} stores by subject: the routing key is one, not {key!r}")
    if not any(matches(each.encode(), subject) for each in subjects):
        raise _bad(f"stream {info.name} stores {', '.join(subjects)}, not {key!r}")
    return subject


def _asked(info: QueueInfo, config: Mapping[str, Any], attrs: Mapping[int, Any]) -> dict[int, Any]:
    if not attrs.keys() <= _WANTED:
        raise _bad(f"{info.name} is a stream: its messages have no priority and no delay")
    found: dict[int, Any] = {}
    if ATTR_DEDUP_ID in attrs:
        found[ASKED_ID] = attrs[ATTR_DEDUP_ID]
    if ATTR_TTL_MS in attrs:
        if not config.get("allow_msg_ttl"):
            raise _bad(f"stream {info.name} takes no TTL of a message: it needs allow_msg_ttl")
        if attrs[ATTR_TTL_MS] < TTL_MS_MIN:
            raise _bad(f"in a stream a TTL is at least {TTL_MS_MIN} ms")
        found[ASKED_TTL_MS] = attrs[ATTR_TTL_MS]
    return found


def _bad(reason: str) -> Refused:
    return Refused(codes.BAD_ARGUMENT, reason)
