"""Background work that nobody awaits, but that has an owner who logs errors and ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

from node.errors import BrokerError

log = structlog.get_logger(__name__)

#: A task that is told to end may take so long. Then it is told again: a client library may swallow
#: a cancellation.
END_S_MAX = 10.0


class Tasks:
    """Started tasks, until they are done or all are cancelled."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        #: A task that was to run as long as its owner has failed.
        self.on_failure: Callable[[BaseException], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """The same for what runs as long as its owner, which is told when it fails."""
        task = self.start(work, name=name)
        task.add_done_callback(self._kept_ended)
        return task

    def _kept_ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.on_failure(error)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, BrokerError):  # nobody waits for the answer, and the cluster goes on
            log.info("task_refused", task=task.get_name(), code=error.code, reason=error.reason)
        elif error is not None:
            log.error("task_failed", task=task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Cancels those that run now, and returns when they have ended."""
        await end_all(self._running)


async def end_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels them, and returns when they have ended; with what errors is not told. Who is
    cancelled meanwhile cancels them again at once, and is when they have.
    """
    tasks = list(tasks)
    running = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while running:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=END_S_MAX)
        except asyncio.CancelledError as error:
            cancelled = error
        running = {task for task in running if not task.done()}
    for task in tasks:
        if not task.cancelled():
            task.exception()
    if cancelled is not None:
        raise cancelled


async def together(*work: Awaitable[None]) -> None:
    """All of them at once. When one fails the others end, as by `end_all`, and its error is raised.

    A TaskGroup tells them once only that they should end, so it waits for ever for one in which a
    library swallowed that; and it takes one that a library cancelled for one that was done.
    """
    tasks = [asyncio.ensure_future(each) for each in work]
    running = set(tasks)
    try:
        while running:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        await end_all(tasks)
