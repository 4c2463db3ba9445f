"""Everything that can be written into a group's log.

A command is data. Which number it has on the wire and on disk is said once, in `cluster.codec`.
Fields hold only what CBOR can hold: integers, text, bytes, lists, maps, None. Positions are a
queue's own dense message numbers, from 1; ranges of them are `[first, last]` pairs, both ends
included, ascending, not overlapping.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from cluster.machine.catalog_commands import (
    AddNode,
    Bind,
    ChangeCatalog,
    ChangeQueue,
    CreateGroup,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DropEntry,
    ForgetNode,
    ForgetVolatile,
    GroupHeld,
    MoveGroup,
    NodeGone,
    PutEntry,
    RegisterNode,
    RemoveNode,
    RemoveQueue,
    Unbind,
)
from cluster.types import (
    AS_OF_NOTHING,
    CATALOG_GROUP,
    AsOf,
    ConsumerKey,
    GroupId,
    NodeId,
    QueueId,
    SessionId,
    value,
)

Ranges = Sequence[tuple[int, int]]
#: Numbers from and to, and the queues that have these dead letters.
SafeIn = Sequence[tuple[int, int, Sequence[QueueId]]]
#: (first, last, token): these positions, as they were delivered under this token.
Deliveries = Sequence[tuple[int, int, int]]
#: (queue, messages, bytes of all of them together).
Wants = Sequence[tuple[QueueId, int, int]]
#: What streams are to get, by which they may refuse it: of each batch the sizes of its messages,
#: with their headers, and `Enqueue.attrs`.
Batches = Sequence[tuple[QueueId, Sequence[int], Any]]
Arriving = tuple[Sequence[int], Any]  # one of these, of a stream that is known
Overflow = Literal["drop-head", "reject-publish", "reject-publish-dlx"]
RetryType = Literal["disabled", "all", "failed", "returned"]

# Keys of `Enqueue.attrs`: what the machine itself must know of a message. All else is opaque
# `meta`.
ATTR_PRIORITY = 1  # int, 0..255
ATTR_TTL_MS = 2  # int >= 0, per-message TTL (C15)
ATTR_DELIVER_AT_MS = 3  # int, wall clock ms: not ready before
ATTR_DEDUP_ID = 4  # text: within the queue's window of ids the message is stored once
# list of death records carried by a message that was dead-lettered in another group (C22)
ATTR_DEATHS = 5
# Of messages of streams:
ATTR_SUBJECT = 6  # bytes: NATS's subject, under which the message is stored
# map of what NATS's headers ask of the stream: see `cluster.machine.stream.settings`
ATTR_ASKED = 7
# text: the message's key, in a queue with `QueueConfig.group_key`; since machine version 5
ATTR_GROUP_KEY = 8


#: As `QueueConfig.group_key`: a message's key is its routing key, and not a header.
ROUTING_KEY = "routing-key"

#: How long a delivery may stay unsettled, unless somebody says so (A18).
CONSUMER_TIMEOUT_MS = 1_800_000


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Effective settings of a queue, arguments and policy already merged. None means: no limit, or
    off.
    """

    type: Literal["queue", "stream"] = "queue"  # the closed set of queue types
    single_active_consumer: bool = False  # A25
    max_priority: int = 0  # C24; 0: no priorities
    message_ttl_ms: int | None = None  # C14
    expires_ms: int | None = None  # the queue itself, when unused this long
    max_length: int | None = None  # ready messages; exact
    max_length_bytes: int | None = None  # ready body bytes; exact
    overflow: Overflow = "drop-head"
    # "" is the default exchange: the routing key names the queue
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None  # None: the message keeps its own
    # set when the target is a queue of the same group: moved in one apply
    dead_letter_queue: QueueId | None = None
    delivery_limit: int | None = 20  # None: no limit
    delayed_retry_type: RetryType = "disabled"
    delayed_retry_min_ms: int = 1_000
    delayed_retry_max_ms: int = 60_000
    consumer_timeout_ms: int | None = CONSUMER_TIMEOUT_MS
    dedup_window_ms: int | None = None  # window of ATTR_DEDUP_ID; None: off
    auto_delete: bool = False  # the queue goes when its last consumer goes
    # of a stream: JetStream's configuration by its names, in ns; since machine version 4
    stream: Any = None
    # how old its oldest ready message may become before somebody is told; since machine version 5
    slo_oldest_age_ms: int | None = None
    # by what messages are in groups, of each of which one is in flight: a header, or the routing
    # key; since machine version 5
    group_key: str | None = None

    def declared_as(self, declared: QueueConfig) -> QueueConfig:
        """With what only a declaration may say (A31) as it was declared."""
        return replace(
            self,
            type=declared.type,
            single_active_consumer=declared.single_active_consumer,
            max_priority=declared.max_priority,
            group_key=declared.group_key,
            auto_delete=declared.auto_delete,
        )


