"""What a benchmark is as a command: measure three nodes on loopback, print a table, write JSON."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from tests.acceptance.bench.measure import fsync_ms, machine_facts
from tests.acceptance.bench.nodes import Nodes
from tests.acceptance.bench.report import Row, show, write_json
from tests.acceptance.bench.runs import Bench

WIDTH = 120  # of the table when it goes to a file
Runs = Mapping[str, Callable[[Bench], Awaitable[None]]]


def arguments(which: Runs, program: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Measure three nodes on loopback, fsync on. Not a test.",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, fewer rounds"
    )
    parser.add_argument(
        "--only", action="append", choices=sorted(which), help="this run; may be repeated"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("bench-results.json"), help="where the JSON goes"
    )
    parser.add_argument(
        "--folder", type=Path, help="where the nodes keep their data; default: a temporary folder"
    )
    return parser.parse_args()


async def measure(
    which: Runs, args: argparse.Namespace, folder: Path, console: Console
) -> list[Row]:
    """Each run on a cluster of its own: what one leaves behind does not weigh on the next."""
    rows: list[Row] = []
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for name in args.only or which:
            run = which[name]
            task = progress.add_task(f"{name}: starting three nodes", total=None)
            expected = 0

            def expect(count: int, task: Any = task) -> None:
                nonlocal expected
                expected += count
                progress.update(task, total=expected)

            def advance(count: int, task: Any = task) -> None:
                progress.advance(task, count)

            nodes = Nodes(folder / name)
            bench = Bench(nodes, args.quick, progress=advance, expect=expect)
            try:
                await nodes.start()
                progress.update(task, description=name)
                await run(bench)
            except Exception as error:  # noqa: BLE001 - the other runs go on, and the table says so
                (nodes.folder / "error.txt").write_text(traceback.format_exc())
                bench.rows.append(
                    Row(name, "did not finish", error=f"{type(error).__name__}: {error}")
                )
            finally:
                await nodes.stop()
            rows += bench.rows
            progress.update(task, total=max(expected, 1), completed=max(expected, 1))
    return rows


def main(which: Runs, program: str) -> int:
    args = arguments(which, program)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="quorate-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    fsync_p50, fsync_p99 = fsync_ms(folder)
    facts = {**machine_facts(), "fsync_p50_ms": fsync_p50, "fsync_p99_ms": fsync_p99}
    rows = asyncio.run(measure(which, args, folder, console))
    show(console, facts, rows)
    write_json(args.output, facts, rows)
    console.print(f"Written to {args.output}.", highlight=False)
    if any(row.error for row in rows):
        console.print(f"The logs of the nodes are in {folder}.", highlight=False)
        return 1
    if args.folder is None:
        shutil.rmtree(folder)
    return 0
