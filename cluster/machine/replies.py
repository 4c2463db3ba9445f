"""What the proposer of a command is told. Errors are replies: a log entry cannot be un-happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.types import BodyRef, ConsumerKey, GroupId, QueueId, value

# Codes of `Refused`, the same words on every protocol; AMQP maps them to its reply codes.
NO_QUEUE = "no_queue"
NO_CONSUMER = "no_consumer"
NO_SESSION = "no_session"
UNKNOWN_DELIVERY = "unknown_delivery"
EXCLUSIVE_USE = "exclusive_use"
SINGLE_ACTIVE = "single_active_consumer"
OUT_OF_SEQUENCE = "out_of_sequence"
QUEUE_FULL = "queue_full"
INEQUIVALENT = "inequivalent_arguments"
IN_USE = "in_use"
NOT_EMPTY = "not_empty"
BAD_ARGUMENT = "bad_argument"
PARTS_MISSING = "parts_missing"  # of a large body: publish it again from its first part on
OVERLOADED = "overloaded"  # it passes: try again
UNKNOWN_COMMAND = "unknown_command"
STALE_COPY = "stale_copy"  # of the catalog, by which it was proposed: catch up, and try again
COMMAND_SKIPPED = "command_skipped"  # the machine raised: a bug
NO_GROUP = "no_group"
NO_NODE = "no_node"
LIMIT_REACHED = "limit_reached"
NO_VHOST = "no_vhost"
PROTECTED_VHOST = "protected_vhost"  # it is not dropped while it is
NO_USER = "no_user"
NO_EXCHANGE = "no_exchange"
UNKNOWN_EXCHANGE_TYPE = "unknown_exchange_type"
EXCLUSIVE_OWNER = "exclusive_owner"  # the queue belongs to another connection
NO_MESSAGE = "no_message"  # of a stream
WRONG_KIND = "wrong_kind"  # a stream cannot do what a queue can, and the other way
NOT_ALLOWED = "not_allowed"  # to anybody: reserved names, the default exchange


@value
class Ok:
    """Done. `count`: how many messages or things it was about, where that makes sense."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Surely did not happen. `reason` is a sentence that says what to do."""

    code: str
    reason: str
    detail: Any = None  # OUT_OF_SEQUENCE: the seqno expected next


@value
class Enqueued:
    """Outcome of a batch. Messages neither refused nor duplicate got consecutive positions from
    `first`.
    """

    first: int  # position of the first stored message; 0 when none was stored
    stored: int
    duplicates: int = 0
    # ranges of seqno offsets within the batch (from 0), over a limit
    refused: Sequence[tuple[int, int]] = ()
    # Of a stream: map from places in the batch to [code, number], for messages that did not get
    # the next sequence. Code -1: it has `number`, since the batch came before; 0: a message with
    # its id has `number`, or 0 if nobody knows any more; else why it is refused, one of
    # `cluster.machine.stream.errors`, with the sequence that was found.
    answers: Any = None


@value
class StreamChunk:
    """Messages of a stream handed to one consumer: consecutive sequences and bodies."""

    first: int  # sequence of the first one
    bodies: BodyRef  # entry 0: of a marker, see `cluster.machine.stream.leaving`
    consumer_first: int  # the consumer's own number of the first delivery
    delivery_count: int  # of each, this one included: 1 the first time
    pending: int  # messages that the consumer has yet to get, after the first one
    stored_ms: int


@value
class Fetched:
    """What each request gets, in their order: (its number, chunks, note). A request that got
    nothing is missing unless there is a note. `note`: "" or "too_large", when the next message
    has more bytes than the request may still have.
    """

    consumer: ConsumerKey
    batches: Sequence[tuple[int, Sequence[StreamChunk], str]]


@dataclass(frozen=True, slots=True)
class PartKept:
    """Where a part of a large body lies, as `Enqueue.large` names it."""

    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class Subscribed:
    consumer: ConsumerKey
    active: bool  # false: registered behind the single active consumer


@value
class Chunk:
    """Messages handed to one consumer in one decision: consecutive positions, consecutive bodies,
    equal counts.
    """

    first: int  # position of the first one
    bodies: BodyRef
    token: int  # fencing token: grows with every delivery decision of the queue
    delivery_count: int  # failed deliveries so far (x-delivery-count)
    acquired_count: int  # times handed out before; redelivered = acquired_count > 0 (B12)
    deaths: Any = None  # death records to show as x-death (C22)


@dataclass(frozen=True, slots=True)
class Got:
    consumer: ConsumerKey  # settle with this key
    chunks: Sequence[Chunk]
    ready: int  # messages still ready


@dataclass(frozen=True, slots=True)
class Declared:
    queue: QueueId
    group: GroupId
    created: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction is decided, and done in the group that decided."""

    number: int  # of the group; 0: no other group takes part
    done_below: int  # all lower numbers are done everywhere


Reply = Ok | Refused | Enqueued | PartKept | Subscribed | Got | Declared | Committed | Fetched
