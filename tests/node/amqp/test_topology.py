"""Exchanges, queues and bindings: what RabbitMQ's clients may say, in plain frames."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from pamqp import base
from pamqp.commands import Basic, Exchange, Queue

from cluster.machine.commands import DeleteQueue, RemoveQueue
from cluster.types import CATALOG_GROUP
from tests.acceptance.semantics.wire import Closed, Properties
from tests.node.amqp.conftest import Connect, Running

MOMENT = dt.datetime(2020, 2, 29, tzinfo=dt.UTC)
ODD: dict[str, Any] = {"time": MOMENT, "price": Decimal("1.5"), "deep": {"times": [MOMENT, None]}}


def test_arguments_may_hold_times_and_decimals(connect: Connect) -> None:
    wire = connect()
    for _ in range(2):
        wire.call(Queue.Declare(queue="odd", exclusive=True, arguments=ODD), Queue.DeclareOk)
        declare = Exchange.Declare(exchange="odd", exchange_type="fanout", arguments=ODD)
        wire.call(declare, Exchange.DeclareOk)
    wire.call(Basic.Consume(queue="odd", arguments=ODD), Basic.ConsumeOk)
    wire.call(Exchange.Delete(exchange="odd"), Exchange.DeleteOk)


def test_headers_are_matched_by_times_and_decimals(connect: Connect) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="matched", exclusive=True), Queue.DeclareOk)
    bind = Queue.Bind(queue="matched", exchange="amq.headers", arguments=ODD)
    wire.call(bind, Queue.BindOk)
    properties = Properties(headers=ODD)
    wire.publish("", "yes", exchange="amq.headers", properties=properties, mandatory=True)
    properties = Properties(headers={**ODD, "price": Decimal("2.5")})
    wire.publish("", "no", exchange="amq.headers", properties=properties, mandatory=True)
    (returned,) = wire.take(1, Basic.Return)
    assert returned.body == b"no"
    wire.call(Basic.Get(queue="matched"), Basic.GetOk)


@pytest.mark.parametrize("bind", [Queue.Bind, Queue.Unbind])
def test_without_a_name_and_a_key_it_is_the_last_queue_under_its_name(
    connect: Connect, bind: type[base.Frame]
) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="last", exclusive=True), Queue.DeclareOk)
    wire.call(Queue.Bind(queue="last", exchange="amq.direct", routing_key="last"), Queue.BindOk)
    wire.call(Queue.Unbind(exchange="amq.direct"), Queue.UnbindOk)
    if bind is Queue.Bind:
        wire.call(Queue.Bind(exchange="amq.direct"), Queue.BindOk)
    wire.publish("last", "m", exchange="amq.direct", mandatory=True)
    wire.call(Queue.Declare(queue="last", passive=True), Queue.DeclareOk)
    wire.send(Basic.Get(queue="last"))
    expected = Basic.GetOk if bind is Queue.Bind else Basic.Return
    wire.take(1, expected)


def test_nobody_declares_the_default_exchange_not_even_passively(connect: Connect) -> None:
    wire = connect()
    wire.send(Exchange.Declare(exchange="", passive=True))
    closed = wire.refusal()
    assert (closed.code, closed.text) == (
        403,
        "ACCESS_REFUSED - operation not permitted on the default exchange",
    )


def test_a_queue_type_that_there_is_not_is_refused_for_a_queue_that_there_is(
    connect: Connect,
) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="typed", exclusive=True), Queue.DeclareOk)
    wire.send(Queue.Declare(queue="typed", exclusive=True, arguments={"x-queue-type": "wat"}))
    assert wire.refusal().code == 406


@pytest.mark.parametrize(
    ("name", "flags", "text"),
    [
        ("q", {}, "invalid property 'non-durable' for queue 'q' in vhost '/'"),
        (
            "q",
            {"durable": True, "exclusive": True},
            "invalid property 'exclusive-owner' for queue 'q' in vhost '/'",
        ),
        (
            "q",
            {"durable": True, "auto_delete": True},
            "invalid property 'auto-delete' for queue 'q' in vhost '/'",
        ),
        (
            "",
            {"durable": True},
            "Cannot declare a server-named queue for type rabbit_quorum_queue",
        ),
    ],
)
def test_who_asks_for_replication_gets_it_or_an_error(
    connect: Connect, name: str, flags: dict[str, bool], text: str
) -> None:
    wire = connect()
    wire.send(Queue.Declare(queue=name, arguments={"x-queue-type": "quorum"}, **flags))
    closed = wire.refusal()
    assert (closed.code, closed.text) == (406, f"PRECONDITION_FAILED - {text}")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(
            (kind, *argument)
            for kind in ("classic", "quorum")
            for argument in (
                ("x-max-age", "7D"),
                ("x-stream-max-segment-size-bytes", 1_000_000),
                ("x-stream-filter-size-bytes", 32),
                ("x-initial-cluster-size", 3),
            )
        ),
        ("quorum", "x-queue-mode", "lazy"),
        ("quorum", "x-queue-version", 2),
        ("quorum", "x-queue-master-locator", "min-masters"),
        ("classic", "x-max-in-memory-length", 5),
        ("classic", "x-max-in-memory-bytes", 5),
        ("classic", "x-quorum-target-group-size", 3),
    ],
)
def test_an_argument_that_says_nothing_about_its_type_of_queue_is_refused(
    connect: Connect, kind: str, name: str, value: Any
) -> None:
    wire = connect()
    asked = {"x-queue-type": kind, name: value}
    wire.send(Queue.Declare(queue="misplaced", durable=True, arguments=asked))
    closed = wire.refusal()
    place = f"queue 'misplaced' in vhost '/' of queue type rabbit_{kind}_queue"
    assert closed.code == 406
    assert closed.text == f"PRECONDITION_FAILED - invalid arg '{name}' for {place}"


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        ("classic", {"x-queue-mode": "lazy", "x-queue-version": 2, "x-max-priority": 3}),
        ("classic", {"x-delivery-limit": 3, "x-dead-letter-strategy": "at-most-once"}),
        ("quorum", {"x-max-in-memory-length": 5, "x-quorum-target-group-size": 3}),
        ("quorum", {"x-max-priority": 3, "x-overflow": "reject-publish-dlx"}),
        ("quorum", {"x-quorum-initial-group-size": 1, "x-nobody-knows": 1}),
    ],
)
def test_what_counts_on_both_types_or_means_nothing_to_anybody_is_taken(
    connect: Connect, kind: str, arguments: dict[str, Any]
) -> None:
    asked = {"x-queue-type": kind, **arguments}
    declare = Queue.Declare(queue=f"{kind} {arguments}", durable=True, arguments=asked)
    connect().call(declare, Queue.DeclareOk)


def test_blind_copies_are_not_shown_in_what_is_returned(connect: Connect) -> None:
    wire = connect()
    properties = Properties(headers={"BCC": ["nobody either"], "CC": ["nor here"]})
    wire.publish("nobody", "m", properties=properties, mandatory=True)
    (returned,) = wire.take(1, Basic.Return)
    assert returned.properties.headers == {"CC": ["nor here"]}


def test_a_declare_that_meets_deletes_makes_the_queue(connect: Connect) -> None:
    """As in RabbitMQ, only a passive declare says that there is none."""
    deleters = [connect() for _ in range(3)]
    wire = connect()
    for _ in range(50):
        for deleter in deleters:
            deleter.send(*[Queue.Delete(queue="fleeting")] * 4)
        for _ in range(4):
            wire.call(Queue.Declare(queue="fleeting", durable=True), Queue.DeclareOk)
        for deleter in deleters:
            for _ in range(4):
                deleter.expect(Queue.DeleteOk)
    wire.call(Queue.Delete(queue="fleeting"), Queue.DeleteOk)


def test_a_queue_that_is_in_the_catalog_only_is_no_empty_one(
    connect: Connect, running: Running
) -> None:
    """As those of a node that has just started again, until it has registered."""
    wire = connect()
    wire.call(Queue.Declare(queue="a name", auto_delete=True), Queue.DeclareOk)
    cluster = running.node.cluster
    info = cluster.queue_info("/", "a name")
    assert info is not None
    running.do(cluster.ask(info.group, DeleteQueue(info.queue)))
    wire.send(Queue.Declare(queue="a name", passive=True))
    running.do(cluster.change(RemoveQueue(info.vhost, info.name, info.queue)))
    with pytest.raises(Closed, match="NOT_FOUND"):
        wire.expect(Queue.DeclareOk)


def test_a_queue_is_made_again_when_it_was_deleted_and_this_copy_of_the_catalog_had_not_heard(
    connect: Connect, running: Running
) -> None:
    """What is known as it is declared is answered from the copy, which may be behind."""
    wire, other = connect(), connect()
    wire.call(Queue.Declare(queue="again", durable=True), Queue.DeclareOk)
    cluster = running.node.cluster
    info = cluster.queue_info("/", "again")
    assert info is not None
    running.do(cluster.ask(info.group, DeleteQueue(info.queue)))
    wire.send(Queue.Declare(queue="again", durable=True))
    running.do(cluster.change(RemoveQueue(info.vhost, info.name, info.queue)))
    wire.expect(Queue.DeclareOk)
    other.call(Queue.Declare(queue="again", passive=True), Queue.DeclareOk)


def test_exchanges_of_plugins_that_are_not_there_are_refused_with_what_to_do(
    connect: Connect,
) -> None:
    wire = connect()
    wire.send(Exchange.Declare(exchange="old", exchange_type="x-recent-history"))
    refusal = wire.refusal()
    assert (refusal.level, refusal.code) == ("connection", 503)
    assert "unknown exchange type 'x-recent-history'; keep the messages in a queue" in refusal.text

    for source, code, text in (
        ("amq.rabbitmq.trace", 406, "firehose"),
        ("amq.rabbitmq.event", 404, "events are not published"),
    ):
        wire = connect()
        wire.call(Queue.Declare(queue="watcher", auto_delete=True), Queue.DeclareOk)
        wire.send(Queue.Bind(queue="watcher", exchange=source, routing_key="#"))
        refusal = wire.refusal()
        assert (refusal.level, refusal.code) == ("channel", code)
        assert text in refusal.text


def test_declares_that_are_not_waited_for_share_their_rounds(
    connect: Connect, running: Running
) -> None:
    """They are answered in their order, with what is in between."""
    count = 300
    wire = connect()
    catalog = running.node.cluster.group(CATALOG_GROUP)
    assert catalog is not None
    before = catalog.applied_index
    frames: list[base.Frame] = [
        Queue.Declare(queue=f"many-{number}", durable=True) for number in range(count)
    ]
    frames[200:200] = [frames[7], Queue.Bind(queue="", exchange="amq.direct", routing_key="k")]
    wire.send(*frames)
    named = [wire.expect(Queue.DeclareOk).queue for _ in range(201)]
    wire.expect(Queue.BindOk)
    named += [wire.expect(Queue.DeclareOk).queue for _ in range(count - 200)]

    assert named == [frame.queue for frame in frames if isinstance(frame, Queue.Declare)]
    assert catalog.applied_index - before < count / 2
    wire.publish("k", "m", exchange="amq.direct", mandatory=True)
    wire.call(Basic.Get(queue="many-7"), Basic.GetOk)


def test_a_declare_that_is_refused_ends_what_was_begun_behind_it(connect: Connect) -> None:
    wire = connect()
    wire.call(Queue.Declare(queue="first of all", durable=True), Queue.DeclareOk)
    for wrong, text in (
        (Queue.Declare(queue="first of all", durable=False), "inequivalent arg 'durable'"),
        (Queue.Declare(queue="behind 1", durable=True, arguments={"x-expires": 0}), "x-expires"),
        (Queue.Declare(queue="behind 0", durable=True, arguments={"x-expires": 9_000}), "'x-exp"),
    ):
        wire.send(
            Queue.Declare(queue="behind 0", durable=True),
            wrong,
            *[Queue.Declare(queue=f"behind {number}", durable=True) for number in range(2, 90)],
        )
        wire.expect(Queue.DeclareOk)
        refusal = wire.refusal()
        assert (refusal.level, refusal.code) == ("channel", 406)
        assert text in refusal.text
        wire.open()
    wire.call(Queue.Declare(queue="behind 50", durable=True), Queue.DeclareOk)
