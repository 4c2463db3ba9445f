"""`python -m tests.acceptance.bench.postmortem`: entries a second that a post-mortem reads and
replays.

For each size logs of three nodes are generated, whose entries the real machine accepts. Entries are
counted over all three nodes where they are read, and once where they are replayed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chaos.postmortem.session import NotHere, start
from tests.postmortem.generator import generate

MILLIONS = (1.0, 3.0, 10.0)
GROUPS = 8
NODES = 3
READ_TARGET = 400_000
REPLAY_TARGET = 100_000
#: Ten times the entries may take so much more than ten times as long: the machine is noisy.
GROWTH_MAX = 1.15
READ, STORE, REPLAY, WHOLE = "read and decode", "to Parquet", "replay", "all, with report"
AGAIN = "again, with nothing new"
OUTCOMES = "what became of entries"
#: One entry of these logs has about two, each of which is delivered and settled.
MESSAGES = "replay, in messages"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.bench.postmortem", description=__doc__
    )
    parser.add_argument("--millions", type=float, nargs="*", default=list(MILLIONS))
    parser.add_argument(
        "--groups", type=int, nargs="*", default=[GROUPS], help="1: all is in one busy group"
    )
    parser.add_argument("--engine", choices=("spark", "sail"), default="spark")
    parser.add_argument("--master", help="of Spark, such as local-cluster[2,1,2048]")
    parser.add_argument("--dir", type=Path, help="keep the logs and reports here")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    folder = given.dir or Path(tempfile.mkdtemp(prefix="quorate-bench-"))
    noise = folder / "spark.log"
    engine: dict[str, Any] = {"engine": given.engine}
    if given.engine == "spark":
        master = given.master or "local[2]"
        engine |= {"master": master, "noise": noise, "options": {"spark.driver.memory": "4g"}}
    try:
        spark = start(**engine)
    except NotHere as error:
        console.print(str(error))
        return 2
    try:
        warm_up(spark, folder)
        rows = [
            measure(spark, folder, millions, groups, console)
            for groups in given.groups
            for millions in sorted(given.millions)
        ]
    finally:
        spark.stop()
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    for groups in given.groups:
        show([row for row in rows if row["groups"] == groups], console)
    Path("bench-results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    return 0


def warm_up(spark: Any, folder: Path) -> None:
    """The first query of a session starts workers and compiles: tens of seconds, once."""
    generate(folder / "warm", 3_000)
    for _ in range(3):
        read(spark, folder / "warm")
    shutil.rmtree(folder / "warm")


def read(spark: Any, logs: Path) -> None:
    """All columns of all records, to nowhere."""
    spark.read.format("raftlog").load(str(logs)).write.format("noop").mode("overwrite").save()


def measure(
    spark: Any, folder: Path, millions: float, groups: int, console: Console
) -> dict[str, Any]:
    from chaos.postmortem.pipeline import run
    from chaos.postmortem.reading.ingest import ingest
    from chaos.postmortem.reading.inputs import discover
    from chaos.postmortem.tables import Tables

    logs, report = folder / f"logs-{groups}-{millions:g}", folder / f"report-{groups}-{millions:g}"
    console.print(f"{millions:g} million entries of {groups} groups: writing logs ...")
    made = generate(logs, int(millions * 1e6 / NODES), groups=groups)
    total = made.entries * NODES
    size = sum(file.stat().st_size for file in logs.rglob("*.log"))
    console.print(f"  {size / 1e6:,.0f} MB; reading ...")
    began_s = time.monotonic()
    read(spark, logs)
    read_s = time.monotonic() - began_s
    console.print(f"  {total / read_s:,.0f} entries/s; the whole post-mortem ...")
    began_s = time.monotonic()
    result = run([str(logs)], report, spark=spark, at_once=1)
    whole_s = time.monotonic() - began_s
    seconds = result.seconds
    stored_s = next(spent for step, spent in seconds.items() if step.startswith("read "))
    replay_s = seconds["plan of the replay"] + seconds["events"]
    began_s = time.monotonic()
    ingest(Tables(spark, report / "tables"), discover([str(logs)]))
    again_s = time.monotonic() - began_s
    shutil.rmtree(logs)
    shutil.rmtree(report / "tables")
    return {
        "groups": groups,
        "entries": total,
        "bytes": size,
        "messages": made.messages,
        "status": result.status,
        "findings": len(result.findings),
        "peak_python_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "seconds": {
            READ: read_s,
            STORE: stored_s,
            AGAIN: again_s,
            OUTCOMES: seconds["entries"],
            REPLAY: replay_s,
            WHOLE: whole_s,
        },
        "rates": {
            READ: total / read_s,
            STORE: total / stored_s,
            AGAIN: total / again_s,
            OUTCOMES: total / seconds["entries"],
            REPLAY: made.entries / replay_s,
            WHOLE: total / whole_s,
            MESSAGES: made.messages / replay_s,
        },
        "steps": seconds,
    }


def show(rows: list[dict[str, Any]], console: Console) -> None:
    groups = rows[0]["groups"]
    table = Table(title=f"entries a second, on {os.cpu_count()} cores, groups: {groups}")
    table.add_column("")
    for row in rows:
        table.add_column(f"{row['entries'] / 1e6:,.1f} M", justify="right")
    table.add_column("target")
    targets: dict[str, int] = {READ: READ_TARGET, REPLAY: REPLAY_TARGET}
    for step in (READ, STORE, AGAIN, OUTCOMES, REPLAY, MESSAGES, WHOLE):
        rates = [row["rates"][step] for row in rows]
        told = [f"{rate:,.0f}" for rate in rates]
        target = targets.get(step)
        verdict = ""
        if target is not None:
            verdict = f"{target:,} {'met' if max(rates) >= target else 'NOT met'}"
        table.add_row(step, *told, verdict)
    console.print(table)
    if len(rows) > 1:
        first, last = rows[0], rows[-1]
        more = last["entries"] / first["entries"]
        for step in (READ, STORE, OUTCOMES, REPLAY, WHOLE):
            longer = last["seconds"][step] / first["seconds"][step]
            word = "linear or better" if longer <= more * GROWTH_MAX else "WORSE than linear"
            console.print(
                f"{step}: {more:.1f} times the entries, {longer:.1f} times as long: {word}"
            )
    for row in rows:
        console.print(
            f"{row['entries'] / 1e6:,.1f} M: exit status {row['status']},"
            f" {row['findings']} findings"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
