"""The command of a suite: its rows at our nodes or a server that runs, beside another one."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quorate.local import LocalClusterError
from tests.acceptance.rows.report import read_json, show, show_differences, write_json
from tests.acceptance.rows.suite import FAILED, Result, Server, ServerError, Suite

WIDTH = 140  # of the tables when they go to a file


@dataclass(frozen=True)
class Command:
    """What differs between suites."""

    suite: Suite
    scheme: str  # of addresses, such as "amqp"
    reference: str  # what the rows are about, such as "RabbitMQ"
    running: Callable[[str, str | None], Server]  # by its address and that of its management
    own: Callable[[Path], Server]  # with its data in the folder
    reference_of: Callable[[Path], Server]  # raises ServerError: it cannot be had here

    def main(self) -> int:
        args = self._arguments()
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
        folder = Path(tempfile.mkdtemp(prefix="quorate-rows-"))
        wrong = True
        try:
            product, results = self._ours(args, folder / "quorate", console)
            show(console, product, results)
            if args.json:
                write_json(args.json, product, results)
            wrong = any(result.result == FAILED for result in results)
            if other := self._theirs(args, folder / "reference", console):
                found = show_differences(console, self.suite, other[0], results, other[1])
                wrong |= any(not each.expected for each in found)
        except (ServerError, LocalClusterError, OSError) as error:
            console.print(f"{type(error).__name__}: {error}", highlight=False)
        if wrong and any(folder.iterdir()):
            console.print(f"What the servers wrote is in {folder}.", highlight=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return int(wrong)

    def _arguments(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(
            prog=f"python -m {self.suite.package.__name__}",
            description="Checks what a server does, row by row. Without --broker it starts three"
            " Quorate nodes on loopback and visits them.",
        )
        parser.add_argument("--broker", metavar="URL", help=f"{self.scheme}://... that runs")
        parser.add_argument(
            "--management",
            metavar="URL",
            help="http://... of its management API: some rows need it",
        )
        parser.add_argument("--only", metavar="ROWS", help='these rows: "A27,B0*"')
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
        parser.add_argument(
            "--compare",
            metavar="FILE|URL",
            help="print the differences from results written by --json, or from another server",
        )
        parser.add_argument(
            "--reference",
            action="store_true",
            help=f"print the differences from {self.reference}, where it can be had",
        )
        return parser.parse_args()

    def _ours(
        self, args: argparse.Namespace, folder: Path, console: Console
    ) -> tuple[str, list[Result]]:
        """The server of --broker, or nodes of our own."""
        if args.broker:
            return self._visited(self.running(args.broker, args.management), args.only, console)
        return self._visited(self.own(folder), args.only, console)

    def _theirs(
        self, args: argparse.Namespace, folder: Path, console: Console
    ) -> tuple[str, list[Result]] | None:
        """What to compare with, if anything."""
        if args.compare and args.compare.startswith((f"{self.scheme}://", f"{self.scheme}s://")):
            return self._visited(self.running(args.compare, None), args.only, console)
        if args.compare:
            return read_json(Path(args.compare))
        if not args.reference:
            return None
        try:
            server = self.reference_of(folder)
        except ServerError as error:
            console.print(f"{error}: nothing to compare with.", highlight=False)
            return None
        return self._visited(server, args.only, console)

    def _visited(
        self, server: Server, only: str | None, console: Console
    ) -> tuple[str, list[Result]]:
        """Every chosen check, one after the other."""
        columns = (
            TextColumn("{task.description}"),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        results = self.suite.skipped(only)
        try:
            server.start()
            with Progress(*columns, console=console, transient=True) as progress:
                todo = self.suite.chosen(only)
                task = progress.add_task(server.product, total=len(todo))
                for check in todo:
                    about = f"{server.product}: {check.__name__}"
                    progress.update(task, description=about)
                    results.append(self.suite.run(check, server))
                    progress.advance(task)
            return server.product, results
        finally:
            server.end()
