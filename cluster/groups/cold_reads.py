"""Bodies that are in memory no more, read from the disk off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from cluster.groups.entry_cache import CachedEntry, EntryCache
from cluster.raft.journal_protocol import RaftJournal

#: The entry; None: it is gone; or why it cannot be read, which ends the node.
Arrived = CachedEntry | None | BaseException
OnArrival = Callable[[Arrived], object]


class ColdReads:
    """Old entries on their way from the disk into the cache, off the event loop. Each is read once
    at a time, whoever asks for it, and what lies close behind it comes along.

    Of one group. `spawn` runs a read to its end; an error of the disk there ends
    the node.
    """

    def __init__(
        self,
        journal: RaftJournal,
        cache: EntryCache,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._journal = journal
        self._cache = cache
        self._spawn = spawn
        self._waiting: dict[int, list[OnArrival]] = {}  # for each entry that is being read

    def fetch(self, first: int, last: int, done: OnArrival) -> None:
        """Bring the entry `first`, and what is near of those up to `last`. `done` is called once,
        later, while the cache has the entry for sure.
        """
        waiting = self._waiting.get(first)
        if waiting is not None:
            waiting.append(done)
        elif self._journal.holds(first):
            near = self._journal.near(first, last)
            for index, _ in near:
                self._waiting.setdefault(index, [])
            self._waiting[first].append(done)
            self._spawn(self._read(near))
        else:
            asyncio.get_running_loop().call_soon(done, None)

    async def _read(self, near: Sequence[tuple[int, Any]]) -> None:
        try:
            found = await self._journal.fetch(near)
        except BaseException as error:
            for index, _ in near:
                for done in self._waiting.pop(index, ()):
                    done(error)
            raise
        cache = self._cache
        # The first one last: what was used last is what the cache keeps.
        for index, data in reversed(found):
            if index not in cache:
                cache.put(index, data, len(data))
        for index, data in found:
            dones = self._waiting.pop(index, ())
            if dones:
                cached = cache.get(index) or cache.put(index, data, len(data))
                for done in dones:
                    done(cached)