@dataclass(frozen=True, slots=True)
class CreateQueue:
    """Create, or do nothing when the queue exists already. Refused of one that was deleted: see
    `DeleteQueue.fence`. `name` and `vhost` are for death records and people.
    """

    queue: QueueId
    vhost: str
    name: str
    config: QueueConfig
    as_of: AsOf = AS_OF_NOTHING  # as for UpdateQueue
    new: bool = False  # the catalog has just given its id: none that was lost or deleted had it


@dataclass(frozen=True, slots=True)
class UpdateQueue:
    """A policy changed, or what a stream was declared with. Takes effect at this index on every
    replica.

    `as_of`: of the copy of the catalog that the settings were worked out from. Since machine
    version 5 a queue that has settings of a later moment keeps them: whoever proposed this had a
    copy that lagged behind.
    """

    queue: QueueId
    config: QueueConfig
    as_of: AsOf = AS_OF_NOTHING


@dataclass(frozen=True, slots=True)
class DeleteQueue:
    queue: QueueId
    if_unused: bool = False
    if_empty: bool = False
    #: Nor does any consumer hold a message of it, nor is a dead letter on its way; since machine
    #: version 5.
    if_settled: bool = False
    #: The catalog still has the queue: its id stays fenced, so that it is not made again under it,
    #: until the catalog has it no more and this command comes without a fence. Since machine
    #: version 5.
    fence: bool = False
    #: The catalog has the queue no more, as of this moment. A `CreateQueue` of an earlier one does
    #: not make it again. Since machine version 5.
    as_of: AsOf = AS_OF_NOTHING


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A client (or an AMQP channel) attaches through `node`, or comes back: then what it held is
    still its own.
    """

    session: SessionId
    node: NodeId
    incarnation: int
    # how long what it holds waits for it when the connection is lost; 0: not at all
    resume_ms: int = 0


class HandedTo(NamedTuple):
    """What of a consumer's deliveries its node handed to the network: all up to the token `mark`,
    and these of later tokens. The others never left the cluster.
    """

    queue: QueueId
    consumer: ConsumerKey
    mark: int
    beyond: Deliveries


@dataclass(frozen=True, slots=True)
class DetachSession:
    """The connection was lost: suspected until `resume_ms` have passed, then dead. Only if still at
    this node.
    """

    session: SessionId
    node: NodeId
    incarnation: int
    # None: not known, and all of it may have been delivered. A consumer
    # that is not named ended before its node knew how far it was.
    handed: Sequence[HandedTo] | None = None


@dataclass(frozen=True, slots=True)
class CloseSession:
    """The client said goodbye: all it holds is returned at once (B11), without counting as a failed
    delivery.
    """

    session: SessionId
    handed: Sequence[HandedTo] | None = None  # as for DetachSession


@dataclass(frozen=True, slots=True)
class NodeDown:
    """`gone`: its process ended. Not gone: silence, perhaps a partition; its sessions are suspected
    (A34).
    """

    node: NodeId
    incarnation: int
    gone: bool


@dataclass(frozen=True, slots=True)
class NodeUp:
    """The node is heard again. A higher incarnation ends every session of a lower one."""

    node: NodeId
    incarnation: int


@value
class Origin:
    """Where the messages of an `Enqueue` come from: another stream, which this one mirrors or
    sources.

    What was taken of it is state. A batch that does not begin behind that is refused as out of
    sequence, with the sequence wanted next: so each message is taken once, whoever copies. Of what
    is followed anew nothing was taken, so a batch says since when it is followed, too.
    """

    key: str  # by which the settings name it: `stream.settings.origin_key`
    queue: QueueId  # the other stream; one that was made again has a higher number
    after: int  # all that is wanted up to this sequence was taken before
    last: int  # and up to this one now
    sequences: Ranges  # of the bodies, ascending
    times_ms: Sequence[int] = ()  # of a mirror: when each was stored there
    since: int = 0  # the log's index of the change that put it there; 0: the stream began with it


@value
class Enqueue:
    """A batch of messages from one publisher, numbered `seqno`, `seqno + 1`, ... densely per
    (publisher, queue), from 1.

    A number already seen is confirmed, not stored again; a gap is refused, so that resending in
    order is always safe. Only carriers of dead letters may skip numbers. An empty batch with number
    0 asks: it is always refused as out of sequence, with the number expected next.
    """

    queue: QueueId
    publisher: str | None  # None: no de-duplication
    seqno: int  # of the first body; 0 when publisher is None
    bodies: Sequence[bytes]
    meta: Any = None  # opaque: one value for all bodies, or a list with one per body
    # None | map for all bodies | list of (map or None) with one per body; keys ATTR_*
    # | map with ATTR_GROUP_KEY alone, of a list of (text or None) with one per body
    attrs: Any = None
    # None | map from the place of a body in the batch to [upload, parts]: `bodies` has only how it
    # begins, the rest was kept as these parts, [entry, offset, size] each
    large: Any = None
    atomic: bool = False  # into a stream: all of it is stored, or nothing; since machine version 5
    # into a stream, from one that it follows: there may be no bodies; since machine version 5
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class BodyPart:
    """A part of a body that is too large for one entry. It is kept until an `Enqueue` makes a
    message of all parts of its upload, or until the upload is not gone on with for long.

    Parts are numbered from 0 on. One that came already is not kept again; a gap is refused.
    """

    queue: QueueId
    upload: str
    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Register a consumer. Its key is `stamp.key` of this command, or the existing one when session
    and tag match.
    """

    queue: QueueId
    session: SessionId
    tag: str
    credit: int = 0  # most unsettled deliveries it may hold; 0: unlimited (B16)
    priority: int = 0  # A35
    exclusive: bool = False  # A24
    auto_settle: bool = False  # A12: settled when delivered
    timeout_ms: int | None = None  # overrides the queue's consumer timeout


