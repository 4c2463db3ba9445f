"""Exchanges and bindings: who may declare what, and what goes with what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cluster.machine import catalog_routing
from cluster.machine import commands as c
from cluster.machine.catalog import BindingInfo, ExchangeInfo
from cluster.machine.replies import (
    BAD_ARGUMENT,
    IN_USE,
    INEQUIVALENT,
    LIMIT_REACHED,
    NO_EXCHANGE,
    NO_QUEUE,
    NO_VHOST,
    NOT_ALLOWED,
    UNKNOWN_EXCHANGE_TYPE,
)
from cluster.types import Stamp
from tests.machine.catalog_world import Book


def test_a_vhost_has_its_exchanges_from_the_start():
    exchanges = Book().machine.exchanges("/")

    assert [(e.name, e.type, e.internal) for e in exchanges] == [
        ("", "direct", False),
        ("amq.direct", "direct", False),
        ("amq.fanout", "fanout", False),
        ("amq.topic", "topic", False),
        ("amq.headers", "headers", False),
        ("amq.match", "headers", False),
        ("amq.rabbitmq.trace", "topic", True),
    ]
    assert all(e.durable and not e.auto_delete and e.vhost == "/" for e in exchanges)


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers", "x-consistent-hash"])
def test_a_declared_exchange_is_found_as_it_was_declared(kind: str):
    book = Book()
    arguments = {"alternate-exchange": "lost", "ours": [1, {"a": b"b"}]}

    book.does(c.DeclareExchange("/", "e", kind, False, True, True, arguments))

    info = ExchangeInfo("/", "e", kind, False, True, True, arguments)
    assert book.machine.exchange("/", "e") == info
    assert book.reopened().exchange("/", "e") == info
    assert book.machine.exchange("/", "f") is book.machine.exchange("other", "e") is None


def test_the_same_exchange_again_does_nothing():
    book = Book()
    book.exchange("e")

    book.does(c.DeclareExchange("/", "e", "fanout"), 0)
    book.does(c.DeclareExchange("/", "e", "fanout", arguments={"ours": 1}), 0)
    book.does(c.DeclareExchange("/", "amq.topic", "topic"), 0)


@pytest.mark.parametrize(
    ("command", "what", "why"),
    [
        (
            c.DeclareExchange("/", "e", "topic"),
            "'type' for exchange 'e'",
            "received 'topic' but current is 'direct'",
        ),
        (
            c.DeclareExchange("/", "e", "direct", durable=False),
            "'durable' for exchange 'e'",
            "received 'false' but current is 'true'",
        ),
        (
            c.DeclareExchange("/", "e", "direct", auto_delete=True),
            "'auto_delete' for exchange 'e'",
            "received 'true' but current is 'false'",
        ),
        (
            c.DeclareExchange("/", "e", "direct", internal=True),
            "'internal' for exchange 'e'",
            "received 'true' but current is 'false'",
        ),
        (
            c.DeclareExchange("/", "e", "direct", arguments={"alternate-exchange": "a"}),
            "'alternate-exchange' for exchange 'e'",
            "received the value 'a' of type 'longstr' but current is none",
        ),
        (
            c.DeclareExchange("/", "amq.topic", "fanout"),
            "'type' for exchange 'amq.topic'",
            "received 'fanout' but current is 'topic'",
        ),
    ],
)
def test_another_exchange_of_the_name_is_refused_in_the_words_people_search_for(
    command: Any, what: str, why: str
):
    book = Book()
    book.exchange("e", "direct")

    reason = book.refuses(command, INEQUIVALENT)

    assert reason == f"inequivalent arg {what} in vhost '/': {why}"


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        (c.DeclareExchange("no", "e", "topic"), NO_VHOST, "vhost 'no' not found"),
        (c.DeclareExchange("\ud800", "e", "topic"), NO_VHOST, "no such vhost"),
        (c.DeclareExchange("/", "e", "xyz"), UNKNOWN_EXCHANGE_TYPE, "unknown exchange type 'xyz'"),
        (
            c.DeclareExchange("/", "", "direct"),
            NOT_ALLOWED,
            "operation not permitted on the default exchange",
        ),
        (
            c.DeclareExchange("/", "amq.mine", "direct"),
            NOT_ALLOWED,
            "exchange name 'amq.mine' contains reserved prefix 'amq.*'",
        ),
        (c.DeclareExchange("/", "x" * 256, "direct"), BAD_ARGUMENT, "at most 255 bytes"),
        (
            c.DeclareExchange("/", "e", "direct", arguments={"alternate-exchange": 5}),
            BAD_ARGUMENT,
            "invalid value 5 for 'alternate-exchange': must be text",
        ),
        (
            c.DeclareExchange("/", "e", "direct", arguments={"ours": object()}),
            BAD_ARGUMENT,
            "arguments may hold numbers",
        ),
        (
            c.DeclareExchange("/", "e", "x-consistent-hash", arguments={"hash-property": "type"}),
            BAD_ARGUMENT,
            "one of correlation_id, message_id, timestamp",
        ),
        (
            c.DeclareExchange("/", "e", "x-consistent-hash", arguments={"hash-header": 5}),
            BAD_ARGUMENT,
            "'hash-header': must be text",
        ),
        (
            c.DeclareExchange(
                "/",
                "e",
                "x-consistent-hash",
                arguments={"hash-header": "h", "hash-property": "timestamp"},
            ),
            BAD_ARGUMENT,
            "cannot both be given",
        ),
    ],
)
def test_an_exchange_that_cannot_be_is_refused(command: Any, code: str, words: str):
    assert words in Book().refuses(command, code)


def test_a_deleted_exchange_is_gone_and_deleting_it_again_is_harmless():
    book = Book()
    book.exchange("e")

    book.does(c.DeleteExchange("/", "e"))
    book.does(c.DeleteExchange("/", "e"), 0)

    assert book.names() == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "operation not permitted on the default exchange"),
        ("amq.topic", "deletion of system exchange 'amq.topic' in vhost '/' not allowed"),
    ],
)
def test_a_predefined_exchange_cannot_be_deleted(name: str, words: str):
    assert Book().refuses(c.DeleteExchange("/", name), NOT_ALLOWED) == words


def test_an_exchange_in_use_is_not_deleted_when_asked_so():
    book = Book()
    book.exchange("a")
    book.exchange("b")
    book.chain("a", "b")

    reason = book.refuses(c.DeleteExchange("/", "a", if_unused=True), IN_USE)

    assert reason == "exchange 'a' in vhost '/' in use"
    book.does(c.DeleteExchange("/", "b", if_unused=True))  # only what it sends counts
    book.does(c.DeleteExchange("/", "a", if_unused=True))


def test_a_binding_is_found_from_both_ends():
    book = Book()
    book.queue("q")
    book.exchange("e", "headers")
    arguments = {"x-match": "any", "kind": "a"}

    book.does(c.Bind("/", "e", "queue", "q", "k", arguments))
    book.does(c.Bind("/", "amq.topic", "exchange", "e", "a.#"))

    to_queue = BindingInfo("/", "e", "queue", "q", "k", arguments)
    to_exchange = BindingInfo("/", "amq.topic", "exchange", "e", "a.#", {})
    for machine in (book.machine, book.reopened()):
        assert machine.bindings_from("/", "e") == [to_queue]
        assert machine.bindings_to("/", "queue", "q") == [to_queue]
        assert machine.bindings_to("/", "exchange", "e") == [to_exchange]
        assert machine.bindings_to("/", "exchange", "q") == []
        assert machine.bindings() == machine.bindings("/") == [to_queue, to_exchange]
        assert machine.bindings("other") == []


def test_the_same_binding_again_does_nothing_and_another_key_or_argument_makes_another():
    book = Book()
    book.queue("q")
    for count, key, arguments in [
        (1, "a", {}),
        (0, "a", {}),
        (1, "b", {}),
        (1, "a", {"n": 1}),
        (1, "a", {"n": True}),
        (1, "a", {"n": 1.0}),
        (0, "a", {"n": 1}),
    ]:
        book.does(c.Bind("/", "amq.topic", "queue", "q", key, arguments), count)

    assert len(book.machine.bindings_from("/", "amq.topic")) == 5
    book.does(c.Unbind("/", "amq.topic", "queue", "q", "a", {"n": True}))
    book.does(c.Unbind("/", "amq.topic", "queue", "q", "a", {"n": True}), 0)
    assert len(book.machine.bindings_from("/", "amq.topic")) == 4


@pytest.mark.parametrize("kind", [c.Bind, c.Unbind])
@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        (("no", "e", "queue", "q", ""), NO_VHOST, "vhost 'no' not found"),
        (("/", "", "queue", "q", ""), NOT_ALLOWED, "not permitted on the default exchange"),
        (("/", "amq.topic", "exchange", "", ""), NOT_ALLOWED, "the default exchange"),
        (("/", "amq.topic", "topic", "q", ""), BAD_ARGUMENT, "is a queue or an exchange"),
        (("/", "amq.topic", "queue", "q", "k" * 256), BAD_ARGUMENT, "a binding key"),
        (("/", "amq.topic", "queue", "q", "", {"a": object()}), BAD_ARGUMENT, "may hold"),
    ],
)
def test_a_binding_that_nobody_can_have_is_refused(
    kind: Any, fields: tuple[Any, ...], code: str, words: str
):
    book = Book()
    book.queue("q")

    assert words in book.refuses(kind(*fields), code)


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        (("/", "no", "queue", "q", ""), NO_EXCHANGE, "no exchange 'no' in vhost '/'"),
        (("/", "amq.topic", "queue", "no", ""), NO_QUEUE, "no queue 'no' in vhost '/'"),
        (("/", "amq.topic", "exchange", "q", ""), NO_EXCHANGE, "no exchange 'q' in vhost '/'"),
        (
            ("/", "amq.headers", "queue", "q", "", {"x-match": "some"}),
            BAD_ARGUMENT,
            "invalid x-match field value 'some'; expected all, any, all-with-x, any-with-x",
        ),
        (
            ("/", "hash", "queue", "q", "0"),
            BAD_ARGUMENT,
            "the binding key must be an integer from 1 to 1000000, not '0'",
        ),
        (
            ("/", "hash", "queue", "q", "-1"),
            BAD_ARGUMENT,
            "the binding key must be an integer from 1 to 1000000, not '-1'",
        ),
        (
            ("/", "hash", "queue", "q", "\u0663"),  # a digit, but not one of ours
            BAD_ARGUMENT,
            "the binding key must be an integer from 1 to 1000000, not '\\u0663'",
        ),
    ],
)
def test_a_binding_that_has_no_ends_or_no_meaning_is_refused(
    fields: tuple[Any, ...], code: str, words: str
):
    book = Book()
    book.queue("q")
    book.exchange("hash", "x-consistent-hash")

    assert book.refuses(c.Bind(*fields), code) == words


def test_unbinding_what_is_not_there_is_harmless():
    Book().does(c.Unbind("/", "no", "queue", "no", ""), 0)


def test_bindings_go_with_the_queue_they_lead_to():
    book = Book()
    book.queue("q")
    book.queue("r")
    book.exchange("e")
    book.bind("e", "q")
    book.bind("e", "r")
    book.bind("amq.topic", "q")

    book.does(c.RemoveQueue("/", "q"))

    assert [b.destination for b in book.machine.bindings()] == ["r"]
    assert book.names() == ["e"]


def test_an_auto_delete_exchange_goes_with_its_last_binding():
    book = Book()
    book.queue("q")
    book.exchange("e", auto_delete=True)
    book.bind("e", "q", "a")
    book.bind("e", "q", "b")

    book.does(c.Unbind("/", "e", "queue", "q", "a"))
    assert book.names() == ["e"]
    book.does(c.Unbind("/", "e", "queue", "q", "b"))
    assert book.names() == []


def test_an_auto_delete_exchange_that_never_had_a_binding_stays():
    book = Book()
    book.exchange("e", auto_delete=True)
    book.does(c.Unbind("/", "e", "queue", "q", "a"), 0)

    assert book.names() == ["e"]


def test_auto_delete_exchanges_go_one_after_the_other():
    book = Book()
    book.queue("q")
    for name in "abc":
        book.exchange(name, auto_delete=True)
    book.exchange("kept")
    for source, destination in [("kept", "a"), ("a", "b"), ("b", "c"), ("c", "a")]:
        book.chain(source, destination)
    book.bind("c", "q")

    book.does(c.Unbind("/", "c", "exchange", "a", ""))
    assert book.names() == ["a", "b", "c", "kept"]
    book.does(c.RemoveQueue("/", "q"))

    assert book.names() == ["kept"]
    assert book.machine.bindings() == []


def test_a_ring_of_auto_delete_exchanges_goes_with_one_of_them():
    book = Book()
    for name in "abc":
        book.exchange(name, auto_delete=True)
    for source, destination in ["ab", "bc", "ca"]:
        book.chain(source, destination)

    book.does(c.DeleteExchange("/", "b"))

    assert book.names() == []
    assert book.machine.bindings() == []


def test_after_a_halt_of_the_whole_cluster_volatile_exchanges_are_gone_once():
    """C25: what is not durable does not survive it, and no second node repeats the clearing."""
    book = Book()
    book.queue("q")
    book.exchange("durable")
    for name in ("volatile", "also"):
        book.does(c.DeclareExchange("/", name, "fanout", durable=False))
    book.bind("volatile", "q")
    book.chain("durable", "volatile")
    book.bind("durable", "q")
    assert book.machine.generation == 0

    book.does(c.ForgetVolatile(0), 2)
    assert book.names() == ["durable"]
    assert [b.source for b in book.machine.bindings()] == ["durable"]
    book.does(c.DeclareExchange("/", "volatile", "fanout", durable=False))
    book.does(c.ForgetVolatile(0), 0)

    assert book.names() == ["durable", "volatile"]
    assert book.machine.generation == book.reopened().generation == 1


def test_the_routing_version_changes_with_all_that_routing_depends_on():
    book = Book()
    seen = {book.machine.routing_version("/")}
    for command in [
        c.DeclareQueue("/", "q", {}),
        c.DeclareExchange("/", "e", "fanout"),
        c.Bind("/", "e", "queue", "q", ""),
        c.Unbind("/", "e", "queue", "q", ""),
        c.PutEntry("policies", ["/", "p"], {"pattern": "e", "definition": {"expires": 9}}),
        c.DropEntry("policies", ["/", "p"]),
        c.DeleteExchange("/", "e"),
        c.RemoveQueue("/", "q"),
    ]:
        book.apply(command)
        version = book.machine.routing_version("/")
        assert version not in seen
        seen.add(version)
    book.machine.restore(book.machine.snapshot())
    assert book.machine.routing_version("/") not in seen


def test_the_routing_version_stays_when_nothing_of_the_vhost_changes():
    book = Book()
    book.does(c.PutEntry("vhosts", ["other"], {}))
    book.queue("q")
    version = book.machine.routing_version("/")

    book.queue("q", vhost="other")
    book.queue("q")
    book.does(c.DeclareExchange("other", "e", "fanout"))
    book.does(c.DeclareExchange("/", "amq.fanout", "fanout"), 0)
    book.does(c.DeleteExchange("/", "e"), 0)
    book.apply(c.Barrier())

    assert book.machine.routing_version("/") == version


def test_the_number_of_exchanges_and_bindings_is_limited(monkeypatch: pytest.MonkeyPatch):
    book = Book()
    book.queue("q")
    book.bind("amq.topic", "q")
    monkeypatch.setattr(catalog_routing, "EXCHANGES_MAX", 7)
    monkeypatch.setattr(catalog_routing, "BINDINGS_MAX", 1)

    book.refuses(c.DeclareExchange("/", "e", "fanout"), LIMIT_REACHED)
    book.refuses(c.Bind("/", "amq.topic", "queue", "q", "other"), LIMIT_REACHED)
    book.does(c.Bind("/", "amq.topic", "queue", "q", ""), 0)


def test_ten_thousand_bindings_of_one_queue_come_and_go():
    book = Book()
    book.queue("q")
    machine = book.machine
    for number in range(10_000):
        command = c.Bind("/", "amq.topic", "queue", "q", f"k{number}")
        machine.apply(Stamp(number + 9, 1, 0), command)

    assert len(machine.bindings_from("/", "amq.topic")) == 10_000
    assert book.reopened().bindings() == machine.bindings()
    book.does(c.RemoveQueue("/", "q"))
    assert machine.bindings() == []


# --- since machine version 3 ----------------------------------------------------------------------


def at_version(version: int) -> Book:
    book = Book()
    book.apply(c.UpgradeMachine(version))
    return book


@pytest.mark.parametrize("kind", catalog_routing.LATER_TYPES)
def test_a_type_that_came_later_is_unknown_to_older_machines(kind: str):
    arguments = {"x-delayed-type": "topic"}
    declare = c.DeclareExchange("/", "e", kind, arguments=arguments)

    at_version(2).refuses(declare, UNKNOWN_EXCHANGE_TYPE)
    book = at_version(3)
    book.does(declare)
    book.does(declare, 0)
    assert book.reopened().exchange("/", "e") == book.machine.exchange("/", "e")


@pytest.mark.parametrize("kind", [None, 5, "nothing", "x-delayed-message", "x-recent-history", []])
def test_an_exchange_that_delays_names_the_type_by_which_it_routes(kind: Any):
    arguments = {} if kind is None else {"x-delayed-type": kind}
    command = c.DeclareExchange("/", "e", "x-delayed-message", arguments=arguments)

    reason = at_version(3).refuses(command, BAD_ARGUMENT)

    assert "'x-delayed-type' must be an existing exchange type" in reason


def test_an_exchange_that_delays_has_the_rules_of_its_type():
    book = at_version(3)
    book.queue("q")
    delayed = {"x-delayed-type": "x-consistent-hash"}
    wrong = delayed | {"hash-property": "type"}
    book.refuses(c.DeclareExchange("/", "e", "x-delayed-message", arguments=wrong), BAD_ARGUMENT)
    book.does(c.DeclareExchange("/", "e", "x-delayed-message", arguments=delayed))

    book.refuses(c.Bind("/", "e", "queue", "q", "no weight"), BAD_ARGUMENT)

    book.bind("e", "q", "10")
    other = c.DeclareExchange("/", "e", "x-delayed-message", arguments={"x-delayed-type": "direct"})
    assert "x-delayed-type" in book.refuses(other, INEQUIVALENT)


def test_what_is_not_there_is_refused_with_what_to_do():
    book = at_version(3)
    book.queue("q")

    history = c.DeclareExchange("/", "e", "x-recent-history")
    assert "x-max-length" in book.refuses(history, UNKNOWN_EXCHANGE_TYPE)
    trace = c.Bind("/", "amq.rabbitmq.trace", "queue", "q", "publish.#")
    assert "firehose" in book.refuses(trace, BAD_ARGUMENT)


def test_an_older_machine_binds_to_the_firehose_as_it_did():
    book = at_version(2)
    book.queue("q")

    book.bind("amq.rabbitmq.trace", "q", "publish.#")


# --- since machine version 5 ----------------------------------------------------------------------


def test_a_federated_exchange_of_another_cluster_has_one_of_its_own_type_upstream():
    arguments = {"x-max-hops": 2, "x-downstream-name": "c", "x-downstream-vhost": "/"}
    kind = catalog_routing.FEDERATION_UPSTREAM
    declare = c.DeclareExchange("/", "e", kind, internal=True, arguments=arguments)

    at_version(4).refuses(declare, UNKNOWN_EXCHANGE_TYPE)
    book = at_version(5)
    book.does(declare)
    book.does(declare, 0)
    for other in ({"x-max-hops": 1}, {"x-downstream-name": "d"}, {"x-downstream-vhost": "v"}):
        changed = replace(declare, arguments=arguments | other)
        assert next(iter(other)) in book.refuses(changed, INEQUIVALENT)


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [("x-max-hops", None), ("x-max-hops", 0), ("x-max-hops", True), ("x-downstream-name", 5)],
)
def test_an_exchange_that_is_read_from_says_how_far(argument: str, wrong: Any):
    arguments = {"x-max-hops": 1, argument: wrong}
    kind = catalog_routing.FEDERATION_UPSTREAM

    reason = at_version(5).refuses(
        c.DeclareExchange("/", "e", kind, arguments=arguments), BAD_ARGUMENT
    )

    assert argument in reason
