"""In which order the segments of a node were written, and what is missing between them.

Within one process numbers only grow; processes follow one another by the clock. A disk that was
replaced begins to count anew. An empty segment that a crash left is removed at the next start, so
a gap in the numbers alone means nothing: the first record of a segment says which one was before.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Given:
    """A segment that was given. follows: the number before, as it says itself; 0: it does not."""

    node: str
    file: str
    segment: int
    created_ns: int
    boot: str
    archived: bool
    follows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Placed:
    """Its place among all segments: `seq` ascends within a node, and is no other node's."""

    given: Given
    seq: int
    node_number: int
    disk: int  # the disk's life: another one has nothing of the one before
    boot_number: int
    holes: int  # how often anything was missing before it, since the first one of the node
    first_missing: int = 0  # numbers that should be before it and are not; 0: none
    last_missing: int = 0
    dropped: bool = False  # the cleaner may have dropped these: nothing says they were archived


def placed(given: Iterable[Given]) -> list[Placed]:
    """In log order, node by node."""
    nodes: dict[str, list[Given]] = {}
    for each in given:
        nodes.setdefault(each.node, []).append(each)
    found: list[Placed] = []
    for number, (_, segments) in enumerate(sorted(nodes.items())):
        _place(segments, number, found)
    return found


def _place(segments: list[Given], node_number: int, found: list[Placed]) -> None:
    began: dict[str, int] = {}
    for each in segments:
        began[each.boot] = min(each.created_ns, began.get(each.boot, each.created_ns))
    segments.sort(key=lambda each: (began[each.boot], each.boot, each.segment))
    boots = {boot: nth for nth, boot in enumerate(dict.fromkeys(each.boot for each in segments))}
    disk = holes = 0
    archived = False  # whether the archive has anything of this disk so far
    before: Given | None = None
    for each in segments:
        first = before is None or each.segment <= before.segment
        if first:
            disk += before is not None
            archived = False
        last_before = 0 if first or before is None else before.segment
        says = 0 < each.follows < each.segment
        follows = each.follows if says else 0 if first else each.segment - 1
        missing = follows > last_before
        told = missing and before is not None  # the first one may follow what nobody asked about
        holes += missing
        archived |= each.archived
        found.append(
            Placed(
                each,
                len(found),
                node_number,
                disk,
                boots[each.boot],
                holes,
                last_before + 1 if told else 0,
                follows if told else 0,
                not archived,
            )
        )
        before = each
