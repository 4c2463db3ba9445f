"""`quorate` as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def begin(*words: str, **environment: str) -> Process:
    """Without the settings of who runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUORATE_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quorate", *words),
        cwd=ROOT,
        env=kept | environment,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
    )


async def command(*words: str, **environment: str) -> tuple[int, str, str]:
    """Status, standard output, standard error."""
    process = await begin(*words, **environment)
    out, said = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), said.decode()
