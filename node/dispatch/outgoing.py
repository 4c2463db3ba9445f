"""What a node tells a client, in no protocol's words: each has its own frames for these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from cluster.types import Body, ConsumerKey


class MessageBatch(NamedTuple):
    """Consecutive messages of one delivery decision, bodies included."""

    first: int  # position of the first one
    token: int
    delivery_count: int
    acquired_count: int
    bodies: list[Body]  # a large one is alone in its batch
    meta: Any  # None, one value for all bodies, or a list with one per body
    deaths: Any


class Confirm(NamedTuple):
    """The outcome of one publish: what was stored is safe on a majority."""

    request: int
    first: int  # position of the first stored message; 0 when none was
    stored: int
    duplicates: int
    refused: Sequence[tuple[int, int]]  # ranges of offsets in the batch, over a limit of the queue


@dataclass(frozen=True, slots=True)
class PublishConfirms:
    confirms: list[Confirm]


@dataclass(frozen=True, slots=True)
class Delivery:
    queue: str
    consumer: ConsumerKey
    batches: list[MessageBatch]
    size_bytes: int  # of the bodies, for back-pressure
    origin: int = 0  # 0: this node leads the queue; else the attachment to the node that does


@dataclass(frozen=True, slots=True)
class RequestAnswer:
    """Done; `value` as the request's description says."""

    request: int
    value: Any = None


@dataclass(frozen=True, slots=True)
class SubscribeAnswer:
    request: int
    consumer: ConsumerKey
    active: bool


@dataclass(frozen=True, slots=True)
class GetAnswer:
    request: int
    queue: str
    consumer: ConsumerKey
    ready: int
    batches: list[MessageBatch]
    auto_settle: bool = False  # what has a large body is settled when that has left


@dataclass(frozen=True, slots=True)
class StreamMessages:
    """What a read of a stream found."""

    request: int
    queue: str
    next: int  # where to read on; 0: a cursor knows
    batches: list[MessageBatch]


@dataclass(frozen=True, slots=True)
class Failure:
    """Refused, or of unknown outcome (code `unknown`). `request` 0: it answers no request."""

    request: int
    code: str
    reason: str
    detail: Any = None


@dataclass(frozen=True, slots=True)
class Moved:
    """The queue's leader is elsewhere; nothing was done. `request` 0: its consumers must move."""

    request: int
    queue: str
    leader: str | None


@dataclass(frozen=True, slots=True)
class Ended:
    queue: str
    consumer: ConsumerKey
    reason: str


@dataclass(frozen=True, slots=True)
class Active:
    """Single active consumer: this one is, or is no longer, the active one."""

    queue: str
    consumer: ConsumerKey
    active: bool
    token: int


@dataclass(frozen=True, slots=True)
class Shards:
    """A queue that the connection consumes is split over these now; none: it is one queue."""

    queue: str
    names: tuple[str, ...]


Outgoing = (
    PublishConfirms
    | Delivery
    | RequestAnswer
    | SubscribeAnswer
    | GetAnswer
    | StreamMessages
    | Failure
    | Moved
    | Ended
    | Active
    | Shards
)
