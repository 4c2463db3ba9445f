"""Damage to the real files of a node that is down."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from pathlib import Path

from chaos.damage import choose
from chaos.faults import Damage
from cluster.log.format import HEADS_SUFFIX
from cluster.log.reader import segments


def damage(data: Path, kind: Damage, dice: random.Random) -> str | None:
    """Damage one file of this data folder. "FILE:OFFSET", where the node should see it; None: it
    has nothing yet that could be damaged so.
    """
    if not data.is_dir():
        return None
    logs = [Path(segment.path) for segment in segments(str(data))]
    wound = choose(kind, _read(logs), _read(_newest(data / "snapshots")), dice)
    if wound is None:
        return None
    # A start verifies a segment without heads.
    Path(wound.path).with_suffix(HEADS_SUFFIX).unlink(missing_ok=True)
    if wound.bit is None:
        os.truncate(wound.path, wound.at)
    else:
        with open(wound.path, "r+b") as stream:
            stream.seek(wound.at)
            (byte,) = stream.read(1)
            stream.seek(wound.at)
            stream.write(bytes([byte ^ 1 << wound.bit]))
    return wound.place


def _read(files: Iterable[Path]) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in files}


def _newest(folder: Path) -> list[Path]:
    """The newest snapshot of each group."""
    newest: dict[str, tuple[int, Path]] = {}
    for file in sorted(folder.glob("*.snap")):
        group, _, index = file.stem.partition("-")
        newest[group] = max(newest.get(group, (0, file)), (int(index), file))
    return [newest[group][1] for group in sorted(newest)]
