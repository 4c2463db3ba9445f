"""`python -m chaos.simulator --seeds 300`: many runs of the real cluster under virtual time, each
from its seed.

Exit status: 0 no violation; 1 a promise was broken; 2 a run got stuck after its faults had ended; 3
something crashed. With `--stock` the stock PySyncObj runs under the same harness, and the
violations it shows are what is wanted: exit status 1 when none was found.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import multiprocessing
import os
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from chaos.quiet import quiet
from chaos.simulator.plan import ALL_FEATURES, FRESH_FROM
from chaos.simulator.run import Result, Status, run_seed
from chaos.simulator.stock import SCENARIOS, StockResult, run_stock
from quorate.lifetime import end_with

FAULTS = (
    "kills",
    "power losses",
    "power losses, written back in any order",
    "terminations",
    "pauses",
    "partitions",
    "one-way partitions",
    "resets",
    "rejected links",
    "slow disks",
    "failing fsyncs",
    "full disks",
    "wiped disks",
    "old copies",
    "damage: log_bit",
    "damage: snapshot_bit",
    "clock jumps",
    "clock jumps by days",
    "most clocks wrong",
    "conflicts provoked",
    "directed strikes",
    "backups",
    "backups refused",
    "backups restored",
    "recoveries",
    "recoveries refused: members were changing",
    "groups without a copy left",
    "groups moved",
    "nodes replaced",
    "nodes upgraded",
    "starts with older links",
    "client resets",
    "consumer crashes",
)
STATES = (
    "leaders elected",
    "log truncations",
    "snapshots",
    "snapshot installs",
    "entries committed",
    "messages on links",
    "fsyncs",
    "starts",
    "nodes that stopped themselves",
    "nodes that ended when removed",
    "damage refused",
)
LOAD = (
    "goodbyes",
    "subscriptions",
    "messages confirmed",
    "publishes resent",
    "publishes refused",
    "publishes unknown",
    "duplicates dropped",
    "deliveries",
    "redeliveries",
    "messages settled",
    "messages returned",
    "messages put aside",
    "messages fetched",
    "messages retimed",
    "messages discarded",
    "dead letters",
    "AMQP connections",
    "AMQP channels closed",
    "AMQP consumers cancelled",
    "republished by the client",
    "limited transactions committed",
    "limited transactions refused",
    "limited transactions unknown",
    "imports ok",
    "imports refused",
    "imports unknown",
    "purges",
    "policies changed",
    "exchanges declared and bound",
    "publishes repeated by id",
    "queues left to expire",
    *(f"feature: {name}" for name in ALL_FEATURES),
)
#: Fresh seeds are drawn from so many.
FRESH_SEEDS = 1_000_000_000


def _run_seed(seed: int) -> Result:
    quiet()
    return run_seed(seed)


def _run_stock(seed: int) -> list[StockResult]:
    quiet()
    return [run_stock(seed, scenario) for scenario in SCENARIOS]


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    console = Console(highlight=False, soft_wrap=True)
    first = fresh_seed() if options.first is None else options.first
    seeds = [options.seed] if options.seed is not None else range(first, first + options.seeds)
    if options.stock:
        return _stock(console, seeds, options.jobs)
    if options.seed is not None:
        quiet()
        result = run_seed(options.seed, show=print if options.events else None)
        _explain(console, result, whole=True)
        _table(console, [result])
        return int(result.status)
    again = f"python -m chaos.simulator --seeds {options.seeds} --first {first}"
    console.print(f"seeds from {first} on; the same again: {again}", markup=False)
    return _swarm(console, seeds, options.jobs, until_failure=options.until_failure)


def fresh_seed() -> int:
    """Nobody ran it before, and it draws every kind of fault and load."""
    return secrets.randbelow(FRESH_SEEDS) + FRESH_FROM


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.simulator", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, help="the first of them; by default a fresh one")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--events", action="store_true", help="with --seed: print a line an event")
    parser.add_argument(
        "--stock", action="store_true", help="the stock PySyncObj under the same harness"
    )
    parser.add_argument("--until-failure", action="store_true", help="end with the first failure")
    parser.add_argument("--jobs", type=int, default=2, help="processes to run seeds in")
    return parser.parse_args(arguments)


Outcome = TypeVar("Outcome")


def _each(
    console: Console, work: Callable[[int], Outcome], seeds: Sequence[int], jobs: int
) -> Generator[Outcome]:
    """Results as they come, under a progress bar; without a terminal, a line for each tenth."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    context = multiprocessing.get_context("spawn")
    with (
        Progress(*columns, console=console) as progress,
        concurrent.futures.ProcessPoolExecutor(jobs, context, end_with, (os.getpid(),)) as pool,
    ):
        task = progress.add_task("seeds", total=len(seeds))
        futures = [pool.submit(work, seed) for seed in seeds]
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
                progress.advance(task)
                if not console.is_terminal and done * 10 % len(seeds) < 10:
                    console.print(f"{done} of {len(seeds)} seeds have ended", markup=False)
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _swarm(console: Console, seeds: Sequence[int], jobs: int, *, until_failure: bool) -> int:
    results: list[Result] = []
    try:
        with contextlib.closing(_each(console, _run_seed, seeds, jobs)) as running:
            for result in running:
                results.append(result)
                if result.status is not Status.OK:
                    _explain(console, result, whole=False)
                    if until_failure:
                        break
    finally:
        _table(console, results)
    failed = Counter(result.status for result in results if result.status is not Status.OK)
    if not failed:
        console.print(f"[bold green]no violation in {len(results)} seeds[/]")
        return int(Status.OK)
    words = ", ".join(f"{count} {status.name.lower()}" for status, count in sorted(failed.items()))
    console.print(f"[bold red]{sum(failed.values())} of {len(results)} seeds failed: {words}[/]")
    # A broken promise is worse news than a crash, a crash than a run that did not end.
    return int(next(s for s in (Status.UNSAFE, Status.CRASHED, Status.STUCK) if s in failed))


