"""Queue arguments: RabbitMQ's names and ranges, and errors that say what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.machine.arguments import (
    ARGUMENT_NAMES,
    GROUP_KEY,
    STREAM_CONFIG,
    ArgumentError,
    compared,
    inequivalence,
    parse_arguments,
    settings_from,
    unknown_argument,
)
from cluster.machine.commands import QueueConfig
from cluster.machine.replies import BAD_ARGUMENT


def test_no_arguments_give_the_defaults() -> None:
    assert parse_arguments({}) == QueueConfig()


def test_every_argument_reaches_its_setting() -> None:
    arguments = {
        "x-single-active-consumer": True,
        "x-max-priority": 9,
        "x-message-ttl": 0,
        "x-expires": 60_000,
        "x-max-length": 10,
        "x-max-length-bytes": 1_000,
        "x-overflow": "reject-publish-dlx",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-delivery-limit": 3,
        "x-delayed-retry-type": "failed",
        "x-delayed-retry-min": 5,
        "x-delayed-retry-max": 50,
        "x-consumer-timeout": 1_000,
        "x-dedup-window": 120_000,
        "x-dedup-header": "order",
        "x-slo-oldest-age": 30_000,
        "x-queue-group": "payments",
        "x-queue-type": "quorum",
        "x-quorum-initial-group-size": 3,
        "x-dead-letter-strategy": "at-least-once",
        "x-queue-leader-locator": "balanced",
        "x-queue-master-locator": "min-masters",
        "x-queue-mode": "lazy",
        "x-queue-version": 2,
    }
    assert set(arguments) == set(ARGUMENT_NAMES) - {STREAM_CONFIG, GROUP_KEY}
    assert parse_arguments(arguments) == QueueConfig(
        single_active_consumer=True,
        max_priority=9,
        message_ttl_ms=0,
        expires_ms=60_000,
        max_length=10,
        max_length_bytes=1_000,
        overflow="reject-publish-dlx",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        delivery_limit=3,
        delayed_retry_type="failed",
        delayed_retry_min_ms=5,
        delayed_retry_max_ms=50,
        consumer_timeout_ms=1_000,
        dedup_window_ms=120_000,
        slo_oldest_age_ms=30_000,
    )


def test_message_groups_go_without_priorities_and_streams() -> None:
    assert parse_arguments({GROUP_KEY: "order"}) == QueueConfig(group_key="order")
    for other, wrong in (
        ({"x-max-priority": 3}, "x-max-priority would change it"),
        ({"x-queue-type": "stream", STREAM_CONFIG: {"name": "s"}}, "is for queues"),
        ({GROUP_KEY: ""}, "must be"),
        ({GROUP_KEY: 7}, "must be"),
    ):
        error = parse_arguments({GROUP_KEY: "order", **other})
        assert isinstance(error, ArgumentError)
        assert wrong in error.reason
    assert parse_arguments({GROUP_KEY: "o", "x-max-priority": 0}) == QueueConfig(group_key="o")


def test_what_was_declared_before_there_were_message_groups_has_none() -> None:
    for value, priorities in ((7, 0), ("", 0), ("order", 3)):
        given = {GROUP_KEY: value, "x-max-priority": priorities}
        assert settings_from(given).group_key is None


def test_a_delivery_limit_of_minus_one_is_none() -> None:
    assert parse_arguments({"x-delivery-limit": -1}) == QueueConfig(delivery_limit=None)


def test_a_classic_queue_has_no_delivery_limit_unless_it_asks_for_one() -> None:
    assert parse_arguments({"x-queue-type": "classic"}) == QueueConfig(delivery_limit=None)
    asked = {"x-queue-type": "classic", "x-delivery-limit": 3}
    assert parse_arguments(asked) == QueueConfig(delivery_limit=3)


def test_a_consumer_timeout_or_dedup_window_of_zero_is_off() -> None:
    off = {"x-consumer-timeout": 0, "x-dedup-window": 0}
    assert parse_arguments(off) == QueueConfig(consumer_timeout_ms=None, dedup_window_ms=None)


def test_a_smallest_retry_delay_alone_may_exceed_the_usual_largest() -> None:
    config = parse_arguments({"x-delayed-retry-min": 90_000})
    assert config == QueueConfig(delayed_retry_min_ms=90_000, delayed_retry_max_ms=90_000)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({5: 1}, "unknown argument 5"),
        ({"x" * 256: 1}, "a name is text of at most 255 bytes"),
        ({"ours": object()}, "arguments may hold numbers, text, bytes, lists and maps"),
        ({"ours": ["x" * 40_000, "x" * 40_000]}, "64 KiB in all"),
        ({"ours": {5: 1}}, "arguments may hold numbers"),
        ({"x-queue-mode": "eager"}, "one of default, lazy"),
        ({"x-queue-version": 3}, "an integer from 1 to 2"),
        ({"x-dead-letter-strategy": "maybe"}, "one of at-least-once, at-most-once"),
        ({"x-max-length": -1}, "'x-max-length': must be an integer of at least 0"),
        ({"x-max-length": True}, "must be an integer of at least 0"),
        ({"x-max-length": "10"}, "invalid value '10' for 'x-max-length'"),
        ({"x-max-length": 1.5}, "invalid value 1.5"),
        ({"x-max-length": None}, "invalid value None"),
        ({"x-max-priority": 256}, "must be an integer from 0 to 255"),
        ({"x-message-ttl": 400_000_000_000}, "must be an integer from 0 to 315360000000"),
        ({"x-expires": 0}, "must be an integer from 1 to"),
        ({"x-delivery-limit": -2}, "must be an integer of at least -1"),
        ({"x-overflow": "drop"}, "one of drop-head, reject-publish, reject-publish-dlx"),
        ({"x-overflow": []}, "one of drop-head"),
        ({"x-single-active-consumer": 1}, "must be true or false"),
        ({"x-queue-type": "streams"}, "one of quorum, classic, stream"),
        ({"x-queue-type": "stream"}, "created and read by NATS's clients"),
        ({"x-queue-group": ""}, "non-empty text of at most 255 bytes"),
        ({"x-dead-letter-exchange": "x" * 256}, "text of at most 255 bytes"),
        ({"x-dead-letter-exchange": "\ud800"}, "text of at most 255 bytes"),
        ({"x-dead-letter-routing-key": "k"}, "needs x-dead-letter-exchange"),
        ({"x-dedup-window": 9, "x-dedup-header": 5}, "'x-dedup-header': must be non-empty text"),
        ({"x-dedup-header": "order"}, "x-dedup-header needs x-dedup-window"),
        ({"x-dedup-header": "order", "x-dedup-window": 0}, "needs x-dedup-window"),
        ({"x-delayed-retry-min": 9, "x-delayed-retry-max": 8}, "x-delayed-retry-min 9 is over"),
        ({"x-quorum-initial-group-size": 0}, "must be an integer from 1 to 99"),
        (["x-expires"], "must be a map"),
    ],
)
def test_a_bad_argument_is_named_with_what_it_may_be(arguments: Any, reason: str) -> None:
    error = parse_arguments(arguments)
    assert isinstance(error, ArgumentError)
    assert error.code == BAD_ARGUMENT
    assert reason in error.reason


def test_a_name_without_effect_is_taken_from_clients_of_rabbitmq_and_refused_to_our_own() -> None:
    assert parse_arguments({"x-max-lenght": 1}) == QueueConfig()
    error = unknown_argument({"x-max-length": 1, "x-max-lenght": 1})
    assert error is not None
    assert "unknown argument 'x-max-lenght'; allowed are x-consumer-timeout" in error.reason
    assert unknown_argument({"x-max-length": 1}) is None
    assert unknown_argument({"x-queue-type": "stream", STREAM_CONFIG: {"subjects": ["a..b"]}})


def test_a_huge_bad_value_is_not_repeated_in_full() -> None:
    error = parse_arguments({"x-overflow": "y" * 100_000})
    assert isinstance(error, ArgumentError)
    assert len(error.reason) < 300


@given(
    st.dictionaries(
        st.sampled_from(ARGUMENT_NAMES) | st.text(max_size=3),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        max_size=4,
    )
)
def test_any_arguments_give_settings_or_an_error(arguments: dict[str, Any]) -> None:
    assert isinstance(parse_arguments(arguments), QueueConfig | ArgumentError)


def test_the_same_arguments_are_equivalent_whatever_their_order() -> None:
    current = {"x-max-length": 1, "x-expires": 2}
    assert inequivalence(current, dict(reversed(current.items())), "queue") is None


@pytest.mark.parametrize("name", ["x-queue-type", "x-queue-mode", "x-queue-version", "ours"])
def test_what_has_no_effect_makes_no_difference(name: str) -> None:
    assert inequivalence({name: "classic"}, {}, "queue") is None


@pytest.mark.parametrize(
    ("current", "received", "words"),
    [
        (
            {"x-max-length": 10},
            {"x-max-length": 20},
            "received '20' but current is '10'",
        ),
        (
            {"x-max-length": 10},
            {},
            "received none but current is the value '10' of type 'long'",
        ),
        (
            {},
            {"x-max-length": 10},
            "received the value '10' of type 'long' but current is none",
        ),
    ],
)
def test_an_inequivalent_argument_is_told_in_the_words_people_search_for(
    current: dict[str, Any], received: dict[str, Any], words: str
) -> None:
    reason = inequivalence(current, received, "queue 'orders' in vhost '/'")
    assert reason == f"inequivalent arg 'x-max-length' for queue 'orders' in vhost '/': {words}"


def test_an_argument_that_came_later_is_kept_unseen_by_older_machines() -> None:
    """What they answered and hold may not change: their logs are replayed."""
    for arguments in ({"x-dedup-header": 5}, {"x-dedup-header": "order"}):
        assert parse_arguments(arguments, 2) == QueueConfig()
        assert isinstance(parse_arguments(arguments, 3), ArgumentError)
    assert "x-dedup-header" in compared(3)
    assert "x-dedup-header" not in compared(2)
    assert "x-dedup-window" in compared(1)
