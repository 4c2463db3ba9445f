"""What can be written into the log of the catalog, the group that every node is a member of.

As `cluster.machine.commands` says it of the groups of queues.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cluster.types import GroupId, NodeId, QueueId

DestinationKind = Literal["queue", "exchange"]


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A node started: its addresses, and the incarnation that ends all sessions of earlier ones."""

    node: NodeId
    incarnation: int
    addresses: dict[str, str] = field(
        default_factory=dict[str, str]
    )  # "peer", "http", "amqp" -> "host:port"; and what it can run, by cluster.machine.versions


@dataclass(frozen=True, slots=True)
class AddNode:
    """A new node may join, and is found at these addresses until it registers itself."""

    node: NodeId
    addresses: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """A node leaves for good. Its successor takes its places, else those that hold the least."""

    node: NodeId
    successor: NodeId | None = None


@dataclass(frozen=True, slots=True)
class NodeGone:
    """A leaving node has no copy of anything any more: it is not let in again."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class MoveGroup:
    """These nodes shall hold the group."""

    group: GroupId
    members: Sequence[NodeId]


@dataclass(frozen=True, slots=True)
class GroupHeld:
    """Its leader says who has a copy, by the entry at `index` of the group's log."""

    group: GroupId
    index: int
    members: Sequence[NodeId]
    era: int = 0  # of that entry: see `cluster/raft/configuration.py`
    lost: Sequence[NodeId] = ()  # declared lost when that era began, and not back since


@dataclass(frozen=True, slots=True)
class CreateGroup:
    """Make a group with these members; `name` is what `x-queue-group` says. Does nothing when the
    name exists.
    """

    name: str
    members: Sequence[NodeId]
    # one of the cluster's default groups, among which unnamed queues are spread
    default: bool = False


@dataclass(frozen=True, slots=True)
class DeclareQueue:
    """Declare by name. Same arguments as before: answers the existing queue; others: refused."""

    vhost: str
    name: str
    arguments: dict[str, Any]
    group: str | None = None  # x-queue-group; None: the default group with the fewest queues
    members: Sequence[NodeId] | None = None  # members of the group when it must be made (dedicated)
    durable: bool = True
    auto_delete: bool = False
    exclusive: bool = False
    # Set: a transient queue, kept by this node alone, as this incarnation, without replication.
    node: NodeId | None = None
    incarnation: int = 0
    owner: str | None = None  # exclusive: the client connection that may use it, and ends it
    #: Its id, if it is one that a recovery without a majority lost: its group has it yet. Since
    #: machine version 5.
    queue: QueueId | None = None


@dataclass(frozen=True, slots=True)
class ChangeQueue:
    """Give a stream other arguments. Refused if there is none of this name, if it is another one
    than that which is meant, or for what may not be changed. Since machine version 4.
    """

    vhost: str
    name: str
    arguments: dict[str, Any]
    queue: QueueId | None = None  # the one that is meant; None: whichever has the name


@dataclass(frozen=True, slots=True)
class RemoveQueue:
    """Ok(0) when there is none, or it is not the one that is meant."""

    vhost: str
    name: str
    queue: QueueId | None = None  # the one that is meant; None: whichever has the name
    arguments: dict[str, Any] | None = None  # only while it has these; None: whatever it has


@dataclass(frozen=True, slots=True)
class ForgetNode:
    """The node's process of this incarnation, or an earlier one, is gone: so are its transient
    queues.
    """

    node: NodeId
    incarnation: int


@dataclass(frozen=True, slots=True)
class ForgetVolatile:
    """All nodes were down at once: exchanges that are not durable are gone (C25). Done once for a
    generation, whoever asks.
    """

    generation: int


@dataclass(frozen=True, slots=True)
class DeclareExchange:
    """Declare by name. The same again: Ok(0); other type, flags or arguments: refused."""

    vhost: str
    name: str
    type: str  # direct | fanout | topic | headers | x-consistent-hash
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class DeleteExchange:
    """Ok(0) when there is none."""

    vhost: str
    name: str
    if_unused: bool = False


@dataclass(frozen=True, slots=True)
class Bind:
    """From a source exchange to a queue or an exchange. The same again: Ok(0)."""

    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    key: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Unbind:
    """Ok(0) when there is no such binding."""

    vhost: str
    source: str
    kind: DestinationKind
    destination: str
    key: str
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Make or replace an entry of an administrative table: vhosts, users, permissions,
    topic_permissions, policies, operator_policies, vhost_limits, user_limits, parameters.
    """

    table: str
    key: Sequence[str]
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class DropEntry:
    """Remove an entry and all that belongs to it. Ok(0) when there is none."""

    table: str
    key: Sequence[str]


#: What can be part of one change.
CatalogStep = PutEntry | DeclareExchange | DeclareQueue | Bind


@dataclass(frozen=True, slots=True)
class ChangeCatalog:
    """All of these in their order, or none: the refusal of the first that is refused, whose place
    is in its `detail`. Ok says how many did something.
    """

    steps: Sequence[CatalogStep]
