"""What happens to the disk of a machine whose process is down: it is replaced, copied, put back, or
bytes on it change.
"""

from __future__ import annotations

import random
from copy import deepcopy

from chaos.damage import choose
from chaos.faults import Damage
from chaos.simulator.disk import Directory, Inode, Platter

Directories = dict[str, Directory]


def wipe(platter: Platter) -> None:
    platter.directories = {"": Directory()}


def copy(platter: Platter) -> Directories:
    """As `cp -a` after the process ended: what the page cache holds."""
    _write_back(platter)
    return deepcopy(platter.directories)


def restore(platter: Platter, kept: Directories) -> None:
    platter.directories = deepcopy(kept)


def damage(platter: Platter, folder: str, kind: Damage, dice: random.Random) -> str | None:
    """Where; None: there was nothing to damage."""
    _write_back(platter)
    files = _files(platter, folder, ".log") | _files(platter, f"{folder}/snapshots", ".snap")
    logs, snapshots = (
        {path: bytes(inode.cached) for path, inode in files.items() if path.endswith(suffix)}
        for suffix in (".log", ".snap")
    )
    wound = choose(kind, logs, snapshots, dice)
    if wound is None:
        return None
    inode = files[wound.path]
    if wound.bit is None:
        inode.truncate(wound.at)
        inode.make_durable(inode.changes)
    else:
        inode.cached[wound.at] ^= 1 << wound.bit
        inode.durable[:] = inode.cached
    return wound.place


def _write_back(platter: Platter) -> None:
    """The kernel outlived the process: all of it reaches the disk sooner or later."""
    for directory in platter.directories.values():
        directory.make_durable(directory.changes)
        for inode in directory.names.values():
            if inode is not None:
                inode.make_durable(inode.changes)


def _files(platter: Platter, folder: str, suffix: str) -> dict[str, Inode]:
    directory = platter.directories.get(folder, Directory())
    return {
        f"{folder}/{name}": inode
        for name, inode in sorted(directory.names.items())
        if inode is not None and name.endswith(suffix)
    }
