"""A post-mortem by Sail, in a process of its own: one process speaks to one engine.

    python -m tests.postmortem.by_sail ASKED

ASKED is JSON: paths, out, and what else was asked for.
"""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow import dataset

from chaos.builds import broken
from chaos.postmortem.schemas import TABLES

ROOT = Path(__file__).parents[2]


def by_sail(paths: list[str], out: Path, **asked: Any) -> int:
    """The exit status that the command would have."""
    told = json.dumps({"paths": paths, "out": str(out), **asked}, default=str)
    command = [sys.executable, "-m", "tests.postmortem.by_sail", told]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def differing(folder: Path, other: Path) -> dict[str, tuple[list[str], list[str]]]:
    """By table, the first rows that only one of the two has."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for name in TABLES:
        ours, theirs = Counter(rows_of(folder / name)), Counter(rows_of(other / name))
        if ours != theirs:
            found[name] = sorted(ours - theirs)[:3], sorted(theirs - ours)[:3]
    return found


def rows_of(table: Path) -> list[str]:
    """Each as text; where a row lies does not count."""
    files = sorted(map(str, table.rglob("*.parquet")))
    if not files:
        return []
    rows = dataset.dataset(files, partitioning="hive", partition_base_dir=str(table)).to_table()
    names = sorted(rows.column_names)
    return [json.dumps(row, default=repr) for row in rows.select(names).to_pylist()]


def main(told: str) -> None:
    from chaos.postmortem.pipeline import Asked, run
    from chaos.postmortem.session import start

    asked = json.loads(told)
    build = asked["build"] and partial(broken, asked["build"])
    files = {name: asked[name] and Path(asked[name]) for name in ("history", "confirmed")}
    spark = start(engine="sail")
    result = run(
        asked["paths"],
        Path(asked["out"]),
        spark=spark,
        asked=Asked(build=build or nullcontext, **files),
    )
    spark.stop()
    print(result.status)


if __name__ == "__main__":
    main(sys.argv[1])
