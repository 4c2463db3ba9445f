"""Streams as RabbitMQ's clients declare, fill and read them, in plain frames."""

from __future__ import annotations

from typing import Any

import pytest
from pamqp.commands import Basic, Confirm, Queue

from tests.acceptance.semantics.wire import Closed, Properties, Wire
from tests.node.amqp.conftest import Connect

STREAM = {"x-queue-type": "stream"}
LIMITS = {"x-max-age": "7D", "x-max-length-bytes": 1_000_000}


def declare(wire: Wire, name: str, **arguments: Any) -> Queue.DeclareOk:
    return wire.call(of(name, **arguments), Queue.DeclareOk)


def of(name: str, **arguments: Any) -> Queue.Declare:
    return Queue.Declare(queue=name, durable=True, arguments={**STREAM, **arguments})


def publish(wire: Wire, name: str, *bodies: str, **properties: Any) -> None:
    """Confirmed."""
    wire.call(Confirm.Select(), Confirm.SelectOk)
    wire.publish(name, *bodies, properties=Properties(delivery_mode=2, **properties))
    confirmed = 0
    while confirmed < len(bodies):
        (found,) = wire.take(1, Basic.Ack)
        confirmed = found.method.delivery_tag if found.method.multiple else confirmed + 1


def refused(wire: Wire, frame: Any) -> Closed:
    wire.send(frame)
    return wire.refusal()


class TestDeclaring:
    def test_a_stream_counts_what_it_holds(self, connect: Connect) -> None:
        wire = connect()
        assert declare(wire, "counted").message_count == 0
        publish(wire, "counted", "a", "b")
        wire.call(Queue.Bind(0, "counted", "amq.direct", "key"), Queue.BindOk)
        wire.publish("key", "c", exchange="amq.direct")
        wire.take(1, Basic.Ack)
        answer = wire.call(Queue.Declare(queue="counted", passive=True), Queue.DeclareOk)
        assert (answer.message_count, answer.consumer_count) == (3, 0)
        assert declare(wire, "counted").message_count == 3

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *LIMITS.items(),
            ("x-max-age", "1h"),
            ("x-stream-max-segment-size-bytes", 500_000_000),
            ("x-stream-filter-size-bytes", 32),
            ("x-initial-cluster-size", 3),
            ("x-queue-leader-locator", "least-leaders"),
            ("x-unheard-of", 5),
        ],
    )
    def test_rabbitmqs_arguments_are_taken(self, connect: Connect, name: str, value: Any) -> None:
        wire, queue = connect(), f"with {name} {value}"
        for _ in range(2):
            declare(wire, queue, **{name: value})

    @pytest.mark.parametrize(
        ("name", "value", "text"),
        [
            ("x-max-age", "7", "'7', and it must be a length of time such as 7D"),
            ("x-max-age", "1h30m", "a length of time"),
            ("x-max-age", "0s", "a length of time"),
            ("x-max-age", 7, "a length of time"),
            ("x-max-length-bytes", -1, "an integer of at least 0"),
            ("x-stream-max-segment-size-bytes", 4_000_000_000, "3000000000"),
            ("x-stream-filter-size-bytes", 4, "an integer from 16 to 255"),
            ("x-initial-cluster-size", 0, "an integer from 1"),
            ("x-queue-leader-locator", "wat", "least-leaders"),
            ("x-max-length", 5, "of queue type rabbit_stream_queue"),
            ("x-expires", 1_000, "of queue type rabbit_stream_queue"),
            ("x-message-ttl", 5, "of queue type rabbit_stream_queue"),
            ("x-max-priority", 5, "of queue type rabbit_stream_queue"),
            ("x-dead-letter-exchange", "x", "of queue type rabbit_stream_queue"),
            ("x-single-active-consumer", True, "of queue type rabbit_stream_queue"),
            ("x-stream", {"subjects": ["a"]}, "of queue type rabbit_stream_queue"),
        ],
    )
    def test_others_are_refused(self, connect: Connect, name: str, value: Any, text: str) -> None:
        closed = refused(connect(), of("never", **{name: value}))
        assert (closed.level, closed.code) == ("channel", 406)
        assert f"invalid arg '{name}' for queue 'never' in vhost '/'" in closed.text
        assert text in closed.text

    @pytest.mark.parametrize(
        ("name", "flags", "text"),
        [
            ("q", {}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
            ("q", {"durable": True, "exclusive": True}, "invalid property 'exclusive-owner'"),
            ("q", {"durable": True, "auto_delete": True}, "invalid property 'auto-delete'"),
            ("", {"durable": True}, "a server-named queue for type rabbit_stream_queue"),
        ],
    )
    def test_it_is_durable_and_nobodys(
        self, connect: Connect, name: str, flags: dict[str, bool], text: str
    ) -> None:
        closed = refused(connect(), Queue.Declare(queue=name, arguments=STREAM, **flags))
        assert (closed.level, closed.code) == ("channel", 406)
        assert text in closed.text

    @pytest.mark.parametrize(
        "second",
        [
            of("differs"),
            of("differs", **{**LIMITS, "x-max-age": "8D"}),
            of("differs", **LIMITS, **{"x-stream-max-segment-size-bytes": 100}),
            of("differs", **LIMITS, **{"x-initial-cluster-size": 1}),
            Queue.Declare(queue="differs", durable=True),
            Queue.Declare(queue="differs", durable=True, arguments={"x-queue-type": "quorum"}),
        ],
    )
    def test_another_one_of_its_name_is_not_the_same(
        self, connect: Connect, second: Queue.Declare
    ) -> None:
        wire = connect()
        declare(wire, "differs", **LIMITS)
        closed = refused(wire, second)
        assert (closed.level, closed.code) == ("channel", 406)
        assert "inequivalent arg 'x-" in closed.text

    def test_a_queue_is_no_stream(self, connect: Connect) -> None:
        wire = connect()
        wire.call(Queue.Declare(queue="no stream", durable=True), Queue.DeclareOk)
        assert "inequivalent arg 'x-queue-type'" in refused(wire, of("no stream")).text

    def test_its_oldest_messages_go_when_there_are_too_many(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "small", **{"x-max-length-bytes": 1_000})
        publish(wire, "small", *["x" * 400] * 5)
        assert declare(wire, "small", **{"x-max-length-bytes": 1_000}).message_count == 2


class TestRefusals:
    """As in RabbitMQ."""

    @pytest.mark.parametrize(
        "frame",
        [Basic.Get(queue="unlike a queue"), Queue.Purge(queue="unlike a queue")],
    )
    def test_what_only_a_queue_can_do(self, connect: Connect, frame: Any) -> None:
        wire = connect()
        declare(wire, "unlike a queue")
        closed = refused(wire, frame)
        assert (closed.level, closed.code) == ("connection", 540)
