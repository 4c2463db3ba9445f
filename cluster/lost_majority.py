"""Going on after a majority of a group's disks is lost for good: only by order of a person.

No majority can say any more what was confirmed, so what the survivors have becomes the truth, and
what only the lost ones had is lost. Each survivor, while it is stopped, is told the same lost
nodes; it writes into its log that the survivors alone are the members. Started again, they elect
whoever of them has the most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cluster.codec.cbor import pack
from cluster.codec.entries import decode_entry
from cluster.codec.errors import CodecError
from cluster.log import KIND_GIVEN_UP, Journal, Log
from cluster.machine.catalog import CatalogMachine
from cluster.raft.configuration import Configuration, Configurations, encode, split
from cluster.raft.stock import REGULAR
from cluster.types import CATALOG_GROUP, GroupId, NodeId, Stamp

#: Survivors write under terms that no two of them share, whatever each of them knows: more than a
#: cluster ever has nodes.
TERMS_APART = 1 << 20


@dataclass(frozen=True, slots=True)
class LostMajority:
    """One group's copy on this node, when the lost ones were a majority of its voters."""

    group: GroupId
    name: str
    voters: Sequence[NodeId]
    survivors: tuple[NodeId, ...]
    last_index: int
    commit_index: int  # as far as this copy heard
    last_ms: int | None  # leader's clock at the newest entry that this copy has


def examine(
    log: Log, founders: Sequence[NodeId], lost: Collection[NodeId]
) -> tuple[CatalogMachine, list[LostMajority]]:
    """The catalog by all that this disk has of it, and the groups that cannot go on as they are."""
    catalog = _catalog(log.journal(CATALOG_GROUP))
    found: list[LostMajority] = []
    for group in map(GroupId, log.groups()):
        info = catalog.group(group)
        if info is None and group != CATALOG_GROUP:
            continue
        journal = log.journal(group)
        first = Configuration(tuple(sorted(founders if info is None else info.founders)))
        voters = _configurations(journal, first).current.voters
        survivors = tuple(node for node in voters if node not in lost)
        if len(survivors) <= len(voters) // 2:
            name = "catalog" if info is None else info.name
            about = voters, survivors, journal.last_index, journal.commit_index
            found.append(LostMajority(group, name, *about, _last_ms(journal)))
    return catalog, found


def give_up(
    log: Log,
    found: Sequence[LostMajority],
    catalog: CatalogMachine,
    node: NodeId,
    lost: Collection[NodeId],
) -> None:
    """Write it; whoever calls syncs the log. AssertionError: this node is no survivor."""
    info = catalog.node(node)
    number = 0 if info is None else info.number  # given once, and for ever
    for each in found:
        assert node in each.survivors, f"{node} has no vote in {each.name}"
        journal = log.journal(each.group)
        term = (journal.current_term // TERMS_APART + 1) * TERMS_APART + number
        log.note(KIND_GIVEN_UP, each.group, each.last_index, term, pack([sorted(lost), node]))
        journal.set_term(term, node)
        journal.withhold(False)  # whom it might wait for is lost
        journal.add(encode(Configuration(each.survivors)), journal.last_index + 1, term)


def _configurations(journal: Journal, first: Configuration) -> Configurations:
    snapshot = journal.load_snapshot()
    return Configurations(first, journal, None if snapshot is None else snapshot.data)


def _catalog(journal: Journal) -> CatalogMachine:
    machine = CatalogMachine()
    snapshot = journal.load_snapshot()
    if snapshot is not None:
        machine.restore(split(snapshot.data)[1])
    for command, index, term in journal.entries(journal.base_index + 1):
        if command[:1] == REGULAR:
            entry = decode_entry(command[1:])
            for ordinal, each in enumerate(entry.commands):
                machine.apply(Stamp(index, term, entry.now_ms, ordinal), each)
    return machine


def _last_ms(journal: Journal) -> int | None:
    for index in range(journal.last_index, journal.base_index, -1):
        command = journal.read(index)
        if command is not None and command[:1] == REGULAR:
            try:
                return decode_entry(command[1:]).now_ms
            except CodecError:
                return None
    return None
