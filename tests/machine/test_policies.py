"""Policies: which one counts, and what it and the arguments make of a queue together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.catalog.reconcile import commands_for, queues_to_compare
from cluster.codec.entries import version_needed
from cluster.machine import QueueMachine
from cluster.machine import commands as c
from cluster.machine.replies import BAD_ARGUMENT, Ok
from cluster.types import GroupId, QueueId, Stamp
from tests.machine.catalog_world import Book


def put(
    book: Book,
    name: str,
    pattern: str = "",
    *,
    operator: bool = False,
    vhost: str = "/",
    definition: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    table = "operator_policies" if operator else "policies"
    value = {"pattern": pattern, "definition": definition or {"max-length": 9}, **more}
    assert isinstance(book.apply(c.PutEntry(table, [vhost, name], value)).reply, Ok)


def config(book: Book, name: str = "q") -> c.QueueConfig:
    info = book.machine.queue("/", name)
    assert info is not None
    found = book.machine.config_of(info.queue)
    assert found is not None
    assert found == book.machine.config_for(info) == book.reopened().config_of(info.queue)
    return found


def counting(book: Book, name: str, what: Any = "queues", **more: Any) -> str | None:
    found = book.machine.policy_for("/", name, what, **more)
    return None if found is None else found[0]


def test_a_policy_counts_for_the_names_its_pattern_is_found_in():
    book = Book()
    put(book, "p", "ord")

    assert book.machine.policy_for("/", "my-orders", "queues") == (
        "p",
        {"pattern": "ord", "definition": {"max-length": 9}, "apply_to": "all", "priority": 0},
    )
    assert counting(book, "other") is None
    assert book.machine.policy_for("elsewhere", "orders", "queues") is None


def test_the_policy_with_the_highest_priority_counts_and_of_equals_the_first_by_name():
    book = Book()
    put(book, "b", priority=1)
    put(book, "c", priority=1)
    put(book, "a", priority=0)
    assert counting(book, "q") == "b"
    put(book, "z", "^q$", priority=2)

    assert counting(book, "q") == "z"
    assert counting(book, "r") == "b"
    book.does(c.DropEntry("policies", ["/", "z"]))
    assert counting(book, "q") == "b"


def test_a_policy_applies_to_what_it_says():
    book = Book()
    book.apply(c.UpgradeMachine(5))
    kinds = ["classic_queues", "quorum_queues", "streams"]
    for priority, to in enumerate(["all", "exchanges", *kinds]):
        put(book, to, apply_to=to, priority=priority)
    book.queue("classic", {"x-queue-type": "classic"})
    book.queue("quorum", {"x-queue-type": "quorum"})
    book.queue("stream", {"x-queue-type": "stream", "x-stream": {"subjects": ["a"]}})
    book.queue("q")

    assert counting(book, "stream") == "streams"
    assert counting(book, "e", "exchanges") == "exchanges"
    assert counting(book, "classic") == counting(book, "q") == "classic_queues"
    assert counting(book, "quorum") == "quorum_queues"
    book.does(c.PutEntry("vhosts", ["/"], {"default_queue_type": "quorum"}), 0)
    assert counting(book, "q") == "quorum_queues"
    put(book, "queues", apply_to="queues", priority=9)
    assert counting(book, "q") == counting(book, "classic") == "queues"
    assert counting(book, "e", "exchanges") == "exchanges"


def test_operator_policies_are_found_apart():
    book = Book()
    put(book, "ours", operator=True)

    assert counting(book, "q") is None
    assert counting(book, "q", operator=True) == "ours"


def test_a_policy_gives_a_queue_what_its_arguments_do_not_say():
    book = Book()
    book.queue("q", {"x-expires": 5})
    definition = {
        "message-ttl": 7,
        "max-length": 8,
        "max-length-bytes": 9,
        "overflow": "reject-publish",
        "dead-letter-exchange": "",
        "dead-letter-routing-key": "dead",
        "delivery-limit": 3,
        "consumer-timeout": 60_000,
        "dedup-window": 70_000,
        "delayed-retry-type": "all",
        "delayed-retry-min": 10,
        "delayed-retry-max": 20,
    }
    put(book, "p", definition=definition)

    assert config(book) == c.QueueConfig(
        expires_ms=5,
        message_ttl_ms=7,
        max_length=8,
        max_length_bytes=9,
        overflow="reject-publish",
        dead_letter_exchange="",
        dead_letter_routing_key="dead",
        delivery_limit=3,
        consumer_timeout_ms=60_000,
        dedup_window_ms=70_000,
        delayed_retry_type="all",
        delayed_retry_min_ms=10,
        delayed_retry_max_ms=20,
    )
    book.does(c.DropEntry("policies", ["/", "p"]))
    assert config(book) == c.QueueConfig(expires_ms=5)


def test_an_argument_beats_a_policy_but_of_two_limits_the_lower_one_counts():
    book = Book()
    arguments = {"x-dead-letter-exchange": "mine", "x-max-length": 10, "x-message-ttl": 10}
    book.queue("q", arguments)
    definition = {"dead-letter-exchange": "theirs", "max-length": 5, "message-ttl": 50}
    put(book, "p", definition=definition)
    expected = c.QueueConfig(dead_letter_exchange="mine", max_length=5, message_ttl_ms=10)
    assert config(book) == expected

    put(book, "o", operator=True, definition={"max-length": 3, "message-ttl": 60, "expires": 99})

    assert config(book) == c.QueueConfig(
        dead_letter_exchange="mine", max_length=3, message_ttl_ms=10, expires_ms=99
    )


@pytest.mark.parametrize(
    ("argument", "policy", "operator", "limit"),
    [
        (None, None, None, 20),
        (-1, None, None, None),
        (-1, 5, None, 5),
        (5, -1, None, 5),
        (None, -1, None, None),
        (None, 50, 7, 7),
        (3, 5, 7, 3),
        (-1, -1, -1, None),
    ],
)
def test_no_delivery_limit_is_higher_than_any(
    argument: int | None, policy: int | None, operator: int | None, limit: int | None
):
    book = Book()
    book.queue("q", {} if argument is None else {"x-delivery-limit": argument})
    if policy is not None:
        put(book, "p", definition={"delivery-limit": policy})
    if operator is not None:
        put(book, "o", operator=True, definition={"delivery-limit": operator})

    assert config(book).delivery_limit == limit


def test_a_consumer_timeout_that_is_off_is_longer_than_any():
    book = Book()
    book.queue("q", {"x-consumer-timeout": 0})
    assert config(book).consumer_timeout_ms is None
    put(book, "p", definition={"consumer-timeout": 9_000})

    assert config(book).consumer_timeout_ms == 9_000


def test_retry_delays_of_two_origins_make_sense_together():
    book = Book()
    book.queue("q", {"x-delayed-retry-min": 50})
    put(book, "p", definition={"delayed-retry-max": 10})

    found = config(book)
    assert (found.delayed_retry_min_ms, found.delayed_retry_max_ms) == (50, 50)


def test_what_only_a_declaration_may_say_no_policy_changes():
    """A31."""
    book = Book()
    book.queue("q")
    book.queue("single", {"x-single-active-consumer": True})
    definition = {"single-active-consumer": True, "max-priority": 9, "ha-mode": "all"}
    put(book, "p", definition=definition)

    assert config(book) == c.QueueConfig()
    assert config(book, "single") == c.QueueConfig(single_active_consumer=True)


@pytest.mark.parametrize(
    ("table", "definition", "words"),
    [
        ("policies", {"max-lenght": 5}, "'max-lenght' is not a policy setting; allowed are altern"),
        ("policies", {"max-length": -1}, "invalid value -1 for 'max-length': must be an integer"),
        ("policies", {"overflow": "drop"}, "'overflow': must be one of drop-head"),
        ("policies", {"alternate-exchange": 5}, "'alternate-exchange': must be text"),
        ("operator_policies", {"overflow": "drop-head"}, "'overflow' is not a policy setting"),
    ],
)
def test_a_policy_of_settings_that_cannot_be_is_refused(
    table: str, definition: dict[str, Any], words: str
):
    value = {"pattern": "", "definition": definition}

    assert words in Book().refuses(c.PutEntry(table, ["/", "p"], value), BAD_ARGUMENT)


def test_the_settings_of_a_queue_are_the_same_object_until_something_changes():
    book = Book()
    book.queue("q")
    first = book.machine.config_of(QueueId(1))
    book.queue("r")
    assert book.machine.config_of(QueueId(1)) is first
    put(book, "p")

    assert book.machine.config_of(QueueId(1)) is not first


def to_do(book: Book, queues: QueueMachine) -> list[c.Command]:
    """What makes the group's queues what the catalog says."""
    known = book.machine, queues, GroupId(1)
    return commands_for(*known, queues_to_compare(*known))


