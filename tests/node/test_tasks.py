"""Tasks that are told to end, and libraries that swallow that."""

from __future__ import annotations

import asyncio

import pytest

from node import tasks
from node.tasks import end_all, together


class Swallowing:
    """Runs on, so often, when it is cancelled: as `asyncio.wait_for` of Python 3.11 does, if what
    it waits for comes at that moment.
    """

    def __init__(self, times: int = 1) -> None:
        self.started = asyncio.Event()
        self.swallowed = 0
        self._times = times

    async def run(self) -> None:
        self.started.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.swallowed == self._times:
                    raise
                self.swallowed += 1


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "END_S_MAX", 0.01)


async def test_who_swallows_it_is_told_again():
    work = Swallowing(3)
    task = asyncio.create_task(work.run())
    await work.started.wait()
    await end_all([task])
    assert task.cancelled()
    assert work.swallowed == 3


async def test_who_ends_others_and_is_cancelled_ends_with_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tasks, "END_S_MAX", 86_400.0)
    work = Swallowing()
    task = asyncio.create_task(work.run())
    await work.started.wait()
    ending = asyncio.create_task(end_all([task]))
    while not work.swallowed:
        await asyncio.sleep(0)
    ending.cancel()
    await asyncio.wait({ending})
    assert ending.cancelled()
    assert task.cancelled()


async def test_together_ends_though_one_of_them_swallows_that():
    """A TaskGroup cancels each of them once, and waits for ever."""
    first, second = Swallowing(2), Swallowing(2)
    both = asyncio.create_task(together(first.run(), second.run()))
    await first.started.wait()
    await second.started.wait()
    both.cancel()
    await asyncio.wait({both})
    assert both.cancelled()
    assert (first.swallowed, second.swallowed) == (2, 2)


async def test_one_that_fails_ends_the_others():
    other = Swallowing()

    async def fail() -> None:
        await other.started.wait()
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        await together(other.run(), fail())
    assert other.swallowed == 1


async def test_one_that_a_library_cancels_ends_the_others_too():
    """A TaskGroup would wait for these."""
    other = Swallowing()

    async def given_up() -> None:
        await other.started.wait()
        raise asyncio.CancelledError

    both = asyncio.create_task(together(other.run(), given_up()))
    await asyncio.wait({both})
    assert both.cancelled()
    assert other.swallowed == 1


async def test_together_waits_for_all():
    done: list[int] = []

    async def work(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        done.append(number)

    await together(work(3), work(1), work(2))
    assert done == [1, 2, 3]
