"""One group's copy on this node: proposals become entries, committed entries go through the
machine.

Everything proposed until the next round becomes one entry, so the batch grows with the disk's
slowness and no timer is needed. A proposal has three outcomes: ok or refused once it is known,
unknown when leadership was lost and the truth did not arrive in time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol

import structlog

from cluster.codec.cbor import pack
from cluster.codec.entries import decode_entry, encode_entry
from cluster.entry_cache import EntryCache
from cluster.log import KIND_DIGEST, KIND_ROLE, SnapshotRefused
from cluster.machine.commands import Barrier, Command, Enqueue, Tick
from cluster.machine.effects import Effect
from cluster.machine.interface import Machine
from cluster.machine.replies import Refused, Reply
from cluster.raft.journal import RaftJournal
from cluster.raft.member import Member, Role
from cluster.raft.options import RaftOptions
from cluster.raft.snapshots import Incoming
from cluster.raft.stock import REGULAR
from cluster.seams import Clock, Links
from cluster.types import COMMANDS_PER_ENTRY_MAX, BodyRef, GroupId, NodeId, Stamp

__all__ = ["Group", "GroupOptions", "Machine", "Outcome", "Role"]

log = structlog.get_logger(__name__)

#: An entry is closed when it reaches this; one command may be larger...
ENTRY_BYTES_TARGET = 1 << 20
#: ...up to this, which is refused.
ENTRY_BYTES_MAX = 17 << 20
#: Commands in one entry: ordinals are 16 bits wide, and the last one is left free.
ENTRY_COMMANDS_MAX = COMMANDS_PER_ENTRY_MAX - 1
#: Bytes proposed and not yet applied; more are refused until some are.
PROPOSE_BYTES_MAX = 64 << 20
#: What a command weighs besides its bodies, for these limits.
COMMAND_OVERHEAD_BYTES = 96
#: A snapshot is taken after this many entries or bytes of entries.
SNAPSHOT_ENTRIES = 20_000
SNAPSHOT_BYTES = 64 << 20
#: A digest of the state is noted every so many entries, at the same indexes on every replica.
DIGEST_ENTRIES = 1_000
#: Nothing waits longer for a tick than this, whatever was computed: clocks jump.
TICK_S_MAX = 0.050


class Notes(Protocol):
    """The part of the log that takes notes for a later reader."""

    def note(self, kind: int, group: int, index: int, term: int, payload: bytes) -> None: ...


@dataclass(frozen=True, slots=True)
class GroupOptions(RaftOptions):
    """Times of the protocol, and limits of one group."""

    propose_bytes_max: int = PROPOSE_BYTES_MAX
    snapshot_entries: int = SNAPSHOT_ENTRIES
    snapshot_bytes: int = SNAPSHOT_BYTES


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a proposal.

    ok: applied here. refused: surely did not happen. unknown: may have happened.
    """

    kind: Literal["ok", "refused", "unknown"]
    reply: Reply | None = None
    stamp: Stamp | None = None
    code: str | None = None
    reason: str | None = None
    leader: NodeId | None = None


Done = Callable[[Outcome], None]
OnApplied = Callable[["Group", Stamp, Sequence[Effect]], None]
OnRole = Callable[["Group", Role, int], None]


@dataclass(slots=True)
class _Waiting:
    """An entry of ours that is not applied yet."""

    term: int
    dones: list[Done | None]
    size: int
    until: float | None = None  # set when leadership was lost: then unknown


