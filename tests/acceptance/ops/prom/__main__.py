"""`python -m tests.acceptance.ops.prom`: a real Prometheus on three nodes under load, asked
what boards ask.

Every expression of the dashboards must have data, every rule must load, the names must be such as
Prometheus likes, and rules must notice nodes that are killed. Fails when anything does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trustme
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from quorate.local import LocalCluster, LocalClusterError
from tests.acceptance.ops.prom import checks, dashboards, rabbitmq
from tests.acceptance.ops.prom.checks import Outcome, Verdict
from tests.acceptance.ops.prom.deaths import deaths
from tests.acceptance.ops.prom.load import load
from tests.acceptance.ops.prom.server import NAMESPACE, Prometheus, installed, prometheus
from tests.architecture.sources import ROOT
from tests.local_nodes import three_nodes

CHART = ROOT / "helm/quorate/files"
OURS = CHART / "dashboards/quorate.json"
RULES = CHART / "rules/quorate.yaml"
CLUSTER = "local"  # as LocalCluster names it
STYLES = {Outcome.OK: "green", Outcome.FAILED: "bold red", Outcome.EXCUSED: "yellow"}
WIDTH_UNKNOWN = 140


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.ops.prom", description=__doc__
    )
    parser.add_argument(
        "--rabbitmq", type=Path, metavar="FOLDER", help="RabbitMQ's own boards and rules, as files"
    )
    parser.add_argument(
        "--seconds", type=float, default=20, help="of load before anything is asked (%(default)s)"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        metavar="SECONDS",
        help="how long what has no data yet is asked again (%(default)s)",
    )
    parser.add_argument("--quiet", action="store_true", help="print only what is not ok")
    return parser.parse_args()


async def _boards(
    server: Prometheus, theirs: rabbitmq.Files | None, *, until: float
) -> list[Verdict]:
    own = {"namespace": NAMESPACE, "cluster": CLUSTER, "node": ".*"}
    found = await checks.expressions(
        server, dashboards.targets(dashboards.read(OURS)), own, until=until
    )
    variables = {"namespace": NAMESPACE, "rabbitmq_cluster": CLUSTER}
    by_name = [*checks.names(), *checks.read_by(RULES, "what our rules read")]
    if theirs:
        by_name += checks.read_by(theirs.rules, "what RabbitMQ's rules read")
    found += await checks.expressions(server, by_name, variables, until=until)
    for name, file in theirs.dashboards.items() if theirs else ():
        board = dashboards.targets(dashboards.read(file))
        given = {**variables, "endpoint": rabbitmq.DASHBOARDS[name]}
        found += await checks.expressions(server, board, given, until=until)
    return found


def _tls(folder: Path) -> str:
    """Settings of a listener with a certificate, so that there is one that can expire."""
    certificate = trustme.CA().issue_cert("127.0.0.1")
    chain, key = folder / "certificate.pem", folder / "key.pem"
    certificate.cert_chain_pems[0].write_to_path(str(chain))
    certificate.private_key_pem.write_to_path(str(key))
    key.chmod(0o600)
    return f"amqps = '127.0.0.1:0'\n[tls]\nclient_cert = '{chain}'\nclient_key = '{key}'\n"


async def _verdicts(
    options: argparse.Namespace, theirs: rabbitmq.Files | None, folder: Path, console: Console
) -> list[Verdict]:
    files = [RULES, *([theirs.rules] if theirs else [])]
    cluster: LocalCluster
    async with (
        three_nodes(folder / "cluster", settings=_tls(folder)) as cluster,
        prometheus(folder / "prometheus", cluster.nodes, files) as server,
    ):
        async with load(cluster.nodes):
            console.print(f"Prometheus is at {server.url}; load for {options.seconds:g} s")
            await asyncio.sleep(options.seconds)
            until = time.monotonic() + options.patience
            found = await _boards(server, theirs, until=until)
            found += await checks.scrapes(server)
            found += await checks.loaded_rules(server, until=until)
            found += await checks.lint(cluster.nodes)
        found += await checks.rule_files(files)
        return found + await deaths(server, cluster, patience=options.patience)


def _show(console: Console, found: Sequence[Verdict], *, quiet: bool) -> None:
    table = Table("", "part", "verdict", "", title="What Prometheus says", title_justify="left")
    subject = ""
    for each in found:
        if quiet and each.outcome is Outcome.OK:
            continue
        shown = each.subject if each.subject != subject else ""
        subject = each.subject
        verdict = f"[{STYLES[each.outcome]}]{each.outcome.value}[/]"
        table.add_row(escape(shown), escape(each.part), verdict, escape(each.detail))
    console.print(table)
    for each in found:
        if each.outcome is Outcome.FAILED and each.expr:
            text = f"{each.subject}: {each.part}: {each.detail}\n  {each.expr}"
            console.print(escape(text), highlight=False, soft_wrap=True)


def main() -> int:
    options = _arguments()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_UNKNOWN)
    if not installed():
        console.print("prometheus or promtool is missing. On Debian: apt-get install prometheus")
        return 2
    # Clients that are told that their node ends say so, at length.
    logging.disable(logging.ERROR)
    folder = Path(tempfile.mkdtemp(prefix="quorate-prometheus-"))
    try:
        theirs = rabbitmq.files(options.rabbitmq) if options.rabbitmq else None
        found = asyncio.run(_verdicts(options, theirs, folder, console))
    except (FileNotFoundError, LocalClusterError) as error:
        console.print(escape(str(error)), highlight=False)
        return 2
    _show(console, found, quiet=options.quiet)
    for name, digest in theirs.sums().items() if theirs else ():
        console.print(f"{name}: sha256 {digest}", highlight=False)
    if theirs is None:
        console.print(f"SKIPPED: {rabbitmq.HOW_TO_GET}", style="yellow", highlight=False)
    counts = Counter(each.outcome for each in found)
    failed = counts[Outcome.FAILED]
    console.print(
        f"{counts[Outcome.OK]} passed, {failed} failed, {counts[Outcome.EXCUSED]} excused",
        highlight=False,
    )
    if failed:
        console.print(f"What they wrote is in {folder}.", highlight=False)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
