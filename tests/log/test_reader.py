"""The files alone tell what happened."""

from __future__ import annotations

import io
import json
from itertools import pairwise

from cluster.codec.entries import encode_entry
from cluster.log import format as fmt
from cluster.log.dump import dump
from cluster.log.format import KIND_CLOCK, KIND_LINK_UP, chain, encode_record
from cluster.log.reader import (
    CORRUPT,
    Chains,
    Record,
    detail,
    read,
    read_header,
    read_snapshot,
    records,
    segments,
)
from cluster.machine.commands import Tick
from tests.log.support import FOLDER, World, fill, save


async def example() -> World:
    world = World(segment_bytes=1000)
    log = await world.open()
    journal = log.journal(4)
    journal.set_term(2, "n3")
    journal.add(b"\0" + encode_entry(1234, [Tick()]), 2, 2)
    journal.add(b"\1", 3, 2)
    log.note(KIND_LINK_UP, 0, 0, 0, b"\x82\x62n2\x07")
    fill(journal, 20, term=2)
    await save(log)
    journal.truncate_from(20)
    fill(journal, 3, term=3)
    await save(log)
    await journal.save_snapshot(10, 2, b"state", [(3, 4)])
    await log.close()
    return world


async def test_every_record_is_a_light_tuple_with_its_place() -> None:
    world = await example()
    found = list(read(FOLDER, disk=world.disk))
    assert [r.kind for r in found][:5] == [
        "group-created",
        "hard-state",
        "entry",
        "entry",
        "link-up",
    ]
    assert CORRUPT not in {r.kind for r in found}
    note = found[4]
    assert detail(note) == ["n2", 7]
    assert (note.hash, note.command) == (None, None)
    assert found[3].command == b"\1"
    assert all(a.wall_ns < b.wall_ns for a, b in pairwise(found))


async def test_segments_can_be_read_one_by_one() -> None:
    world = await example()
    files = segments(FOLDER, disk=world.disk)
    assert [f.number for f in files] == [1, 2]
    parts = [r for f in files for r in records(f.path, last=f.last, disk=world.disk)]
    assert parts == list(read(FOLDER, disk=world.disk))
    header = read_header(files[0].path, disk=world.disk)
    assert not isinstance(header, Record)
    assert header.identity.node == "n1"


async def test_a_snapshot_can_be_read_on_its_own() -> None:
    world = await example()
    found = read_snapshot(f"{FOLDER}/snapshots/4-10.snap", disk=world.disk)
    assert not isinstance(found, Record)
    group, snapshot = found
    assert (group, snapshot.index, snapshot.data, snapshot.live) == (4, 10, b"state", [(3, 4)])
    inode = world.disk.names[f"{FOLDER}/snapshots/4-10.snap"]
    assert inode is not None
    inode.content[30] ^= 1
    assert isinstance(read_snapshot(f"{FOLDER}/snapshots/4-10.snap", disk=world.disk), Record)
    assert [r.kind for r in read(FOLDER, disk=world.disk)][-1] == CORRUPT


async def test_a_forged_entry_with_a_good_checksum_breaks_the_chain() -> None:
    world = await example()
    path = segments(FOLDER, disk=world.disk)[0].path
    header = read_header(path, disk=world.disk)
    assert not isinstance(header, Record)
    victim = next(r for r in records(path, disk=world.disk) if r.index == 5 and r.kind == "entry")
    forged = encode_record(
        header.salt,
        1,
        victim.group,
        victim.index,
        victim.term,
        victim.wall_ns,
        victim.mono_ns,
        victim.payload[:-1] + b"!",
    )
    content = world.content(path.rpartition("/")[2])
    content[victim.offset : victim.offset + len(forged)] = forged
    wrong = [r for r in read(FOLDER, disk=world.disk) if r.kind == CORRUPT]
    assert [(r.offset, r.payload) for r in wrong] == [(victim.offset, b"hash chain broken")]


def test_a_chain_goes_on_behind_a_truncate_and_starts_anew_behind_a_gap() -> None:
    def entry(index: int, term: int, previous: bytes, body: bytes) -> Record:
        payload = chain(previous, term, body) + body
        return Record("f", 0, "entry", 1, index, term, 0, 0, payload)

    chains = Chains()
    one = entry(2, 1, bytes(16), b"a")
    two = entry(3, 1, one.payload[:16], b"b")
    other = entry(3, 2, one.payload[:16], b"c")
    assert [chains.check(r) for r in (one, two, other)] == [None] * 3
    assert chains.check(entry(4, 2, two.payload[:16], b"d")) == "hash chain broken"
    chains.skip()
    assert chains.check(entry(9, 2, b"?" * 16, b"e")) is None


async def test_the_dump_decodes_commands_and_filters() -> None:
    world = await example()
    out = io.StringIO()
    code = dump(
        FOLDER, out=out, disk=world.disk, group=4, first=2, last=3, as_json=True, kinds=["entry"]
    )
    assert code == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [r["type"] for r in rows] == ["segment", "segment", "entry", "entry", "summary"]
    assert rows[0]["node"] == "n1"
    assert "Tick" in rows[2]["command"]
    assert "now_ms=1234" in rows[2]["command"]
    assert rows[3]["command"] == "no-op"
    assert rows[4]["verdict"] == "sound"
    assert rows[4]["kinds"]["entry"] == 25
    out = io.StringIO()
    assert dump(FOLDER, out=out, disk=world.disk, kinds=["link-up"]) == 0
    assert "detail=['n2', 7]" in out.getvalue()


async def test_a_note_of_a_kind_from_the_future_is_skipped() -> None:
    world = World()
    log = await world.open()
    log.note(99, 1, 0, 0, b"?")
    log.note(KIND_CLOCK, 1, 0, 0, b"\xff")
    await log.close()
    assert (await world.open()).groups() == []
    assert "kind-99" in [r.kind for r in read(FOLDER, disk=world.disk)]


async def test_notes_of_kinds_that_this_release_does_not_know_are_skipped() -> None:
    """Later releases write more of them."""
    world = World()
    log = await world.open()
    journal = log.journal(1)
    for kind in range(fmt.KIND_NOTE, 256):
        log.note(kind, 0, 0, 0, b"\xff whatever it is")
        journal.add(b"\0" + bytes([kind]), journal.last_index + 1, 1)
    await log.close()

    kinds = [record.kind for record in read(FOLDER, disk=world.disk)]
    assert {f"kind-{kind}" for kind in range(200, 256)} <= {*kinds}
    again = await world.open()
    assert again.journal(1).last_index == 1 + 256 - fmt.KIND_NOTE
    await again.close()
