"""Sessions come, are suspected and end: what that means for the queues they use."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.machine.commands import (
    CloseSession,
    DetachSession,
    Get,
    HandedTo,
    NodeDown,
    OpenSession,
    Subscribe,
)
from cluster.machine.effects import SessionEnded
from cluster.machine.kinds import QueueKind
from cluster.machine.replies import BAD_ARGUMENT, LIMIT_REACHED, NO_SESSION, Ok, Refused, Reply
from cluster.machine.sessions import SUSPECTED_GRACE_MS, Session, Sessions
from cluster.machine.turn import Turn
from cluster.types import ConsumerKey, NodeId, QueueId

SESSIONS_MAX = 1_000_000
RESUME_MS_MAX = 7 * 24 * 3_600_000


class Attendance:
    """The sessions of a group, and the queues that are told about them."""

    __slots__ = ("_queues", "sessions")

    def __init__(self, queues: dict[int, QueueKind]) -> None:
        self.sessions = Sessions()
        self._queues = queues  # the group's own

    def open(self, turn: Turn, command: OpenSession) -> Reply:
        known = self.sessions.incarnations.get(command.node, 0)
        if command.incarnation < known:
            return Refused(
                NO_SESSION,
                f"node {command.node} has incarnation {known} by now: connect again",
                known,
            )
        if not 0 <= command.resume_ms <= RESUME_MS_MAX:
            return Refused(BAD_ARGUMENT, f"resume_ms is a number from 0 to {RESUME_MS_MAX}")
        old = self.sessions.get(command.session)
        if old is None and len(self.sessions.by_id) >= SESSIONS_MAX:
            return Refused(LIMIT_REACHED, f"the group has {SESSIONS_MAX} sessions already")
        was_connected = old is None or old.connected
        session = self.sessions.open(
            command.session, command.node, command.incarnation, command.resume_ms
        )
        self.node_up(turn, command.node, command.incarnation)
        if not was_connected:
            self._connected(turn, session, connected=True)
        return Ok(len(session.consumers))

    def objection(self, command: Subscribe | Get) -> Refused | None:
        """Why the session cannot do this; a get that settles what it takes needs none."""
        name = command.session
        session = self.sessions.get(name)
        if session is None:
            if isinstance(command, Get) and command.auto_settle:
                return None
            return Refused(NO_SESSION, f"there is no session {name}: open it first")
        if not session.connected:
            return Refused(NO_SESSION, f"session {name} is detached: open it again first")
        return None

    def detach(self, turn: Turn, command: DetachSession) -> Reply:
        session = self.sessions.get(command.session)
        if (
            session is None
            or session.node != command.node
            or session.incarnation != command.incarnation
        ):
            return Ok()  # it is attached elsewhere by now
        if session.crashed:
            return Ok()  # heard before: its time runs already
        self._was_handed(turn, session, command.handed)
        if session.resume_ms == 0:
            self.end(turn, session, "lost", failed=True)
        else:
            self._suspect(turn, session, turn.now_ms + session.resume_ms, crashed=True)
        return Ok(1)

    def close(self, turn: Turn, command: CloseSession) -> Reply:
        session = self.sessions.get(command.session)
        if session is None:
            return Ok()
        self._was_handed(turn, session, command.handed)
        self.end(turn, session, "closed", failed=False)
        return Ok(1)

    def _was_handed(self, turn: Turn, session: Session, handed: Sequence[HandedTo] | None) -> None:
        if handed is None or turn.version < 2:
            return
        known = {(each.queue, each.consumer): each for each in handed}
        for queue_id, key in session.consumers:
            each = known.get((QueueId(queue_id), ConsumerKey(key)))
            self._queues[queue_id].session_was_handed(ConsumerKey(key), each)
            turn.touched[queue_id] = None

    def node_down(self, turn: Turn, command: NodeDown) -> Reply:
        if command.incarnation < self.sessions.incarnations.get(command.node, 0):
            return Ok()  # news of a process that has a successor already
        self._end_older(turn, command.node, command.incarnation)
        count = 0
        for session in self.sessions.at(command.node):
            if session.crashed:
                continue  # it waits for its client, whatever becomes of the node
            count += 1
            if not command.gone:
                if session.connected:
                    grace_ms = max(session.resume_ms, SUSPECTED_GRACE_MS)
                    self._suspect(turn, session, turn.now_ms + grace_ms)
            elif session.resume_ms == 0:
                self.end(turn, session, "node_gone", failed=False)
            else:
                due_ms = turn.now_ms + session.resume_ms
                if session.due_ms is not None:  # heard before: its time runs already
                    due_ms = min(due_ms, session.due_ms)
                self._suspect(turn, session, due_ms)
        return Ok(count)

    def node_up(self, turn: Turn, node: NodeId, incarnation: int) -> Reply:
        if incarnation < self.sessions.incarnations.get(node, 0):
            return Ok()
        self._end_older(turn, node, incarnation)
        count = 0
        for session in self.sessions.at(node):
            if not session.connected and not session.crashed:
                session.due_ms = None
                self._connected(turn, session, connected=True)
                count += 1
        return Ok(count)

    def _end_older(self, turn: Turn, node: NodeId, incarnation: int) -> None:
        """The node's process is this one now; what earlier ones carried is dead."""
        if self.sessions.incarnations.get(node, -1) == incarnation:
            return
        self.sessions.incarnations[node] = incarnation
        for session in self.sessions.at(node):
            if session.incarnation < incarnation:
                self.end(turn, session, "superseded", failed=False)

    def _suspect(self, turn: Turn, session: Session, due_ms: int, *, crashed: bool = False) -> None:
        was_connected = session.connected
        self.sessions.suspect(session, due_ms, crashed=crashed)
        if was_connected:
            self._connected(turn, session, connected=False)

    def _connected(self, turn: Turn, session: Session, *, connected: bool) -> None:
        for queue_id, key in sorted(session.consumers):
            self._queues[queue_id].session_connected(ConsumerKey(key), connected=connected)
            turn.touched[queue_id] = None

    def end(self, turn: Turn, session: Session, reason: str, *, failed: bool) -> None:
        turn.effects.append(SessionEnded(session.id, reason))
        for queue_id, key in sorted(session.consumers):
            self._queues[queue_id].session_ended(turn, ConsumerKey(key), failed=failed)
            turn.touched[queue_id] = None
        self.sessions.remove(session)

    def end_due(self, turn: Turn) -> None:
        if self.sessions.due_ms is not None and self.sessions.due_ms <= turn.now_ms:
            for session in self.sessions.due(turn.now_ms):
                self.end(turn, session, "lost", failed=session.crashed)
