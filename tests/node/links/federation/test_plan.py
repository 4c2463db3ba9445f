"""What a federated exchange asks of its upstream, as RabbitMQ's plugin has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.machine.catalog_tables import BindingInfo
from cluster.machine.interface import ConsumerView
from cluster.types import ConsumerKey, SessionId
from node.links.federation import plan
from node.links.federation.plan import End
from node.links.federation.queues import wants_more
from node.links.federation.upstreams import parse_upstream
from tests.machine.world import World

UP, DOWN = End("up", "/", "x"), End("down", "/", "x")


def bound(key: str, kind: Any = "queue", to: str = "q", **arguments: Any) -> BindingInfo:
    return BindingInfo(
        "/", "x", kind, to, key, {k.replace("_", "-"): v for k, v in arguments.items()}
    )


def wanted(
    *bindings: BindingInfo, hops_max: int = 1, suffix: str = "A"
) -> dict[bytes, plan.Wanted]:
    return plan.wanted_bindings(bindings, UP, DOWN, hops_max=hops_max, suffix=suffix)


@pytest.mark.parametrize(
    ("upstream", "downstream", "name"),
    [
        (UP, DOWN, "federation: x -> down"),
        (End("up", "/", "y"), DOWN, "federation: y -> down:x"),
        (End("up", "v", "x"), DOWN, "federation: x -> down:/:x"),
    ],
)
def test_the_queue_upstream_is_named_after_both_ends(upstream: End, downstream: End, name: str):
    assert plan.queue_name(upstream, downstream) == name
    assert plan.exchange_name(name, "B") == f"{name} B"


def test_a_name_that_has_no_room_is_refused_in_words():
    with pytest.raises(ValueError, match="too long"):
        plan.queue_name(End("up", "/", "x" * 200), DOWN)


def test_what_is_made_upstream_says_what_it_is_for():
    upstream = parse_upstream(
        "u",
        {"uri": "amqp://", "expires": 5, "message-ttl": 6, "max-hops": 2, "queue-type": "quorum"},
    )
    assert plan.queue_arguments(upstream) == {
        "x-expires": 5,
        "x-message-ttl": 6,
        "x-queue-type": "quorum",
        "x-internal-purpose": "federation",
    }
    assert plan.exchange_arguments(upstream, DOWN) == {
        "x-max-hops": 2,
        "x-downstream-name": "down",
        "x-downstream-vhost": "/",
        "x-internal-purpose": "federation",
    }


def test_each_different_binding_is_wanted_once_whatever_is_bound():
    found = wanted(bound("a"), bound("a", to="other"), bound("b", "exchange", "e"), bound("a", n=1))

    hop = {"cluster-name": "down", "vhost": "/", "exchange": "/:x A", "hops": 1}
    assert list(found.values()) == [
        ("a", {"x-bound-from": [hop]}),
        ("b", {"x-bound-from": [hop]}),
        ("a", {"n": 1, "x-bound-from": [hop]}),
    ]


def test_what_another_cluster_wants_is_passed_on_as_far_as_it_may():
    def passed_on(hops: Any, hops_max: int = 9, cluster: str = "further") -> Any:
        before = {"cluster-name": cluster, "vhost": "/", "exchange": "/:x A", "hops": hops}
        found = wanted(bound("k", "exchange", "internal", x_bound_from=[before]), hops_max=hops_max)
        tables = [each.arguments["x-bound-from"] for each in found.values()]
        assert all(each[1:] == [before] for each in tables)
        return [each[0]["hops"] for each in tables]

    assert passed_on(3) == [2]
    assert passed_on(3, hops_max=1) == [1]
    assert passed_on(1) == []
    assert passed_on("no number") == []
    assert passed_on(3, cluster="up") == []


def test_only_what_differs_changes():
    before, after = wanted(bound("a"), bound("b")), wanted(bound("b"), bound("c"))

    bind, unbind = plan.changes(before, after)

    assert [each.key for each in bind] == ["c"]
    assert [each.key for each in unbind] == ["a"]
    assert plan.changes(after, after) == ([], [])


def test_a_message_says_through_which_clusters_it_came_the_last_first():
    once = plan.received({"n": 1}, "amqp://up", UP, redelivered=False)
    hop = {"uri": "amqp://up", "exchange": "x", "redelivered": False} | {
        "cluster-name": "up",
        "vhost": "/",
    }
    assert once == {"n": 1, "x-received-from": [hop]}

    nameless = End(None, "v", "x")
    twice = plan.received(once, "amqp://b", nameless, redelivered=True)
    assert twice["x-received-from"] == [
        {"uri": "amqp://b", "exchange": "x", "redelivered": True, "vhost": "v"},
        hop,
    ]


def test_a_message_says_how_often_it_came_from_which_queue():
    first, other = End("a", "/", "q"), End("b", "/", "q")
    headers: dict[str, Any] = {"x-received-from": ["no table"]}
    for uri, end in (("1", first), ("2", other), ("1", first)):
        headers = plan.moved(headers, uri, end, redelivered=False)

    assert headers["x-received-from"] == [
        {"uri": "1", "queue": "q", "redelivered": False, "visit-count": 2},
        {"uri": "2", "queue": "q", "redelivered": False, "visit-count": 1},
        "no table",
    ]


# --- queues ---------------------------------------------------------------------------------------


CONSUMER = ConsumerView(
    key=ConsumerKey(1),
    session=SessionId("s"),
    tag="t",
    credit=2,
    unsettled=1,
    priority=0,
    exclusive=False,
    auto_settle=False,
    active=True,
    status="up",
    room=1,
    timeout_ms=None,
)


def fetches(*, ready: int = 0, paused: bool = False, **consumer: Any) -> bool:
    world = World()
    world.run("queue q")
    view = world.machine.queue(world.queues["q"])
    assert view is not None
    assert not wants_more(view)
    consumers = [replace(CONSUMER, **consumer)]
    return wants_more(replace(view, ready_count=ready, paused=paused, consumers=consumers))


def test_a_queue_fetches_while_it_is_empty_and_a_consumer_has_room():
    assert fetches()
    assert not fetches(ready=1)
    assert not fetches(paused=True)
    assert not fetches(room=0)
    assert not fetches(status="suspected")
    assert not fetches(active=False, status="waiting")


def test_a_consumer_that_fetches_for_another_cluster_is_no_reason_to_fetch():
    assert not fetches(priority=-1)
    assert fetches(priority=1)
