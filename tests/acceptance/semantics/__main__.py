"""`python -m tests.acceptance.semantics`: one named check per row, at Quorate or any other AMQP
broker.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import pika.exceptions
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quorate.local import LocalClusterError
from tests.acceptance.semantics import rabbitmq
from tests.acceptance.semantics.brokers import Broker, BrokerError, QuorateNodes
from tests.acceptance.semantics.report import read_json, show, show_differences, write_json
from tests.acceptance.semantics.runner import FAILED, Result, checks, chosen, not_visible, run

WIDTH = 140  # of the tables when they go to a file


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.semantics",
        description="Checks what a broker does, row by row. Without --broker it starts three"
        " Quorate nodes on loopback and visits them.",
    )
    parser.add_argument("--broker", metavar="URL", help="amqp://... of a broker that runs")
    parser.add_argument(
        "--management", metavar="URL", help="http://... of its management API: some rows need it"
    )
    parser.add_argument("--only", metavar="ROWS", help='these rows: "A27,B0*"')
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--compare",
        metavar="FILE|URL",
        help="print the differences from results written by --json, or from another broker",
    )
    parser.add_argument(
        "--rabbitmq",
        action="store_true",
        help="print the differences from the installed RabbitMQ, if there is one",
    )
    return parser.parse_args()


def visit_all(broker: Broker, only: str | None, console: Console) -> list[Result]:
    """Every chosen check, one after the other."""
    columns = (
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    results = not_visible(only)
    with Progress(*columns, console=console, transient=True) as progress:
        todo = chosen(checks(), only)
        task = progress.add_task(broker.product, total=len(todo))
        for check in todo:
            progress.update(task, description=f"{broker.product}: {check.__name__}")
            results.append(run(check, broker))
            progress.advance(task)
    return results


def ours(args: argparse.Namespace, folder: Path, console: Console) -> tuple[str, list[Result]]:
    """The broker of --broker, or three nodes of our own."""
    if args.broker:
        broker = Broker("", args.broker, args.management)
        broker.arrive()
        return broker.product, visit_all(broker, args.only, console)
    nodes = QuorateNodes(folder / "quorate")
    try:
        nodes.start()
        return nodes.product, visit_all(nodes, args.only, console)
    finally:
        nodes.end()


def theirs(
    args: argparse.Namespace, folder: Path, console: Console
) -> tuple[str, list[Result]] | None:
    """What to compare with, if anything."""
    if args.compare and args.compare.startswith(("amqp://", "amqps://")):
        broker = Broker("", args.compare)
        broker.arrive()
        return broker.product, visit_all(broker, args.only, console)
    if args.compare:
        return read_json(Path(args.compare))
    if not args.rabbitmq:
        return None
    if not rabbitmq.installed():
        console.print("RabbitMQ is not installed: nothing to compare with.", highlight=False)
        return None
    node = rabbitmq.RabbitNode(folder / "rabbitmq")
    try:
        node.start()
        return node.product, visit_all(node, args.only, console)
    finally:
        node.end()


def main() -> int:
    args = arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    folder = Path(tempfile.mkdtemp(prefix="quorate-semantics-"))
    wrong = True
    try:
        product, results = ours(args, folder, console)
        show(console, product, results)
        if args.json:
            write_json(args.json, product, results)
        wrong = any(result.result == FAILED for result in results)
        if other := theirs(args, folder, console):
            found = show_differences(console, other[0], results, other[1])
            wrong |= any(not each.expected for each in found)
    except (BrokerError, LocalClusterError, OSError, pika.exceptions.AMQPError) as error:
        console.print(f"{type(error).__name__}: {error}", highlight=False)
    if wrong and any(folder.iterdir()):
        console.print(f"What the brokers wrote is in {folder}.", highlight=False)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
