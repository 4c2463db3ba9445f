"""Logs up to a time: each is cut at one place. Records chosen by their time would leave a hole
where a clock was set back, and what is whole would look broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from chaos.postmortem.reading.inputs import Inputs, NothingToRead, Segment

S_NS: Final = 1_000_000_000


def begun_by(inputs: Inputs, until_ns: int) -> Inputs:
    """Of each folder all up to the last segment that was begun by then. NothingToRead: none was."""
    kept = {
        segment.file
        for folder in _folders(inputs.segments)
        for segment in folder[: _begun(folder, until_ns)]
    }
    # When one with a damaged header was begun is not known.
    segments = [each for each in inputs.segments if each.file in kept or not each.created_ns]
    if not segments:
        first = min(each.created_ns for each in inputs.segments if each.created_ns)
        began = datetime.fromtimestamp(first // S_NS, UTC).isoformat()
        raise NothingToRead(f"there is nothing of that time: the first segment is of {began}")
    return replace(inputs, segments=segments)


def ends(inputs: Inputs, until_ns: int) -> list[Segment]:
    """Of each node the segment in which its log is cut; all before it are wanted whole."""
    last: dict[str, Segment] = {}
    for folder in _folders(inputs.segments):
        for segment in folder[: _begun(folder, until_ns)][-1:]:
            other = last.get(segment.node)
            if other is None or other.created_ns < segment.created_ns:
                last[segment.node] = segment
    return list(last.values())


def _begun(folder: list[Segment], until_ns: int) -> int:
    """How many of them, in their order, up to the last one that was begun by then."""
    begun = [at for at, segment in enumerate(folder, 1) if segment.created_ns <= until_ns]
    return max(begun, default=0)


def _folders(segments: Iterable[Segment]) -> Iterator[list[Segment]]:
    """The segments of each folder in the order in which they were written, whatever the clock
    did: on one disk numbers only grow. An archive may have several disks; there one process did.
    """
    folders: dict[str, list[Segment]] = {}
    began: dict[tuple[str, str], int] = {}
    for segment in segments:
        if segment.created_ns:
            folders.setdefault(segment.file.rpartition("/")[0], []).append(segment)
            life = _life(segment)
            began[life] = min(segment.created_ns, began.get(life, segment.created_ns))

    def place(segment: Segment) -> tuple[int, int]:
        return began[_life(segment)] if segment.source == "archive" else 0, segment.number

    for each in folders.values():
        yield sorted(each, key=place)


def _life(segment: Segment) -> tuple[str, str]:
    """Of a damaged header the boot is not known: then by itself."""
    return segment.node, segment.boot or segment.file
