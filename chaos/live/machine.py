"""What a live cluster keeps of one node, and what it does to folders."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from chaos.live.clocks import ClockFile
from chaos.live.seams import Place


@dataclass
class Machine:
    """One node's place, and its newest process."""

    place: Place
    folder: Path  # settings and log file: outside of the disk that faults strike
    data: Path
    clock: ClockFile
    process: subprocess.Popen[bytes] | None = None
    paused: bool = False
    without_power: bool = False
    lied_to: bool = False  # what it believes to be safe may be in memory only
    log_start: int = 0  # where the log of its newest process begins

    @property
    def log_file(self) -> Path:
        return self.folder / "node.log"

    @property
    def copy(self) -> Path:
        return self.folder / "copy"


def empty(folder: Path) -> None:
    """The folder itself stays: it may be where a disk is mounted."""
    folder.mkdir(parents=True, exist_ok=True)
    for each in folder.iterdir():
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


def replace(source: Path, target: Path) -> None:
    """Make `target` a copy of `source`, which need not be there."""
    empty(target)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)


def to_disk(folder: Path) -> None:
    """What the harness has done to a folder is no part of what a power loss takes."""
    subprocess.run(["sync", "-f", str(folder)], check=True)
