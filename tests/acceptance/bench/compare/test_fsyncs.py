from __future__ import annotations

import asyncio
import shutil
import sys
from pathlib import Path

import pytest

from tests.acceptance.bench.compare.fsyncs import TraceError, counted

PROGRAM = """
import os, sys
print(flush=True)
sys.stdin.readline()
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for _ in range(7):
    os.write(file, b"x")
    os.fdatasync(file)
os.fsync(file)
print(flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
async def test_every_sync_of_a_process_is_counted(tmp_path: Path):
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(tmp_path / "file")),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        try:
            async with counted([process.pid]) as found:
                process.stdin.write(b"\n")
                await process.stdout.readline()
        except TraceError as refused:
            pytest.skip(f"strace may not trace here: {refused}")
        assert found == [8]
    finally:
        process.stdin.close()
        await process.wait()
