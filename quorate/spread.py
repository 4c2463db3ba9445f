"""Frames for a queue that is split, cut for its shards, and their outcomes put together again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from quorate.batches import Batch, Row
from quorate.errors import OutcomeUnknown


def places_by_shard(shards: Sequence[str]) -> dict[str, list[int]]:
    """Of each shard the places of its messages, in their order."""
    found: dict[str, list[int]] = {}
    for place, shard in enumerate(shards):
        found.setdefault(shard, []).append(place)
    return found


def of_places(each: Any, places: Sequence[int]) -> Any:
    """`each`: one for all messages, or a list with one for each."""
    if not isinstance(each, list):
        return each
    values = cast("list[Any]", each)
    return [values[place] for place in places]


class Collected:
    """The outcome of one frame, from those of its parts."""

    def __init__(self, frame: Batch, parts: int) -> None:
        self._frame = frame
        self._left = parts
        self._stored = self._duplicates = 0
        self._refused: list[int] = []
        self._taken = False  # by one shard at least
        self._unknown: BaseException | None = None
        self._failed: BaseException | None = None

    def add(self, places: Sequence[int], part: asyncio.Future[Any]) -> None:
        """What became of the messages in these places."""
        error = asyncio.CancelledError() if part.cancelled() else part.exception()
        if error is None:
            row: Row = part.result()
            self._taken = True
            self._stored += row.stored
            self._duplicates += row.duplicates
            for first, last in row.refused:
                self._refused += places[first : last + 1]
        elif isinstance(error, OutcomeUnknown):
            self._unknown = error
        else:
            self._failed = error
            self._refused += places
        self._left -= 1
        waiter = self._frame.waiters[0]
        if self._left or waiter.done():
            return
        self._frame.confirmed_at_s = asyncio.get_running_loop().time()
        if self._unknown is not None:
            waiter.set_exception(self._unknown)
        elif self._failed is not None and not self._taken:
            waiter.set_exception(self._failed)
        else:
            refused = [(place, place) for place in sorted(self._refused)]
            waiter.set_result(Row(0, self._stored, self._duplicates, refused))
