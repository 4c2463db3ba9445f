"""The whole post-mortem in a Spark session of its own, for callers that know nothing of Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chaos.postmortem.options import Options, check
from chaos.postmortem.session import NotHere, missing, start

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from chaos.postmortem.pipeline import Result


class Progress(Protocol):
    """Hears of each step when it begins, and when it is done, after how many seconds."""

    def __call__(self, what: str, seconds: float | None, /) -> None: ...


def post_mortem(
    paths: Sequence[str],
    out: Path,
    *,
    master: str | None,
    options: Mapping[str, str],
    noise: Path | None,
    tables: str | None,
    progress: Progress,
    asked: Options,
) -> Result:
    """Raises WrongArgument, `session.NotHere` and `inputs.BadInput`."""
    check(paths)
    if (lacks := missing()) is not None:
        raise NotHere(lacks)
    if asked.confirmed is not None:
        from chaos.postmortem.reading.receipts import read_receipts

        read_receipts(asked.confirmed)
    progress("start Spark", None)
    began_s = time.monotonic()
    spark = start(master, noise=noise, options=options)
    progress("start Spark", time.monotonic() - began_s)
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
    out = Path(out)
    spark = spark or start(noise=out / "spark.log")
    from chaos.postmortem.pipeline import Asked, run
    from chaos.postmortem.schemas import TABLES
    from chaos.postmortem.tables import Tables

    run(list(map(str, paths)), out, spark=spark, asked=Asked.of(asked or Options()))
    made = Tables(spark, (out / "tables").absolute())
    return {name: made[name] for name in TABLES}
