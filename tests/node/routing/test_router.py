"""Routes: each type of exchange, bindings between exchanges, alternates, and a slow twin of all."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.machine.catalog_tables import BindingInfo
from node.routing import Router
from node.routing.router import ROUTES_MAX
from tests.node.routing.catalogs import VHOST, FakeCatalog


def names(
    router: Router,
    exchange: str,
    key: str = "",
    headers: Mapping[str, Any] | None = None,
    *,
    copies: Sequence[str] = (),
) -> list[str]:
    route = router.route(VHOST, exchange, key, lambda: headers or {}, copies=copies)
    assert route is not None
    return [queue.name for queue in route.queues]


def test_the_default_exchange_routes_to_the_queue_that_the_key_names():
    catalog = FakeCatalog()
    catalog.add_queue("a")
    router = Router(catalog)

    assert names(router, "", "a") == ["a"]
    assert names(router, "", "b") == []


def test_an_unknown_exchange_or_vhost_has_no_route():
    router = Router(FakeCatalog())

    assert router.route(VHOST, "nowhere", "a", dict) is None
    assert router.route("other", "", "a", dict) is None


def test_fanout_ignores_the_key_and_names_a_queue_once():
    catalog = FakeCatalog()
    catalog.make("f", "fanout")
    catalog.add_queue("a", "b")
    catalog.bind("f", "a", "x")
    catalog.bind("f", "a", "y")
    catalog.bind("f", "b")

    assert names(Router(catalog), "f", "anything") == ["a", "b"]


def test_a_new_binding_a_removed_queue_and_a_new_exchange_are_seen_at_once():
    catalog = FakeCatalog()
    catalog.make("d", "direct")
    catalog.add_queue("a", "b")
    catalog.bind("d", "a", "k")
    router = Router(catalog)
    assert names(router, "d", "k") == ["a"]

    catalog.bind("d", "b", "k")
    assert names(router, "d", "k") == ["a", "b"]

    catalog.remove_queue("a")
    assert names(router, "d", "k") == ["b"]

    catalog.make("d", "topic")
    catalog.bind("d", "b", "#")
    assert names(router, "d", "other") == ["b"]


def test_publishing_to_an_exchange_whose_queues_are_gone_routes_nowhere():
    catalog = FakeCatalog()
    catalog.make("f", "fanout")
    catalog.add_queue("a")
    catalog.bind("f", "a")
    router = Router(catalog)
    assert names(router, "f") == ["a"]

    catalog.remove_queue("a")

    assert names(router, "f") == []


def test_the_alternate_exchange_gets_what_finds_no_binding_with_the_same_key():
    catalog = FakeCatalog()
    catalog.make("d", "direct", alternate_exchange="spare")
    catalog.make("spare", "topic")
    catalog.add_queue("a", "b")
    catalog.bind("d", "a", "known")
    catalog.bind("spare", "b", "un.*")
    router = Router(catalog)

    assert names(router, "d", "known") == ["a"]
    assert names(router, "d", "un.known") == ["b"]
    assert names(router, "d", "other") == []


def test_an_alternate_exchange_of_the_arguments_beats_one_of_a_policy():
    catalog = FakeCatalog()
    for name in ("one", "two"):
        catalog.make(name, "fanout")
        catalog.add_queue(f"q-{name}")
        catalog.bind(name, f"q-{name}")
    catalog.make("plain", "direct")
    catalog.make("argued", "direct", alternate_exchange="one")
    catalog.policies = {name: {"alternate-exchange": "two"} for name in ("plain", "argued")}
    router = Router(catalog)

    assert names(router, "plain", "k") == ["q-two"]
    assert names(router, "argued", "k") == ["q-one"]


def test_circles_of_alternates_and_of_bindings_end():
    catalog = FakeCatalog()
    catalog.make("a", "direct", alternate_exchange="b")
    catalog.make("b", "direct", alternate_exchange="a")
    catalog.make("x", "fanout")
    catalog.make("y", "fanout")
    catalog.bind("x", "y", kind="exchange")
    catalog.bind("y", "x", kind="exchange")
    catalog.add_queue("q")
    catalog.bind("y", "q")
    router = Router(catalog)

    assert names(router, "a", "k") == []
    assert names(router, "x") == ["q"]
    assert names(router, "y") == ["q"]


def test_an_alternate_exchange_that_does_not_exist_is_no_error():
    catalog = FakeCatalog()
    catalog.make("d", "direct", alternate_exchange="nowhere")

    assert names(Router(catalog), "d", "k") == []


def test_a_headers_exchange_is_asked_for_every_message():
    catalog = FakeCatalog()
    catalog.make("h", "headers")
    catalog.add_queue("red", "any")
    catalog.bind("h", "red", x_match="all", color="red", size=1)
    catalog.bind("h", "any", x_match="any", color="red", size=1)
    router = Router(catalog)

    assert names(router, "h", "", {"color": "red", "size": 1}) == ["red", "any"]
    assert names(router, "h", "", {"color": "red", "size": 2}) == ["any"]
    assert names(router, "h", "", {"size": True}) == []
    assert names(router, "h", "", {}) == []


def test_headers_behind_a_binding_between_exchanges_are_not_remembered_by_key():
    catalog = FakeCatalog()
    catalog.make("f", "fanout")
    catalog.make("h", "headers")
    catalog.add_queue("q")
    catalog.bind("f", "h", kind="exchange")
    catalog.bind("h", "q", a=1)
    router = Router(catalog)

    assert names(router, "f", "k", {"a": 1}) == ["q"]
    assert names(router, "f", "k", {"a": 2}) == []


def test_headers_are_not_decoded_when_no_exchange_asks_for_them():
    catalog = FakeCatalog()
    catalog.make("f", "fanout")

    def headers() -> Mapping[str, Any]:
        raise AssertionError

    assert Router(catalog).route(VHOST, "f", "k", headers) is not None


def test_the_consistent_hash_follows_weights_and_moves_no_more_than_it_must():
    catalog = FakeCatalog()
    catalog.make("c", "x-consistent-hash")
    catalog.add_queue("one", "three", "none")
    catalog.bind("c", "one", "1")
    catalog.bind("c", "three", "3")
    catalog.bind("c", "none", "no number")
    router = Router(catalog)
    keys = [f"key-{number}" for number in range(4000)]
    before = {key: names(router, "c", key)[0] for key in keys}
    counts = Counter(before.values())
    assert 800 < counts["one"] < 1200
    assert counts["one"] + counts["three"] == 4000

    catalog.add_queue("new")
    catalog.bind("c", "new", "4")

    after = {key: names(router, "c", key)[0] for key in keys}
    assert {after[key] for key in keys if after[key] != before[key]} == {"new"}
    assert 1800 < Counter(after.values())["new"] < 2200


def test_the_consistent_hash_may_be_of_a_header_or_a_property():
    catalog = FakeCatalog()
    catalog.make("h", "x-consistent-hash", hash_header="account")
    catalog.make("p", "x-consistent-hash", hash_property="message_id")
    for number in range(20):
        catalog.add_queue(f"q{number}")
        catalog.bind("h", f"q{number}", "1")
        catalog.bind("p", f"q{number}", "1")
    router = Router(catalog)

    by_header = {names(router, "h", "same", {"account": n})[0] for n in range(50)}
    again = {names(router, "h", str(n), {"account": "x"})[0] for n in range(50)}
    routes = [router.route(VHOST, "p", "same", dict, lambda _, n=n: n) for n in range(50)]
    by_property = {route.queues[0].name for route in routes if route}

    assert len(by_header) > 10
    assert len(again) == 1
    assert len(by_property) > 10


def test_remembered_routes_are_bounded():
    catalog = FakeCatalog()
    catalog.make("f", "fanout")
    catalog.add_queue("q")
    catalog.bind("f", "q")
    router = Router(catalog)

    for number in range(ROUTES_MAX + 10):
        assert names(router, "f", str(number)) == ["q"]

    assert len(router._vhosts[VHOST].routes) <= ROUTES_MAX  # pyright: ignore[reportPrivateUsage]


# --- the slow twin --------------------------------------------------------------------------------

words = st.lists(st.sampled_from(["a", "b", "", "*", "#"]), max_size=4).map(".".join)
values = st.sampled_from([1, 2, True, None, "s"])
some_headers = st.dictionaries(st.sampled_from(["p", "q", "x-r"]), values, max_size=3)
exchanges = st.sampled_from(["e0", "e1", "e2", "e3"])
queues = st.sampled_from(["q0", "q1", "q2"])
kinds = st.sampled_from(["direct", "fanout", "topic", "headers"])
matches = st.sampled_from(["all", "any", "all-with-x", "any-with-x", "odd"])
bindings = st.lists(
    st.tuples(exchanges, st.one_of(exchanges, queues), words, some_headers, matches), max_size=12
)


def topic_matches(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(topic_matches(pattern[1:], key[n:]) for n in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and topic_matches(pattern[1:], key[1:])


def binding_matches(kind: str, binding: BindingInfo, key: str, headers: dict[str, Any]) -> bool:
    if kind == "fanout":
        return True
    if kind == "direct":
        return binding.key == key
    if kind == "topic":
        return topic_matches(
            binding.key.split(".") if binding.key else [], key.split(".") if key else []
        )
    how = binding.arguments["x-match"]
    wanted = {name: value for name, value in binding.arguments.items() if name != "x-match"}
    if not how.endswith("with-x"):
        wanted = {name: value for name, value in wanted.items() if not re.match("x-", name)}
    found = [
        name in headers and (value is None or repr(headers[name]) == repr(value))
        for name, value in wanted.items()
    ]
    return any(found) if how.startswith("any") else all(found)


def reached(
    catalog: FakeCatalog, exchange: str, key: str, headers: dict[str, Any], seen: set[str]
) -> set[str]:
    """Depth first, each exchange once."""
    if exchange in seen or exchange not in catalog.exchanges:
        return set()
    seen.add(exchange)
    info = catalog.exchanges[exchange]
    found = [b for b in catalog.bound if b.source == exchange]
    found = [b for b in found if binding_matches(info.type, b, key, headers)]
    names = {b.destination for b in found if b.kind == "queue"}
    onward = [b.destination for b in found if b.kind == "exchange"]
    if not found:
        onward = [info.arguments.get("alternate-exchange", "")]
    for name in onward:
        names |= reached(catalog, name, key, headers, seen) if name else set()
    return names


@settings(max_examples=300)
@given(
    st.lists(st.tuples(kinds, st.none() | exchanges), min_size=4, max_size=4),
    bindings,
    st.lists(st.tuples(exchanges, words, some_headers), min_size=1, max_size=6),
)
def test_routes_are_those_of_the_slow_twin(
    made: list[tuple[str, str | None]],
    bound: list[tuple[str, str, str, dict[str, Any], str]],
    messages: list[tuple[str, str, dict[str, Any]]],
):
    catalog = FakeCatalog()
    catalog.add_queue("q0", "q1", "q2")
    router = Router(catalog)
    for number, (kind, alternate) in enumerate(made):
        arguments = {} if alternate is None else {"alternate_exchange": alternate}
        catalog.make(f"e{number}", kind, **arguments)
    for half in (bound[:6], bound[6:]):
        for source, destination, key, arguments, how in half:
            kind = "queue" if destination.startswith("q") else "exchange"
            catalog.bind(source, destination, key, kind, x_match=how, **arguments)
        for exchange, key, headers in messages:
            expected = reached(catalog, exchange, key, headers, set())
            found = names(router, exchange, key, headers)
            assert set(found) == expected
            assert len(found) == len(expected)


# --- types of plugins -----------------------------------------------------------------------------


def test_a_modulus_hash_sends_one_key_to_one_queue_whatever_the_bindings_say():
    catalog = FakeCatalog()
    catalog.make("m", "x-modulus-hash")
    router = Router(catalog)
    assert names(router, "m", "k") == []
    catalog.add_queue("a", "b", "c")
    for queue in "cab":
        catalog.bind("m", queue, "anything")

    found = [names(router, "m", f"key {number}") for number in range(600)]

    assert found == [names(Router(catalog), "m", f"key {number}") for number in range(600)]
    counted = Counter(queue for (queue,) in found)
    assert all(counted[queue] > 150 for queue in "abc")


def test_a_random_exchange_chooses_anew_for_each_message_and_says_so():
    catalog = FakeCatalog()
    catalog.make("r", "x-random")
    catalog.make("f", "fanout")
    catalog.bind("f", "r", kind="exchange")
    router = Router(catalog)
    assert names(router, "r", "k") == []
    catalog.add_queue("a", "b", "c")
    for queue in "abc":
        catalog.bind("r", queue)

    counted = Counter(queue for _ in range(600) for queue in names(router, "f", "k"))

    assert sum(counted.values()) == 600
    assert all(counted[queue] > 150 for queue in "abc")
    route = router.route(VHOST, "f", "k", dict)
    assert route is not None
    assert route.by_chance


def test_an_exchange_that_delays_routes_at_once_as_its_type():
    catalog = FakeCatalog()
    catalog.make("d", "x-delayed-message", x_delayed_type="topic")
    catalog.add_queue("a", "b")
    catalog.bind("d", "a", "order.*")
    catalog.bind("d", "b", "#")

    assert names(Router(catalog), "d", "order.new") == ["a", "b"]
    assert names(Router(catalog), "d", "new") == ["b"]


def test_what_was_in_a_cluster_or_came_too_far_does_not_go_there_by_federation():
    catalog = FakeCatalog()
    arguments = {"x-max-hops": 2, "x-downstream-name": "ours", "x-downstream-vhost": "/"}
    catalog.make("up", "x-federation-upstream", **arguments)
    catalog.add_queue("a")
    catalog.bind("up", "a", "whatever")
    router = Router(catalog)

    def goes(*hops: Any) -> bool:
        return names(router, "up", "k", {"x-received-from": list(hops)}) == ["a"]

    assert names(router, "up", "k") == ["a"]
    assert goes({"cluster-name": "theirs", "vhost": "/"})
    assert goes({"cluster-name": "ours", "vhost": "other"})
    assert goes("no table")
    assert not goes({"cluster-name": "ours", "vhost": "/"})
    assert not goes({"cluster-name": "a", "vhost": "/"}, {"cluster-name": "b", "vhost": "/"})
    assert names(router, "up", "k", {"x-received-from": "no list"}) == ["a"]


# --- copies ---------------------------------------------------------------------------------------


def test_copies_are_more_keys_of_direct_and_topic_exchanges_and_queues_that_are_named():
    catalog = FakeCatalog()
    catalog.make("d", "direct")
    catalog.make("t", "topic")
    catalog.add_queue("a", "b", "c")
    catalog.bind("d", "a", "1")
    catalog.bind("d", "b", "2")
    catalog.bind("t", "a", "1")
    catalog.bind("t", "c", "#.end")
    router = Router(catalog)

    assert names(router, "d", "1", copies=["2", "1"]) == ["a", "b"]
    assert names(router, "t", "1", copies=["the.end"]) == ["a", "c"]
    assert names(router, "", "a", copies=["c", "none", "a"]) == ["a", "c"]
    assert names(router, "d", "1") == ["a"]


def test_copies_count_wherever_the_message_comes_by():
    """The first exchange does not look at keys; one behind it, or its alternate, does."""
    for kind in ("fanout", "headers", "x-random", "x-consistent-hash"):
        catalog = FakeCatalog()
        catalog.make("first", kind)
        catalog.make("d", "direct")
        catalog.add_queue("a", "b")
        catalog.bind("first", "d", "1", kind="exchange")
        catalog.bind("d", "a", "own")
        catalog.bind("d", "b", "copy")
        assert names(Router(catalog), "first", "own", copies=["copy"]) == ["a", "b"], kind

    catalog = FakeCatalog()
    catalog.make("h", "headers", alternate_exchange="d")
    catalog.make("d", "direct")
    catalog.add_queue("b", "c")
    catalog.bind("h", "c", x=1)
    catalog.bind("d", "b", "copy")
    assert names(Router(catalog), "h", "own", copies=["copy"]) == ["b"]


def test_an_exchange_that_chooses_chooses_once_for_a_message_with_copies():
    for kind in ("x-random", "x-modulus-hash", "x-consistent-hash"):
        catalog = FakeCatalog()
        catalog.make("d", "direct")
        catalog.make("chooses", kind)
        for key in ("own", "copy"):
            catalog.bind("d", "chooses", key, kind="exchange")
        for number in range(20):
            catalog.add_queue(f"q{number}")
            catalog.bind("chooses", f"q{number}", "1")
        router = Router(catalog)
        for exchange in ("d", "chooses"):
            for number in range(20):
                found = names(router, exchange, "own", copies=["copy", f"{number}"])
                assert len(found) == 1, (kind, exchange, found)


def test_an_alternate_gets_what_none_of_the_keys_leads_anywhere():
    catalog = FakeCatalog()
    catalog.make("d", "direct", alternate_exchange="f")
    catalog.make("f", "fanout")
    catalog.add_queue("a", "lost")
    catalog.bind("d", "a", "known")
    catalog.bind("f", "lost")
    router = Router(catalog)

    assert names(router, "d", "unknown", copies=["known"]) == ["a"]
    assert names(router, "d", "unknown", copies=["other"]) == ["lost"]
