"""The chart's pods as real containers; what a run leaves when it ends, and when it is ended."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.acceptance.ops.pods import sandbox
from tests.acceptance.ops.pods.__main__ import ROOT
from tests.acceptance.upgrade import releases

pytestmark = [pytest.mark.ops, pytest.mark.timeout(1500), pytest.mark.xdist_group("pods")]

# Building the image the first time takes longest.
RUN_S_MAX = 1400


@pytest.fixture(autouse=True)
def possible() -> None:
    if (why := sandbox.why_not()) is not None:
        pytest.skip(f"pods are not tried: {why}")


def command(out: Path, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.acceptance.ops.pods",
        "--out",
        str(out / "pods"),
        *arguments,
    ]


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(out, *arguments),
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
        cwd=ROOT,
    )


def left() -> dict[str, list[str]]:
    """All that a run might leave on this machine, apart from what others have there."""
    links = json.loads(subprocess.check_output(["ip", "-json", "link"], text=True))
    groups = {path.name for path in sandbox.CGROUPS.glob("*/quorate-pods-*")}
    loops = subprocess.check_output(["losetup", "--list", "--noheadings"], text=True)
    return {
        "namespaces": subprocess.check_output(["ip", "netns", "list"], text=True).splitlines(),
        "links": [link["ifname"] for link in links if link["ifname"] in ("pods", "clients")],
        "control groups": sorted(groups),
        "disks": [line for line in loops.splitlines() if "/claims/" in line],
        "mounts": [
            line
            for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
            if "/claims/" in line or "/run/podman/root" in line
        ],
    }


def more(than: dict[str, list[str]]) -> dict[str, list[str]]:
    """What is there that was not then; a run also takes away what runs that were killed left."""
    found = {what: sorted(set(names) - set(than[what])) for what, names in left().items()}
    return {what: names for what, names in found.items() if names}


def test_a_pod_that_is_killed_comes_back_under_load_and_nothing_is_left(tmp_path: Path):
    before = left()

    done = run(tmp_path, "--only", "killed-pods")

    assert done.returncode == 0, done.stdout + done.stderr
    assert more(before) == {}


def test_pods_are_upgraded_from_the_release_before_under_load(tmp_path: Path):
    try:
        releases.gated()
    except releases.Unavailable as error:
        pytest.skip(str(error))
    done = run(tmp_path, "--only", "upgrade", "--earlier", releases.GATED)

    assert done.returncode == 0, done.stdout + done.stderr


def test_pods_that_cannot_start_fail_the_run(tmp_path: Path):
    done = run(tmp_path, "--only", "start", "--set", "extraConfig.stop_ms_max=-1")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "ends whenever it is started" in done.stdout


def test_nothing_is_left_of_a_run_that_is_ended_in_the_middle(tmp_path: Path):
    before = left()
    process = subprocess.Popen(
        command(tmp_path, "--only", "killed-pods"), stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    for line in process.stdout:
        if ": started," in line:
            break

    process.send_signal(signal.SIGINT)

    process.stdout.read()
    assert process.wait(RUN_S_MAX) == 2
    deadline = time.monotonic() + RUN_S_MAX
    while more(before) and time.monotonic() < deadline:
        time.sleep(0.2)  # the kernel takes namespaces away on its own time
    assert more(before) == {}
