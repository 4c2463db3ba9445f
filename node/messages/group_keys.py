"""Which message group a message is in, for queues that were declared with `x-group-key`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, cast

from cluster.machine.arguments import GROUP_KEY
from cluster.machine.commands import ATTR_DEATHS, ATTR_GROUP_KEY, ROUTING_KEY
from cluster.machine.marks import GROUP_KEY_CHARS_MAX
from node.messages.message import headers_of, key_of_dead, routing_key_of, short
from node.messages.nats_headers import FIRST_LINE
from node.messages.tables import text_or_bytes

#: In the first byte of the flags of AMQP's properties.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20
#: A table without any.
_NO_HEADERS = bytes(4)
#: So much of a key that is too long is kept to be read; the rest is in a hash behind it.
_READABLE_CHARS = 200


def with_group_keys(arguments: Mapping[str, Any], meta: Any, attrs: Any, count: int) -> Any:
    """The attributes for so many messages into a queue with these arguments: with their keys, if
    it has message groups. `meta` and `attrs` are one for all, or a list with one each.
    """
    name = arguments.get(GROUP_KEY)
    if name is None:
        return attrs
    if type(meta) is not list and type(attrs) is not list:
        return _with_key(name, meta, attrs)
    metas = _each(meta, count)
    if not attrs:
        keys = _keys_alike(name, metas) or _keys_of(name, metas)
        return {ATTR_GROUP_KEY: keys} if any(keys) else None
    both = zip(metas, _each(attrs, count), strict=True)
    return [_with_key(name, *each) for each in both]


def _keys_alike(name: str, metas: Sequence[Any]) -> list[str | None] | None:
    """As `_key_of` of each, of messages that came by AMQP and have the wanted header at the same
    place, as those of one publisher mostly do. None: they are not so.
    """
    if name == ROUTING_KEY or not {bytes}.issuperset(map(type, metas)):
        return None
    try:
        at = _first_header(metas[0])
        if at is None:
            return None
        first, head = short(name) + b"S\0\0\0", metas[0][: at - 4]
        size_at = at + len(first)
        start = size_at + 1
        keys = [
            meta[start : start + meta[size_at]].decode() or None
            for meta in metas
            if meta.startswith(first, at)
            and meta.startswith(head)
            and meta[at - 1]  # else, but for rare sizes, there are no headers
            and len(meta) >= start + meta[size_at]
        ]
    except (IndexError, UnicodeDecodeError):
        return None
    return keys if len(keys) == len(metas) else None


def _first_header(meta: bytes) -> int | None:
    """Where the name of the first of AMQP's headers begins, with its length. None: it has none.
    IndexError: nobody can read it.
    """
    if meta.startswith(FIRST_LINE):
        return None
    at = 2 + meta[0]
    at += meta[at - 1]
    flags, at = meta[at], at + 2
    if flags & _CONTENT_TYPE:
        at += 1 + meta[at]
    if flags & _CONTENT_ENCODING:
        at += 1 + meta[at]
    return at + 4 if flags & _HEADERS and not meta.startswith(_NO_HEADERS, at) else None


def _keys_of(name: str, metas: Sequence[Any]) -> list[str | None]:
    """As `_key_of` of each. Of AMQP's headers the wanted one is mostly the first: properties are
    as varied as ids, and reading all of them takes longer than all else.
    """
    if name == ROUTING_KEY:
        return [_key_of(name, meta) for meta in metas]
    first = short(name) + b"S"
    found: list[str | None] = []
    for meta in metas:
        try:
            at = _first_header(meta) if type(meta) is bytes else None
            if at is not None and meta.startswith(first, at):
                at += 4 + len(first)
                end = at + int.from_bytes(meta[at - 4 : at], "big")
                if end <= len(meta) and end - at <= GROUP_KEY_CHARS_MAX:
                    found.append(_key(meta[at:end]))
                    continue
        except IndexError:
            pass  # nor will anybody else read them
        found.append(_key_of(name, meta))
    return found


def _each(said: Any, count: int) -> list[Any]:
    return cast("list[Any]", said) if type(said) is list else [said] * count


def _with_key(name: str, meta: Any, attrs: Any) -> Any:
    dead = key_of_dead(attrs.get(ATTR_DEATHS)) if attrs and name == ROUTING_KEY else None
    key = _key_of(name, meta) if dead is None else _key(dead)
    if key is None:
        return attrs
    return {**cast("dict[int, Any]", attrs or {}), ATTR_GROUP_KEY: key}


def _key_of(name: str, meta: Any) -> str | None:
    """None: it has no key, or an empty one."""
    value = routing_key_of(meta) if name == ROUTING_KEY else headers_of(meta).get(name)
    if value is None:
        return None
    return _key(value if type(value) is str else str(value))


def _key(value: str | bytes) -> str | None:
    key = str(text_or_bytes(value)) if isinstance(value, bytes) else value
    if len(key) > GROUP_KEY_CHARS_MAX:
        digest = blake2b(key.encode(errors="replace"), digest_size=16).hexdigest()
        key = f"{key[:_READABLE_CHARS]}~{digest}"
    return key or None
