"""Handlers that are called for each message of a queue, on a real node."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import quorate
from quorate.worker import Retrying
from tests.node.nodes import Nodes, until


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[quorate.Client]:
    async with Nodes(tmp_path) as nodes, quorate.connect(nodes.url("n1")) as client:
        await client.declare("dead")
        await client.declare(
            "jobs",
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
        yield client


async def counts(client: quorate.Client, queue: str) -> tuple[int, int]:
    about = await client.info(queue)
    return about["messages"], about["unsettled"]


async def test_each_message_is_handled_and_settled_some_at_a_time(client: quorate.Client):
    await client.publish_many("jobs", [b"%d" % number for number in range(48)])
    handled: list[bytes] = []
    stop, four = asyncio.Event(), asyncio.Barrier(4)
    at_work = most = 0

    async def handler(delivery: quorate.Delivery) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await four.wait()  # none goes on without three others
        at_work -= 1
        handled.append(delivery.body)
        if len(handled) == 48:
            stop.set()

    async with asyncio.timeout(60):
        await client.work("jobs", handler, concurrency=4, stop=stop)

    assert sorted(handled, key=int) == [b"%d" % number for number in range(48)]
    assert most == 4
    assert await counts(client, "jobs") == (0, 0)


async def test_what_fails_comes_again_and_is_dead_lettered_in_the_end(client: quorate.Client):
    await client.publish_many("jobs", [b"mends", b"never", b"wrong"])
    attempts: Counter[bytes] = Counter()

    async def handler(delivery: quorate.Delivery) -> None:
        attempts[delivery.body] += 1
        if delivery.body == b"wrong":
            raise quorate.Reject("no such kind")
        if delivery.body == b"never" or attempts[delivery.body] < 2:
            raise ValueError(delivery.body)

    working = asyncio.create_task(client.work("jobs", handler, attempts=3, retry_ms=1))

    async def all_ended() -> bool:
        return (await counts(client, "jobs"))[0] == 0 and (await counts(client, "dead"))[0] == 2

    await until(all_ended)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert attempts == {b"mends": 2, b"never": 3, b"wrong": 1}
    assert {each.body for each in await client.get("dead", 2)} == {b"never", b"wrong"}


async def test_who_is_stopped_finishes_or_gives_back(client: quorate.Client):
    await client.publish_many("jobs", [b"quick", b"slow"])
    started, release = asyncio.Semaphore(0), asyncio.Event()

    async def handler(delivery: quorate.Delivery) -> None:
        started.release()
        await (release.wait() if delivery.body == b"quick" else asyncio.Event().wait())

    working = asyncio.create_task(client.work("jobs", handler, grace_s=0.2))
    async with asyncio.timeout(60):
        await started.acquire()
        await started.acquire()
        working.cancel()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await working

        async def given_back() -> bool:
            return await counts(client, "jobs") == (1, 0)

        await until(given_back)
    (left,) = await client.get("jobs")
    assert left.body == b"slow"
    assert left.delivery_count == 0  # nothing was wrong with it


async def test_a_message_is_held_on_to_for_longer_than_its_lease(client: quorate.Client):
    await client.publish("jobs", b"long")
    calls, stop = 0, asyncio.Event()

    async def handler(_: quorate.Delivery) -> None:
        nonlocal calls
        calls += 1
        await asyncio.sleep(2.5)
        stop.set()

    async with asyncio.timeout(60):
        await client.work("jobs", handler, lease_ms=1_000, stop=stop)

    assert calls == 1
    assert await counts(client, "jobs") == (0, 0)


async def test_a_plain_function_runs_in_a_thread(client: quorate.Client):
    await client.publish_many("jobs", [b"1", b"2"])
    both = threading.Barrier(2, timeout=60)
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def handler(_: quorate.Delivery) -> None:
        both.wait()  # neither is alone
        loop.call_soon_threadsafe(stop.set)

    async with asyncio.timeout(60):
        await client.work("jobs", handler, stop=stop)

    assert await counts(client, "jobs") == (0, 0)


async def test_a_queue_that_is_deleted_ends_it(client: quorate.Client):
    async def handler(_: quorate.Delivery) -> None: ...

    working = asyncio.create_task(client.work("jobs", handler))

    async def attached() -> bool:
        return bool((await client.info("jobs"))["consumers"])

    await until(attached)
    await client.delete("jobs")
    with pytest.raises(quorate.ConsumerEnded):
        await working


@pytest.mark.parametrize(
    ("failures", "waits"), [(1, 100), (2, 200), (3, 400), (4, 500), (5, None), (900, None)]
)
def test_it_waits_longer_each_time(failures: int, waits: int | None):
    assert Retrying(5, 100, 500).after(failures) == waits


async def test_handlers_begin_in_the_order_of_deliveries_and_one_at_a_time_if_told(
    client: quorate.Client,
):
    """A38: whatever the concurrency is."""
    for concurrency in (1, 4):
        await client.publish_many("jobs", [b"%d" % number for number in range(20)])
        begun: list[bytes] = []
        stop = asyncio.Event()
        at_work = most = 0

        async def handler(delivery: quorate.Delivery) -> None:
            nonlocal at_work, most
            begun.append(delivery.body)  # noqa: B023 -- called before the next round
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0)
            at_work -= 1
            if len(begun) == 20:  # noqa: B023
                stop.set()  # noqa: B023

        async with asyncio.timeout(60):
            await client.work("jobs", handler, concurrency=concurrency, stop=stop)
        assert begun == [b"%d" % number for number in range(20)]
        assert most <= concurrency


async def test_who_cannot_work_gives_back_and_is_seen_to_be_gone(client: quorate.Client):
    """A37."""
    await client.publish_many("jobs", [b"1", b"2"])

    async def handler(delivery: quorate.Delivery) -> None:
        raise quorate.CannotWork("the database is gone")

    async with asyncio.timeout(60):
        with pytest.raises(quorate.CannotWork, match="database is gone"):
            await client.work("jobs", handler)

        async def given_back() -> bool:
            return await counts(client, "jobs") == (2, 0)

        await until(given_back)
    assert (await client.info("jobs"))["consumers"] == []
    (first, _) = await client.get("jobs", 2)
    assert first.delivery_count == 0


async def test_failures_in_a_row_end_it_and_a_success_in_between_does_not(client: quorate.Client):
    bodies = [b"bad", b"good", b"bad", b"bad", b"good"]
    await client.publish_many("jobs", bodies)

    async def handler(delivery: quorate.Delivery) -> None:
        if delivery.body == b"bad":
            raise ValueError(delivery.position)

    async with asyncio.timeout(60):
        with pytest.raises(ExceptionGroup, match="2 handlers in a row failed") as failed:
            await client.work(
                "jobs", handler, concurrency=1, retry_ms=3_600_000, retry_ms_max=3_600_000,
                failures_max=2,
            )  # fmt: skip
    assert [error.args for error in failed.value.exceptions] == [(3,), (4,)]
