"""What may be set of a group: times of the protocol, and limits."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.groups.pacing import HOLD_MS_MAX
from cluster.groups.proposals import PROPOSE_BYTES_MAX
from cluster.groups.snapshotting import SNAPSHOT_BYTES, SNAPSHOT_COMMANDS, SNAPSHOT_ENTRIES
from cluster.raft.options import RaftOptions


@dataclass(frozen=True, slots=True)
class GroupOptions(RaftOptions):
    """Times of the protocol, and limits of one group."""

    propose_bytes_max: int = PROPOSE_BYTES_MAX
    confirm_hold_ms_max: int = HOLD_MS_MAX
    snapshot_entries: int = SNAPSHOT_ENTRIES
    snapshot_bytes: int = SNAPSHOT_BYTES
    snapshot_commands: int = SNAPSHOT_COMMANDS
