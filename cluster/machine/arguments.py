"""What a declare may say about a queue: RabbitMQ's argument names, checked once, here.

A name that nothing here understands is kept and has no effect, as in RabbitMQ: its clients send
some. Our own clients are better served by an error than by a misspelt limit that is silently not
kept; their protocol asks `unknown_argument`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cluster.machine.checks import (
    COUNT_MAX,
    BadValue,
    boolean,
    integer,
    is_plain,
    is_short_text,
    one_of,
    shown,
    text,
)
from cluster.machine.commands import Overflow, QueueConfig, RetryType
from cluster.machine.replies import BAD_ARGUMENT
from cluster.machine.versions import MACHINE_VERSION

#: Spans in ms; ten years, as RabbitMQ's timers (Celery asks for four).
SPAN_MS_MAX = 10 * 365 * 86_400_000
PRIORITY_MAX = 255
GROUP_SIZE_MAX = 99

DEDUP_HEADER = "x-dedup-header"
DEDUP_WINDOW = "x-dedup-window"
QUEUE_GROUP = "x-queue-group"
#: By what messages are in groups: the name of a header, or ROUTING_KEY.
GROUP_KEY = "x-group-key"
#: Of a shard: which queue is split over it. That it is, is a parameter of this component.
SHARD_OF = "x-shard-of"
SPLIT_QUEUE = "split-queue"
#: The machine version that brought it.
GROUP_KEY_SINCE = 5
#: How old (ms) its oldest message may become before somebody is told.
SLO_OLDEST_AGE = "x-slo-oldest-age"
#: The machine version that brought it.
SLO_SINCE = 5
QUEUE_TYPE = "x-queue-type"
CLASSIC = "classic"
QUORUM = "quorum"
STREAM = "stream"
#: JetStream's configuration of a stream, by its names.
STREAM_CONFIG = "x-stream"
#: The machine version that brought streams.
STREAMS_SINCE = 4
DEDICATED = "dedicated"


@dataclass(frozen=True, slots=True)
class ArgumentError:
    """Why these arguments make no queue. `reason` names the argument and what it may be."""

    code: str
    reason: str


def _map(value: Any) -> dict[str, Any]:
    if type(value) is not dict:
        raise BadValue("a map of settings")
    return cast("dict[str, Any]", value)


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "x-consumer-timeout": integer(0, SPAN_MS_MAX),
    "x-dead-letter-exchange": text(empty=True),
    "x-dead-letter-routing-key": text(empty=True),
    DEDUP_HEADER: text(empty=False),
    DEDUP_WINDOW: integer(0, SPAN_MS_MAX),
    "x-dead-letter-strategy": one_of("at-least-once", "at-most-once"),
    "x-delayed-retry-max": integer(1, SPAN_MS_MAX),
    "x-delayed-retry-min": integer(1, SPAN_MS_MAX),
    "x-delayed-retry-type": one_of("disabled", "all", "failed", "returned"),
    "x-delivery-limit": integer(-1, COUNT_MAX),
    "x-expires": integer(1, SPAN_MS_MAX),
    "x-max-length": integer(0, COUNT_MAX),
    "x-max-length-bytes": integer(0, COUNT_MAX),
    "x-max-priority": integer(0, PRIORITY_MAX),
    "x-message-ttl": integer(0, SPAN_MS_MAX),
    "x-overflow": one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    GROUP_KEY: text(empty=False),
    QUEUE_GROUP: text(empty=False),
    "x-queue-leader-locator": text(empty=True),
    "x-queue-master-locator": text(empty=True),
    "x-queue-mode": one_of("default", "lazy"),
    QUEUE_TYPE: one_of(QUORUM, CLASSIC, STREAM),
    "x-queue-version": integer(1, 2),
    "x-quorum-initial-group-size": integer(1, GROUP_SIZE_MAX),
    "x-single-active-consumer": boolean,
    SLO_OLDEST_AGE: integer(1, SPAN_MS_MAX),
    STREAM_CONFIG: _map,
}
#: Before there were streams.
_TYPES_BEFORE = one_of(QUORUM, CLASSIC)

ARGUMENT_NAMES = tuple(sorted(_CHECKS))

_QUEUES = (CLASSIC, QUORUM)
#: On which types of queues an argument says something; those that are not here, on all. RabbitMQ's
#: lists, but for what counts here on both types of queues (A31).
_TYPES: Mapping[str, Collection[str]] = {
    **dict.fromkeys(
        _CHECKS.keys() - {"x-max-length-bytes", "x-queue-leader-locator", QUEUE_GROUP, QUEUE_TYPE},
        _QUEUES,
    ),
    "x-initial-cluster-size": (STREAM,),
    "x-max-age": (STREAM,),
    "x-max-in-memory-bytes": (QUORUM,),
    "x-max-in-memory-length": (QUORUM,),
    "x-queue-master-locator": (CLASSIC,),
    "x-queue-mode": (CLASSIC,),
    "x-queue-version": (CLASSIC,),
    "x-quorum-target-group-size": (QUORUM,),
    STREAM_CONFIG: (STREAM,),
    "x-stream-filter-size-bytes": (STREAM,),
    "x-stream-max-segment-size-bytes": (STREAM,),
}

#: How RabbitMQ is to keep a queue, which makes no difference here. All our queues are of one
#: replicated type, whichever of RabbitMQ's two was asked for.
_NOT_COMPARED = frozenset(
    {
        "x-dead-letter-strategy",
        "x-queue-leader-locator",
        "x-queue-master-locator",
        "x-queue-mode",
        "x-queue-type",
        "x-queue-version",
    }
)
_COMPARED = _CHECKS.keys() - _NOT_COMPARED
#: Names that mean something since a later machine version; before it they were kept unseen.
_SINCE = {
    DEDUP_HEADER: 3,
    STREAM_CONFIG: STREAMS_SINCE,
    SLO_OLDEST_AGE: SLO_SINCE,
    GROUP_KEY: GROUP_KEY_SINCE,
}


def compared(version: int) -> Collection[str]:
    """What makes two declarations differ, under this machine version."""
    return [name for name in _COMPARED if _SINCE.get(name, 1) <= version]


def wrong_value(name: str, value: Any, version: int = MACHINE_VERSION) -> str | None:
    """What the argument of this name may be, when it cannot be this; None for unknown names too."""
    check = _CHECKS.get(name) if _SINCE.get(name, 1) <= version else None
    if name == QUEUE_TYPE and version < STREAMS_SINCE:
        check = _TYPES_BEFORE
    try:
        if check is not None:
            check(value)
    except BadValue as error:
        return str(error)
    return None


def misplaced(arguments: Mapping[str, Any]) -> list[str]:
    """Those that say nothing about its type of queue."""
    kind = arguments.get(QUEUE_TYPE, QUORUM)
    if kind not in (*_QUEUES, STREAM):
        return []
    return [name for name in arguments if kind not in _TYPES.get(name, (kind,))]


def misplacement(name: str, thing: str, arguments: Mapping[str, Any]) -> str:
    """In RabbitMQ's words."""
    kind = arguments.get(QUEUE_TYPE, QUORUM)
    return f"invalid arg '{name}' for {thing} of queue type rabbit_{kind}_queue"


def unknown_argument(arguments: Mapping[Any, Any]) -> ArgumentError | None:
    """For protocols of our own: a name without effect is an error."""
    known = _CHECKS.keys() - {STREAM_CONFIG}  # which they say otherwise, and that is checked
    for name in arguments:
        if name not in known:
            allowed = ", ".join(sorted(known))
            return _bad(f"unknown argument {shown(name)}; allowed are {allowed}")
    return None


def parse_arguments(arguments: Any, version: int = MACHINE_VERSION) -> QueueConfig | ArgumentError:
    """The settings that these arguments ask for, or why they cannot be had."""
    if not isinstance(arguments, Mapping):
        return _bad("arguments must be a map of names to values")
    given = cast("Mapping[Any, Any]", arguments)
    for name, value in given.items():
        if not isinstance(name, str) or not is_short_text(name):
            return _bad(f"unknown argument {shown(name)}: a name is text of at most 255 bytes")
        allowed = wrong_value(name, value, version)
        if allowed is not None:
            return _bad(f"invalid value {shown(value)} for {name!r}: must be {allowed}")
    if not is_plain(dict(given)):
        return _bad("arguments may hold numbers, text, bytes, lists and maps, 64 KiB in all")
    if "x-dead-letter-routing-key" in given and "x-dead-letter-exchange" not in given:
        return _bad(
            "x-dead-letter-routing-key needs x-dead-letter-exchange ('' is the default exchange,"
            " where the routing key names the queue)"
        )
    if version >= 3 and DEDUP_HEADER in given and not given.get(DEDUP_WINDOW):
        return _bad(f"{DEDUP_HEADER} needs {DEDUP_WINDOW}: for how many ms ids are remembered")
    if version >= STREAMS_SINCE and (given.get(QUEUE_TYPE) == STREAM) != (STREAM_CONFIG in given):
        return _bad(
            f"{QUEUE_TYPE} {STREAM} and {STREAM_CONFIG} need each other: streams are created and"
            " read by NATS's clients"
        )
    if version >= GROUP_KEY_SINCE and GROUP_KEY in given:
        if given.get("x-max-priority"):
            return _bad(
                f"{GROUP_KEY} keeps the order of each key's messages, and x-max-priority would"
                " change it: declare the queue with one of them"
            )
        if given.get(QUEUE_TYPE) == STREAM:
            return _bad(f"{GROUP_KEY} is for queues: every reader of a stream gets all in order")
    config = settings_from(cast("Mapping[str, Any]", given))
    if config.delayed_retry_min_ms > config.delayed_retry_max_ms:
        return _bad(
            f"x-delayed-retry-min {config.delayed_retry_min_ms} is over"
            f" x-delayed-retry-max {config.delayed_retry_max_ms}"
        )
    return config


