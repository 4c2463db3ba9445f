"""The drive loop of a node: all its groups, one write and one fsync for all of them together.

The contract between a group and the loop. One iteration

1. steps each group that has something to do. What the step writes goes into the buffer of the log.
   What promises nothing about the disk (appends, parts of snapshots, pre-votes) goes into the
   buffers of the links, which say at once when one is full. What does promise something
   (acknowledgements, votes, requests for votes) is in the `Ready` that the step returns;
2. writes the buffer of the log in one call;
3. flushes the links: what promises nothing leaves while the disk works;
4. syncs, if anything that was written must be;
5. sends the messages of each `Ready`, and only then begins the next iteration.

So nothing that a node promises is undone by a power cut, a leader never counts what is not on its
own disk, and what arrives during the fsync becomes the next batch. When the disk fails, step 5
never comes. Between steps 3 and 5 a leader takes acknowledgements (`take_acks`), and commits what
earlier iterations wrote. So while one queue keeps the disk busy, proposers of another queue get
their outcomes without waiting for the disk once more. `take_acks` sends nothing to other nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

from cluster.log import FatalDiskError, LogCorrupt
from cluster.seams import Clock, Links
from cluster.types import GroupId, NodeId

#: Timers are set a little late, so that when one fires its time has come whatever was rounded.
TIMER_SLACK_S = 0.0005
#: What ends the node: going on with such a disk could break promises.
FATAL = (FatalDiskError, LogCorrupt)

_due = attrgetter("due")


class DriveLog(Protocol):
    """What the loop needs of the node's log."""

    def write(self) -> bool:
        """Write what is buffered.

        True: something in it must be synced before anybody hears of it.
        """
        ...

    async def sync(self) -> object: ...


class Ready(NamedTuple):
    """What a step leaves to the loop."""

    #: Receivers and messages that may leave once all that was written by now is synced.
    messages: Sequence[tuple[NodeId, list[Any]]]
    #: Then another step would commit something, though nothing else happens.
    again: bool


#: The output of a step that did nothing.
NOTHING = Ready((), again=False)


class Steps(Protocol):
    """What the loop needs of a group."""

    id: GroupId
    due: float
    wake: Callable[[], None]
    on_commit: Callable[[float], None] | None
    spawn: Callable[[Coroutine[Any, Any, None]], object] | None

    def receive(self, sender: NodeId, message: list[Any]) -> None: ...
    def step(self, now: float) -> Ready: ...
    def take_acks(self, now: float) -> None: ...
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
        self._ready: dict[GroupId, Steps] = {}  # an ordered set: groups with something to do
        self._sleeper: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._syncing = False
        self._acked: dict[GroupId, Steps] = {}  # received something while the disk syncs
        self._failure: BaseException | None = None
        self._stopping = False
        self.count = 0
        self.syncs = 0
        #: For metrics. Called after each iteration that synced, with its seconds; and for each
        #: entry that was proposed here, with the seconds from its first proposal until applied.
        self.on_iteration: Callable[[float], None] | None = None
        self.on_commit: Callable[[float], None] | None = None

    def add(self, group: Steps) -> None:
        """Drive this group from now on."""
        assert group.id not in self._groups
        self._groups[group.id] = group
        group.wake = partial(self.wake, group)
        group.spawn = self._spawn
        group.on_commit = self._committed
        self.wake(group)

    def _committed(self, seconds: float) -> None:
        if self.on_commit is not None:
            self.on_commit(seconds)

    def remove(self, group_id: GroupId) -> None:
        group = self._groups.pop(group_id, None)
        self._ready.pop(group_id, None)
        if group is not None:
            group.stop()

    def receive(self, group_id: GroupId, peer: NodeId, message: list[Any]) -> None:
        """A message for one group, in the order of its link.

        Unknown groups are none of ours (yet).
        """
        group = self._groups.get(group_id)
        if group is not None:
            group.receive(peer, message)
            self.wake(group)
            if self._syncing:
                if not self._acked:
                    asyncio.get_running_loop().call_soon(self._take_acks)
                self._acked[group_id] = group

    def wake(self, group: Steps | None = None) -> None:
        """Begin an iteration soon, and step this group in it."""
        if group is not None and self._groups.get(group.id) is group:
            self._ready[group.id] = group
        sleeper = self._sleeper
        if sleeper is not None and not sleeper.done():
            sleeper.set_result(None)

    async def run(self) -> None:
        """Iterate until `stop`."""
        try:
            while not self._stopping:
                await self._sleep()
                if self._failure is not None:
                    raise self._failure
                await self._iterate()
        finally:
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
        groups = self._groups
        for group in groups.values():
            if group.due <= now:
                self._ready[group.id] = group
        due, self._ready = self._ready, {}
        stepped = list[tuple[Steps, Ready]]()
        for group in due.values():
            try:
                stepped.append((group, group.step(now)))
            except FATAL:
                raise
            except Exception as error:  # noqa: BLE001 -- a bug stops its group, not the node
                group.fail(error)
        must_sync = self._log.write()
        self._links.flush()
        if must_sync:
            self._syncing = True
            try:
                await self._log.sync()
            finally:
                self._syncing = False
            self.syncs += 1
        self.count += 1
        for group, ready in stepped:
            if groups.get(group.id) is not group:
                continue  # it was removed meanwhile
            for peer, message in ready.messages:
                self._links.send(peer, message)
            if ready.again:
                self._ready[group.id] = group
        self._links.flush()
        if must_sync and self.on_iteration is not None:
            self.on_iteration(self._clock.monotonic_ns() / 1e9 - now)

    def _take_acks(self) -> None:
        heard, self._acked = self._acked, {}
        if not self._syncing or self._stopping:
            return  # the next iteration is about to begin, or there is none
        now = self._clock.monotonic_ns() / 1e9
        try:
            for group_id, group in heard.items():
                if self._groups.get(group_id) is group:
                    try:
                        group.take_acks(now)
                    except FATAL:
                        raise
                    except Exception as error:  # noqa: BLE001 -- as in a step
                        group.fail(error)
        except FATAL as error:
            self._failure = error
            self.wake()

    async def _sleep(self) -> None:
        """Until something is to do, or the next group's time has come."""
        if self._ready or self._stopping or self._failure is not None:
            await asyncio.sleep(0)  # let sockets be read between two iterations
            return
        loop = asyncio.get_running_loop()
        due = min(map(_due, self._groups.values()), default=None)
        self._sleeper = loop.create_future()
        if due is not None:
            delay = max(0.0, due - self._clock.monotonic_ns() / 1e9)
            self._timer = loop.call_later(delay + TIMER_SLACK_S, self.wake)
        try:
            await self._sleeper
        finally:
            self._sleeper = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    # --- jobs that outlast an iteration

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._job_done)

    def _job_done(self, job: asyncio.Task[None]) -> None:
        self._jobs.discard(job)
        if not job.cancelled() and (error := job.exception()) is not None:
            self._failure = error
            self.wake()
