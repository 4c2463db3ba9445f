"""What piles up: why it does, by a dozen troubles made on three nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import quorate
from tests.node.management.api import Api, api_of
from tests.node.nodes import Client, Nodes, until


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        yield nodes


class Why:
    """Asks one node."""

    def __init__(self, api: Api) -> None:
        self.api = api

    async def codes(self, queue: str) -> list[str]:
        found = await self.api.get(f"queues/%2F/{queue}/why")
        return [each["code"] for each in found["findings"]]

    async def sentence(self, queue: str) -> str:
        [finding] = (await self.api.get(f"queues/%2F/{queue}/why"))["findings"]
        return finding["sentence"]

    async def becomes(self, queue: str, *codes: str) -> None:
        """Sooner or later exactly these are named."""

        async def named() -> bool:
            return await self.codes(queue) == list(codes)

        try:
            await until(named)
        except TimeoutError:
            assert await self.codes(queue) == list(codes), queue


async def test_each_trouble_is_named_and_nothing_else(nodes: Nodes):
    api = api_of(nodes.nodes["n1"])
    why = Why(api)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(quorate.connect([nodes.url("n2")]))

        # 1. Nobody is subscribed; and a queue that is all right.
        await api.queue("lonely")
        await api.publish("lonely", "m")
        await why.becomes("lonely", "no_consumer")
        await api.queue("fine")
        await api.publish("fine", "m")
        assert await api.take("fine")
        await why.becomes("fine")

        # 2. Every consumer has all that its prefetch allows.
        await api.queue("slow")
        await stack.enter_async_context(client.consume("slow", credit=1, tag="busy"))
        for body in "ab":
            await api.publish("slow", body)
        await why.becomes("slow", "prefetch_full")
        assert "busy" in await why.sentence("slow")

        # 3. The last consumer was ended for not settling in time.
        await api.queue("hung", consumer_timeout=100)
        async with Client(nodes.url("n1"), forward=True) as hung:
            await hung.send(20, 1, "hung", {"tag": "t", "credit": 1})
            await hung.expect(21)
            await api.publish("hung", "m")
            await why.becomes("hung", "consumer_timed_out")

        # 4. The single active consumer is full, others wait their turn.
        await api.queue("single", single_active_consumer=True)
        for tag in ("first", "second"):
            await stack.enter_async_context(client.consume("single", credit=1, tag=tag))
        for body in "ab":
            await api.publish("single", body)
        await why.becomes("single", "single_active_full")
        assert "first" in await why.sentence("single")

        # 5. Paused.
        await api.queue("paused")
        await api.publish("paused", "m")
        await client.pause("paused")
        await why.becomes("paused", "paused")

        # 6. All that waits is delayed.
        await api.queue("later")
        await api.publish("later", "m", headers={"x-delay": 3_600_000})
        await why.becomes("later", "delayed")

        # 7. Full, and publishes are refused: it takes nothing at all.
        await api.queue("full", max_length=0, overflow="reject-publish")
        await why.becomes("full", "queue_full", "no_binding")

        # 8. Its dead-letter exchange does not exist.
        await api.queue("orphan", dead_letter_exchange="nowhere")
        await api.publish("orphan", "m")
        assert await api.take("orphan", ackmode="reject_requeue_false")
        await why.becomes("orphan", "dead_letter_target_missing")
        assert "are dropped" in await why.sentence("orphan")
        safe = {"dead_letter_strategy": "at-least-once", "overflow": "reject-publish"}
        await api.queue("keeper", dead_letter_exchange="nowhere", **safe)
        await api.publish("keeper", "m")
        assert await api.take("keeper", ackmode="reject_requeue_false")
        await why.becomes("keeper", "dead_letter_target_missing")
        assert "1 dead letter waits" in await why.sentence("keeper")

        # 9. Where its dead letters go is full.
        await api.queue("grave", max_length=0, overflow="reject-publish")
        await api.queue("dying", dead_letter_exchange="", dead_letter_routing_key="grave")
        await api.publish("dying", "m")
        assert await api.take("dying", ackmode="reject_requeue_false")
        await why.becomes("dying", "dead_letter_target_full")

        # 10. Dead letters that come back, again and again.
        await api.queue("round", dead_letter_exchange="", dead_letter_routing_key="wait")
        await api.queue(
            "wait", message_ttl=1, dead_letter_exchange="", dead_letter_routing_key="round"
        )
        await api.publish("round", "m")
        for _ in range(5):
            await until(lambda: api.take("round", ackmode="reject_requeue_false"))
        await why.becomes("round", "no_consumer", "dead_letter_loop")

        # 11. No exchange leads to it, and nothing was ever published.
        await api.queue("unbound")
        await why.becomes("unbound", "no_binding")

        # 12. Messages expire as fast as they come.
        await api.queue("brief", message_ttl=0)

        async def expiring() -> bool:  # of the last seconds it tells, so it must go on
            await api.publish("brief", "m")
            return await why.codes("brief") == ["expiring"]

        await until(expiring)

        # 13. The connection of the only consumer is lost; it may come back.
        await api.queue("cut")
        lost = await stack.enter_async_context(
            Client(nodes.url("n3"), forward=True, resume_ms=60_000)
        )
        await lost.send(20, 1, "cut", {"tag": "gone", "credit": 1})
        await lost.expect(21)
        transport = lost.socket._response.connection  # pyright: ignore[reportPrivateUsage]
        assert transport is not None
        assert transport.transport is not None
        transport.transport.abort()
        await api.publish("cut", "a")
        await api.publish("cut", "b")
        await why.becomes("cut", "consumer_lost")

        # There is none; and a stream is looked at by its cursors.
        assert (await api.ask("GET", "queues/%2F/none/why")).status == 404
        await client.declare("log", type="stream")
        assert (await api.ask("GET", "queues/%2F/log/why")).status == 400

        # 14. A node is low on memory: publishers wait everywhere.
        alarms = nodes.nodes["n2"].alarms
        enough, alarms.memory_bytes_max = alarms.memory_bytes_max, 1
        await why.becomes("fine", "alarm")
        assert "n2 is low on memory" in await why.sentence("fine")
        alarms.memory_bytes_max = enough
        await why.becomes("fine")

    # 15. Without a majority nothing moves.
    for name in ("n3", "n2"):
        await nodes.stop(name, transfer=False)
    await why.becomes("lonely", "no_majority")