def _explain(console: Console, result: Result, *, whole: bool) -> None:
    word = {
        Status.OK: "[green]ok[/]",
        Status.UNSAFE: "[red]UNSAFE[/]",
        Status.STUCK: "[yellow]STUCK[/]",
        Status.CRASHED: "[magenta]CRASHED[/]",
    }[result.status]
    console.print(
        f"seed {result.seed}: {word}, {result.simulated_s:.1f} simulated seconds,"
        f" trace {result.trace}"
    )
    console.print(result.plan, markup=False)
    for violation in result.violations:
        console.print(f"  {violation}", markup=False)
    for verdict in result.verdicts:
        if whole or verdict.valid is not True:
            console.print(f"  {verdict.describe()}", markup=False)
    if result.status is not Status.OK:
        console.print(
            f"  replay: python -m chaos.simulator --seed {result.seed} --events\n", markup=False
        )


def _table(console: Console, results: Sequence[Result]) -> None:
    counts: Counter[str] = Counter()
    for result in results:
        counts.update(result.counts)
    table = Table(title=f"Faults, states and load of {len(results)} runs")
    table.add_column("what")
    table.add_column("in all", justify="right")
    table.add_column("runs with any", justify="right")
    for names in (FAULTS, STATES, LOAD):
        for name in names:
            runs = sum(1 for result in results if result.counts[name])
            table.add_row(name, f"{counts[name]:,}" if runs else "never", str(runs))
        table.add_section()
    simulated_s = sum(result.simulated_s for result in results)
    table.add_row("simulated seconds", f"{simulated_s:,.0f}", "")
    console.print(table)


def _stock(console: Console, seeds: Sequence[int], jobs: int) -> int:
    results = [each for pair in _each(console, _run_stock, seeds, jobs) for each in pair]
    table = Table(title="The stock PySyncObj 0.3.17 under the same harness")
    for column in (
        "scenario",
        "seeds",
        "seeds with violations",
        "seeds that lost acknowledged",
        "lost",
    ):
        table.add_column(column, justify="left" if column == "scenario" else "right")
    for scenario in SCENARIOS:
        mine = [result for result in results if result.scenario == scenario]
        lost = sum(result.lost for result in mine)
        acknowledged = sum(result.acknowledged for result in mine)
        table.add_row(
            scenario,
            str(len(mine)),
            str(sum(1 for result in mine if result.violations)),
            str(sum(1 for result in mine if result.lost)),
            f"{lost:,} of {acknowledged:,}",
        )
    console.print(table)
    kinds: Counter[str] = Counter()
    examples: dict[str, str] = {}
    for result in sorted(results, key=lambda result: result.seed):
        for violation in result.violations:
            kinds[violation.invariant] += 1
            examples.setdefault(
                violation.invariant,
                f"seed {result.seed}, {result.scenario}: {violation.describe()}",
            )
    for kind, count in kinds.most_common():
        console.print(f"{kind}: {count:,} times, for example\n  {examples[kind]}", markup=False)
    return 0 if kinds else 1
