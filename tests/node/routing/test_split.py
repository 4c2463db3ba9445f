"""Queues that are split: which shard a message goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from node.routing import Router
from node.routing.shards import Split, parse_split, shards_of, split_of
from tests.node.routing.catalogs import VHOST, FakeCatalog

SHARDS = ("q.1", "q.2", "q.3")


def no_headers() -> Mapping[str, Any]:
    return {}


def catalog() -> FakeCatalog:
    """A topic exchange gives all keys to a queue, and to another one that is not split."""
    made = FakeCatalog()
    made.make("in", "topic")
    made.add_queue("q", "other", *SHARDS)
    made.bind("in", "q", "#")
    made.bind("in", "other", "#")
    made.split("q", *SHARDS)
    return made


def names(router: Router, exchange: str, key: str, *, steady: bool = False) -> list[str]:
    route = router.route(VHOST, exchange, key, no_headers, steady=steady)
    assert route is not None
    return [queue.name for queue in route.queues]


def test_all_messages_of_a_key_go_to_one_shard_and_keys_are_spread():
    router, counts = Router(catalog()), Counter[str]()
    for number in range(300):
        shard, other = names(router, "in", f"k{number}")
        assert [shard, other] == names(router, "in", f"k{number}")
        assert other == "other"
        counts[shard] += 1
    assert set(counts) == set(SHARDS)
    assert min(counts.values()) > 50


def test_what_may_come_again_under_an_id_goes_to_the_shard_of_the_id():
    router = Router(catalog())

    def shard(once: str) -> str:
        route = router.route(VHOST, "", "q", no_headers, otherwise=once)
        assert route is not None
        return route.queues[0].name

    assert all(shard(str(number)) == shard(str(number)) for number in range(60))
    assert {shard(str(number)) for number in range(60)} == set(SHARDS)


def test_what_comes_under_its_own_name_goes_to_any_unless_it_may_come_again():
    router = Router(catalog())
    route = router.route(VHOST, "", "q", no_headers)
    assert route is not None
    assert route.by_chance
    assert {name for _ in range(60) for name in names(router, "", "q")} == set(SHARDS)
    assert {name for _ in range(60) for name in names(router, "", "q", steady=True)} == {"q"}
    assert names(router, "in", "k1", steady=True) == names(router, "in", "k1")


def test_a_queue_with_message_groups_keeps_each_group_in_one_shard():
    made = catalog()
    made.queues["q"] = replace(made.queues["q"], arguments={"x-group-key": "tenant"})
    router = Router(made)

    def shard(key: str, tenant: str | None) -> str:
        route = router.route(VHOST, "in", key, lambda: {"tenant": tenant} if tenant else {})
        assert route is not None
        return route.queues[0].name

    for tenant in ("a", "b", "c", "d"):
        assert len({shard(f"k{number}", tenant) for number in range(20)}) == 1
    assert len({shard("k1", f"t{number}") for number in range(50)}) == 3
    assert len({shard("k1", None) for _ in range(50)}) == 3


def test_a_queue_that_is_joined_again_or_has_no_shards_gets_all():
    made = catalog()
    router = Router(made)
    made.split("q", *SHARDS, joining=True)
    assert names(router, "in", "k1") == ["q", "other"]
    info = made.queues["q"]
    assert [each.name for each in shards_of(made, info)] == list(SHARDS)
    made.split("q", "gone.1", "gone.2")
    assert names(router, "in", "k1") == ["q", "other"]
    made.parameters.clear()
    made.version += 1
    assert names(router, "", "q") == ["q"]
    assert split_of(made, info) is None


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        {},
        {"shards": "q"},
        {"shards": []},
        {"shards": ["q.1", "q.1"]},
        {"shards": ["q.1", 2]},
        {"shards": ["q.1"], "joining": 1},
        {"shards": ["q.1"], "more": 1},
    ],
)
def test_what_is_no_split_is_refused_and_serves_as_one_queue(wrong: Any):
    with pytest.raises(ValueError, match=r"shards|queue|joining"):
        parse_split(wrong)
    made = catalog()
    made.parameters["split-queue", VHOST, "q"] = {"value": wrong}
    assert names(Router(made), "in", "k1") == ["q", "other"]
    assert parse_split({"shards": ["a", "b"]}) == Split(("a", "b"))
