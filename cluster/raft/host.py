"""A member's role, and `Host`: what it asks of the group that owns it."""

from __future__ import annotations

from enum import Enum
from typing import Any, Protocol

from cluster.raft.snapshot_transfer import Incoming
from cluster.types import NodeId


class Role(Enum):
    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2


class Host(Protocol):
    """What a `Member` asks of its owner, a `Group`: to apply, restore, install."""

    def apply_entry(self, data: bytes, index: int, term: int) -> None:
        """Whatever it raises poisons the group at this index, unless the entry is `beyond`: then it
        raises before anything is applied.
        """
        ...

    def beyond(self, data: bytes) -> Exception | None:
        """Why this entry must not be taken, when a later release wrote it."""
        ...

    def let_in(self, node: NodeId, /) -> bool:
        """A node that was declared lost came back with nothing of before, so it is heard: it may
        lead already, and who has yet to hear that it is a member again hears it from nobody else.
        """
        ...

    def beat(self, peer: NodeId, beat: list[Any], /) -> bool:
        """Send this heartbeat (see `messages.BEATS`) with those of other groups. False: alone."""
        ...

    def install(self, incoming: Incoming) -> None:
        """Start `journal.finish_install()`; until it is done and `installed` was called, nothing
        else may run.
        """
        ...

    def restore(self, data: bytes, index: int) -> None: ...
    def role_changed(self, role: Role, term: int) -> None: ...
    def poison(self, index: int, error: Exception) -> None: ...
