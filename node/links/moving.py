"""Moves messages from a source to a destination, in order, with many under way: what shovels and
federation links have in common.

With `on-confirm` a message is settled at the source only after the destination has it, so a crash
at any moment loses none: what was not settled is delivered again. With `no-ack` it is settled as it
comes: the source waits for that, too, or it would send more than there is room for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from typing import Any, Literal, NamedTuple, Protocol

from node.links.link import Link
from node.tasks import end_all, together

#: What is under way when a link ends may take so long; then it is given up, and comes again.
FINISH_S_MAX = 1.5

AckMode = Literal["on-confirm", "on-publish", "no-ack"]


class Item(NamedTuple):
    """A message on its way. `tag`: how the source knows it."""

    tag: Any
    body: bytes
    message: Any  # all else of it, as the source and the destination have agreed


class Source(Protocol):
    async def take(self) -> Item | None:
        """The next one; None: there will be no more. Raises when the connection is lost."""
        ...

    async def settle(self, tag: Any) -> None:
        """This one, and all that were taken before it, are done."""
        ...


class Destination(Protocol):
    def publish(self, item: Item) -> Coroutine[Any, Any, None]:
        """Done when it has it for sure. Calls that follow each other keep their order."""
        ...


async def move(
    link: Link, source: Source, destination: Destination, mode: AckMode, *, under_way_max: int
) -> None:
    """Until there are no more; all that was taken is settled then. When it is cancelled, as for a
    link that is deleted or goes to another node, it takes no more and waits for what is under way:
    that would come again.
    """
    under_way: deque[tuple[Item, asyncio.Task[None]]] = deque()
    changed = asyncio.Event()
    room = asyncio.Semaphore(under_way_max)
    done = False

    async def take_all() -> None:
        nonlocal done
        try:
            while not done:
                await room.acquire()
                item = await source.take()
                if item is None:
                    break
                if mode == "no-ack":
                    await source.settle(item.tag)
                task = asyncio.create_task(destination.publish(item))
                under_way.append((item, task))
                changed.set()
                if mode == "on-publish":
                    await source.settle(item.tag)
        except asyncio.CancelledError:
            if not done:  # by a library: it is not what ends the link here
                raise
        done = True
        changed.set()

    async def settle_all() -> None:
        while not (done and not under_way):
            if not under_way:
                changed.clear()
                await changed.wait()
                continue
            await under_way[0][1]
            count = size = 0
            last: Item | None = None
            # Before any of them is settled: one that failed ends the link here.
            while under_way and under_way[0][1].done():
                item, task = under_way[0]
                if task.exception() is not None:
                    break
                last = item
                under_way.popleft()
                count, size = count + 1, size + len(item.body)
                room.release()
            if last is not None:
                if mode == "on-confirm":
                    await source.settle(last.tag)
                link.moved(count, size)

    taking = asyncio.create_task(take_all())
    moving = asyncio.create_task(together(taking, settle_all()))
    try:
        await asyncio.shield(moving)
    except asyncio.CancelledError:
        if not moving.done():
            done = True
            taking.cancel()
            changed.set()
            await asyncio.wait({moving}, timeout=FINISH_S_MAX)
        raise
    finally:
        await end_all((moving, *(task for _, task in under_way)))
