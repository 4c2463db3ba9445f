"""What the broker needs of a group, whether it is replicated or this node's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cluster.codec.entries import AnyCommand
from cluster.machine.commands import Command
from cluster.machine.interface import Machine
from cluster.outcome import Done, Outcome
from cluster.raft.member import Role
from cluster.types import BodyRef, GroupId, NodeId


class GroupLike(Protocol):
    """See `Group` for the meaning of each."""

    id: GroupId
    name: str

    @property
    def members(self) -> tuple[NodeId, ...]: ...

    node: NodeId

    @property
    def machine(self) -> Machine: ...
    @property
    def role(self) -> Role: ...
    @property
    def ready(self) -> bool: ...
    @property
    def leader(self) -> NodeId | None: ...
    @property
    def term(self) -> int: ...
    @property
    def applied_index(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...
    @property
    def poisoned(self) -> str | None: ...

    def status(self) -> dict[str, Any]: ...
    def propose(self, command: Command, done: Done | None = None) -> None: ...
    async def ask(self, command: Command) -> Outcome: ...
    def read_bodies(self, ref: BodyRef) -> Sequence[tuple[bytes, Any]]: ...
    def read_command(self, index: int, ordinal: int) -> AnyCommand | None: ...
