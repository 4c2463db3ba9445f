"""Data folders of a new cluster out of a backup: one per founder, all alike."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cluster.log import KIND_STOPPED, Log, LogIdentity, LogOptions, RealDisk, SystemClock
from cluster.machine.catalog import CatalogMachine
from cluster.members.disk_identity import DiskIdentity
from cluster.recovery.archive import Archive
from cluster.recovery.restoring import NONCE_MAX, Beginning, Replayed, begin, beginnings
from cluster.types import NodeId
from node.data_folder import INCARNATION, DataFolder, private
from node.settings.settings import SettingsError

#: A line in each folder: out of which backup it was made, when, and up to where.
AUDIT_FILE = "restored.jsonl"


@dataclass(frozen=True, slots=True)
class Target:
    node: NodeId
    folder: Path


def check_targets(targets: Sequence[Target]) -> None:
    """SettingsError: something is there already, and nothing is ever overwritten."""
    names = [target.node for target in targets]
    if len(set(names)) != len(names):
        raise SettingsError("node: each founder is named once")
    for target in targets:
        if target.folder.exists() and (not target.folder.is_dir() or any(target.folder.iterdir())):
            raise SettingsError(
                f"data-dir: {target.folder} is not empty; allowed: a folder that is new or empty,"
                " since nothing is overwritten"
            )


def roll_forward(
    groups: list[Replayed],
    cluster: str,
    directories: Sequence[Path],
    *,
    to: Mapping[str, int],
    to_ms: int | None,
) -> None:
    """Further on with archived segments. SettingsError, ArchiveGap or LogError, and nothing was
    changed on disk.
    """
    archive = Archive(cluster, {each.group: each.index for each in groups})
    count = sum(archive.add(str(folder)) for folder in _folders(directories))
    if not count:
        raise SettingsError("archive: there is no segment in it; allowed: ARCHIVE or ARCHIVE/NODE")
    (catalog,) = (each for each in groups if isinstance(each.machine, CatalogMachine))
    archive.forward(catalog, to_index=to.get(catalog.name), to_ms=to_ms)
    known = {each.group for each in groups}
    infos = catalog.machine.groups() if isinstance(catalog.machine, CatalogMachine) else []
    groups += [Replayed.new(info.id, info.name) for info in infos if info.id not in known]
    names = {each.name for each in groups}
    if unknown := sorted(to.keys() - names):
        raise SettingsError(
            f"to: there is no group {', '.join(unknown)}; allowed: {', '.join(sorted(names))}"
        )
    for each in groups:
        if each is not catalog:
            archive.forward(each, to_index=to.get(each.name), to_ms=to_ms)
    archive.files.close()


def _folders(directories: Sequence[Path]) -> list[Path]:
    """Of nodes: each that is given, and those in it."""
    found: list[Path] = []
    for directory in directories:
        if not directory.is_dir():
            raise SettingsError(f"archive: there is no folder {directory}")
        found += [directory, *sorted(each for each in directory.iterdir() if each.is_dir())]
    return found


async def found_cluster(
    targets: Sequence[Target], cluster: str, groups: Sequence[Replayed], origin: dict[str, Any]
) -> list[Beginning]:
    """Make the folder of every founder. Until one is complete it has no name of a data folder."""
    check_targets(targets)
    nodes = [target.node for target in targets]
    made, starts = beginnings(groups, nodes, secrets.randbelow(NONCE_MAX))
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "cluster": cluster,
        "founders": nodes,
        "from": origin,
        "groups": [[each.name, each.index, each.term, each.now_ms] for each in groups],
    }
    for target in targets:
        work = target.folder.with_name(f".{target.folder.name}.restoring")
        if work.exists():
            raise SettingsError(
                f"data-dir: {work} is left of a restore that did not end; allowed: remove it first"
            )
        await _make(work, target.node, cluster, made, starts[target.node], line)
        if target.folder.exists():
            target.folder.rmdir()
        work.rename(target.folder)
        await RealDisk().sync_dir(str(target.folder.parent))
    return made


async def _make(
    folder: Path, node: NodeId, cluster: str, made: Sequence[Beginning], start: int, line: Any
) -> None:
    data = DataFolder(str(folder))
    data.open()
    disk = RealDisk()
    try:
        opened = await Log.open(
            str(folder),
            disk=disk,
            clock=SystemClock(),
            identity=LogIdentity(node, cluster),
            options=LogOptions(),
        )
        try:
            await begin(opened, made)
            opened.note(KIND_STOPPED, 0, 0, 0, b"")
        finally:
            await opened.close()
        if start:
            # The catalog knows this start: a folder that did not would count as one that forgot.
            disk_identity = DiskIdentity(disk, str(folder))
            await disk_identity.open()
            await disk_identity.record(start)
            disk_identity.close()
            _write(folder / INCARNATION, f"{start}\n")
        _write(folder / AUDIT_FILE, json.dumps(line) + "\n")
        await disk.sync_dir(str(folder))
    finally:
        data.close()


def _write(path: Path, text: str) -> None:
    with open(private(path, os.O_WRONLY | os.O_TRUNC), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
