"""Clients attached to a group: who is there, who is suspected, who is dead, and at which node.

A lost connection or a silent node makes a session suspected: it keeps what it holds and gets
nothing new until it is back or its time is over. Only then is it dead, and what it held returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.types import NodeId, SessionId

# A node that is silent may be cut off with its clients still at work.
SUSPECTED_GRACE_MS = 60_000


class Session:
    __slots__ = ("consumers", "crashed", "due_ms", "id", "incarnation", "node", "resume_ms")

    def __init__(self, session: SessionId, node: NodeId, incarnation: int, resume_ms: int) -> None:
        self.id = session
        self.node = node
        self.incarnation = incarnation
        self.resume_ms = resume_ms
        self.due_ms: int | None = None  # suspected until then; None: it is connected
        self.crashed = False  # the client itself went away, not its node
        self.consumers: dict[tuple[int, int], None] = {}  # (queue, consumer key), oldest first

    @property
    def connected(self) -> bool:
        return self.due_ms is None


class Sessions:
    """Sessions by id and by node, and the newest incarnation of every node."""

    __slots__ = ("_by_node", "by_id", "due_ms", "incarnations")

    def __init__(self) -> None:
        self.by_id: dict[str, Session] = {}
        self._by_node: dict[str, dict[str, None]] = {}
        self.incarnations: dict[str, int] = {}
        self.due_ms: int | None = None  # no suspected session is due before; perhaps none is

    def get(self, session: SessionId) -> Session | None:
        return self.by_id.get(session)

    def open(self, session: SessionId, node: NodeId, incarnation: int, resume_ms: int) -> Session:
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

    def suspect(self, session: Session, due_ms: int, *, crashed: bool = False) -> None:
        session.due_ms = due_ms
        session.crashed = crashed
        self.due_ms = due_ms if self.due_ms is None else min(self.due_ms, due_ms)

    def remove(self, session: Session) -> None:
        self._leave_node(session)
        del self.by_id[session.id]

    def _leave_node(self, session: Session) -> None:
        there = self._by_node[session.node]
        del there[session.id]
        if not there:
            del self._by_node[session.node]

    def at(self, node: NodeId) -> list[Session]:
        return [self.by_id[session] for session in self._by_node.get(node, ())]

    def due(self, now_ms: int) -> list[Session]:
        """The suspected whose time is over, in the order of their ids."""
        if self.due_ms is None or self.due_ms > now_ms:
            return []
        waiting = [session for session in self.by_id.values() if session.due_ms is not None]
        over = [s for s in waiting if s.due_ms is not None and s.due_ms <= now_ms]
        later = [s.due_ms for s in waiting if s.due_ms is not None and s.due_ms > now_ms]
        self.due_ms = min(later, default=None)
        return sorted(over, key=lambda session: session.id)

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
                self.suspect(found, due_ms, crashed=crashed)
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
