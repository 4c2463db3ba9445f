"""A backup as a folder: a file a group, and a manifest that says what they hold and their sums.

The manifest is written last, so a folder without one is no backup.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from cluster.recovery.restoring import Replayed, replay
from cluster.types import GroupId

MANIFEST = "backup.json"
FORMAT = 1
READ_BYTES = 1 << 20

Json = dict[str, Any]
OnProgress = Callable[[int], None]


class BadBackup(Exception):
    """It is no backup, or not the one that was written: what, and where."""


def file_of(group: int) -> str:
    return f"group-{group}.log"


def write_manifest(folder: Path, manifest: Json) -> None:
    whole = json.dumps({**manifest, "sha256": _sum(manifest)}, indent=2, ensure_ascii=False)
    new = folder / f".{MANIFEST}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(whole + "\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(folder / MANIFEST)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sum(manifest: Json) -> str:
    about = {name: value for name, value in manifest.items() if name != "sha256"}
    text = json.dumps(about, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_manifest(folder: Path) -> Json:
    """Raises BadBackup."""
    path = folder / MANIFEST
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadBackup(
            f"{path} is missing: this is no backup, or one that did not come to its end"
        ) from None
    except (OSError, ValueError) as error:
        raise BadBackup(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or cast("Json", found).get("format") != FORMAT:
        raise BadBackup(f"{path}: this release reads backups of format {FORMAT} only")
    manifest = cast("Json", found)
    if manifest.get("sha256") != _sum(manifest):
        raise BadBackup(f"{path} is not what was written: its sum is wrong")
    return manifest


def replay_all(folder: Path, on_progress: OnProgress) -> tuple[Json, list[Replayed]]:
    """Everything in it, checked: every file, record and state. BadBackup or LogError says what is
    wrong, where. `on_progress` is told bytes.
    """
    manifest = read_manifest(folder)
    for about in manifest["groups"]:
        path = folder / about["file"]
        if not path.is_file():
            raise BadBackup(f"{path} is missing")
        if path.stat().st_size != about["bytes"]:
            raise BadBackup(
                f"{path} has {path.stat().st_size:,} bytes, not the {about['bytes']:,} written"
            )
    groups = list[Replayed]()
    for about in manifest["groups"]:
        path = folder / about["file"]
        # Records first: they say where the damage is.
        found = replay(GroupId(about["group"]), about["name"], str(path))
        if (found.index, found.term) != (about["index"], about["term"]):
            raise BadBackup(f"{path} does not end at entry {about['index']}")
        if found.machine.digest().hex() != about["digest"] or _hash(path) != about["sha256"]:
            raise BadBackup(f"{path} is not what was written: its sum is wrong")
        groups.append(found)
        on_progress(about["bytes"])
    return manifest, groups


def _hash(path: Path) -> str:
    state = hashlib.sha256()
    with open(path, "rb") as file:
        while data := file.read(READ_BYTES):
            state.update(data)
    return state.hexdigest()
