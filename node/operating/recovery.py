"""A stopped node is told that a majority is lost for good: what that would mean, and doing it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from cluster.log import KIND_STOPPED, Log, LogIdentity, RealDisk, SystemClock
from cluster.machine.catalog import CatalogMachine
from cluster.recovery.lost_majority import LostMajority, NoCopy, examine, give_up, without_copy
from cluster.types import NodeId
from node.data_folder import DataFolder, private
from node.peering import cluster_config
from node.settings.settings import Settings, SettingsError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

#: A line for every majority that was given up: when, which nodes, and per group its name, the last
#: and the committed index of this copy, and the leader's clock at its newest entry.
AUDIT_FILE = "given-up.jsonl"

log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Survey:
    """What this node's disk says."""

    node: str
    lost: Sequence[str]
    groups: Sequence[LostMajority]  # that cannot go on without the lost nodes
    elsewhere: Sequence[str]  # of these, those in which this node has no vote
    gone: Sequence[NoCopy]  # groups whose copies are all lost
    catalog: CatalogMachine


async def survey(settings: Settings, lost: Sequence[str]) -> Survey:
    """Nothing is written. SettingsError: wrong names, or the node runs; LogError: damaged data."""
    async with _opened(settings) as opened:
        return _look(settings, opened, lost)


async def recover(settings: Settings, lost: Sequence[str]) -> Survey:
    """Write down that the others of each group go on alone."""
    async with _opened(settings) as opened:
        found = _look(settings, opened, lost)
        mine = [group for group in found.groups if group.name not in found.elsewhere]
        nodes = [NodeId(node) for node in lost]
        _audit(settings, lost, mine)
        give_up(opened, mine, NodeId(settings.node), nodes)
        opened.write()
        await opened.sync()
        log.warning(
            "majority_given_up",
            node=settings.node,
            lost=list(lost),
            groups=[group.name for group in mine],
        )
        return found


def _audit(settings: Settings, lost: Sequence[str], groups: Sequence[LostMajority]) -> None:
    """One line for good, on disk before anything is changed: the log's own records go with time."""
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "node": settings.node,
        "lost": list(lost),
        "groups": [
            [group.name, group.last_index, group.commit_index, group.last_ms] for group in groups
        ],
    }
    where = Path(settings.data_dir) / AUDIT_FILE
    with open(private(where, os.O_WRONLY | os.O_APPEND), "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncGenerator[Log]:
    folder = DataFolder(settings.data_dir)
    folder.open()
    try:
        opened = await Log.open(
            settings.data_dir,
            disk=RealDisk(),
            clock=SystemClock(),
            identity=LogIdentity(settings.node, settings.cluster),
            options=cluster_config(settings, {}).log,
        )
        try:
            yield opened
            opened.note(KIND_STOPPED, 0, 0, 0, b"")
        finally:
            await opened.close()
    finally:
        folder.close()


def _look(settings: Settings, opened: Log, lost: Sequence[str]) -> Survey:
    founders = cluster_config(settings, {}).founders
    catalog, found = examine(opened, founders, [NodeId(node) for node in lost])
    known = {*founders, *(info.node for info in catalog.nodes_ever())}
    unknown = [node for node in lost if node not in known]
    if unknown:
        raise SettingsError(
            f"lost: there is no node {', '.join(unknown)}; allowed: {', '.join(sorted(known))}"
        )
    if settings.node in lost:
        raise SettingsError(
            f"lost: {settings.node} is this node, and its data is here; allowed: other nodes"
        )
    elsewhere = [group.name for group in found if settings.node not in group.survivors]
    gone = without_copy(opened, catalog, [NodeId(node) for node in lost])
    return Survey(settings.node, lost, found, elsewhere, gone, catalog)
