"""Declares of new queues that wait on a channel are begun before their turn.

A declare takes two rounds of consensus. A client that sends many without waiting for the answers
would have each wait for the one before; begun together, they share the rounds. Answers, errors and
what follows keep their order. What was begun and then is not reached, since an earlier method
closed the channel, may have made its queue: so only what passes all checks of this node is begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import Any, Final

from pamqp import base, commands

from node.tasks import Tasks

#: Of one channel, under way at once.
AHEAD_MAX: Final = 64

#: Queue, ready messages, consumers: what `queue.declare-ok` says.
Declared = tuple[str, int, int]
Declaring = Callable[[commands.Queue.Declare], Coroutine[Any, Any, Declared]]


class DeclaresAhead:
    """Of one channel."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        #: By name: never two of one name, whose order would count.
        self._begun: dict[str, tuple[commands.Queue.Declare, asyncio.Task[Declared | None]]] = {}

    def begin(self, waiting: Iterable[Any], declare: Declaring, new: Callable[[str], bool]) -> None:
        """`waiting`: what comes next on the channel; the first that is no declare ends it."""
        for event in islice(waiting, AHEAD_MAX):
            method: base.Frame | None = getattr(event[0], "method", None)
            if not isinstance(method, commands.Queue.Declare) or method.passive:
                return
            known = self._begun.get(method.queue)
            if known is not None and known[0] is method:
                continue
            plain = method.durable and not (method.exclusive or method.auto_delete)
            if known is not None or not plain or not method.queue or not new(method.queue):
                return
            task = self._tasks.start(_quietly(declare, method), name="declare_ahead")
            self._begun[method.queue] = method, task

    async def take(self, method: commands.Queue.Declare) -> Declared | None:
        """What came of it. None: it was not begun, or is to be done now."""
        known = self._begun.get(method.queue)
        if known is None or known[0] is not method:
            return None
        try:
            return await known[1]
        finally:
            self._begun.pop(method.queue, None)

    def close(self) -> None:
        for _, task in self._begun.values():
            task.cancel()
        self._begun.clear()


async def _quietly(declare: Declaring, method: commands.Queue.Declare) -> Declared | None:
    try:
        return await declare(method)
    except Exception:  # noqa: BLE001 -- in its turn it is done again, and told
        return None
