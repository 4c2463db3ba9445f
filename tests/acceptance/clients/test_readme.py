"""What README and docs/amqp.md say to those who come from RabbitMQ, done against three nodes.

Only the ports are others: those of `make up` may be taken.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from quorate.local import PORTS, LocalCluster

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
#: A program that takes longer hangs.
LINE_S_MAX = 200.0
FILE = re.compile(r"# (\w+\.py)\n")

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("clients"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("readme") / "cluster"
    cluster = LocalCluster.prepare(folder, preferred_ports=False)
    try:
        await cluster.start_all()
        await cluster.until_ready()
        yield cluster
    finally:
        await cluster.stop()


class Section:
    """The code of one section: files to write, and lines for a shell."""

    def __init__(self, document: str, title: str, cluster: LocalCluster) -> None:
        text = (ROOT / document).read_text(encoding="utf-8")
        body = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
        for number, node in enumerate(cluster.nodes):
            for kind, first in PORTS.items():
                port = getattr(node, kind)
                body = body.replace(f"127.0.0.1:{first + number}", f"127.0.0.1:{port}")
        self.files: dict[str, str] = {}
        self.lines: list[str] = []
        for language, code in BLOCK.findall(body):
            if language == "python":
                name = FILE.match(code)
                self.files[name[1] if name else "program.py"] = code
            elif language == "sh":
                self.lines += code.splitlines()

    def write(self, folder: Path) -> None:
        for name, code in self.files.items():
            (folder / name).write_text(code, encoding="utf-8")


async def start(line: str, folder: Path, **environment: str) -> asyncio.subprocess.Process:
    """As in a shell whose environment is the one of these tests."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return await asyncio.create_subprocess_shell(
        f"exec {line}",
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", **environment},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def printed(line: str, folder: Path, **environment: str) -> str:
    process = await start(line, folder, **environment)
    try:
        output, _ = await asyncio.wait_for(process.communicate(), LINE_S_MAX)
    except TimeoutError:
        pytest.fail(f"{line}: it does not end")
    finally:
        await end(process)
    assert process.returncode == 0, f"{line}: {output.decode()}"
    return output.decode()


async def end(process: asyncio.subprocess.Process) -> None:
    """With all that it started."""
    if process.returncode is None:
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    await process.communicate()


@asynccontextmanager
async def worker(line: str, folder: Path) -> AsyncIterator[None]:
    """Listening, until the block is left."""
    process = await start(line, folder)
    assert process.stdout is not None
    said = b""
    try:
        while b" ready." not in said:
            more = await asyncio.wait_for(process.stdout.readline(), LINE_S_MAX)
            said += more
            assert more, f"{line}: {said.decode()}"
        yield
    finally:
        await end(process)


async def test_pika_and_celery_work_as_readme_says(cluster: LocalCluster, tmp_path: Path):
    section = Section("README.md", "From RabbitMQ", cluster)
    section.write(tmp_path)
    in_background, *others = section.lines

    async with worker(in_background, tmp_path):
        outputs = [await printed(line, tmp_path) for line in others]

    assert set(section.files) == {"hello.py", "tasks.py"}
    assert outputs == ["message 0\nmessage 1\nmessage 2\n", "5\n"]


async def test_the_native_client_works_as_readme_says(cluster: LocalCluster, tmp_path: Path):
    section = Section("README.md", "From Python", cluster)
    section.write(tmp_path)

    assert await printed("python program.py", tmp_path) == "b'hello'\n"


async def test_docs_show_how_to_reach_any_node_and_make_users(
    cluster: LocalCluster, tmp_path: Path
):
    section = Section("docs/amqp.md", "Connecting", cluster)
    section.write(tmp_path)

    await printed("python program.py", tmp_path)
    for line in section.lines:
        await printed(line, tmp_path, QUORATE_URL=cluster.urls[0])
    held = await printed("quorate queue list", tmp_path, QUORATE_URL=cluster.urls[0])
    users = await printed("quorate user list", tmp_path, QUORATE_URL=cluster.urls[0])

    assert "audit" in held
    assert "shop" in users
