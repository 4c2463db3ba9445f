"""What the dispatcher wants done. Data only: the caller carries it out, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

from cluster.machine.commands import Command
from cluster.machine.replies import Chunk
from cluster.types import ConsumerKey, GroupId, QueueId, SessionId
from node.dispatch.outgoing import Outgoing
from node.dispatch.progress import DeliveryProgress

ConnectionId = NewType("ConnectionId", int)


@dataclass(frozen=True, slots=True)
class Send:
    connection: ConnectionId
    frame: Outgoing


@dataclass(frozen=True, slots=True)
class Ticket:
    """What was published: comes back with its outcome."""

    connection: ConnectionId
    request: int
    queue: str
    size_bytes: int  # counts as in flight until the outcome
    at_s: float  # when it was published


@dataclass(frozen=True, slots=True)
class Propose:
    group: GroupId
    command: Command
    ticket: Ticket | None  # of a publish; None: a `Settle` or a `Handed` of the node's own


@dataclass(frozen=True, slots=True)
class PauseReading:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class ResumeReading:
    connection: ConnectionId


@dataclass(frozen=True, slots=True)
class Detached:
    """This node no longer leads the consumer's group; this is how far its client is."""

    connection: ConnectionId
    queue: QueueId
    consumer: ConsumerKey
    progress: DeliveryProgress


@dataclass(frozen=True, slots=True)
class Drained:
    """A cancelled consumer was sent all that it holds: nothing more will come."""

    connection: ConnectionId
    queue: QueueId
    consumer: ConsumerKey


@dataclass(frozen=True, slots=True)
class SessionOver:
    """A session is dead in a group: it must end in all others, and its connection with it."""

    group: GroupId
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Bodies of a delivery are no longer in the log: they were returned or settled meanwhile."""

    group: GroupId
    queue: str
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Fetch:
    """Entries that are not in memory, from `first` to about `last`: `fetched` waits for the first
    of them.
    """

    group: GroupId
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MoveDeadLetters:
    group: GroupId
    queue: QueueId


@dataclass(frozen=True, slots=True)
class TellDeaths:
    """So many messages of the queue died of its delivery limit."""

    group: GroupId
    queue: QueueId
    count: int


@dataclass(frozen=True, slots=True)
class DropQueue:
    """Unused for its `x-expires`."""

    group: GroupId
    queue: QueueId


Output = (
    Send
    | Propose
    | PauseReading
    | ResumeReading
    | Detached
    | Drained
    | SessionOver
    | Unreadable
    | Fetch
    | MoveDeadLetters
    | TellDeaths
    | DropQueue
)
