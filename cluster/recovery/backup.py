"""What a backup holds of one group: its state at one entry, and the records with the bodies that
the state points at.

A file begins with the group's snapshot and the entries below it that are still needed, goes on with
the entries above it up to the cut, and ends with the digest of the state there. So whoever replays
it can tell that it is what the leader had.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from cluster.codec.cbor import pack
from cluster.groups.group import Group
from cluster.log import LogIdentity
from cluster.log.format import KIND_BACKUP, KIND_ENTRY, KIND_INSTALLED
from cluster.log.portable import Encoder
from cluster.log.snapshots import Snapshot, encode_snapshot
from cluster.raft.journal_protocol import live_entry
from cluster.seams import Clock
from cluster.types import GroupId, NodeId

#: The log keeps what is being read for so long after the last read.
KEPT_S: Final = 600.0
#: Sent at a time: small enough that others on the loop have their turn between.
CHUNK_BYTES: Final = 256 << 10
LOOK_S: Final = 0.005

STATE: Final = "state"
END: Final = "end"


class NotContained(Exception):
    """This copy cannot give the state at that entry any more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """One group at one entry, as its leader had it when nothing behind it was confirmed."""

    group: GroupId
    name: str
    node: NodeId  # that keeps it for a while
    index: int
    term: int
    digest: bytes
    messages: int


async def cut(group: Group) -> Cut | None:
    """Of a group that is held, and led from here. None: it is led from here no more."""
    index, term = group.last_index, group.term
    while True:
        if not group.ready or group.term != term or not group.held:
            return None
        if group.applied_index >= index:
            break
        await asyncio.sleep(LOOK_S)
    # What came behind it is no client's: while it is held, only Raft itself appends.
    about = group.machine.overview()
    messages = sum(about.get(kind, 0) for kind in ("ready", "unsettled", "delayed", "dead_letters"))
    last_term = group.journal.term_at(index)
    assert last_term is not None, "what was applied a moment ago is in the log"
    digest = group.machine.digest()
    return Cut(group.id, group.name, group.node, index, last_term, digest, messages)


async def stream(
    group: Group, wanted: Cut, identity: LogIdentity, clock: Clock
) -> AsyncIterator[bytes]:
    """The file. NotContained: the log was cut meanwhile, or is another one than it was."""
    await group.keep_entries(KEPT_S)
    journal = group.journal
    if journal.base_index > wanted.index or journal.term_at(wanted.index) != wanted.term:
        raise NotContained(f"{group.name}: entry {wanted.index} is no longer at hand")
    encoder = Encoder(identity, clock)
    chunks = [encoder.head]
    size = 0

    def add(kind: int, index: int, term: int, payload: bytes) -> int:
        chunks.append(encoder.record(kind, group.id, index, term, payload))
        return len(chunks[-1])

    base: Snapshot | None = journal.load_snapshot()  # pyright: ignore[reportAssignmentType]
    indexes = list[tuple[int, int]]()
    if base is not None:
        data, _ = encode_snapshot(group.id, base, clock.wall_ns())
        size += add(KIND_BACKUP, base.index, base.term, pack([STATE, data]))
        indexes += base.live
    first_above = journal.base_index + 1
    indexes.append((first_above, wanted.index))
    for first, last in indexes:
        for index in range(first, last + 1):
            entry = live_entry(journal, index)
            if entry is None:
                raise NotContained(f"{group.name}: entry {index} is gone from the log")
            command, term, chain = entry
            kind = KIND_ENTRY if index >= first_above else KIND_INSTALLED
            size += add(kind, index, term, chain + command)
            if size >= CHUNK_BYTES:
                yield b"".join(chunks)
                chunks.clear()
                size = 0
                await group.keep_entries(KEPT_S)
    end: list[Any] = [END, wanted.digest, wanted.messages]
    add(KIND_BACKUP, wanted.index, wanted.term, pack(end))
    yield b"".join(chunks)
