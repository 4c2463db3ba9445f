"""The drive loop of a node: all its groups, one write and one fsync for all of them together.

The contract between a group and the loop. One iteration

1. steps each group that has something to do. What the step writes goes into the buffer of the log.
   What promises nothing about the disk (appends, parts of snapshots, pre-votes) goes into the
   buffers of the links, which say at once when one is full; heartbeats that bring nothing follow,
   those of all groups to a node as one message. What does promise something (acknowledgements,
   votes, requests for votes) is returned by the step;
2. writes the buffer of the log in one call;
3. flushes the links: what promises nothing leaves while the disk works;
4. syncs, if anything that was written must be;
5. sends the messages that the steps returned;
6. has each group commit and apply what it now may (`after`), and only then begins the next one.

So nothing that a node promises is undone by a power cut, a leader never counts what is not on its
own disk, and what arrives during the fsync becomes the next batch. When the disk fails, step 5
never comes. A leader takes acknowledgements when they arrive (`receive`), also between steps 3 and
5, and commits what earlier iterations wrote. So while one queue keeps the disk busy, proposers of
another queue get their outcomes without waiting for the disk once more, and an acknowledgement
costs no iteration. Nor does a heartbeat that brings a follower nothing: those of all groups are
answered in one message, which leaves with the node's own heartbeats to that node, if it has any.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from cluster.log import FatalDiskError, LogCorrupt
from cluster.raft.messages import BEATS, BEATS_ANSWERED, BEATS_SINCE, NODE_LEVEL, singles
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId

#: Timers are set a little late, so that when one fires its time has come whatever was rounded.
TIMER_SLACK_S = 0.0005
#: Measurements that wait for whoever shows them: far more than there are between two looks.
MEASURED_MAX = 1 << 16
#: Beats to a peer that are not longer ago are expected to go on: the peer's own are answered with
#: the next. An answer waits half a second at most.
ANSWER_WAITS_S = 0.3
#: What ends the node: going on with such a disk could break promises.
FATAL = (FatalDiskError, LogCorrupt)


class DriveLog(Protocol):
    """What the loop needs of the node's log."""

    record_count: int  # appended since the start
    written_bytes: int  # since the start

    def write(self) -> bool:
        """Write what is buffered.

        True: something in it must be synced before anybody hears of it.
        """
        ...

    async def sync(self) -> object: ...


#: Receivers and messages that may leave once all that was written before is synced.
AfterSync = Sequence[tuple[NodeId, list[Any]]]


class Steps(Protocol):
    """What the loop needs of a group."""

    id: GroupId
    due: float
    wake: Callable[[], None]
    commit_seconds: deque[float]
    spawn: Callable[[Coroutine[Any, Any, None]], object] | None
    beat: Callable[[NodeId, list[Any]], bool]

    def receive(
        self, sender: NodeId, message: list[Any], joined: list[list[Any]] | None = None
    ) -> bool: ...
    def has_still(self, term: int, last: int) -> bool: ...
    def step(self, now: float) -> AfterSync: ...
    def after(self, now: float) -> None: ...
    def fail(self, error: Exception) -> None: ...
    def stop(self) -> None: ...


