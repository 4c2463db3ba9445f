"""Streams as RabbitMQ's clients declare, fill and read them, in plain frames."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from pamqp.commands import Basic, Confirm, Queue, Tx

from node.protocols.amqp import stream_consumers
from node.protocols.amqp.connection import AmqpConnection
from tests.acceptance.semantics.wire import Closed, Properties, Received, Wire
from tests.node.amqp.conftest import Connect
from tests.node.nodes import Running, until

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


def consume(
    wire: Wire, name: str, *, tag: str = "c", prefetch: int = 100, **arguments: Any
) -> None:
    wire.call(Basic.Qos(prefetch_count=prefetch), Basic.QosOk)
    wire.call(reading(name, tag, **arguments), Basic.ConsumeOk)


def reading(name: str, tag: str = "c", **arguments: Any) -> Basic.Consume:
    return Basic.Consume(queue=name, consumer_tag=tag, arguments=arguments)


def offset_of(delivery: Received) -> int:
    return delivery.properties.headers["x-stream-offset"]


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
            ("x-max-in-memory-length", 5, "of queue type rabbit_stream_queue"),
            ("x-quorum-target-group-size", 3, "of queue type rabbit_stream_queue"),
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

    @pytest.mark.parametrize(
        ("prefetch", "frame", "expected"),
        [
            (0, reading("unlike a queue"), ("channel", 406, "prefetch count is not set")),
            (
                5,
                Basic.Consume(queue="unlike a queue", no_ack=True),
                ("connection", 540, "automatic acknowledgement not supported"),
            ),
            *[
                (5, reading("unlike a queue", **{name: value}), ("channel", 406, text))
                for name, value, text in (
                    ("x-priority", 5, "of queue type rabbit_stream_queue"),
                    ("x-cancel-on-ha-failover", True, "of queue type rabbit_stream_queue"),
                    ("x-stream-offset", "wat", "it must be first, last, next, an offset"),
                    ("x-stream-offset", "", "it must be first, last, next, an offset"),
                    ("x-stream-offset", "1h30m", "or a length of time such as 1h"),
                    ("x-stream-offset", -5, "it must be first, last, next, an offset"),
                    ("x-stream-offset", 2.5, "it must be first, last, next, an offset"),
                    ("x-stream-offset", True, "it must be first, last, next, an offset"),
                    ("x-stream-offset", ["first"], "it must be first, last, next, an offset"),
                    ("x-stream-filter", 5, "it must be a string"),
                    ("x-stream-filter", [], "it must be a string"),
                    ("x-stream-filter", ["a", 5], "it must be a string"),
                    ("x-stream-match-unfiltered", "yes", "it must be true or false"),
                )
            ],
        ],
    )
    def test_a_consumer_that_cannot_be(
        self, connect: Connect, prefetch: int, frame: Any, expected: tuple[str, int, str]
    ) -> None:
        wire = connect()
        declare(wire, "unlike a queue")
        wire.call(Basic.Qos(prefetch_count=prefetch), Basic.QosOk)
        closed = refused(wire, frame)
        assert (closed.level, closed.code) == expected[:2]
        assert expected[2] in closed.text


class TestQueues:
    @pytest.mark.parametrize("kind", ["classic", "quorum", None])
    @pytest.mark.parametrize(
        "given",
        [
            {"x-stream-offset": "first"},
            {"x-stream-offset": 5},
            {"x-stream-filter": "a"},
            {"x-stream-match-unfiltered": True},
        ],
        ids=str,
    )
    def test_their_consumers_say_nothing_that_is_for_streams(
        self, connect: Connect, kind: str | None, given: dict[str, Any]
    ) -> None:
        wire = connect()
        arguments = {"x-queue-type": kind} if kind else {}
        queue = Queue.Declare(queue="no stream", durable=True, arguments=arguments)
        wire.call(queue, Queue.DeclareOk)
        closed = refused(wire, reading("no stream", **given))
        assert (closed.level, closed.code) == ("channel", 406)
        place = f"queue 'no stream' in vhost '/' of queue type rabbit_{kind or 'classic'}_queue"
        assert closed.text == f"PRECONDITION_FAILED - invalid arg '{next(iter(given))}' for {place}"
        wire = connect()
        wire.call(Queue.Delete(queue="no stream"), Queue.DeleteOk)


class TestReading:
    @pytest.mark.parametrize(
        ("offset", "expected"),
        [
            ("first", [0, 1, 2, 3, 4]),
            ("last", [4]),
            (0, [0, 1, 2, 3, 4]),
            (3, [3, 4]),
            ("1h", [0, 1, 2, 3, 4]),
            (dt.datetime(2020, 1, 1, tzinfo=dt.UTC), [0, 1, 2, 3, 4]),
        ],
    )
    def test_it_begins_where_that_is_wanted(
        self, connect: Connect, offset: Any, expected: list[int]
    ) -> None:
        wire, name = connect(), f"from {offset}"
        declare(wire, name)
        publish(connect(), name, *[str(number) for number in range(5)])
        consume(wire, name, **{"x-stream-offset": offset})
        found = wire.take(len(expected), Basic.Deliver)
        assert [int(each.body) for each in found] == expected
        assert [offset_of(each) for each in found] == expected
        publish(connect(), name, "later")
        assert [offset_of(each) for each in wire.take(1, Basic.Deliver)] == [5]

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"x-stream-offset": "next"},
            {"x-stream-offset": dt.datetime(2099, 1, 1, tzinfo=dt.UTC)},
        ],
    )
    def test_without_a_word_it_is_what_comes_next(
        self, connect: Connect, arguments: dict[str, Any]
    ) -> None:
        wire, name = connect(), uuid4().hex
        declare(wire, name)
        publish(connect(), name, "before")
        consume(wire, name, **arguments)
        publish(connect(), name, "behind")
        (found,) = wire.take(1, Basic.Deliver)
        assert (found.body, offset_of(found)) == (b"behind", 1)

    def test_an_offset_that_is_yet_to_come_is_waited_for(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "to come")
        consume(wire, "to come", **{"x-stream-offset": 2})
        publish(connect(), "to come", "0", "1", "2", "3")
        assert [each.body for each in wire.take(2, Basic.Deliver)] == [b"2", b"3"]

    def test_properties_and_headers_come_as_they_were_sent(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "as sent")
        wire.call(Queue.Bind(0, "as sent", "amq.topic", "a.#"), Queue.BindOk)
        headers = {"text": "b", "number": 5, "deep": {"list": [1, "2"]}, "x-stream-offset": "mine"}
        properties = Properties(
            content_type="t", message_id="m", delivery_mode=1, priority=3, headers=headers
        )
        wire.publish("a.b", "body", exchange="amq.topic", properties=properties)
        consume(wire, "as sent", **{"x-stream-offset": "first"})
        (found,) = wire.take(1, Basic.Deliver)
        assert (found.method.exchange, found.method.routing_key) == ("amq.topic", "a.b")
        assert not found.method.redelivered
        assert found.properties.headers == {**headers, "x-stream-offset": 0}
        assert (found.properties.content_type, found.properties.message_id) == ("t", "m")
        assert (found.properties.delivery_mode, found.properties.priority) == (1, 3)

    def test_a_large_body_comes_whole_and_in_its_place(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "large")
        publish(connect(), "large", "before", "x" * (3 << 20), "behind")
        consume(wire, "large", **{"x-stream-offset": "first"})
        found = wire.take(3, Basic.Deliver)
        assert [len(each.body) for each in found] == [6, 3 << 20, 6]
        assert [offset_of(each) for each in found] == [0, 1, 2]

    @pytest.mark.parametrize(
        "settle",
        [
            Basic.Ack(2, multiple=True),
            Basic.Nack(2, multiple=True, requeue=False),
            Basic.Nack(2, multiple=True, requeue=True),
        ],
    )
    def test_settles_make_room_and_bring_nothing_back(self, connect: Connect, settle: Any) -> None:
        wire = connect()
        name = f"credit {settle.name} {getattr(settle, 'requeue', '')}"
        declare(wire, name)
        publish(connect(), name, *"abcdefg")
        consume(wire, name, prefetch=2, **{"x-stream-offset": "first"})
        assert [each.body for each in wire.take(2, Basic.Deliver)] == [b"a", b"b"]
        wire.send(of(name))
        assert wire.take(1, Queue.DeclareOk)[0].method.message_count == 7  # and no third one came
        wire.send(settle)
        assert [each.body for each in wire.take(2, Basic.Deliver)] == [b"c", b"d"]
        wire.send(Basic.Reject(3, requeue=True), Basic.Ack(4))
        assert [each.body for each in wire.take(2, Basic.Deliver)] == [b"e", b"f"]
        wire.call(Basic.Recover(requeue=True), Basic.RecoverOk)
        assert [each.body for each in wire.take(1, Basic.Deliver)] == [b"g"]
        assert declare(wire, name).message_count == 7

    def test_acks_of_a_transaction_make_room_when_it_is_committed(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "in tx")
        publish(connect(), "in tx", "a", "b")
        wire.call(Tx.Select(), Tx.SelectOk)
        consume(wire, "in tx", prefetch=1, **{"x-stream-offset": "first"})
        wire.take(1, Basic.Deliver)
        wire.send(Basic.Ack(1))
        wire.call(Tx.Rollback(), Tx.RollbackOk)
        wire.send(Basic.Ack(1))
        wire.send(Tx.Commit())
        found = {type(each.method): each for each in wire.take(2, Tx.CommitOk, Basic.Deliver)}
        assert found[Basic.Deliver].body == b"b"

    def test_readers_are_independent(self, connect: Connect) -> None:
        wires = [connect() for _ in range(3)]
        declare(wires[0], "for all")
        for wire in wires:
            consume(wire, "for all", prefetch=1, **{"x-stream-offset": "first"})
        publish(connect(), "for all", "a", "b")
        for wire in wires:
            (found,) = wire.take(1, Basic.Deliver)
            assert found.body == b"a"
            wire.send(Basic.Ack(found.method.delivery_tag))
            assert wire.take(1, Basic.Deliver)[0].body == b"b"

    def test_several_consumers_of_one_channel_each_have_their_prefetch(
        self, connect: Connect
    ) -> None:
        wire = connect()
        declare(wire, "twice")
        publish(connect(), "twice", "a", "b", "c")
        for prefetch in (1, 2):
            tag = f"c{prefetch}"
            consume(wire, "twice", tag=tag, prefetch=prefetch, **{"x-stream-offset": "first"})
        found = Counter(each.method.consumer_tag for each in wire.take(3, Basic.Deliver))
        assert found == {"c1": 1, "c2": 2}

    def test_nothing_comes_after_a_cancel(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "cancelled")
        consume(wire, "cancelled")
        wire.call(Basic.Cancel("c"), Basic.CancelOk)
        publish(connect(), "cancelled", "m")
        consume(wire, "cancelled", **{"x-stream-offset": "first"})
        assert wire.take(1, Basic.Deliver)[0].method.delivery_tag == 1

    def test_consumers_are_told_that_it_was_deleted(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "deleted")
        consume(wire, "deleted")
        connect().call(Queue.Delete(queue="deleted"), Queue.DeleteOk)
        assert wire.expect(Basic.Cancel).consumer_tag == "c"
        declare(wire, "deleted")
        consume(wire, "deleted", **{"x-stream-offset": "first"})
        publish(connect(), "deleted", "new")
        assert wire.take(1, Basic.Deliver)[0].body == b"new"

    def test_what_a_slow_client_does_not_take_is_not_read(
        self, connect: Connect, running: Running
    ) -> None:
        publish_to, wire, count = connect(), connect(), 3_000
        declare(wire, "slowly")
        for _ in range(10):
            publish(publish_to, "slowly", *["x" * 10_000] * (count // 10))
        consume(wire, "slowly", prefetch=65_535, **{"x-stream-offset": "first"})

        def host() -> AmqpConnection:
            connections = list(running.node.amqp._connections)
            return next(each for each in connections if each.channels[1].deliveries.consumers)

        async def stalled() -> tuple[int, int]:
            """Bytes that wait, and messages that were sent."""
            found = host()
            await until(lambda: found.congested)
            unacked = found.channels[1].deliveries.settles.unacked.count
            return found.wire.written_bytes - found.wire.sent_bytes, unacked

        waiting_bytes, unacked = running.do(stalled())
        assert waiting_bytes <= 2 * stream_consumers.BYTES_AT_ONCE
        assert unacked < count
        found = wire.take(count, Basic.Deliver)
        assert [offset_of(each) for each in found] == list(range(count))


class TestFilters:
    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            ({"x-stream-filter": "a"}, ["a0", "a1", "a2"]),
            ({"x-stream-filter": ["a", "b"]}, ["a0", "b0", "a1", "b1", "a2", "b2"]),
            (
                {"x-stream-filter": "b", "x-stream-match-unfiltered": True},
                ["b0", "0", "b1", "1", "b2", "2"],
            ),
            ({"x-stream-match-unfiltered": True}, ["a0", "b0", "0", "a1"]),
        ],
    )
    def test_only_what_is_wanted_comes(
        self, connect: Connect, arguments: dict[str, Any], expected: list[str]
    ) -> None:
        wire, name = connect(), uuid4().hex
        declare(wire, name)
        for number in range(3):
            for value in ("a", "b"):
                headers = {"x-stream-filter-value": value}
                publish(connect(), name, f"{value}{number}", headers=headers)
            publish(connect(), name, str(number))
        consume(wire, name, prefetch=3, **arguments, **{"x-stream-offset": "first"})
        found = []
        for _ in expected:
            found += wire.take(1, Basic.Deliver)
            wire.send(Basic.Ack(found[-1].method.delivery_tag))
        assert [each.body.decode() for each in found] == expected

    def test_what_few_want_is_found_among_many(self, connect: Connect) -> None:
        wire = connect()
        declare(wire, "rare")
        publish(connect(), "rare", *["hay"] * 3_000)
        publish(connect(), "rare", "needle", headers={"x-stream-filter-value": "n"})
        consume(wire, "rare", **{"x-stream-filter": "n", "x-stream-offset": "first"})
        assert [offset_of(each) for each in wire.take(1, Basic.Deliver)] == [3_000]
        publish(connect(), "rare", *["hay"] * 10)
        publish(connect(), "rare", "needle", headers={"x-stream-filter-value": "n"})
        assert [offset_of(each) for each in wire.take(1, Basic.Deliver)] == [3_011]
