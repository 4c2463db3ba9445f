"""What can be wrong with a log: damage, someone else's files, a newer format, a failed disk."""

from __future__ import annotations


class LogError(Exception):
    """Any trouble of the log."""


class FatalDiskError(LogError):
    """A write or a sync failed. What is on disk is unknown, so the process must end and recover."""


class SnapshotRefused(LogError):
    """A snapshot or an install does not fit what the journal holds; nothing has changed."""


class _FileError(LogError):
    def __init__(self, file: str, offset: int, reason: str, advice: str) -> None:
        super().__init__(f"{file} at offset {offset}: {reason}. {advice}")
        self.file = file
        self.offset = offset
        self.reason = reason
        self.advice = advice


REBUILD = (
    "This node's copy cannot be trusted. Rebuild it from its peers: stop the node, move its data"
    " folder away (keep it for analysis), and start it again with an empty one; it receives"
    " everything from the other members"
)


class LogCorrupt(_FileError):
    """Bytes that were once safely written are not what they were."""

    def __init__(self, file: str, offset: int, reason: str, advice: str = REBUILD) -> None:
        super().__init__(file, offset, reason, advice)


class WrongIdentity(_FileError):
    """The folder belongs to another node or another cluster."""

    def __init__(self, file: str, reason: str) -> None:
        advice = (
            "Check the node name, the cluster name and the data folder in the settings;"
            " nothing was changed"
        )
        super().__init__(file, 0, reason, advice)


class UnsupportedFormat(_FileError):
    """The file was written by a newer release."""

    def __init__(self, file: str, offset: int, reason: str) -> None:
        advice = "Start a release that knows this format; nothing was changed"
        super().__init__(file, offset, reason, advice)
