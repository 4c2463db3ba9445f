"""Disks that can lose power: each node has a file system of its own on a loop file.

Power loss is the file system's own shutdown without a flush: what was not synced is gone, every
call fails from then on, and the next mount replays the journal, as after a power cut. What it does
not show is a device that lies about its write cache: that is `lie`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Literal

from chaos.live.tracing import TracedDisks
from cluster.types import NodeId

FileSystem = Literal["ext4", "xfs"]

DISK_BYTES = 512 << 20  # xfs wants 300 MiB at least; the files are sparse
#: What nodes on such a disk need among their settings: by default a disk of this size is nearly
#: full from the start.
SETTINGS = 'log.min_free_bytes = "64MiB"\n'
#: Less than that, and enough for all that goes on when publishers wait.
LOW_BYTES = 32 << 20
#: How long a file system may stay busy after its processes were killed.
UNMOUNT_S_MAX = 15.0
FILLER = "filler"

_FORMAT: Mapping[FileSystem, Sequence[str]] = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
# What nobody synced stays in memory for as long as can be, so that a missing sync shows: no commit
# every five seconds, no flush of files that are renamed over others.
_MOUNT: Mapping[FileSystem, str] = {
    "ext4": "loop,noatime,commit=300,noauto_da_alloc",
    "xfs": "loop,noatime",
}
# FS_IOC_SHUTDOWN and its flag for "flush nothing", the same for both file systems.
_SHUTDOWN = 0x8004587D
_NO_FLUSH = struct.pack("I", 2)


class DiskError(Exception):
    """A disk could not be made, mounted or taken away; the text says what failed."""


class LoopDisks(TracedDisks):
    """Needs root. All is under one folder: NODE.img, mounted at NODE, and there NODE/disk."""

    def __init__(self, folder: Path, filesystem: FileSystem = "ext4") -> None:
        super().__init__()
        self.filesystem: FileSystem = filesystem
        self._folder = folder.resolve()
        self._nodes: list[NodeId] = []
        self._folder.mkdir(parents=True, exist_ok=True)
        _unmount_all(self._folder)  # left by a run that was killed
        _run("mount", "--bind", str(self._folder), str(self._folder))
        # A process in a network namespace has a copy of all mounts, also those of other nodes.
        # Only under a shared one does an unmount here reach these copies; else the file system
        # would live on in them, and stay dead when mounted again.
        _run("mount", "--make-private", str(self._folder))
        _run("mount", "--make-shared", str(self._folder))

    @property
    def kind(self) -> str:
        return f"{self.filesystem} on loop files"

    def add(self, node: NodeId) -> Path:
        image = self._image(node)
        with image.open("wb") as file:
            file.truncate(DISK_BYTES)
        _run(*_FORMAT[self.filesystem], str(image))
        self._mount_point(node).mkdir(exist_ok=True)
        self._nodes.append(node)
        self._mount(node)
        disk = self._mount_point(node) / "disk"
        disk.mkdir()
        _sync_folder(self._mount_point(node))
        return disk

    def power_loss(self, nodes: Sequence[NodeId]) -> None:
        folders = [os.open(self._mount_point(node), os.O_RDONLY) for node in nodes]
        together = Barrier(len(folders))

        def cut(folder: int) -> None:
            together.wait()
            fcntl.ioctl(folder, _SHUTDOWN, _NO_FLUSH)

        try:
            with ThreadPoolExecutor(len(folders)) as threads:
                list(threads.map(cut, folders))
        finally:
            for folder in folders:
                os.close(folder)

    def power_back(self, nodes: Sequence[NodeId]) -> None:
        for node in nodes:
            TracedDisks.heal(self, node)  # its process is gone
            _unmount(self._mount_point(node))
            self._mount(node)

    def fill(self, node: NodeId, *, leave_bytes: int = 0) -> None:
        filler = self._mount_point(node) / FILLER
        fd = os.open(filler, os.O_WRONLY | os.O_CREAT)
        try:
            _take_room(fd, leave_bytes)
            os.fsync(fd)  # still there after a power loss
        finally:
            os.close(fd)
        _sync_folder(filler.parent)

    def heal(self, node: NodeId) -> None:
        super().heal(node)
        with contextlib.suppress(OSError):  # no filler, or no power
            (self._mount_point(node) / FILLER).unlink()

    def close(self) -> None:
        """Nothing is left of the disks and what was on them."""
        super().close()
        _unmount_all(self._folder)
        for node in self._nodes:
            self._image(node).unlink(missing_ok=True)
            with contextlib.suppress(FileNotFoundError):
                self._mount_point(node).rmdir()
        self._nodes.clear()

    def _image(self, node: NodeId) -> Path:
        return self._folder / f"{node}.img"

    def _mount_point(self, node: NodeId) -> Path:
        return self._folder / node

    def _mount(self, node: NodeId) -> None:
        target = str(self._mount_point(node))
        _run("mount", "-o", _MOUNT[self.filesystem], str(self._image(node)), target)


def _take_room(fd: int, leave_bytes: int) -> None:
    """All of it, if nothing is to be left: then in ever smaller pieces, to the last block."""
    state = os.fstatvfs(fd)
    block, size = state.f_frsize, os.fstat(fd).st_size
    blocks = state.f_bavail + 1 - leave_bytes // block
    if leave_bytes:
        if blocks > 0:
            os.posix_fallocate(fd, size, blocks * block)
        return
    while blocks:
        try:
            os.posix_fallocate(fd, size, blocks * block)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size = os.fstat(fd).st_size  # some of it may have been taken
            blocks //= 2
        else:
            size += blocks * block


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _unmount(target: Path) -> None:
    """Waits for the processes on it to be gone; what never gets free is a failure."""
    deadline = time.monotonic() + UNMOUNT_S_MAX
    while True:
        try:
            return _run("umount", str(target))
        except DiskError:
            if time.monotonic() > deadline:
                # Out of sight at least, for the next run: who holds it keeps it.
                _run("umount", "--lazy", str(target))
                raise
        time.sleep(0.02)


def _unmount_all(folder: Path) -> None:
    """All that is mounted at or below it, the newest first."""
    lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    failed: list[DiskError] = []
    for target in reversed([Path(line.split()[4]) for line in lines]):
        if target == folder or folder in target.parents:
            try:
                _unmount(target)
            except DiskError as error:
                failed.append(error)
    if failed:
        raise failed[0]


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise DiskError(f"{command[0]} is not installed") from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise DiskError(f"{' '.join(command)}: {said}") from error
