"""Whether this node's disk is the one that the others know: only then its votes count for anything.

A vote is a promise that rests on the disk: it names nobody else in that term, and only somebody
who has all that was acknowledged from here. A node whose folder was wiped, or replaced by an older
copy, has forgotten what it promised. It can tell by the start of its own that it last registered
with the catalog: the others know of a later one. Until a leader has given it again all that was
committed, it neither votes nor stands.

The file holds the registered starts, one per line; each is on disk before the others hear of it.
"""

from __future__ import annotations

from cluster.log import FatalDiskError
from cluster.seams import Disk, File

FILE_NAME = "registered"
#: A line is shorter than this, so the end of the file holds the last whole one.
LINE_BYTES_MAX = 32


class DiskIdentity:
    """The starts of this node that its own disk knows of."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._file: File | None = None
        self.registered = 0  # the newest; 0: none, so the folder is new

    async def open(self) -> None:
        path = f"{self._directory}/{FILE_NAME}"
        try:
            created = not self._disk.exists(path)
            self._file = self._disk.open(path, create=True)
            if created:
                await self._disk.sync_dir(self._directory)
            size = self._file.size()
            tail = self._file.read(max(0, size - 4 * LINE_BYTES_MAX), 4 * LINE_BYTES_MAX)
        except OSError as error:
            raise FatalDiskError(f"opening {path} failed: {error}") from error
        # A line that a power failure cut was heard of by nobody.
        whole = [line for line in tail.split(b"\n")[:-1] if line.isdigit()]
        self.registered = max(map(int, whole), default=0)

    async def record(self, incarnation: int) -> None:
        """From here on the others may know of this start."""
        assert self._file is not None
        try:
            self._file.append([b"\n%d\n" % incarnation])
            await self._file.sync()
        except OSError as error:
            raise FatalDiskError(f"writing {FILE_NAME} failed: {error}") from error
        self.registered = incarnation

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
