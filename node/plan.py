"""What the dispatcher wants done. Data only: the caller carries it out, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from cluster.machine.commands import Command
from cluster.types import GroupId, QueueId, SessionId
from node.outgoing import Outgoing

ConnectionId = NewType("ConnectionId", int)


@dataclass(frozen=True, slots=True)
class Send:
    connection: ConnectionId
    frame: Outgoing


@dataclass(frozen=True, slots=True)
class Ticket:
    """What a proposal was for: comes back with its outcome."""

    connection: ConnectionId
    request: int
    queue: str
    size_bytes: int = 0  # of a publish; counts as in flight until the outcome
    settles: bool = False


@dataclass(frozen=True, slots=True)
class Propose:
    group: GroupId
    command: Command
    ticket: Ticket | None  # None: nobody waits for the outcome


@dataclass(frozen=True, slots=True)
class PauseReading:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ResumeReading:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class SessionOver:
    """A session is dead in a group: it must end in all others, and its connection with it."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A body that should be in the log could not be read: the message stays in flight."""

    group: GroupId
    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class MoveDeadLetters:
    group: GroupId
    queue: QueueId


@dataclass(frozen=True, slots=True)
class DropQueue:
    queue: QueueId


Output = (
    Send
    | Propose
    | PauseReading
    | ResumeReading
    | SessionOver
    | Unreadable
    | MoveDeadLetters
    | DropQueue
)
