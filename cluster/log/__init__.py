"""One checksummed, synced write-ahead log per node, and a journal of it for every group."""

from cluster.log.disk import RealDisk, SystemClock
from cluster.log.errors import (
    FatalDiskError,
    LogCorrupt,
    LogError,
    SnapshotRefused,
    UnsupportedFormat,
    WrongIdentity,
)
from cluster.log.format import (
    KIND_CLOCK,
    KIND_DIGEST,
    KIND_GIVEN_UP,
    KIND_LINK_DOWN,
    KIND_LINK_UP,
    KIND_ROLE,
    KIND_ROUND,
    KIND_SKIPPED,
    KIND_STOPPED,
    MEMBERSHIP,
    LogIdentity,
)
from cluster.log.journal import READ_AHEAD_BYTES, Journal
from cluster.log.log import Log, LogOptions
from cluster.log.recovery import RecoveryProgress
from cluster.log.snapshots import Snapshot
from cluster.log.space import Space

__all__ = [
    "KIND_CLOCK",
    "KIND_DIGEST",
    "KIND_GIVEN_UP",
    "KIND_LINK_DOWN",
    "KIND_LINK_UP",
    "KIND_ROLE",
    "KIND_ROUND",
    "KIND_SKIPPED",
    "KIND_STOPPED",
    "MEMBERSHIP",
    "READ_AHEAD_BYTES",
    "FatalDiskError",
    "Journal",
    "Log",
    "LogCorrupt",
    "LogError",
    "LogIdentity",
    "LogOptions",
    "RealDisk",
    "RecoveryProgress",
    "Snapshot",
    "SnapshotRefused",
    "Space",
    "SystemClock",
    "UnsupportedFormat",
    "WrongIdentity",
]
