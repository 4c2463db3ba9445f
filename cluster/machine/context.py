"""Applying one command: what queues need from the group around them, and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from cluster.machine.deadletters import Deaths
from cluster.machine.effects import Effect
from cluster.types import ConsumerKey, QueueId, SessionId, Stamp

#: The term in the number of a transfer stands above so many bits of a count.
COUNT_BITS: Final = 32
_COUNT_MASK: Final = (1 << COUNT_BITS) - 1


def number_after(last: int, term: int) -> int:
    """The number of the next transfer to other groups: higher than the last one, with the term of
    the entry that gives it.

    A log that goes on from an earlier moment, after a forced recovery or a restore, does so under
    terms that no other one had; so a number never stands for two things, and receivers may take
    one that they know for repeated. The lower bits count on without a gap.
    """
    number = (max(term, last >> COUNT_BITS) << COUNT_BITS) | ((last + 1) & _COUNT_MASK)
    return number if number > last else number + (1 << COUNT_BITS)


def span(first: int, end: int) -> int:
    """How many numbers were given from `first` on, before `end`."""
    return (end - first) & _COUNT_MASK


class DeadLetterTarget(Protocol):
    """A queue of the group, as another one sees it whose messages die into it."""

    id: QueueId
    name: str

    @property
    def group_key(self) -> str | None:
        """As `QueueConfig.group_key`."""
        ...

    def takes_all(self, count: int, sizes: Sequence[int], /) -> bool:
        """Is there surely room for so many more?"""
        ...

    def take_dead_letters(
        self,
        context: ApplyContext,
        /,
        *,
        index: int,
        offset: int,
        sizes: Sequence[int],
        priority: int,
        deaths: Deaths,
        parts: Mapping[int, Sequence[tuple[int, int]]],
        names: Sequence[str | None] | None,
    ) -> None:
        """`parts`: entries of large bodies, by their places among these. `names`: their keys, if
        it asks for the same as the queue that they come from.
        """


class GroupOfQueues(Protocol):
    """The group, as its queues see it."""

    version: int  # of the machine

    def find(self, queue: QueueId) -> DeadLetterTarget | None: ...

    def consumer_added(self, session: SessionId, queue: QueueId, consumer: ConsumerKey) -> None: ...

    def consumer_removed(
        self, session: SessionId, queue: QueueId, consumer: ConsumerKey
    ) -> None: ...

    def died(self, reason: str, count: int, *, goes: bool) -> None:
        """Messages left a queue without being settled. `goes`: to a dead-letter target."""

    def timed_out(self, context: ApplyContext, session: SessionId) -> None:
        """A consumer of this session did not settle in time: the session is dead here (A18)."""


@dataclass(eq=False, slots=True)
class ApplyContext:
    """Made for one command, thrown away after it."""

    stamp: Stamp
    index: int
    body_offset: int
    now_ms: int  # not the stamp's: this one never goes back
    group: GroupOfQueues
    decided: bool = False  # part of a transaction: limits refuse nothing any more
    effects: list[Effect] = field(default_factory=list[Effect])
    #: Queues in which something may have to happen now.
    touched: dict[int, None] = field(default_factory=dict[int, None])

    @property
    def version(self) -> int:
        """Of the machine: what it may do that older versions do not."""
        return self.group.version

    def number_after(self, last: int) -> int:
        """Of a transfer to other groups; since machine version 2 it carries the term."""
        return last + 1 if self.version < 2 else number_after(last, self.stamp.term)

    @property
    def key(self) -> int:
        """An identity no other command has."""
        return self.stamp.key

    def touch(self, queue: QueueId) -> None:
        self.touched[queue] = None
