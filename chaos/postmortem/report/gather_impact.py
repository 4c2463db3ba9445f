"""What users felt, out of the tables: times without a leader, publishes cut off, redeliveries."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.findings.cluster import losses
from chaos.postmortem.report.facts import Harm
from chaos.postmortem.report.reading import KEY, Cut, ns_of, queue_of, table
from chaos.postmortem.tables import Tables
from cluster.codec.entries import decode_entry, enqueues_in
from cluster.codec.errors import CodecError
from cluster.machine.commands import Enqueue

QUEUES_MAX: Final = 10_000
LOSSES_MAX: Final = 1_000
#: Entries whose commands are looked at.
UNANSWERED_MAX: Final = 500
MINUTES_MAX: Final = 2_000
MINUTE_NS: Final = 60_000_000_000

#: Titles by number, of each group.
Titles = Mapping[int, Mapping[int, str]]


def shifts(tables: Tables) -> dict[str, int]:
    """By how much the clock of each node was off, mostly."""
    rows = table(tables, "shifts").groupBy("node").agg(F.avg("shift_ns").alias("shift_ns"))
    return {row.node: round(row.shift_ns or 0) for row in rows.collect()}


def harms(tables: Tables, cut: Cut) -> list[Harm]:
    named = table(tables, "throughput").select(*KEY).distinct()
    titles: defaultdict[int, dict[int, str]] = defaultdict(dict)
    for row in cut.rows("impact queues", named, KEY, QUEUES_MAX):
        titles[row.group][row.queue] = queue_of(row).title
    found = [
        *_without_leader(tables, cut, titles),
        *_unanswered(tables, cut, titles),
        *_redelivered(tables, cut),
    ]
    return [each for each in found if each.queues]


def _without_leader(tables: Tables, cut: Cut, titles: Titles) -> Iterator[Harm]:
    lost = losses(table(tables, "elections"), table(tables, "shifts"))
    lost = lost.where("without_leader_ms is not null")
    for row in cut.rows("losses", lost, (F.desc("without_leader_ms"), "group"), LOSSES_MAX):
        queues = tuple(sorted(titles.get(row.group, {}).values()))
        yield Harm("without_leader", row.group, queues, row.lost_ns, row.back_ns,
                   row.without_leader_ms, row.before, row.file, row.offset)  # fmt: skip


def _redelivered(tables: Tables, cut: Cut) -> Iterator[Harm]:
    minutes = table(tables, "redelivery").where("redelivered > 0")
    order = (F.desc("redelivered"), *KEY, "minute_ms")
    for row in cut.rows("redelivered", minutes, order, MINUTES_MAX):
        begin_ns = ns_of(row.minute_ms) or 0
        yield Harm("redelivered", row.group, (queue_of(row).title,), begin_ns,
                   begin_ns + MINUTE_NS, row.redelivered, entry=row.entry)  # fmt: skip


def _unanswered(tables: Tables, cut: Cut, titles: Titles) -> Iterator[Harm]:
    """Publishes in entries that a leader wrote and that another one had cut off: nobody was told
    that they are safe. Who repeated them did so under their numbers.
    """
    key = ["group", "index", "term"]
    voided = table(tables, "entries").where(
        "kind = 'entry' and type = 'command' and outcome = 'voided'"
    )
    merged = table(tables, "merged").select(*key)
    cutoff = (
        voided.join(merged, key, "left_anti")
        .groupBy(*key)
        .agg(F.min(F.struct("wall_ns", "node", "file", "offset")).alias("it"))
    )
    rows = cut.rows("unanswered", cutoff, key, UNANSWERED_MAX)
    if not rows:
        return
    wanted = {tuple(row[name] for name in key): row.it for row in rows}
    groups = sorted({group for group, _, _ in wanted})
    indexes = sorted({index for _, index, _ in wanted})
    commands = table(tables, "records").where(
        F.col("group").isin(groups) & F.col("index").isin(indexes) & F.col("command").isNotNull()
    )
    written = {
        place: bytes(row.command)
        for row in commands.select(*key, "command").collect()
        if (place := tuple(row[name] for name in key)) in wanted
    }
    cut_off = [
        (place, each) for place, command in sorted(written.items()) for each in enqueued(command)
    ]
    came = _came_again(tables, cut_off)
    leads = {
        (row.group, row.term): row.leader
        for row in table(tables, "leaders").where(F.col("group").isin(groups)).collect()
    }
    for (group, entry, term), each in cut_off:
        it = wanted[group, entry, term]
        title = titles.get(group, {}).get(int(each.queue))
        yield Harm("unanswered", group, (title,) if title else (), it.wall_ns, it.wall_ns,
                   len(each.bodies), leads.get((group, term), it.node), it.file, it.offset, entry,
                   sum(came[number] for number in numbers(group, each)))  # fmt: skip


def enqueued(command: bytes) -> list[Enqueue]:
    """What it would have published."""
    try:
        commands = decode_entry(command[1:]).commands
    except CodecError:  # which is told by the replay
        return []
    return [
        each
        for one in commands
        for each in ((one,) if isinstance(one, Enqueue) else enqueues_in(one))
        if each.bodies
    ]


def numbers(group: int, enqueue: Enqueue) -> list[tuple[Any, ...]]:
    """What each message is known by, if its publisher numbers."""
    if enqueue.publisher is None:
        return []
    return [
        (group, int(enqueue.queue), enqueue.publisher, enqueue.seqno + nth)
        for nth in range(len(enqueue.bodies))
    ]


def _came_again(tables: Tables, cut_off: list[tuple[Any, Enqueue]]) -> Counter[tuple[Any, ...]]:
    rows = sorted({number for (group, *_), each in cut_off for number in numbers(group, each)})
    if not rows:
        return Counter()
    key = ["group", "queue", "publisher", "seqno"]
    wanted = tables.spark.createDataFrame(
        rows, "group int, queue bigint, publisher string, seqno bigint"
    )
    stored = table(tables, "messages").select(*key).join(F.broadcast(wanted), key)
    return Counter({tuple(row): 1 for row in stored.distinct().collect()})