@dataclass(frozen=True, slots=True)
class Cancel:
    """No more deliveries; what is in flight stays with the consumer until settled (A16), unless it
    is to `give_back`: then nothing is left of the consumer.
    """

    queue: QueueId
    consumer: ConsumerKey
    give_back: bool = False


@dataclass(frozen=True, slots=True)
class SetCredit:
    queue: QueueId
    consumer: ConsumerKey
    credit: int


@value
class Settle:
    """Done: they leave the queue. With `token`, the highest of these deliveries, one that was made
    later is not meant, so that the command may be repeated.
    """

    queue: QueueId
    consumer: ConsumerKey
    ranges: Ranges
    token: int | None = None


@value
class Return:
    """Back to the original position (B08). `failed` adds one to the delivery count; over the limit
    it is dead. `token`: as for Settle. `unsent`: no client has seen these deliveries.
    """

    queue: QueueId
    consumer: ConsumerKey
    ranges: Ranges
    failed: bool = False
    delay_ms: int | None = None  # overrides the queue's delayed retry
    token: int | None = None
    unsent: bool = False


@dataclass(frozen=True, slots=True)
class Discard:
    """Refused for good: dead-lettered with reason `rejected`, or dropped (C09). `token`: as for
    Settle.
    """

    queue: QueueId
    consumer: ConsumerKey
    ranges: Ranges
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Extend:
    """The consumer is still at work: its deadline for these deliveries starts again from now."""

    queue: QueueId
    consumer: ConsumerKey
    ranges: Ranges
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Get:
    """Take up to `count` messages once (A17). Prefetch does not apply (B21)."""

    queue: QueueId
    session: SessionId
    count: int = 1
    auto_settle: bool = False
    #: Those of these that wait, ready or delayed, in the place of the next ones; since machine
    #: version 5.
    positions: Ranges = ()


