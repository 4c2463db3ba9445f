"""Which stream a subject is for, and which ones a pattern overlaps with: without a look at each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cluster.types import QueueId

#: Subjects of which the stream is remembered.
REMEMBERED_MAX: Final = 10_000


class _Node:
    """What patterns have in common up to a token."""

    __slots__ = ("below", "streams")

    def __init__(self) -> None:
        self.below: dict[bytes, _Node] = {}  # by the next token
        self.streams: set[QueueId] = set()  # of the pattern that ends here


class SubjectTree:
    """Of one virtual host. No recursion: a pattern may have any number of tokens."""

    def __init__(self) -> None:
        self._root = _Node()
        self._found: dict[bytes, QueueId | None] = {}

    def put(self, stream: QueueId, patterns: Iterable[bytes]) -> None:
        for pattern in patterns:
            node = self._root
            for token in pattern.split(b"."):
                below = node.below.get(token)
                if below is None:
                    below = node.below[token] = _Node()
                node = below
            node.streams.add(stream)
        self._found.clear()

    def remove(self, stream: QueueId, patterns: Iterable[bytes]) -> None:
        """Those with which it was put."""
        for pattern in set(patterns):
            way = list[tuple[_Node, bytes]]()
            node = self._root
            for token in pattern.split(b"."):
                way.append((node, token))
                node = node.below[token]
            node.streams.discard(stream)
            for above, token in reversed(way):
                if node.streams or node.below:
                    break
                del above.below[token]
                node = above
        self._found.clear()

    def stream_of(self, subject: bytes) -> QueueId | None:
        """The subject has no wildcards, and no two streams have it."""
        if not self._root.below:
            return None
        try:
            return self._found[subject]
        except KeyError:
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()
            found = self._found[subject] = self._look(subject)
            return found

    def begins(self, token: bytes) -> bool:
        """May a stream have a subject that begins with this token?"""
        below = self._root.below
        return token in below or b"*" in below or b">" in below

    def _look(self, subject: bytes) -> QueueId | None:
        """A pattern with an empty token, or with one behind `>`, means nothing."""
        nodes = [self._root]
        for token in subject.split(b"."):
            for node in nodes:
                rest = node.below.get(b">")
                if rest is not None and rest.streams:
                    return next(iter(rest.streams))
            meant = (token, b"*") if token else (b"*",)
            nodes = [node.below[each] for node in nodes for each in meant if each in node.below]
        return next((stream for node in nodes for stream in node.streams), None)

    def near(self, pattern: bytes) -> set[QueueId]:
        """Those with a pattern that it overlaps with: see `overlap`."""
        found, nodes = set[QueueId](), [self._root]
        for token in pattern.split(b"."):
            met = list[_Node]()
            for node in nodes:
                below = node.below
                names = below if token in (b"*", b">") else {token, b"*", b">"} & below.keys()
                for name in names:
                    if b">" in (name, token):
                        found |= _all_in(below[name])
                    else:
                        met.append(below[name])
            nodes = met
        return found.union(*(node.streams for node in nodes))


def _all_in(top: _Node) -> set[QueueId]:
    found, waiting = set[QueueId](), [top]
    while waiting:
        node = waiting.pop()
        found |= node.streams
        waiting += node.below.values()
    return found
