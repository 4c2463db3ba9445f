"""Disks of live nodes, shown on a process that only writes: that a loss can be seen at all."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.live import tracing
from chaos.live.disks import FolderDisks, choose, why_no_loop
from chaos.live.loop_disks import DISK_BYTES, FileSystem, LoopDisks
from cluster.types import NodeId
from tests.chaos.live.writer import Writer

pytestmark = pytest.mark.live

MEBIBYTE = "x" * (1 << 20)
A, B, C = NodeId("node-1"), NodeId("node-2"), NodeId("node-3")


@pytest.fixture(params=["ext4", "xfs"])
def loops(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LoopDisks]:
    filesystem: FileSystem = request.param
    reason = why_no_loop(tmp_path, filesystem)
    if reason is not None:
        pytest.skip(reason)
    disks = LoopDisks(tmp_path / "disks", filesystem)
    yield disks
    disks.close()


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.kill()


@pytest.fixture
def traced(writer: Writer) -> Writer:
    reason = tracing.why_not()
    if reason is not None:
        pytest.skip(reason)
    return writer


def _cut_power(disks: LoopDisks, writer: Writer, *nodes: NodeId) -> None:
    disks.power_loss(nodes)
    writer.kill()
    disks.power_back(nodes)


def test_power_loss_takes_what_was_not_synced_and_leaves_what_was(loops: LoopDisks, writer: Writer):
    data = loops.add(A)
    assert writer.append(data / "log", "synced", "sync") == "ok"
    assert writer.append(data / "log", "not-synced", "no-sync") == "ok"
    assert writer.append(data / "other", "not-synced", "no-sync") == "ok"

    _cut_power(loops, writer, A)

    assert [file.name for file in data.iterdir()] == ["log"]
    assert (data / "log").read_bytes() == b"synced"


def test_without_power_every_write_fails(loops: LoopDisks, writer: Writer):
    data = loops.add(A)
    writer.append(data / "log", "synced", "sync")

    loops.power_loss([A])

    assert writer.append(data / "log", "more", "sync") == "Input/output_error"


def test_power_goes_for_all_nodes_at_once_and_for_no_other(loops: LoopDisks, writer: Writer):
    folders = [loops.add(node) for node in (A, B, C)]
    for data in folders:
        writer.append(data / "log", "synced", "sync")
        writer.append(data / "log", "not-synced", "no-sync")

    loops.power_loss([A, B])
    assert writer.append(folders[2] / "log", "lit", "no-sync") == "ok"
    writer.kill()
    loops.power_back([A, B])

    left = [(data / "log").read_bytes() for data in folders]
    assert left == [b"synced", b"synced", b"syncednot-syncedlit"]


def test_a_lying_disk_loses_what_was_synced(loops: LoopDisks, traced: Writer):
    data = loops.add(A)
    traced.append(data / "log", "true", "sync")
    loops.lie(A, traced.pid)
    assert traced.append(data / "log", "lie", "sync") == "ok"
    assert traced.append(data / "other", "lie", "sync") == "ok"

    _cut_power(loops, traced, A)

    assert [file.name for file in data.iterdir()] == ["log"]
    assert (data / "log").read_bytes() == b"true"


def test_a_healed_disk_lies_no_more(loops: LoopDisks, traced: Writer):
    data = loops.add(A)
    loops.lie(A, traced.pid)
    traced.append(data / "log", "lie,", "sync")
    loops.heal(A)
    traced.append(data / "log", "true", "sync")

    _cut_power(loops, traced, A)

    assert (data / "log").read_bytes() == b"lie,true"


def test_power_comes_back_while_another_mount_namespace_holds_a_copy(
    loops: LoopDisks, writer: Writer
):
    """As a node in a network namespace does, also of the disks that are not its own."""
    data = loops.add(A)
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo in; exec cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"in\n"

        _cut_power(loops, writer, A)

        (data / "new").write_bytes(b"works")
        other.kill()


def test_a_full_disk_refuses_writes_until_it_is_healed(loops: LoopDisks, writer: Writer):
    data = loops.add(A)
    assert writer.append(data / "log", MEBIBYTE, "sync") == "ok"

    loops.fill(A)
    # The file system may have set some room aside for this file already.
    full = [writer.append(data / "log", MEBIBYTE, "sync") for _ in range(5)]
    loops.heal(A)

    assert full[-1] == "No_space_left_on_device"
    assert writer.append(data / "log", MEBIBYTE, "sync") == "ok"


def test_a_disk_that_is_low_leaves_the_room_that_was_asked_for(loops: LoopDisks, writer: Writer):
    data = loops.add(A)

    loops.fill(A, leave_bytes=32 << 20)

    state = os.statvfs(data)
    assert 31 << 20 <= state.f_bavail * state.f_frsize <= 32 << 20
    assert writer.append(data / "log", MEBIBYTE, "sync") == "ok"


def test_a_full_disk_is_still_full_after_a_power_loss(loops: LoopDisks, writer: Writer):
    data = loops.add(A)
    loops.fill(A)

    loops.power_loss([A])
    loops.power_back([A])

    assert writer.append(data / "log", "x" * 5000, "sync") == "No_space_left_on_device"


def test_nothing_is_left_after_close(loops: LoopDisks, writer: Writer, tmp_path: Path):
    for node in (A, B):
        writer.append(loops.add(node) / "log", "synced", "sync")
    loops.fill(A)
    loops.power_loss([B])
    writer.kill()

    loops.close()

    assert list((tmp_path / "disks").iterdir()) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert not [
        device
        for device in Path("/sys/block").glob("loop*/loop/backing_file")
        if str(tmp_path) in device.read_text()
    ]


def test_what_a_killed_run_left_mounted_is_no_hindrance(loops: LoopDisks, tmp_path: Path):
    (loops.add(A) / "old").write_bytes(b"old")

    again = LoopDisks(tmp_path / "disks", loops.filesystem)
    data = again.add(A)

    assert list(data.iterdir()) == []
    again.close()


def test_a_failing_sync_is_told_to_the_process(tmp_path: Path, traced: Writer):
    disks = FolderDisks(tmp_path)
    data = disks.add(A)
    disks.fail(A, traced.pid)

    said = [traced.append(data / "log", "x", "sync") for _ in range(3)]

    # One of the file and one of its folder, which are different calls.
    assert said == ["Input/output_error", "Input/output_error", "ok"]
    disks.close()


def test_a_slow_disk_takes_its_time_for_each_sync_until_healed(tmp_path: Path, traced: Writer):
    disks = FolderDisks(tmp_path)
    data = disks.add(A)
    disks.slow(A, traced.pid, 200)

    began = time.monotonic()
    assert traced.append(data / "log", "x", "sync") == "ok"
    slow = time.monotonic() - began
    disks.heal(A)

    def healed() -> float:
        began = time.monotonic()
        assert traced.append(data / "log", "x", "sync") == "ok"
        return time.monotonic() - began

    assert slow >= 0.4  # of the file, and of the folder
    assert any(healed() < 0.4 for _ in range(20))  # the machine may hold one up


def test_a_disk_can_be_slow_and_lie(loops: LoopDisks, traced: Writer):
    data = loops.add(A)
    loops.slow(A, traced.pid, 50)
    loops.lie(A, traced.pid)

    began = time.monotonic()
    assert traced.append(data / "log", "lie", "sync") == "ok"
    assert time.monotonic() - began >= 0.1
    _cut_power(loops, traced, A)

    assert list(data.iterdir()) == []


def test_a_process_that_has_ended_is_not_traced(tmp_path: Path, traced: Writer):
    disks = FolderDisks(tmp_path)
    traced.kill()

    disks.slow(A, traced.pid, 50)

    disks.close()


def test_folders_say_what_they_cannot_do(tmp_path: Path):
    disks = choose(tmp_path, "folders")

    assert {"power_loss", "fill_disk"} <= set(disks.missing)


def test_loop_disks_miss_nothing_where_syncs_can_be_traced(loops: LoopDisks, traced: Writer):
    assert dict(loops.missing) == {}
    assert loops.add(A).stat().st_dev != loops.add(B).stat().st_dev
    assert DISK_BYTES >= 300 << 20  # or there is no xfs


def test_a_disk_that_cannot_be_made_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")

    disks = choose(tmp_path, "xfs")

    assert isinstance(disks, FolderDisks)
    assert disks.missing["power_loss"]
