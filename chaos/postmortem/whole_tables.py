"""Which tables an earlier run has made of the same logs: they are taken as they are.

When a table is whole, a file in the folder `whole` says of what it was made: of these segments and
snapshots as they were, by this source, and what of the options is in it. One without was not
finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from chaos.postmortem.reading.batches import as_read
from chaos.postmortem.reading.folders import folder_at
from chaos.postmortem.reading.inputs import Inputs
from cluster import types

WHOLE: Final = "whole"


def made_of(inputs: Inputs, *options: object) -> str:
    """The same for the same content, as far as names, sizes and times of files tell."""
    told = [
        sorted(map(as_read, inputs.segments)),
        sorted(_told(each) for each in inputs.snapshots),
        sorted(_told(each) for each in inputs.unread),
        source(),
        options,
    ]
    return blake2b(json.dumps(told, default=str).encode(), digest_size=16).hexdigest()


def as_given(file: Path | None) -> list[str | int] | None:
    """A file, as far as its name, size and time tell."""
    if file is None:
        return None
    about = file.stat()
    return [str(file.absolute()), about.st_size, about.st_mtime_ns]


def _told(each: Any) -> str:
    return json.dumps(asdict(each), sort_keys=True)


@cache
def source() -> str:
    """Of what makes tables, and of the machine that replays."""
    digest = blake2b(digest_size=16)
    for module in (__file__, types.__file__):
        for file in sorted(Path(module).parent.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()


class WholeTables:
    """Those in this folder. made_of: by table, of what it would be made now."""

    def __init__(self, spark: Any, folder: str, made_of: Mapping[str, str]) -> None:
        self._told = folder_at(spark, f"{folder}/{WHOLE}")
        self._made_of = made_of
        self._whole = set[str]()
        for file in self._told.names():
            name = file.removesuffix(".json")
            if self._told.read(file).decode() == made_of.get(name):
                self._whole.add(name)
            else:
                self._told.remove(file)

    def __contains__(self, name: str) -> bool:
        return name in self._whole

    def __len__(self) -> int:
        return len(self._whole)

    def has(self, names: Iterable[str]) -> bool:
        return self._whole.issuperset(names)

    def finish(self, name: str) -> None:
        """It is written."""
        if name in self._made_of:
            self._told.write(f"{name}.json", self._made_of[name].encode())