def settings_from(given: Mapping[str, Any], *, auto_delete: bool = False) -> QueueConfig:
    """The settings of arguments that are known to be good."""
    default = QueueConfig()
    # As in RabbitMQ: only a quorum queue gives a message up that nobody asked it to.
    classic = given.get(QUEUE_TYPE) == CLASSIC
    limit_default = None if classic else default.delivery_limit
    limit = cast("int | None", given.get("x-delivery-limit", limit_default))
    timeout_ms = cast("int | None", given.get("x-consumer-timeout", default.consumer_timeout_ms))
    retry_min_ms = cast("int", given.get("x-delayed-retry-min", default.delayed_retry_min_ms))
    # A smallest delay over the usual largest one, given alone, moves the largest up with it.
    retry_max_ms = max(default.delayed_retry_max_ms, retry_min_ms)
    if given.get(QUEUE_TYPE) == STREAM and STREAM_CONFIG in given:
        return QueueConfig(type=STREAM, stream=given[STREAM_CONFIG])
    return QueueConfig(
        single_active_consumer=given.get("x-single-active-consumer", False),
        max_priority=given.get("x-max-priority", 0),
        message_ttl_ms=given.get("x-message-ttl"),
        expires_ms=given.get("x-expires"),
        max_length=given.get("x-max-length"),
        max_length_bytes=given.get("x-max-length-bytes"),
        overflow=cast("Overflow", given.get("x-overflow", default.overflow)),
        dead_letter_exchange=given.get("x-dead-letter-exchange"),
        dead_letter_routing_key=given.get("x-dead-letter-routing-key"),
        delivery_limit=None if limit == -1 else limit,
        delayed_retry_type=cast(
            "RetryType", given.get("x-delayed-retry-type", default.delayed_retry_type)
        ),
        delayed_retry_min_ms=retry_min_ms,
        delayed_retry_max_ms=given.get("x-delayed-retry-max", retry_max_ms),
        consumer_timeout_ms=timeout_ms or None,  # 0: off
        dedup_window_ms=given.get("x-dedup-window") or None,  # 0: off
        auto_delete=auto_delete,
        slo_oldest_age_ms=given.get(SLO_OLDEST_AGE),
        group_key=_group_key(given),
    )


def _group_key(given: Mapping[str, Any]) -> str | None:
    """Before there was one, a name like this was kept whatever it said."""
    name = given.get(GROUP_KEY)
    return name if isinstance(name, str) and name and not given.get("x-max-priority") else None


def inequivalence(
    current: Mapping[str, Any],
    received: Mapping[str, Any],
    thing: str,
    names: Collection[str] = _COMPARED,
) -> str | None:
    """Why what was declared as `current` is not what `received` asks for; None: it is.

    Like RabbitMQ: argument by argument and literally, so leaving one out is not the same as giving
    its default; what has no effect is not compared. The sentence is RabbitMQ's too, since people
    search for it.
    """
    for key in sorted((current.keys() | received.keys()).intersection(names)):
        before, now = current.get(key), received.get(key)
        if type(before) is type(now) and before == now:
            continue
        if before is not None and now is not None:
            received_, current_ = f"'{_text(now)}'", f"'{_text(before)}'"
        else:
            received_, current_ = _described(now), _described(before)
        return (
            f"inequivalent arg '{key}' for {thing}: received {received_} but current is {current_}"
        )
    return None


def unlike(field: str, current: str | bool, received: str | bool, thing: str) -> str | None:
    """The same for what is declared by a field of its own."""
    if current == received:
        return None
    before, now = _text(current), _text(received)
    return f"inequivalent arg '{field}' for {thing}: received '{now}' but current is '{before}'"


def _text(value: Any) -> str:
    return str(value).lower() if type(value) is bool else str(value)


def _described(value: Any) -> str:
    if value is None:
        return "none"
    kind = "bool" if type(value) is bool else "long" if type(value) is int else "longstr"
    return f"the value '{_text(value)}' of type '{kind}'"


def _bad(reason: str) -> ArgumentError:
    return ArgumentError(BAD_ARGUMENT, reason)
