"""A node's own queues, which end with its process: the same machine without a log and replicas.

What is proposed in one iteration of the loop is applied in the next, so its callers are never
called back from inside `propose`, and what came together is told together. Every command has an
index of its own; bodies are kept under it for as long as the machine names it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import structlog

from cluster.agreed_time import DOUBT_S, AgreedTime, LogTime
from cluster.codec.entries import AnyCommand, Entry, encode_command
from cluster.groups.applying import SKIPPED_BYTES_MAX, skipped_reason
from cluster.groups.cold_reads import OnArrival
from cluster.groups.entry_cache import CachedEntry
from cluster.groups.outcome import Done, Outcome, called_back, refused, unknown
from cluster.groups.pacing import HOLD_MS_MAX, Pacing
from cluster.groups.proposals import (
    COMMAND_OVERHEAD_BYTES,
    ENTRY_BYTES_MAX,
    Proposals,
    brings_bytes,
    guarded,
    too_large,
    weigh,
)
from cluster.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.commands import BodyPart, Command, Enqueue, Tick
from cluster.machine.effects import Effect
from cluster.machine.replies import COMMAND_SKIPPED, Enqueued, Refused
from cluster.raft.member import Role
from cluster.seams import Clock
from cluster.types import Body, BodyRef, GroupId, NodeId, Stamp

log = structlog.get_logger(__name__)

#: Bytes of bodies kept for the queues of one node; what would be more is refused.
TRANSIENT_BYTES_MAX = 256 << 20
#: About what a kept command costs besides its bodies and what is said of them.
KEPT_OVERHEAD_BYTES = 512
#: What the machine still needs is looked at no more often than this...
LOOK_S_MIN = 0.1
#: ...and than this for each thing that has to be looked at, so that it takes a tenth of the time.
LOOK_S_EACH = 0.000_01
#: Nothing waits longer for a tick than this, whatever was computed: clocks jump.
TICK_S_MAX = 1.0
#: The state is kept, to go back to, no more often than after so many commands...
CHECKPOINT_COMMANDS = 256
#: ...than for this part of the time, and no less often than after so many bytes.
CHECKPOINT_SHARE = 0.02
CHECKPOINT_BYTES = 16 << 20
#: There is nobody to vote.
TERM = 1

OnEffects = Callable[["LocalGroup", Stamp, Sequence[Effect]], None]


class _Kept(NamedTuple):
    command: AnyCommand
    entry: CachedEntry
    bytes: int


class LocalGroup:
    """Has the surface of `Group` as far as the broker uses it: see `GroupLike`."""

    def __init__(
        self,
        group: GroupId,
        name: str,
        node: NodeId,
        *,
        clock: Clock,
        bytes_max: int = TRANSIENT_BYTES_MAX,
        confirm_hold_ms_max: int = HOLD_MS_MAX,
        agreed_time: AgreedTime | None = None,
    ) -> None:
        self.id = group
        self.name = name
        self.members = (node,)
        self.node = node
        self.machine = QueueMachine(MACHINE_VERSION)
        self.role = Role.LEADER
        self.ready = True
        self.leader: NodeId | None = node
        self.term = TERM
        self.applied_index = 0
        self.poisoned: str | None = None
        self.skipped = 0  # commands at which the machine raised
        self.kept_bytes = 0
        #: Called with every applied command that has effects.
        self.on_effects: list[OnEffects] = []
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._time = LogTime(clock, agreed_time)
        self._proposals = Proposals(clock)
        self._pacing = Pacing(
            self.machine.backlog,
            self._proposals.answer_one,
            self._loop.time,
            hold_s_max=confirm_hold_ms_max / 1000,
        )
        self._release_at_s = math.inf  # what is held back then
        self._stopping = False
        self._checkpoint = self.machine.checkpoint()
        self._checkpoint_s = 0.0  # when the next may be
        self._since: list[tuple[Stamp, Command]] = []  # what was applied after it
        self._since_bytes = 0
        self._kept: dict[int, _Kept] = {}
        self._unneeded: list[int] = []  # at the last look; dropped at the next one
        self._unlooked = False  # commands were applied since the last look
        self._look_at_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = 0.0
        self._timer_not_before_s = 0.0  # at the last one the machine raised

    # --- what it is

    @property
    def pending_bytes(self) -> int:
        """Bytes proposed and not applied yet."""
        return self._proposals.bytes

    def lag(self) -> dict[NodeId, int]:
        """There is nobody else."""
        return {}

    def heard_s(self) -> dict[NodeId, float]:
        return {}

    def status(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "members": list(self.members),
            "role": self.role.name.lower(),
            "leader": self.leader,
            "term": self.term,
            "commit": self.applied_index,
            "applied": self.applied_index,
            "last": self.applied_index,
            "base": 0,
            "lag": {},
            "poisoned": self.poisoned,
            "skipped": self.skipped,
            "pending_bytes": self.pending_bytes,
        }

    # --- proposing

    def propose(self, command: Command, done: Done | None = None) -> None:
        """Ask for `command` to be applied. `done` is called exactly once."""
        weight = weigh(command)
        refusal = self._refusal(command, weight)
        if refusal is not None:
            if done is not None:
                done(refusal)
        elif self._proposals.add(command, done, weight):
            self._loop.call_soon(self._step)

    def _refusal(self, command: Command, weight: int) -> Outcome | None:
        if self._stopping:
            return refused("stopping", "this node is shutting down; ask another one")
        if self.poisoned is not None:
            return refused("poisoned", f"{self.name} stopped: {self.poisoned}")
        if weight > ENTRY_BYTES_MAX:
            return too_large(weight)
        needs_room = weight > COMMAND_OVERHEAD_BYTES and brings_bytes(command)
        if needs_room and not self._has_room(weight):
            return refused(
                "transient_full",
                f"the transient queues of node {self.node} hold {self.kept_bytes} bytes of"
                f" messages, and may hold {self._bytes_max}: consume some, or use durable queues",
            )
        return None

    def _has_room(self, weight: int) -> bool:
        wanted = weight + self._proposals.bytes
        if self.kept_bytes + wanted > self._bytes_max:
            self.tidy()
        return self.kept_bytes + wanted <= self._bytes_max

    async def ask(self, command: Command) -> Outcome:
        """Propose and wait for the outcome."""
        return await called_back(lambda done: self.propose(command, done))

    def stop(self) -> None:
        """No more proposals, no more time: its queues are over."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
        self._pacing.release_all()
        self._proposals.refuse_all(refused("stopping", "this node is shutting down"))
        self._proposals.call_back(self.name)

    # --- applying

    def _step(self) -> None:
        if not self._proposals.waiting:
            return  # stopped since
        now_ms = self._time.now_ms()
        if self._time.in_doubt and not self._stopping:
            self._loop.call_later(DOUBT_S, self._step)
            return
        self._time.saw(now_ms)
        for batch in self._proposals.batches():
            for command, done, weight in zip(*batch, strict=True):
                self._proposals.bytes -= weight
                self._apply(now_ms, command, done, weight)
        self._release()
        self._keep_state()
        self.tidy()
        self._set_timer()

    def _release(self) -> None:
        """Confirms that were held back, and all other answers."""
        self._pacing.release()
        self._proposals.call_back(self.name)
        due_s = self._pacing.due_s
        if due_s < self._release_at_s:
            self._release_at_s = due_s
            self._loop.call_at(due_s, self._release_in_time)

    def _release_in_time(self) -> None:
        self._release_at_s = math.inf
        self._release()

    def _apply(self, now_ms: int, command: Command, done: Done | None, weight: int) -> None:
        if self.poisoned is not None:
            self._answer(done, unknown(self.poisoned))
            return
        index = self.applied_index + 1
        stamp = Stamp(index, TERM, now_ms)
        try:
            reply, effects = self.machine.apply(stamp, command)
        except Exception as error:  # noqa: BLE001 -- a bug, whatever it is
            self._skip(stamp, command, error, done)
            return
        self._since.append((stamp, command))
        self._since_bytes += weight
        self.applied_index = index
        self._unlooked = True
        if type(reply) is Refused:
            self._answer(done, Outcome("refused", reply, stamp, reply.code, reply.reason))
        else:
            if weight > COMMAND_OVERHEAD_BYTES:
                self._keep(index, now_ms, command, weight)
            outcome = Outcome("ok", reply, stamp)
            if done is not None and type(command) is Enqueue and type(reply) is Enqueued:
                self._pacing.confirm(command.queue, reply, done, outcome)
            else:
                self._answer(done, outcome)
        if effects:
            for listener in self.on_effects:
                guarded(self.name, listener, self, stamp, effects)

    # --- commands at which the machine raises

    def _keep_state(self) -> None:
        """So that what a command has left half done can be undone."""
        began_s = self._loop.time()
        late = len(self._since) >= CHECKPOINT_COMMANDS and began_s >= self._checkpoint_s
        if (late or self._since_bytes >= CHECKPOINT_BYTES) and self.poisoned is None:
            self._checkpoint = self.machine.checkpoint()
            self._since.clear()
            self._since_bytes = 0
            ended_s = self._loop.time()
            self._checkpoint_s = ended_s + (ended_s - began_s) / CHECKPOINT_SHARE

    def _skip(self, stamp: Stamp, command: Command, error: Exception, done: Done | None) -> None:
        """It costs that command, as in a group with a log, and not all queues of this node."""
        about = {"group": self.name, "node": self.node, "index": stamp.index}
        try:
            self.machine.restore(self._checkpoint())
            for each in self._since:
                self.machine.apply(*each)
        except Exception:
            self.poisoned = f"{type(error).__name__} in the machine at command {stamp.index}"
            log.exception("group_poisoned", **about)
            self._answer(done, unknown(self.poisoned))
            return
        self.skipped += 1
        if type(command) is Tick:
            self._timer_not_before_s = self._loop.time() + TICK_S_MAX
        log.critical(
            "command_skipped",
            **about,
            error=f"{type(error).__name__}: {error}",
            command=encode_command(command)[:SKIPPED_BYTES_MAX].hex(),
            next="report it with these lines",
        )
        reply = Refused(COMMAND_SKIPPED, skipped_reason(error))
        self._answer(done, Outcome("refused", reply, stamp, reply.code, reply.reason))

    def _answer(self, done: Done | None, outcome: Outcome) -> None:
        if done is not None:
            self._proposals.answered.append((done, outcome))

    # --- bodies

    def _keep(self, index: int, now_ms: int, command: Command, weight: int) -> None:
        size = weight + KEPT_OVERHEAD_BYTES + _meta_bytes(command)
        self._kept[index] = _Kept(command, CachedEntry(Entry(1, now_ms, [command]), size), size)
        self.kept_bytes += size

    def read_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]]:
        """Body and meta of each message; empty when they are settled and gone."""
        kept = self._kept.get(ref.index)
        return [] if kept is None else kept.entry.messages(ref.offset, ref.count)

    def fetch(self, first: int, last: int, done: OnArrival) -> None:
        """All is in memory, or gone."""
        kept = self._kept.get(first)
        self._loop.call_soon(done, None if kept is None else kept.entry)

    async def load_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]]:
        return self.read_bodies(ref)

    async def load_part(self, index: int, offset: int) -> bytes | None:
        """A part of a large body; None: it is gone."""
        command = self.read_command(index, 0)
        return command.data if type(command) is BodyPart and not offset else None

    def entry_bytes(self, index: int) -> int:
        """Nothing is on disk."""
        return 0

    def age_s(self, index: int) -> float | None:
        kept = self._kept.get(index)
        return None if kept is None else (self._time.now_ms() - kept.entry.now_ms) / 1000

    def read_command(self, index: int, ordinal: int) -> AnyCommand | None:
        """A command that is still needed."""
        kept = self._kept.get(index)
        return None if kept is None or ordinal else kept.command

    def tidy(self) -> None:
        """Drop what is needed no more, unless somebody looked a moment ago.

        What a command took for good may still be read by who asked for it, so it is dropped only
        when it was unneeded at the look before, too.
        """
        now_s = self._loop.time()
        if not (self._unlooked or self._unneeded) or now_s < self._look_at_s:
            return
        self._unlooked = False
        for index in self._unneeded:
            self.kept_bytes -= self._kept.pop(index).bytes
        live = self.machine.live_indexes() if self._kept else []
        self._unneeded = list(_outside(self._kept, live))
        looked_at = len(self._kept) + len(self.machine.queues())
        self._look_at_s = now_s + max(LOOK_S_MIN, looked_at * LOOK_S_EACH)

    # --- time

    def _set_timer(self) -> None:
        due_ms = self.machine.next_due_ms()
        if due_ms is None or self._stopping or self.poisoned is not None:
            return
        delay_s = min(max(0.0, (due_ms - self._time.now_ms()) / 1000), TICK_S_MAX)
        at_s = max(self._loop.time() + delay_s, self._timer_not_before_s)
        delay_s = at_s - self._loop.time()
        if self._timer is not None:
            if self._timer_at_s <= at_s:
                return
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = self._loop.call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and due_ms <= self._time.now_ms():
            self.propose(Tick())
        else:
            self._set_timer()


def _meta_bytes(command: Command) -> int:
    """Of what is said of messages, where that is plain bytes; the rest is in the overhead."""
    meta = command.meta if type(command) is Enqueue else None
    if type(meta) is bytes:
        return len(meta)
    if type(meta) is list:
        return sum(len(each) for each in cast("list[Any]", meta) if type(each) is bytes)
    return 0


def _outside(indexes: dict[int, _Kept], ranges: Sequence[tuple[int, int]]) -> Iterator[int]:
    """Those of the ascending indexes that are in none of the ascending ranges."""
    left = iter(ranges)
    first, last = next(left, (1 << 63, 1 << 63))
    for index in indexes:
        while index > last:
            first, last = next(left, (1 << 63, 1 << 63))
        if index < first:
            yield index
