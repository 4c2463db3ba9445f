"""The folder that belongs to one running node: its lock and its count of starts."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from cluster.seams import Clock
from node.settings.settings import SettingsError

LOCK = "node.lock"
INCARNATION = "incarnation"
LAST_WORDS = "last-words"
#: Room that is taken at the start, so that a full disk cannot take it away.
LAST_WORDS_BYTES = 4096


class FolderInUse(SettingsError):
    """Another process has the folder."""


class DataFolder:
    """Locked from `open` to `close`; the kernel unlocks it when the process dies."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._fd = -1

    def open(self) -> None:
        try:
            # Messages are in it: nobody else reads it. One that exists stays as its owner made it.
            made = [each for each in (self.path, *self.path.parents) if not each.exists()]
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            for each in made:
                _sync(each.parent)
            if not made:  # whoever made it may have lost power before this
                with suppress(PermissionError):
                    _sync(self.path.parent)
            self._fd = private(self.path / LOCK, os.O_RDWR)
        except OSError as error:
            raise SettingsError(
                f"data_dir: {self.path} cannot be used: {error.strerror}; "
                "allowed: a folder that this process may write to"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            self._fd = -1
            raise FolderInUse(
                f"data_dir: {self.path} is in use by process {owner or 'unknown'}; "
                "allowed: stop that node first, or give this one a folder of its own"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def last_words(self) -> tuple[str, int] | None:
        """Why the process before this one ended, and when (ns), if it left word. They are told
        once; then there is room for those of this process.
        """
        file = self.path / LAST_WORDS
        try:
            fd = private(file, os.O_RDWR)
        except OSError:
            return None
        try:
            text = os.pread(fd, LAST_WORDS_BYTES, 0).rstrip(b"\0").decode(errors="replace")
            os.pwrite(fd, bytes(LAST_WORDS_BYTES), 0)
            os.fsync(fd)
        except OSError:  # a disk that is full already has room for nothing
            return None
        finally:
            os.close(fd)
        at, _, reason = text.partition(" ")
        return (reason, int(at)) if at.isdecimal() and reason else None

    def leave_word(self, reason: str, at_ns: int) -> None:
        """For the next process: the log takes nothing any more."""
        text = f"{at_ns} {reason}".encode()[:LAST_WORDS_BYTES]
        try:
            fd = os.open(self.path / LAST_WORDS, os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.pwrite(fd, text, 0)
        except OSError:
            pass  # it was said in the log of the process, too
        finally:
            os.close(fd)

    def next_incarnation(self, clock: Clock) -> int:
        """A number that grows with every start, also when the clock was set back."""
        file = self.path / INCARNATION
        before = 0
        if file.exists():
            text = file.read_text(encoding="ascii", errors="replace").strip()
            before = int(text) if text.isdecimal() else 0
        number = max(before + 1, clock.wall_ms())
        fresh = file.with_suffix(".new")
        with open(private(fresh, os.O_WRONLY | os.O_TRUNC), "w", encoding="ascii") as stream:
            stream.write(f"{number}\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
        _sync(self.path)
        return number


def _sync(folder: Path) -> None:
    """What is in it by name outlives a power failure."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def private(path: Path, flags: int) -> int:
    """A file that is made so that only its owner may read it."""
    return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
