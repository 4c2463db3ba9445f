"""A group's state out of a backup, further on with what an archive holds, and as the beginning of
a new cluster.

What a backup holds is replayed through the machine, so the state is checked and not believed. The
new cluster begins with a snapshot of it, in the place of one more entry: of an own term, which no
log of the old cluster has, with the founders as its members. Every founder gets the same bytes
made in one go. So they are what members are after a snapshot was installed on all of them: none has
promised or acknowledged anything else, any majority of them has everything, and whoever is elected
first is right. A majority that is made of one and grows would be as safe, and would have no second
copy while it grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from cluster.codec.cbor import unpack
from cluster.codec.entries import decode_entry
from cluster.history.group_replay import stamped
from cluster.log import Log, LogCorrupt
from cluster.log.format import HASH_BYTES, NO_HASH, chain
from cluster.log.portable import ADVICE, BACKUP, RecordFiles, scan
from cluster.log.reader import Record
from cluster.log.snapshots import decode_snapshot
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.founding import begin_again, found_again, incarnations_known, queue_ids
from cluster.raft.configuration import Configuration, founded, split
from cluster.raft.pysyncobj_core import REGULAR
from cluster.recovery.backup import END, STATE
from cluster.types import (
    CATALOG_GROUP,
    TERMS_OF_AN_ERA,
    GroupId,
    NodeId,
    era_of,
    first_term_of,
)

#: Written to a new log before it is synced.
WRITE_BYTES: Final = 8 << 20
RESTORED: Final = b"restored"
#: The first terms of an era; the rest is for its elections.
NONCE_MAX: Final = TERMS_OF_AN_ERA // 2

#: File, offset of its record, and term of an entry.
Place = tuple[str, int, int]


@dataclass(slots=True)
class Replayed:
    """One group as far as it was replayed."""

    group: GroupId
    name: str
    machine: CatalogMachine | QueueMachine
    index: int = 1
    term: int = 0
    hash: bytes = NO_HASH
    now_ms: int = 0  # the leader's clock at the newest entry that was stamped
    places: dict[int, Place] = field(default_factory=dict[int, Place])

    @classmethod
    def new(cls, group: GroupId, name: str) -> Replayed:
        """Before its first entry."""
        return cls(group, name, CatalogMachine() if group == CATALOG_GROUP else QueueMachine())

    def apply(self, record: Record) -> None:
        """The next entry. LogCorrupt: it is another one."""
        command = record.payload[HASH_BYTES:]
        wanted = chain(self.hash, record.term, command)
        if record.index != self.index + 1 or record.payload[:HASH_BYTES] != wanted:
            reason = f"entry {record.index} does not follow on entry {self.index} of {self.name}"
            raise LogCorrupt(record.file, record.offset, reason, ADVICE)
        self.index, self.term, self.hash = record.index, record.term, wanted
        self.places[record.index] = (record.file, record.offset, record.term)
        for stamp, each in stamped(record.index, record.term, command):
            self.now_ms = max(self.now_ms, stamp.now_ms)
            self.machine.apply(stamp, each)

    def forget_settled(self) -> None:
        """Keep the places of what the state points at."""
        live = self.machine.live_indexes()
        self.places = {
            index: self.places[index]
            for first, last in live
            for index in range(first, last + 1)
            if index in self.places
        }


def stamped_ms(record: Record) -> int | None:
    """The leader's clock at an entry; None: it was not stamped."""
    command = record.payload[HASH_BYTES:]
    if command[:1] != REGULAR:
        return None
    return decode_entry(memoryview(command)[1:]).now_ms


def replay(group: GroupId, name: str, path: str) -> Replayed:
    """The state at the end of a backup's file. LogCorrupt: it is not what the leader had, or not
    whole.
    """
    found = Replayed.new(group, name)
    ended = False
    for record in scan(path):
        if record.group != group or ended:
            raise LogCorrupt(path, record.offset, "a record that does not belong there", ADVICE)
        if record.kind == "entry":
            found.apply(record)
        elif record.kind == "installed-entry":
            found.places[record.index] = (path, record.offset, record.term)
        elif record.kind == BACKUP:
            ended = _stands(found, record)
    if not ended:
        raise LogCorrupt(path, 0, "the file ends early", ADVICE)
    found.forget_settled()
    lacking = [
        first
        for first, last in found.machine.live_indexes()
        if any(index not in found.places for index in range(first, last + 1))
    ]
    if lacking:
        raise LogCorrupt(path, 0, f"entry {lacking[0]} is needed and missing", ADVICE)
    return found


