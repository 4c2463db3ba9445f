"""Files as rows: all that is in each."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from chaos.postmortem.engine import Fold, in_slots
from chaos.postmortem.reading.inputs import is_remote
from chaos.postmortem.schemas import arrow_schema

#: Files that are read at a time, at most.
READS_MAX: Final = 64

_GLOB: Final = re.compile(r"[\\\[\]{}*?]")
_CONTENT_DDL: Final = "file string, content binary"
_CONTENT: Final = arrow_schema(_CONTENT_DDL)


def whole_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """`file`, `content`: wherever they are. Of local ones those that are still there."""
    near = [(file,) for file in files if not is_remote(file)]
    far = [file for file in files if is_remote(file)]
    named = spark.createDataFrame(near, "file string")
    spread = named.repartition(max(1, min(len(near), READS_MAX)))
    read = spread.mapInArrow(_local, _CONTENT_DDL)
    return read.unionByName(remote_files(spark, far)) if far else read


def in_files(spark: SparkSession, files: Mapping[str, str], fold: Fold, schema: str) -> DataFrame:
    """What `fold` makes of the rows of `whole_files`. One task, of a process of its own, has those
    local ones for which `files` says the same.
    """
    near = {file: alike for file, alike in files.items() if not is_remote(file)}
    far = [file for file in files if is_remote(file)]
    task = {alike: nth % READS_MAX for nth, alike in enumerate(sorted({*near.values()}))}
    rows = [(task[alike], file) for file, alike in near.items()]
    named = spark.createDataFrame(rows, "slot int, file string")
    count = max(1, min(len(task), READS_MAX))
    made = in_slots(named, count, "file", ["file"], partial(_read_and, fold), schema)
    if not far:
        return made
    return made.unionByName(remote_files(spark, far).mapInArrow(fold, schema))


def remote_files(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """`file`, `content`, through whatever file system Spark is set up for."""
    named = [_GLOB.sub(r"\\\g<0>", file) for file in files]
    return spark.read.format("binaryFile").load(named).selectExpr("path as file", "content")


def _read_and(fold: Fold, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return fold(_local(batches))


def _local(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for path in batch.column(0).to_pylist():
            try:
                with open(path, "rb") as file:
                    data = file.read()
            except FileNotFoundError:  # the node has a newer one by now
                continue
            yield pa.RecordBatch.from_arrays([[path], pa.array([data])], schema=_CONTENT)
