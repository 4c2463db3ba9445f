"""A link that ends while messages are under way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cluster.types import GroupId, NodeId
from node.links import moving
from node.links.link import Link, LinkKey, LinkSpec
from node.links.moving import Item, move


async def nothing(_: Link) -> None: ...


SPEC = LinkSpec(LinkKey("shovel", "/", "s"), {}, GroupId(1), 1.0, nothing)


class Source:
    """Without an end."""

    def __init__(self) -> None:
        self.taken = 0
        self.settled = 0

    async def take(self) -> Item:
        await asyncio.sleep(0)
        self.taken += 1
        return Item(self.taken, b"", None)

    async def settle(self, tag: Any) -> None:
        self.settled = tag


class Destination:
    """Confirms when it is told to."""

    def __init__(self) -> None:
        self.confirms = asyncio.Event()
        self.full = asyncio.Event()
        self.published = 0

    async def publish(self, item: Item) -> None:
        self.published = item.tag
        if self.published == 5:
            self.full.set()
        await self.confirms.wait()


async def stopped(source: Source, destination: Destination) -> asyncio.Task[None]:
    link = Link(SPEC, NodeId("n1"), lambda: 0)
    task = asyncio.create_task(move(link, source, destination, "on-confirm", under_way_max=5))
    await destination.full.wait()
    task.cancel()
    await asyncio.sleep(0)
    return task


async def test_what_is_under_way_is_waited_for_and_nothing_more_is_taken():
    source, destination = Source(), Destination()
    task = await stopped(source, destination)
    destination.confirms.set()

    with pytest.raises(asyncio.CancelledError):
        await task

    assert source.taken == source.settled == destination.published == 5


async def test_a_destination_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moving, "FINISH_S_MAX", 0.01)
    source, destination = Source(), Destination()
    task = await stopped(source, destination)

    with pytest.raises(asyncio.CancelledError):
        await task

    assert source.settled == 0
