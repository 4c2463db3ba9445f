"""A handler, called for each message of a queue: what `Client.work` does."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from quorate.consumer import Consumer
from quorate.delivery import Delivery

log = logging.getLogger("quorate")

#: By a coroutine function, or by a plain one, which is called in a thread.
Handler = Callable[[Delivery], Awaitable[object]] | Callable[[Delivery], object]

#: Of a lease: a message that is still worked at is held on to this often.
EXTENSIONS = 3
#: Retries of messages that failed together do not come together.
JITTER = 0.2


class Reject(Exception):
    """Raised by a handler: this message will never do. It is dead-lettered at once."""


class CannotWork(Exception):
    """Raised by a handler: nothing is wrong with the message, but with this program, as when its
    database is gone. The message is given back, and the worker ends.
    """


@dataclass(frozen=True, slots=True)
class Retrying:
    """What happens to a message whose handler failed."""

    attempts: int  # in all
    delay_ms: int  # before the second; doubled each time...
    delay_ms_max: int  # ...up to this

    def after(self, failures: int) -> int | None:
        """How long it waits after so many failures, before jitter; None: it has had all."""
        if failures >= self.attempts:
            return None
        # Doubled more often it is beyond any limit.
        return min(self.delay_ms_max, self.delay_ms << min(failures - 1, 40))


class Worker:
    """Runs until `stop` is set, it is cancelled, or it cannot work: then it takes no more messages,
    waits for those at work, and gives back what is not done in time. Its consumer is cancelled, so
    the broker and who watches it see that nobody is there (A37).
    """

    def __init__(
        self,
        consumer: Consumer,
        handler: Handler,
        *,
        concurrency: int,
        retrying: Retrying,
        lease_ms: int,
        grace_s: float,
        stop: asyncio.Event | None,
        failures_max: int | None = None,
    ) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._retrying = retrying
        self._lease_ms = lease_ms
        self._grace_s = grace_s
        self._stop = stop or asyncio.Event()
        self._failures_max = failures_max
        self._failures: list[BaseException] = []  # since the last success
        self._given_up = asyncio.Event()
        self._error: Exception | None = None  # why
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads: ThreadPoolExecutor | None = None

    async def run(self) -> None:
        """Raises what the consumer does, such as ConsumerEnded when the queue is deleted."""
        async with self._consumer:
            try:
                async for delivery in self._deliveries():
                    task = asyncio.create_task(self._work_at(delivery))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            finally:
                await self._finish()
        if self._error is not None:
            raise self._error

    async def _deliveries(self) -> AsyncIterator[Delivery]:
        """No more than the consumer's credit are unsettled, so no more are at work."""
        stops = [asyncio.create_task(each.wait()) for each in (self._stop, self._given_up)]
        following: asyncio.Future[Delivery] | None = None
        try:
            while True:
                following = asyncio.ensure_future(anext(self._consumer))
                await asyncio.wait({following, *stops}, return_when=asyncio.FIRST_COMPLETED)
                if not following.done():
                    return
                yield following.result()
                if any(each.done() for each in stops):
                    return
        except StopAsyncIteration:
            return
        finally:
            for each in stops:
                each.cancel()
            if following is not None:
                following.cancel()  # what it would have got goes back when the consumer is closed

    async def _finish(self) -> None:
        try:
            if self._tasks:
                log.info("worker waits for %d messages", len(self._tasks))
                await asyncio.wait(self._tasks, timeout=self._grace_s)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work_at(self, delivery: Delivery) -> None:
        call = asyncio.ensure_future(self._call(delivery))
        try:
            while not call.done():
                await asyncio.wait({call}, timeout=self._lease_ms / 1000 / EXTENSIONS)
                if not call.done():
                    await delivery.extend(self._lease_ms)
        except asyncio.CancelledError:
            call.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await call
            await delivery.return_()
            raise
        await self._answer(delivery, call)

    def _note(self, error: BaseException) -> None:
        self._failures.append(error)
        if len(self._failures) == self._failures_max:
            errors = [each for each in self._failures if isinstance(each, Exception)]
            said = f"{len(self._failures)} handlers in a row failed"
            self._give_up(ExceptionGroup(said, errors) if errors else CannotWork(said))
        elif self._failures_max is None:
            self._failures.clear()  # nobody asks for them

    def _give_up(self, error: Exception) -> None:
        if self._error is None:
            log.error("the worker of queue %s ends: %s", self._consumer.queue, error)
            self._error = error
            self._given_up.set()

    async def _call(self, delivery: Delivery) -> None:
        handler: Any = self._handler
        if inspect.iscoroutinefunction(handler):
            await handler(delivery)
            return
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, "quorate-worker")
        loop = asyncio.get_running_loop()
        result: object = await loop.run_in_executor(self._threads, handler, delivery)
        if inspect.isawaitable(result):  # of a partial, or a callable object
            await result

    async def _answer(self, delivery: Delivery, call: asyncio.Future[None]) -> None:
        error = asyncio.CancelledError() if call.cancelled() else call.exception()
        if error is None:
            self._failures.clear()
            await delivery.settle()
            return
        if isinstance(error, CannotWork):
            await delivery.return_()
            self._give_up(error)
            return
        self._note(error)
        failures = delivery.delivery_count + 1
        delay_ms = None if isinstance(error, Reject) else self._retrying.after(failures)
        if delay_ms is None:
            log.error("%r failed for good, attempt %d", delivery, failures, exc_info=error)
            await delivery.discard()
            return
        delay_ms = round(delay_ms * random.uniform(1 - JITTER, 1 + JITTER))
        log.warning(
            "%r failed, attempt %d; again in %d ms", delivery, failures, delay_ms, exc_info=error
        )
        await delivery.return_(failed=True, delay_ms=delay_ms)
