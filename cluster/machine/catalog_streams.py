"""Which stream of a virtual host stores what is published to a subject."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from cluster.machine.catalog_tables import QueueInfo
from cluster.machine.replies import BAD_ARGUMENT, Refused
from cluster.machine.stream.errors import SUBJECTS_OVERLAP
from cluster.machine.stream.settings import overlap, stream_settings

#: Subjects of which the stream is remembered.
REMEMBERED_MAX: Final = 10_000


class StreamSubjects:
    """Of one virtual host, as it is now: no subject belongs to two streams."""

    def __init__(self, streams: Iterable[QueueInfo]) -> None:
        self.streams = list(streams)
        self._root: dict[bytes, Any] = {}  # by token; b"" leads to the stream
        self._found: dict[bytes, QueueInfo | None] = {}
        for info in self.streams:
            for subject in subjects_of(info.stream):
                tokens = subject.split(b".")
                if b"" in tokens or b">" in tokens[:-1]:
                    continue  # it means nothing
                node = self._root
                for token in tokens:
                    node = node.setdefault(token, {})
                node[b""] = info

    def find(self, subject: bytes) -> QueueInfo | None:
        """The subject has no wildcards."""
        if not self.streams:
            return None
        try:
            return self._found[subject]
        except KeyError:
            if len(self._found) >= REMEMBERED_MAX:
                self._found.clear()
            found = self._found[subject] = self._look(self._root, subject.split(b"."), 0)
            return found

    def _look(self, node: Mapping[bytes, Any], tokens: list[bytes], at: int) -> QueueInfo | None:
        if at == len(tokens):
            return node.get(b"")
        rest: Mapping[bytes, Any] | None = node.get(b">")
        if rest is not None:
            return rest[b""]
        for token in (tokens[at], b"*"):
            below: Mapping[bytes, Any] | None = node.get(token) if token else None
            found = None if below is None else self._look(below, tokens, at + 1)
            if found is not None:
                return found
        return None


def subjects_of(config: Mapping[str, Any] | None) -> tuple[bytes, ...]:
    return () if config is None else stream_settings(config).subjects


def overlapping(config: Mapping[str, Any] | None, others: Iterable[QueueInfo]) -> Refused | None:
    """Why a stream cannot have these subjects beside the other streams."""
    own = subjects_of(config)
    for number, subject in enumerate(own):
        if any(overlap(subject, each) for each in own[:number]):
            return _overlaps(subject, "another one of the same stream")
    for info in others:
        for each in subjects_of(info.stream):
            for subject in own:
                if overlap(subject, each):
                    return _overlaps(subject, f"{each.decode()!r} of stream {info.name!r}")
    return None


def _overlaps(subject: bytes, what: str) -> Refused:
    reason = f"subject {subject.decode()!r} overlaps with {what}"
    return Refused(BAD_ARGUMENT, reason, SUBJECTS_OVERLAP)
