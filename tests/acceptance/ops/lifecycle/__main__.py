"""`python -m tests.acceptance.ops.lifecycle`: the life of a release by the real helm; prints a
table.

`--server fake` is an API server of ours that pretends; `--server real` builds a kube-apiserver and
a controller manager with Go, and runs them with etcd. No container runs on either.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.acceptance.ops.chart.results import Outcome, Result, closing, console, rows
from tests.acceptance.ops.chart.tools import ToolMissing
from tests.acceptance.ops.lifecycle import fake, real
from tests.acceptance.ops.lifecycle.cluster import Cluster, CommandFailed, write_kubeconfig
from tests.acceptance.ops.lifecycle.steps import STEPS, Life


@asynccontextmanager
async def fake_cluster(folder: Path) -> AsyncGenerator[Cluster]:
    async with fake.serving() as (_, address):
        kubeconfig = folder / "kubeconfig"
        write_kubeconfig(kubeconfig, address)
        yield Cluster(
            "an API server of ours that pretends: no defaults, no admission, no containers",
            kubeconfig,
            folder,
        )


async def lived(cluster: Cluster) -> list[Result]:
    """Every step in turn; the first that fails ends it, since the next ones build upon it."""
    life = Life(cluster)
    results: list[Result] = []
    for name, step in STEPS.items():
        if results and results[-1].outcome is not Outcome.OK:
            results.append(Result("release", name, Outcome.NOT_RUN, "a step before it failed"))
            break
        try:
            seen = await step(life)
            results.append(Result("release", name, Outcome.OK, seen))
        except (AssertionError, CommandFailed) as failed:
            results.append(Result("release", name, Outcome.FAILED, str(failed)))
        except ToolMissing as missing:
            results.append(Result("release", name, Outcome.NOT_RUN, str(missing)))
    return results


async def _run(server: str) -> int:
    out = console()
    with tempfile.TemporaryDirectory(prefix="quorate-lifecycle-") as folder:
        clusters = {"fake": fake_cluster, "real": real.cluster}
        try:
            async with clusters[server](Path(folder)) as cluster:
                out.print(f"server: {cluster.name}", highlight=False)
                results = await lived(cluster)
        except ToolMissing as missing:
            out.print(f"not run: {missing}", highlight=False)
            return 1
    out.print(rows(results, "the life of a release"))
    return closing(out, results)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.ops.lifecycle", description=__doc__
    )
    parser.add_argument("--server", choices=["fake", "real"], default="fake")
    return asyncio.run(_run(parser.parse_args().server))


if __name__ == "__main__":
    sys.exit(main())
