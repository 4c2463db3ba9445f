"""Publishing: outcomes, order, and storing once whatever happens to connections."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

import quorate
from quorate import numbering, wire
from quorate.pipeline import PublisherPipeline
from tests.client.fake_node import FakeCluster
from tests.testkit.waiting import stays


async def test_a_publish_returns_its_position(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")

    first = await client.publish("orders", b"one", key="k", headers={"a": 1})
    second = await client.publish("orders", b"two")

    assert (first, second) == (quorate.Published(1, False), quorate.Published(2, False))
    assert cluster.queue("orders").metas[1] == {"key": "k", "headers": {"a": 1}}


async def test_publishes_of_one_turn_share_a_frame(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await client.publish("orders", b"connects")
    before = len(cluster.nodes[0].seen)

    outcomes = await asyncio.gather(*(client.publish("orders", b"%d" % n) for n in range(100)))

    assert [outcome.position for outcome in outcomes] == list(range(2, 102))
    assert len(cluster.nodes[0].seen) == before + 1


async def test_many_messages_are_stored_in_order(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    bodies = [b"%d" % n for n in range(5_000)]

    confirmed = await client.publish_many("orders", bodies, batch=256)

    assert confirmed == quorate.Confirmed(5_000, 5_000, 0)
    assert list(cluster.queue("orders").bodies.values()) == bodies


async def test_what_a_lost_connection_left_unconfirmed_is_stored_once(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    await client.publish("orders", b"first")
    node = cluster.nodes[0]
    node.mute = {wire.PUBLISH}  # stores, and never says so
    publishing = asyncio.create_task(
        client.publish_many("orders", [b"%d" % n for n in range(2_000)], batch=100)
    )
    while len(cluster.queue("orders").bodies) < 1_000:
        await asyncio.sleep(0)
    node.mute = set()
    node.cut()

    confirmed = await publishing

    assert confirmed.count == 2_000
    assert confirmed.duplicates >= 1_000
    assert list(cluster.queue("orders").bodies.values())[1:] == [b"%d" % n for n in range(2_000)]


async def test_a_publisher_follows_the_leader(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await client.publish("orders", b"1")

    await cluster.lead(cluster.nodes[1])
    await client.publish("orders", b"2")
    await cluster.lead(cluster.nodes[2])
    await cluster.nodes[1].stop()
    await client.publish("orders", b"3")

    assert list(cluster.queue("orders").bodies.values()) == [b"1", b"2", b"3"]
    assert {hello["session"] for node in cluster.nodes for hello in node.hellos} == {client.session}


async def test_nodes_are_learned_from_the_first_one(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await cluster.lead(cluster.nodes[1])
    await cluster.nodes[0].stop()

    assert (await client.publish("orders", b"1")).position == 1


async def test_while_nobody_leads_a_publish_waits(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await cluster.lead(None)
    publishing = asyncio.create_task(client.publish("orders", b"1"))
    await stays(lambda: not publishing.done())

    await cluster.lead(cluster.nodes[2])

    assert (await publishing).position == 1


async def test_a_publish_never_sent_before_the_deadline_is_refused(client: quorate.Client):
    async with quorate.connect("127.0.0.1:1", timeout=1) as lonely:
        with pytest.raises(quorate.Unreachable, match=r"127\.0\.0\.1:1"):
            await lonely.publish("orders", b"1")


async def test_a_publish_sent_and_not_answered_is_unknown(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    cluster.nodes[0].mute = {wire.PUBLISH}

    with pytest.raises(quorate.OutcomeUnknown):
        await client.publish("orders", b"1", timeout=1)
    cluster.nodes[0].mute = set()
    cluster.nodes[0].cut()
    await client.publish("orders", b"2")

    assert list(cluster.queue("orders").bodies.values()) == [b"1", b"2"]


async def test_each_caller_of_a_shared_frame_has_its_own_deadline(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    await client.publish("orders", b"connects")
    cluster.nodes[0].mute = {wire.PUBLISH}
    patient = asyncio.create_task(client.publish("orders", b"1", timeout=60))
    given_up = asyncio.create_task(client.publish("orders", b"2"))
    hasty = asyncio.create_task(client.publish("orders", b"3", timeout=0.2))

    with pytest.raises(quorate.OutcomeUnknown):
        await hasty
    given_up.cancel()
    await asyncio.wait({given_up})
    assert given_up.cancelled()
    assert not patient.done()
    cluster.nodes[0].mute = set()
    cluster.nodes[0].cut()

    # Its own number had been sent, so the node knows that the frame is stored, and nothing else.
    assert (await patient).duplicate
    assert [frame[0] for frame in cluster.nodes[0].seen].count(wire.PUBLISH) == 3
    assert list(cluster.queue("orders").bodies.values())[1:] == [b"1", b"2", b"3"]


async def test_what_was_never_sent_leaves_its_frame_one_by_one(cluster: FakeCluster):
    cluster.queue("orders")
    async with quorate.connect(cluster.nodes[0].url) as client:
        await cluster.nodes[0].stop()
        jobs = [
            asyncio.create_task(client.publish("orders", b"%d" % n, timeout=0.3 if n % 2 else 60))
            for n in range(6)
        ]
        outcomes = await asyncio.gather(*jobs[1::2], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [quorate.Unreachable] * 3
        jobs[2].cancel()
        await cluster.nodes[0].start()

        assert [(await job).position for job in (jobs[0], jobs[4])] == [1, 2]
    assert list(cluster.queue("orders").bodies.values()) == [b"0", b"4"]


async def test_publishes_in_flight_share_one_timer(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    """A timer a message was half of what it cost."""
    await client.declare("orders")
    await client.publish("orders", b"connects")
    loop, timers = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counted(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        timers.append(when)
        return call_at(when, *args, **more)

    monkeypatch.setattr(loop, "call_at", counted)
    await asyncio.gather(*(client.publish("orders", b"x") for _ in range(500)))

    assert len(timers) < 10  # of the connection's


async def test_a_publish_that_is_cancelled_as_its_time_is_up_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
):
    look = PublisherPipeline._look

    def look_and_cancel(pipeline: PublisherPipeline) -> None:
        look(pipeline)
        publish.cancel()

    monkeypatch.setattr(PublisherPipeline, "_look", look_and_cancel)
    async with quorate.connect("127.0.0.1:9") as client:
        publish = asyncio.create_task(client.publish("orders", b"1", timeout=0.02))
        with pytest.raises(asyncio.CancelledError):
            await publish


async def test_an_unknown_queue_is_refused_with_the_nodes_reason(client: quorate.Client):
    with pytest.raises(quorate.Refused, match="declare nowhere first") as refused:
        await client.publish("nowhere", b"1")

    assert refused.value.code == "no_queue"


async def test_after_a_refusal_the_publisher_goes_on(cluster: FakeCluster, client: quorate.Client):
    """A refused batch leaves its numbers unused, so everything behind it gets new ones."""
    await client.declare("orders")
    node = cluster.nodes[0]
    node.script = lambda frame: (
        [wire.ERROR, frame[1], "too_large", "split it", None]
        if frame[0] == wire.PUBLISH and b"bad" in frame[5]
        else None
    )
    for publisher in (client.publisher("orders"), client.publisher("orders", name="shop")):
        jobs = [publisher.publish_many([b"%d" % n], batch=1) for n in range(3)]
        jobs.append(publisher.publish_many([b"bad"]))
        jobs += [publisher.publish_many([b"%d" % n], batch=1) for n in range(3, 6)]

        outcomes = await asyncio.gather(*jobs, return_exceptions=True)

        assert [type(outcome) for outcome in outcomes] == (
            [quorate.Confirmed] * 3 + [quorate.Refused] + [quorate.Confirmed] * 3
        )
    stored = list(cluster.queue("orders").bodies.values())
    assert stored == [b"%d" % n for n in range(6)] * 2


async def test_a_full_queue_refuses_only_what_is_over_the_limit(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    cluster.queue("orders").length_max = 5

    with pytest.raises(quorate.Refused) as refused:
        await client.publish_many("orders", [b"x"] * 8)
    with pytest.raises(quorate.Refused, match="queue_full"):
        await client.publish("orders", b"y")

    assert refused.value.code == "queue_full"
    assert refused.value.confirmed == 5
    assert refused.value.ranges == [(5, 5), (6, 6), (7, 7)]


async def test_a_named_publisher_goes_on_where_it_was(cluster: FakeCluster):
    for _ in range(2):
        async with quorate.connect(cluster.urls) as client:
            await client.declare("orders")
            publisher = client.publisher("orders", name="shop")
            assert not (await publisher.publish(b"1")).duplicate
            assert (await publisher.publish_many([b"2", b"3"], batch=1)).stored == 2

    assert list(cluster.queue("orders").bodies.values()) == [b"1", b"2", b"3"] * 2


async def test_two_programs_that_share_a_name_lose_nothing(cluster: FakeCluster):
    """They should not, but a number that another one used is no confirm."""
    async with quorate.connect(cluster.urls) as one, quorate.connect(cluster.urls) as other:
        await one.declare("orders")
        mine = one.publisher("orders", name="shop")
        yours = other.publisher("orders", name="shop")
        for publisher, body in ((mine, b"1"), (yours, b"2"), (mine, b"3"), (yours, b"4")):
            assert not (await publisher.publish(body)).duplicate

    assert list(cluster.queue("orders").bodies.values()) == [b"1", b"2", b"3", b"4"]


async def test_a_given_number_is_taken_for_what_it_is(cluster: FakeCluster, client: quorate.Client):
    """A program that knows its numbers may repeat a message after a crash: it is stored once."""
    await client.declare("orders")
    await client.publisher("orders", name="shop").publish_many([b"1", b"2"])
    again = await client.publisher("orders", name="shop", next_seqno=2).publish(b"2")

    assert again.duplicate
    assert len(cluster.queue("orders").bodies) == 2


async def test_a_given_number_that_the_queue_does_not_expect_is_refused(
    cluster: FakeCluster, client: quorate.Client
):
    """Another one would be stored twice when the program repeats it under its own."""
    await client.declare("orders")
    publisher = client.publisher("orders", name="shop", next_seqno=7)

    for _ in range(2):
        with pytest.raises(quorate.Refused, match="out_of_sequence") as refused:
            await publisher.publish_many([b"1", b"2"], batch=1)
        assert (refused.value.detail, refused.value.confirmed) == (1, 0)

    assert not cluster.queue("orders").bodies
    assert publisher.unconfirmed_bytes == 0


async def test_a_queue_made_anew_does_not_stop_its_publisher(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    publisher = client.publisher("orders", name="shop")
    generated = client.publisher("orders")
    for each in (publisher, generated):
        await each.publish(b"old")
    del cluster.queues["orders"]
    await client.declare("orders")

    for each in (publisher, generated):
        await each.publish(b"new")

    assert list(cluster.queue("orders").bodies.values()) == [b"new", b"new"]


async def test_publishing_waits_when_too_much_is_unconfirmed(
    cluster: FakeCluster, client: quorate.Client
):
    await client.declare("orders")
    cluster.nodes[0].mute = {wire.PUBLISH}
    publisher = client.publisher("orders")

    with pytest.raises(quorate.OutcomeUnknown):
        await publisher.publish_many([bytes(100_000)] * 100, timeout=1)

    assert publisher.unconfirmed_bytes <= wire.WINDOW_BYTES_MAX
    sent = [frame for frame in cluster.nodes[0].seen if frame[0] == wire.PUBLISH]
    assert sum(len(body) for frame in sent for body in frame[5]) <= 1 << 20


async def test_bodies_must_be_bytes(client: quorate.Client):
    with pytest.raises(TypeError, match="encode"):
        await client.publish("orders", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="encode"):
        await client.publish_many("orders", [b"fine", "text"])  # type: ignore[list-item]


async def test_attributes_travel_with_each_message(cluster: FakeCluster, client: quorate.Client):
    await client.declare("orders")
    await client.publish("orders", b"1", priority=3, ttl_ms=5, deliver_at_ms=7, dedup_id="x")
    await client.publish_many("orders", [b"1", b"2"], priority=1, dedup_ids=["a", "b"])

    attrs = [frame[7] for frame in cluster.nodes[0].seen if frame[0] == wire.PUBLISH]
    assert attrs == [[{1: 3, 2: 5, 3: 7, 4: "x"}], [{1: 1, 4: "a"}, {1: 1, 4: "b"}]]


async def test_closing_the_client_leaves_nobody_waiting(cluster: FakeCluster):
    async with quorate.connect(cluster.urls) as client:
        await client.declare("orders")
        cluster.nodes[0].mute = {wire.PUBLISH}
        publishing = asyncio.create_task(client.publish("orders", b"1"))
        while not cluster.queue("orders").bodies:
            await asyncio.sleep(0)

    with pytest.raises(quorate.OutcomeUnknown):
        await publishing


@pytest.mark.parametrize("name", [None, "shop"])
async def test_a_first_frame_refused_on_its_way_is_not_lost_to_the_second(
    cluster: FakeCluster, client: quorate.Client, name: str | None
):
    await client.declare("orders")
    node, turned_away = cluster.nodes[0], []

    def busy(frame: list[Any]) -> list[Any] | None:
        if frame[0] != wire.PUBLISH or not frame[5] or len(turned_away) > 2:
            return None
        turned_away.append(frame)
        return [wire.ERROR, frame[1], "overloaded", "try again", None]

    node.script = busy
    bodies = [b"%d" % number for number in range(50)]
    confirmed = await client.publisher("orders", name).publish_many(bodies, batch=1)

    assert (confirmed.stored, confirmed.duplicates) == (50, 0)
    assert list(cluster.queue("orders").bodies.values()) == bodies


@pytest.mark.parametrize("name", [None, "shop"])
async def test_a_publisher_that_the_queue_forgot_goes_on(
    cluster: FakeCluster, client: quorate.Client, name: str | None
):
    await client.declare("orders")
    publisher = client.publisher("orders", name)
    await publisher.publish(b"1")
    cluster.queue("orders").publishers.clear()

    confirmed = await publisher.publish_many([b"2", b"3", b"4"], batch=1)

    assert (confirmed.stored, confirmed.duplicates) == (3, 0)
    assert list(cluster.queue("orders").bodies.values()) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("name", [None, "shop"])
async def test_what_a_queue_stored_and_then_forgot_is_unknown_and_not_stored_twice(
    cluster: FakeCluster, client: quorate.Client, name: str | None
):
    await client.declare("orders")
    publisher = client.publisher("orders", name)
    await publisher.publish(b"0")
    node, queue = cluster.nodes[0], cluster.queue("orders")
    node.mute = {wire.PUBLISH}
    publishing = asyncio.create_task(publisher.publish_many([b"1", b"2", b"3"], batch=1))
    while len(queue.bodies) < 4:
        await asyncio.sleep(0)
    queue.publishers.clear()
    node.mute = set()
    node.cut()

    with pytest.raises(quorate.OutcomeUnknown) as unknown:
        await publishing
    await publisher.publish(b"4")

    assert unknown.value.ranges == [(0, 0), (1, 1), (2, 2)]
    assert list(queue.bodies.values()) == [b"0", b"1", b"2", b"3", b"4"]


async def test_number_1_is_not_sent_again_after_so_long_that_it_may_be_forgotten(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    """The queue would take it: it cannot know that it had it."""
    await client.declare("orders")
    node, queue = cluster.nodes[0], cluster.queue("orders")
    node.mute = {wire.PUBLISH}
    publishing = asyncio.create_task(client.publish_many("orders", [b"1", b"2"], batch=1))
    while len(queue.bodies) < 2:
        await asyncio.sleep(0)
    monkeypatch.setattr(numbering, "FIRST_AGAIN_S_MAX", -1.0)
    queue.publishers.clear()
    node.mute = set()
    node.cut()

    with pytest.raises(quorate.OutcomeUnknown):
        await publishing
    monkeypatch.undo()
    await client.publish("orders", b"3")

    assert list(queue.bodies.values()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_the_outcomes_are_true(cluster: FakeCluster, seed: int):
    """Confirmed: stored, once, in order. Refused: not stored. Unknown: once or not at all."""
    dice, moves = random.Random(seed), []
    queue = cluster.queue("orders")

    def mishap(frame: list[Any]) -> list[Any] | None:
        roll = dice.random()
        if frame[0] != wire.PUBLISH or not frame[5]:
            return None
        if roll < 0.04:
            return [wire.ERROR, frame[1], "overloaded", "try again", None]
        if roll < 0.06:
            return [wire.ERROR, frame[1], "disk_full", "add space", None]
        if roll < 0.08:
            queue.enqueue(*frame[3:7])
            return [wire.ERROR, frame[1], "unknown", "the leader changed", None]
        if roll < 0.10:
            asyncio.get_running_loop().call_soon(dice.choice(cluster.nodes).cut)
        if roll < 0.12:
            moves.append(asyncio.ensure_future(cluster.lead(dice.choice(cluster.nodes))))
        return None

    for node in cluster.nodes:
        node.script = mishap
    outcomes: dict[bytes, type] = {}

    async def publish(publisher: quorate.Publisher, body: bytes) -> None:
        try:
            outcomes[body] = type(await publisher.publish(body))
        except quorate.QuorateError as error:
            outcomes[body] = type(error)

    async with quorate.connect(cluster.urls, timeout=60) as client:
        publishers = [client.publisher("orders", name) for name in ("shop", None)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(300):
                for which, publisher in enumerate(publishers):
                    tasks.create_task(publish(publisher, b"%d:%d" % (which, number)))
                    if dice.random() < 0.05 and not publisher.unconfirmed_bytes:
                        queue.publishers.pop(publisher.name, None)  # it was idle for long
                if dice.random() < 0.3:
                    await asyncio.sleep(0.001)
        sizes = [publisher.unconfirmed_bytes for publisher in publishers]
        for node in cluster.nodes:
            node.script = None
        for which, publisher in enumerate(publishers):
            await publisher.publish(b"%d:last" % which)

    stored = list(queue.bodies.values())
    assert sizes == [0, 0]
    assert len(stored) == len(set(stored))
    confirmed = [body for body in outcomes if outcomes[body] is quorate.Published]
    assert set(confirmed) <= set(stored)
    assert not {b for b in outcomes if outcomes[b] is quorate.Refused} & set(stored)
    for which in range(2):
        head = b"%d:" % which
        order = [int(body[2:]) for body in stored if body in set(confirmed) and body[:2] == head]
        assert order == sorted(order)


async def test_what_the_node_lost_track_of_is_sent_again(
    cluster: FakeCluster, client: quorate.Client
):
    """An outcome that is unknown to the node is no refusal: it may be stored."""
    await client.declare("orders")
    node, queue, lost = cluster.nodes[0], cluster.queue("orders"), []

    def losing(frame: list[Any]) -> list[Any] | None:
        if frame[0] != wire.PUBLISH or lost:
            return None
        lost.append(queue.enqueue(*frame[3:7]))
        return [wire.ERROR, frame[1], "unknown", "the leader changed", None]

    node.script = losing

    assert await client.publish("orders", b"1") == quorate.Published(None, True)
    assert list(queue.bodies.values()) == [b"1"]


async def test_callers_that_wait_for_room_go_first_come_first_served(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    """Who was just confirmed and publishes again must not pass those who wait already."""
    monkeypatch.setattr(wire, "WINDOW_BYTES_MAX", 10)
    await client.declare("orders")
    publisher = client.publisher("orders")
    confirmed: list[int] = []

    async def lane() -> None:
        for turn in range(4):
            await publisher.publish(b"five!")
            confirmed.append(turn)

    await asyncio.gather(*(lane() for _ in range(7)))

    assert confirmed == sorted(confirmed)


async def test_a_caller_that_gives_up_while_it_waits_for_room_leaves_it_to_the_next(
    cluster: FakeCluster, client: quorate.Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "WINDOW_BYTES_MAX", 5)
    await client.declare("orders")
    publisher = client.publisher("orders")
    publishing = [asyncio.create_task(publisher.publish(b"five!")) for _ in range(6)]
    confirms = asyncio.as_completed(publishing)
    await next(confirms)

    for gives_up in publishing[1:4]:
        gives_up.cancel()
    outcomes = await asyncio.gather(*publishing, return_exceptions=True)

    assert all(isinstance(outcome, quorate.Published) for outcome in outcomes[4:])
    assert (await publisher.publish(b"again")).position is not None
