"""Delivery tags of one channel: which delivery is which message of which consumer.

Pure. Tags grow by one from 1 and are the channel's own (B01). Deliveries come in runs of
consecutive positions of one queue, so a run is one entry however many messages it has.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

C = TypeVar("C")


class UnknownTag(Exception):
    """No such delivery is open on this channel (B02)."""

    def __init__(self, tag: int) -> None:
        super().__init__(f"unknown delivery tag {tag}")
        self.tag = tag


@dataclass(slots=True)
class Run(Generic[C]):
    """Deliveries `first` to `last`, which are the positions from `position` on of one consumer."""

    first: int
    last: int
    consumer: C
    position: int
    token: int  # of the decision that delivered them
    at_s: float = 0.0  # when they were sent


class Taken(NamedTuple, Generic[C]):
    """Positions of one consumer, both ends included, and the tag that the first had."""

    consumer: C
    first: int
    last: int
    tag: int
    token: int
    at_s: float = 0.0


class Unacked(Generic[C]):
    """What a channel was sent and has not settled."""

    def __init__(self) -> None:
        self.count = 0
        self._runs: list[Run[C]] = []  # ascending, not overlapping
        self._next_tag = 1

    def number(self, count: int) -> int:
        """Tags for deliveries that need no ack: the first of them."""
        first = self._next_tag
        self._next_tag += count
        return first

    def add(self, consumer: C, position: int, count: int, token: int, at_s: float = 0.0) -> int:
        """Deliveries that wait for an ack; the first one's tag."""
        first = self.number(count)
        self._runs.append(Run(first, first + count - 1, consumer, position, token, at_s))
        self.count += count
        return first

    def take_up_to(self, tag: int) -> list[Taken[C]]:
        """`multiple`: all open ones up to and including `tag`; 0: all (B06).

        A tag that was never given, or under which nothing is open, is unknown.
        """
        if tag == 0:
            tag = self._next_tag - 1
        elif tag >= self._next_tag or not self._runs or self._runs[0].first > tag:
            raise UnknownTag(tag)
        taken: list[Taken[C]] = []
        passed = 0
        for run in self._runs:
            if run.first > tag:
                break
            last = min(run.last, tag)
            taken.append(_part(run, run.first, last))
            self.count -= last - run.first + 1
            if last < run.last:
                run.position += last + 1 - run.first
                run.first = last + 1
                break
            passed += 1
        del self._runs[:passed]
        return taken

    def take(self, first: int, last: int) -> tuple[list[Taken[C]], int | None]:
        """These very tags, up to the first that is not open: that one comes second, or None."""
        taken: list[Taken[C]] = []
        unknown: int | None = None
        tag = first
        while tag <= last:
            part = self._take_from(tag, last)
            if part is None:
                unknown = tag
                break
            taken.append(part)
            count = part.last - part.first + 1
            self.count -= count
            tag += count
        return taken, unknown

    def _take_from(self, tag: int, last: int) -> Taken[C] | None:
        """The open ones from `tag` on, of one run."""
        runs = self._runs
        at = 0
        if not runs or not runs[0].first <= tag <= runs[0].last:
            at = bisect_right(runs, tag, key=_first) - 1
            if at < 0 or tag > runs[at].last:
                return None
        run = runs[at]
        last = min(last, run.last)
        part = _part(run, tag, last)
        if last < run.last:
            position = run.position + last + 1 - run.first
            rest = Run(last + 1, run.last, run.consumer, position, run.token, run.at_s)
            if tag == run.first:
                runs[at] = rest
            else:
                runs.insert(at + 1, rest)
                run.last = tag - 1
        elif tag == run.first:
            del runs[at]
        else:
            run.last = tag - 1
        return part

    def put_back(self, taken: list[Taken[C]]) -> None:
        """A transaction was rolled back: these are open again, under their tags."""
        for part in taken:
            count = part.last - part.first + 1
            last = part.tag + count - 1
            self._runs.append(Run(part.tag, last, part.consumer, part.first, part.token, part.at_s))
            self.count += count
        self._runs.sort(key=_first)


def _first(run: Run[C]) -> int:
    return run.first


def _part(run: Run[C], first: int, last: int) -> Taken[C]:
    position = run.position + first - run.first
    return Taken(run.consumer, position, position + last - first, first, run.token, run.at_s)
