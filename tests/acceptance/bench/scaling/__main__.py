"""`python -m tests.acceptance.bench.scaling`: how cost grows with one thing at a time."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.version import PRODUCT_VERSION
from tests.acceptance.bench import page
from tests.acceptance.bench.measure import fsync_ms, machine_facts
from tests.acceptance.bench.scaling import document
from tests.acceptance.bench.scaling.dimensions import DIMENSIONS, FULL, QUICK
from tests.acceptance.bench.scaling.sums import least_disturbed

#: Of one dimension; what takes longer is told as failed.
DIMENSION_S_MAX = 600.0
WIDTH = 140  # of the table when it goes to a file


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.bench.scaling", description=__doc__
    )
    parser.add_argument("--quick", action="store_true", help="fewer and shorter points")
    parser.add_argument(
        "--only",
        metavar="DIMENSIONS",
        help=f"with commas, of {', '.join(DIMENSIONS)}; keeps others",
    )
    parser.add_argument(
        "--again", action="store_true", help="keep each point that was less disturbed before"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/scaling"), help="folder for what is written"
    )
    parser.add_argument(
        "--render", action="store_true", help="only write the page anew, from the results there"
    )
    return parser.parse_args()


async def measure(
    names: list[str], quick: bool, folder: Path, console: Console
) -> tuple[list[dict[str, Any]], list[str]]:
    """Points, and what went wrong."""
    points: list[dict[str, Any]] = []
    notes: list[str] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        for number, name in enumerate(names, 1):
            task = progress.add_task(f"{number}/{len(names)} {name}")
            place = folder / name
            try:
                async with asyncio.timeout(DIMENSION_S_MAX):
                    async for point in DIMENSIONS[name](place, QUICK if quick else FULL):
                        points.append({"dimension": name, **point._asdict()})
                        said = document.line_of(name, point.series, point.at, point.figures)
                        progress.console.print(said, highlight=False)
            except Exception as error:  # noqa: BLE001 - the others go on, and the page says so
                notes.append(f"{name} was not finished: {type(error).__name__}: {error}")
                progress.console.print(traceback.format_exc(), style="yellow")
            finally:
                shutil.rmtree(place, ignore_errors=True)
            progress.stop_task(task)
    return points, notes


def earlier(results: Path) -> dict[str, Any]:
    return json.loads(results.read_text()) if results.exists() else {"points": [], "notes": []}


def table_of(found: document.Document) -> Table:
    table = Table(title="What a point cost", box=box.SIMPLE_HEAD, title_justify="left")
    for heading in ("dimension", "what", "at"):
        table.add_column(heading, no_wrap=True)
    for heading in document.FIGURES.values():
        table.add_column(heading, justify="right")
    for point in found["points"]:
        cells = document.cells_of(point["figures"], document.FIGURES)
        table.add_row(point["dimension"], point["series"], f"{point['at']:,.0f}", *cells)
    return table


def main() -> int:
    args = arguments()
    results = args.output / "scaling" / "results.json"
    if args.render:
        document.write(json.loads(results.read_text()), args.output)
        return 0
    names = args.only.split(",") if args.only else list(DIMENSIONS)
    if unknown := set(names) - set(DIMENSIONS):
        print(f"no dimension {', '.join(unknown)}; there are {', '.join(DIMENSIONS)}")
        return 2
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    page.end_nodes_when_ended()
    folder = Path(tempfile.mkdtemp(prefix="quorate-scaling-"))
    start_s = time.monotonic()
    try:
        fsync_p50, fsync_p99 = fsync_ms(folder)
        points, notes = asyncio.run(measure(names, args.quick, folder, console))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    before: dict[str, Any] = (
        earlier(results) if args.only or args.again else {"points": [], "notes": []}
    )
    old_points = [point for point in before["points"] if point["dimension"] not in names]
    if args.again:
        points = least_disturbed(before["points"], points)
    else:
        points = old_points + points
    old_notes = [note for note in before["notes"] if note.split()[0] not in names]
    found: document.Document = {
        "version": 1,
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": page.commit(),
        "product": PRODUCT_VERSION,
        "quick": args.quick,
        "minutes": round(before.get("minutes", 0) + (time.monotonic() - start_s) / 60, 1),
        "machine": {**machine_facts(), "fsync_p50_ms": fsync_p50, "fsync_p99_ms": fsync_p99},
        "notes": old_notes + notes,
        "points": sorted(points, key=lambda point: list(DIMENSIONS).index(point["dimension"])),
    }
    document.write(found, args.output)
    console.print(table_of(found))
    console.print(f"Written to {args.output}/scaling.md.", highlight=False)
    for note in notes:
        console.print(note, style="yellow", highlight=False)
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(main())
