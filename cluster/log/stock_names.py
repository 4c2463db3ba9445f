"""What a journal is called by PySyncObj: a list whose position 0 is the base."""

# ruff: noqa: B027, N802, N803 -- the names are PySyncObj's, and some mean nothing here
from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final, overload

#: The command of a no-op in PySyncObj's encoding: what stands at the base, whose own command may be
#: gone.
NO_OP: Final = b"\x01"
#: How a command begins that says who the members are.
MEMBERSHIP: Final = b"\x02"

LogEntry = tuple[bytes, int, int]  # command, index, term: PySyncObj's order


class StockNames(ABC):
    """PySyncObj's journal interface in terms of ours."""

    base_index: int
    last_index: int
    commit_index: int
    current_term: int
    voted_for: str | None

    @abstractmethod
    def entries(
        self, first: int, count: int | None = None, max_bytes: int | None = None
    ) -> list[LogEntry]: ...

    @abstractmethod
    def truncate_from(self, index: int) -> None: ...

    @abstractmethod
    def set_commit(self, index: int) -> None: ...

    @abstractmethod
    def set_term(self, term: int, voted_for: str | None) -> None: ...

    def __len__(self) -> int:
        return self.last_index - self.base_index + 1

    @overload
    def __getitem__(self, item: int) -> LogEntry: ...
    @overload
    def __getitem__(self, item: slice) -> list[LogEntry]: ...
    def __getitem__(self, item: int | slice) -> LogEntry | list[LogEntry]:
        if isinstance(item, slice):
            start, stop, step = item.indices(len(self))
            found = self.entries(self.base_index + start, max(0, stop - start))
            return found if step == 1 else found[::step]
        position = item + len(self) if item < 0 else item
        if not 0 <= position < len(self):
            raise IndexError(f"position {item} of {len(self)}")
        return self.entries(self.base_index + position, 1)[0]

    def clear(self) -> None:
        self.truncate_from(self.base_index + 1)

    def deleteEntriesFrom(self, entryFrom: int) -> None:
        self.truncate_from(self.base_index + max(entryFrom, 1))

    def deleteEntriesTo(self, entryTo: int) -> None:
        """Nothing: only a snapshot moves the base."""

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:
        self.set_commit(raftCommitIndex)

    def getRaftCommitIndex(self) -> int:
        return self.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:
        self.set_term(term, votedForNodeId)

    def getCurrentTerm(self) -> int:
        return self.current_term

    def getVotedForNodeId(self) -> str | None:
        return self.voted_for

    def onOneSecondTimer(self) -> None:
        """Nothing: the log is maintained by the node."""

    def _destroy(self) -> None:
        """Nothing: the node closes the log."""
