"""The native protocol against real nodes on loopback: one node, and three."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cluster.groups.outcome import Done, refused
from cluster.machine.commands import Command, DetachSession
from cluster.types import GroupId
from tests.node.nodes import Client, Nodes, until


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        yield nodes


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        yield nodes


async def test_what_is_published_is_confirmed_delivered_and_settled(one: Nodes):
    async with Client(one.url("n1")) as client:
        assert await client.publish("orders", b"a", b"b") == [11, [[1, 1, 2, 0, []]]]

        _, _, consumer, active = await client.ask(20, 2, "orders", {"tag": "t"})
        assert active is True
        assert await client.deliveries(2) == [(1, b"a"), (2, b"b")]

        assert await client.ask(30, 3, "orders", consumer, [[1, 2]]) == [3, 3, 2]
        assert (await client.ask(54, 4, "orders"))[2]["messages"] == 0


async def test_one_confirm_frame_tells_of_many_publishes(one: Nodes):
    async with Client(one.url("n1")) as client:
        for request in range(1, 51):
            await client.send(10, request, "orders", "p", request, [b"x"], None, None)
        confirmed: list[int] = []
        frames = 0
        while len(confirmed) < 50:
            frame = await client.expect(11)
            frames += 1
            confirmed += [confirm[0] for confirm in frame[1]]

    assert confirmed == list(range(1, 51))
    assert frames < 50


async def test_a_publish_repeated_under_its_number_is_a_duplicate(one: Nodes):
    async with Client(one.url("n1")) as client:
        first = await client.ask(10, 1, "orders", "p", 1, [b"a", b"b"], None, None)
        again = await client.ask(10, 2, "orders", "p", 1, [b"a", b"b"], None, None)

    assert first == [11, [[1, 1, 2, 0, []]]]
    assert again == [11, [[2, 0, 0, 2, []]]]


async def test_a_session_that_comes_back_gets_only_what_it_lacks(one: Nodes):
    options = {"session": "s", "resume_ms": 60_000}
    async with Client(one.url("n1"), **options) as client:
        await client.publish("orders", b"a", b"b", b"c")
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t"})
        _, _, _, ((first, token, *_),) = await client.expect(24)

    async with Client(one.url("n1"), **options) as client:
        assert client.welcome[2]["resumed"] is True
        held = {"tag": "t", "held": [[first, first + 1, token]]}
        again = await client.ask(20, 1, "orders", held)

        assert again[2] == consumer
        assert await client.deliveries(1) == [(3, b"c")]
        assert await client.ask(30, 2, "orders", consumer, [[1, 3]]) == [3, 2, 3]


async def test_a_session_that_is_back_is_not_ended_by_what_waited_for_a_leader(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """Its connection was lost while nobody led, and the next leader heard first that it is back."""
    retries, looks = one.one.cluster.retries, list[Any]()
    options = {"session": "s", "resume_ms": 60_000}
    with monkeypatch.context() as patch:
        _nobody_leads_when_a_session_is_detached(one, patch)
        patch.setattr(retries, "_look_later", lambda *about: looks.append(about))
        async with Client(one.url("n1"), **options) as client:
            await client.ask(20, 2, "orders", {"tag": "t"})
        await until(lambda: looks)
    async with Client(one.url("n1"), **options) as client, Client(one.url("n1")) as other:
        await client.ask(20, 2, "orders", {"tag": "t"})
        ((group, queue, _),) = looks
        retries._look(group, queue)
        await other.publish("orders", b"a")

        assert await client.deliveries(1) == [(1, b"a")]


async def test_a_newer_connection_takes_the_session_over(one: Nodes):
    url = one.url("n1")
    async with Client(url, session="s") as older, Client(url, session="s"):
        assert await older.closed() == 4009


async def test_what_a_lost_connection_held_is_delivered_to_another(one: Nodes):
    async with Client(one.url("n1")) as first:
        await first.publish("orders", b"a")
        await first.ask(20, 2, "orders", {"tag": "t"})
        await first.deliveries(1)
    async with Client(one.url("n1")) as second:
        await second.ask(20, 1, "orders", {"tag": "t"})
        _, _, _, ((position, _, _, acquired, bodies, _, _),) = await second.expect(24)

    assert (position, acquired, bodies) == (1, 1, [b"a"])


async def test_a_settle_or_a_return_that_is_repeated_leaves_a_later_delivery_alone(one: Nodes):
    async with Client(one.url("n1")) as client:
        await client.publish("orders", b"a")
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t"})
        _, _, _, ((_, token, *_),) = await client.expect(24)
        returned = "orders", consumer, [[1, 1]], True, None, token
        assert await client.ask(31, 3, *returned) == [3, 3, 1]
        _, _, _, ((_, later, failed, *_),) = await client.expect(24)
        assert failed == 1

        assert (await client.ask(31, 4, *returned))[2] == "unknown_delivery"
        assert (await client.ask(30, 5, "orders", consumer, [[1, 1]], token))[4] == 1
        assert (await client.ask(32, 6, "orders", consumer, [[1, 1]], token))[4] == 1
        assert await client.ask(30, 7, "orders", consumer, [[1, 1]], later) == [3, 7, 1]


async def test_who_has_no_session_there_can_still_cancel_a_consumer_and_give_back(three: Nodes):
    """Through the leader, whatever node the session is at; and again, when the answer was lost."""
    leader = await three.leader("orders")
    async with Client(three.url(leader), session="s") as client, Client(three.url(leader)) as other:
        await client.publish("orders", b"a", b"b")
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t"})
        await client.deliveries(2)

        assert await other.ask(22, 1, "orders", consumer, True) == [3, 1, None]
        assert (await other.ask(22, 2, "orders", consumer, True))[2] == "no_consumer"
        assert (await other.ask(54, 3, "orders"))[2]["unsettled"] == 0


async def test_what_a_lost_connection_held_returns_though_its_session_was_back_and_left_again(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """The group had no leader while the connection was lost, and was not used by the next one."""
    cluster = one.one.cluster
    propose = cluster.retries._propose
    unheard = _nobody_leads_when_a_session_is_detached(one, monkeypatch)
    options = {"session": "s", "resume_ms": 50}
    async with Client(one.url("n1"), **options) as client:
        await client.publish("orders", b"a")
        await client.ask(20, 2, "orders", {"tag": "t"})
        await client.deliveries(1)
    await until(lambda: unheard)
    async with Client(one.url("n1"), **options) as client:
        await until(lambda: all(task.get_name() != "end_session" for task in asyncio.all_tasks()))
        monkeypatch.setattr(cluster.retries, "_propose", propose)
        await client.send(8, 1000, "done")
        assert await client.closed() == 1000

    async with Client(one.url("n1")) as other:

        async def returned() -> bool:
            return (await other.ask(54, 1, "orders"))[2]["unsettled"] == 0

        await until(returned)


def _nobody_leads_when_a_session_is_detached(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
) -> list[Command]:
    """What was not heard."""
    retries, unheard = one.one.cluster.retries, list[Command]()
    propose = retries._propose

    def nobody_leads(group: GroupId, command: Command, done: Done) -> None:
        if not isinstance(command, DetachSession):
            propose(group, command, done)
            return
        unheard.append(command)
        done(refused("no_leader", "nobody leads"))

    monkeypatch.setattr(retries, "_propose", nobody_leads)
    return unheard


async def test_goodbye_closes_normally(one: Nodes):
    async with Client(one.url("n1")) as client:
        await client.send(8, 1000, "done")
        assert await client.closed() == 1000


async def test_auto_settle_settles_what_was_sent(one: Nodes):
    async with Client(one.url("n1")) as client:
        await client.publish("orders", b"a", b"b")
        await client.ask(20, 2, "orders", {"auto_settle": True})
        await client.deliveries(2)

        async def empty() -> bool:
            return (await client.ask(54, 3, "orders"))[2]["messages"] == 0

        await until(empty)


async def test_get_purge_pause_and_delete(one: Nodes):
    async with Client(one.url("n1")) as client:
        await client.publish("orders", b"a", b"b", b"c")
        _, _, queue, consumer, ready, chunks = await client.ask(40, 2, "orders", 1, False)
        assert (queue, ready, chunks[0][4]) == ("orders", 2, [b"a"])
        assert await client.ask(31, 3, "orders", consumer, [[1, 1]], False, None) == [3, 3, 1]
        assert (await client.ask(53, 4, "orders", True))[0] == 3
        assert (await client.ask(54, 5, "orders"))[2]["paused"] is True
        assert await client.ask(52, 6, "orders") == [3, 6, 3]
        assert (await client.ask(51, 7, "orders", False, False))[0] == 3
        assert (await client.ask(54, 8, "orders"))[2] == "no_queue"


async def test_what_waits_is_deferred_retimed_fetched_and_withdrawn_by_position(one: Nodes):
    async with Client(one.url("n1")) as client, Client(one.url("n1")) as other:
        await client.publish("orders", b"a", b"b", b"c")
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t"})
        chunks = (await client.expect(24))[3]
        token = chunks[-1][1]
        # a and b are put aside: for ten years, and until they are wanted.
        assert await client.ask(31, 3, "orders", consumer, [[1, 2]], False, 10**11, token) == [
            3,
            3,
            2,
        ]

        # Position 3 is in the hands of the consumer, 9 never was.
        fetched = await other.ask(40, 4, "orders", 3, False, [[1, 1], [3, 3], [9, 9]])
        assert fetched[0] == 41
        assert [(chunk[0], chunk[4]) for chunk in fetched[5]] == [(1, [b"a"])]
        assert (await other.ask(30, 5, "orders", fetched[3], [[1, 1]]))[2] == 1

        refused = await other.ask(34, 6, "orders", [[2, 3]])
        assert refused[:3] == [4, 6, "unknown_delivery"]
        assert refused[4] == 3
        assert await other.ask(35, 7, "orders", [[1, 3]], None, 0) == [3, 7, 1]
        assert await client.deliveries(1) == [(2, b"b")]

        await other.ask(10, 8, "orders", None, 0, [b"d"], None, {3: 19 * 10**11})
        assert await other.ask(35, 9, "orders", [[4, 4]], 2 * 10**12, None) == [3, 9, 1]
        assert await other.ask(34, 10, "orders", [[4, 4]]) == [3, 10, 1]
        assert (await other.ask(34, 11, "orders", [[4, 4]]))[2] == "unknown_delivery"
        for wrong in ([35, 12, "orders", [[4, 4]], 1, 1], [35, 12, "orders", [[4, 4]], None]):
            assert (await other.ask(*wrong))[2] == "bad_argument"
        assert (await client.ask(54, 13, "orders"))[2]["unsettled"] == 2


async def test_what_is_retimed_to_now_is_ready_whatever_the_clock_of_the_node_says(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
):
    """It may be ahead of that of the leader, which says what time it is in the queue."""

    async def ahead() -> int:
        return one.one.cluster.now_ms() + 300_000

    async with Client(one.url("n1")) as client:
        await client.ask(10, 2, "orders", None, 0, [b"a"], None, {3: 19 * 10**11})
        monkeypatch.setattr(one.one.cluster.time, "settled", ahead)
        assert await client.ask(35, 3, "orders", [[1, 1]], None, 0) == [3, 3, 1]
        assert (await client.ask(54, 4, "orders"))[2]["delayed"] == 0


async def test_a_follower_fetches_by_position_for_a_client_that_asks_for_it(three: Nodes):
    info = three.nodes["n1"].broker.locate("/", "orders")
    assert info is not None
    await three.led_by("n2", info.group)
    async with Client(three.url("n1"), forward=True) as client:
        await client.publish("orders", b"a", b"b")
        fetched = await client.ask(40, 4, "orders", 1, False, [[2, 2]])
        assert [(chunk[0], chunk[4]) for chunk in fetched[5]] == [(2, [b"b"])]
        assert (await client.ask(34, 5, "orders", [[1, 1]]))[2] == 1


async def test_credit_bounds_deliveries_and_cancel_ends_them(one: Nodes):
    async with Client(one.url("n1")) as client:
        await client.publish("orders", *[b"x"] * 5)
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"credit": 2})
        assert len(await client.deliveries(2)) == 2
        assert (await client.ask(23, 3, "orders", consumer, 3))[0] == 3
        assert await client.deliveries(1) == [(3, b"x")]
        assert (await client.ask(22, 4, "orders", consumer))[0] == 3
        assert (await client.ask(30, 5, "orders", consumer, [[1, 3]])) == [3, 5, 3]
        about = (await client.ask(54, 6, "orders"))[2]

    assert (about["ready"], about["unsettled"]) == (2, 0)


async def test_large_messages_arrive_whole_and_slow_readers_get_all(one: Nodes):
    bodies = [bytes([number]) * 700_000 for number in range(12)]
    async with Client(one.url("n1")) as client:
        for request, body in enumerate(bodies, 1):
            await client.publish("orders", body, request=request)
        await client.ask(20, 99, "orders", {"credit": 100})

        assert [body for _, body in await client.deliveries(12)] == bodies


async def test_a_follower_redirects_to_the_leader(three: Nodes):
    leader = await three.leader("orders")
    other = next(name for name in three.nodes if name != leader)
    async with Client(three.url(other)) as client:
        for opcode, fields in [
            (10, (None, 0, [b"a"], None, None)),
            (20, ({"tag": "t"},)),
            (40, (1, False)),
            (52, ()),
        ]:
            answer = await client.ask(opcode, 1, "orders", *fields)
            assert answer == [5, 1, "orders", leader, three.url(leader)]
        assert sorted(client.welcome[2]["nodes"]) == ["n1", "n2", "n3"]


async def test_a_follower_forwards_for_a_client_that_asks_for_it(three: Nodes):
    leader = await three.leader("orders")
    other = next(name for name in three.nodes if name != leader)
    async with Client(three.url(other), forward=True) as client:
        assert await client.publish("orders", b"a", b"b") == [11, [[1, 1, 2, 0, []]]]
        _, _, consumer, _ = await client.ask(20, 2, "orders", {"tag": "t", "credit": 10})
        assert await client.deliveries(2) == [(1, b"a"), (2, b"b")]
        assert await client.ask(30, 3, "orders", consumer, [[1, 2]]) == [3, 3, 2]
        await client.publish("orders", b"c", request=4)
        assert await client.deliveries(1) == [(3, b"c")]
        assert (await client.ask(22, 5, "orders", consumer))[0] == 3
        await client.publish("orders", b"d", request=6)
        assert (await client.ask(40, 7, "orders", 1, True))[5][0][4] == [b"d"]
        assert (await client.ask(54, 8, "orders"))[2]["unsettled"] == 1
        assert (await client.ask(54, 9, "nowhere"))[2] == "no_queue"


async def test_a_forwarded_consumer_follows_the_leader(three: Nodes):
    leader = await three.leader("orders")
    other = next(name for name in three.nodes if name != leader)
    async with Client(three.url(other), forward=True) as client:
        await client.ask(20, 1, "orders", {"tag": "t", "credit": 100})
        await client.publish("orders", b"a", request=2)
        assert await client.deliveries(1) == [(1, b"a")]

        await three.stop(leader)
        await until(lambda: three.nodes[other].broker.leader(info(three, other)) != leader)

        async def published() -> bool:
            return (await client.ask(10, 3, "orders", "p", 1, [b"b"], None, None))[0] == 11

        await until(published)
        assert await client.deliveries(1) == [(2, b"b")]


def info(nodes: Nodes, name: str):
    found = nodes.nodes[name].broker.locate("/", "orders")
    assert found is not None
    return found


async def test_a_consumer_is_told_to_move_when_its_leader_hands_over(three: Nodes):
    leader = await three.leader("orders")
    async with Client(three.url(leader), session="s", resume_ms=60_000) as client:
        _, _, consumer, _ = await client.ask(20, 1, "orders", {"tag": "t"})
        await client.publish("orders", b"a", request=2)
        _, _, _, ((first, token, *_),) = await client.expect(24)
        node = three.nodes[leader]
        node.cluster.groups[info(three, leader).group].transfer(None)

        assert (await client.expect(5))[:3] == [5, 0, "orders"]

        await until(lambda: _leader_now(three) not in {None, leader})
        successor = _leader_now(three)
        async with Client(three.url(successor), session="s", resume_ms=60_000) as again:
            held = {"tag": "t", "held": [[first, first, token]]}
            assert (await again.ask(20, 1, "orders", held))[2] == consumer
            assert await again.ask(30, 2, "orders", consumer, [[1, 1]]) == [3, 2, 1]


def _leader_now(nodes: Nodes) -> str | None:
    leaders = {node.broker.leader(info(nodes, name)) for name, node in nodes.nodes.items()}
    return leaders.pop() if len(leaders) == 1 else None
