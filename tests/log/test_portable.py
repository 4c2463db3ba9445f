"""The file of a backup: whatever is wrong in it is found, with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.log import LogCorrupt, LogIdentity, SystemClock
from cluster.log.format import KIND_ENTRY
from cluster.log.portable import READ_BYTES, Encoder, RecordFiles, scan

SIZES = (0, 10, 70_000, READ_BYTES + 5, 3)


def written(folder: Path) -> Path:
    encoder = Encoder(LogIdentity("n1", "test"), SystemClock())
    path = folder / "group-3.log"
    parts = [encoder.head]
    for index, size in enumerate(SIZES, start=2):
        parts.append(encoder.record(KIND_ENTRY, 3, index, 1, bytes([index]) * size))
    path.write_bytes(b"".join(parts))
    return path


def test_records_come_as_they_were_written(tmp_path: Path):
    path = str(written(tmp_path))

    found = list(scan(path))

    assert [(each.index, len(each.payload)) for each in found] == list(enumerate(SIZES, start=2))
    files = RecordFiles()
    assert [files.record(path, each.offset) for each in reversed(found)] == found[::-1]
    files.close()


def test_every_flipped_byte_is_found_at_its_record(tmp_path: Path):
    path = written(tmp_path)
    data = path.read_bytes()
    starts = [0, *(each.offset for each in scan(str(path)))]
    for at in {*range(300), len(data) - 1, len(data) // 2}:
        path.write_bytes(data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :])

        with pytest.raises(LogCorrupt) as raised:
            list(scan(str(path)))

        record = max(start for start in starts if start <= at)
        in_head = record == 0
        assert raised.value.offset == record or in_head, at
        assert "backup" in raised.value.advice or in_head


@pytest.mark.parametrize("missing", [1, 40, 2_000, READ_BYTES])
def test_a_file_that_is_cut_short_is_no_backup(tmp_path: Path, missing: int):
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:-missing])

    with pytest.raises(LogCorrupt, match="cut short"):
        list(scan(str(path)))
