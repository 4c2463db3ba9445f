"""Streams as RabbitMQ's clients declare them: by arguments of its names. Pure.

The catalog keeps what was declared, and beside it the configuration that this means, in the words
in which all streams have theirs. Such a stream has no subjects: messages come from exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from cluster.machine import replies as codes
from cluster.machine.arguments import (
    GROUP_SIZE_MAX,
    STREAM_CONFIG,
    inequivalence,
    misplacement,
)
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.catalog_queues import queue_text
from cluster.machine.checks import COUNT_MAX, BadValue, integer, one_of, shown
from cluster.machine.stream.settings import NS_PER_S
from node.errors import Refused
from node.protocols.nats.jetstream import fields
from node.protocols.nats.jetstream.errors import ApiError, invalid_stream
from node.protocols.nats.jetstream.fields import INT64_MAX
from node.protocols.nats.jetstream.origins import check_cycle
from node.protocols.nats.jetstream.stream_config import CREATED, is_restored, stream_config

MAX_AGE: Final = "x-max-age"
MAX_BYTES: Final = "x-max-length-bytes"
SEGMENT_BYTES_MAX: Final = 3_000_000_000
_SECONDS: Final = {
    "Y": 365 * 86_400,
    "M": 30 * 86_400,
    "D": 86_400,
    "h": 3_600,
    "m": 60,
    "s": 1,
}
_INTERVAL: Final = re.compile(r"([0-9]{1,12})([YMDhms])")
#: Ten thousand years are no limit.
_INTERVAL_S_MAX: Final = 10_000 * _SECONDS["Y"]


def seconds_of(text: str) -> int | None:
    """Of a length of time as RabbitMQ writes it, such as 7D or 1h. None: it is none."""
    found = _INTERVAL.fullmatch(text)
    seconds = int(found[1]) * _SECONDS[found[2]] if found is not None else 0
    return seconds if 0 < seconds <= _INTERVAL_S_MAX else None


def _interval(value: Any) -> str:
    if type(value) is not str or seconds_of(value) is None:
        raise BadValue("a length of time such as 7D: a number and Y, M, D, h, m or s")
    return value


#: What counts is all but the first two and who leads: where the log is cut, and how many have it,
#: is the cluster's affair, and filters are exact.
_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    MAX_AGE: _interval,
    MAX_BYTES: integer(0, COUNT_MAX),
    "x-stream-max-segment-size-bytes": integer(0, SEGMENT_BYTES_MAX),
    "x-stream-filter-size-bytes": integer(16, 255),
    "x-initial-cluster-size": integer(1, GROUP_SIZE_MAX),
    "x-queue-leader-locator": one_of("client-local", "balanced", "random", "least-leaders"),
}
_COMPARED: Final = _CHECKS.keys() - {"x-queue-leader-locator"}


def as_declared(
    catalog: CatalogMachine, vhost: str, queue: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments, with the configuration that they mean, or that the stream has already. Refused
    as by `with_config` and `as_known`.
    """
    found, known = with_config(vhost, queue, arguments), catalog.queue(vhost, queue)
    return found if known is None or known.stream is None else as_known(known, found)


def with_config(vhost: str, queue: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a stream as a client says them, and its configuration, which is ours to say.
    A name that means nothing to anybody is kept, as RabbitMQ does.
    """
    thing = queue_text(vhost, queue)
    for name, value in arguments.items():
        _check(name, value, thing)
    if STREAM_CONFIG in arguments:
        raise Refused(codes.BAD_ARGUMENT, misplacement(STREAM_CONFIG, thing, arguments))
    age_s = seconds_of(arguments.get(MAX_AGE, "")) or 0
    age_ns = min(age_s * NS_PER_S, INT64_MAX)
    limits = {"max_age": age_ns, "max_bytes": arguments.get(MAX_BYTES, 0)}
    # A name that NATS's clients cannot say is a name all the same.
    config: dict[str, Any] = {
        **stream_config({"name": "stream", **limits}),
        "name": queue,
        "subjects": [],
    }
    return {**arguments, STREAM_CONFIG: config}


def as_exported(
    catalog: CatalogMachine, vhost: str, queue: str, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments of a stream with its configuration, as definitions have them: that is checked
    as if a client of JetStream had said it. Refused: it cannot be.
    """
    given: Any = arguments[STREAM_CONFIG]
    try:
        said = cast("dict[str, Any]", given if isinstance(given, dict) else {})
        if not said or is_restored(said):
            raise invalid_stream("it is the configuration of a stream that is whole")
        # A name that NATS's clients cannot say is a name all the same, and no subject.
        config = {**stream_config({**said, "name": "stream"}), "name": queue}
        if not said.get("subjects"):
            config["subjects"] = []
        check_cycle(config, lambda name: _config_known(catalog, vhost, name))
        if created_ms := fields.number(said, CREATED):
            config[CREATED] = created_ms
    except ApiError as error:
        reason = f"invalid arg '{STREAM_CONFIG}' for {queue_text(vhost, queue)}: {error.text}"
        raise Refused(codes.BAD_ARGUMENT, reason) from None
    return {**arguments, STREAM_CONFIG: config}


def _config_known(catalog: CatalogMachine, vhost: str, name: str) -> Mapping[str, Any] | None:
    info = catalog.queue(vhost, name)
    return None if info is None else info.stream


def _check(name: str, value: Any, thing: str) -> None:
    check = _CHECKS.get(name)
    try:
        if check is not None:
            check(value)
    except BadValue as error:
        reason = f"invalid arg '{name}' for {thing}: {shown(value)}, and it must be {error}"
        raise Refused(codes.BAD_ARGUMENT, reason) from None


def as_known(known: QueueInfo, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the configuration that the stream has, whatever became of that since it
    was declared, as of a policy. Refused: it was declared with others.
    """
    thing = queue_text(known.vhost, known.name)
    reason = inequivalence(known.arguments, arguments, thing, _COMPARED)
    if reason is not None:
        raise Refused(codes.INEQUIVALENT, reason)
    return {**arguments, STREAM_CONFIG: known.stream}
