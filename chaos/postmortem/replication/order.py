"""In which order the segments of a node were written, and what is missing between them.

On one disk numbers only grow, whatever the clock did: it is asked only which of two disks was
first. A disk that was replaced begins to count anew. One log folder is one disk; an archive holds
segments of all disks there ever were, and there one process, or a segment that says which one was
before it and how long, tells what belongs together. Where nothing does, numbers that go on do.

An empty segment that a crash left is removed at the next start, so a gap in the numbers alone means
nothing: the first record of a segment says which one was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median_low


@dataclass(frozen=True, slots=True)
class Given:
    """A segment that was given. follows: the number before, as it says itself; 0: it does not.
    unread: it is there, and nothing in it can be read. copy: another one counts in its place; it
    only tells that their folders are of one disk.
    """

    node: str
    file: str
    segment: int
    created_ns: int
    boot: str
    archived: bool
    bytes: int = 0
    follows: int = 0
    follows_bytes: int = 0
    unread: bool = False
    copy: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """Its place among all segments: `seq` ascends within a node, and is no other node's."""

    given: Given
    seq: int
    node_number: int
    disk: int  # another one has nothing of the one before
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
    boots: dict[str, int] = {}
    disk = holes = 0
    archived = begun = False  # whether the archive has anything of this disk, of any, so far
    before: Given | None = None
    for part in _by_disk(segments):
        for nth, each in enumerate(part):
            # Of two that went on from one backup the second is a disk of its own.
            first = before is None or nth == 0 or each.segment <= before.segment
            if first:
                disk += before is not None
                archived = False
            last_before = 0 if first or before is None else before.segment
            says = 0 < each.follows < each.segment
            follows = each.follows if says else 0 if first else each.segment - 1
            missing = follows > last_before
            # Nobody asked about what the first one follows, and an archive may begin anywhere.
            told = missing and before is not None and (begun or not each.archived)
            holes += missing or (not first and before is not None and before.unread)
            archived |= each.archived
            found.append(
                Placed(
                    each,
                    len(found),
                    node_number,
                    disk,
                    boots.setdefault(each.boot, len(boots)),
                    holes,
                    last_before + 1 if told else 0,
                    follows if told else 0,
                    not archived,
                )
            )
            begun |= each.archived
            before = each


def _by_disk(segments: Sequence[Given]) -> list[list[Given]]:
    """The oldest first, each in log order."""
    together = _together(segments)
    parts: dict[str, list[Given]] = {}
    for each in segments:
        if each.copy:
            continue
        parts.setdefault(together.named(each.boot), []).append(each)
    # One life under a wrong clock does not make a disk older or younger.
    ordered = sorted(parts.values(), key=lambda part: median_low(e.created_ns for e in part))
    disks: list[list[Given]] = []
    for part in ordered:
        if disks and _goes_on(disks[-1], part):
            disks[-1] += part
        else:
            disks.append(part)
    return [_in_order(disk) for disk in disks]


def _in_order(disk: Iterable[Given]) -> list[Given]:
    """By number, each process for itself."""
    disk = list(disk)
    began: dict[str, tuple[int, int]] = {}
    for each in disk:
        at = each.segment, each.created_ns
        began[each.boot] = min(at, began.get(each.boot, at))
    return sorted(disk, key=lambda each: (began[each.boot], each.boot, each.segment))


def _goes_on(disk: Iterable[Given], part: Sequence[Given]) -> bool:
    """Whether it may be the same disk, as far as numbers tell. A log folder is all of its disk."""
    numbers_grow = max(each.segment for each in disk) < min(each.segment for each in part)
    folders = all(any(not each.archived for each in one) for one in (disk, part))
    return numbers_grow and not folders


class _Sets:
    """Names that are known to mean one thing."""

    def __init__(self) -> None:
        self._above: dict[str, str] = {}

    def named(self, name: str) -> str:
        """By the same name if they are the same."""
        while (above := self._above.get(name, name)) != name:
            name = above
        return name

    def join(self, one: str, other: str) -> None:
        self._above[self.named(one)] = self.named(other)


def _together(segments: Sequence[Given]) -> _Sets:
    """Processes that are known to have written to one disk."""
    sets = _Sets()
    of_number: dict[int, list[Given]] = {}
    for each in segments:
        of_number.setdefault(each.segment, []).append(each)
        if not each.archived:
            sets.join(each.boot, each.file.rpartition("/")[0])
    for each in segments:
        before = [
            one
            for one in (of_number.get(each.follows, ()) if each.follows < each.segment else ())
            if one.bytes == each.follows_bytes
        ]
        own = sets.named(each.boot)
        if before and all(sets.named(one.boot) != own for one in before):
            nearest = min(before, key=lambda one: abs(one.created_ns - each.created_ns))
            sets.join(each.boot, nearest.boot)
    return sets
