"""The machine of one Raft group: its queues, the sessions that use them, and time.

`apply` does what the command says and then lets happen whatever can happen now: messages expire,
are handed out, are dropped over a limit. Queues touched by that come next, the lowest id first, so
that the order never depends on when a replica happened to look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import Any, Final, cast, get_args

from cluster.machine import snapshot
from cluster.machine.arguments import STREAM
from cluster.machine.commands import (
    Acknowledge,
    Barrier,
    BodyPart,
    CloseSession,
    CreateQueue,
    DeleteMessage,
    DeleteQueue,
    DetachSession,
    DropConsumer,
    Fetch,
    Get,
    Handed,
    NodeDown,
    NodeUp,
    OpenSession,
    PutConsumer,
    PutOffDeadLetters,
    QueueCommand,
    Reserve,
    ResolveTransaction,
    RestoreConsumer,
    RestoreIds,
    Retime,
    SendDeadLetters,
    Subscribe,
    Tick,
    Transaction,
    TransactionDone,
    TransactionPart,
    UpgradeMachine,
    Withdraw,
)
from cluster.machine.context import ApplyContext
from cluster.machine.counters import GroupCounters
from cluster.machine.disposal import dump_removed, load_removed
from cluster.machine.effects import Applied, DeadLetter, Effect, TransactionsDue
from cluster.machine.identity import EventRecorder, QueueIdentity
from cluster.machine.interface import (
    OpenTransaction,
    QueueGauges,
    QueueView,
    Removed,
    Row,
    RowState,
)
from cluster.machine.keyed import HeldKey
from cluster.machine.kinds import KINDS, QueueKind
from cluster.machine.queue import Queue
from cluster.machine.replies import (
    BAD_ARGUMENT,
    IN_USE,
    NO_QUEUE,
    NOT_EMPTY,
    STALE_COPY,
    UNKNOWN_COMMAND,
    Chunk,
    Ok,
    Refused,
    Reply,
)
from cluster.machine.runs import joined
from cluster.machine.sessions import SessionTable
from cluster.machine.settings import wrong_settings
from cluster.machine.stream.stream import Stream
from cluster.machine.timetable import Timetable
from cluster.machine.transactions import Transactions
from cluster.machine.versions import (
    ASKS_ALL_SINCE,
    ERAS_SINCE,
    FENCES_SINCE,
    MACHINE_VERSION,
    RESOLVES_SINCE,
    NeedsNewer,
)
from cluster.types import (
    AS_OF_NOTHING,
    AsOf,
    ConsumerKey,
    GroupId,
    NodeId,
    QueueId,
    SessionId,
    Stamp,
    era_of,
    first_term_of,
    made,
)

NOW_MS_MAX = 1 << 53
#: A term that does not come.
NEVER = 1 << 62
#: The highest id of a queue that the catalog has no more, and the latest moment of which it was
#: said of one.
NOTHING_FORGOTTEN: Final[tuple[QueueId, AsOf]] = (QueueId(0), AS_OF_NOTHING)
#: What one queue is told to do, and since which machine version.
QUEUE_COMMANDS: dict[Any, int] = {
    **dict.fromkeys(get_args(QueueCommand), 1),
    Handed: 2,
    BodyPart: 3,
    **dict.fromkeys((DeleteMessage, PutConsumer, DropConsumer, Fetch, Acknowledge), 4),
    **dict.fromkeys((Withdraw, Retime, RestoreConsumer, RestoreIds), 5),
    **dict.fromkeys((PutOffDeadLetters, SendDeadLetters), 5),
}
DIGEST_BYTES = 16
#: Ranges of live entries that are kept of a queue that does not change.
LIVE_KEPT_MAX = 16
#: Queues that are encoded before others get their turn: below a millisecond or two.
PREPARED_AT_ONCE = 50


class _Unchanged:
    """What was made of a queue that has not changed since: dropped with every touch."""

    __slots__ = ("digest", "encoded", "live", "row")

    def __init__(self) -> None:
        self.digest: bytes | None = None
        self.row: list[Any] | None = None  # of a checkpoint
        self.encoded: bytes | None = None  # the row in a snapshot
        self.live: tuple[tuple[int, int], ...] | None = None


class QueueMachine:
    """Many queues over one log."""

    newest = MACHINE_VERSION

    def __init__(self, version: int = 1) -> None:
        self.version = version
        self.now_ms = 0  # of the log: never goes back
        self._queues: dict[int, QueueKind] = {}
        self._sessions = SessionTable(self._queues)
        self._transactions = Transactions(self._queues)
        self._removed: dict[str, Removed] = {}  # of queues that were deleted
        #: Vhost and name of those that were deleted here, and that the catalog may still have.
        self._fenced: dict[QueueId, tuple[str, str]] = {}
        self._forgotten = NOTHING_FORGOTTEN
        self.counters = GroupCounters()
        self._timetable = Timetable(self._queues)
        self._recorder: EventRecorder | None = None
        self._unchanged: dict[int, _Unchanged] = {}
        self._enter(0)

    # --- applying ---------------------------------------------------------------------------------

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        if self.now_ms < stamp.now_ms <= NOW_MS_MAX:
            self.now_ms = stamp.now_ms
        now_ms, counted = self.now_ms, self._recorder is None
        context = ApplyContext(stamp, stamp.index, stamp.body_offset, now_ms, self)
        touched = context.touched
        if self._transactions.reserved:
            self._transactions.forget_reserved(context)
        if stamp.term >= self._ends:
            self._begin_era(context)
        reply = self._do(context, command)
        due_ms = self._sessions.due_ms
        if due_ms is not None and due_ms <= now_ms:
            self._sessions.end_due(context)
        scheduled = self._timetable.heap
        if scheduled and scheduled[0][0] <= now_ms:
            for queue_id in self._timetable.take_due(now_ms):
                touched[queue_id] = None
        while touched:
            queue_id = min(touched) if len(touched) > 1 else next(iter(touched))
            del touched[queue_id]
            self._unchanged.pop(queue_id, None)
            queue = self._queues.get(queue_id)
            if queue is not None:
                held_up = queue.advance(context)
                deadline = queue.deadline
                if deadline.due_ms != deadline.scheduled_ms:
                    self._timetable.schedule(queue)
                if counted:
                    self.counters.advanced(queue_id, held_up, now_ms)
        if counted:
            self.counters.applied(now_ms, command, reply, context.effects)
        return made(Applied, (reply, context.effects))

    def _do(self, context: ApplyContext, command: Any) -> Reply:
        since = QUEUE_COMMANDS.get(type(command))
        if since is not None:
            if self.version < since:
                return _unknown(command)
            queue = self._queues.get(command.queue)
            if queue is None:
                return _no_queue(command.queue)
            context.touched[command.queue] = None
            if isinstance(command, (Subscribe, Get)):
                refusal = self._sessions.objection(command)
                if refusal is not None:
                    return refusal
            return queue.apply(context, command)
        match command:
            case Transaction():
                return self._transactions.commit(context, command)
            case TransactionPart():
                return self._transactions.part(context, command)
            case TransactionDone():
                return self._transactions.done(command)
            case Reserve() if self.version >= 3:
                return self._transactions.reserve(context, command)
            case ResolveTransaction() if self.version >= RESOLVES_SINCE:
                return self._transactions.resolve(command)
            case Tick() | Barrier():
                return Ok()
            case CreateQueue():
                return self._create_queue(context, command)
            case DeleteQueue():
                return self._delete_queue(context, command)
            case OpenSession():
                return self._sessions.open(context, command)
            case DetachSession():
                return self._sessions.detach(context, command)
            case CloseSession():
                return self._sessions.close(context, command)
            case NodeDown():
                return self._sessions.node_down(context, command)
            case NodeUp():
                return self._sessions.node_up(context, command.node, command.incarnation)
            case UpgradeMachine():
                return self._upgrade(context, command)
            case _:
                return _unknown(command)

    def _begin_era(self, context: ApplyContext) -> None:
        """The log goes on from an earlier moment, and may have lost its end."""
        self._enter(era_of(context.stamp.term))
        for queue in self._in_order():
            queue.skip_lost(context, context.stamp.term)
            context.touch(queue.id)

    def _enter(self, era: int) -> None:
        """It is noted from the version on that skips what was lost."""
        knows = self.version >= ERAS_SINCE
        self._era = era if knows else 0
        self._ends = first_term_of(era + 1) if knows else NEVER

    # --- queues -----------------------------------------------------------------------------------

    def _create_queue(self, context: ApplyContext, command: CreateQueue) -> Reply:
        queue = self._queues.get(command.queue)
        if queue is not None and not self._is_another(queue, command):
            if self._era and command.new and isinstance(queue, Stream):
                queue.unskip(context.stamp.term)
            queue.used(context.now_ms)
            context.touch(queue.id)
            return Ok()
        if self.is_fenced(command.queue, command.vhost, command.name):
            return Refused(
                NO_QUEUE,
                f"queue {command.name} was deleted under this id: declare it again, under another",
            )
        last, as_of = self._forgotten
        if command.queue <= last and command.as_of < as_of:
            return Refused(
                STALE_COPY, f"queue {command.name} may have been deleted since: try again"
            )
        kind = KINDS.get(command.config.type)
        if kind is None or self.version < kind.since:
            names = [name for name, each in KINDS.items() if each.since <= self.version]
            return Refused(
                BAD_ARGUMENT,
                f"there is no queue type {command.config.type}, only {', '.join(names)}",
            )
        wrong = wrong_settings(command.config)
        if wrong is not None:
            return Refused(BAD_ARGUMENT, wrong)
        if queue is not None:
            self._drop(context, queue)
        identity = QueueIdentity(command.queue, command.vhost, command.name, command.config)
        identity.version, identity.recorder = self.version, self._recorder
        identity.configure(command.config, command.as_of)
        queue = self._queues[command.queue] = kind.make(identity, context.now_ms)
        # Perhaps one was lost, and this is it again; or it was deleted, and the catalog is back
        # before that.
        terms = [context.stamp.term] if self._era else []
        if command.queue <= last and era_of(command.as_of[0]):
            terms.append(command.as_of[0])
        if terms and not (command.new and isinstance(queue, Stream)):
            queue.skip_lost(context, max(terms))
        if self.version >= RESOLVES_SINCE:
            self._transactions.queue_created(command.queue)
        self._fenced.pop(command.queue, None)
        if self._recorder is not None:
            self._recorder.queue_created(identity)
        context.touch(command.queue)
        return Ok(1)

    def _is_another(self, queue: QueueKind, command: CreateQueue) -> bool:
        """The catalog lost with a majority that there is one, and gave its number to another."""
        named = queue.identity.vhost, queue.name
        return self.version >= ERAS_SINCE and named != (command.vhost, command.name)

    def _drop(self, context: ApplyContext, queue: QueueKind) -> None:
        queue.close(context)
        _add(self._removed, queue.removed)
        del self._queues[queue.id]
        self._unchanged.pop(queue.id, None)

    def _delete_queue(self, context: ApplyContext, command: DeleteQueue) -> Reply:
        queue = self._queues.get(command.queue)
        if queue is None:
            if not command.fence:
                self._forget(context, command)
            return _no_queue(command.queue)
        if command.if_unused and queue.in_use:
            return Refused(IN_USE, f"queue {queue.name} has consumers: cancel them first")
        # Until version 2 what was in flight counted too.
        waiting = queue.waiting_count if context.version >= 2 else queue.message_count
        if command.if_empty and waiting:
            return Refused(
                NOT_EMPTY, f"queue {queue.name} holds {waiting} messages: purge it first"
            )
        if command.if_empty and queue.dead_letters(1, None) and context.version >= ASKS_ALL_SINCE:
            return Refused(
                NOT_EMPTY,
                f"dead letters of queue {queue.name} wait for where they go: try again",
            )
        if command.if_empty and any(queue.reserved) and context.version >= ASKS_ALL_SINCE:
            return Refused(
                NOT_EMPTY, f"a transaction is about to publish to queue {queue.name}: try again"
            )
        if command.if_settled and (
            queue.message_count or queue.dead_letters(1, None) or any(queue.reserved)
        ):
            return Refused(
                NOT_EMPTY,
                f"messages of queue {queue.name} wait, are with consumers, or are on their way to"
                " where they are dead-lettered, or to it in a transaction",
            )
        count = queue.message_count
        self._drop(context, queue)
        if command.fence and context.version >= FENCES_SINCE:
            self._fenced[queue.id] = queue.identity.vhost, queue.name
        else:
            self._forget(context, command)
        return Ok(count)

    def _forget(self, context: ApplyContext, command: DeleteQueue) -> None:
        """The catalog has it no more. An older copy of it may."""
        self._fenced.pop(command.queue, None)
        if context.version >= FENCES_SINCE and command.as_of != AS_OF_NOTHING:
            last, as_of = self._forgotten
            self._forgotten = max(last, command.queue), max(as_of, command.as_of)

    # --- what queues ask of the group: see context.GroupOfQueues ----------------------------------

    def find(self, queue: QueueId) -> QueueKind | None:
        return self._queues.get(queue)

    def consumer_added(self, session: SessionId, queue: QueueId, consumer: ConsumerKey) -> None:
        self._sessions.by_id[session].consumers[queue, consumer] = None

    def consumer_removed(self, session: SessionId, queue: QueueId, consumer: ConsumerKey) -> None:
        del self._sessions.by_id[session].consumers[queue, consumer]

    def died(self, reason: str, count: int, *, goes: bool) -> None:
        self.counters.died(reason, count, goes=goes)

    def timed_out(self, context: ApplyContext, session: SessionId) -> None:
        found = self._sessions.get(session)
        if found is not None:
            self._sessions.end(context, found, "consumer_timeout", failed=False)

    # --- time -------------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        timetable, session_ms = self._timetable, self._sessions.due_ms
        queue_ms = timetable.next_due_ms() if timetable.heap else None
        if queue_ms is None or session_ms is None:
            return session_ms if queue_ms is None else queue_ms
        return min(queue_ms, session_ms)

    def _upgrade(self, context: ApplyContext, command: UpgradeMachine) -> Reply:
        if not self.version <= command.to <= self.newest:
            return Refused(
                BAD_ARGUMENT,
                f"the machine has version {self.version} and can become {self.newest} at most",
            )
        if command.to == self.version:
            return Ok(command.to)
        self.version = command.to
        self._enter(era_of(context.stamp.term))
        for queue in self._in_order():
            queue.set_version(command.to)
            context.touch(queue.id)
        return Ok(command.to)

    # --- looking ----------------------------------------------------------------------------------

    def on_leader(self) -> Sequence[Effect]:
        effects = [effect for queue in self._in_order() for effect in queue.effects_on_leader()]
        if self._transactions.open() or self._transactions.in_doubt():
            effects.append(TransactionsDue())
        return effects

    def queue(self, queue: QueueId) -> QueueView | None:
        found = self._queues.get(queue)
        return None if found is None else found.view()

    def stream(self, queue: QueueId) -> Stream | None:
        """To be looked at. None: there is none, or it is no stream."""
        found = self._queues.get(queue)
        return found if isinstance(found, Stream) else None

    def gauges(self, queue: QueueId) -> QueueGauges | None:
        found = self._queues.get(queue)
        return None if found is None else found.gauges()

    def queues(self) -> list[QueueId]:
        return cast("list[QueueId]", sorted(self._queues))

    def fenced(self) -> list[QueueId]:
        """Of queues that were deleted here, and that the catalog may still have."""
        return sorted(self._fenced)

    def is_fenced(self, queue: QueueId, vhost: str, name: str) -> bool:
        """By name, too: a catalog that lost with a majority that there was a queue may have given
        its id to another.
        """
        return self._fenced.get(queue) == (vhost, name)

    def dead_letters(
        self, queue: QueueId, count: int = 1_000, after: DeadLetter | None = None
    ) -> Sequence[DeadLetter]:
        """See `QueueKind.dead_letters`."""
        found = self._queues.get(queue)
        return [] if found is None else found.dead_letters(count, after)

    def transactions(self) -> Sequence[OpenTransaction]:
        """Decided here and not done by every other group, oldest first."""
        return self._transactions.open()

    def in_doubt(self) -> Sequence[tuple[GroupId, Reserve]]:
        """Room kept for long: the group to be asked first (`ResolveTransaction`), and what gives it
        back.
        """
        return self._transactions.in_doubt()

    def browse(
        self, queue: QueueId, start: int, count: int, state: RowState | None = None
    ) -> Sequence[Row]:
        """Messages from position `start` on, in the order of positions; `state`: only such."""
        found = self._queues.get(queue)
        return [] if found is None else found.rows(start, count, state)

    def consumer_holds(self, queue: QueueId, consumer: ConsumerKey) -> Sequence[Chunk] | None:
        """All that is in flight with the consumer, with the tokens of its delivery. None: there is
        no such consumer.
        """
        found = self._queues.get(queue)
        return None if found is None else found.consumer_holds(consumer)

    def got_after(
        self, queue: QueueId, session: SessionId, after: ConsumerKey
    ) -> ConsumerKey | None:
        """By the first get of this session, later than what `after` is of, that took something and
        holds it yet.
        """
        found, known = self._queues.get(queue), self._sessions.get(session)
        if not isinstance(found, Queue) or known is None:
            return None
        keys = [ConsumerKey(key) for each, key in known.consumers if each == queue and key > after]
        return min(filter(found.is_of_get, keys), default=None)

    def is_windowed(self, queue: QueueId, consumer: ConsumerKey) -> bool:
        """Does it get more only when the dispatcher says what it has `Handed`?"""
        found = self._queues.get(queue)
        return found is not None and found.is_windowed(consumer)

    def is_large(self, queue: QueueId, position: int) -> bool:
        """Is this the position of a message whose body is in parts?"""
        found = self._queues.get(queue)
        return found is not None and found.is_large(position)

    def held_keys(self, queue: QueueId, most: int) -> Sequence[tuple[HeldKey, ConsumerKey | None]]:
        """Of a queue with message groups: keys that messages wait for, those with the most first,
        and the consumer that has each; None: it waits for its retry.
        """
        found = self._queues.get(queue)
        return found.held_keys(most) if isinstance(found, Queue) else []

    def has_free(self, queue: QueueId) -> bool:
        """Is any message ready, and not behind another of its key?"""
        found = self._queues.get(queue)
        return isinstance(found, Queue) and found.messages.ready.free > 0

    def backlog(self, queue: QueueId) -> tuple[int, int, int]:
        found = self._queues.get(queue)
        if not isinstance(found, Queue):
            return 0, 0, 0
        messages, config = found.messages, found.identity.config
        if messages.keyed is not None or config.max_priority:
            return 0, 0, 0
        return messages.ready.count, messages.store.next - 1, self.counters.of[queue].delivered

    def has_session(self, session: SessionId) -> bool:
        return self._sessions.get(session) is not None

    def attached(self, session: SessionId) -> tuple[NodeId, int | None] | None:
        """The node at which the session is, and until when it is suspected; None: it is not."""
        found = self._sessions.get(session)
        return None if found is None else (found.node, found.due_ms)

    def removed(self) -> dict[str, Removed]:
        """Messages that left otherwise than settled, by reason, those of deleted queues included;
        since machine version 2.
        """
        total = dict(self._removed)
        for queue in self._queues.values():
            _add(total, queue.removed)
        return total

    def overview(self) -> dict[str, Any]:
        views = [queue.view() for queue in self._in_order()]
        sessions = list(self._sessions.by_id.values())
        return {
            "version": self.version,
            "now_ms": self.now_ms,
            "queues": len(views),
            "ready": sum(view.ready_count for view in views),
            # Of these, by streams, which keep them.
            "retained": sum(view.ready_count for view in views if view.config.type == STREAM),
            "unsettled": sum(view.unsettled_count for view in views),
            "delayed": sum(view.delayed_count for view in views),
            "dead_letters": sum(view.dead_letter_count for view in views),
            "bytes": sum(view.bytes for view in views),
            "consumers": sum(len(view.consumers) for view in views),
            "transactions": len(self._transactions.open()),
            "sessions": len(sessions),
            "removed": {
                reason: {"dropped": each.dropped, "dead_lettered": each.dead_lettered}
                for reason, each in sorted(self.removed().items())
            },
            "suspected": sum(1 for session in sessions if not session.connected),
        }

    def record(self, recorder: EventRecorder) -> None:
        """Tell it of what happens, until another state is restored; counters stand still then."""
        self._recorder = recorder
        for queue in self._queues.values():
            queue.identity.recorder = recorder

    # --- snapshots --------------------------------------------------------------------------------

    def live_indexes(self) -> list[tuple[int, int]]:
        ranges = self._transactions.live_indexes()
        for queue in self._queues.values():
            known = self._unchanged_of(queue)
            live = known.live
            if live is None:
                live = tuple(queue.live_indexes())
                if len(live) <= LIVE_KEPT_MAX:
                    known.live = live
            ranges += live
        return joined(sorted(ranges))

    def snapshot(self) -> bytes:
        return snapshot.encode(self._state([queue.dump() for queue in self._in_order()]))

    def checkpoint(self) -> Callable[[], bytes]:
        """The state as it is now, encoded when somebody wants it. Of queues that did not change
        since the last one nothing is copied again.
        """
        rows: list[list[Any]] = []
        for queue in self._in_order():
            known = self._unchanged_of(queue)
            known.row = known.row or _row_of(queue, queue.dump())
            rows.append(known.row)
        state = self._state_with(rows)
        return lambda: snapshot.encode(state)

    def prepare_snapshot(self) -> Iterator[None]:
        """Encodes queues that have not been since they changed, some at a time: then less is left
        to be done at once by `snapshot_pieces`.
        """
        for position, queue_id in enumerate(sorted(self._queues), start=1):
            queue = self._queues.get(queue_id)  # by now it may be gone, or restored
            if queue is not None:
                self._encoded(queue)
            if position % PREPARED_AT_ONCE == 0:
                yield

    def snapshot_pieces(self) -> Iterator[bytes]:
        return snapshot.pieces(self._state_with([self._encoded(q) for q in self._in_order()]))

    def _encoded(self, queue: QueueKind) -> bytes | list[Any]:
        """As bytes that are kept; the row itself if it is large."""
        known = self._unchanged_of(queue)
        if known.encoded is not None:
            return known.encoded
        row = _row_of(queue, queue.dump())
        if snapshot.is_large(row):
            return row
        known.encoded = snapshot.encode_row(row)
        return known.encoded

    def _state(self, queue_states: Sequence[Any]) -> list[Any]:
        rows = starmap(_row_of, zip(self._in_order(), queue_states, strict=True))
        return self._state_with(list(rows))

    def _state_with(self, queues: Sequence[Any]) -> list[Any]:
        state = [
            self.version,
            self.now_ms,
            self._sessions.dump(),
            queues,
            *self._transactions.dump(),
        ]
        if self.version >= 2:
            state += [None] * (5 - len(state))  # no transactions yet
            state.append(dump_removed(self._removed))
        if self.version >= ERAS_SINCE:
            state.append(self._era)
        if self._fenced or self._forgotten != NOTHING_FORGOTTEN:  # none before version 5 had them
            state.append([[queue, *self._fenced[queue]] for queue in self.fenced()])
        if self._forgotten != NOTHING_FORGOTTEN:
            state.append([self._forgotten[0], *self._forgotten[1]])
        return state

    def _in_order(self) -> list[QueueKind]:
        queues = self._queues
        return [queues[queue] for queue in sorted(queues)]

    def _unchanged_of(self, queue: QueueKind) -> _Unchanged:
        known = self._unchanged.get(queue.id)
        if known is None:
            known = self._unchanged[queue.id] = _Unchanged()
        return known

    def beyond(self, data: bytes) -> NeedsNewer | None:
        """Why a snapshot cannot be restored here, if it is of a later release."""
        version = snapshot.written_under(data)
        if version is not None and version <= self.newest:
            return None
        return NeedsNewer("a snapshot", version, self.newest)

    def restore(self, data: bytes) -> None:
        version, now_ms, sessions, queues, *later = snapshot.decode(data)
        self.__init__()
        self.version = version
        self.now_ms = now_ms
        self._sessions.load(sessions)
        for queue_id, vhost, name, config_data, state, *as_of in queues:
            config = snapshot.load_config(config_data)
            identity = QueueIdentity(queue_id, vhost, name, config)
            identity.version = version
            identity.as_of = tuple(as_of[0]) if as_of else AS_OF_NOTHING
            queue = KINDS[config.type].make(identity, now_ms)
            queue.load(state, now_ms)
            self._queues[queue_id] = queue
            self._timetable.schedule(queue)
            for session, key in queue.consumer_keys():
                self.consumer_added(SessionId(session), queue.id, key)
        if later and later[0] is not None:  # none before there were transactions
            self._transactions.load(later[0])
        if version >= 2:
            self._removed = load_removed(later[1])
        self._enter(later[2] if version >= ERAS_SINCE else 0)
        for queue_id, vhost, name in later[3] if len(later) > 3 else ():
            self._fenced[QueueId(queue_id)] = vhost, name
        if len(later) > 4:
            last, term, index = later[4]
            self._forgotten = QueueId(last), (term, index)

    def digest(self) -> bytes:
        """Equal on every replica at the same entry. From version 2 on it costs what changed."""
        if self.version < 2:
            return _digest_of(self._state([queue.fingerprint() for queue in self._in_order()]))
        return _digest_of(self._state_with([self._digest_of(queue) for queue in self._in_order()]))

    def _digest_of(self, queue: QueueKind) -> bytes:
        known = self._unchanged_of(queue)
        if known.digest is None:
            known.digest = _digest_of(_row_of(queue, queue.fingerprint()))
        return known.digest

    def invariants(self) -> None:
        self._sessions.invariants()
        self._transactions.invariants()
        listed: dict[tuple[str, int, int], None] = {}
        for queue in self._queues.values():
            queue.invariants()
            for session, key in queue.consumer_keys():
                listed[session, queue.id, key] = None
            due_ms, scheduled_ms = queue.deadline.due_ms, queue.deadline.scheduled_ms
            if due_ms is not None:
                assert scheduled_ms is not None, "nobody will look at the queue"
                assert scheduled_ms <= due_ms, "somebody looks too late"
        known = {
            (session.id, queue_id, key): None
            for session in self._sessions.by_id.values()
            for queue_id, key in session.consumers
        }
        assert known == listed, "sessions and queues disagree about who consumes"


def _add(total: dict[str, Removed], more: Mapping[str, Removed]) -> None:
    for reason, (dropped, dead_lettered) in more.items():
        before = total.get(reason, Removed())
        total[reason] = Removed(before.dropped + dropped, before.dead_lettered + dead_lettered)


def _unknown(command: Any) -> Refused:
    name = getattr(command, "tag", type(command).__name__)
    return Refused(UNKNOWN_COMMAND, f"a group of queues does not know command {name}")


def _row_of(queue: QueueKind, state: Any) -> list[Any]:
    identity = queue.identity
    config = snapshot.dump_config(identity.config)
    row = [identity.id, identity.vhost, identity.name, config, state]
    if identity.as_of != AS_OF_NOTHING:  # none before version 5 had it
        row.append(list(identity.as_of))
    return row


def _digest_of(state: Sequence[Any]) -> bytes:
    return hashlib.blake2b(snapshot.encode(state), digest_size=DIGEST_BYTES).digest()


def _no_queue(queue: QueueId) -> Refused:
    return Refused(NO_QUEUE, f"the group has no queue {queue}: declare it first")
