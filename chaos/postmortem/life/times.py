"""Records of all nodes under one clock: the Spark side of `alignment`."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.life.alignment import STEADY_NS, Boot, Pair, Process, compared, shifts
from chaos.postmortem.life.clocks import measured
from chaos.postmortem.life.nodes import said
from chaos.postmortem.replication.logorder import LogOrder, local_frame
from chaos.postmortem.tables import Tables

#: Of the entries, one in so many is compared.
SAMPLED: Final = 16
_KEY = ["node", "created_ns", "segment"]


@dataclass(frozen=True, slots=True)
class Clock:
    """Of all processes."""

    processes: dict[Boot, Process]
    shift: dict[Boot, int]
    segments: DataFrame  # node, created_ns, segment, boot_number, shift

    def timed(self, records: DataFrame) -> DataFrame:
        """With `t`: nanoseconds by the common clock."""
        keys = self.segments.select(*_KEY, "shift")
        frame = records.join(F.broadcast(keys), _KEY)
        return frame.withColumn("t", F.col("mono_ns") + F.col("shift")).drop("shift")


def leaders_of_terms(tables: Tables) -> DataFrame:
    """group, term, node: who said that it leads."""
    notes = tables["notes"].where("kind = 'role'")
    led = notes.where(F.get_json_object("detail", "$[0]") == "leader")
    return led.select("group", "term", "node").distinct()


def clock(tables: Tables, order: LogOrder) -> Clock:
    processes = _processes(tables, order)
    pairs = _noted(tables, order, processes)
    if not compared(processes, pairs):  # to compare entries takes longer
        pairs += _entries(tables, order, processes)
    shift = shifts(processes, pairs)
    rows = [
        (
            each.given.node,
            each.given.created_ns,
            each.given.segment,
            each.boot_number,
            shift[each.given.node, each.boot_number],
        )
        for each in order.segments
        if (each.given.node, each.boot_number) in shift
    ]
    segments = local_frame(
        tables.spark,
        rows,
        "node string, created_ns bigint, segment bigint, boot_number int, shift bigint",
    )
    return Clock(processes, shift, segments)


def _processes(tables: Tables, order: LogOrder) -> dict[Boot, Process]:
    rows = (
        tables["beats"]
        .groupBy(*_KEY)
        .agg(
            F.min("first_ns").alias("first"),
            F.max("last_ns").alias("last"),
            F.min_by("ahead_min_ns", "first_ns").alias("base"),
            F.min("ahead_min_ns").alias("least"),
            F.max("ahead_max_ns").alias("most"),
        )
        .collect()
    )
    boots = {
        (each.given.node, each.given.created_ns, each.given.segment): each.boot_number
        for each in order.segments
    }
    found: dict[Boot, list] = {}
    for row in rows:
        number = boots.get((row.node, row.created_ns, row.segment))
        if number is not None:
            found.setdefault((row.node, number), []).append(row)
    return {
        boot: Process(
            min(row.first for row in rows),
            max(row.last for row in rows),
            min(rows, key=lambda row: row.first).base,
            max(row.most for row in rows) - min(row.least for row in rows) < STEADY_NS,
        )
        for boot, rows in found.items()
    }


def _noted(tables: Tables, order: LogOrder, processes: dict[Boot, Process]) -> list[Pair]:
    """From the quickest look at each other's clocks that two processes had."""
    steady = {boot: each for boot, each in processes.items() if each.steady}
    if len(steady) < 2:
        return []
    lives = local_frame(
        tables.spark,
        [
            (node, number, each.first_ns + each.base_ns, each.last_ns + each.base_ns)
            for (node, number), each in steady.items()
        ],
        "peer string, peer_boot int, began bigint, ended bigint",
    )
    ahead_ns, took_ns = measured()
    notes = tables["notes"].where("kind = 'clock'")
    notes = notes.join(F.broadcast(order.frame), _KEY).select(
        *("node", "boot_number"),
        said(0).alias("peer"),
        ahead_ns.cast("bigint").alias("ahead"),
        took_ns.alias("bound"),
        said(3).try_cast("bigint").alias("answered"),
    )
    within = F.col("answered").between(F.col("began") - STEADY_NS, F.col("ended") + STEADY_NS)
    rows = (
        notes.join(F.broadcast(lives), "peer")
        .where(within & F.col("ahead").isNotNull() & F.col("bound").isNotNull())
        .groupBy("node", "boot_number", "peer", "peer_boot")
        .agg(F.min_by("ahead", F.struct("bound", "answered")).alias("ahead"))
        .collect()
    )
    return [
        Pair((row.peer, row.peer_boot), (row.node, row.boot_number), row.ahead, sure=True)
        for row in rows
        if (row.node, row.boot_number) in steady
    ]


def _entries(tables: Tables, order: LogOrder, processes: dict[Boot, Process]) -> list[Pair]:
    """From entries that one has right after the other."""
    keys = order.frame.select(*_KEY, "boot_number")
    chosen = F.pmod(F.col("index"), F.lit(SAMPLED)) == 0
    sampled = tables["entries"].where(chosen & (F.col("kind") == "entry"))
    columns = [*_KEY, "group", "index", "term", "mono_ns"]
    sampled = sampled.select(columns).join(F.broadcast(keys), _KEY)
    led = sampled.join(F.broadcast(leaders_of_terms(tables)), ["group", "term", "node"]).select(
        *("group", "index", "term"),
        F.col("node").alias("leader"),
        F.col("boot_number").alias("leader_boot"),
        F.col("mono_ns").alias("led_ns"),
    )
    rows = (
        sampled.join(led, ["group", "index", "term"])
        .where("node <> leader")
        .groupBy("node", "boot_number", "leader", "leader_boot")
        .agg(F.min(F.col("mono_ns") - F.col("led_ns")).alias("later"))
        .collect()
    )
    found: list[Pair] = []
    for row in rows:
        boot, other = (row.node, row.boot_number), (row.leader, row.leader_boot)
        if boot in processes and other in processes:
            ahead = row.later + processes[boot].base_ns - processes[other].base_ns
            found.append(Pair(boot, other, ahead, sure=False))
    return found


def second(time: Column) -> Column:
    return F.floor(time / 1_000_000_000).cast("bigint")
