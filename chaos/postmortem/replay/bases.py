"""The states that nodes wrote down: each snapshot, and the digest of what is in it."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chaos.postmortem.reading.inputs import SnapshotFile
from chaos.postmortem.reading.whole_files import in_files
from chaos.postmortem.schemas import arrow_schema
from chaos.postmortem.tables import conformed
from cluster.history.group_replay import GroupReplay
from cluster.log.errors import LogCorrupt, UnsupportedFormat
from cluster.log.snapshots import Snapshot, decode_snapshot
from cluster.raft.configuration import split
from cluster.types import GroupId

_READ: Final = (
    "file string, group int, index bigint, hash binary, digest string, reason string, offset bigint"
    ", since bigint, voters array<string>, learners array<string>"
)
_READ_SCHEMA: Final = arrow_schema(_READ)
_BAD: Final = (
    "cluster string, node string, file string, group int, first bigint, last bigint, kind string,"
    " reason string, offset bigint"
)


class Base(NamedTuple):
    """A state that a replay can begin with; `file` None: the empty one of the beginning."""

    group: int
    index: int  # pyright: ignore[reportIncompatibleMethodOverride]
    hash: bytes
    digest: str | None = None
    file: str | None = None
    node: str | None = None
    #: Since which entry who votes and who learns, if it says so.
    members: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None


class Unusable(NamedTuple):
    """A snapshot that cannot be read, or not be restored by this release."""

    snapshot: SnapshotFile
    reason: str
    offset: int


def worth_reading(
    snapshots: Iterable[SnapshotFile],
    firsts: Mapping[int, int],
    lasts: Mapping[int, int] | None = None,
) -> list[SnapshotFile]:
    """A log folder is judged as a whole. Of an archive, only states that known entries follow on,
    or lead up to: `firsts`, and `lasts` if nothing later is wanted, are those by group.
    """
    return [
        each
        for each in snapshots
        if each.source == "log"
        or (
            each.index + 1 >= firsts.get(each.group, 0)
            and (lasts is None or each.index <= lasts.get(each.group, 0))
        )
    ]


def bases(
    spark: SparkSession, snapshots: Sequence[SnapshotFile]
) -> tuple[list[Base], list[Unusable]]:
    """Each is read once; a state is restored once, however many nodes wrote it down. Those that are
    gone by now are in neither list.
    """
    if not snapshots:
        return [], []
    states = {each.file: f"{each.group}-{each.index}" for each in snapshots}
    return told_apart(snapshots, in_files(spark, states, restored, _READ).collect())


def told_apart(
    snapshots: Iterable[SnapshotFile], rows: Iterable[Any]
) -> tuple[list[Base], list[Unusable]]:
    """Of what a node wrote at an index one copy counts: of those that are sound the first."""
    by_file = {each.file: each for each in snapshots}
    found, unusable = dict[tuple[int, int, str], Base](), list[Unusable]()
    for row in sorted(rows, key=lambda row: (by_file[row.file].copy, row.file)):
        its = by_file[row.file]
        if row.reason is not None:
            unusable.append(Unusable(its, row.reason, row.offset))
        elif not its.set_aside:
            members = None
            if row.since is not None:
                members = row.since, tuple(row.voters), tuple(row.learners)
            place = row.group, row["index"], bytes(row.hash)
            base = Base(*place, row.digest, row.file, its.node, members)
            found.setdefault((base.group, base.index, its.node), base)
    return sorted(found.values(), key=lambda each: (each.group, each.index, each.file)), unusable


def agreed(found: Iterable[Base]) -> list[Base]:
    """One for each group and index: as most nodes have that state. In the order of `found`."""
    kept = list[Base]()
    for _, at_index in groupby(found, key=lambda each: (each.group, each.index)):
        alike = list(at_index)
        nodes = Counter(each.digest for each in alike)
        kept.append(max(alike, key=lambda each: nodes[each.digest]))
    return kept


def bad_snapshots(spark: SparkSession, found: Iterable[Unusable]) -> DataFrame:
    """Rows of the table `corruption`."""
    rows = [
        (
            *(each.cluster, each.node, each.file, each.group, each.index, each.index),
            "bad snapshot",
            f"set aside by its node: {reason}" if each.set_aside else reason,
            offset,
        )
        for each, reason, offset in found
    ]
    return conformed(spark.createDataFrame(rows, _BAD), "corruption")


def restored(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the snapshots in `content` say. Equal states have equal bytes."""
    known: dict[tuple[int, int, bytes], dict[str, Any]] = {}
    for batch in batches:
        for file, data in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            row = {"file": file, "offset": 0, **_told(file, data, known)}
            yield pa.RecordBatch.from_pylist([row], schema=_READ_SCHEMA)


def _told(
    file: str, data: bytes, known: dict[tuple[int, int, bytes], dict[str, Any]]
) -> dict[str, Any]:
    try:
        group, snapshot, _ = decode_snapshot(data, file)
    except (LogCorrupt, UnsupportedFormat) as error:
        return {"reason": error.reason, "offset": error.offset}
    same = group, snapshot.index, blake2b(snapshot.data).digest()
    if same not in known:
        known[same] = _of_state(group, snapshot)
    told = known[same]
    place = {"group": group, "index": snapshot.index, "hash": snapshot.hash}
    return told if "reason" in told else place | told


def _of_state(group: int, snapshot: Snapshot) -> dict[str, Any]:
    try:
        digest = GroupReplay.after(GroupId(group), snapshot).digest().hex()
    except Exception as error:  # noqa: BLE001 -- whatever is in one file, others are looked at
        return {"reason": str(error) or type(error).__name__}
    members, _ = split(snapshot.data)
    if members is None:
        return {"digest": digest}
    since, configuration = members
    return {
        "digest": digest,
        "since": since,
        "voters": configuration.voters,
        "learners": configuration.learners,
    }
