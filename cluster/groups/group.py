"""One group's copy on this node: proposals become entries, entries go through the machine.

A proposal has three outcomes: ok or refused once that is known, unknown when leadership was lost
and the truth did not arrive in time.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, Protocol

import structlog

from cluster.agreed_time import AgreedTime, LogTime
from cluster.codec.cbor import pack
from cluster.codec.entries import AnyCommand, encode_entry, version_needed, written_under
from cluster.codec.errors import CodecError
from cluster.groups.applying import KINDS_OF_RAFT, SKIPPED_BYTES_MAX, Applying
from cluster.groups.cold_reads import OnArrival
from cluster.groups.group_options import GroupOptions
from cluster.groups.outcome import Done, Outcome, called_back, refused, too_new, unknown
from cluster.groups.pacing import Pacing
from cluster.groups.proposals import (
    COMMAND_OVERHEAD_BYTES,
    ENTRY_BYTES_MAX,
    EntryBatch,
    Proposals,
    brings_bytes,
    guarded,
    report_bug,
    too_large,
    weigh,
)
from cluster.groups.snapshotting import Snapshots
from cluster.log import KIND_DIGEST, KIND_ROLE, KIND_SKIPPED, SnapshotRefused
from cluster.machine.commands import Barrier, Command, Tick, TransactionPart, UpgradeMachine
from cluster.machine.effects import Effect
from cluster.machine.interface import Machine
from cluster.machine.versions import NeedsNewer
from cluster.raft.configuration import Configuration, split
from cluster.raft.drive_loop import AfterSync
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.member import Member, Role
from cluster.raft.pysyncobj_core import REGULAR
from cluster.raft.snapshot_transfer import Incoming
from cluster.seams import Clock, Links
from cluster.types import Body, BodyRef, GroupId, NodeId, Stamp

__all__ = [
    "Group",
    "GroupOptions",
    "Machine",
    "Outcome",
    "Role",
]

log = structlog.get_logger(__name__)

#: Nothing waits longer for a tick than this, whatever was computed: clocks jump.
TICK_S_MAX = 0.5
#: How often a group checks whether what holds something up is over.
WAIT_S = 0.050
#: What one group may have under way of the room on the disk: others write there, too.
ROOM_PARTS = 4
ROOMY_BYTES = 1 << 60

#: A digest of the state is noted every so many entries, at the same indexes on every replica.
DIGEST_ENTRIES = 1_000

OnEffects = Callable[["Group", Stamp, Sequence[Effect]], None]
OnRole = Callable[["Group", Role, int], None]


class Notes(Protocol):
    """The part of the log that takes notes for a later reader."""

    def note(self, kind: int, group: int, index: int, term: int, payload: bytes) -> None: ...


class Group:
    """Driven by `DriveLoop`: `receive` collects, `step` works, `after` ends it.

    Listeners and `done` callbacks run inside `step`, `after` or `receive`; a `done` also inside
    `propose`, when it is refused at once, and inside `stop` and `fail`.
    """

    def __init__(
        self,
        group: GroupId,
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
        agreed_time: AgreedTime | None = None,
    ) -> None:
        self.id = group
        self.name = name
        self.node = self_node
        self.machine = machine
        self.journal = journal
        self.options = options or GroupOptions()
        #: Called with every applied command that has effects, on every member but a leader that is
        #: not ready: it asks `on_leader()`. Only the leader carries them out.
        self.on_effects: list[OnEffects] = []
        #: Each is called once: when the next entry was applied, also by one who does not lead, when
        #: a snapshot took the place of many, or this copy is dropped.
        self.on_next: list[Callable[[], object]] = []
        #: LEADER is told once the machine is up to date, the others at once.
        self.on_role: list[OnRole] = []
        #: Set by `DriveLoop`: asks for a step soon.
        self.wake: Callable[[], None] = lambda: None
        #: Set by `DriveLoop`: runs a coroutine to its end.
        self.spawn: Callable[[Coroutine[Any, Any, None]], object] | None = None
        #: Set by `DriveLoop`, too: see `Host.beat`.
        self.beat: Callable[[NodeId, list[Any]], bool] = lambda _peer, _beat: False
        #: Set by `DriveLoop`: of each entry, from its first proposal here until it was applied.
        self.commit_seconds = deque[float](maxlen=1)
        #: Set by the cluster node: the machine version that every member can run.
        self.version_of_members: Callable[[], int] = lambda: 1
        #: Set by the cluster node: see `Host.let_in`.
        self.let_in: Callable[[NodeId], bool] = lambda _: False
        #: What a later release wrote, and this copy stopped before; and who is told of it.
        self.needs_newer: NeedsNewer | None = None
        self.on_needs_newer: Callable[[NeedsNewer], object] = lambda _: None
        #: Set by the cluster node: bytes that the log may grow by before only its reserve is left.
        self.room_bytes: Callable[[], int] = lambda: ROOMY_BYTES
        self.failed: str | None = None
        self.role = Role.FOLLOWER
        #: Index, own digest and the leader's of the last comparison, when they differed.
        self.diverged: tuple[int, bytes, bytes] | None = None
        self.commit_s = 0.0  # what the last entry took that was proposed here, until it was applied
        self.due = 0.0  # when it must be stepped next though nothing happens
        self.held = False  # a backup is being cut: what is proposed waits
        self.kept_until = 0.0  # until then the log keeps what a backup reads
        self._clock = clock
        self._notes = log
        # From whom; a message of Raft, or [] when the link came up, or None when it went down; and
        # of the last, whether it was closed, not silent.
        self._inbox: list[tuple[NodeId, list[Any] | None, bool]] = []
        self._proposals = Proposals(clock)
        self._time = LogTime(clock, agreed_time)
        self._pacing = Pacing(
            machine.backlog,
            self._proposals.answer_one,
            lambda: clock.monotonic_ns() / 1e9,
            hold_s_max=self.options.confirm_hold_ms_max / 1000,
        )
        self._applying = Applying(
            machine, journal, self._proposals, self._time, self._spawn_read, self._pacing
        )
        self._applying.on_skipped = self._skipped
        #: Body and meta of each message; empty when they are settled and gone, None when they are
        #: not in memory: then `fetch` brings them.
        self.read_bodies = self._applying.read_bodies
        #: Of an entry whose bodies were just read: since its leader proposed it.
        self.age_s = self._applying.age_s
        #: Leads, and the machine holds everything that was ever confirmed.
        self.ready = False
        self._stopping = False
        self._installing = False
        self._stepping = False  # since the last step what it wrote was not synced
        self._tick_index = 0  # entry of the Tick that is on its way
        #: When the machine waits for a tick, as of an applied entry: it changes by nothing else.
        self._due_ms: int | None = None
        self._due_at = -1
        #: By the monotonic clock, when to check whether it is so late; and for what time of the log
        #: that was worked out. Clocks jump, so it is never far.
        self._tick_at = math.inf
        self._planned_ms: int | None = None
        #: As the leader: the machine version under which the next entry will be applied.
        self._writes = machine.version
        self.member = Member(
            group,
            self_node,
            members,
            host=self,
            journal=journal,
            links=links,
            clock=clock,
            random=random,
            options=self.options,
        )
        self.member.digests.on_compared = self._compared
        self._snapshots = Snapshots(
            name, machine, journal, self.options, join=self.member.configurations.joined
        )
        snapshot = journal.load_snapshot()
        if snapshot is not None:
            state = split(snapshot.data)[1]
            beyond = machine.beyond(state)
            if beyond is None:
                self._applying.restore(state)
            else:
                self.member.following.stop_before(snapshot.index, beyond)

    # --- what it is

    @property
    def members(self) -> tuple[NodeId, ...]:
        """Voters and learners, as this copy knows them."""
        return self.configuration.members

    @property
    def configuration(self) -> Configuration:
        return self.member.configuration

    @property
    def configured_at(self) -> int:
        """Index of the entry that says so."""
        return self.member.configurations.index

    @property
    def leader(self) -> NodeId | None:
        leader = self.member.leader
        return None if leader is None or self.failed is not None else leader.id

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
    def pending_bytes(self) -> int:
        """Proposed here and not applied yet."""
        return self._proposals.bytes

    @property
    def poisoned(self) -> str | None:
        """Why this copy stopped, if it did: a bug, or what a later release wrote; never a client's
        doing.
        """
        return self.failed or self.member.poisoned

    @property
    def votes_suspended(self) -> bool:
        return self.member.votes_suspended

    @property
    def skipped(self) -> int:
        """Commands at which the machine raised, since the process started."""
        return self._applying.skipped_count

    def caught_up(self, node: NodeId) -> bool:
        """As the leader: `node` could take over now or in a moment."""
        return self.lacks(node) <= 1

    def lacks(self, node: NodeId) -> int:
        return self.member.replication.lacks(node)

    def lag(self) -> dict[NodeId, int]:
        """As the leader: entries that each other member lacks."""
        return self.member.replication.lag()

    def heard_s(self) -> dict[NodeId, float]:
        """As the leader: seconds since each other member last answered."""
        return self.member.replication.heard_s(self._clock.monotonic_ns() / 1e9)

    def status(self) -> dict[str, Any]:
        """For people and tests, at the same cost however many queues there are. Indexes are of the
        group's log; `lag` counts entries, and only a leader knows it.
        """
        return {
            "id": self.id,
            "name": self.name,
            "members": list(self.members),
            "learners": list(self.configuration.learners),
            "withholds_votes": self.votes_suspended,
            "role": self.role.name.lower(),
            "leader": self.leader,
            "term": self.term,
            "commit": self.commit_index,
            "applied": self.applied_index,
            "last": self.last_index,
            "base": self.journal.base_index,
            "lag": self.lag(),
            "poisoned": self.poisoned,
            "skipped": self.skipped,
            "diverged": self.member.diverged,
            "machine_version": self.machine.version,
            "needs_version": None if self.needs_newer is None else self.needs_newer.needed,
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
            self.wake()

    def _refusal(self, command: Command, weight: int) -> Outcome | None:
        pending, member = self._proposals.bytes, self.member
        if self._stopping or not member.accepts or member.poisoned or self.failed:
            return self._not_now()
        if weight > ENTRY_BYTES_MAX:
            return too_large(weight)
        if pending and pending + weight > self.options.propose_bytes_max:
            return refused("overloaded", f"{pending} bytes wait to be applied; try again later")
        if (
            weight > COMMAND_OVERHEAD_BYTES
            and pending + weight > self.room_bytes() // ROOM_PARTS
            and brings_bytes(command)
        ):
            return refused("disk_full", "the disk of this node is nearly full: consume first")
        needed = version_needed(command)
        return self._too_new(needed) if needed > self._writes else None

    def _too_new(self, needed: int) -> Outcome:
        """A member may be of a release that does not know the command."""
        if not self.ready:  # it leads since a moment ago, and its machine may rise yet
            return refused("no_leader", f"group {self.name} has a new leader: try again")
        return too_new(needed, self._writes)

    def _not_now(self) -> Outcome:
        """Why this member takes no proposals, when it takes none."""
        if self._stopping:
            return refused("stopping", "this node is shutting down; ask the next leader")
        if self.poisoned is not None:
            return refused("poisoned", f"this copy of {self.name} stopped: {self.poisoned}")
        leader = self.leader
        if leader is not None and leader != self.node:
            return refused("not_leader", f"node {leader} leads group {self.name}", leader)
        return refused("no_leader", f"group {self.name} has no leader now; try again")

    async def ask(self, command: Command) -> Outcome:
        """Propose and wait for the outcome."""
        return await called_back(lambda done: self.propose(command, done))

    async def barrier(self) -> Outcome:
        """Once ok, everything confirmed before is in this machine: reads are linearizable."""
        return await self.ask(Barrier())

    def suspend_votes(self) -> None:
        """This disk forgot what it promised: no votes until a leader brought it up to date. By
        order of a person survivors of a lost majority vote all the same: what they promised was
        for terms that are over.
        """
        if self.member.configurations.forced is None:
            self.member.votes_suspended = True

    def transfer(self, to: NodeId | None) -> bool:
        """Hand leadership to `to`, or whoever is closest; until then proposals are refused. False:
        there is nobody to take it.
        """
        begun = self.member.transfer(to)
        if begun:
            self.wake()
        return begun

    @property
    def transferring(self) -> bool:
        return self.member.leads and self.member.replication.transferring

    @property
    def may_change_members(self) -> bool:
        """Leads, and what says who the members are is committed."""
        return self.ready and self.member.accepts and self.member.may_change()

    def change_members(self, configuration: Configuration) -> None:
        self.member.change(configuration)
        self.wake()

    def stop(self) -> None:
        """No more proposals; what waits is unknown, as far as this node can tell."""
        self._stopping = True
        self._end_proposals("this node is shutting down")

    def _end_proposals(self, reason: str) -> None:
        self._pacing.release_all()
        self._proposals.refuse_all(self._not_now())
        self._proposals.give_up_all(unknown(reason, self.leader))
        self._proposals.call_back(self.name)

    @property
    def time_ahead_ms(self) -> int:
        """How far log time is ahead of the time on which the nodes agree."""
        return self._time.ahead_ms()

    # --- input, between steps

    def receive(
        self, sender: NodeId, message: list[Any], joined: list[list[Any]] | None = None
    ) -> bool:
        """True: it waits for a step. A leader takes a plain acknowledgement at once, unless
        something waits that came before it: it commits with it what its own disk already has,
        applies that and calls back. It writes nothing to disk and sends nothing to other nodes
        that promises anything about it. A follower takes a heartbeat that brings nothing at once,
        unless a step has yet to be synced, and answers it alone, or by a row of BEATS_ANSWERED that
        it adds to `joined`.
        """
        if self.failed is not None:
            return False
        member = self.member
        # When its own disk counts for nothing any more, the next step ends its leadership.
        able = member.leads and not (self._installing or member.votes_suspended)
        now = self._clock.monotonic_ns() / 1e9
        if not (able or self._inbox or self._installing or self._stepping) and (
            member.is_plain_heartbeat(sender, message)
        ):
            member.acknowledge_heartbeat(sender, now, joined)
            self._applied_more(now)
            return self.due <= now
        if not able or self._inbox or not member.is_plain_answer(message):
            self._inbox.append((sender, message, False))
            return True
        if member.take_ack(sender, message, now):
            self._applied_more(now)
        return self.due <= now or member.replication.has_more_for(sender)

    def has_still(self, term: int, last: int) -> bool:
        """Whether an answer to a heartbeat, as `receive` made it, is still true."""
        return self.failed is None and not self._installing and self.member.has_still(term, last)

    def peer_up(self, peer: NodeId) -> None:
        if self.failed is None:
            self._inbox.append((peer, [], False))
            self.wake()

    def peer_down(self, peer: NodeId, *, closed: bool) -> None:
        if self.failed is None:
            self._inbox.append((peer, None, closed))
            self.wake()

    # --- the step

    def step(self, now: float) -> AfterSync:
        """All that waits: messages, timers, commit, apply, new entries, appends to followers."""
        self.due = math.inf  # until `after`
        self._stepping = True
        if self._installing or self.failed is not None:
            return ()
        member = self.member
        member.now = now
        inbox, self._inbox = self._inbox, []
        for position, (peer, message, closed) in enumerate(inbox):
            if message:
                member.receive(peer, message)
                if self._installing:
                    self._inbox = inbox[position + 1 :]  # for after the install
                    return member.take_after_sync()
            elif message is None:
                member.link_down(peer, closed=closed)
            else:
                member.link_up(peer)
        member.tick(now)
        proposals = self._proposals
        if member.leads:
            if member.applied_index < member.commit_index:
                member.apply()
            if not self.ready:
                self._become_ready()
            if proposals.answered:
                proposals.call_back(self.name)
            # Tell the machine that time has passed, when something in it waits for that.
            if now >= self._tick_at:
                due_ms = self._next_tick_ms()
                if due_ms is not None and due_ms <= self._time.now_ms():
                    proposals.add(Tick(), None, 0)
                    self._tick_index = self.last_index + 1
        if proposals.waiting and not self.held:
            self._append_proposals()
        if member.leads:
            member.replication.flush(now)  # what followers lack
        if proposals.in_doubt:
            self._expire(now)
        if proposals.answered:
            proposals.call_back(self.name)
        return member.take_after_sync() if member.after_sync else ()

    def after(self, now: float) -> None:
        """What the last step wrote is on disk, and what it returned has left. A leader whose own
        disk was the last of a majority commits; a follower applies only here, so that its
        acknowledgement does not wait for that.
        """
        self._stepping = False
        member = self.member
        if self._installing or self.failed is not None:
            self.due = now + WAIT_S if self.failed is None else math.inf
            return
        if not member.leads:
            member.apply()
        elif not self.journal.votes_suspended:
            member.advance(now)
        self._applied_more(now)

    def _applied_more(self, now: float) -> None:
        proposals, pacing = self._proposals, self._pacing
        if not self.ready and self.member.leads:
            self._become_ready()
        pacing.release()
        if proposals.answered:
            proposals.call_back(self.name)
        snapshots = self._snapshots
        if (
            (
                snapshots.entries_left <= 0
                or snapshots.bytes_left <= 0
                or snapshots.commands_left <= 0
            )
            and not snapshots.saving
            and self._may_take_snapshot
            and self.spawn is not None
        ):
            self.spawn(snapshots.take(self._sound_index))
        # There may be something to do that neither a message nor Raft's timers bring.
        due_ms = self._next_tick_ms()
        if due_ms is None:
            self._tick_at = math.inf
        elif due_ms != self._planned_ms or now >= self._tick_at:
            wait_s = (due_ms - self._time.now_ms()) / 1000
            self._tick_at = now + max(0.0, min(wait_s, TICK_S_MAX))
        self._planned_ms = due_ms
        waits = proposals.waiting or proposals.in_doubt
        at = now + WAIT_S if waits else min(self._tick_at, now + TICK_S_MAX)
        self.due = min(self.member.due(), at, pacing.due_s)

    def fail(self, error: Exception) -> None:
        """A bug in the protocol."""
        self.failed = f"{type(error).__name__}: {error}"
        self._inbox.clear()
        self.ready = False
        self.role = Role.FOLLOWER
        log.error("group_failed", group=self.name, node=self.node, exc_info=error)
        self._end_proposals("this copy stopped because of a bug")

    def _become_ready(self) -> None:
        noop = self.member.noop_index
        if not self.ready and noop is not None and self.applied_index >= noop:
            self.ready = True
            self._tick_index = 0  # one of an earlier leadership may never come
            self._writes = self.machine.version
            self._applying.keep(True)
            self.upgrade_machine()
            self._report_role(Role.LEADER)

    def upgrade_machine(self) -> None:
        """As the leader, raise the machine's version to what all members can run. Idempotent.

        The entry that raises it is written under the new version itself, and so is all behind it:
        who cannot run that stops before it.
        """
        if not self.ready or not self.member.accepts or self._writes >= self.machine.newest:
            return
        version = min(self.version_of_members(), self.machine.newest)
        if version > self._writes and not self._stopping:
            log.info("machine_upgrade", group=self.name, node=self.node, version=version)
            self._proposals.add(UpgradeMachine(version), None, 0)
            self._writes = version
            self.wake()

    def _report_role(self, role: Role) -> None:
        for listener in self.on_role:
            guarded(self.name, listener, self, role, self.term)

    def _append_proposals(self) -> None:
        if not self.member.leads or self.member.poisoned is not None:
            self._proposals.refuse_all(self._not_now())
            return
        now_ms = self._time.stamp_ms()
        if now_ms is None:
            return  # they wait until it is known what time it is
        for batch in self._proposals.batches():
            self._append(batch, now_ms)

    def _append(self, batch: EntryBatch, now_ms: int) -> None:
        # What was decided is taken: a part exceeds its transaction by a few bytes, of its numbers.
        is_part = len(batch.commands) == 1 and type(batch.commands[0]) is TransactionPart
        try:
            data = encode_entry(now_ms, batch.commands, self._writes)
        except CodecError as error:  # whoever proposes such a thing must not end the group
            wrong = refused("bad_argument", str(error))
        else:
            if len(data) <= ENTRY_BYTES_MAX or is_part:
                member = self.member
                self._proposals.appended(member.append(data), member.core.term, batch)
                return
            wrong = too_large(len(data))
        if len(batch.commands) == 1:
            self._proposals.refuse(batch, wrong)
        else:  # weights are estimates, and what cannot be written is one of them
            for one in batch.one_by_one:
                self._append(one, now_ms)

    def _next_tick_ms(self) -> int | None:
        """When the machine is to be told the time, if it waits for that; None: not by this member,
        or not before something else happens.
        """
        member = self.member
        applied = member.applied_index
        if not self.ready or not member.accepts or self._tick_index > applied:
            return None
        if self._due_at != applied:
            self._due_at, self._due_ms = applied, self.machine.next_due_ms()
        return self._due_ms

    # --- calling back

    def _expire(self, now: float) -> None:
        if overdue := self._proposals.overdue(now):
            reason = "leadership was lost before the commit was seen"
            self._proposals.give_up(overdue, unknown(reason, self.leader))

    def _overwritten(self) -> Outcome:
        return refused("not_leader", "another leader's entry took its place", self.leader)

    # --- what the member asks of its host

    def role_changed(self, role: Role, term: int) -> None:
        if self.failed is None:
            self.role = role
        fields = [role.name.lower(), self.leader]
        if role is Role.CANDIDATE and self.member.elections.asked_by is not None:
            fields.append(self.member.elections.asked_by)
        self._notes.note(KIND_ROLE, self.id, self.last_index, term, pack(fields))
        log.info("role_changed", group=self.name, node=self.node, role=role.name, term=term)
        if role is Role.LEADER:
            return
        self.ready = False
        self._applying.keep(False)
        self._pacing.release_all()
        self._proposals.doubt(self.member.now + self.options.election_max_ms / 1000)
        self._proposals.refuse_all(self._not_now())
        self._report_role(role)

    def apply_entry(self, data: bytes, index: int, term: int) -> None:
        """See `Host.apply_entry`."""
        dones, since_ns = self._proposals.applied(index, term, self._overwritten)
        # A new leader owes all of it again once it is ready: then its listeners ask on_leader().
        told = self.on_effects and (self.ready or not self.member.leads)
        report = self._report_effects if told else None
        commands = self._applying.apply(data, index, term, dones, report)
        snapshots = self._snapshots
        snapshots.entries_left -= 1
        snapshots.bytes_left -= len(data)
        snapshots.commands_left -= commands
        if since_ns:
            self.commit_s = (self._clock.monotonic_ns() - since_ns) / 1e9
            self.commit_seconds.append(self.commit_s)
        if self.on_next:
            self.call_next()
        if index % DIGEST_ENTRIES == 0:
            digest = self.machine.digest()
            self._notes.note(KIND_DIGEST, self.id, index, term, digest)
            self.member.digests.noted(index, digest)

    def call_next(self) -> None:
        waiting, self.on_next = self.on_next, []
        for each in waiting:
            guarded(self.name, each)

    def _skipped(self, stamp: Stamp, reason: str, command: bytes) -> None:
        fields = [stamp.ordinal, reason, command[:SKIPPED_BYTES_MAX]]
        self._notes.note(KIND_SKIPPED, self.id, stamp.index, stamp.term, pack(fields))
        self._snapshots.want()  # should it happen again, there is less to be computed again
        log.critical(
            "command_skipped",
            group=self.name,
            node=self.node,
            index=stamp.index,
            ordinal=stamp.ordinal,
            error=reason,
            next="report it with the bytes that `quorate log dump FOLDER --kind skipped` shows",
        )

    def _compared(self, index: int, own: bytes, leaders: bytes) -> None:
        """The leader told its digest of the state after an entry, and this copy has its own."""
        self.diverged = None if own == leaders else (index, own, leaders)
        if self.diverged is not None:
            log.critical(
                "state_diverged",
                group=self.name,
                node=self.node,
                index=index,
                digest=own.hex(),
                leaders_digest=leaders.hex(),
                next="keep both folders and report it; then `quorate group rebuild"
                f" {self.name} {self.node}`",
            )

    def _report_effects(self, stamp: Stamp, effects: Sequence[Effect]) -> None:
        for listener in self.on_effects:
            try:
                listener(self, stamp, effects)
            except Exception as error:  # noqa: BLE001 -- a listener's bug is its own
                report_bug(self.name, listener, error)

    def beyond(self, data: bytes) -> NeedsNewer | None:
        """Why an entry must not be taken here: a later release wrote it."""
        newest = self.machine.newest
        kind = data[:1]
        if kind == REGULAR:
            version = written_under(data, 1)
            return NeedsNewer("an entry", version, newest) if version > newest else None
        return None if kind in KINDS_OF_RAFT else NeedsNewer("an entry", None, newest)

    def poison(self, index: int, error: Exception) -> None:
        where = {"group": self.name, "node": self.node, "index": index}
        if isinstance(error, NeedsNewer):
            self.needs_newer = error
            log.critical("group_needs_newer_release", **where, reason=str(error))
            self.on_needs_newer(error)
        else:
            log.error("group_poisoned", **where, exc_info=error)
        self._pacing.release_all()
        self._proposals.give_up_all(unknown(f"this copy stopped at entry {index}"))

    def fetch(self, first: int, last: int, done: OnArrival) -> None:
        """Bring the entry `first`, and what is near of those up to `last`, into memory, off the
        event loop. `done` is called once, while the entry is there.
        """
        self._applying.cold.fetch(first, last, lambda arrived: guarded(self.name, done, arrived))

    async def load_bodies(self, ref: BodyRef) -> list[tuple[Body, Any]]:
        """Body and meta of each message, wherever they are; empty when they are gone."""
        return await self._applying.load_bodies(ref)

    async def load_part(self, index: int, offset: int) -> bytes | None:
        """A part of a large body; None: not here, or not any more."""
        if index > self.applied_index:
            return None
        return await self._applying.load_part(index, offset)

    def entry_bytes(self, index: int) -> int:
        """What reading it from disk takes."""
        return self.member.journal.bytes_within(((index, index),))

    def _spawn_read(self, read: Coroutine[Any, Any, None]) -> None:
        assert self.spawn is not None, "a read needs a drive loop"
        self.spawn(read)

    def read_command(self, index: int, ordinal: int) -> AnyCommand | None:
        return self._applying.read_command(index, ordinal)

    def unapplied(self) -> Iterator[AnyCommand]:
        """The commands in its log that it has not applied yet, be they committed or not."""
        return self._applying.commands_after(self.applied_index)

    # --- snapshots

    def restore(self, data: bytes, index: int) -> None:
        self._applying.restore(data)
        self._due_at = -1
        self.diverged = None  # whatever it was, it is the leader's state now
        self.member.diverged = False
        self._snapshots.restart()
        self.call_next()
        overtaken = self._proposals.up_to(index)
        self._proposals.give_up(overtaken, unknown("a snapshot took the place of the entry"))

    def install(self, incoming: Incoming) -> None:
        """Until the journal is done nothing else may touch it: the group stands still."""
        beyond = self.machine.beyond(split(incoming.data)[1])
        if beyond is not None:
            self.member.following.stop_before(incoming.index, beyond)
            return
        self._installing = True
        assert self.spawn is not None, "an install needs a drive loop"
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

    async def keep_entries(self, seconds: float) -> None:
        """No snapshot takes the place of anything for so long, from when this returns on."""
        self.kept_until = self.member.now + seconds
        while self._snapshots.saving:  # noqa: ASYNC110 -- it is no event
            await asyncio.sleep(WAIT_S)

    def snapshot_frees_bytes(self) -> int:
        """What the log could let go with a snapshot taken now, if that is worth it."""
        if not self._may_take_snapshot:
            return 0
        return self._snapshots.frees_bytes(self.applied_index)

    def take_snapshot(self) -> None:
        """As soon as can be."""
        self._snapshots.want()
        self.wake()

    @property
    def taking_snapshot(self) -> bool:
        return self._snapshots.under_way

    @property
    def _may_take_snapshot(self) -> bool:
        # While a follower is sent one, a newer one would only make it start again.
        if self._installing or self.member.replication.installing or self.failed is not None:
            return False
        return self.poisoned is None and self.member.now >= self.kept_until

    def _sound_index(self) -> int | None:
        """The entry that the machine is at; None when no snapshot may be taken there: it stopped in
        the middle of one, or another snapshot is on its way.
        """
        return self.applied_index if self._may_take_snapshot else None
