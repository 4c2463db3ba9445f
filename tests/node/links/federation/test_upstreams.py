"""Upstreams: what their parameters may say, and which a policy names."""

from __future__ import annotations

from typing import Any

import pytest

from node.errors import Refused
from node.links.federation.upstreams import (
    Upstream,
    check_policy,
    check_set,
    parse_upstream,
    upstreams_of,
)

URI = "amqp://a"


def test_an_upstream_has_the_defaults_of_rabbitmq():
    assert parse_upstream("u", {"uri": URI}) == Upstream(
        "u",
        (URI,),
        prefetch=1_000,
        reconnect_delay_s=5,
        ack_mode="on-confirm",
        hops_max=1,
        consumer_tag="federation-link-u",
    )


def test_an_upstream_says_all_that_rabbitmq_knows():
    given = {
        "uri": [URI, "amqps://b/v"],
        "prefetch-count": 7,
        "reconnect-delay": 0.5,
        "ack-mode": "no-ack",
        "trust-user-id": True,
        "exchange": "x",
        "queue": "q",
        "max-hops": 3,
        "expires": 1_000,
        "message-ttl": 0,
        "consumer-tag": "t",
        "bind-nowait": True,
        "queue-type": "quorum",
        "channel-use-mode": "single",
        "resource-cleanup-mode": "never",
    }

    assert parse_upstream("u", given) == Upstream(
        "u",
        (URI, "amqps://b/v"),
        prefetch=7,
        reconnect_delay_s=0.5,
        ack_mode="no-ack",
        trusts_user_id=True,
        exchange="x",
        queue="q",
        hops_max=3,
        expires_ms=1_000,
        message_ttl_ms=0,
        consumer_tag="t",
        bind_nowait=True,
        queue_type="quorum",
        one_channel=True,
        keeps_resources=True,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("uri", []),
        ("uri", "http://a"),
        ("prefetch-count", -1),
        ("prefetch-count", "x"),
        ("reconnect-delay", "soon"),
        ("ack-mode", "never"),
        ("trust-user-id", 1),
        ("exchange", 5),
        ("queue", "q" * 256),
        ("max-hops", 0),
        ("expires", 0),
        ("message-ttl", -1),
        ("ha-policy", "all"),
        ("bind-nowait", "yes"),
        ("queue-type", "stream"),
        ("channel-use-mode", "double"),
        ("resource-cleanup-mode", "always"),
        ("nobody-knows-it", 1),
    ],
)
def test_a_field_that_is_wrong_is_named(field: str, value: Any):
    with pytest.raises(Refused, match=field):
        parse_upstream("u", {"uri": URI, field: value})
    if field != "uri":
        with pytest.raises(Refused, match=field):
            check_set("s", [{"upstream": "u", field: value}])


@pytest.mark.parametrize("value", [None, {}, "u", ["u"], [{}], [{"upstream": 1}]])
def test_a_set_is_a_list_of_upstreams_by_name(value: Any):
    with pytest.raises(Refused):
        check_set("s", value)
    check_set("s", [])
    with pytest.raises(Refused, match="all"):
        check_set("all", [])


@pytest.mark.parametrize(
    "definition",
    [
        {"federation-upstream": "u", "federation-upstream-set": "all"},
        {"federation-upstream": ""},
        {"federation-upstream-set": ["all"]},
        {"federation-upstream-pattern": "("},
        {"federation-upstream-pattern": "(a+)+$"},
    ],
)
def test_a_policy_has_one_way_to_name_upstreams(definition: dict[str, Any]):
    with pytest.raises(Refused, match=r"federation-upstream|too long to match"):
        check_policy(definition, operator=False)


def test_only_policies_of_users_federate():
    check_policy({"federation-upstream": "u"}, operator=False)
    check_policy({"max-length": 1}, operator=True)
    with pytest.raises(Refused, match="operators"):
        check_policy({"federation-upstream": "u"}, operator=True)


def test_a_policy_names_upstreams_by_name_by_set_or_by_pattern():
    upstream = "federation-upstream"
    parameters: dict[tuple[str, ...], Any] = {
        (upstream, "/", "eu-2"): {"value": {"uri": URI}},
        (upstream, "/", "eu-1"): {"value": {"uri": URI, "max-hops": 2}},
        (upstream, "/", "us"): {"value": {"uri": URI}},
        (upstream, "other", "eu-3"): {"value": {"uri": URI}},
        (upstream, "/", "of a later release"): {"value": {"uri": URI, "news": 1}},
        ("federation-upstream-set", "/", "s"): {
            "value": [
                {"upstream": "us", "exchange": "x", "max-hops": 3},
                {"upstream": "eu-1", "exchange": "y"},
                {"upstream": "not there"},
            ]
        },
    }

    def named(**definition: str) -> list[tuple[str, str | None, int]]:
        keys = {f"federation_{key}".replace("_", "-"): value for key, value in definition.items()}
        found = upstreams_of(parameters, "/", keys)
        return [(each.name, each.exchange, each.hops_max) for each in found]

    assert named(upstream="us") == [("us", None, 1)]
    assert named(upstream="nobody") == named(upstream_set="nobody") == []
    everything = [("eu-1", None, 2), ("eu-2", None, 1), ("us", None, 1)]
    assert named(upstream_set="all") == everything
    assert named(upstream_set="s") == [("us", "x", 3), ("eu-1", "y", 2)]
    assert named(upstream_pattern="^eu-") == everything[:2]