def test_a_queue_from_before_message_groups_stays_one_without():
    """Its argument was kept whatever it said. Nor is it to be changed again and again."""
    book = Book()
    queues = QueueMachine()
    book.queue("q", {"x-group-key": "k"})
    [made] = to_do(book, queues)
    assert isinstance(made, c.CreateQueue)
    queues.apply(Stamp(1, 1, 0), replace(made, config=replace(made.config, group_key=None)))

    assert to_do(book, queues) == []
    put(book, "p")
    [update] = to_do(book, queues)
    assert version_needed(update) == 1
    queues.apply(Stamp(2, 1, 0), update)
    assert to_do(book, queues) == []


def test_a_policy_reaches_the_queues_of_a_group_and_leaves_them_when_it_goes():
    book = Book()
    queues = QueueMachine()
    index = 0

    def reconcile() -> list[str]:
        nonlocal index
        commands = to_do(book, queues)
        for command in commands:
            index += 1
            queues.apply(Stamp(index, 1, 0), command)
        assert to_do(book, queues) == []
        return [type(command).__name__ for command in commands]

    book.queue("dead")
    book.queue("q", {"x-single-active-consumer": True})
    assert reconcile() == ["CreateQueue", "CreateQueue"]
    definition = {"dead-letter-exchange": "", "dead-letter-routing-key": "dead"}
    put(book, "p", "^q", definition={**definition, "single-active-consumer": False})
    assert reconcile() == ["UpdateQueue"]
    kind = queues.find(QueueId(2))
    assert kind is not None
    assert kind.identity.config.dead_letter_queue == 1
    assert kind.identity.config.single_active_consumer

    put(book, "p", "^q", definition={**definition, "dead-letter-exchange": "elsewhere"})
    assert reconcile() == ["UpdateQueue"]
    kind = queues.find(QueueId(2))
    assert kind is not None
    assert kind.identity.config.dead_letter_queue is None
    assert kind.identity.config.dead_letter_exchange == "elsewhere"
    book.does(c.DropEntry("policies", ["/", "p"]))
    assert reconcile() == ["UpdateQueue"]
    assert reconcile() == []


