"""What is next for the dead letters of an outbox: a look through it, as far as that takes.

Letters come as `QueueMachine.dead_letters` gives them: those that go, then those put off. Of each
is known whether it can go now. Who looks does what was decided, and looks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cluster.machine.effects import DeadLetter
from cluster.machine.runs import ranges_of

#: Higher than any number that is given.
LAST_NUMBER: Final = (1 << 63) - 1

Ranges = Sequence[tuple[int, int]]


class Empty(NamedTuple):
    """There are none."""


class Go(NamedTuple):
    """The first ones go, so many."""

    letters: int


class PutOff(NamedTuple):
    """Some wait in front of one that can go: these are put off first."""

    ranges: Ranges
    known: bool  # of all of them that they wait


class Send(NamedTuple):
    """Nobody is at the front who can go; these were put off, and can."""

    ranges: Ranges


class AllWait(NamedTuple):
    """As long as nothing changes."""


Next = Empty | Go | PutOff | Send | AllWait


@dataclass(eq=False, slots=True)
class Look:
    """One look; `at_once`: so many letters go together, of so many bytes, and so many are the
    front. Behind the front no leader sent any yet.
    """

    at_once: int
    bytes_at_once: int
    going: int = 0
    #: Of those put off, the last one up to which all wait.
    wait_to: DeadLetter | None = None
    _due: list[int] = field(default_factory=list[int])  # put off, and can go
    _waits: list[int] = field(default_factory=list[int])  # at the front
    _passed: bool = False  # somebody waits in front of one that can go
    _beyond: bool = False  # there are more than the front
    _front: int = 0  # the last number of the front
    _bytes: int = 0
    _count: int = 0

    def add(self, letter: DeadLetter, size: int | None) -> bool:
        """The next one; `size` of one that can go, None: it waits. False: it is clear what is next,
        without this one.
        """
        self._count += 1
        at_front = not letter.put_off and self._count <= self.at_once
        if at_front:
            self._front = letter.number
        elif not letter.put_off:
            self._beyond = True
        if (self.going and (size is None or not at_front)) or (self._passed and not at_front):
            return False
        if size is None:
            if at_front:
                self._waits.append(letter.number)
            if letter.put_off and not self._due:
                self.wait_to = letter
            return True
        if self._waits:
            self._passed = True
            return True
        self._bytes += size
        found = self.going + len(self._due)
        if found and (self._bytes > self.bytes_at_once or found == self.at_once):
            return False
        if letter.put_off:
            self._due.append(letter.number)
        else:
            self.going += 1
        return True

    def next(self) -> Next:
        if self._passed:
            # With all behind the front.
            ranges = [*ranges_of(self._waits), (self._front + 1, LAST_NUMBER)]
            return PutOff(ranges, not self._beyond)
        if self._due:
            return Send(ranges_of(self._due))
        if self.going:
            return Go(self.going)
        return AllWait() if self._count else Empty()
