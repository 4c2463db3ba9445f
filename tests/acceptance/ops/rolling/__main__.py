"""`python -m tests.acceptance.ops.rolling`: prints what each client noticed of a rolling
restart.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from chaos.live.live_cluster import NotReadyError
from tests.acceptance.ops.rolling.rolling import GAP_MS_TARGET, Result, RollFailed, Rolling


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.ops.rolling", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=2, help="restarts of every node")
    parser.add_argument("--folder", type=Path, help="keep logs and history here")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rolling-") as made:
        folder = given.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            parser.error(f"{folder} is not empty: give another --folder")
        try:
            result = asyncio.run(Rolling(folder, print).run(given.rounds))
        except (RollFailed, NotReadyError) as error:
            print(f"failed: {error}", file=sys.stderr)
            return 1
    return show(result)


def show(result: Result) -> int:
    """The exit status: 1 when something was lost, or a client did not go on."""
    print(f"\n{'client':<22}{'longest gap':>12}{'at':>9}{'median':>10}{'events':>8}")
    for gap in result.gaps:
        print(
            f"{gap.client:<22}{gap.gap_ms:>9.0f} ms{gap.at_s:>7.1f} s{gap.median_ms:>7.1f} ms"
            f"{gap.events:>8}"
        )
    longest = max(gap.gap_ms for gap in result.gaps)
    met = "met" if longest <= GAP_MS_TARGET else "MISSED"
    print(f"longest of all: {longest:.0f} ms; target {GAP_MS_TARGET:.0f} ms: {met}")
    for verdict in result.verdicts:
        print(verdict.describe())
    for name in result.silent:
        print(f"{name} had no service after the last restart")
    good = all(verdict.valid is True for verdict in result.verdicts) and not result.silent
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
