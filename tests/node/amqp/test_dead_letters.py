"""What consumers see of dead letters."""

from __future__ import annotations

from typing import Any

from pamqp.commands import Basic, Exchange, Queue

from tests.acceptance.semantics.wire import Properties, Received, Wire
from tests.node.amqp.conftest import Connect
from tests.testkit.waiting import wait_until


def _next(wire: Wire, queue: str) -> Received:
    """Once there is a message."""
    look = Queue.Declare(queue=queue, passive=True)
    wait_until(lambda: wire.call(look, Queue.DeclareOk).message_count == 1)
    wire.send(Basic.Get(queue=queue, no_ack=True))
    return wire.take(1, Basic.GetOk)[0]


def _die(wire: Wire, headers: dict[str, Any], *, exchange: str = "", key: str = "dying") -> None:
    wire.publish(key, "m", exchange=exchange, properties=Properties(headers=headers))


def test_a_dead_letter_goes_by_the_keys_of_its_copies_too(connect: Connect) -> None:
    wire = connect()
    declare = Exchange.Declare(exchange="dead", exchange_type="direct", auto_delete=True)
    wire.call(declare, Exchange.DeclareOk)
    for name in ("dying", "copy"):
        wire.call(Queue.Declare(queue=f"dead {name}", exclusive=True), Queue.DeclareOk)
        bind = Queue.Bind(queue=f"dead {name}", exchange="dead", routing_key=name)
        wire.call(bind, Queue.BindOk)
    arguments: dict[str, Any] = {"x-dead-letter-exchange": "dead", "x-message-ttl": 0}
    declare = Queue.Declare(queue="dying", exclusive=True, arguments=arguments)
    wire.call(declare, Queue.DeclareOk)
    _die(wire, {"CC": ["copy", "nowhere"]})
    for name in ("dying", "copy"):
        headers = _next(wire, f"dead {name}").properties.headers
        assert headers["CC"] == ["copy", "nowhere"]
        assert headers["x-death"][0]["routing-keys"] == ["dying", "copy", "nowhere"]


def test_a_key_for_dead_letters_is_in_place_of_all_of_the_publishers(connect: Connect) -> None:
    wire = connect()
    _mortal(wire)
    _die(wire, {"CC": ["nowhere"]})
    headers = _next(wire, "dead").properties.headers
    assert "CC" not in headers
    assert headers["x-death"][0]["routing-keys"] == ["dying", "nowhere"]


def test_a_letter_that_dies_again_goes_by_the_key_that_it_came_by(connect: Connect) -> None:
    wire = connect()
    declare = Exchange.Declare(exchange="dead", exchange_type="direct", auto_delete=True)
    wire.call(declare, Exchange.DeclareOk)
    again: dict[str, Any] = {"x-dead-letter-exchange": "dead", "x-message-ttl": 0}
    first = {**again, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "again"}
    for name, arguments in (("dying", first), ("again", again), ("end", {})):
        declare = Queue.Declare(queue=name, exclusive=True, arguments=arguments)
        wire.call(declare, Queue.DeclareOk)
    bind = Queue.Bind(queue="end", exchange="dead", routing_key="again")
    wire.call(bind, Queue.BindOk)
    _die(wire, {"CC": ["nowhere"]})
    headers = _next(wire, "end").properties.headers
    assert [death["routing-keys"] for death in headers["x-death"]] == [
        ["again"],
        ["dying", "nowhere"],
    ]


def test_deaths_are_counted_on_when_a_letter_is_published_again(connect: Connect) -> None:
    """As retries by hand do it: with the headers as they came."""
    wire = connect()
    _mortal(wire)
    other = {"queue": "another", "reason": "rejected", "count": 5}
    headers: dict[str, Any] = {
        "x-death": [other, "what is this?", {"queue": [1]}],
        "x-first-death-queue": "another",
    }
    for count in (1, 2, 3):
        _die(wire, headers)
        headers = _next(wire, "dead").properties.headers
        deaths = headers["x-death"]
        assert [(each["queue"], each.get("count")) for each in deaths if each["queue"] != [1]] == [
            ("dying", count),
            ("another", 5),
        ]
        assert headers["x-first-death-queue"] == "another"
        assert headers["x-last-death-queue"] == "dying"


def _mortal(wire: Wire) -> None:
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-message-ttl": 0,
    }
    declare = Queue.Declare(queue="dying", exclusive=True, arguments=arguments)
    wire.call(declare, Queue.DeclareOk)
    wire.call(Queue.Declare(queue="dead", exclusive=True), Queue.DeclareOk)
