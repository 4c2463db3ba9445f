"""`python -m tests.acceptance.clients`: every client does what it is known for; prints a table.

Clients of AMQP, or with --nats those of NATS. Without --broker, three Quorate nodes on loopback.
Fails when any step does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.acceptance.clients.brokers import Broker, GivenBroker, amqp, nats, quorate_nodes
from tests.acceptance.clients.roster import CLIENTS, NATS_CLIENTS, STEPS, Client, named
from tests.acceptance.clients.running import Outcome, Result, run_client

STYLES = {
    Outcome.OK: "green",
    Outcome.FAILED: "bold red",
    Outcome.NOT_RUN: "yellow",
    Outcome.NOT_OFFERED: "dim",
}
WIDTH_UNKNOWN = 140


@contextlib.asynccontextmanager
async def _broker(options: argparse.Namespace) -> AsyncGenerator[Broker]:
    if options.broker:
        yield GivenBroker(options.broker, options.nodes)
        return
    with tempfile.TemporaryDirectory(prefix="quorate-clients-") as folder:
        door = nats if options.nats else amqp
        async with quorate_nodes(Path(folder) / "cluster", door) as broker:
            yield broker


async def _run(clients: list[Client], options: argparse.Namespace, console: Console) -> int:
    results: list[Result] = []
    async with _broker(options) as broker:
        for client in clients:
            console.print(f"{client.name} ...", highlight=False)
            found = await run_client(client, broker)
            results += found
            if options.verbose:
                for each in found:
                    _line(console, each)
        console.print(f"\nclients of {broker.name}", highlight=False)
        console.print(_table(clients, results))
    for each in _reasons(results):
        _line(console, each)
    failed = [each for each in results if each.outcome is Outcome.FAILED]
    counts = {outcome: sum(r.outcome is outcome for r in results) for outcome in Outcome}
    console.print(
        f"{counts[Outcome.OK]} passed, {len(failed)} failed,"
        f" {counts[Outcome.NOT_RUN]} not run, {counts[Outcome.NOT_OFFERED]} not offered",
        highlight=False,
    )
    return 1 if failed else 0


def _reasons(results: list[Result]) -> list[Result]:
    """What needs a word, and each word once a client."""
    reasons: dict[tuple[str, str], Result] = {}
    for each in results:
        if each.outcome in {Outcome.FAILED, Outcome.NOT_RUN}:
            reasons.setdefault((each.client, each.detail), each)
    return list(reasons.values())


def _line(console: Console, result: Result) -> None:
    style = STYLES[result.outcome]
    console.print(
        f"  [{style}]{result.outcome.value:8}[/] {result.client} {result.step}"
        f" ({result.seconds:.1f} s): {escape(result.detail)}",
        highlight=False,
        soft_wrap=True,
    )


def _table(clients: list[Client], results: list[Result]) -> Table:
    table = Table("step", *(client.name for client in clients))
    by_place = {(each.step, each.client): each.outcome for each in results}
    for step in STEPS:
        row = [by_place.get((step, client.name)) for client in clients]
        if any(row):
            table.add_row(step, *(f"[{STYLES[o]}]{o.value}[/]" if o else "" for o in row))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.acceptance.clients", description=__doc__)
    parser.add_argument("--nats", action="store_true", help="the clients of NATS")
    parser.add_argument(
        "--broker", action="append", metavar="URL", help="a node that runs already; repeatable"
    )
    parser.add_argument(
        "--nodes",
        metavar="COMMAND",
        help="with --broker, for steps that kill a node: a command that takes `leader QUEUE`,"
        " `kill N` and `start-node N`, nodes numbered from 1 in the order of --broker",
    )
    parser.add_argument("--only", metavar="NAMES", help='clients, such as "pika,go"')
    parser.add_argument("-v", "--verbose", action="store_true", help="say how each step went")
    options = parser.parse_args()
    try:
        clients = named(options.only, NATS_CLIENTS if options.nats else CLIENTS)
    except ValueError as error:
        parser.error(str(error))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_UNKNOWN)
    return asyncio.run(_run(clients, options, console))


if __name__ == "__main__":
    sys.exit(main())
