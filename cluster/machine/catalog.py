"""What every node must know to find a queue: nodes, groups and queues by name.

One more state machine like the queue machine, in a group of its own of which every node is a
member, so that each routes from its own copy. It is a set of tables and a clause for each command:
those about queues are in `catalog_queues`, about exchanges and bindings in `catalog_routing`, and
what administrators say (vhosts, users, permissions, policies) in `catalog_admin`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import cbor2

from cluster.machine.catalog_admin import Administration
from cluster.machine.catalog_commands import CatalogStep, DestinationKind
from cluster.machine.catalog_entries import TABLES
from cluster.machine.catalog_members import Members
from cluster.machine.catalog_queues import Placing, created
from cluster.machine.catalog_routing import Routing
from cluster.machine.catalog_tables import (
    BindingInfo,
    Entries,
    EntryKey,
    ExchangeInfo,
    GroupInfo,
    Groups,
    NodeInfo,
    Nodes,
    QueueInfo,
    Queues,
    Table,
)
from cluster.machine.commands import (
    AddNode,
    Barrier,
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
    QueueConfig,
    RegisterNode,
    RemoveNode,
    RemoveQueue,
    Tick,
    Unbind,
    UpgradeMachine,
)
from cluster.machine.effects import Applied, Effect, QueueDeclared
from cluster.machine.policies import Policies, PolicyTable, PolicyTarget
from cluster.machine.replies import BAD_ARGUMENT, UNKNOWN_COMMAND, Declared, Ok, Refused, Reply
from cluster.machine.versions import AS_OF_SINCE, ERAS_SINCE, MACHINE_VERSION, NeedsNewer
from cluster.types import AS_OF_NOTHING, AsOf, GroupId, NodeId, QueueId, Stamp, era_of

__all__ = [
    "BindingInfo",
    "CatalogMachine",
    "ExchangeInfo",
    "GroupInfo",
    "NodeInfo",
    "QueueInfo",
]


class CatalogMachine:
    """Pure: the same commands with the same stamps give the same tables on every node."""

    newest = MACHINE_VERSION
    now_ms = 0  # nothing in it goes by time

    def __init__(self) -> None:
        self.version = 1
        self.as_of: AsOf = AS_OF_NOTHING  # the last command; in snapshots since machine version 5
        self.applied = 0  # by this copy alone: while it stays the same, so does all that is read
        self._nodes = Nodes()
        self._groups = Groups()
        self._queues = Queues()
        self._entries = Entries(TABLES)
        self._routing = routing = Routing(self._queues, lambda: self.version)
        self._policies = Policies(self._entries)
        self._placing = placing = Placing(
            self._nodes,
            self._groups,
            self._queues,
            self._entries,
            routing,
            self._policies,
            lambda: self.version,
        )
        self._admin = admin = Administration(
            self._entries, self._queues, placing, routing, self._policies, lambda: self.version
        )
        members = Members(self._nodes, self._groups, placing.forget)
        self._tables: dict[str, Table] = {
            "nodes": self._nodes,
            "groups": self._groups,
            "queues": self._queues,
            "exchanges": routing.exchanges,
            "bindings": routing.bindings,
            "entries": self._entries,
        }
        self._clauses: dict[type[Any], Callable[[Any], Applied]] = {
            RegisterNode: placing.register_node,
            ForgetNode: placing.forget_node,
            AddNode: members.add_node,
            RemoveNode: members.remove_node,
            NodeGone: members.node_gone,
            MoveGroup: members.move_group,
            GroupHeld: members.group_held,
            CreateGroup: placing.create_group,
            DeclareQueue: placing.declare_queue,
            ChangeQueue: placing.change_queue,
            RemoveQueue: placing.remove_queue,
            DeclareExchange: routing.declare_exchange,
            DeleteExchange: routing.delete_exchange,
            ForgetVolatile: routing.forget_volatile,
            Bind: routing.bind,
            Unbind: routing.unbind,
            PutEntry: admin.put_entry,
            DropEntry: admin.drop_entry,
            ChangeCatalog: self._change,
            UpgradeMachine: self._upgrade,
            Barrier: _nothing,
            Tick: _nothing,
        }
        admin.seed()

    # --- commands ---------------------------------------------------------------------------------

    def apply(self, stamp: Stamp, command: Any) -> Applied:
        """Total: every command, also one it does not know, is answered and never raised about."""
        self.applied += 1
        if self.version >= ERAS_SINCE and era_of(stamp.term) > era_of(self.as_of[0]):
            self._placing.lose_end()
        self.as_of = stamp.term, stamp.index
        clause = self._clauses.get(cast("type[Any]", type(command)))
        if clause is None:
            name = getattr(command, "tag", type(command).__name__)
            reason = f"the catalog does not know the command {name}"
            return Applied(Refused(UNKNOWN_COMMAND, reason))
        return clause(command)

    def _upgrade(self, command: UpgradeMachine) -> Applied:
        if not self.version <= command.to <= self.newest:
            reason = f"machine version {command.to} is not between {self.version} and {self.newest}"
            return Applied(Refused(BAD_ARGUMENT, reason))
        self.version = command.to
        return Applied(Ok())

    def _change(self, command: ChangeCatalog) -> Applied:
        """On a copy first, which the refusal of any step leaves behind."""
        steps = cast("Sequence[Any]", command.steps)  # the log can hold anything
        if self.version < 3 or not all(isinstance(step, CatalogStep) for step in steps):
            return Applied(Refused(UNKNOWN_COMMAND, "the catalog does not know such a change"))
        trial = self.copy()
        for place, step in enumerate(command.steps):
            reply = trial.apply_step(step).reply
            if isinstance(reply, Refused):
                return Applied(replace(reply, detail=place))
        applied = [self.apply_step(step) for step in command.steps]
        count = sum(did_something(each.reply) for each in applied)
        return Applied(Ok(count), [effect for each in applied for effect in each.effects])

    def apply_step(self, step: CatalogStep) -> Applied:
        return self._clauses[type(step)](step)

    def copy(self) -> CatalogMachine:
        """Another one in the same state, for a look at what commands would do."""
        other = CatalogMachine()
        other.version = self.version
        other.as_of = self.as_of
        other._placing.next_queue_id = self._placing.next_queue_id
        other._placing.lost_ids = self._placing.lost_ids[:]
        other._routing.generation = self._routing.generation
        for name, table in self._tables.items():
            other._tables[name].adopt(table)
        other._policies.forget()
        other._routing.all_changed()
        return other

    # --- reading: nodes, groups, queues -----------------------------------------------------------

    def node(self, node: NodeId) -> NodeInfo | None:
        return self._nodes.by_id.get(node)

    def nodes(self) -> list[NodeInfo]:
        return [info for info in self._nodes.all() if info.state != "removed"]

    def nodes_ever(self) -> list[NodeInfo]:
        """Those that were removed too."""
        return self._nodes.all()

    def group(self, group: GroupId) -> GroupInfo | None:
        return self._groups.by_id.get(group)

    def group_named(self, name: str) -> GroupInfo | None:
        return self._groups.by_name.get(name)

    def groups(self) -> list[GroupInfo]:
        return self._groups.all()

    def queue(self, vhost: str, name: str) -> QueueInfo | None:
        return self._queues.by_name.get((vhost, name))

    def queue_by_id(self, queue: QueueId) -> QueueInfo | None:
        return self._queues.by_id.get(queue)

    def queues(self, vhost: str | None = None) -> list[QueueInfo]:
        return self._queues.all() if vhost is None else self._queues.of_vhost(vhost)

    def queues_of(self, group: GroupId) -> list[QueueInfo]:
        return self._queues.of_group(group)

    def streams(self, vhost: str) -> list[QueueInfo]:
        return self._queues.streams(vhost)

    def stream_for(self, vhost: str, subject: bytes) -> QueueInfo | None:
        """The one that stores what is published to the subject, which has no wildcards."""
        return self._queues.stream_of(vhost, subject)

    def stores(self, vhost: str, token: bytes) -> bool:
        """May any stream have a subject that begins with this token?"""
        return self._queues.subjects_in(vhost).begins(token)

    @property
    def next_queue_id(self) -> QueueId:
        return self._placing.next_queue_id

    @property
    def lost_ids(self) -> list[tuple[int, int]]:
        """Ranges, ascending: see `has_lost`."""
        return self._placing.lost_ids

    def has_lost(self, queue: QueueId) -> bool:
        """Whether it may be one that was declared, and that a recovery without a majority lost."""
        return self._placing.has_lost(queue)

    def config_of(self, queue: QueueId) -> QueueConfig | None:
        """The effective settings: arguments and policies merged."""
        info = self._queues.by_id.get(queue)
        return None if info is None else self._policies.config_of(info)

    def config_for(self, info: QueueInfo) -> QueueConfig:
        """The same of a queue that this copy of the catalog may not know yet."""
        return self._policies.config_for(info)

    def arguments_of(self, info: QueueInfo) -> dict[str, Any]:
        """Those with which it would be declared to be what policies make of it."""
        return self._policies.arguments_of(info)

    # --- reading: routing -------------------------------------------------------------------------

    def exchange(self, vhost: str, name: str) -> ExchangeInfo | None:
        return self._routing.exchanges.find(vhost, name)

    def exchanges(self, vhost: str | None = None) -> list[ExchangeInfo]:
        exchanges = self._routing.exchanges
        return exchanges.all() if vhost is None else exchanges.of_vhost(vhost)

    def bindings_from(self, vhost: str, exchange: str) -> Sequence[BindingInfo]:
        """In the order in which they were made; those of the default exchange are implied."""
        return self._routing.bindings.of_source(vhost, exchange)

    def bindings_to(self, vhost: str, kind: DestinationKind, name: str) -> Sequence[BindingInfo]:
        return self._routing.bindings.of_destination(vhost, kind, name)

    def bindings(self, vhost: str | None = None) -> list[BindingInfo]:
        everything = self._routing.bindings.all()
        return everything if vhost is None else [b for b in everything if b.vhost == vhost]

    def routing_version(self, vhost: str) -> int:
        """Another one whenever an exchange, a binding, a queue or a policy of the vhost changed; of
        this copy alone.
        """
        return self._routing.version(vhost)

    @property
    def changes(self) -> int:
        """Another one whenever that of some vhost is; of this copy alone."""
        return self._routing.changes

    @property
    def policy_version(self) -> int:
        """Another one whenever a policy changed; of this copy alone."""
        return self._policies.version

    @property
    def generation(self) -> int:
        """What `ForgetVolatile` must name to have an effect."""
        return self._routing.generation

    # --- reading: what administrators said --------------------------------------------------------

    def entry(self, table: str, key: EntryKey) -> Mapping[str, Any] | None:
        return self._entries.by_table[table].get(key)

    def entries(self, table: str) -> dict[EntryKey, Mapping[str, Any]]:
        return dict(self._entries.by_table[table])

    def policy_for(
        self, vhost: str, name: str, what: PolicyTarget, *, operator: bool = False
    ) -> tuple[str, Mapping[str, Any]] | None:
        """The name and the entry of the policy that counts for what has this name."""
        table: PolicyTable = "operator_policies" if operator else "policies"
        if what == "exchanges":
            return self._policies.find(table, vhost, name, what)
        info = self.queue(vhost, name)
        declared: Mapping[str, Any] = {} if info is None else info.arguments
        return self._policies.for_queue(table, vhost, name, declared)

    # --- the rest of a machine --------------------------------------------------------------------

    def on_leader(self) -> Sequence[Effect]:
        """All that its leader may still have to see to; doing any of it again is harmless."""
        effects: list[Effect] = [created(group) for group in self._groups.all()]
        effects += [QueueDeclared(info.queue, info.group) for info in self._queues.all()]
        return effects

    def prepare_snapshot(self) -> Iterator[None]:
        return iter(())

    def snapshot_pieces(self) -> Iterator[bytes]:
        return iter((self.snapshot(),))  # small, and seldom

    def snapshot(self) -> bytes:
        state = self._state()
        if self.version >= AS_OF_SINCE:
            state["as_of"] = self.as_of
        return cbor2.dumps(state, canonical=True)

    def _state(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "version": self.version,
            "next_queue_id": self.next_queue_id,
            "generation": self.generation,
            "tables": {name: table.dump() for name, table in self._tables.items()},
        }
        if self._placing.lost_ids:  # none before machine version 5
            state["lost_ids"] = self._placing.lost_ids
        return state

    def beyond(self, data: bytes) -> NeedsNewer | None:
        """Why a snapshot cannot be restored here, if it is of a later release."""
        version: int = cast("dict[str, Any]", cbor2.loads(data))["version"]
        return NeedsNewer("a snapshot", version, self.newest) if version > self.newest else None

    def restore(self, data: bytes) -> None:
        """A table that the snapshot lacks is as in a new cluster: it was written before there was
        one, and so is a vhost that nobody had to make.
        """
        state = cast("dict[str, Any]", cbor2.loads(data))
        self.applied += 1
        self.version = state["version"]
        term, index = state.get("as_of", AS_OF_NOTHING)
        self.as_of = term, index
        self._placing.next_queue_id = QueueId(state["next_queue_id"])
        self._placing.lost_ids = [(first, last) for first, last in state.get("lost_ids", ())]
        self._routing.generation = state.get("generation", 0)
        for name, table in self._tables.items():
            table.load(state["tables"].get(name, []))
        self._policies.forget()
        self._routing.all_changed()
        if "entries" not in state["tables"]:
            self._admin.seed()
            for vhost in sorted({info.vhost for info in self._queues.all()}):
                self._admin.add_vhost(vhost)

    def digest(self) -> bytes:
        """Of what is in the tables: of `as_of` the log knows."""
        state = cbor2.dumps(self._state(), canonical=True)
        return hashlib.blake2b(state, digest_size=16).digest()

    def live_indexes(self) -> list[tuple[int, int]]:
        return []

    def next_due_ms(self) -> int | None:
        return None

    def backlog(self, queue: QueueId) -> tuple[int, int, int]:
        return 0, 0, 0

    def overview(self) -> dict[str, Any]:
        return {
            "type": "catalog",
            "version": self.version,
            **{name: len(table) for name, table in self._tables.items()},
        }

    def invariants(self) -> None:
        groups, queues, nodes = self._groups, self._queues, self._nodes.all()
        assert sorted(groups.by_id) == list(range(1, len(groups) + 1)), "group ids are dense"
        assert len(groups.by_name) == len(groups.by_id)
        assert all(group.members and group.founders and group.held for group in groups.all())
        assert sorted(node.number for node in nodes) == list(range(1, len(nodes) + 1))
        assert len(queues.by_name) == len(queues.by_id)
        holders = [*groups.by_id, *(node.transient_group for node in nodes)]
        counted = sum(map(queues.count_of, holders))
        assert counted == len(queues), "every queue is in exactly one existing group"
        for queue, info in queues.by_id.items():
            assert info.queue == queue < self.next_queue_id
            assert not self.has_lost(queue), "an id is given once"
            assert queues.by_name[info.vhost, info.name] is info
            assert self._routing.known(info.vhost)
            assert (info.owner is not None) == info.exclusive
        self._routing.invariants()
        self._admin.invariants()


def did_something(reply: Reply) -> bool:
    """Whether a change of the catalog found it otherwise."""
    return (
        reply.created if isinstance(reply, Declared) else isinstance(reply, Ok) and reply.count > 0
    )


def _nothing(_: Any) -> Applied:
    return Applied(Ok())
