"""What this release makes of a log that another one wrote: read only, also while its node runs.

Every group's committed entries go through this release's machine, from the oldest and from the
newest snapshot that the log goes on from, and the state is compared with each digest that the node
noted on its way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from cluster.history.committed import NOTHING, BaseState, GroupLog, Vanished
from cluster.history.group_replay import GroupReplay, ReplayFailed
from cluster.log.reader import DIGEST, READ_ONLY, read
from cluster.machine import UnsupportedSnapshot
from cluster.machine.versions import NeedsNewer
from cluster.raft.configuration import split
from cluster.seams import Disk
from cluster.types import GroupId

#: A node may drop files while they are read.
ATTEMPTS_MAX = 5
#: Rows of what became of messages, which nobody wants here, are dropped every so many entries.
ENTRIES_AT_ONCE = 1_000


@dataclass
class Rehearsed:
    """One group: what was replayed, and where this release comes to another state."""

    group: GroupId
    first: int = 0
    last: int = 0
    compared: int = 0
    differing: list[int] = field(default_factory=list[int])
    problem: str | None = None

    @property
    def sound(self) -> bool:
        return self.problem is None and not self.differing


def rehearse(folder: str, *, disk: Disk = READ_ONLY) -> Iterator[Rehearsed]:
    """Every group of a node's log folder."""
    digests: dict[int, dict[int, bytes]] = defaultdict(dict)
    groups: set[int] = set()
    for record in read(folder, disk=disk):
        if record.index:
            groups.add(record.group)
        if record.kind == DIGEST:
            digests[record.group][record.index] = record.payload
    for group in sorted(groups):
        yield _rehearsed(folder, GroupId(group), digests[group], disk)


def _rehearsed(folder: str, group: GroupId, digests: dict[int, bytes], disk: Disk) -> Rehearsed:
    for _ in range(ATTEMPTS_MAX):
        found = Rehearsed(group)
        try:
            log = GroupLog([folder], group, disk=disk)
            try:
                _replay(log, digests, found)
            finally:
                log.close()
        except Vanished:
            continue
        return found
    return Rehearsed(group, problem="the node drops files faster than they are read: try again")


def _replay(log: GroupLog, digests: dict[int, bytes], found: Rehearsed) -> None:
    """From the oldest state that the log goes on from, and from the newest, which a node of this
    release would begin with.
    """
    states = [log.load(base) for base in dict.fromkeys(log.bases[:1] + log.bases[-1:])]
    if not states or None in states:
        found.problem = f"the log cannot be read: {', '.join(log.damage) or 'it has no beginning'}"
        return
    begins = [state for state in states if state is not None]
    found.first = begins[0].base.index
    try:
        for state in begins:
            _replay_from(state, log, digests, found)
    except (ReplayFailed, UnsupportedSnapshot, NeedsNewer) as error:
        found.problem = str(error)
        return
    if found.last < log.committed and found.last > NOTHING.index:
        found.problem = f"entry {found.last + 1} of {log.committed} cannot be read"


def _replay_from(
    state: BaseState, log: GroupLog, digests: dict[int, bytes], found: Rehearsed
) -> None:
    replay = _begun(found.group, state)
    found.last = max(found.last, replay.index)
    for number, (index, term, command) in enumerate(log.entries(state)):
        replay.apply(index, term, command)
        found.last = max(found.last, index)
        if number % ENTRIES_AT_ONCE == 0:
            replay.take_rows()
        noted = digests.get(index)
        if noted is not None:
            found.compared += 1
            if replay.digest() != noted:
                found.differing.append(index)


def _begun(group: GroupId, state: BaseState) -> GroupReplay:
    replay = GroupReplay(group)
    if state.snapshot is None:
        return replay
    beyond = replay.machine.beyond(split(state.snapshot.data)[1])
    if beyond is not None:
        raise beyond
    return GroupReplay.after(group, state.snapshot)