class DriveLoop:
    """Drives all groups of one node.

    `run` is one task; it ends after `stop`, or with the error of a broken disk.
    """

    def __init__(self, log: DriveLog, links: Links, clock: Clock) -> None:
        self._log = log
        self._links = links
        self._clock = clock
        self._groups: dict[GroupId, Steps] = {}
        self._to_step: dict[GroupId, Steps] = {}  # an ordered set: groups with something to do
        self._beats: dict[NodeId, list[list[Any]]] = {}  # of this iteration
        self._beat_at: dict[NodeId, float] = {}  # when any last left, in monotonic seconds
        self._answers: dict[NodeId, dict[GroupId, list[Any]]] = {}  # that wait for them
        self._joining: list[Callable[[], None]] = []
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # it may be early: it looks who is due
        self._jobs: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stopping = False
        self.count = 0
        self.syncs = 0
        #: For metrics, the newest ones, until somebody takes them out. Of each iteration that
        #: synced: its seconds, and what was written so far. Of each entry that was proposed here:
        #: the seconds from its first proposal until it was applied.
        self.iterations = deque[tuple[float, int, int]](maxlen=MEASURED_MAX)
        self.commit_seconds = deque[float](maxlen=MEASURED_MAX)

    def add(self, group: Steps) -> None:
        """Drive this group from now on."""
        assert group.id not in self._groups
        self._groups[group.id] = group
        group.wake = partial(self.wake, group)
        group.spawn = self._spawn
        group.beat = self._beat
        group.commit_seconds = self.commit_seconds
        self.wake(group)

    def remove(self, group_id: GroupId) -> None:
        group = self._groups.pop(group_id, None)
        self._to_step.pop(group_id, None)
        if group is not None:
            group.stop()

    def receive(
        self,
        group_id: GroupId,
        peer: NodeId,
        message: list[Any],
        joined: list[list[Any]] | None = None,
    ) -> None:
        """A message for one group, in the order of its link; `joined` as in `Group.receive`.

        Unknown groups are none of ours (yet).
        """
        group = self._groups.get(group_id)
        if group is None or self._stopping or self._failure is not None:
            return
        try:
            waits = group.receive(peer, message, joined)
        except FATAL as error:
            self._failure = error
            self.wake()
        except Exception as error:  # noqa: BLE001 -- as in a step
            group.fail(error)
        else:
            if waits:
                self.wake(group)
            elif group.due < self._timer_at:
                self._set_timer(group.due)

    # --- heartbeats that bring nothing: those of all groups are one message, and so are the answers

    def _beat(self, peer: NodeId, beat: list[Any]) -> bool:
        if self._links.version(peer) < BEATS_SINCE:
            return False
        self._beats.setdefault(peer, []).append(beat)
        return True

    def receive_joined(self, peer: NodeId, kind: str, joined: Sequence[list[Any]]) -> None:
        """Each group takes what is its own as it would take it alone. Answers that need not wait
        for the disk wait for the next beats of this node to that peer, so that two idle nodes wake
        each other once a beat; without beats they leave at once.
        """
        answers: list[list[Any]] = []
        for message in singles(kind, joined):
            self.receive(GroupId(message[0]), peer, message, answers)
        if not answers:
            return
        self._answers.setdefault(peer, {}).update((answer[0], answer) for answer in answers)
        now = self._clock.monotonic_ns() / 1e9
        if now - self._beat_at.get(peer, -math.inf) > ANSWER_WAITS_S:
            self._answer(peer)

    def _answer(self, peer: NodeId) -> None:
        """What is still true of what waits. A late answer is as good as one that was long under
        way, unless the copy has lost since what it had then.
        """
        groups = self._groups
        answers = [
            answer
            for group_id, answer in self._answers.pop(peer, {}).items()
            if (group := groups.get(group_id)) is not None and group.has_still(*answer[1:])
        ]
        if answers:
            self._links.send(peer, [NODE_LEVEL, BEATS_ANSWERED, answers])

    def wake(self, group: Steps | None = None) -> None:
        """Begin an iteration soon, and step this group in it."""
        if group is not None and self._groups.get(group.id) is group:
            self._to_step[group.id] = group
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            self._join()
            sleeper.set_result(None)

    def join(self, work: Callable[[], None]) -> None:
        """Call it just before the next iteration, which it does not bring about: what it proposes
        then shares the write and the fsync of that one.
        """
        self._joining.append(work)

    def _join(self) -> None:
        joining, self._joining = self._joining, []
        for work in joining:
            asyncio.get_running_loop().call_soon(work)

    async def run(self) -> None:
        """Iterate until `stop`."""
        loop = asyncio.get_running_loop()
        try:
            while not self._stopping:
                if self._to_step:
                    self._join()
                    await asyncio.sleep(0)  # let sockets be read between two iterations
                elif self._failure is None:
                    self._sleeper = loop.create_future()
                    await self._sleeper
                    self._sleeper = None
                if self._failure is not None:
                    raise self._failure
                await self._iterate()
        finally:
            self._stopping = True  # what comes after a broken disk is taken no more
            if self._timer is not None:
                self._timer.cancel()

    async def stop(self) -> None:
        """End after the current iteration. Proposals that wait get their outcome."""
        self._stopping = True
        for group in self._groups.values():
            group.stop()
        self.wake()
        jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)

    # --- one iteration

    async def _iterate(self) -> None:
        now = self._clock.monotonic_ns() / 1e9
        to_step, self._to_step = self._to_step, {}
        stepped = list[tuple[Steps, AfterSync]]()
        for group in to_step.values():
            try:
                stepped.append((group, group.step(now)))
            except FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- a bug stops its group, not the node
                group.fail(error)
        beats, self._beats = self._beats, {}
        for peer, joined in beats.items():
            self._answer(peer)
            self._links.send(peer, [NODE_LEVEL, BEATS, joined])
            self._beat_at[peer] = now
        must_sync = self._log.write()
        self._links.flush()
        if must_sync:
            await self._log.sync()
            self.syncs += 1
        self.count += 1
        groups = self._groups
        for group, messages in stepped:
            if messages and groups.get(group.id) is group:  # else it was removed meanwhile
                for peer, message in messages:
                    self._links.send(peer, message)
        self._links.flush()
        ended = self._clock.monotonic_ns() / 1e9
        if must_sync:
            log = self._log
            self.iterations.append((ended - now, log.record_count, log.written_bytes))
        for group, _ in stepped:
            if groups.get(group.id) is not group:
                continue
            try:
                group.after(ended)
            except FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- as in a step
                group.fail(error)
            if group.due <= ended:
                self._to_step[group.id] = group
            elif group.due < self._timer_at:
                self._set_timer(group.due)

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        delay_s = max(0.0, at - self._clock.monotonic_ns() / 1e9) + TIMER_SLACK_S
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        """The time of a group has come, or had come before it was put off."""
        self._timer, self._timer_at = None, math.inf
        now, later = self._clock.monotonic_ns() / 1e9, math.inf
        for group in self._groups.values():
            if group.due <= now:
                self.wake(group)
            else:
                later = min(later, group.due)
        if later < math.inf:
            self._set_timer(later)

    # --- jobs that outlast an iteration

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._stopping:
            work.close()
            return
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._job_done)

    def _job_done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            self._failure = error
            self.wake()
