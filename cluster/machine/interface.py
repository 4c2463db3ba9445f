"""What a machine offers to the group that runs it, and what it shows to people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from cluster.machine.commands import QueueConfig
from cluster.machine.effects import Applied, Effect
from cluster.machine.marks import NO_MARK, Mark
from cluster.machine.replies import Chunk
from cluster.machine.versions import NeedsNewer
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId, Stamp


class Machine(Protocol):
    """A deterministic state machine: equal commands with equal stamps give equal states."""

    version: int  # the one it runs now: see cluster.machine.versions
    newest: int  # that it could run
    now_ms: int  # of the log, as far as it was applied; 0: it goes by no time

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        """The only way state changes. Total: never raises, whatever the command."""
        ...

    def on_leader(self) -> Sequence[Effect]:
        """All effects that are still due, for a leader that cannot know what the last one did."""
        ...

    def snapshot(self) -> bytes:
        """The whole state, positions only; equal states give equal bytes."""
        ...

    def prepare_snapshot(self) -> Iterator[None]:
        """Between its steps the machine may go on, and the call that follows takes less time."""
        ...

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The same, as of this call, to be made piece by piece while the machine goes on."""
        ...

    def beyond(self, data: bytes) -> NeedsNewer | None:
        """Why a snapshot cannot be restored, if a later release wrote it."""
        ...

    def restore(self, data: bytes) -> None: ...

    def live_indexes(self) -> list[tuple[int, int]]:
        """Sorted ranges, both ends included, of the entries whose bodies are still needed."""
        ...

    def digest(self) -> bytes:
        """16 bytes; equal states give equal digests."""
        ...

    def next_due_ms(self) -> int | None:
        """When the leader should propose a Tick; perhaps too early, never too late."""
        ...

    def backlog(self, queue: QueueId) -> tuple[int, int, int]:
        """Ready messages of a queue, the position of the last that it stored, and how many this
        copy has handed out to consumers. All 0 where messages do not go in the order in which they
        came: by priority, by key, or to readers of a stream.
        """
        ...

    def overview(self) -> dict[str, Any]:
        """For status, metrics and people."""
        ...

    def invariants(self) -> None:
        """Asserts what must hold between commands."""


@dataclass(frozen=True, slots=True)
class ConsumerView:
    key: ConsumerKey
    session: SessionId
    tag: str
    credit: int
    unsettled: int
    priority: int
    exclusive: bool
    auto_settle: bool
    active: bool  # A34
    status: str  # up | suspected | cancelled | quiescing | waiting | get
    room: int  # how many messages it may be given now
    timeout_ms: int | None  # its own, instead of the queue's


class Removed(NamedTuple):
    """Messages that left a queue otherwise than settled."""

    dropped: int = 0
    dead_lettered: int = 0  # went on to another queue

    def and_also(self, count: int, *, goes: bool) -> Removed:
        if goes:
            return Removed(self.dropped, self.dead_lettered + count)
        return Removed(self.dropped + count, self.dead_lettered)


@dataclass(frozen=True, slots=True)
class QueueView:
    id: QueueId
    name: str
    vhost: str
    config: QueueConfig
    ready_count: int
    unsettled_count: int
    delayed_count: int
    dead_letter_count: int  # on their way to other groups
    bytes: int  # of the bodies of all of these
    ready_bytes: int  # of ready and delayed ones, which the limit counts
    upload_bytes: int  # of parts of large bodies that are no messages yet
    paused: bool
    publishers: int
    oldest_ready_ms: int | None  # when the ready message that is served next was enqueued
    last_token: int
    removed: Mapping[str, Removed]  # by reason, since machine version 2
    consumers: Sequence[ConsumerView]

    @property
    def messages(self) -> int:
        """As clients count them: ready, delayed and unsettled."""
        return self.ready_count + self.unsettled_count + self.delayed_count


class QueueGauges(NamedTuple):
    """Stays as it is for as long as nothing happens in the queue."""

    vhost: str
    name: str
    consumers: int  # subscribed
    oldest_ready_ms: int | None  # when the message that is ready for longest was enqueued
    oldest_unsettled_ms: int | None
    lacks_active: bool  # one is to be active, some are subscribed, and none is, or is suspected
    slo_oldest_age_ms: int | None = None  # how old the oldest message may become


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """Decided by this group, and not done yet by `groups`: its entry holds what they have to do."""

    number: int
    index: int
    ordinal: int  # of the command in the entry
    groups: Sequence[GroupId]
    #: By which node, incarnation and number. None: before version 5.
    proposed: tuple[NodeId, int, int] | None = None


RowState = Literal["ready", "unsettled", "delayed"]


@dataclass(frozen=True, slots=True)
class Row:
    """One message, looked at without taking it."""

    position: int
    state: RowState
    chunk: Chunk  # of this one message; its token is 0 unless it is unsettled
    bytes: int
    enqueued_ms: int
    expires_at_ms: int | None
    due_ms: int | None  # unsettled: to be settled by then; delayed: ready then
    priority: int
    consumer: ConsumerKey | None
    mark: Mark = NO_MARK  # of messages of queues
