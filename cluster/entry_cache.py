"""Decoded entries that were just applied or read: delivering what was just published decodes
nothing again.
"""

from __future__ import annotations

from typing import Any

from cluster.codec.entries import Entry, bodies_of, metas_of

#: Of one group; bytes of the entries as they lie in the log.
CACHE_BYTES_MAX = 4 << 20
CACHE_ENTRIES_MAX = 4096


class Decoded:
    """One entry, and its bodies as `BodyRef` numbers them."""

    __slots__ = ("_entry", "_messages", "now_ms", "size")

    def __init__(self, entry: Entry, size: int) -> None:
        self.size = size
        self.now_ms = entry.now_ms
        self._entry: Entry | None = entry
        self._messages: list[tuple[bytes, Any]] = []

    def messages(self, offset: int, count: int) -> list[tuple[bytes, Any]]:
        """Body and meta of `count` messages from `offset`."""
        if self._entry is not None:
            self._messages = list(zip(bodies_of(self._entry), metas_of(self._entry), strict=True))
            self._entry = None
        return self._messages[offset : offset + count]


class EntryCache:
    """The most recently used ones, up to a number of bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._decoded: dict[int, Decoded] = {}  # in order of use

    def get(self, index: int) -> Decoded | None:
        decoded = self._decoded.pop(index, None)
        if decoded is not None:
            self._decoded[index] = decoded
        return decoded

    def peek(self, index: int) -> Decoded | None:
        """Not a use."""
        return self._decoded.get(index)

    def put(self, index: int, entry: Entry, size: int) -> Decoded:
        decoded = Decoded(entry, size)
        previous = self._decoded.pop(index, None)
        if previous is not None:
            self._bytes -= previous.size
        self._decoded[index] = decoded
        self._bytes += size
        while len(self._decoded) > 1 and (
            self._bytes > self._bytes_max or len(self._decoded) > CACHE_ENTRIES_MAX
        ):
            oldest = next(iter(self._decoded))
            self._bytes -= self._decoded.pop(oldest).size
        return decoded

    def clear(self) -> None:
        self._decoded.clear()
        self._bytes = 0
