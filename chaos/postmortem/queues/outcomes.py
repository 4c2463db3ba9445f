"""What became of messages that clients miss, by the log: told apart by who they are, not how many.

A client calls a message `publisher:number`. So does the log, of a publisher that numbers; of others
the body is looked at, which begins so where a load of ours wrote it. A queue is known by its name
in its vhost: `NAME` is one of vhost /, `VHOST/NAME` of another.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 -- its usual name

from chaos.postmortem.tables import Tables
from cluster.codec.entries import decode_entry, messages_of
from cluster.codec.errors import CodecError
from cluster.machine.admission import EPHEMERAL_PREFIX
from cluster.types import LargeBody

#: How messages leave a queue without a consumer: clients cannot tell that from a loss.
GONE: Final = ("died", "purged", "withdrawn", "deleted")
#: No id is longer.
_ID_BYTES_MAX: Final = 256
_ENDS_OF_NUMBERS: Final = re.compile(rb"(?<=\d)(?!\d)")
_QUEUE: Final = ["group", "queue"]
_NAMED: Final = "group int, entry bigint, entry_offset int, named array<string>"


def became(tables: Tables, missed: DataFrame) -> DataFrame:
    """queue, message (as in `missed`), outcome, reason: of those that the log knows; and a row with
    message null for each that left its queue without a consumer and that nothing names.
    """
    stored = _stored(tables, missed)
    numbered = F.col("publisher").isNotNull() & F.col("seqno").isNotNull()
    told = ["called", "message", "outcome", "reason"]
    of_number = stored.where(numbered).withColumn(
        "message", F.concat_ws(":", "publisher", F.col("seqno").cast("string"))
    )
    # A generated name, as that of a node for its AMQP clients, is no name that clients use.
    named_so = numbered & ~F.col("publisher").startswith(EPHEMERAL_PREFIX)
    gone = stored.where(~named_so & F.col("outcome").isin(*GONE))
    by_body = _bodies(tables, gone)
    named = gone.join(by_body, ["group", "entry", "entry_offset"], "left")
    of_body = named.withColumn("message", F.explode_outer("named"))
    every = of_number.select(told).unionByName(of_body.select(told))
    wanted = missed.select(F.col("queue").alias("called"), "message").distinct()
    known = every.where("message is not null").join(wanted, ["called", "message"], "left_semi")
    nameless = every.where("message is null")
    return known.unionByName(nameless).withColumnRenamed("called", "queue")


def _stored(tables: Tables, missed: DataFrame) -> DataFrame:
    """Messages of the queues that are meant, and what their clients call those."""
    wanted = missed.select(F.col("queue").alias("called")).distinct()
    queues = tables["messages"].select(*_QUEUE, "vhost", "name").distinct()
    exactly = ((F.col("vhost") == "/") & (F.col("name") == F.col("called"))) | (
        F.concat("vhost", F.lit("/"), "name") == F.col("called")
    )
    meant = queues.join(F.broadcast(wanted), exactly | (F.col("name") == F.col("called")))
    of_name = Window.partitionBy("called")
    known = F.max(exactly).over(of_name)
    vhosts = F.size(F.collect_set("vhost").over(of_name))
    # Clients of another vhost need not say which, as long as there is no other such queue.
    meant = meant.withColumn("counts", exactly | (~known & (vhosts == 1))).where("counts")
    rows = tables["messages"].select(
        *_QUEUE, "publisher", "seqno", "entry", "entry_offset", "outcome", "reason"
    )
    return rows.join(F.broadcast(meant.select(*_QUEUE, "called")), _QUEUE)


def _bodies(tables: Tables, gone: DataFrame) -> DataFrame:
    """How the bodies of these begin, wherever they may end as an id."""
    wanted = (
        gone.where("entry is not null")
        .groupBy("group", F.col("entry").alias("index"))
        .agg(F.sort_array(F.collect_set("entry_offset")).alias("offsets"))
    )
    commands = tables["records"].where("command is not null").select("group", "index", "command")
    found = commands.join(F.broadcast(wanted), ["group", "index"]).dropDuplicates(
        ["group", "index"]
    )
    return found.select("group", "index", "command", "offsets").mapInArrow(_begun, _NAMED)


def _begun(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = []
        for row in batch.to_pylist():
            try:
                bodies = [body for body, _ in messages_of(decode_entry(row["command"][1:]))]
            except CodecError:  # which is told by the replay
                continue
            for offset in row["offsets"]:
                if offset is not None and 0 <= offset < len(bodies):
                    body = bodies[offset]
                    named = beginnings(body.head if isinstance(body, LargeBody) else body)
                    rows.append((row["group"], row["index"], offset, named))
        columns = list(zip(*rows, strict=True)) or [()] * 4
        kinds = (pa.int32(), pa.int64(), pa.int32(), pa.list_(pa.string()))
        arrays = [pa.array(each, kind) for each, kind in zip(columns, kinds, strict=True)]
        names = ["group", "entry", "entry_offset", "named"]
        yield pa.RecordBatch.from_arrays(arrays, names=names)


def beginnings(body: bytes) -> list[str]:
    """`a:1` of `a:1|...` and of `a:1....`: all that ends with a whole number."""
    head = body[: _ID_BYTES_MAX + 1]
    found = list[str]()
    for end in _ENDS_OF_NUMBERS.finditer(head):
        if b":" in head[: end.start()]:
            try:
                found.append(head[: end.start()].decode())
            except UnicodeDecodeError:
                break
    return found
