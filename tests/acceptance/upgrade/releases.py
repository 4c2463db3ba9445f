"""Source trees of other releases: the first one as it was frozen, and one after this.

They are made below the tests' cache, and run by the same interpreter with that folder in front.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from cluster.machine import MACHINE_VERSION

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "releases"
#: The state before versions were negotiated.
FIRST = "50a3e83"
#: The first release whose versions are negotiated, with machine version 2.
GATED = "7b9e0ab"
GATED_VERSION = 2
PACKAGES = ("cluster", "node", "quorate")
#: The machine version of the release after this one.
LATER = MACHINE_VERSION + 1

#: What makes the release after this one: a machine version, a link version, a field of a command, a
#: part of the state and of snapshots. Each is text of this release, and what stands there instead.
NEXT: tuple[tuple[str, str, str], ...] = (
    (
        "cluster/machine/versions.py",
        f"MACHINE_VERSION: Final = {MACHINE_VERSION}",
        f"MACHINE_VERSION: Final = {LATER}",
    ),
    ("cluster/raft/link_auth.py", "LINK_VERSIONS = (1, 3)", "LINK_VERSIONS = (2, 4)"),
    (
        "cluster/machine/commands.py",
        '''whatever is due at `stamp.now_ms` happens now. Harmless when nothing is."""
''',
        '''whatever is due at `stamp.now_ms` happens now. Harmless when nothing is."""

    reason: str = ""
''',
    ),
    (
        "cluster/codec/entries.py",
        "Layout(commands.Tick)",
        f'Layout(commands.Tick, fields_since={{"reason": {LATER}}})',
    ),
    (
        "cluster/groups/group.py",
        "proposals.add(Tick(), None, 0)",
        f'proposals.add(Tick("time" if self._writes >= {LATER} else ""), None, 0)',
    ),
    (
        "cluster/machine/machine.py",
        "        self.now_ms = 0  # of the log",
        "        self.reasons: list[str] = []\n        self.now_ms = 0  # of the log",
    ),
    (
        "cluster/machine/machine.py",
        "            case Tick() | Barrier():\n                return Ok()\n",
        (
            "            case Tick() | Barrier():\n"
            f"                if self.version >= {LATER}:\n"
            '                    told = getattr(command, "reason", "")\n'
            "                    self.reasons = [*self.reasons, told][-9:]\n"
            "                return Ok()\n"
        ),
    ),
    (
        "cluster/machine/machine.py",
        "            self.now_ms,\n            self._sessions.dump(),",
        (
            f"            [self.now_ms, *self.reasons] if self.version >= {LATER}"
            " else self.now_ms,\n"
            "            self._sessions.dump(),"
        ),
    ),
    (
        "cluster/machine/machine.py",
        "        self.version = version\n        self.now_ms = now_ms\n",
        (
            "        self.version = version\n"
            "        reasons = []\n"
            f"        if version >= {LATER}:\n"
            "            now_ms, *reasons = now_ms\n"
            "        self.now_ms, self.reasons = now_ms, reasons\n"
        ),
    ),
)


class Unavailable(Exception):
    """That release cannot be had here; the message says why."""


def first() -> Path:
    return frozen(FIRST)


def gated() -> Path:
    return frozen(GATED)


def frozen(commit: str, parts: Sequence[str] = PACKAGES) -> Path:
    """Out of the history of this repository. Parts that the commit does not have are left out."""
    others = "-".join(sorted(part.strip(".").replace("/", "_") for part in {*parts} - {*PACKAGES}))
    place = CACHE / (f"{commit}-{others}" if others else commit)
    if not place.exists():
        there = _git("ls-tree", "--name-only", commit, *parts).decode().split()
        archived = _git("archive", "--format=tar", commit, *there)
        fresh = _fresh(place)
        with tarfile.open(fileobj=io.BytesIO(archived)) as tar:
            tar.extractall(fresh, filter="data")
        fresh.rename(place)
    return place


def _git(command: str, option: str, commit: str, *parts: str) -> bytes:
    done = subprocess.run(
        ["git", command, option, commit, *parts], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        raise Unavailable(
            f"the history here lacks commit {commit} (a shallow clone: git fetch --unshallow):"
            f" {done.stderr.decode().strip()}"
        )
    return done.stdout


def this() -> Path:
    return ROOT


def following() -> Path:
    """This release as it is now, with the changes of `NEXT`."""
    place = CACHE / "next"
    shutil.rmtree(place, ignore_errors=True)
    fresh = _fresh(place)
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, fresh / package, ignore=ignored)
    for file, text, instead in NEXT:
        path = fresh / file
        source = path.read_text(encoding="utf-8")
        assert source.count(text) == 1, f"{file} no longer has exactly one\n{text}"
        path.write_text(source.replace(text, instead), encoding="utf-8")
    fresh.rename(place)
    return place


def _fresh(place: Path) -> Path:
    fresh = place.with_name(place.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh
