"""`python -m tests.acceptance.bench.compare`: Quorate beside RabbitMQ and NATS, interleaved."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from node.version import PRODUCT_VERSION
from tests.acceptance.bench import page
from tests.acceptance.bench.compare import document, peers
from tests.acceptance.bench.compare.brokers import Contender, Nats, Quorate, RabbitMq, stop_all
from tests.acceptance.bench.compare.fsyncs import counted
from tests.acceptance.bench.compare.rows import (
    DISK,
    NATS,
    NATS_SYNC,
    QUORATE,
    RABBITMQ,
    TABLES,
    TITLES,
    TMPFS,
    Row,
)
from tests.acceptance.bench.compare.workloads import FULL, QUICK, Scale
from tests.acceptance.bench.measure import fsync_ms, machine_facts

ROUNDS = 5
Makers = dict[str, Callable[[Path], Contender]]
#: Of a row at one broker; what takes longer is told as failed.
ROW_S_MAX = 300.0
ROW_QUICK_S_MAX = 75.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.bench.compare", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="one round of short runs")
    parser.add_argument("--rounds", type=int, help=f"default: {ROUNDS}; quick: 1")
    parser.add_argument(
        "--table", choices=TABLES, default="performance", help="which rows; default: %(default)s"
    )
    parser.add_argument("--only", metavar="ROWS", help="names of rows, with commas")
    parser.add_argument(
        "--output", type=Path, default=Path("build/compare"), help="folder for what is written"
    )
    parser.add_argument(
        "--render", action="store_true", help="only write the page anew, from the results there"
    )
    return parser.parse_args()


class Comparison:
    def __init__(self, args: argparse.Namespace, console: Console) -> None:
        self.console = console
        self.scale: Scale = QUICK if args.quick else FULL
        self.rounds: int = args.rounds or (1 if args.quick else ROUNDS)
        self.row_s_max = ROW_QUICK_S_MAX if args.quick else ROW_S_MAX
        self.table = TABLES[args.table]
        only = set(args.only.split(",")) if args.only else {row.name for row in self.table.rows}
        self.rows = [row for row in self.table.rows if row.name in only]
        self.runs: list[dict[str, Any]] = []
        self.fsyncs: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.traced = peers.bring_strace()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.console.print(text, highlight=False, style="yellow")

    async def phase(self, place: str, folder: Path, makers: Makers) -> None:
        """All rows of a place: a round of each row at each broker, then the next round. Each round
        begins with new nodes: what one left, as thousands of queues or streams, would cost the
        others CPU.
        """
        rows = [row for row in self.rows if row.place == place]
        needed = {broker for row in rows for broker in row.runs}
        for number in range(self.rounds):
            brokers = {
                name: make(folder / str(number) / name)
                for name, make in makers.items()
                if name in needed
            }
            try:
                for broker in brokers.values():
                    self.console.print(f"starting three nodes of {TITLES[broker.name]} on {place}")
                    await broker.start()
                for row in rows:
                    await self._round(row, number, brokers)
                for row in rows if self.traced and number == self.rounds - 1 else ():
                    if row.name in self.table.synced:
                        await self._count_fsyncs(row, brokers)
            finally:
                await stop_all(list(brokers.values()))
                # A round with large bodies leaves gigabytes, on tmpfs in memory.
                shutil.rmtree(folder / str(number), ignore_errors=True)

    async def _round(self, row: Row, number: int, brokers: dict[str, Contender]) -> None:
        names = [name for name in row.runs if name in brokers]
        turn = number % max(len(names), 1)
        for name in names[turn:] + names[:turn]:  # none is always the first
            try:
                async with asyncio.timeout(self.row_s_max):
                    figures = await row.runs[name](brokers[name], self.scale)
            except Exception as error:  # noqa: BLE001 - the other rows go on, and the report says so
                self.note(
                    f"{row.name} at {name}, round {number + 1}: {type(error).__name__}: {error}"
                )
                continue
            self.runs.append({"row": row.name, "round": number, "broker": name, "figures": figures})
            said = ", ".join(f"{key} {value:,.4g}" for key, value in figures.items())
            self.console.print(
                f"{number + 1}/{self.rounds} {row.name:18} {name:10} {said}", highlight=False
            )

    async def _count_fsyncs(self, row: Row, brokers: dict[str, Contender]) -> None:
        for name, run in row.runs.items():
            if name not in brokers:
                continue
            try:
                async with (
                    asyncio.timeout(self.row_s_max),
                    counted(brokers[name].pids()) as by_node,
                ):
                    figures = await run(brokers[name], QUICK)
            except Exception as error:  # noqa: BLE001 - as above
                self.note(f"fsyncs of {row.name} at {name}: {type(error).__name__}: {error}")
                continue
            found = {"row": row.name, "broker": name, "messages": figures["messages"]}
            self.fsyncs.append({**found, "by_node": by_node})
            self.console.print(f"fsyncs {row.name:18} {name:10} {by_node}", highlight=False)


async def compare(args: argparse.Namespace, folder: Path, console: Console) -> dict[str, Any]:
    comparison = Comparison(args, console)
    versions = {QUORATE: PRODUCT_VERSION}
    makers: Makers = {QUORATE: Quorate}
    if any(RABBITMQ in row.runs for row in comparison.rows):
        try:
            versions[RABBITMQ] = peers.bring_rabbitmq()
            makers[RABBITMQ] = RabbitMq
        except peers.Missing as missing:
            comparison.note(f"Without RabbitMQ: {missing}")
    try:
        program, versions[NATS] = peers.bring_nats()
        makers[NATS] = partial(Nats, NATS, program)
        makers[NATS_SYNC] = partial(Nats, NATS_SYNC, program, extra="sync_interval: always")
    except peers.Missing as missing:
        comparison.note(f"Without NATS: {missing}")
    start_s = time.monotonic()
    fsync_p50, fsync_p99 = fsync_ms(folder)
    try:
        await comparison.phase(DISK, folder / DISK, makers)
        with tempfile.TemporaryDirectory(prefix="quorate-compare-", dir="/dev/shm") as memory:
            await comparison.phase(TMPFS, Path(memory), makers)
    except asyncio.CancelledError:  # what was measured until then is kept
        comparison.note("It was stopped before its end.")
    return {
        "version": 1,
        "table": args.table,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": page.commit(),
        "quick": args.quick,
        "rounds": comparison.rounds,
        "minutes": round((time.monotonic() - start_s) / 60, 1),
        "machine": {**machine_facts(), "fsync_p50_ms": fsync_p50, "fsync_p99_ms": fsync_p99},
        "brokers": versions,
        "notes": comparison.notes,
        "runs": comparison.runs,
        "fsyncs": comparison.fsyncs,
    }


def main() -> int:
    args = arguments()
    results = args.output / args.table / "results.json"
    if args.render:
        document.write(json.loads(results.read_text()), args.output)
        return 0
    console = Console(width=None if sys.stdout.isatty() else 160)
    page.end_nodes_when_ended()
    folder = Path(tempfile.mkdtemp(prefix="quorate-compare-"))
    try:
        found = asyncio.run(compare(args, folder, console))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    document.write(found, args.output)
    verdicts = list(document.verdicts(found))
    for row, target, value in verdicts:
        mark = "[green]met[/]   " if target.met(value.median) else "[red]missed[/]"
        peer = f" to {TITLES[target.peer]}" if target.peer else ""
        console.print(
            f"{mark} {row.name:18} {target.text:14} {document.spread(value)}{peer}", highlight=False
        )
    met = sum(target.met(value.median) for _, target, value in verdicts)
    console.print(
        f"{met} of {len(verdicts)} targets met. Written to {args.output}/{args.table}.md."
    )
    for note in found["notes"]:
        console.print(note, style="yellow", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
