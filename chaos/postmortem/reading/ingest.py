"""Logs into tables: `records` and `segments`, and what is damaged in them."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.engine import is_local
from chaos.postmortem.reading.batches import Batches, Plan
from chaos.postmortem.reading.batches import plan as plan_of
from chaos.postmortem.reading.decoding import decode
from chaos.postmortem.reading.inputs import Inputs, Segment, is_remote
from chaos.postmortem.reading.raftlog import only_checked, told
from chaos.postmortem.reading.until import ends
from chaos.postmortem.reading.wanted import EVERYTHING, Bounds, Wanted
from chaos.postmortem.reading.whole_files import remote_files
from chaos.postmortem.replication.logorder import (
    log_order,
    read_ends,
    synced_offset,
    synced_segment,
)
from chaos.postmortem.schemas import RECORDS
from chaos.postmortem.tables import HOUR_NS, Tables, conformed, schema_of
from cluster.log.reader import BODIES, CORRUPT, TORN

#: From this many segments on, records are sorted into their groups and hours before they are
#: written: else each segment leaves a file in each folder.
SORTED_FROM: Final = 64


def ingest(
    tables: Tables, inputs: Inputs, until_ns: int | None = None, plan: Plan | None = None
) -> None:
    """Writes `records` and `segments`. `plan`: what of it is to be read, see `planned`.
    MixedClusters: nothing is written.
    """
    inputs = inputs.of_one_cluster()
    batches, plan = Batches(tables.spark, tables.folder), plan or planned(tables, inputs, until_ns)
    batches.drop_all_but(plan.kept)
    for number, new in plan.new.items():
        records = read_records(tables.spark, replace(inputs, segments=new))
        if until_ns is not None:
            records = _up_to(records, inputs, until_ns)
        tables.write("records", _sorted(records, len(new)), number)
        if until_ns is None:
            batches.finish(number, new)
    tables.write("segments", segments(tables["records"], inputs))
    rows = [(u.cluster, u.node, u.file, u.bytes, u.foreign, u.reason) for u in inputs.unread]
    tables.write("unread", tables.spark.createDataFrame(rows, schema_of("unread")))


def planned(tables: Tables, inputs: Inputs, until_ns: int | None = None) -> Plan:
    """What is in the tables already stays. Of what is cut off at a time nothing does: it is not all
    of its segments.
    """
    if until_ns is not None:
        return Plan(set(), {0: inputs.segments})
    return plan_of(Batches(tables.spark, tables.folder).known(), inputs.segments)


def _sorted(records: DataFrame, count: int) -> DataFrame:
    if count < SORTED_FROM:
        return records
    hour = F.floor(F.col("wall_ns") / HOUR_NS)
    records = records.withColumn("hour", hour)
    # Where plans are not adaptive the hint is not heard; then there is little to even out.
    spark, by = records.sparkSession, ("group", "hour")
    adaptive = not is_local() and spark.conf.get("spark.sql.adaptive.enabled") == "true"
    return records.hint("rebalance", *by) if adaptive else records.repartition(*by)


def _up_to(records: DataFrame, inputs: Inputs, until_ns: int) -> DataFrame:
    """Up to the first one of the last segments that is later. Damage is always wanted."""
    cut = replace(inputs, segments=ends(inputs, until_ns))
    later = Wanted({"wall_ns": Bounds(low=until_ns + 1)}, payloads=False)
    damaged = F.col("kind").isin(CORRUPT, TORN)
    found = read_records(records.sparkSession, cut, later).where(~damaged)
    for row in found.groupBy("file").agg(F.min("offset").alias("offset")).collect():
        before = (F.col("file") != row.file) | (F.col("offset") < row.offset)
        records = records.where(before | damaged)
    return records


def read_records(spark: SparkSession, inputs: Inputs, wanted: Wanted = EVERYTHING) -> DataFrame:
    """The records of all segments; of those given twice, what is damaged in the copies."""
    here, away = _sides(inputs.segments)
    if not away:
        return _of_local(spark, here, wanted)
    remote = _of_remote(spark, away, wanted)
    return remote.unionByName(_of_local(spark, here, wanted)) if here else remote


def _sides(files: Iterable[Segment]) -> tuple[list[Segment], list[Segment]]:
    """Those that plain file access reaches, and those that it does not."""
    here, away = list[Segment](), list[Segment]()
    for each in files:
        (away if is_remote(each.file) else here).append(each)
    return here, away


def _of_local(spark: SparkSession, segments: Iterable[Segment], wanted: Wanted) -> DataFrame:
    source = spark.read.format("raftlog").option("segments", told(segments))
    frame = source.option("commands", str(wanted.payloads).lower()).load()
    for column, bounds in wanted.bounds.items():
        values = F.col(column)
        if bounds.low is not None:
            frame = frame.where(values >= bounds.low)
        if bounds.high is not None:
            frame = frame.where(values <= bounds.high)
        if bounds.among is not None:
            frame = frame.where(values.isin(sorted(bounds.among)))
    return frame


def _of_remote(spark: SparkSession, segments: Iterable[Segment], wanted: Wanted) -> DataFrame:
    by_file = {segment.file: segment for segment in segments}

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, data in _contents(batches):
            segment = by_file[path]
            yield from decode(data, segment, only_checked(wanted) if segment.copy else wanted)

    return remote_files(spark, list(by_file)).mapInArrow(read, RECORDS)


def _contents(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, bytes]]:
    for batch in batches:
        for at in range(batch.num_rows):
            yield batch.column(0)[at].as_py(), batch.column(1)[at].as_py()


def segments(records: DataFrame, inputs: Inputs) -> DataFrame:
    """The table `segments`: what is known of each file, and what was found in it."""
    sound = ~F.col("kind").isin(CORRUPT, TORN)
    found = records.groupBy("file").agg(
        F.count_if(sound).alias("records"),
        F.count_if(F.col("kind").isin(*BODIES)).alias("entries"),
        F.min(F.when(sound, F.col("wall_ns"))).alias("first_ns"),
        F.max(F.when(sound, F.col("wall_ns"))).alias("last_ns"),
        F.max((F.col("kind") == CORRUPT).cast("int")).alias("corrupt"),
        F.max((F.col("kind") == TORN).cast("int")).alias("torn"),
    )
    status = (
        F.when(F.col("corrupt") == 1, "corrupt")
        .when(F.col("torn") == 1, "torn")
        .when(F.col("copy"), "sound")
        .when(F.col("records") > 0, "sound")
        .otherwise("empty")
    )
    told = _given(records.sparkSession, inputs.segments).join(found, "file", "left")
    return conformed(
        told.withColumn("status", status).fillna(0, ["records", "entries"]), "segments"
    )


_GIVEN: Final = (
    "file string, cluster string, node string, segment bigint, created_ns bigint, boot string,"
    " bytes bigint, source string, last boolean, copy boolean"
)


def _given(spark: SparkSession, given: Iterable[Segment]) -> DataFrame:
    rows = [
        (
            s.file,
            s.cluster,
            s.node,
            s.number,
            s.created_ns,
            s.boot,
            s.bytes,
            s.source,
            s.last,
            s.copy,
        )
        for s in given
    ]
    return spark.createDataFrame(rows, _GIVEN)


def damage(tables: Tables) -> DataFrame:
    """Rows of the table `corruption`: bad records, lost ends."""
    return bad_records(tables["records"]).unionByName(lost_ends(tables))


def bad_records(records: DataFrame) -> DataFrame:
    """A torn end is none: every crash may leave one."""
    bad = records.where(F.col("kind") == CORRUPT)
    return conformed(
        bad.withColumn("kind", F.lit("bad record"))
        .withColumn("group", F.lit(None))
        .withColumnRenamed("detail", "reason")
        .withColumnRenamed("wall_ns", "at_ns"),
        "corruption",
    )


def lost_ends(tables: Tables) -> DataFrame:
    """Segments that are shorter than a later record of the same disk says was safely stored."""
    order, records = log_order(tables), tables["records"]
    disks = order.frame.select("file", "node_number", "disk")
    given = order.frame.select(
        *("node_number", "disk", "cluster", "node", "file", "segment"),
        F.col("segment").alias("number"),
    )
    meant = (
        records.where(F.col("kind") == "synced")
        .withColumn("number", synced_segment())
        .groupBy("file", "number")
        .agg(
            F.max(synced_offset()).alias("reached"),
            F.max_by("wall_ns", synced_offset()).alias("at_ns"),
        )
        .join(F.broadcast(disks), "file")
        .drop("file")
        .join(F.broadcast(given), ["node_number", "disk", "number"])
        .groupBy("cluster", "node", "file", "segment")
        .agg(F.max("reached").alias("reached"), F.max_by("at_ns", "reached").alias("at_ns"))
    )
    # What is there but damaged is a bad record already.
    lost = meant.join(read_ends(records), "file").where(
        (F.col("end") < F.col("reached")) & (F.coalesce("bad_at", F.lit(-1)) < F.col("end"))
    )
    reason = F.concat(F.lit("synced data is missing: it reached to "), F.col("reached"))
    return conformed(
        lost.withColumn("kind", F.lit("lost end"))
        .withColumn("offset", F.col("end"))
        .withColumn("reason", reason),
        "corruption",
    )
