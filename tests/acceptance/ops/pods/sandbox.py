"""A machine of our own inside this one: its processes, mounts and network are in namespaces that
end with its first process, and take along all that pods leave, however a run ends. Only control
groups are the machine's: they carry the id of the run, which removes them, or the next run does.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.acceptance.ops.pods.tools import run_now

TOOLS = ("unshare", "setpriv", "ip", "nft", "mount", "podman", "buildah", "runc", "debootstrap")
PACKAGES = "podman buildah runc debootstrap iproute2 nftables util-linux"
CGROUPS = Path("/sys/fs/cgroup")
#: Should this process be killed, all inside ends.
INTO = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--"),
)
_OURS = re.compile(r"quorate-pods-(\d+)")
#: How long the kernel may take to end what was in the namespaces.
END_S_MAX = 20.0


def why_not() -> str | None:
    """What this machine lacks, and how to get it; None: nothing."""
    if os.geteuid():
        return "it needs root: namespaces, loop devices and containers are made; run it with sudo"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}; on Debian: apt-get install {PACKAGES}"
    return None


def enter(arguments: Sequence[str]) -> int:
    """`tests.acceptance.ops.pods` again with these arguments, inside; its exit status."""
    sweep()
    name = f"quorate-pods-{os.getpid()}"
    process = subprocess.Popen(
        (*INTO, sys.executable, "-m", "tests.acceptance.ops.pods", "--inside", name, *arguments)
    )
    before = signal.signal(
        signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT)
    )
    try:
        return process.wait()
    except KeyboardInterrupt:
        # A terminal has told the inside as well: it may say how far it was.
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(3.0)
        return 2
    finally:
        process.kill()
        process.wait()
        signal.signal(signal.SIGTERM, before)
        _remove_cgroups(name, END_S_MAX)


def furnish() -> None:
    """Inside, once: what a machine has when it has booted."""
    run_now("mount", "-t", "tmpfs", "tmpfs", "/run")
    Path("/run/netns").mkdir()
    run_now("ip", "link", "set", "lo", "up")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="ascii")


def sweep() -> None:
    """Take away what runs that were killed have left."""
    for name in {path.name for path in CGROUPS.glob("*/quorate-pods-*")}:
        ours = _OURS.fullmatch(name)
        if ours is not None and not os.path.exists(f"/proc/{ours.group(1)}"):
            _remove_cgroups(name, 0.0)


def _remove_cgroups(name: str, timeout_s: float) -> None:
    until_s = time.monotonic() + timeout_s
    while True:
        for root in [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")]:
            for folder, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):  # busy until its processes are gone
                    os.rmdir(folder)
        if not [*CGROUPS.glob(name), *CGROUPS.glob(f"*/{name}")] or time.monotonic() > until_s:
            return
        time.sleep(0.1)
