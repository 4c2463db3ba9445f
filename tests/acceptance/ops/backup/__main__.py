"""`python -m tests.acceptance.ops.backup`: clusters are backed up, destroyed, restored; a table
says how.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.acceptance.ops.backup.scenes import Verdict, from_archive, under_load

SCENES = {"load": under_load, "archive": from_archive}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.ops.backup", description=__doc__
    )
    parser.add_argument("--only", choices=SCENES, help="this scene alone")
    parser.add_argument("--folder", type=Path, help="keep everything here")
    given = parser.parse_args()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="backup-") as made:
        for name, scene in SCENES.items():
            if given.only in (None, name):
                folder = (given.folder or Path(made)) / name
                verdicts += asyncio.run(scene(folder, lambda text: print(text, flush=True)))
    return show(verdicts)


def show(verdicts: list[Verdict]) -> int:
    """The exit status."""
    table = Table("scene", "what", "", "found")
    for each in verdicts:
        mark = "[green]ok[/green]" if each.ok else "[red]FAILED[/red]"
        table.add_row(each.scene, each.what, mark, each.detail)
    Console().print(table)
    failed = [each for each in verdicts if not each.ok]
    print(f"{len(verdicts) - len(failed)} of {len(verdicts)} as they must be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