@dataclass(frozen=True, slots=True)
class Purge:
    """Drop all that is ready or delayed; what is in flight stays. Of a stream: all messages, or
    those that the other fields name, since machine version 4.
    """

    queue: QueueId
    subject: bytes | None = None  # may have wildcards
    below: int = 0  # only sequences below it; 0: all
    keep: int = 0  # so many of the newest stay; not together with `below`


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop or resume deliveries of a queue; survives a change of leader."""

    queue: QueueId
    paused: bool


@value
class Withdraw:
    """Waiting messages, ready or delayed, leave the queue: all of these, or none. As a step of a
    transaction that puts them elsewhere they are moved. Since machine version 5.
    """

    queue: QueueId
    ranges: Ranges


@value
class Retime:
    """Those of these messages that wait, ready or delayed, are ready at another time: at once, when
    it is past. Since machine version 5.
    """

    queue: QueueId
    ranges: Ranges
    ready_at_ms: int


@dataclass(frozen=True, slots=True)
class DeadLettersMoved:
    """The dead letters of this queue numbered up to `number` are safe in their targets' groups:
    forget them.
    """

    queue: QueueId
    number: int


@value
class PutOffDeadLetters:
    """Those with these numbers wait, and so does what dies from now on, until they are sent: they
    cannot go now, and others can. `safe_in`: from and to which number some of them are safe already
    in some of their targets, which are not sent them again. Since machine version 5.
    """

    queue: QueueId
    ranges: Ranges
    safe_in: SafeIn = ()


@value
class SendDeadLetters:
    """Those put off with these numbers go now, under new ones. Since machine version 5."""

    queue: QueueId
    ranges: Ranges


@value
class Handed:
    """The dispatcher has queued these, of a consumer without a credit limit, to a connection that
    had room: as many more may be assigned. Told for many at once. What the network has is another
    question: `HandedTo`. A refusal says the name of this class, so it must not change.
    """

    queue: QueueId
    consumer: ConsumerKey
    deliveries: Deliveries


@dataclass(frozen=True, slots=True)
class DeleteMessage:
    """One message of a stream, by its sequence. Since machine version 4."""

    queue: QueueId
    position: int


@dataclass(frozen=True, slots=True)
class PutConsumer:
    """Make a consumer of a stream, or change it. `config`: JetStream's, by its names, with a
    `name`. Ok(1): made; Ok(0): it was there, and is now as `config` says. Since machine version 4.
    """

    queue: QueueId
    config: dict[str, Any]
    action: Literal["", "create", "update"] = ""
    #: One that is there begins anew at this sequence; 0: it goes on. Since machine version 5.
    begin: int = 0
    #: `config` says only what changes of one that is there; None: it has this no longer. Since
    #: machine version 5.
    only: bool = False


@dataclass(frozen=True, slots=True)
class DropConsumer:
    """Of a stream. Refused if there is none. Since machine version 4."""

    queue: QueueId
    name: str
    key: ConsumerKey | None = None  # only this one, not a later one of the same name


@value
class Fetch:
    """Hand out messages of a stream for requests of one of its consumers, oldest request first.
    What is not there yet is not waited for. All that was handed out to it before has been sent,
    also if this asks for nothing. Since machine version 4.
    """

    queue: QueueId
    name: str
    # (number of the request, messages at most, bytes at most or 0)
    requests: Sequence[tuple[int, int, int]]
    # what a delivery weighs beside the message; 0: its subject is not counted either
    overhead: int = 0


@value
class Acknowledge:
    """What became of deliveries of a stream's consumer. Where clients do not acknowledge, who leads
    the stream does, once it has sent them. Sequences that it does not hold are passed over:
    acknowledgements may come late, or twice. Since machine version 4.
    """

    queue: QueueId
    name: str
    done: Ranges  # of stream sequences
    # (sequence, delay in ms): again after that; below 0: as the consumer's settings say; 0: at
    # once, and nobody is told, since no client said so
    again: Sequence[tuple[int, int]] = ()
    working: Sequence[int] = ()  # their time starts anew
    never: Sequence[int] = ()  # not delivered any more
    #: (sequence, why) of some of the latter. Since machine version 5.
    reasons: Sequence[tuple[int, str]] = ()
    #: (first, last, consumer's number of the first, delivery count): handed out, and sent to nobody
    #: since who asked had left; or perhaps to nobody, since the leader is another one. Next again,
    #: as if they had not been. All others were sent. Since machine version 5.
    unsent: Sequence[tuple[int, int, int, int]] = ()


@dataclass(frozen=True, slots=True)
class RestoreConsumer:
    """How far a consumer was when its stream was backed up. Only while the stream is a mirror, as
    one is that is being restored. Messages that are gone are passed over; what is held is due as
    if it was delivered now. Since machine version 5.
    """

    queue: QueueId
    name: str
    cursor: int  # first sequence that it was not given, of those that come in order
    delivered: tuple[int, int, int]  # deliveries, the highest sequence, when the last one was
    floor: tuple[int, int, int]  # likewise: all up to here was acknowledged
    #: (first, last, the consumer's number of the first delivery less the sequence, deliveries)
    held: Sequence[tuple[int, int, int, int]] = ()
    picked: Ranges = ()  # below the cursor, and yet to be given
    exhausted: Ranges = ()  # delivered too often


@dataclass(frozen=True, slots=True)
class RestoreIds:
    """Ids of messages that a stream had when it was backed up, oldest first; as above."""

    queue: QueueId
    ids: Sequence[tuple[str, int, int]]  # (id, sequence, stored ms)
    last: str = ""  # of the message stored last


#: What one queue is told to do.
QueueCommand = (
    Enqueue
    | BodyPart
    | Settle
    | Subscribe
    | Cancel
    | SetCredit
    | Return
    | Discard
    | Extend
    | Get
    | Purge
    | Pause
    | Withdraw
    | Retime
    | UpdateQueue
    | DeadLettersMoved
    | PutOffDeadLetters
    | SendDeadLetters
    | Handed
    | DeleteMessage
    | PutConsumer
    | DropConsumer
    | Fetch
    | Acknowledge
    | RestoreConsumer
    | RestoreIds
)
Step = Enqueue | Settle | Return | Discard | Withdraw
GroupSteps = tuple[GroupId, Sequence[Step]]


@dataclass(frozen=True, slots=True)
class Transaction:
    """All of it or nothing (C28): `steps` are done here and now; `others`, for queues of other
    groups, are decided here and carried out there, as `TransactionPart`s.

    A node numbers its transactions, in any order and with gaps: a number that was answered gets the
    same answer again. It never repeats one below `answered_below`. Enqueues name no publisher.
    """

    node: NodeId
    incarnation: int  # of the node's process: a later one starts numbering anew
    number: int
    answered_below: int
    steps: Sequence[Step]
    others: Sequence[GroupSteps] = ()


@dataclass(frozen=True, slots=True)
class TransactionPart:
    """This group's share of what group `source` decided under `number`. Done once, however often it
    comes; numbers below `done_below` never come again. What has become impossible is skipped.
    """

    source: GroupId
    number: int
    done_below: int
    steps: Sequence[Step]


@dataclass(frozen=True, slots=True)
class TransactionDone:
    """To the group that decided: these other groups have done their parts."""

    number: int
    groups: Sequence[GroupId]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Room in queues that refuse what they have no room for, kept for the part of a transaction
    that another group is about to decide. All of it or nothing; twice is once. Nothing wanted: what
    was reserved is given back. Since machine version 3.

    `batches`: all that streams among these queues are to get, which they may refuse for more than
    lack of room. Since machine version 5. `source`: the group that is about to decide, without
    whose word nothing is given back in time. Since machine version 5; the catalog's: there is none.
    """

    node: NodeId
    incarnation: int
    number: int  # of the node's transaction
    wants: Wants = ()
    batches: Batches = ()
    source: GroupId = CATALOG_GROUP


