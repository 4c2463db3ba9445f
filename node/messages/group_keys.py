"""Which message group a message is in, for queues that were declared with `x-group-key`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
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
        return _attrs_of(name, metas)
    both = zip(metas, _each(attrs, count), strict=True)
    return [_with_key(name, *each) for each in both]


def _attrs_of(name: str, metas: Sequence[Any]) -> list[Mapping[int, str] | None]:
    """As `_attr_of` of each. Of AMQP's headers the wanted one is mostly the first: properties are
    as varied as ids, and reading all of them takes longer than all else.
    """
    if name == ROUTING_KEY:
        return [_attr_of(name, meta) for meta in metas]
    first = short(name) + b"S"
    found: list[Mapping[int, str] | None] = []
    for meta in metas:
        try:
            if type(meta) is bytes and not meta.startswith(FIRST_LINE):
                at = 2 + meta[0]
                at += meta[at - 1]
                flags, at = meta[at], at + 2
                if flags & _CONTENT_TYPE:
                    at += 1 + meta[at]
                if flags & _CONTENT_ENCODING:
                    at += 1 + meta[at]
                if flags & _HEADERS and meta.startswith(first, at + 4):
                    at += 8 + len(first)
                    end = at + int.from_bytes(meta[at - 4 : at], "big")
                    if end <= len(meta) and end - at <= GROUP_KEY_CHARS_MAX:
                        found.append(_attr(meta[at:end]))
                        continue
        except IndexError:
            pass  # nor will anybody else read them
        found.append(_attr_of(name, meta))
    return found


def _each(said: Any, count: int) -> list[Any]:
    return cast("list[Any]", said) if type(said) is list else [said] * count


def _with_key(name: str, meta: Any, attrs: Any) -> Any:
    key = key_of_dead(attrs.get(ATTR_DEATHS)) if attrs and name == ROUTING_KEY else None
    found = _attr_of(name, meta) if key is None else _attr_anew(key)
    return {**attrs, **found} if found and attrs else found or attrs


def _attr_of(name: str, meta: Any) -> Mapping[int, str] | None:
    """None: it has no key, or an empty one."""
    value = routing_key_of(meta) if name == ROUTING_KEY else headers_of(meta).get(name)
    if value is None:
        return None
    key = value if type(value) is str else str(value)
    return _attr(key) if len(key) <= GROUP_KEY_CHARS_MAX else _attr_anew(key)


def _attr_anew(value: str | bytes) -> Mapping[int, str] | None:
    key = str(text_or_bytes(value)) if isinstance(value, bytes) else value
    if len(key) > GROUP_KEY_CHARS_MAX:
        digest = blake2b(key.encode(errors="replace"), digest_size=16).hexdigest()
        key = f"{key[:_READABLE_CHARS]}~{digest}"
    return {ATTR_GROUP_KEY: key} if key else None


#: Of those that are not too long: what is remembered is bounded.
_attr = lru_cache(16_384)(_attr_anew)
