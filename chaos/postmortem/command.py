"""The whole post-mortem in a session of its own, for callers that know nothing of Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from chaos.postmortem.options import (
    Options,
    WrongArgument,
    check,
    check_master,
    check_output,
)
from chaos.postmortem.reading.inputs import BadInput, Inputs, LocalFiles, discover, is_remote
from chaos.postmortem.reading.until import begun_by
from chaos.postmortem.session import Engine, NotHere, missing, start, submitted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chaos.postmortem.pipeline import Result


#: From so many bytes of logs on Spark is the better one: Sail holds what is replayed in memory.
SPARK_BYTES: Final = 1 << 30


def engine_for(paths: Sequence[str], asked: Options, *, tables: str | None = None) -> Engine:
    """By where the logs are, their size, and what is installed. BadInput: there are none."""
    found = _found(paths, asked)
    if found is None or missing("sail") is not None or is_remote(tables or "") or submitted():
        return "spark"
    return "sail" if sum(each.bytes for each in found.segments) < SPARK_BYTES else "spark"


def _found(paths: Sequence[str], asked: Options) -> Inputs | None:
    """None: they are where only Spark reaches. BadInput: they cannot be looked at."""
    if any(map(is_remote, paths)):
        return None
    found = discover(paths, LocalFiles(), since_ns=asked.since_ns, until_ns=asked.until_ns)
    if asked.until_ns is not None:
        found = begun_by(found, asked.until_ns)
    return found.of_one_cluster()


def _check_history(path: Path) -> None:
    """BadInput: its first line is not what a client did."""
    try:
        with path.open(encoding="utf-8") as file:
            op = json.loads(file.readline())
    except (OSError, ValueError):
        op = None
    if not isinstance(op, dict) or not {"process", "type", "f"} <= op.keys():
        raise BadInput(f"{path} is no history of clients: give the history.jsonl of a run")


class Progress(Protocol):
    """Hears of each step when it begins, and when it is done, after how many seconds."""

    def __call__(self, what: str, seconds: float | None, /) -> None: ...


def post_mortem(
    paths: Sequence[str],
    out: Path,
    *,
    engine: Engine | None = None,
    master: str | None,
    options: Mapping[str, str],
    noise: Path | None,
    tables: str | None,
    progress: Progress,
    asked: Options,
) -> Result:
    """`engine`: None for the better one, which is Spark when `master` or `options` are given.
    Raises WrongArgument, `session.NotHere` and `inputs.BadInput`.
    """
    check(paths)
    check_output(out, tables)
    check_master(master)
    if engine == "sail" and (master or options):
        raise WrongArgument(
            "sail has no master and no settings of Spark: leave them out, or take spark"
        )
    away = [path for path in (*paths, tables or "") if is_remote(path)]
    if engine == "sail" and away:
        raise WrongArgument(f"{away[0]} is on a file system that only Spark reaches: take spark")
    if asked.history is not None:
        _check_history(asked.history)
    if engine is None and (master or options):
        engine = "spark"
    looked = engine is None
    engine = engine or engine_for(paths, asked, tables=tables)
    if (lacks := missing(engine)) is not None:
        raise NotHere(lacks)
    if asked.confirmed is not None:
        from chaos.postmortem.reading.receipts import read_receipts

        read_receipts(asked.confirmed)
    if not looked:
        _found(paths, asked)
    step = f"start {engine.capitalize()}"
    progress(step, None)
    began_s = time.monotonic()
    spark = start(master, engine=engine, noise=noise, options=options)
    progress(step, time.monotonic() - began_s)
    from chaos.postmortem.pipeline import Asked, run

    try:
        more = Asked.of(asked)
        return run(paths, out, spark=spark, tables=tables, progress=progress, asked=more)
    finally:
        spark.stop()


def incident(
    paths: Sequence[str | Path],
    out: str | Path,
    *,
    spark: SparkSession | None = None,
    asked: Options | None = None,
) -> dict[str, DataFrame]:
    """All tables of an incident by name, for a notebook; `schemas.TABLES` says what is in each. The
    report is written to `out`, too; tables are read from its folder `tables` when they are looked
    at. `spark`: a session of `session.start`; else one is started, and goes on. Raises as
    `post_mortem`.
    """
    check(paths)
    check_output(out, None)
    out = Path(out)
    asked = asked or Options()
    spark = spark or start(engine=engine_for(list(map(str, paths)), asked), noise=out / "spark.log")
    from chaos.postmortem.pipeline import Asked, run
    from chaos.postmortem.schemas import TABLES
    from chaos.postmortem.tables import Tables

    run(list(map(str, paths)), out, spark=spark, asked=Asked.of(asked))
    made = Tables(spark, (out / "tables").absolute())
    return {name: made[name] for name in TABLES}
