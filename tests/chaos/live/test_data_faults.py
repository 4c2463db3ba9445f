"""Damage to the files of a log on a real disk is where it is said to be, and is seen there."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from chaos.damage import CUT_BYTES_MAX, CUT_BYTES_MIN
from chaos.live.data_faults import damage
from chaos.nemesis.live_strikes import PLACE
from cluster.log import Log, LogCorrupt, LogIdentity, LogOptions, RealDisk, SystemClock
from tests.log.support import fill, save


async def _open(data: Path) -> Log:
    return await Log.open(
        str(data),
        disk=RealDisk(),
        clock=SystemClock(),
        identity=LogIdentity("n1", "test"),
        options=LogOptions(segment_bytes=20_000),
    )


async def _written(data: Path) -> None:
    log = await _open(data)
    for turn in range(6):
        fill(log.journal(1), 20, size=500)
        await save(log)
        if turn in (2, 4):
            last = log.journal(1).last_index
            await log.journal(1).save_snapshot(last, 1, b"state" * 100, [])
    await log.close()


def _files(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", range(8))
async def test_a_flipped_bit_of_the_log_is_seen_and_named(tmp_path: Path, seed: int) -> None:
    data = tmp_path / "data"
    await _written(data)
    before = _files(data)

    place = damage(data, "log_bit", random.Random(seed))

    assert place is not None
    (changed,) = (path for path, content in _files(data).items() if content != before[path])
    with pytest.raises(LogCorrupt) as seen:
        await _open(data)
    said = PLACE.search(f"{seen.value}: ")
    assert said is not None, str(seen.value)
    assert (f"{said[1]}:{said[2]}", said[1]) == (place, changed)


async def test_only_the_newest_snapshot_of_a_group_is_damaged(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await _written(data)
    indexes = {
        str(path): int(path.stem.partition("-")[2]) for path in data.glob("snapshots/*.snap")
    }
    newest = max(indexes, key=lambda path: indexes[path])
    for seed in range(5):
        before = Path(newest).read_bytes()
        place = damage(data, "snapshot_bit", random.Random(seed))
        assert place is not None
        assert place.rpartition(":")[0] == newest
        after = Path(newest).read_bytes()
        assert sum((a ^ b).bit_count() for a, b in zip(before, after, strict=True)) == 1


async def test_the_end_that_is_cut_off_is_of_the_newest_records(tmp_path: Path) -> None:
    data = tmp_path / "data"
    await _written(data)
    before = _files(data)

    place = damage(data, "log_end", random.Random(1))

    assert place is not None
    path, _, left = place.rpartition(":")
    lost = len(before[path]) - int(left)
    assert CUT_BYTES_MIN <= lost <= CUT_BYTES_MAX
    assert Path(path).read_bytes() == before[path][: int(left)]
    newer = [other for other in before if re.search(r"\.log$", other) and other > path]
    assert all(len(before[other]) < 200 for other in newer)


def test_what_is_not_there_cannot_be_damaged(tmp_path: Path) -> None:
    assert damage(tmp_path / "none", "log_bit", random.Random(1)) is None
    (tmp_path / "data").mkdir()
    assert damage(tmp_path / "data", "snapshot_bit", random.Random(1)) is None
