"""What a sealed segment holds, by group: kept beside the log, so that a look at one hour does not
read the whole day.

A file for each segment, made when it is first read to its end. One that was damaged then is always
read again: no index hides that.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from chaos.postmortem.reading.inputs import Segment
from chaos.postmortem.reading.wanted import Wanted

FORMAT: Final = 1
#: Smallest and largest of each, in this order.
RANGES: Final = ("index", "term", "wall_ns")


@dataclass(slots=True)
class SegmentIndex:
    """By group the smallest and largest index, term and time of its records."""

    groups: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def see(self, headers: np.ndarray) -> None:
        """These are in the segment too."""
        order = np.argsort(headers["group"], kind="stable")
        groups, firsts = np.unique(headers["group"][order], return_index=True)
        columns = [headers[name][order].astype(np.int64) for name in RANGES]
        ends = [
            end for column in columns
            for end in (np.minimum.reduceat(column, firsts), np.maximum.reduceat(column, firsts))
        ]  # fmt: skip
        for group, *found in zip(groups.tolist(), *(end.tolist() for end in ends), strict=True):
            known = self.groups.get(group)
            self.groups[group] = found if known is None else _joined(known, found)

    def may_hold(self, wanted: Wanted) -> bool:
        """Whether there can be a record in the segment that is wanted."""
        return any(_fits(group, ranges, wanted) for group, ranges in self.groups.items())

    def store(self, folder: str, segment: Segment) -> None:
        """An index is only a help: without room for it, reading goes on."""
        text = json.dumps({"format": FORMAT, "groups": self.groups})
        path = _path(folder, segment)
        with contextlib.suppress(OSError):
            with open(f"{path}.{os.getpid()}.tmp", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(f"{path}.{os.getpid()}.tmp", path)


def _joined(known: list[int], found: list[int]) -> list[int]:
    return [(min, max)[at % 2](pair) for at, pair in enumerate(zip(known, found, strict=True))]


def _fits(group: int, ranges: list[int], wanted: Wanted) -> bool:
    ends = {"group": (group, group)}
    ends |= {name: (ranges[2 * at], ranges[2 * at + 1]) for at, name in enumerate(RANGES)}
    return all(bounds.may_hold(*ends[column]) for column, bounds in wanted.bounds.items())


def _path(folder: str, segment: Segment) -> str:
    # The boot is as good as the node's name here, and has no letters that a file cannot have.
    name = f"{segment.number:012d}-{segment.created_ns:020d}-{segment.boot}-{segment.bytes}.json"
    return f"{folder}/{name}"


def indexable(segment: Segment) -> bool:
    """A segment that may still grow has no index, nor has one that cannot be told from others."""
    return not segment.last and not segment.damaged


def load(folder: str, segment: Segment) -> SegmentIndex | None:
    """None: there is none, or not one that can be read."""
    try:
        with open(_path(folder, segment), encoding="utf-8") as file:
            told = json.load(file)
        if told["format"] != FORMAT:
            return None
        groups: Mapping[str, list[int]] = told["groups"]
        return SegmentIndex({int(group): ranges for group, ranges in groups.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
