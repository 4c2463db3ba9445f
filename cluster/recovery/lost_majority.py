"""Going on after a majority of a group's disks is lost for good: only by order of a person.

No majority can say any more what was confirmed, so what the survivors have becomes the truth, and
what only the lost ones had is lost. Each survivor, while it is stopped, is told the same lost
nodes, and notes beside its log that the survivors alone are the members (`Forced`). Logs stay as
they are, so when all survivors are started again an ordinary election finds who has the most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from cluster.codec.cbor import pack
from cluster.codec.entries import decode_entry
from cluster.codec.errors import CodecError
from cluster.history.group_replay import GroupReplay, ReplayFailed
from cluster.log import KIND_GIVEN_UP, Journal, Log, LogError
from cluster.machine import UnsupportedSnapshot
from cluster.machine.catalog import CatalogMachine, GroupInfo
from cluster.raft.configuration import (
    Configuration,
    Configurations,
    Forced,
)
from cluster.raft.journal_protocol import RaftJournal
from cluster.raft.pysyncobj_core import REGULAR
from cluster.raft.quorum import votes_needed
from cluster.types import CATALOG_GROUP, GroupId, NodeId, era_of, first_term_of


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
    lost: Sequence[NodeId] = ()  # declared lost before, and not let in again


@dataclass(frozen=True, slots=True)
class NoCopy:
    """A group of which nobody who is left has anything: it stays without a leader."""

    name: str
    homes: Sequence[NodeId]
    queues: list[tuple[str, str]]  # virtual host and name


def examine(
    log: Log, founders: Sequence[NodeId], lost: Collection[NodeId]
) -> tuple[CatalogMachine, list[LostMajority]]:
    """The catalog by all that this disk has of it, and the groups that cannot go on as they are.
    LogError: the catalog cannot be read.

    A copy that this node would let go of, since others hold the group now, counts only if all of
    those are lost: then it is what is left.
    """
    catalog, node = _catalog(log.journal(CATALOG_GROUP)), NodeId(log.wal.identity.node)
    before = _lost_before(log)
    found: list[LostMajority] = []
    for group in map(GroupId, log.groups()):
        info = catalog.group(group)
        if info is None and group != CATALOG_GROUP:
            continue
        journal = log.journal(group)
        if not has_copy(log, group, info):
            continue
        first = Configuration(tuple(sorted(founders if info is None else info.founders)))
        configurations = _configurations(journal, first)
        current = configurations.current
        gone = {*current.lost}
        # Learners too: one of them may have most, and their old promises are void.
        survivors = tuple(each for each in current.members if each not in lost)
        needy = lacks_majority(configurations, lost)
        if info is not None and info.is_past(node, current.era, configurations.index, gone):
            gone |= {*info.held} & {*before}
            holders = tuple(each for each in info.held if each not in {*lost, *gone})
            survivors, needy = holders or survivors, needy or not holders
        if needy:
            name = "catalog" if info is None else info.name
            about = current.voters, survivors, journal.last_index, journal.commit_index
            found.append(LostMajority(group, name, *about, _last_ms(journal), sorted(gone)))
    return catalog, found


def has_copy(log: Log, group: GroupId, info: GroupInfo | None) -> bool:
    """False: it begins anew here, with what others have, and was told nothing yet."""
    journal = log.journals.get(group)
    if journal is not None and journal.last_index > 1:
        return True
    node = NodeId(log.wal.identity.node)
    return info is not None and not info.held_at and node in info.founders


def without_copy(log: Log, catalog: CatalogMachine, lost: Collection[NodeId]) -> list[NoCopy]:
    """The groups whose copies were all on lost nodes, as far as this disk's catalog knows: on those
    that were declared lost before, too, and have not been let in again. The one that was just about
    to be made here is none.
    """
    without = {*lost, *_lost_before(log), NodeId(log.wal.identity.node)}
    gone: dict[GroupId, NoCopy] = {}
    for info in catalog.groups():
        if info.homes <= without and not has_copy(log, info.id, info):
            gone[info.id] = NoCopy(info.name, tuple(sorted(info.homes)), [])
    for queue in catalog.queues():
        if queue.group in gone:
            gone[queue.group].queues.append((queue.vhost, queue.name))
    return list(gone.values())


def give_up(
    log: Log,
    found: Sequence[LostMajority],
    node: NodeId,
    lost: Collection[NodeId],
) -> None:
    """Write it; whoever calls syncs the log. AssertionError: this node is no survivor."""
    for each in found:
        assert node in each.survivors, f"{node} has no vote in {each.name}"
        journal = log.journal(each.group)
        go_on(journal, each.survivors, {*lost, *each.lost})
        payload = pack([sorted(lost), node])
        log.note(KIND_GIVEN_UP, each.group, each.last_index, journal.current_term, payload)


def lacks_majority(configurations: Configurations, lost: Collection[str]) -> bool:
    """Whether there will be no leader without the lost ones."""
    current = configurations.current
    there = sum(node not in lost for node in current.voters)
    # Until survivors of an earlier recovery have a leader, it needs all of them.
    needed = votes_needed(len(current.voters), forced=configurations.forced is not None)
    return there < needed


def go_on(journal: RaftJournal, survivors: Sequence[NodeId], lost: Collection[NodeId]) -> None:
    """As one of the survivors of a group."""
    era = era_of(journal.current_term) + 1
    members = Configuration(tuple(sorted(survivors)), lost=tuple(sorted(lost)), era=era)
    # The new term makes void what was promised, by this disk and by lost ones, in older ones.
    journal.force_from(first_term_of(era), Forced(members).payload)


def _lost_before(log: Log) -> Sequence[NodeId]:
    """Declared lost by earlier recoveries, and not let in again."""
    return _configurations(log.journal(CATALOG_GROUP), Configuration(())).current.lost


def _configurations(journal: Journal, first: Configuration) -> Configurations:
    snapshot = journal.load_snapshot()
    return Configurations(first, journal, None if snapshot is None else snapshot.data)


def _catalog(journal: Journal) -> CatalogMachine:
    """By all entries of this disk, committed or not. LogError: it cannot be said."""
    try:
        replay = GroupReplay.begin(CATALOG_GROUP, journal.load_snapshot())
        for command, index, term in journal.entries(journal.base_index + 1):
            replay.apply(index, term, command)
    except (UnsupportedSnapshot, ReplayFailed) as error:
        raise LogError(f"the catalog cannot be read: {error}") from error
    return cast(CatalogMachine, replay.machine)


def _last_ms(journal: Journal) -> int | None:
    for index in range(journal.last_index, journal.base_index, -1):
        command = journal.read(index)
        if command is not None and command[:1] == REGULAR:
            try:
                return decode_entry(command[1:]).now_ms
            except CodecError:
                return None
    return None
