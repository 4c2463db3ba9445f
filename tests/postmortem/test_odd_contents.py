"""Sound records whose contents no release wrote: they say nothing, and all others are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import cbor2
import pytest

from chaos.postmortem.reading.inputs import discover
from cluster.log import format as fmt
from tests.postmortem.segments import MadeSegment

#: As payloads of notes.
ODD: Final[tuple[Any, ...]] = (
    None, 7, "x", {"a": 1}, [], [7], ["x"] * 5, [None] * 5, [[1]] * 5, ["n2", 1], [1.5] * 5,
    [1 << 70] * 5, ["n2", 1 << 62, -(1 << 62), 1 << 62, -(1 << 62)], ["n2", "1", "2", "3", "x"],
)  # fmt: skip
COMMANDS: Final = (b"", b"\x00", b"\x01", b"\x02", b"\x03", b"\x7f", b"\x80", b"\xff\xff")


def _odd(segment: MadeSegment, group: int) -> None:
    for kind in fmt.KIND_NAMES.keys() - fmt.BODY_KINDS:
        for payload in [b"", b"\xff", *(cbor2.dumps(each) for each in ODD)]:
            segment.record(kind, group, 3, 1, payload)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_they_do_not_keep_the_others_from_being_judged(tmp_path: Path, spark: Any):
    from chaos.postmortem.pipeline import LOGS
    from chaos.postmortem.reading.ingest import damage, ingest
    from chaos.postmortem.replication.chains import broken_chains
    from chaos.postmortem.replication.lacks import missing_segments
    from chaos.postmortem.tables import Tables

    for number, node in enumerate(("n1", "n2")):
        path = tmp_path / node / "log" / fmt.segment_name(2)
        segment = MadeSegment(path, 2, node=node, boot=bytes([number]) * 16)
        segment.synced(1, 4096)
        for group in (0, 1):
            _odd(segment, group)
        for index, command in enumerate(COMMANDS, 2):
            segment.entry(2, index, 1, command)
    inputs = discover([str(tmp_path)])
    tables = Tables(spark, tmp_path / "tables")
    ingest(tables, inputs)

    for name, table in LOGS.items():
        tables.write(name, table(tables))
    for found in (damage(tables), broken_chains(tables), missing_segments(tables)):
        found.collect()

    of_n1 = tables["entries"].where("node = 'n1'").orderBy("index").collect()
    named = [None, "command", "noop", "membership", None, None, None, None]
    assert [row.type for row in of_n1] == named