class Group:
    """Driven by `Rounds`: `receive` collects, `step` works.

    All listeners and `done` callbacks run inside a step.
    """

    def __init__(
        self,
        id: GroupId,
        name: str,
        members: Sequence[NodeId],
        self_node: NodeId,
        *,
        machine: Machine,
        journal: RaftJournal,
        log: Notes,
        links: Links,
        clock: Clock,
        random: Random,
        options: GroupOptions | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.members = tuple(members)
        self.node = self_node
        self.machine = machine
        self.journal = journal
        self.options = options or GroupOptions()
        #: Called with every applied command that has effects, on every member; only the leader
        #: carries them out.
        self.on_applied: list[OnApplied] = []
        #: LEADER is told once the machine is up to date (the no-op of the term is applied), the
        #: others at once.
        self.on_role: list[OnRole] = []
        #: Set by `Rounds`: asks for a step soon, runs a coroutine to its end.
        self.wake: Callable[[], None] = lambda: None
        self.spawn: Callable[[Coroutine[Any, Any, None]], object] | None = None
        self.pending_bytes = 0
        self.failed: str | None = None
        self.due = 0.0  # when it must be stepped next though nothing happens
        self._notes = log
        self._clock = clock
        self._inbox: list[tuple[NodeId, list[Any] | None, bool]] = []
        self._proposed: list[tuple[Command, Done | None, int]] = []
        self._waiting: dict[int, _Waiting] = {}
        self._finished: list[tuple[Done, Outcome]] = []
        self._cache = EntryCache()
        self._now_ms = 0  # highest time stamped or seen
        self._ready = False  # leads, and its machine holds all that was committed before
        self._stopping = False
        self._installing = False
        self._saving = False
        self._tick_index = 0  # entry of the Tick that is on its way
        self._entries_since_snapshot = 0
        self._bytes_since_snapshot = 0
        self.member = Member(
            id,
            self_node,
            members,
            host=self,
            journal=journal,
            links=links,
            clock=clock,
            random=random,
            options=self.options,
        )
        snapshot = journal.load_snapshot()
        if snapshot is not None:
            machine.restore(snapshot.data)

    # --- what it is

    @property
    def role(self) -> Role:
        return self.member.role

    @property
    def ready(self) -> bool:
        """Leads, and the machine holds everything that was ever confirmed."""
        return self._ready

    @property
    def leader(self) -> NodeId | None:
        leader = self.member.leader
        return None if leader is None else leader.id

    @property
    def term(self) -> int:
        return self.member.term

    @property
    def commit_index(self) -> int:
        return self.member.commit_index

    @property
    def applied_index(self) -> int:
        return self.member.applied_index

    @property
    def last_index(self) -> int:
        return self.journal.last_index

    @property
    def poisoned(self) -> str | None:
        """Why this copy stopped for good, if it did: a bug, never a client's doing."""
        return self.failed or self.member.poisoned

    def caught_up(self, node: NodeId) -> bool:
        """As the leader: `node` could take over now or in a moment."""
        return self.lag().get(node, 1 << 62) <= 1

    def lag(self) -> dict[NodeId, int]:
        """As the leader: entries that each other member lacks."""
        last = self.last_index
        followers = self.member.replication.followers.values()
        return {progress.peer.id: last - progress.match for progress in followers}

    def status(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "name": self.name,
            "members": list(self.members),
            "role": self.role.name.lower(),
            "leader": self.leader,
            "term": self.term,
            "commit": self.commit_index,
            "applied": self.applied_index,
            "last": self.last_index,
            "base": self.journal.base_index,
            "lag": self.lag(),
            "poisoned": self.poisoned,
            "pending_bytes": self.pending_bytes,
            "machine": self.machine.overview(),
        }

    # --- proposing

    def propose(self, command: Command, done: Done | None = None) -> None:
        """Ask for `command` to be applied. `done` is called exactly once."""
        size = COMMAND_OVERHEAD_BYTES
        if type(command) is Enqueue:
            bodies = command.bodies
            size += sum(map(len, bodies)) + 8 * len(bodies)
        refusal = self._refusal(size)
        if refusal is not None:
            if done is not None:
                done(refusal)
            return
        self.pending_bytes += size
        self._proposed.append((command, done, size))
        if len(self._proposed) == 1:
            self.wake()

    def _refusal(self, size: int) -> Outcome | None:
        member = self.member
        if not member.leads or member.replication.transferring or self.poisoned is not None:
            return self._not_now()
        if self._stopping:
            return self._refused("stopping", "the node is shutting down; ask the next leader")
        if size > ENTRY_BYTES_MAX:
            return self._refused("too_large", f"{size} bytes in one command; {ENTRY_BYTES_MAX} go")
        if self.pending_bytes + size > self.options.propose_bytes_max and self.pending_bytes:
            return self._refused("overloaded", f"{self.pending_bytes} bytes wait; try again later")
        return None

    def _not_now(self) -> Outcome:
        """Why this member takes no proposals, when it takes none."""
        if self.poisoned is not None:
            return self._refused(
                "poisoned", f"this copy of group {self.name} stopped: {self.poisoned}"
            )
        leader = self.leader
        if leader is not None and leader != self.node:
            return self._refused("not_leader", f"node {leader} leads group {self.name}", leader)
        return self._refused("no_leader", f"group {self.name} has no leader now; try again")

    def _refused(self, code: str, reason: str, leader: NodeId | None = None) -> Outcome:
        return Outcome("refused", None, None, code, reason, leader)

    async def ask(self, command: Command) -> Outcome:
        """Propose and wait for the outcome."""
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> None:
            if not future.done():
                future.set_result(outcome)

        self.propose(command, done)
        return await future

    async def barrier(self) -> Outcome:
        """Once ok, everything confirmed before this call is in this machine: read it and the read
        is linearizable.
        """
        return await self.ask(Barrier())

    def transfer(self, to: NodeId | None) -> None:
        """Hand leadership to `to`, or to whoever is closest.

        Proposals are refused until it is done or given up.
        """
        member = self.member
        if member.leads:
            peer = next((peer for peer in member.voters if peer.id == to), None)
            if to is None or peer is not None:
                member.replication.transfer(peer, member.now)
                self.wake()

    def stop(self) -> None:
        """No more proposals; what waits is unknown, as far as this node can tell."""
        self._stopping = True
        self._refuse_proposed()
        self._give_up(self._waiting, "the node is shutting down")
        self._finish()

    # --- input, between rounds

    def receive(self, sender: NodeId, message: list[Any]) -> None:
        self._inbox.append((sender, message, False))

    def peer_up(self, peer: NodeId) -> None:
        self._inbox.append((peer, [], False))
        self.wake()

    def peer_down(self, peer: NodeId, *, gone: bool) -> None:
        self._inbox.append((peer, None, gone))
        self.wake()

    # --- the round

    def step(self, now: float) -> None:
        """All that waits: messages, timers, commit, apply, new entries, appends to followers."""
        if self._installing or self.failed is not None:
            self.due = now + TICK_S_MAX
            return
        member = self.member
        member.now = now
        inbox, self._inbox = self._inbox, []
        for position, (peer, message, gone) in enumerate(inbox):
            if message:
                member.receive(peer, message)
                if self._installing:
                    self._inbox = inbox[position + 1 :]  # for after the install
                    self.due = now + TICK_S_MAX
                    return
            elif message is None:
                member.link_down(peer, gone=gone)
            else:
                member.link_up(peer)
        member.tick(now)
        self._become_ready()
        if self._finished:
            self._finish()
        if member.leads:
            self._propose_tick()
        if self._proposed:
            self._append_proposed()
        member.flush(now)
        if self._waiting:
            self._expire(now)
        if self._finished:
            self._finish()
        self._take_snapshot_when_due()
        self.due = min(member.due(), now + TICK_S_MAX)

    def synced(self) -> bool:
        """After the round's sync: what waited for it leaves. True when another step would do
        something.
        """
        self.member.transport.release()
        return self.member.leads and self.member.replication.may_commit()

    def fail(self, error: Exception) -> None:
        """A bug in the protocol: this copy stops, the others go on."""
        self.failed = f"{type(error).__name__}: {error}"
        log.error("group_failed", group=self.name, node=self.node, exc_info=error)
        self._refuse_proposed()
        self._give_up(self._waiting, "this copy stopped because of a bug")
        self._finish()

    def _become_ready(self) -> None:
        noop = self.member.noop_index
        if not self._ready and noop is not None and self.applied_index >= noop:
            self._ready = True
            self._tell_role(Role.LEADER)

    def _tell_role(self, role: Role) -> None:
        for listener in self.on_role:
            self._guard(listener, self, role, self.term)

    def _append_proposed(self) -> None:
        """What was proposed since the last round, as few entries."""
        if not self.member.leads or self.poisoned is not None:
            self._refuse_proposed()
            return
        proposed, self._proposed = self._proposed, []
        start = 0
        size = 0
        for position, (_, _, weight) in enumerate(proposed):
            full = size + weight > ENTRY_BYTES_TARGET or position - start == ENTRY_COMMANDS_MAX
            if full and position > start:
                self._append_entry(proposed[start:position], size)
                start, size = position, 0
            size += weight
        self._append_entry(proposed[start:], size)

    def _append_entry(self, proposed: list[tuple[Command, Done | None, int]], size: int) -> None:
        self._now_ms = max(self._now_ms, self._clock.wall_ms())
        data = encode_entry(self._now_ms, [command for command, _, _ in proposed])
        if len(data) > ENTRY_BYTES_MAX:
            if len(proposed) > 1:  # the weights are estimates
                for one in proposed:
                    self._append_entry([one], one[2])
                return
            self.pending_bytes -= size
            reason = f"{len(data)} bytes in one command; {ENTRY_BYTES_MAX} go"
            self._resolve([proposed[0][1]], self._refused("too_large", reason))
            return
        index = self.member.append(data)
        self._waiting[index] = _Waiting(self.term, [done for _, done, _ in proposed], size)

    def _propose_tick(self) -> None:
        """Tell the machine that time has passed, when something in it waits for that."""
        if not self._ready or self._tick_index > self.applied_index:
            return
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and due_ms <= max(self._now_ms, self._clock.wall_ms()):
            self._proposed.append((Tick(), None, 0))
            self._tick_index = self.last_index + 1

    # --- outcomes

    def _resolve(self, dones: Sequence[Done | None], outcome: Outcome) -> None:
        self._finished.extend([(done, outcome) for done in dones if done is not None])

    def _finish(self) -> None:
        while self._finished:
            finished, self._finished = self._finished, []
            for done, outcome in finished:
                self._guard(done, outcome)

    def _guard(self, call: Callable[..., None], *args: Any) -> None:
        """A listener's bug is its own: it must not stop replication."""
        try:
            call(*args)
        except Exception:
            log.exception("listener_failed", group=self.name, listener=repr(call))

    def _refuse_proposed(self) -> None:
        proposed, self._proposed = self._proposed, []
        if proposed:
            self.pending_bytes -= sum(size for _, _, size in proposed)
            outcome = (
                self._refused("stopping", "shutting down") if self._stopping else self._not_now()
            )
            self._resolve([done for _, done, _ in proposed], outcome)

    def _expire(self, now: float) -> None:
        overdue = [
            i for i, each in self._waiting.items() if each.until is not None and now >= each.until
        ]
        if overdue:
            self._give_up(overdue, "leadership was lost before the commit was seen")

    def _give_up(self, indexes: Sequence[int] | dict[int, _Waiting], reason: str) -> None:
        for index in list(indexes):
            waiting = self._waiting.pop(index)
            self.pending_bytes -= waiting.size
            outcome = Outcome("unknown", None, None, "leadership_lost", reason, self.leader)
            self._resolve(waiting.dones, outcome)

    # --- what the member asks of its host

    def role_changed(self, role: Role, term: int) -> None:
        payload = pack([role.name.lower(), self.leader])
        self._notes.note(KIND_ROLE, self.id, self.last_index, term, payload)
        log.info("role_changed", group=self.name, node=self.node, role=role.name, term=term)
        if role is Role.LEADER:
            return
        self._ready = False
        until = self.member.now + self.options.election_max_ms / 1000
        for waiting in self._waiting.values():
            if waiting.until is None:
                waiting.until = until
        self._refuse_proposed()
        self._tell_role(role)

    def apply_entry(self, command: bytes, index: int, term: int) -> None:
        size = len(command)
        self._bytes_since_snapshot += size
        self._entries_since_snapshot += 1
        waiting = self._waiting.pop(index, None) if self._waiting else None
        if command[:1] == REGULAR:
            self._apply_regular(command, index, term, waiting)
        elif waiting is not None:
            self._overwritten(waiting)
        if index % DIGEST_ENTRIES == 0:
            self._notes.note(KIND_DIGEST, self.id, index, term, self.machine.digest())

    def _apply_regular(self, data: bytes, index: int, term: int, waiting: _Waiting | None) -> None:
        dones: Sequence[Done | None] = ()
        if waiting is not None:
            if waiting.term == term:
                dones = waiting.dones
                self.pending_bytes -= waiting.size
            else:
                self._overwritten(waiting)
        apply = self.machine.apply
        # A new leader whose machine is not up to date yet owes all of it again: its listeners ask
        # on_leader().
        listeners = self.on_applied if self._ready or not self.member.leads else ()
        offset = ordinal = 0
        try:
            entry = decode_entry(memoryview(data)[1:])
            now_ms = entry.now_ms
            self._now_ms = max(self._now_ms, now_ms)
            for ordinal, command in enumerate(entry.commands):
                stamp = Stamp(index, term, now_ms, ordinal, offset)
                reply, effects = apply(stamp, command)
                if type(command) is Enqueue:
                    offset += len(command.bodies)
                if dones and (done := dones[ordinal]) is not None:
                    if type(reply) is Refused:
                        outcome = Outcome("refused", reply, stamp, reply.code, reply.reason)
                    else:
                        outcome = Outcome("ok", reply, stamp)
                    self._finished.append((done, outcome))
                if effects:
                    for listener in listeners:
                        self._guard(listener, self, stamp, effects)
        except Exception as error:
            reason = f"{type(error).__name__} in the machine at entry {index}"
            self._resolve(dones[ordinal:], Outcome("unknown", None, None, "poisoned", reason))
            raise
        if offset:
            self._cache.put(index, entry, len(data))

    def _overwritten(self, waiting: _Waiting) -> None:
        """Another entry was committed where ours stood: ours never will be."""
        self.pending_bytes -= waiting.size
        reason = "leadership was lost and the new leader's log went on without it"
        self._resolve(waiting.dones, self._refused("not_leader", reason, self.leader))

    def poison(self, index: int, error: Exception) -> None:
        log.error("group_poisoned", group=self.name, node=self.node, index=index, exc_info=error)
        self._give_up(self._waiting, f"this copy stopped at entry {index}")

    # --- bodies

    def read_bodies(self, ref: BodyRef) -> list[tuple[bytes, Any]]:
        """Body and meta of each message; empty when they are settled and gone."""
        index, offset, count = ref
        decoded = self._cache.get(index)
        if decoded is None:
            data = self.journal.read(index)
            if data is None or data[:1] != REGULAR:
                return []
            decoded = self._cache.put(index, decode_entry(memoryview(data)[1:]), len(data))
        return decoded.messages(offset, count)

    # --- snapshots

    def restore(self, data: bytes, index: int) -> None:
        self.machine.restore(data)
        self._cache.clear()
        self._entries_since_snapshot = self._bytes_since_snapshot = 0
        overtaken = [each for each in self._waiting if each <= index]
        self._give_up(overtaken, "a snapshot took the place of the entry")

    def install(self, incoming: Incoming) -> None:
        """Until the journal is done nothing else may touch it: the group stands still."""
        self._installing = True
        assert self.spawn is not None, "an install needs Rounds"
        self.spawn(self._finish_install(incoming))

    async def _finish_install(self, incoming: Incoming) -> None:
        try:
            await self.journal.finish_install()
            done = True
        except SnapshotRefused as error:
            log.warning("install_refused", group=self.name, node=self.node, reason=str(error))
            done = False
        self._installing = False
        self.member.installed(done=done)
        self.wake()

    def _take_snapshot_when_due(self) -> None:
        options = self.options
        if (
            self._entries_since_snapshot < options.snapshot_entries
            and self._bytes_since_snapshot < options.snapshot_bytes
        ):
            return
        if self._saving or self.poisoned is not None or self.spawn is None:
            return
        if self.member.replication.installing:
            return
        self._saving = True
        self._entries_since_snapshot = self._bytes_since_snapshot = 0
        self.spawn(self.take_snapshot())

    async def take_snapshot(self) -> None:
        """The machine as it is now; then the log before it is dropped, but for the entries still
        needed.
        """
        self._saving = True
        index = self.applied_index
        term = self.journal.term_at(index)
        try:
            if term is not None and index > self.journal.base_index:
                live = self.machine.live_indexes()
                await self.journal.save_snapshot(index, term, self.machine.snapshot(), live)
                log.info("snapshot_taken", group=self.name, node=self.node, index=index)
        except SnapshotRefused as error:
            log.info("snapshot_refused", group=self.name, node=self.node, reason=str(error))
        finally:
            self._saving = False
