"""Both doors against three real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from chaos.load.door import CALL_S_MAX, Answer, Consumption, Door, Protocols, Publish, Received
from chaos.load.doors import Doors
from quorate.local import LocalCluster
from tests.testkit.waiting import until

pytestmark = [
    pytest.mark.live,
    pytest.mark.xdist_group("chaos-doors"),
    pytest.mark.asyncio(loop_scope="module"),
]

_numbers = count()


@pytest_asyncio.fixture(loop_scope="module", params=["native", "amqp"])
async def door(doors: Doors, request: pytest.FixtureRequest) -> AsyncIterator[Door]:
    protocol: Protocols = request.param
    door = doors.open(f"test-{next(_numbers)}", protocol)
    yield door
    await door.close()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


def ids(first: int, end: int) -> list[str]:
    return [f"p:{number}" for number in range(first, end)]


async def consuming(door: Door, queue: str, prefetch: int = 100) -> Consumption:
    consumption = await door.consume(queue, prefetch=prefetch)
    assert not isinstance(consumption, Answer), consumption
    return consumption


async def take(consumption: Consumption, number: int) -> list[Received]:
    taken: list[Received] = []
    async with asyncio.timeout(60):
        while sum(len(received.messages) for received in taken) < number:
            received = await consumption.next()
            assert received is not None
            taken.append(received)
    return taken


def names(taken: list[Received]) -> list[str]:
    return [message for received in taken for message in received.messages]


async def empty(door: Door, queue: str, length: int = 0) -> None:
    async def reached() -> bool:
        answer = await door.length(queue)
        assert answer.type != "refused", answer
        return answer.value == length

    await until(reached)


async def test_what_is_published_is_counted_handed_out_and_settled(door: Door, queue: str):
    assert (await door.declare(queue, {})).ok
    published = await door.publish(Publish(queue, ids(0, 20)))
    assert published.ok
    assert published.node is not None
    assert (await door.length(queue)).value == 20

    consumption = await consuming(door, queue)
    taken = await take(consumption, 20)
    settled = [await consumption.settle(received) for received in taken]

    assert names(taken) == ids(0, 20)
    assert {received.redelivered for received in taken} == {False}
    assert {received.delivery_count for received in taken} == {0}
    assert {each.type for each in settled} == {"ok" if door.protocol == "native" else "unknown"}
    await empty(door, queue)
    assert (await consumption.close()).ok
    assert (await door.delete(queue)).ok


async def test_what_is_given_back_comes_again_and_is_dead_lettered_after_its_limit(
    door: Door, queue: str
):
    dead = f"{queue}.dead"
    assert (await door.declare(dead, {})).ok
    arguments = {
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    assert (await door.declare(queue, arguments)).ok
    assert (await door.publish(Publish(queue, ids(0, 2)))).ok
    consumption = await consuming(door, queue, prefetch=1)

    (first,) = await take(consumption, 1)
    assert (await consumption.discard(first)).type != "refused"
    for expected in (0, 1):
        (again,) = await take(consumption, 1)
        assert (again.messages, again.delivery_count) == (ids(1, 2), expected)
        assert again.redelivered == (expected > 0)
        assert (await consumption.give_back(again, failed=True)).type != "refused"

    buried = await take(await consuming(door, dead), 2)
    assert names(buried) == ids(0, 2)
    reasons = [received.deaths[0]["reason"] for received in buried for _ in received.messages]
    assert reasons == ["rejected", "delivery_limit"]


async def test_what_a_dropped_client_held_is_handed_out_again_flagged(
    door: Door, doors: Doors, queue: str
):
    assert (await door.declare(queue, {})).ok
    assert (await door.publish(Publish(queue, ids(0, 5)))).ok
    dropped = doors.open(f"{door.name}-dropped", door.protocol)
    held = await take(await consuming(dropped, queue), 5)
    await dropped.drop()

    again = await take(await consuming(door, queue), 5)

    assert names(again) == ids(0, 5)
    assert {received.redelivered for received in again} == {True}
    assert {received.consumer for received in again}.isdisjoint(each.consumer for each in held)


async def test_exchanges_route_what_is_published_to_them(door: Door, queue: str):
    exchange = f"{queue}.exchange"
    publish = Publish("key", ids(0, 1), exchange=exchange)
    assert (await door.declare(queue, {})).ok
    assert (await door.publish(publish)).type == "refused"
    assert (await door.declare_exchange(exchange, "direct")).ok
    assert (await door.publish(publish)).type == "refused"
    assert (await door.bind(queue, exchange, "key")).ok
    assert (await door.publish(publish)).ok
    assert (await door.length(queue)).value == 1
    assert (await door.unbind(queue, exchange, "key")).ok
    assert (await door.publish(publish)).type == "refused"
    assert (await door.delete_exchange(exchange)).ok
    assert (await door.length(queue)).value == 1


async def test_a_publish_is_not_refused_because_another_one_was(doors: Doors, queue: str):
    """The node closes the channel that both are on."""
    door = doors.open(f"test-{next(_numbers)}", "amqp")
    assert (await door.declare(queue, {})).ok
    for number in range(20):
        good, bad = await asyncio.gather(
            door.publish(Publish(queue, [f"p:{number}"])),
            door.publish(Publish("anything", [f"x:{number}"], exchange="not-there")),
        )
        assert good.type in ("ok", "unknown"), good
        assert bad.type in ("refused", "unknown"), bad
        alone = await door.publish(Publish("anything", ["y:0"], exchange="not-there"))
        assert alone.type == "refused"
    await door.close()


async def test_limits_and_lifetimes_of_messages(door: Door, queue: str):
    assert (await door.declare(queue, {"x-max-length": 2, "x-overflow": "reject-publish"})).ok
    partly = await door.publish(Publish(queue, ids(0, 3)))
    assert (partly.type, list(partly.refused)) == ("ok", [(2, 2)])
    assert (await door.publish(Publish(queue, ids(3, 4)))).type == "refused"
    other = f"{queue}.short"
    assert (await door.declare(other, {})).ok
    assert (await door.publish(Publish(other, ids(0, 1), ttl_ms=1))).ok
    await empty(door, other)
    assert (await door.declare(other, {"x-max-length": 5})).type == "refused"
    assert (await door.length("nowhere")).type == "refused"


async def test_delays_are_of_the_native_protocol(door: Door, queue: str):
    assert (await door.declare(queue, {})).ok
    answer = await door.publish(Publish(queue, ids(0, 1), delay_ms=50))
    if door.protocol == "amqp":
        assert answer.type == "refused"
    else:
        assert answer.ok
        assert names(await take(await consuming(door, queue), 1)) == ids(0, 1)


async def test_numbered_messages_are_stored_once_whichever_door_repeats_them(
    door: Door, doors: Doors, queue: str
):
    assert (await door.declare(queue, {})).ok
    if door.protocol == "amqp":
        assert (await door.numbered("shop", 0, Publish(queue, ids(0, 1)))).type == "refused"
        return
    assert (await door.numbered("shop", 0, Publish(queue, ids(0, 3)))).ok
    assert (await door.numbered("shop", 3, Publish(queue, ids(3, 5)))).ok
    other = doors.open(f"{door.name}-other", "native")

    assert (await other.numbered("shop", 3, Publish(queue, ids(3, 5)))).ok
    assert (await other.numbered("shop", 5, Publish(queue, ids(5, 6)))).ok
    gap = await door.numbered("shop", 9, Publish(queue, ids(9, 10)))

    assert gap.type == "refused"
    assert (await door.length(queue)).value == 6
    await other.close()


async def test_transactions_are_of_amqp(door: Door, queue: str):
    other = f"{queue}.other"
    for each in (queue, other):
        assert (await door.declare(each, {})).ok
    publishes = [Publish(queue, ids(0, 2)), Publish(other, ids(2, 3))]
    answer = await door.transaction(publishes, [])
    if door.protocol == "native":
        assert answer.type == "refused"
        return
    assert answer.ok
    assert (await door.transaction(publishes, [])).ok
    consumption = await consuming(door, queue)
    held = await take(consumption, 4)
    moved = await door.transaction([Publish(other, ids(3, 4))], held)

    assert moved.ok
    assert (await door.length(queue)).value == 0
    assert (await door.length(other)).value == 3
    assert (await door.publish(Publish(queue, ids(9, 10)))).ok
    (last,) = await take(consumption, 1)
    assert (await consumption.settle(last)).ok  # its channel is transactional now
    await consumption.close()
    again = await door.transaction([Publish(other, ids(5, 6))], held)
    assert again.type == "refused"


async def test_calls_of_a_closed_door_are_refused(doors: Doors, queue: str):
    for protocol in ("native", "amqp"):
        door = doors.open(f"closed-{protocol}", protocol)
        assert (await door.declare(queue, {})).ok
        await door.close()
        assert (await door.publish(Publish(queue, ids(0, 1)))).type == "refused"
        assert isinstance(await door.consume(queue, prefetch=1), Answer)


async def test_killed_nodes_end_calls_and_raise_nothing(
    cluster: LocalCluster, door: Door, doors: Doors, queue: str
):
    assert (await door.declare(queue, {})).ok
    taking = doors.open(f"{door.name}-taking", door.protocol)
    stopping = asyncio.Event()
    confirmed: set[str] = set()
    taken: set[str] = set()
    kinds: dict[str, int] = {}

    async def publish() -> None:
        number = 0
        while not stopping.is_set():
            messages = ids(number, number + 5)
            number += 5
            async with asyncio.timeout(2 * CALL_S_MAX):
                answer = await door.publish(Publish(queue, messages))
            kinds[answer.type] = kinds.get(answer.type, 0) + 1
            if answer.ok:
                confirmed.update(messages)
            await asyncio.sleep(0.01)

    async def consume() -> None:
        while True:
            consumption = await taking.consume(queue, prefetch=50)
            if isinstance(consumption, Answer):
                continue
            while received := await consumption.next():
                taken.update(received.messages)
                async with asyncio.timeout(2 * CALL_S_MAX):
                    await consumption.settle(received)

    async def more() -> None:
        before = len(confirmed)
        await until(lambda: len(confirmed) >= before + 50)

    consuming = asyncio.create_task(consume())
    publishing = asyncio.create_task(publish())
    try:
        for node in cluster.nodes:
            await more()
            await cluster.kill(node)
            await more()
            await cluster.start(node)
            await cluster.until_ready()
        stopping.set()
        await publishing
        await until(lambda: confirmed <= taken)
    finally:
        for task in (publishing, consuming):
            task.cancel()
        await asyncio.gather(publishing, consuming, return_exceptions=True)
        await taking.close()
    assert kinds["ok"] > 0
