"""A link that is told to end does so, whatever befalls it at that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cluster.types import CATALOG_GROUP, NodeId
from node.links.link import Link, LinkKey, LinkSpec
from node.links.supervisor import END_S_MAX, LOOK_S_MIN, LinkSupervisor
from node.tasks import Tasks

KEY = LinkKey("test", "/", "l")


class Kind:
    """One link."""

    name = "test"

    def __init__(self) -> None:
        self.runs = 0
        self.began = asyncio.Event()

    def wanted(self) -> list[LinkSpec]:
        return [LinkSpec(KEY, None, CATALOG_GROUP, 0.0, self._run)]

    async def _run(self, link: Link) -> None:
        raise NotImplementedError


class FailsAtItsEnd(Kind):
    """Its two halves fail together when one is told to end."""

    async def _run(self, link: Link) -> None:
        self.runs += 1
        async with asyncio.TaskGroup() as group:
            group.create_task(self._fails_at_its_end())
            self.began.set()

    async def _fails_at_its_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ConnectionError("the queue is gone there")


class SwallowsACancellation(Kind):
    """As a client library does that is cancelled while it connects."""

    async def _run(self, link: Link) -> None:
        self.runs += 1
        self.began.set()
        if self.runs == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        await asyncio.Event().wait()


class ReturnsWhenCancelled(Kind):
    """The first of its runs."""

    async def _run(self, link: Link) -> None:
        self.runs += 1
        self.began.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


@asynccontextmanager
async def supervised(kind: Kind) -> AsyncIterator[tuple[LinkSupervisor, Callable[..., Any]]]:
    """With what asks it, as another node does."""
    cluster = SimpleNamespace(
        node=NodeId("n1"),
        on_role=[],
        catalog=SimpleNamespace(applied_index=1, on_next=[]),
        leader_of=lambda _: NodeId("n1"),
        now_ms=lambda: 0,
    )
    answers: list[Callable[..., Any]] = []
    peer_rpc = SimpleNamespace(on=lambda _, answer: answers.append(answer))
    links = LinkSupervisor(cast(Any, cluster), cast(Any, peer_rpc), tasks := Tasks())
    links.add(cast(Any, kind))
    tasks.start(links.run(), name="links")
    await kind.began.wait()
    yield links, lambda *fields: answers[0](NodeId("n2"), list(fields))
    await tasks.stop()


@pytest.mark.virtual_time
async def test_a_link_that_fails_when_it_is_told_to_end_is_not_begun_again():
    kind = FailsAtItsEnd()
    async with supervised(kind) as (links, _):
        await links.stop()

        assert (kind.runs, links.here()[0].failures) == (1, 0)


@pytest.mark.virtual_time
async def test_a_link_that_swallows_a_cancellation_starts_again_all_the_same():
    kind = SwallowsACancellation()
    async with supervised(kind) as (links, ask):
        kind.began.clear()

        assert ask("restart", *KEY)
        async with asyncio.timeout(END_S_MAX + 4 * LOOK_S_MIN):
            await kind.began.wait()

        assert (kind.runs, links.here()[0].failures) == (2, 0)


@pytest.mark.virtual_time
async def test_a_link_that_returns_when_it_is_told_to_end_has_not_done_its_work():
    kind = ReturnsWhenCancelled()
    async with supervised(kind) as (links, ask):
        kind.began.clear()
        before = links.here()[0]

        assert ask("restart", *KEY)
        async with asyncio.timeout(3 * LOOK_S_MIN):
            await kind.began.wait()

        assert (kind.runs, before.state) == (2, "starting")


@pytest.mark.virtual_time
@pytest.mark.parametrize("restarted", [False, True])
async def test_a_node_that_stops_ends_a_link_that_swallows_a_cancellation(restarted: bool):
    async with supervised(SwallowsACancellation()) as (links, ask):
        (running,) = [each for each in asyncio.all_tasks() if each.get_name() == f"link {KEY}"]
        if restarted:  # the cancellation that is swallowed comes before
            ask("restart", *KEY)
            await asyncio.sleep(LOOK_S_MIN)

        await links.stop()

        assert running.done()


@pytest.mark.virtual_time
async def test_who_ends_all_tasks_tells_them_again():
    tasks = Tasks()
    link = cast(Any, None)
    kind = SwallowsACancellation()
    tasks.start(kind._run(link), name="swallows")
    await kind.began.wait()

    await tasks.stop()

    assert len(tasks) == 0
