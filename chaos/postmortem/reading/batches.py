"""What of `records` is there from an earlier run: a segment that did not change is read once.

Records lie in batches of segments. When one is whole, a file in the folder `batches` says which
segments it holds, as they were when they were read; one without was not finished. Where a segment
of a batch has changed or is gone, the batch is dropped, and what is left of it is read again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Final

from chaos.postmortem.reading.folders import folder_at
from chaos.postmortem.reading.inputs import Segment

BATCHES: Final = "batches"
#: A run that is killed has to read so many again at most. So much is read again, too, for one that
#: has grown or was cleaned.
SEGMENTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """Batches that stay, and those that are to be read, by number."""

    kept: AbstractSet[int]
    new: Mapping[int, list[Segment]]


def plan(known: Mapping[int, AbstractSet[str]], segments: Iterable[Segment]) -> Plan:
    """`known`: what each batch that is there holds, as `as_read` says it."""
    given = {as_read(segment): segment for segment in segments}
    kept = {batch for batch, held in known.items() if held <= given.keys()}
    there = {one for batch in kept for one in known[batch]}
    # Those that may grow are together at the end, so that few others are read again with them.
    new = sorted((given[each] for each in given.keys() - there), key=lambda each: each.file)
    new.sort(key=lambda each: each.last)
    first = max(kept, default=-1) + 1
    parts = range(0, len(new), SEGMENTS_MAX)
    return Plan(kept, {first + nth: new[at : at + SEGMENTS_MAX] for nth, at in enumerate(parts)})


def as_read(segment: Segment) -> str:
    """All that its records depend on. Another release may read it otherwise."""
    told = asdict(segment) | {"release": version("quorate")}
    return json.dumps({name: told[name] for name in sorted(told) if name != "copies"})


class Batches:
    """Those of the tables in this folder."""

    def __init__(self, spark: Any, folder: str) -> None:
        self._told = folder_at(spark, f"{folder}/{BATCHES}")
        self._records = folder_at(spark, f"{folder}/records")

    def known(self) -> dict[int, set[str]]:
        found = dict[int, set[str]]()
        for name in self._told.names():
            with suppress(ValueError):  # else it is read again
                found[int(name.removesuffix(".json"))] = set(json.loads(self._told.read(name)))
        return found

    def drop_all_but(self, kept: AbstractSet[int]) -> None:
        told = {f"{batch}.json" for batch in kept}
        for name in self._told.names():
            if name not in told:
                self._told.remove(name)
        folders = {f"batch={batch}" for batch in kept}
        for name in self._records.names():
            if name not in folders:
                self._records.remove(name)

    def finish(self, batch: int, segments: Iterable[Segment]) -> None:
        """Its records are written."""
        held = [as_read(segment) for segment in segments]
        self._told.write(f"{batch}.json", json.dumps(held, indent=0).encode())
