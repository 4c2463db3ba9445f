"""Configurations as people write them: a setting that nobody knows is refused, and a length of time
may be a text. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from node.protocols.nats.jetstream import consumer_config, stream_config
from node.protocols.nats.jetstream.errors import ApiError
from node.protocols.nats.jetstream.times import ns_of_span

Json = dict[str, Any]


def of_stream(values: Mapping[str, Any]) -> Json:
    """In JetStream's words. ApiError: it cannot be read."""
    return _given(values, stream_config.FIELDS, stream_config.SPANS)


def of_consumer(values: Mapping[str, Any]) -> Json:
    return _given(values, consumer_config.FIELDS, consumer_config.SPANS)


def _given(values: Mapping[str, Any], known: Iterable[str], spans: Iterable[str]) -> Json:
    unknown = sorted(values.keys() - set(known))
    if unknown:
        raise _bad(f"there is no setting {unknown[0]!r}; there are {', '.join(sorted(known))}")
    found = dict(values)
    for name in spans:
        value = found.get(name)
        if isinstance(value, list):
            found[name] = [_ns(name, each) for each in cast("list[Any]", value)]
        elif isinstance(value, str):
            found[name] = _ns(name, value)
    return found


def _ns(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        return value
    ns = ns_of_span(value)
    if ns is None:
        raise _bad(f"{name} is a length of time such as 90s, 1h30m or 720h, not {value!r}")
    return ns


def _bad(reason: str) -> ApiError:
    return ApiError(400, 10025, reason)
