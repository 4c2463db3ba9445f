"""What a node must know before it can speak to anyone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.agreed_time import CLOCK_CONFIRM_MS, CLOCK_OFFSET_MS_MAX
from cluster.groups.group_options import GroupOptions
from cluster.groups.local_group import TRANSIENT_BYTES_MAX
from cluster.groups.pacing import HOLD_MS_MAX
from cluster.groups.snapshotting import SNAPSHOT_BYTES, SNAPSHOT_ENTRIES
from cluster.log import LogOptions
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.types import NodeId

#: A snapshot of the catalog is taken after so many commands.
CATALOG_SNAPSHOT_COMMANDS = 20_000


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """Times in ms, unless their name says otherwise. The same on every node but for the first and
    the addresses.
    """

    node: NodeId
    cluster: str
    members: Sequence[NodeId]  # the initial members, the same list on every node
    data_dir: str
    #: This node comes to a cluster that exists: the others founded it, and let it in.
    join: bool = False
    default_groups: int = 8
    replication: int = 3
    election_min_ms: int = 1000
    election_max_ms: int = 2000
    heartbeat_ms: int = 200
    clock_offset_ms_max: int = CLOCK_OFFSET_MS_MAX
    clock_confirm_ms: int = CLOCK_CONFIRM_MS
    addresses: dict[str, str] = field(default_factory=dict[str, str])  # own: "peer", "http"
    #: Of the initial members, host:port for other nodes.
    peers: Mapping[NodeId, str] = field(default_factory=dict[NodeId, str])
    log: LogOptions = field(default_factory=LogOptions)
    snapshot_entries: int = SNAPSHOT_ENTRIES
    snapshot_bytes: int = SNAPSHOT_BYTES
    confirm_hold_ms_max: int = HOLD_MS_MAX
    transient_bytes_max: int = TRANSIENT_BYTES_MAX
    #: How often it looks whether its groups agree with the catalog, tells the others what it leads,
    #: and cleans its log.
    care_period_s: float = 1.0
    #: A leader hands over to the preferred member only when that one has been heard for this long.
    balance_after_s: float = 5.0
    #: What runs the catalog and the groups of queues; tests have those of other releases.
    machines: tuple[type[CatalogMachine], type[QueueMachine]] = (CatalogMachine, QueueMachine)

    @property
    def founders(self) -> list[NodeId]:
        return [node for node in self.members if not self.join or node != self.node]

    @property
    def catalog_options(self) -> GroupOptions:
        """A change of the catalog is answered when every node has it, and no command takes longer
        to apply.
        """
        return replace(
            self.group_options, commit_lazy_s=0.0, snapshot_commands=CATALOG_SNAPSHOT_COMMANDS
        )

    @property
    def group_options(self) -> GroupOptions:
        return GroupOptions(
            election_min_ms=self.election_min_ms,
            election_max_ms=self.election_max_ms,
            heartbeat_ms=self.heartbeat_ms,
            snapshot_entries=self.snapshot_entries,
            snapshot_bytes=self.snapshot_bytes,
            confirm_hold_ms_max=self.confirm_hold_ms_max,
        )
