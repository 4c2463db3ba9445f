"""Which disks nodes get: file systems of their own where the machine allows that, else folders."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from chaos.live.loop_disks import DiskError, FileSystem, LoopDisks
from chaos.live.seams import Disks
from chaos.live.tracing import TracedDisks
from cluster.types import NodeId

#: What a file system of its own is needed for, by the names in `missing`.
NEEDS_LOOP = ("power_loss", "fill_disk")


class FolderDisks(TracedDisks):
    """Folders of this machine's file system: their syncs can be traced, no more."""

    kind = "plain folders"

    def __init__(self, folder: Path, reason: str = "nodes have plain folders here") -> None:
        super().__init__()
        self._folder = folder.resolve()
        self._reason = reason

    @property
    def missing(self) -> Mapping[str, str]:
        return {**super().missing, **dict.fromkeys(NEEDS_LOOP, self._reason)}

    def add(self, node: NodeId) -> Path:
        disk = self._folder / node
        disk.mkdir(parents=True)
        return disk

    def power_loss(self, nodes: Sequence[NodeId]) -> None:
        raise DiskError(f"no power loss: {self._reason}")

    def power_back(self, nodes: Sequence[NodeId]) -> None:
        """There was no loss."""

    def fill(self, node: NodeId, *, leave_bytes: int = 0) -> None:
        raise DiskError(f"no full disk: {self._reason}")


def choose(folder: Path, prefer: FileSystem | Literal["folders"] | None = None) -> Disks:
    """The best that works here; `missing` of what is returned says why it is not better."""
    if prefer == "folders":
        return FolderDisks(folder)
    filesystem: FileSystem = prefer or "ext4"
    reason = why_no_loop(folder, filesystem)
    return LoopDisks(folder, filesystem) if reason is None else FolderDisks(folder, reason)


def why_no_loop(folder: Path, filesystem: FileSystem) -> str | None:
    """None: a disk under this folder was made, lost its power, and came back."""
    if os.geteuid() != 0:
        return "file systems on loop files need root"
    probed = NodeId("probe")
    try:
        disks = LoopDisks(folder / "probe", filesystem)
        try:
            disks.add(probed)
            disks.power_loss([probed])
            disks.power_back([probed])
        finally:
            disks.close()
            (folder / "probe").rmdir()
    except (DiskError, OSError) as error:
        return f"no {filesystem} on a loop file: {error}"
    return None
