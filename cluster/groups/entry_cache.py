"""Entries in memory, since delivering what was just published decodes nothing again."""

from __future__ import annotations

from typing import Any

from cluster.codec.entries import Entry, decode_entry, messages_of
from cluster.raft.pysyncobj_core import REGULAR
from cluster.types import Body

#: Of one group; bytes of the entries as they lie in the log.
CACHE_BYTES_MAX = 4 << 20
CACHE_ENTRIES_MAX = 4096


class CachedEntry:
    """One entry, and its bodies as `BodyRef` numbers them."""

    __slots__ = ("_entry", "_messages", "now_ms", "size")

    def __init__(self, entry: Entry | bytes, size: int) -> None:
        """An entry, or its data as it lies in the log."""
        self.size = size
        self.now_ms = 0 if isinstance(entry, bytes) else entry.now_ms  # known once it is decoded
        self._entry: Entry | bytes | None = entry
        self._messages: list[tuple[Body, Any]] = []

    def messages(self, offset: int, count: int) -> list[tuple[Body, Any]]:
        """Body and meta of `count` messages from `offset`."""
        entry = self._entry
        if entry is not None:
            if isinstance(entry, bytes):
                entry = _decoded(entry)
                self.now_ms = entry.now_ms
            self._messages = messages_of(entry)
            self._entry = None
        return self._messages[offset : offset + count]


def _decoded(data: bytes) -> Entry:
    if data[:1] != REGULAR:
        return Entry(1, 0, [])  # Raft's own: no message is in it
    return decode_entry(memoryview(data)[1:])


class EntryCache:
    """The most recently used ones, up to a number of bytes."""

    def __init__(self) -> None:
        self._bytes = 0
        self._entries: dict[int, CachedEntry] = {}  # in order of use

    def __contains__(self, index: int) -> bool:
        return index in self._entries

    def get(self, index: int) -> CachedEntry | None:
        entry = self._entries.pop(index, None)
        if entry is not None:
            self._entries[index] = entry
        return entry

    def peek(self, index: int) -> CachedEntry | None:
        """Not a use."""
        return self._entries.get(index)

    def put(self, index: int, entry: Entry | bytes, size: int) -> CachedEntry:
        cached = CachedEntry(entry, size)
        previous = self._entries.pop(index, None)
        if previous is not None:
            self._bytes -= previous.size
        self._entries[index] = cached
        self._bytes += size
        while len(self._entries) > 1 and (
            self._bytes > CACHE_BYTES_MAX or len(self._entries) > CACHE_ENTRIES_MAX
        ):
            oldest = next(iter(self._entries))
            self._bytes -= self._entries.pop(oldest).size
        return cached

    def clear(self) -> None:
        self._entries.clear()
        self._bytes = 0
