"""When a confirm leaves: at once, unless the queue's consumers are quick and yet behind.

A publisher that waits for confirms has so many messages unconfirmed and no more, and a consumer so
many unsettled. Both go by the same rounds of the log, so a publisher with the larger window would
stay ahead of a consumer that takes all it gets at once, and what a message waits would grow for as
long as both go on. So while consumers are quick, a confirm waits until the messages before it are
nearly all with consumers: then the publisher goes at their pace, with its window as the backlog.

It never waits for longer than `HOLD_MS_MAX`, and not at all where that would not help: consumers
are slow, or the backlog is so large that it takes them long. Nothing of this is state, and nothing
waits for what is not committed and applied: a confirm that was held back says what is long true.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from cluster.groups.outcome import Done, Outcome
from cluster.machine.replies import Enqueued
from cluster.types import QueueId

#: Consumers that take so many messages a second from a queue are quick.
QUICK_PER_S = 10_000
#: So many ready messages before a message are no backlog.
AHEAD_MAX = 256
#: No confirm waits for longer, by default.
HOLD_MS_MAX = 50
#: A backlog that takes consumers longer than this is theirs to work off: publishers do not wait.
BACKLOG_S_MAX = 1.0
#: How long consumers are watched before it is said how quick they are, and for how long that holds.
WATCHED_S = 0.020
STALE_S = 0.5
#: Queues of which it is known, before those that have nothing held back are forgotten.
QUEUES_MAX = 1_024

#: See `cluster.machine.interface.Machine.backlog`.
Backlog = Callable[[QueueId], tuple[int, int, int]]


class _Held(NamedTuple):
    first: int  # position
    until_s: float
    done: Done
    outcome: Outcome


@dataclass(slots=True)
class _Pace:
    """Of the consumers of one queue."""

    at_s: float
    delivered: int  # up to then
    per_s: float = 0.0
    held: deque[_Held] = field(default_factory=deque[_Held])

    def look(self, delivered: int, now_s: float) -> None:
        elapsed_s = now_s - self.at_s
        if elapsed_s > STALE_S:
            self.per_s = 0.0
        elif elapsed_s < WATCHED_S:
            return
        else:
            # They may stop for a moment.
            self.per_s = max((delivered - self.delivered) / elapsed_s, self.per_s / 2)
        self.at_s, self.delivered = now_s, delivered


class Pacing:
    """Of the confirms of one group, at its leader. `answer` is given what may leave."""

    def __init__(
        self,
        backlog: Backlog,
        answer: Callable[[Done, Outcome], object],
        now_s: Callable[[], float],
        *,
        hold_s_max: float,
    ) -> None:
        """`now_s`: of a clock that never goes back."""
        self._backlog = backlog
        self._answer = answer
        self._now_s = now_s
        self._hold_s_max = hold_s_max
        self._paces: dict[QueueId, _Pace] = {}
        self._holding: dict[QueueId, _Pace] = {}

    @property
    def due_s(self) -> float:
        """When `release` is to be called though nothing happens."""
        if not self._holding:
            return math.inf
        return min([pace.held[0].until_s for pace in self._holding.values()])

    def confirm(self, queue: QueueId, reply: Enqueued, done: Done, outcome: Outcome) -> None:
        """Of what was just stored. Confirms of a queue leave in the order of its messages."""
        if not self._hold_s_max:
            self._answer(done, outcome)
            return
        ready, last, delivered = self._backlog(queue)
        pace = self._paces.get(queue)
        ahead = ready - (last + 1 - reply.first) if ready else 0
        if ahead <= AHEAD_MAX and (pace is None or not pace.held):
            self._answer(done, outcome)
            return
        now_s = self._now_s()
        if pace is None:
            pace = self._new_pace(queue, delivered, now_s)
        pace.look(delivered, now_s)
        if pace.per_s < QUICK_PER_S or ahead > pace.per_s * BACKLOG_S_MAX:
            self._let_go(queue, pace)
            self._answer(done, outcome)
        else:
            pace.held.append(_Held(reply.first, now_s + self._hold_s_max, done, outcome))
            self._holding[queue] = pace

    def release(self) -> None:
        """What need not wait any more."""
        if not self._holding:
            return
        now_s = self._now_s()
        for queue, pace in list(self._holding.items()):
            ready, last, _ = self._backlog(queue)
            first_free = last + 1 - ready + AHEAD_MAX
            held = pace.held
            while held and (held[0].first <= first_free or held[0].until_s <= now_s):
                _, _, done, outcome = held.popleft()
                self._answer(done, outcome)
            if not held:
                del self._holding[queue]

    def release_all(self) -> None:
        for queue, pace in list(self._holding.items()):
            self._let_go(queue, pace)
        self._paces.clear()

    def _let_go(self, queue: QueueId, pace: _Pace) -> None:
        held = pace.held
        while held:
            _, _, done, outcome = held.popleft()
            self._answer(done, outcome)
        self._holding.pop(queue, None)

    def _new_pace(self, queue: QueueId, delivered: int, now_s: float) -> _Pace:
        if len(self._paces) >= QUEUES_MAX:
            self._paces = dict(self._holding)
        pace = self._paces[queue] = _Pace(now_s, delivered)
        return pace