def _stands(found: Replayed, record: Record) -> bool:
    """Take the state that the file begins with, or compare the one that it ends with."""
    match unpack(record.payload):
        case [str(word), bytes(data)] if word == STATE:
            _, snapshot, _ = decode_snapshot(data, record.file)
            found.machine.restore(split(snapshot.data)[1])
            found.index, found.term, found.hash = snapshot.index, snapshot.term, snapshot.hash
            if isinstance(found.machine, QueueMachine):
                found.now_ms = found.machine.now_ms
            return False
        case [str(word), bytes(digest), int()] if word == END:
            if found.index != record.index or found.machine.digest() != digest:
                reason = f"the state at entry {found.index} of {found.name} is not the leader's"
                raise LogCorrupt(record.file, record.offset, reason, ADVICE)
            return True
        case _:
            raise LogCorrupt(record.file, record.offset, "an unknown kind of record", ADVICE)


# --- a new cluster --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Beginning:
    """What each founder has of a group."""

    group: GroupId
    index: int
    term: int
    hash: bytes
    data: bytes
    live: list[tuple[int, int]]
    places: dict[int, Place]


def beginnings(
    groups: Iterable[Replayed], founders: Sequence[NodeId], nonce: int
) -> tuple[list[Beginning], dict[NodeId, int]]:
    """Also the starts of each founder that these states know of. `nonce`, below NONCE_MAX, tells
    this restore from any other.
    """
    found = {each.group: each for each in groups}
    catalog = cast(CatalogMachine, found[CATALOG_GROUP].machine)
    # A group that the catalog does not know is newer than it, and nobody would lead it.
    known = {CATALOG_GROUP, *(info.id for info in catalog.groups())}
    found = {group: each for group, each in found.items() if group in known}
    terms = {group: first_term_of(era_of(each.term) + 1) + nonce for group, each in found.items()}
    states: dict[GroupId, bytes] = {}
    for group, each in found.items():
        if isinstance(each.machine, QueueMachine):
            begin_again(each.machine, each.index + 1, terms[group])
            states[group] = each.machine.snapshot()
    at = found[CATALOG_GROUP].index + 1, terms[CATALOG_GROUP]
    states[CATALOG_GROUP] = found_again(catalog, founders, *at, queue_ids(states.values()))
    begun = {info.node: info.incarnation for info in catalog.nodes_ever()}
    # One that a group takes for an earlier process than it knows could open no session there.
    queues = incarnations_known(state for group, state in states.items() if group != CATALOG_GROUP)
    starts = {node: max(begun.get(node, 0), queues.get(node, 0)) for node in founders}
    made = [_beginning(found[group], terms[group], states[group], founders) for group in found]
    return made, starts


def _beginning(
    replayed: Replayed, term: int, state: bytes, founders: Sequence[NodeId]
) -> Beginning:
    machine = type(replayed.machine)()
    machine.restore(state)
    machine.invariants()
    first = Configuration(tuple(sorted(founders)))
    data = founded(first, state)
    live = machine.live_indexes()
    digest = chain(replayed.hash, term, RESTORED)
    return Beginning(replayed.group, replayed.index + 1, term, digest, data, live, replayed.places)


async def begin(log: Log, beginnings: Iterable[Beginning]) -> None:
    """Write them into a log that is new; on disk when this returns."""
    files = RecordFiles()
    for each in beginnings:
        journal = log.journal(each.group)
        journal.begin_install(each.index, each.term, each.hash, each.data, each.live)
        size = 0
        for first, last in each.live:
            for index in range(first, last + 1):
                path, offset, term = each.places[index]
                payload = files.record(path, offset).payload
                journal.add_live(index, term, payload[HASH_BYTES:], payload[:HASH_BYTES])
                size += len(payload)
                if size >= WRITE_BYTES:
                    size = 0
                    log.write()
                    await log.sync()
        await journal.finish_install()
        journal.set_term(each.term, None)
        log.write()
        await log.sync()
    files.close()
