"""How far the copies of one group are behind what is committed, second by second."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from chaos.postmortem.schemas import TABLES, arrow_schema

#: What begins within so many seconds of the first of all is there from the beginning.
TOGETHER_S: Final = 30
UNKNOWN: Final = -1
#: In the place of a second: from the beginning; no process is there.
ALWAYS: Final = -1
NOBODY: Final = -2
SECOND_NS: Final = 1_000_000_000
MS: Final = 1_000.0

LAG: Final = arrow_schema(TABLES["lag"])


class Life(NamedTuple):
    """Of a process: seconds, and which disk it was on: another one has nothing of those before."""

    began: int
    ended: int
    disk: int = 0


def behind(told: pa.Table, lives: Mapping[str, Sequence[Life]]) -> pa.Table:
    """Rows of the table `lag`, of one group. `told`, by node and second, in any order: `index`, the
    last entry; `committed`, how far it is; `term`, in which the node says that it leads; `left`,
    `back`: the copy was removed, or made.
    """
    told = told.sort_by([("sec", "ascending"), ("node", "ascending")])
    sec, index, committed, term = (
        told.column(name).fill_null(UNKNOWN).to_numpy()
        for name in ("sec", "index", "committed", "term")
    )
    nodes = np.array(told.column("node").to_pylist(), object)
    secs, starts = np.unique(sec, return_index=True)
    group = _Group(
        told.column("group")[0].as_py(),
        secs,
        np.maximum.accumulate(np.maximum.reduceat(committed, starts)),
        np.maximum.accumulate(np.maximum.reduceat(term, starts)),
        _leaders(nodes, term),
        min((life.began for its in lives.values() for life in its), default=0),
    )
    left, back = (
        told.column(name).fill_null(False).to_numpy(zero_copy_only=False)
        for name in ("left", "back")
    )
    found = []
    for node in sorted(set(nodes)):
        own = nodes == node
        copy = _Copy(node, sec[own], index[own], left[own], back[own])
        found.append(group.behind(copy, lives.get(node, ())))
    return pa.concat_tables(found)


def _leaders(nodes: np.ndarray, term: np.ndarray) -> dict[int, str]:
    found: dict[int, str] = {}
    for row in np.flatnonzero(term >= 0).tolist():
        at = int(term[row])
        found[at] = min(found.get(at, nodes[row]), nodes[row])
    return found


def _replaced(lives: Sequence[Life]) -> list[int]:
    """The seconds in which a process began on another disk than the one before it."""
    return [life.began for before, life in pairwise(sorted(lives)) if life.disk != before.disk]


class _Copy(NamedTuple):
    """What one node's log says."""

    node: str
    sec: np.ndarray
    index: np.ndarray
    left: np.ndarray
    back: np.ndarray


class _Had(NamedTuple):
    """By second: the last entry; whether the copy is there, and since when."""

    index: np.ndarray
    gone: np.ndarray
    since: np.ndarray


class _Group(NamedTuple):
    number: int
    secs: np.ndarray
    committed: np.ndarray
    term: np.ndarray
    leaders: dict[int, str]
    earliest: int  # when the first process of all began

    def behind(self, copy: _Copy, lives: Sequence[Life]) -> pa.Table:
        seen = (self.secs >= copy.sec[0]) & (self.committed >= 0)
        secs, committed, term = self.secs[seen], self.committed[seen], self.term[seen]
        if not len(secs):
            return LAG.empty_table()
        had = self._had(copy, lives, secs)
        process = self._processes(lives, secs)
        # The first second in which something was committed that it has not even now.
        lacks = secs[np.minimum(np.searchsorted(committed, had.index, "right"), len(secs) - 1)]
        lacks = np.maximum(lacks, had.since)
        behind = np.maximum(committed - had.index, 0)
        since = np.maximum(had.since, process)
        down = had.gone | (process == NOBODY)
        names = [self.leaders.get(at) for at in term.tolist()]
        rows = pa.Table.from_arrays(
            [
                pa.array([copy.node] * len(secs)),
                pa.array(np.full(len(secs), self.number, np.int32)),
                pa.array(secs * SECOND_NS),
                pa.array(names, pa.string()),
                *(pa.array(each) for each in (committed, had.index, behind)),
                pa.array(np.where(behind > 0, (secs - lacks) * MS, 0.0)),
                pa.array(down),
                pa.array((secs - since) * MS, mask=down | (since == ALWAYS)),
            ],
            schema=LAG,
        )
        return rows.filter(pa.array([name != copy.node for name in names], pa.bool_()))

    def _had(self, copy: _Copy, lives: Sequence[Life], secs: np.ndarray) -> _Had:
        replaced = _replaced(lives)
        disk = np.searchsorted(replaced, copy.sec, "right")
        fresh = np.diff(disk, prepend=disk[0]) > 0
        count = len(copy.sec)
        index, gone = np.zeros(count, np.int64), np.zeros(count, bool)
        first = int(copy.sec[0])
        began = ALWAYS if first < self.secs[0] + TOGETHER_S else first
        since = np.full(count, began)
        starts, away = [0], False
        for row in np.flatnonzero(copy.left | copy.back | fresh).tolist():
            # That it is there is said again now and then.
            if copy.left[row] or away or fresh[row]:
                away = bool(copy.left[row] and not copy.back[row])
                gone[row:] = away
                since[row:] = copy.sec[row]
                starts.append(row)
        for start, stop in zip(starts, [*starts[1:], count], strict=True):
            if start < stop:
                index[start:stop] = np.maximum.accumulate(copy.index[start:stop])
        at = np.searchsorted(copy.sec, secs, "right") - 1
        # On an empty disk there is no copy until one is made.
        none = disk[at] < np.searchsorted(replaced, secs, "right")
        return _Had(np.where(none, 0, np.maximum(index, 0)[at]), gone[at] | none, since[at])

    def _processes(self, lives: Sequence[Life], secs: np.ndarray) -> np.ndarray:
        """Since when the node's process runs. Only its first one can have been there always."""
        found = np.full(len(secs), NOBODY)
        for number, life in enumerate(sorted(lives)):
            founds = number == 0 and life.began < self.earliest + TOGETHER_S
            began = ALWAYS if founds else life.began
            found[(secs >= life.began) & (secs <= life.ended)] = began
        return found
