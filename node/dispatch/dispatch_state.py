"""What the dispatcher remembers of connections and their consumers. Losing it loses nothing."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from cluster.machine.replies import Chunk
from cluster.types import ConsumerKey, GroupId, QueueId
from node.dispatch.chunks import DeliveryProgress
from node.dispatch.in_flight import InFlight
from node.dispatch.outgoing import Confirm
from node.dispatch.plan import ConnectionId


@dataclass(slots=True)
class ConsumerState:
    """One that this node serves, as the leader of its queue."""

    connection: ConnectionState
    group: GroupId
    queue: QueueId
    name: str
    key: ConsumerKey
    auto_settle: bool
    progress: DeliveryProgress
    mark: int  # highest token queued: tokens grow, so up to here nothing is new
    active: bool
    #: What its client has by newer decisions than this node had applied when it was announced:
    #: a leader that is ahead had served it.
    ahead: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    pending: deque[Chunk] = field(default_factory=deque[Chunk])  # never sent; at most what it holds
    cancelled: bool = False
    windowed: bool = False  # the machine waits until it hears what left: first, last, token
    unreported: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    unreported_count: int = 0
    fetching: bool = False  # waits for an entry that is not in memory
    #: One batch at a time, for how long its client takes: first, last, when it was sent.
    timed: tuple[int, int, float] | None = None


@dataclass(slots=True)
class ConnectionState:
    """Of a client, or of a node that serves one."""

    id: ConnectionId
    in_flight: InFlight
    confirms: list[Confirm] = field(default_factory=list[Confirm])
    unsent_bytes: int = 0  # delivered, not yet taken by the network
    consumers: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )
    #: Consumers with something pending, in the order in which they take turns.
    waiting: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )
    fetching: int = 0  # consumers whose entry is being fetched...
    #: ...and those that wait until so few are that they may fetch, too.
    cold: dict[tuple[QueueId, ConsumerKey], ConsumerState] = field(
        default_factory=dict[tuple[QueueId, ConsumerKey], ConsumerState]
    )
