"""What the cluster layer is given of the settings: its own, and the links to the other nodes."""

from __future__ import annotations

import random
import secrets

from cluster.catalog.upgrading import versions_of
from cluster.cluster_node import ClusterConfig
from cluster.log import LogOptions
from cluster.raft.links import TcpLinks, TlsConfig
from cluster.seams import Clock
from cluster.types import NodeId
from node.settings.settings import Settings


def cluster_config(settings: Settings, addresses: dict[str, str]) -> ClusterConfig:
    """What the cluster layer needs of the settings."""
    raft, kept = settings.raft, settings.log
    members = sorted(settings.peers) or [settings.node]
    return ClusterConfig(
        node=NodeId(settings.node),
        cluster=settings.cluster,
        members=[NodeId(member) for member in members],
        data_dir=settings.data_dir,
        join=settings.join,
        default_groups=settings.default_groups,
        replication=settings.replication,
        election_min_ms=raft.election_ms_min,
        election_max_ms=raft.election_ms_max,
        heartbeat_ms=raft.heartbeat_ms,
        confirm_hold_ms_max=settings.limits.confirm_hold_ms_max,
        clock_offset_ms_max=raft.clock_offset_ms_max,
        clock_confirm_ms=raft.clock_confirm_ms,
        addresses=addresses,
        peers={NodeId(node): address for node, address in settings.peers.items()},
        log=LogOptions(
            segment_bytes=kept.segment_bytes,
            retain_bytes=kept.retain_bytes,
            retain_hours=kept.retain_hours,
            archive_dir=kept.archive_dir,
            hot_bytes=kept.hot_bytes,
            min_free_bytes=kept.min_free_bytes,
        ),
    )


def log_folders(settings: Settings) -> list[str]:
    """Where this node's segments are: its log, and what the archive has of it."""
    archive = settings.log.archive_dir
    return [
        settings.data_dir,
        *([] if archive is None else [f"{archive}/{settings.node}"]),
    ]


def tcp_links(
    settings: Settings, incarnation: int, clock: Clock, tls: TlsConfig | None
) -> TcpLinks:
    """SettingsError: the secret cannot be read."""
    secret = settings.cluster_secret()
    if secret is None and tls is None:
        secret = secrets.token_hex(32)  # a cluster of one: nobody else can know it
    previous = settings.previous_secret()
    return TcpLinks(
        NodeId(settings.node),
        settings.cluster,
        incarnation,
        settings.peer,
        {NodeId(node): address for node, address in settings.peers.items()},
        secret=None if secret is None else secret.encode(),
        tls=tls,
        clock=clock,
        random=random.Random(),
        versions=versions_of(),
        link_timeout_ms=settings.raft.link_timeout_ms,
        gone_after_s=settings.raft.gone_after_ms / 1000,
        previous_secret=None if previous is None else previous.encode(),
    )
