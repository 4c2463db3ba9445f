"""What the leader must do after an entry was applied. Data only; each may be repeated or lost on a
change of leader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cluster.machine.replies import Chunk, Reply
from cluster.types import BodyRef, ConsumerKey, GroupId, NodeId, QueueId, SessionId, value


@value
class Deliver:
    """Send these to the consumer. A repeat carries the same tokens, so the client can drop it."""

    queue: QueueId
    consumer: ConsumerKey
    session: SessionId
    chunks: Sequence[Chunk]
    windowed: bool = False  # it gets more when these are `Handed`


@dataclass(frozen=True, slots=True)
class ConsumerEnded:
    """The machine ended a consumer: tell its client (basic.cancel, C42). reason: queue_deleted |
    timeout.
    """

    queue: QueueId
    consumer: ConsumerKey
    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class ActiveChanged:
    """Single active consumer: `consumer` is the active one now, fenced by `token`; None: nobody."""

    queue: QueueId
    consumer: ConsumerKey | None
    session: SessionId | None
    token: int


@value
class StreamChanged:
    """Consumers of the stream may have something to fetch, or a consumer came or went."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class StreamAcked:
    """Deliveries that were acknowledged to a consumer of which a share is told to people."""

    queue: QueueId
    consumer: str
    first: int  # sequence
    last: int
    ahead: int  # the consumer's numbers, less the sequences
    delivery_count: int
    waited_ms: int  # since the last delivery


@dataclass(frozen=True, slots=True)
class StreamStored:
    """A message that its stream publishes again, as soon as it has it."""

    queue: QueueId
    position: int
    subject: bytes
    destination: bytes
    bodies: BodyRef
    stored_ms: int
    previous: int  # the message of its subject before it; 0: none


@dataclass(frozen=True, slots=True)
class StreamAdvisory:
    """Something that JetStream tells on `$JS.EVENT.ADVISORY`. `kind`: max_deliver | nak |
    terminated.
    """

    queue: QueueId
    kind: str
    consumer: str
    position: int
    delivery_count: int
    consumer_position: int
    reason: str = ""  # of `terminated`


@dataclass(frozen=True, slots=True)
class DeliveryLimitReached:
    """So many messages of the queue were delivered too often: people should be told."""

    queue: QueueId
    count: int


@dataclass(frozen=True, slots=True)
class DeadLettersReady:
    """The queue's outbox holds dead letters for other groups: see
    `QueueMachine.dead_letters(queue)`.
    """

    queue: QueueId


@dataclass(frozen=True, slots=True)
class TransactionsDue:
    """Other groups have not done all that was decided here, or have not said for long what became
    of what they decide: see `QueueMachine.transactions()` and `QueueMachine.in_doubt()`.
    """


@dataclass(frozen=True, slots=True)
class QueueExpired:
    """Unused for `expires_ms`, or left by its last consumer: the catalog must drop it."""

    queue: QueueId


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is dead in this group: the node closes it everywhere else too."""

    session: SessionId
    reason: str  # closed | lost | node_gone | superseded | consumer_timeout


@dataclass(frozen=True, slots=True)
class GroupCreated:
    """Catalog: every node that is a member starts its copy."""

    group: GroupId
    name: str
    members: Sequence[NodeId]


@dataclass(frozen=True, slots=True)
class QueueDeclared:
    """Catalog: the leader of `group` makes sure that the queue exists there."""

    queue: QueueId
    group: GroupId


@dataclass(frozen=True, slots=True)
class QueueRemoved:
    """Catalog: the leader of `group` makes sure that the queue is gone there."""

    queue: QueueId
    group: GroupId


Effect = (
    Deliver
    | ConsumerEnded
    | ActiveChanged
    | DeliveryLimitReached
    | StreamChanged
    | StreamAdvisory
    | StreamAcked
    | StreamStored
    | DeadLettersReady
    | TransactionsDue
    | QueueExpired
    | SessionEnded
    | GroupCreated
    | QueueDeclared
    | QueueRemoved
)


class Applied(NamedTuple):
    """What `apply` answers for one command."""

    reply: Reply
    effects: Sequence[Effect] = ()


class DeadLetter(NamedTuple):
    """One message on its way to another group; the numbers of its source queue grow, of those that
    go and of those put off.
    """

    number: int
    # The name shadows a method of tuple that nobody calls on it.
    index: int  # entry of the body  # pyright: ignore[reportIncompatibleMethodOverride]
    offset: int
    deaths: Any  # its x-death records, this death included
    exchange: str  # to publish to
    routing_key: str | None  # None: the message's own
    priority: int = 0  # as published
    put_off: bool = False  # it goes when it was asked for: `SendDeadLetters`
    safe_in: tuple[QueueId, ...] = ()  # targets that have it, of several
    died: int = 0  # the number that it had first