policies = st.dictionaries(
    st.sampled_from("abc"),
    st.tuples(st.sampled_from(["", "q", "^r", "x"]), st.integers(-1, 1), st.integers(0, 5)),
)


@given(policies, policies, st.none() | st.integers(0, 5), st.sampled_from(["q", "r", "qx"]))
def test_of_all_limits_that_may_count_the_lowest_does(
    ours: dict[str, Any], operators: dict[str, Any], argument: int | None, name: str
):
    book = Book()
    book.queue(name, {} if argument is None else {"x-max-length": argument})
    counted: list[int] = [] if argument is None else [argument]
    for operator, chosen in ((False, ours), (True, operators)):
        matching: list[tuple[int, str, int]] = []
        for policy, (pattern, priority, limit) in chosen.items():
            definition = {"max-length": limit}
            put(book, policy, pattern, operator=operator, priority=priority, definition=definition)
            if pattern.strip("^") in name and not (pattern == "^r" and name[0] != "r"):
                matching.append((-priority, policy, limit))
        counted += [limit for _, _, limit in sorted(matching)[:1]]

    assert config(book, name).max_length == min(counted, default=None)


def test_a_policy_federates_by_a_pattern_since_machine_version_5():
    definition = {"federation-upstream-pattern": "^eu-"}
    command = c.PutEntry("policies", ["/", "f"], {"pattern": "^f", "definition": definition})
    old, new = Book(), Book()
    for book, version in ((old, 4), (new, 5)):
        book.apply(c.UpgradeMachine(version))

    assert "version 5" in old.refuses(command, BAD_ARGUMENT)
    new.does(command)
    assert counting(new, "f", "exchanges") == "f"


@pytest.mark.parametrize(
    "value",
    [
        {"definition": {"max-age": "7D"}, "apply_to": "streams"},
        {"definition": {"initial-cluster-size": 3}},
        {"definition": {"stream-filter-size-bytes": 16}},
    ],
    ids=str,
)
def test_a_policy_is_for_streams_since_machine_version_5(value: dict[str, Any]):
    command = c.PutEntry("policies", ["/", "s"], {"pattern": "^s", **value})
    old, new = Book(), Book()
    for book, version in ((old, 4), (new, 5)):
        book.apply(c.UpgradeMachine(version))

    assert version_needed(command) == 5
    assert "version 5" in old.refuses(command, BAD_ARGUMENT)
    new.does(command)
