"""Chains of hashes, judged by runs of entries, against the reader, which looks at each record."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cluster.log import Journal
from cluster.log.reader import Record, read
from tests.checker.logs import Replica

pa = pytest.importorskip("pyarrow")
chains: Any = pytest.importorskip("chaos.postmortem.replication.chains")
fold: Any = pytest.importorskip("chaos.postmortem.replication.entry_outcomes")

KINDS = {"entry": fold.ENTRY, "live-entry": fold.LIVE}
GROUPS = range(1, 31)


def place(record: Record) -> int:
    return int(Path(record.file).stem) << fold.OFFSET_BITS | record.offset


async def forged(folder: Path) -> list[Record]:
    """A log in which, now and then, an entry does not follow from the one before."""
    random = Random(3)
    replica = await Replica.open(folder, "a")
    for _ in range(1_500):
        _anything(random, replica.log.journal(random.choice(GROUPS)))
        if random.random() < 0.01:
            await replica.log.wal.roll()
    await replica.close()
    return list(read(str(folder / "a")))


def _anything(random: Random, journal: Journal) -> None:
    if random.random() < 0.2 and journal.last_index > 2:
        journal.truncate_from(random.randint(2, journal.last_index))
    if random.random() < 0.05:
        journal.last_hash = random.randbytes(16)
    for _ in range(random.randint(1, 4)):
        journal.add(b"\0" + random.randbytes(9), journal.last_index + 1, journal.last_term + 1)


def batches(records: list[Record], size: int) -> Iterator[Any]:
    rows = [
        {
            "stream": each.group,
            "place": place(each),
            "kind": KINDS[each.kind],
            "index": each.index,
            "term": each.term,
            "hash": each.payload[:16],
            "command": each.payload[16:] if each.kind == "entry" else None,
            "wall_ns": each.wall_ns,
        }
        for each in records
    ]
    names = [field for field in chains._LINKS if field.name != "broken"]
    for at in range(0, len(rows), size):
        yield pa.RecordBatch.from_pylist(rows[at : at + size], schema=pa.schema(names))


def broken(records: list[Record], size: int) -> set[tuple[int, int]]:
    rows = [
        row for batch in chains.judged_runs(batches(records, size)) for row in batch.to_pylist()
    ]
    assert size == 1 or len(rows) < len(records)
    rows.sort(key=lambda row: (row["stream"], row["place"]))
    in_order = pa.RecordBatch.from_pylist(rows, schema=chains._LINKS)
    found = pa.Table.from_batches(list(chains.broken_links([in_order]))).to_pylist()
    return {(row["stream"], row["place"]) for row in found}


def replacements(records: list[Record]) -> set[tuple[int, int]]:
    """Entries in the place of others."""
    last: dict[int, int] = {}
    found: set[tuple[int, int]] = set()
    for each in records:
        if each.index <= last.get(each.group, 0):
            found.add((each.group, place(each)))
        last[each.group] = each.index
    return found


async def test_runs_of_entries_say_what_each_record_says(tmp_path: Path):
    told = await forged(tmp_path)
    records = [each for each in told if each.kind in KINDS]
    groups = {place(each): each.group for each in records}
    said = {(groups[place(each)], place(each)) for each in told if each.kind == "corrupt"}
    assert len(said) > 30

    assert broken(records, 1) == said
    assert broken(records, 100_000) == said
    # Behind what was replaced, the entry before may be in the middle of a run of another batch.
    replacing = replacements(records)
    for size in (7, 100):
        found = broken(records, size)
        assert found <= said
        assert said - found <= replacing
