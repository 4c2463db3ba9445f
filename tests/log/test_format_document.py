"""The worked example in docs/log-format.md is a real file, and still decodes."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.log.format import chain, decode_file_header
from cluster.log.reader import read
from tests.log.support import FOLDER, World

DOCUMENT = Path(__file__).parents[2] / "docs" / "log-format.md"


async def example() -> bytes:
    """The file that the document shows."""
    world = World()
    world.clock.ns, world.clock.skew_ms = 10**17, -(10**11)  # as the document begins
    log = await world.open()
    journal = log.journal(1)
    journal.set_term(3, "n1")
    journal.add(b"\0hello", 2, 3)
    log.write()
    await log.sync()
    journal.set_commit(2)
    log.write()
    return bytes(world.content(world.files()[0]))


def documented() -> bytes:
    found = re.search(r"```hex\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found
    return bytes.fromhex("".join(line[8:] for line in found[1].splitlines()))


async def test_the_documented_bytes_are_what_a_log_writes() -> None:
    assert documented() == await example()


def test_the_documented_bytes_decode_to_the_documented_records() -> None:
    world = World()
    world.disk.make_dir(FOLDER)
    world.disk.open(f"{FOLDER}/000000000001.log", create=True).append([documented()])
    rows = re.findall(r"^\| (\d+) \| ([a-z-]+), (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    stated = {(int(offset), kind) for offset, kind, _ in rows if int(offset) >= 80}
    records = list(read(FOLDER, disk=world.disk))
    assert {(r.offset, r.kind) for r in records} == stated
    entry = records[2]
    assert (entry.group, entry.index, entry.term, entry.command) == (1, 2, 3, b"\0hello")
    assert entry.hash == chain(bytes(16), 3, b"\0hello")
    assert entry.hash.hex() in DOCUMENT.read_text()
    header = decode_file_header(documented(), "example")
    assert f"salt `{header.salt:08x}`" in DOCUMENT.read_text()
    assert (header.identity.node, header.identity.cluster, header.size) == ("n1", "test", 80)
