"""Breaks a copy of the source in one named way after the other, and says who caught it."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.mutants import MUTANTS, SIMULATOR, Catcher, Mutant

ROOT = Path(__file__).parents[2]
#: What catchers run and read.
FOLDERS = ("cluster", "node", "quorate", "chaos", "tests", "docs")
FILES = ("pyproject.toml",)
#: A mutant may make whatever runs it stand still: that is caught as well. Far above what the
#: slowest catcher takes beside other work.
CATCHER_S_MAX = 1800.0
SAID = (
    re.compile(r"^FAILED (\S+?)(?: - .*)?$", re.MULTILINE),
    re.compile(r"^ERROR (\S+?)(?: - .*)?$", re.MULTILINE),
)
#: Fresh orders are drawn from so many.
DRAWS = 1_000_000
SEED = re.compile(r"^seed (\d+): ([^,\n]*)", re.MULTILINE)


class Survived(Exception):
    """Nothing saw it."""


@dataclass(frozen=True, slots=True)
class Caught:
    by: str
    said: str
    seconds: float


def broken(source: str, mutant: Mutant) -> str:
    count = source.count(mutant.old)
    if count != 1:
        raise ValueError(
            f"{mutant.name!r}: its text stands {count} times in {mutant.file}, not once: adapt"
            " tests/mutants/mutants.py to the source as it is"
        )
    return source.replace(mutant.old, mutant.new)


def copy_source(target: Path) -> None:
    skipped = shutil.ignore_patterns("__pycache__", "*.pyc", "node_modules")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, target / name, ignore=skipped)
    for name in FILES:
        shutil.copy(ROOT / name, target / name)


def run(catcher: Catcher, folder: Path) -> tuple[bool, str]:
    """Whether it failed, and what it said."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "first",
        "COLUMNS": "200",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", *catcher.arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=CATCHER_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return True, f"still running after {CATCHER_S_MAX:.0f} s"
    if process.returncode == 0:
        return False, said
    if catcher.arguments[0] == "pytest" and process.returncode != 1:
        raise RuntimeError(f"{' '.join(catcher.arguments)} could not run:\n{said}")
    return True, said


def gist(catcher: Catcher, said: str) -> str:
    """What failed, and in how many seeds."""
    if "--first" in catcher.arguments and (found := SEED.search(said)) is not None:
        first = int(catcher.arguments[catcher.arguments.index("--first") + 1])
        count = int(found[1]) - first + 1
        return f"{count} {'seed' if count == 1 else 'seeds'}: {found[2]}"
    for pattern in SAID:
        found = pattern.search(said)
        if found is not None:
            return found[1]
    return (said.strip().splitlines() or ["no output"])[-1]


def catch(
    mutant: Mutant,
    folder: Path,
    *,
    only: str | None = None,
    seeds: int | None = None,
    everyone: bool = False,
) -> list[Caught]:
    """By the first catcher that sees it; or by each that does, of its own and the simulator."""
    chosen = dict.fromkeys((*mutant.catchers, *((SIMULATOR,) if everyone else ())))
    caught: list[Caught] = []
    place = folder / re.sub(r"\W+", "-", mutant.name)
    copy_source(place)
    try:
        path = place / mutant.file
        path.write_text(broken(path.read_text(encoding="utf-8"), mutant), encoding="utf-8")
        for catcher in chosen:
            if only not in (None, catcher.kind):
                continue
            began_s = time.monotonic()
            arguments = list(catcher.arguments)
            if seeds is not None:
                arguments[arguments.index("--seeds") + 1] = str(seeds)
            failed, said = run(Catcher(catcher.kind, tuple(arguments)), place)
            if failed:
                seconds = time.monotonic() - began_s
                caught.append(Caught(catcher.kind, gist(catcher, said), seconds))
                if not everyone:
                    break
    finally:
        shutil.rmtree(place)
    if not caught:
        raise Survived(mutant.name)
    return caught


def sound(catchers: Sequence[Catcher], folder: Path, jobs: int) -> list[str]:
    """Catchers that fail without any mutant, which would prove nothing."""
    place = folder / "unbroken"
    copy_source(place)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda catcher: run(catcher, place), catchers))
    return [
        f"{' '.join(catcher.arguments)}: {gist(catcher, said)}"
        for catcher, (failed, said) in zip(catchers, results, strict=True)
        if failed
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", help="those with these words in name or file")
    parser.add_argument("--by", help="only by this kind of catcher: tests, raft fuzz, simulator")
    parser.add_argument("--all", action="store_true", help="each that catches it, not the first")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--draw",
        type=int,
        nargs="?",
        const=0,
        help="in an order drawn from this; alone: a fresh one",
    )
    parser.add_argument("--seconds", type=float, help="begin no other one after so long")
    parser.add_argument("--trust", action="store_true", help="do not run the catchers unbroken")
    args = parser.parse_args()
    chosen = [m for m in MUTANTS if args.only is None or args.only in f"{m.name} {m.file}"]
    console = Console(highlight=False, soft_wrap=True)
    if args.draw is not None:
        drawn = args.draw or random.SystemRandom().randrange(1, DRAWS)
        random.Random(drawn).shuffle(chosen)
        console.print(f"an order of their own; the same again: --draw {drawn}", markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    folder = Path(tempfile.mkdtemp(prefix="quorate-mutants-"))
    try:
        return _run(chosen, folder, console, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(chosen: Sequence[Mutant], folder: Path, console: Console, args: argparse.Namespace) -> int:
    if not args.trust:
        every = dict.fromkeys(
            each for m in chosen for each in m.catchers if args.by in (None, each.kind)
        )
        console.print(f"{len(every)} catchers, on the source as it is", markup=False)
        failing = sound(list(every), folder, args.jobs)
        if failing:
            console.print("\n".join(["these fail without any mutant:", *failing]), markup=False)
            return 2
    table = Table(title="mutants, and what catches each")
    for column in ("mutant", "file", "caught by", "which said", "chaos"):
        table.add_column(column, overflow="fold")
    table.add_column("s", justify="right")
    survivors: list[str] = []
    tried = 0
    until_s = None if args.seconds is None else time.monotonic() + args.seconds

    def one(mutant: Mutant) -> list[Caught] | None:
        if until_s is not None and time.monotonic() >= until_s:
            return None
        try:
            return catch(mutant, folder, only=args.by, everyone=args.all)
        except Survived:
            return []

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for mutant, caught in zip(chosen, pool.map(one, chosen), strict=True):
            if caught is None:
                continue
            tried += 1
            if not caught:
                survivors.append(mutant.name)
                table.add_row(mutant.name, mutant.file, "SURVIVED", "", mutant.build, "")
                console.print(f"SURVIVED: {mutant.name}", markup=False)
                continue
            by = ", ".join(each.by for each in caught)
            seconds = sum(each.seconds for each in caught)
            console.print(f"{by:>10}: {mutant.name} ({seconds:.0f} s)", markup=False)
            said = "\n".join(f"{each.by}: {each.said}" for each in caught)
            table.add_row(mutant.name, mutant.file, by, said, mutant.build, f"{seconds:.0f}")
    console.print(table)
    if survivors:
        console.print(f"{len(survivors)} of {tried} survived", markup=False)
        return 1
    console.print(f"all {tried} caught", markup=False)
    return 0
