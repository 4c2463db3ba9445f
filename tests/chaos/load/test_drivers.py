"""Both doors against three real nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count

import pytest
import pytest_asyncio

from chaos.load.driver import CALL_S_MAX, Answer, Consumption, Driver, Protocols, Publish, Received
from chaos.load.drivers import Drivers
from quorate.local import LocalCluster
from tests.testkit.waiting import until

pytestmark = [
    pytest.mark.live,
    pytest.mark.xdist_group("chaos-doors"),
    pytest.mark.asyncio(loop_scope="module"),
]

_numbers = count()


@pytest_asyncio.fixture(loop_scope="module", params=["native", "amqp"])
async def driver(drivers: Drivers, request: pytest.FixtureRequest) -> AsyncIterator[Driver]:
    protocol: Protocols = request.param
    driver = drivers.open(f"test-{next(_numbers)}", protocol)
    yield driver
    await driver.close()


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_numbers)}"


def ids(first: int, end: int) -> list[str]:
    return [f"p:{number}" for number in range(first, end)]


async def consuming(driver: Driver, queue: str, prefetch: int = 100) -> Consumption:
    consumption = await driver.consume(queue, prefetch=prefetch)
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


async def empty(driver: Driver, queue: str, length: int = 0) -> None:
    async def reached() -> bool:
        answer = await driver.length(queue)
        assert answer.type != "refused", answer
        return answer.value == length

    await until(reached)


async def test_what_is_published_is_counted_handed_out_and_settled(driver: Driver, queue: str):
    assert (await driver.declare(queue, {})).ok
    published = await driver.publish(Publish(queue, ids(0, 20)))
    assert published.ok
    assert published.node is not None
    assert (await driver.length(queue)).value == 20

    consumption = await consuming(driver, queue)
    taken = await take(consumption, 20)
    settled = [await consumption.settle(received) for received in taken]

    assert names(taken) == ids(0, 20)
    assert {received.redelivered for received in taken} == {False}
    assert {received.delivery_count for received in taken} == {0}
    assert {each.type for each in settled} == {"ok" if driver.protocol == "native" else "unknown"}
    await empty(driver, queue)
    assert (await consumption.close()).ok
    assert (await driver.delete(queue)).ok


async def test_what_is_given_back_comes_again_and_is_dead_lettered_after_its_limit(
    driver: Driver, queue: str
):
    dead = f"{queue}.dead"
    assert (await driver.declare(dead, {})).ok
    arguments = {
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
    }
    assert (await driver.declare(queue, arguments)).ok
    assert (await driver.publish(Publish(queue, ids(0, 2)))).ok
    consumption = await consuming(driver, queue, prefetch=1)

    (first,) = await take(consumption, 1)
    assert (await consumption.discard(first)).type != "refused"
    for expected in (0, 1):
        (again,) = await take(consumption, 1)
        assert (again.messages, again.delivery_count) == (ids(1, 2), expected)
        assert again.redelivered == (expected > 0)
        assert (await consumption.give_back(again, failed=True)).type != "refused"

    buried = await take(await consuming(driver, dead), 2)
    assert names(buried) == ids(0, 2)
    reasons = [received.deaths[0]["reason"] for received in buried for _ in received.messages]
    assert reasons == ["rejected", "delivery_limit"]


async def test_what_a_dropped_client_held_is_handed_out_again_flagged(
    driver: Driver, drivers: Drivers, queue: str
):
    assert (await driver.declare(queue, {})).ok
    assert (await driver.publish(Publish(queue, ids(0, 5)))).ok
    dropped = drivers.open(f"{driver.name}-dropped", driver.protocol)
    held = await take(await consuming(dropped, queue), 5)
    await dropped.drop()

    again = await take(await consuming(driver, queue), 5)

    assert names(again) == ids(0, 5)
    assert {received.redelivered for received in again} == {True}
    assert {received.consumer for received in again}.isdisjoint(each.consumer for each in held)


async def test_exchanges_route_what_is_published_to_them(driver: Driver, queue: str):
    exchange = f"{queue}.exchange"
    publish = Publish("key", ids(0, 1), exchange=exchange)
    assert (await driver.declare(queue, {})).ok
    assert (await driver.publish(publish)).type == "refused"
    assert (await driver.declare_exchange(exchange, "direct")).ok
    assert (await driver.publish(publish)).type == "refused"
    assert (await driver.bind(queue, exchange, "key")).ok
    assert (await driver.publish(publish)).ok
    assert (await driver.length(queue)).value == 1
    assert (await driver.unbind(queue, exchange, "key")).ok
    assert (await driver.publish(publish)).type == "refused"
    assert (await driver.delete_exchange(exchange)).ok
    assert (await driver.length(queue)).value == 1


async def test_a_publish_is_not_refused_because_another_one_was(drivers: Drivers, queue: str):
    """The node closes the channel that both are on."""
    driver = drivers.open(f"test-{next(_numbers)}", "amqp")
    assert (await driver.declare(queue, {})).ok
    for number in range(20):
        good, bad = await asyncio.gather(
            driver.publish(Publish(queue, [f"p:{number}"])),
            driver.publish(Publish("anything", [f"x:{number}"], exchange="not-there")),
        )
        assert good.type in ("ok", "unknown"), good
        assert bad.type in ("refused", "unknown"), bad
        alone = await driver.publish(Publish("anything", ["y:0"], exchange="not-there"))
        assert alone.type == "refused"
    await driver.close()


async def test_limits_and_lifetimes_of_messages(driver: Driver, queue: str):
    assert (await driver.declare(queue, {"x-max-length": 2, "x-overflow": "reject-publish"})).ok
    partly = await driver.publish(Publish(queue, ids(0, 3)))
    assert (partly.type, list(partly.refused)) == ("ok", [(2, 2)])
    assert (await driver.publish(Publish(queue, ids(3, 4)))).type == "refused"
    other = f"{queue}.short"
    assert (await driver.declare(other, {})).ok
    assert (await driver.publish(Publish(other, ids(0, 1), ttl_ms=1))).ok
    await empty(driver, other)
    assert (await driver.declare(other, {"x-max-length": 5})).type == "refused"
    assert (await driver.length("nowhere")).type == "refused"


async def test_delays_are_of_the_native_protocol(driver: Driver, queue: str):
    assert (await driver.declare(queue, {})).ok
    answer = await driver.publish(Publish(queue, ids(0, 1), delay_ms=50))
    if driver.protocol == "amqp":
        assert answer.type == "refused"
    else:
        assert answer.ok
        assert names(await take(await consuming(driver, queue), 1)) == ids(0, 1)


async def test_numbered_messages_are_stored_once_whichever_door_repeats_them(
    driver: Driver, drivers: Drivers, queue: str
):
    assert (await driver.declare(queue, {})).ok
    if driver.protocol == "amqp":
        assert (await driver.numbered("shop", 0, Publish(queue, ids(0, 1)))).type == "refused"
        return
    assert (await driver.numbered("shop", 0, Publish(queue, ids(0, 3)))).ok
    assert (await driver.numbered("shop", 3, Publish(queue, ids(3, 5)))).ok
    other = drivers.open(f"{driver.name}-other", "native")

    assert (await other.numbered("shop", 3, Publish(queue, ids(3, 5)))).ok
    assert (await other.numbered("shop", 5, Publish(queue, ids(5, 6)))).ok
    gap = await driver.numbered("shop", 9, Publish(queue, ids(9, 10)))

    assert gap.type == "refused"
    assert (await driver.length(queue)).value == 6
    await other.close()


async def test_transactions_are_of_amqp(driver: Driver, queue: str):
    other = f"{queue}.other"
    for each in (queue, other):
        assert (await driver.declare(each, {})).ok
    publishes = [Publish(queue, ids(0, 2)), Publish(other, ids(2, 3))]
    answer = await driver.transaction(publishes, [])
    if driver.protocol == "native":
        assert answer.type == "refused"
        return
    assert answer.ok
    assert (await driver.transaction(publishes, [])).ok
    consumption = await consuming(driver, queue)
    held = await take(consumption, 4)
    moved = await driver.transaction([Publish(other, ids(3, 4))], held)

    assert moved.ok
    assert (await driver.length(queue)).value == 0
    assert (await driver.length(other)).value == 3
    assert (await driver.publish(Publish(queue, ids(9, 10)))).ok
    (last,) = await take(consumption, 1)
    assert (await consumption.settle(last)).ok  # its channel is transactional now
    await consumption.close()
    again = await driver.transaction([Publish(other, ids(5, 6))], held)
    assert again.type == "refused"


async def test_calls_of_a_closed_door_are_refused(drivers: Drivers, queue: str):
    for protocol in ("native", "amqp"):
        driver = drivers.open(f"closed-{protocol}", protocol)
        assert (await driver.declare(queue, {})).ok
        await driver.close()
        assert (await driver.publish(Publish(queue, ids(0, 1)))).type == "refused"
        assert isinstance(await driver.consume(queue, prefetch=1), Answer)


async def test_killed_nodes_end_calls_and_raise_nothing(
    cluster: LocalCluster, driver: Driver, drivers: Drivers, queue: str
):
    assert (await driver.declare(queue, {})).ok
    taking = drivers.open(f"{driver.name}-taking", driver.protocol)
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
                answer = await driver.publish(Publish(queue, messages))
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