@dataclass(frozen=True, slots=True)
class ResolveTransaction:
    """To the group that decides: a transaction that was not decided yet never will be. `Ok` counts
    1 while `group` has its part of it to do yet. Since machine version 5.
    """

    node: NodeId
    incarnation: int
    number: int  # of the node's transaction
    group: GroupId


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: whatever is due at `stamp.now_ms` happens now. Harmless when nothing is."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """Changes nothing; once applied here, everything confirmed before it was proposed is applied
    here too.
    """


@dataclass(frozen=True, slots=True)
class UpgradeMachine:
    """From this index on every replica behaves as version `to`."""

    to: int


Command = (
    QueueCommand
    | CreateQueue
    | DeleteQueue
    | OpenSession
    | DetachSession
    | CloseSession
    | NodeDown
    | NodeUp
    | Transaction
    | TransactionPart
    | TransactionDone
    | Reserve
    | ResolveTransaction
    | Tick
    | Barrier
    | UpgradeMachine
    | RegisterNode
    | AddNode
    | RemoveNode
    | NodeGone
    | MoveGroup
    | GroupHeld
    | CreateGroup
    | DeclareQueue
    | ChangeQueue
    | RemoveQueue
    | ForgetNode
    | ForgetVolatile
    | DeclareExchange
    | DeleteExchange
    | Bind
    | Unbind
    | PutEntry
    | DropEntry
    | ChangeCatalog
)
