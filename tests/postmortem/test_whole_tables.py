"""What an earlier run has made of the same logs is taken as it is; of others nothing is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from chaos.postmortem.reading.inputs import Inputs, Segment, SnapshotFile, Unread
from chaos.postmortem.whole_tables import WHOLE, WholeTables, as_given, made_of
from tests.postmortem.builder import Built
from tests.postmortem.shop import LEDGER, ORDERS, Shop

SEGMENT = Segment("/n1/1.log", "c", "n1", 1, 1, "b", 100, "log", True, changed_ns=5)
SNAPSHOT = SnapshotFile("/n1/snapshots/1-20.snap", "c", "n1", 1, 20, 10, "log", False, changed_ns=5)
UNREAD = Unread("/n1/1.log.gz", "c", "n1", 7, False, "only plain files are read: unpack it")
INPUTS = Inputs([SEGMENT], [SNAPSHOT], [UNREAD])
ROOT = Path(__file__).parents[2]
#: They are made of findings, or written with the records.
ALWAYS = {"segments", "unread", "findings", "records"}


@pytest.mark.parametrize(
    "other",
    [
        Inputs([], [SNAPSHOT], [UNREAD]),
        Inputs([replace(SEGMENT, bytes=101)], [SNAPSHOT], [UNREAD]),
        Inputs([replace(SEGMENT, changed_ns=6)], [SNAPSHOT], [UNREAD]),
        Inputs([SEGMENT], [], [UNREAD]),
        Inputs([SEGMENT], [replace(SNAPSHOT, changed_ns=6)], [UNREAD]),
        Inputs([SEGMENT], [SNAPSHOT], []),
    ],
)
def test_whatever_is_given_counts(other: Inputs):
    assert made_of(INPUTS) == made_of(INPUTS)
    assert made_of(other) != made_of(INPUTS)
    assert made_of(INPUTS, "orders") != made_of(INPUTS)


def test_the_source_counts(monkeypatch: pytest.MonkeyPatch):
    before = made_of(INPUTS)
    monkeypatch.setattr("chaos.postmortem.whole_tables.source", lambda: "another")

    assert made_of(INPUTS) != before


def test_a_file_of_clients_counts_as_it_was(tmp_path: Path):
    file = tmp_path / "history.jsonl"
    file.write_text("{}")
    before = as_given(file)
    os.utime(file, ns=(1, 1))

    assert before != as_given(file)
    assert as_given(None) is None


def test_what_is_not_finished_or_of_other_logs_is_none(tmp_path: Path):
    def whole(**made: str) -> WholeTables:
        return WholeTables(None, str(tmp_path), made)

    first = whole(entries="a", merged="a", messages="b")
    assert not first.has(["entries"])
    for name in ("entries", "messages", "findings"):  # the last one is never kept
        first.finish(name)

    again = whole(entries="a", merged="a", messages="other")
    assert [name in again for name in ("entries", "merged", "messages")] == [True, False, False]
    assert len(again) == 1
    assert sorted(os.listdir(tmp_path / WHOLE)) == ["entries.json"]
    assert len(whole()) == 0
    assert os.listdir(tmp_path / WHOLE) == []


# --- a whole post-mortem --------------------------------------------------------------------------


def _post_mortem(logs: Path, out: Path, *options: str) -> dict[str, Any]:
    """The summary."""
    command = [sys.executable, "-m", "quorate", "postmortem", str(logs), "--engine", "sail"]
    command += ["--out", str(out), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def _written(out: Path) -> dict[str, int]:
    """When each table was, of those that have rows."""
    found = dict[str, int]()
    for file in (out / "tables").rglob("*.parquet"):
        name = file.relative_to(out / "tables").parts[0]
        found[name] = max(found.get(name, 0), file.stat().st_mtime_ns)
    return found


def _changed(before: dict[str, int], after: dict[str, int]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]} - ALWAYS


@pytest.mark.spark
@pytest.mark.skipif(find_spec("pysail") is None, reason="Sail is not installed")
def test_a_second_run_makes_what_is_not_there(tmp_path: Path):
    logs, out = tmp_path / "logs", tmp_path / "out"
    with Built(logs, groups=(0, ORDERS, LEDGER)) as cluster:
        shop = Shop(cluster)
        shop.trade(5)
        cluster.snapshot(ORDERS)
        shop.trade(5)
    first = _post_mortem(logs, out)
    times = _written(out)
    assert {"entries", "merged", "events", "messages"} <= times.keys()

    # One that was killed: of two tables nobody knows whether they are whole.
    for name in ("merged", "messages"):
        (out / "tables" / WHOLE / f"{name}.json").unlink()
    shutil.rmtree(out / "tables" / "merged")
    second = _post_mortem(logs, out)
    went_on = _written(out)
    assert _changed(times, went_on) == {"merged", "messages"}
    same = ("tables", "checks", "impact", "numbers", "nodes")
    assert [second[name] for name in same] == [first[name] for name in same]

    # Of one queue only what is said of queues is made anew.
    of_queue = _post_mortem(logs, out, "--queue", "ledger")
    assert _changed(went_on, _written(out)) <= {
        *("messages", "latency", "throughput", "unacked", "redelivery", "sac"),
    }
    assert of_queue["tables"]["messages"] < first["tables"]["messages"]
    assert of_queue["tables"]["events"] == first["tables"]["events"]

    # Other logs: nothing is taken.
    os.utime(next(logs.rglob("*.snap")))
    before = _written(out)
    third = _post_mortem(logs, out)
    assert _changed(before, _written(out)) == before.keys() - ALWAYS
    assert [third[name] for name in same] == [first[name] for name in same]
