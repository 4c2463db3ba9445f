"""Tables on disk: each is computed once, written as Parquet, and read from there ever after."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- its usual name
from pyspark.sql.types import LongType, StructField, StructType

from chaos.postmortem.findings.catalogue import RULES
from chaos.postmortem.schemas import TABLES

#: These are in folders of their own by group and hour, so that a look at one need not read all, and
#: before that by `batches`, so that another run need not read what did not change.
PARTITIONED: Final = {"records": ["group", "hour"]}
#: Spark's own; Sail's takes twice the time to write for a third of the bytes.
COMPRESSION: Final = "snappy"
HOUR_NS: Final = 3_600_000_000_000


@cache
def schema_of(name: str) -> StructType:
    """Of a table in `schemas.TABLES`. Needs a session."""
    schema = StructType.fromDDL(TABLES[name])
    assert isinstance(schema, StructType)
    return schema


def conformed(frame: DataFrame, name: str) -> DataFrame:
    """Exactly the table's columns, in their order and types; those it lacks are null."""
    known = set(frame.columns)
    return frame.select(
        *(
            (F.col(each.name) if each.name in known else F.lit(None))
            .cast(each.dataType)
            .alias(each.name)
            for each in schema_of(name).fields
        )
    )


def as_findings(frame: DataFrame, code: str) -> DataFrame:
    """Rows of the table `findings`; the frame holds the columns that are known of each."""
    rule = RULES[code]
    told = {"code": rule.code, "severity": rule.severity, "title": rule.title}
    for name, value in told.items():
        frame = frame.withColumn(name, F.lit(value))
    if "count" not in frame.columns:
        frame = frame.withColumn("count", F.lit(1))
    return conformed(frame, "findings")


class Tables:
    """Tables in a folder, by name."""

    def __init__(
        self,
        spark: SparkSession,
        folder: str | Path,
        seen: Mapping[str, Column] | None = None,
    ) -> None:
        self.spark = spark
        self.folder = str(folder)
        self._seen = seen or {}
        self._making: dict[str, Future[None]] = {}

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def __getitem__(self, name: str) -> DataFrame:
        """Waits for it while it is being made."""
        self.wait(name)
        return self._read(name)

    def wait(self, name: str) -> None:
        """It is there. Raises what making it raised."""
        if name in self._making:
            self._making[name].result()

    def _read(self, name: str) -> DataFrame:
        rows = self.spark.read.schema(self._stored(name)).parquet(self.path(name))
        return rows.where(self._seen[name]) if name in self._seen else rows

    def only(self, name: str, condition: Column) -> Tables:
        """The same tables; of that one nothing but such rows is seen."""
        same = Tables(self.spark, self.folder, {**self._seen, name: condition})
        same._making = self._making
        return same

    def begin(
        self,
        pool: Executor,
        name: str,
        make: Callable[[], DataFrame],
        timed: Callable[[], AbstractContextManager[None]] = nullcontext,
        finished: Callable[[str], None] | None = None,
    ) -> None:
        """Made by the pool, and waited for by whoever asks for it. What it needs must have begun
        before: then a pool that takes its work in order, however small, never waits for itself.
        `finished` is told when it is written.
        """

        def work() -> None:
            with timed():
                self.write(name, make())
            if finished is not None:
                finished(name)

        self._making[name] = pool.submit(work)

    def finish(self) -> None:
        """All that was begun is there. Raises what making it raised."""
        for made in list(self._making.values()):
            made.result()
        self._making.clear()

    def _stored(self, name: str) -> StructType:
        fields = schema_of(name).fields
        parts = [StructField("hour", LongType()), StructField("batch", LongType())]
        return StructType([*fields, *(parts if name in PARTITIONED else [])])

    def write(self, name: str, frame: DataFrame, batch: int | None = None) -> None:
        """What was there before is replaced; `batch`: of that one alone."""
        frame = conformed(frame, name)
        by = PARTITIONED.get(name, [])
        if by:
            frame = frame.withColumn("hour", F.floor(F.col("wall_ns") / HOUR_NS).cast("bigint"))
        written = frame.write.mode("overwrite").partitionBy(*by)
        path = self.path(name) if batch is None else f"{self.path(name)}/batch={batch}"
        written.parquet(path, compression=COMPRESSION)

    def empty(self, name: str) -> DataFrame:
        return self.spark.createDataFrame([], schema_of(name))
