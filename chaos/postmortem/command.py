"""The whole post-mortem in a Spark session of its own, for callers that know nothing of Spark."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from chaos.postmortem.session import start

if TYPE_CHECKING:
    from chaos.postmortem.limits import Limits
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
    limits: Limits,
    history: Path | None,
    since_ns: int | None,
    until_ns: int | None,
    queue: str | None,
    message: str | None,
) -> Result:
    """Raises `session.NotHere` and `inputs.BadInput`."""
    progress("start Spark", None)
    began_s = time.monotonic()
    spark = start(master, noise=noise, options=options)
    progress("start Spark", time.monotonic() - began_s)
    from chaos.postmortem.pipeline import Asked, run

    asked = Asked(limits, history, since_ns, until_ns, queue, message)
    try:
        return run(paths, out, spark=spark, tables=tables, progress=progress, asked=asked)
    finally:
        spark.stop()
