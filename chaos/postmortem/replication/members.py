"""Who takes part, as far as any log says so: the table `members`, and what rules count with."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.life.ballots import Config, Members
from chaos.postmortem.life.nodes import said
from chaos.postmortem.replay.bases import Base
from chaos.postmortem.replication.copies import names
from chaos.postmortem.replication.logorder import local_frame
from chaos.postmortem.schemas import TABLES
from chaos.postmortem.tables import Tables
from cluster.raft.configuration import decode
from cluster.types import CATALOG_GROUP

#: By group: who votes and who learns since which entry, and whether that is committed.
Told = dict[int, list[tuple[int, frozenset[str], frozenset[str], bool]]]


def told_members(tables: Tables, bases: Iterable[Base]) -> Told:
    """Entries that say so, and snapshots."""
    found: Told = {}
    for base in bases:
        if base.members is not None:
            since, voters, learners = base.members
            told = since, frozenset(voters), frozenset(learners), True
            found.setdefault(base.group, []).append(told)
    entries = tables["entries"].where("type = 'membership'")
    outcomes = entries.select("group", "index", "outcome", "file", "offset")
    records = tables["records"].where("command is not null").select("file", "offset", "command")
    rows = (
        records.join(F.broadcast(outcomes), ["file", "offset"])
        .groupBy("group", "index", "command")
        .agg(F.max(F.col("outcome") == "committed").alias("committed"))
        .collect()
        if outcomes.take(1)
        else []
    )
    for row in rows:
        configuration = decode(bytes(row.command))
        if configuration is not None:
            voters, learners = frozenset(configuration.voters), frozenset(configuration.learners)
            told = row["index"], voters, learners, row.committed
            found.setdefault(row.group, []).append(told)
    return {
        group: sorted(set(own), key=lambda each: (each[0], each[3])) for group, own in found.items()
    }


def members_of(told: Told, tables: Tables) -> dict[int, Members]:
    """By group, as far as known."""
    lost = F.from_json(F.get_json_object("detail", "$[0]"), "array<string>")
    notes = tables["notes"].where("kind = 'given-up'").select("group", "term", lost.alias("lost"))
    given_up: dict[int, list[tuple[int, frozenset[str]]]] = {}
    for row in notes.distinct().collect():
        given_up.setdefault(row.group, []).append((row.term, frozenset(row.lost or ())))
    return {
        group: Members(
            [Config(index, voters, sure) for index, voters, _, sure in told.get(group, ())],
            given_up.get(group, ()),
        )
        for group in {*told, *given_up}
    }


def newest(told: Told) -> dict[int, tuple[frozenset[str], frozenset[str]]]:
    """By group its voters and learners, as the newest committed word has it."""
    found: dict[int, tuple[frozenset[str], frozenset[str]]] = {}
    for group, own in told.items():
        sure = [each for each in own if each[3]]
        if sure:
            _, voters, learners, _ = max(sure, key=lambda each: each[0])
            found[group] = voters, learners
    return found


def members(tables: Tables, told: Told) -> DataFrame:
    """The table `members`."""
    named = _named(tables)
    given, last = set(names(tables)), newest(told)
    groups: dict[str, list[int]] = {}
    for group, (voters, learners) in sorted(last.items()):
        for node in voters | learners:
            groups.setdefault(node, []).append(group)
    of_catalog = frozenset[str]().union(*last.get(CATALOG_GROUP, ()))
    rows: list[tuple[Any, ...]] = []
    for node in sorted({*named, *given, *groups}):
        member = node in of_catalog if of_catalog else True
        rows.append(
            (node, node in given, member, groups.get(node, []), sorted(named.get(node, ())))
        )
    return local_frame(tables.spark, rows, TABLES["members"])


def _named(tables: Tables) -> dict[str, set[str]]:
    """Names of nodes, and in whose logs they stand."""
    notes = tables["notes"]
    first = notes.where(F.col("kind").isin("link-up", "link-down", "clock", "hard-state")).select(
        "node", said(0).alias("name")
    )
    leaders = notes.where("kind = 'role'").select("node", said(1).alias("name"))
    found: dict[str, set[str]] = {}
    for row in first.unionByName(leaders).where("name is not null").distinct().collect():
        found.setdefault(row.name, set()).add(row.node)
    return found
