"""What a declare may say about a queue: RabbitMQ's argument names, checked once, here.

A name that nothing here understands is refused rather than ignored: a misspelt limit that is
silently not kept is worse than an error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from cluster.machine.commands import Overflow, QueueConfig, RetryType
from cluster.machine.replies import BAD_ARGUMENT

#: Spans in ms; the same bound as RabbitMQ's timers (about 49 days).
SPAN_MS_MAX = 2**32 - 1
COUNT_MAX = 2**63 - 1
PRIORITY_MAX = 255
NAME_BYTES_MAX = 255
GROUP_SIZE_MAX = 99

QUEUE_GROUP = "x-queue-group"
DEDICATED = "dedicated"


@dataclass(frozen=True, slots=True)
class ArgumentError:
    """Why these arguments make no queue. `reason` names the argument and what it may be."""

    code: str
    reason: str


class _BadValue(Exception):
    """The value of one argument cannot be; says what it may be."""


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            bounds = f"from {low} to {high}" if high < COUNT_MAX else f"of at least {low}"
            raise _BadValue(f"an integer {bounds}")
        return value

    return check


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise _BadValue("true or false")
    return value


def _one_of(*words: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise _BadValue("one of " + ", ".join(words))
        return value

    return check


def _text(*, empty: bool) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if isinstance(value, str) and is_short_text(value) and (empty or value):
            return value
        least = "" if empty else "non-empty "
        raise _BadValue(f"{least}text of at most {NAME_BYTES_MAX} bytes")

    return check


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "x-consumer-timeout": _integer(0, SPAN_MS_MAX),
    "x-dead-letter-exchange": _text(empty=True),
    "x-dead-letter-routing-key": _text(empty=True),
    "x-dedup-window": _integer(0, SPAN_MS_MAX),
    "x-delayed-retry-max": _integer(1, SPAN_MS_MAX),
    "x-delayed-retry-min": _integer(1, SPAN_MS_MAX),
    "x-delayed-retry-type": _one_of("disabled", "all", "failed", "returned"),
    "x-delivery-limit": _integer(-1, COUNT_MAX),
    "x-expires": _integer(1, SPAN_MS_MAX),
    "x-max-length": _integer(0, COUNT_MAX),
    "x-max-length-bytes": _integer(0, COUNT_MAX),
    "x-max-priority": _integer(0, PRIORITY_MAX),
    "x-message-ttl": _integer(0, SPAN_MS_MAX),
    "x-overflow": _one_of("drop-head", "reject-publish", "reject-publish-dlx"),
    QUEUE_GROUP: _text(empty=False),
    "x-queue-type": _one_of("quorum", "classic"),
    "x-quorum-initial-group-size": _integer(1, GROUP_SIZE_MAX),
    "x-single-active-consumer": _boolean,
}

ARGUMENT_NAMES = tuple(sorted(_CHECKS))

#: All our queues are of one replicated type, whichever of RabbitMQ's two was asked for.
_NOT_COMPARED = frozenset({"x-queue-type"})


def is_short_text(value: str) -> bool:
    """Whether a name fits where AMQP carries it, and can be written as UTF-8 at all."""
    try:
        return len(value.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:  # a lone surrogate
        return False


def parse_arguments(arguments: Any) -> QueueConfig | ArgumentError:
    """The settings that these arguments ask for, or why they cannot be had."""
    if not isinstance(arguments, Mapping):
        return _bad("arguments must be a map of names to values")
    given = cast("Mapping[Any, Any]", arguments)
    for name, value in given.items():
        check = _CHECKS.get(name) if isinstance(name, str) else None
        if check is None:
            allowed = ", ".join(ARGUMENT_NAMES)
            return _bad(f"unknown argument {_shown(name)}; allowed are {allowed}")
        try:
            check(value)
        except _BadValue as error:
            return _bad(f"invalid value {_shown(value)} for {name!r}: must be {error}")
    if "x-dead-letter-routing-key" in given and "x-dead-letter-exchange" not in given:
        return _bad(
            "x-dead-letter-routing-key needs x-dead-letter-exchange ('' is the default exchange,"
            " where the routing key names the queue)"
        )
    config = _config(cast("Mapping[str, Any]", given))
    if config.delayed_retry_min_ms > config.delayed_retry_max_ms:
        return _bad(
            f"x-delayed-retry-min {config.delayed_retry_min_ms} is over"
            f" x-delayed-retry-max {config.delayed_retry_max_ms}"
        )
    return config


def _config(given: Mapping[str, Any]) -> QueueConfig:
    default = QueueConfig()
    limit = cast("int | None", given.get("x-delivery-limit", default.delivery_limit))
    timeout_ms = cast("int | None", given.get("x-consumer-timeout", default.consumer_timeout_ms))
    retry_min_ms = cast("int", given.get("x-delayed-retry-min", default.delayed_retry_min_ms))
    # A smallest delay over the usual largest one, given alone, moves the largest up with it.
    retry_max_ms = max(default.delayed_retry_max_ms, retry_min_ms)
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
    )


def inequivalence(
    current: Mapping[str, Any], received: Mapping[str, Any], *, vhost: str, name: str
) -> str | None:
    """Why a queue declared as `current` is not the one that `received` asks for; None: it is.

    Like RabbitMQ: argument by argument and literally, so leaving one out is not the same as giving
    its default. The sentence is RabbitMQ's too, since people search for it.
    """
    for key in sorted((current.keys() | received.keys()) - _NOT_COMPARED):
        before, now = current.get(key), received.get(key)
        if type(before) is not type(now) or before != now:
            return (
                f"inequivalent arg '{key}' for queue '{name}' in vhost '{vhost}':"
                f" received {_described(now)} but current is {_described(before)}"
            )
    return None


def _described(value: Any) -> str:
    if value is None:
        return "none"
    if type(value) is bool:
        return f"the value '{str(value).lower()}' of type 'bool'"
    kind = "long" if type(value) is int else "longstr"
    return f"the value '{value}' of type '{kind}'"


def _shown(value: Any) -> str:
    """A value from outside within an error: as it is, but never much of it."""
    text = ascii(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _bad(reason: str) -> ArgumentError:
    return ArgumentError(BAD_ARGUMENT, reason)
