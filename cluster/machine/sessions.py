"""Clients attached to a group: who is connected, who is suspected, who is dead, and at which node.

A lost connection or a silent node makes a session suspected: it keeps what it holds and gets
nothing new until it is back or its time is over. Only then is it dead, and what it held returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cluster.machine.commands import (
    CloseSession,
    DetachSession,
    Get,
    HandedTo,
    NodeDown,
    OpenSession,
    Subscribe,
)
from cluster.machine.context import ApplyContext
from cluster.machine.effects import SessionEnded
from cluster.machine.kinds import QueueKind
from cluster.machine.replies import BAD_ARGUMENT, LIMIT_REACHED, NO_SESSION, Ok, Refused, Reply
from cluster.types import ConsumerKey, NodeId, QueueId, SessionId

SESSIONS_MAX = 1_000_000
RESUME_MS_MAX = 7 * 24 * 3_600_000
# A node that is silent may be cut off with its clients still at work.
SUSPECTED_GRACE_MS = 60_000


@dataclass(eq=False, slots=True)
class Session:
    id: SessionId
    node: NodeId
    incarnation: int
    resume_ms: int
    due_ms: int | None = None  # suspected until then; None: it is connected
    crashed: bool = False  # the client itself went away, not its node
    #: (queue, consumer key), oldest first.
    consumers: dict[tuple[int, int], None] = field(default_factory=dict[tuple[int, int], None])

    @property
    def connected(self) -> bool:
        return self.due_ms is None


class SessionTable:
    """Sessions by id and by node, and the newest incarnation of every node."""

    __slots__ = ("_by_node", "_queues", "by_id", "due_ms", "incarnations")

    def __init__(self, queues: dict[int, QueueKind]) -> None:
        self._queues = queues  # the group's own
        self.by_id: dict[str, Session] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self.incarnations: dict[str, int] = {}
        self.due_ms: int | None = None  # no suspected session is due before; perhaps none is

    def get(self, session: SessionId) -> Session | None:
        return self.by_id.get(session)

    # --- commands ---------------------------------------------------------------------------------

    def open(self, context: ApplyContext, command: OpenSession) -> Reply:
        known = self.incarnations.get(command.node, 0)
        if command.incarnation < known:
            return Refused(
                NO_SESSION,
                f"node {command.node} has incarnation {known} by now: connect again",
                known,
            )
        if not 0 <= command.resume_ms <= RESUME_MS_MAX:
            return Refused(BAD_ARGUMENT, f"resume_ms is a number from 0 to {RESUME_MS_MAX}")
        old = self.get(command.session)
        if old is None and len(self.by_id) >= SESSIONS_MAX:
            return Refused(LIMIT_REACHED, f"the group has {SESSIONS_MAX} sessions already")
        was_connected = old is None or old.connected
        session = self._attach(
            command.session, command.node, command.incarnation, command.resume_ms
        )
        self.node_up(context, command.node, command.incarnation)
        if not was_connected:
            self._connected(context, session, connected=True)
        return Ok(len(session.consumers))

    def objection(self, command: Subscribe | Get) -> Refused | None:
        """Why the session cannot do this; a get that settles what it takes needs none."""
        name = command.session
        session = self.get(name)
        if session is None:
            if isinstance(command, Get) and command.auto_settle:
                return None
            return Refused(NO_SESSION, f"there is no session {name}: open it first")
        if not session.connected:
            return Refused(NO_SESSION, f"session {name} is detached: open it again first")
        return None

    def detach(self, context: ApplyContext, command: DetachSession) -> Reply:
        session = self.get(command.session)
        if (
            session is None
            or session.node != command.node
            or session.incarnation != command.incarnation
        ):
            return Ok()  # it is attached elsewhere by now
        if session.crashed:
            return Ok()  # heard before: its time runs already
        self._was_handed(context, session, command.handed)
        if session.resume_ms == 0:
            self.end(context, session, "lost", failed=True)
        else:
            self._suspect(context, session, context.now_ms + session.resume_ms, crashed=True)
        return Ok(1)

    def close(self, context: ApplyContext, command: CloseSession) -> Reply:
        session = self.get(command.session)
        if session is None:
            return Ok()
        self._was_handed(context, session, command.handed)
        self.end(context, session, "closed", failed=False)
        return Ok(1)

    def _was_handed(
        self, context: ApplyContext, session: Session, handed: Sequence[HandedTo] | None
    ) -> None:
        if handed is None or context.version < 2:
            return
        known = {(each.queue, each.consumer): each for each in handed}
        for queue_id, key in session.consumers:
            each = known.get((QueueId(queue_id), ConsumerKey(key)))
            self._queues[queue_id].consumer_was_handed(ConsumerKey(key), each)
            context.touched[queue_id] = None

    def node_down(self, context: ApplyContext, command: NodeDown) -> Reply:
        if command.incarnation < self.incarnations.get(command.node, 0):
            return Ok()  # news of a process that has a successor already
        self._end_older(context, command.node, command.incarnation)
        count = 0
        for session in self._at(command.node):
            if session.crashed:
                continue  # it waits for its client, whatever becomes of the node
            count += 1
            if not command.gone:
                if session.connected:
                    grace_ms = max(session.resume_ms, SUSPECTED_GRACE_MS)
                    self._suspect(context, session, context.now_ms + grace_ms)
            elif session.resume_ms == 0:
                self.end(context, session, "node_gone", failed=False)
            else:
                due_ms = context.now_ms + session.resume_ms
                if session.due_ms is not None:  # heard before: its time runs already
                    due_ms = min(due_ms, session.due_ms)
                self._suspect(context, session, due_ms)
        return Ok(count)

    def node_up(self, context: ApplyContext, node: NodeId, incarnation: int) -> Reply:
        if incarnation < self.incarnations.get(node, 0):
            return Ok()
        self._end_older(context, node, incarnation)
        count = 0
        for session in self._at(node):
            if not session.connected and not session.crashed:
                session.due_ms = None
                self._connected(context, session, connected=True)
                count += 1
        return Ok(count)

    def _end_older(self, context: ApplyContext, node: NodeId, incarnation: int) -> None:
        """The node's process is this one now; what earlier ones carried is dead."""
        if self.incarnations.get(node, -1) == incarnation:
            return
        self.incarnations[node] = incarnation
        for session in self._at(node):
            if session.incarnation < incarnation:
                self.end(context, session, "superseded", failed=False)

    def _suspect(
        self, context: ApplyContext, session: Session, due_ms: int, *, crashed: bool = False
    ) -> None:
        was_connected = session.connected
        self._expect(session, due_ms, crashed=crashed)
        if was_connected:
            self._connected(context, session, connected=False)

    def _connected(self, context: ApplyContext, session: Session, *, connected: bool) -> None:
        for queue_id, key in sorted(session.consumers):
            self._queues[queue_id].consumer_connected(ConsumerKey(key), connected=connected)
            context.touched[queue_id] = None

    def end(self, context: ApplyContext, session: Session, reason: str, *, failed: bool) -> None:
        context.effects.append(SessionEnded(session.id, reason))
        for queue_id, key in sorted(session.consumers):
            self._queues[queue_id].end_consumer(context, ConsumerKey(key), failed=failed)
            context.touched[queue_id] = None
        self._remove(session)

    def end_due(self, context: ApplyContext) -> None:
        """The suspected whose time is over, in the order of their ids."""
        if self.due_ms is None or self.due_ms > context.now_ms:
            return
        waiting = [(s.due_ms, s) for s in self.by_id.values() if s.due_ms is not None]
        self.due_ms = min((at_ms for at_ms, _ in waiting if at_ms > context.now_ms), default=None)
        over = [session for at_ms, session in waiting if at_ms <= context.now_ms]
        for session in sorted(over, key=lambda session: session.id):
            self.end(context, session, "lost", failed=session.crashed)

    # --- the table --------------------------------------------------------------------------------

    def _attach(
        self, session: SessionId, node: NodeId, incarnation: int, resume_ms: int
    ) -> Session:
        """Attach a new session, or an old one anew."""
        found = self.by_id.get(session)
        if found is None:
            found = self.by_id[session] = Session(session, node, incarnation, resume_ms)
        else:
            self._leave_node(found)
            found.node, found.incarnation, found.resume_ms = node, incarnation, resume_ms
            found.due_ms = None
            found.crashed = False
        self._by_node.setdefault(node, {})[session] = None
        return found

    def _expect(self, session: Session, due_ms: int, *, crashed: bool = False) -> None:
        session.due_ms = due_ms
        session.crashed = crashed
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)

    def _remove(self, session: Session) -> None:
        self._leave_node(session)
        del self.by_id[session.id]

    def _leave_node(self, session: Session) -> None:
        there = self._by_node[session.node]
        del there[session.id]
        if not there:
            del self._by_node[session.node]

    def _at(self, node: NodeId) -> list[Session]:
        return [self.by_id[session] for session in self._by_node.get(node, ())]

    # --- snapshots --------------------------------------------------------------------------------

    def dump(self) -> list[Any]:
        rows = [
            [s.id, s.node, s.incarnation, s.resume_ms, s.due_ms, s.crashed]
            for s in self.by_id.values()
        ]
        by_node = [[node, list(there)] for node, there in self._by_node.items()]
        return [rows, by_node, sorted(self.incarnations.items())]

    def load(self, data: Sequence[Any]) -> None:
        rows, by_node, incarnations = data
        for session, node, incarnation, resume_ms, due_ms, crashed in rows:
            found = self.by_id[session] = Session(session, node, incarnation, resume_ms)
            if due_ms is not None:
                self._expect(found, due_ms, crashed=crashed)
        self._by_node = {node: dict.fromkeys(there) for node, there in by_node}
        self.incarnations = dict(incarnations)

    def invariants(self) -> None:
        listed = [(node, session) for node, there in self._by_node.items() for session in there]
        assert len(listed) == len(self.by_id), "a session is at two nodes, or at none"
        for node, session in listed:
            assert self.by_id[session].node == node, "a session is listed at another node"
        for session in self.by_id.values():
            if session.due_ms is not None:
                assert self.due_ms is not None, "nobody waits for a suspected session"
                assert self.due_ms <= session.due_ms, "a suspected session would be forgotten"
