"""`python -m tests.acceptance.fuzz`: mutated and random input against three nodes; 1 on any
finding.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.acceptance.fuzz.run import TARGETS, Fuzz, Result, load

WIDTH = 110  # of the tables when they go to a file
SHOWN_MAX = 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.fuzz",
        description="Mutated and random input against three nodes on loopback.",
    )
    parser.add_argument("--protocol", choices=list(TARGETS), default="amqp")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    parser.add_argument("--replay", type=Path, help="inputs saved by a run, one after the other")
    parser.add_argument("--folder", type=Path, help="of the cluster; default: a temporary one")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    folder = args.folder or Path(tempfile.mkdtemp(prefix="quorate-fuzz-"))
    protocol, replay = (args.protocol, None) if args.replay is None else load(args.replay)
    console.print(f"seed {args.seed}", highlight=False)
    columns = (SpinnerColumn(), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting three nodes", total=args.seconds)
        fuzz = Fuzz(
            protocol,
            folder,
            args.seed,
            seconds=args.seconds,
            replay=replay,
            progress=lambda at, what: progress.update(task, completed=at, description=what),
        )
        result = asyncio.run(fuzz.run())
    show(console, result)
    if result.findings:
        console.print(f"The cluster's logs are in {folder}.", highlight=False)
        return 1
    if args.folder is None:
        shutil.rmtree(folder)
    return 0


def show(console: Console, result: Result) -> None:
    table = Table("input", "count", "answer", "times", box=box.SIMPLE_HEAD, pad_edge=False)
    kinds, codes = result.kinds.most_common(), sorted(result.codes.items())
    for index in range(max(len(kinds), len(codes))):
        kind = kinds[index] if index < len(kinds) else ("", "")
        code = codes[index] if index < len(codes) else ("", "")
        table.add_row(*map(str, (*kind, *code)))
    console.print(table)
    for what, value in result.facts.items():
        console.print(f"{what}: {value}", highlight=False)
    for finding in result.findings[:SHOWN_MAX]:
        console.print(f"[red]finding[/] {escape(finding)}", highlight=False)
    console.print(
        f"{sum(result.kinds.values()):,} inputs of seed {result.seed}, "
        f"{len(result.findings)} findings",
        highlight=False,
    )
    if result.saved is not None:
        console.print(
            f"Play them again: python -m tests.acceptance.fuzz --replay {result.saved}",
            highlight=False,
        )


if __name__ == "__main__":
    sys.exit(main())
