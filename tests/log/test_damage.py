"""Torn ends are cut; every other damage stops the node and is located."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.log import LogCorrupt
from cluster.log.dump import dump
from cluster.log.reader import CORRUPT, TORN, read
from tests.log.support import FOLDER, World, command, fill, save


async def written(*, closed: bool = False, segment_bytes: int = 1 << 20) -> World:
    """A log of two groups, three saves and a term; the last save is not followed by a mark."""
    world = World(segment_bytes=segment_bytes)
    log = await world.open()
    for _ in range(3):
        log.journal(1).set_term(log.journal(1).current_term + 1, "n1")
        fill(log.journal(1), 4, size=100)
        fill(log.journal(2), 3, size=30)
        await save(log)
    if closed:
        await log.close()
    return world


def offsets(world: World) -> list[tuple[str, int, int]]:
    return [
        (r.file.rpartition("/")[2], r.offset, 48 + len(r.payload))
        for r in read(FOLDER, disk=world.disk)
    ]


async def test_a_torn_tail_of_every_length_is_cut() -> None:
    base = await written()
    ((name, last, size),) = offsets(base)[-1:]
    whole = bytes(base.content(name))
    assert last + size == len(whole)
    for length in range(last, len(whole)):
        world = World()
        world.disk = base.disk.after_crash()
        world.tear(name, length)
        log = await world.open()
        assert log.cut_bytes == length - last
        assert (log.journal(1).last_index, log.journal(2).last_index) == (13, 9)
        assert log.journal(2).read(9) == command(9, 1, 30)
        assert bytes(world.content(name)) == whole[:last]


async def test_sectors_that_never_reached_the_platter_are_a_torn_tail() -> None:
    world = World()
    log = await world.open()
    fill(log.journal(1), 5)
    await save(log)
    synced = len(world.content("000000000001.log"))
    fill(log.journal(1), 40, size=300)
    log.write()
    content = world.content("000000000001.log")
    hole = (synced // 512 + 4) * 512
    content[hole : hole + 1024] = bytes(1024)
    world.disk.names[f"{FOLDER}/000000000001.log"].durable = len(content)  # type: ignore[union-attr]
    kinds = [r.kind for r in read(FOLDER, disk=world.disk)]
    assert kinds[-1] == TORN
    assert CORRUPT not in kinds
    world.crash()
    log = await world.open()
    assert 6 <= log.journal(1).last_index < 46


async def test_a_hole_in_what_is_known_to_be_synced_is_corruption() -> None:
    world = await written()
    log_file = world.content("000000000001.log")
    at = [o for _, o, size in offsets(world) if o + size < len(log_file) - 1200][1]
    log_file[at : at + 1024] = bytes(1024)
    with pytest.raises(LogCorrupt, match="synced"):
        await world.open()


@pytest.mark.parametrize("closed", [False, True])
async def test_a_flipped_bit_anywhere_is_found_and_located(closed: bool) -> None:
    base = await written(closed=closed)
    name = base.files()[0]
    starts = [o for _, o, _ in offsets(base)]
    whole = bytes(base.content(name))
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        world = World()
        world.disk = base.disk.after_crash()
        world.content(name)[:] = damaged
        expected = max([start for start in starts if start <= at], default=0)
        with pytest.raises(LogCorrupt) as caught:
            await world.open()
        assert caught.value.file.endswith(name)
        assert caught.value.offset == expected or expected == 0
        assert "Rebuild it from its peers" in str(caught.value)
        assert bytes(world.content(name)) == damaged  # evidence is left alone
        found = [r for r in read(FOLDER, disk=world.disk) if r.kind == CORRUPT]
        assert found
        assert found[0].offset == expected or expected == 0


@settings(max_examples=60)
@given(at=st.integers(0, 10_000), flip=st.integers(1, 255), seed=st.integers(0, 99))
async def test_a_damaged_byte_in_any_of_several_segments_is_found(
    at: int, flip: int, seed: int
) -> None:
    world = await written(segment_bytes=400, closed=True)
    names = world.files()
    name = names[seed % len(names)]
    content = world.content(name)
    content[at % len(content)] ^= flip

    async def found() -> None:
        log = await world.open()
        for _ in names:  # of those with heads, afterwards
            await log.maintain()

    with pytest.raises(LogCorrupt) as caught:
        await found()
    assert caught.value.file.endswith(name)


async def test_a_sealed_segment_that_lost_its_end_is_found() -> None:
    world = await written(segment_bytes=400)
    name, offset, _ = [entry for entry in offsets(world) if entry[0] == world.files()[0]][-1]
    world.tear(name, offset)
    with pytest.raises(LogCorrupt, match="synced data is missing"):
        await world.open()
    assert CORRUPT in [r.kind for r in read(FOLDER, disk=world.disk)]


async def test_a_missing_segment_is_found() -> None:
    world = await written(segment_bytes=400)
    world.disk.remove(f"{FOLDER}/{world.files()[1]}")
    with pytest.raises(LogCorrupt, match=r"group \d: entry \d+ is missing"):
        await world.open()


async def test_a_record_in_another_file_than_it_was_written_to_is_found() -> None:
    world = await written(segment_bytes=400)
    one, two = world.files()[:2]
    world.content(two)[:] = world.content(two)[:112] + world.content(one)[112:]
    with pytest.raises(LogCorrupt):
        await world.open()


async def test_a_message_that_contains_a_log_does_not_confuse_recovery() -> None:
    """The torn record's payload holds valid-looking records: those of another log."""
    other = await written()
    world = World()
    world.clock.ns += 12_345
    log = await world.open()
    fill(log.journal(1), 3)
    await save(log)
    log.journal(1).add(b"\0" + bytes(other.content("000000000001.log")), 5, 1)
    log.write()
    name = world.files()[0]
    world.tear(name, len(world.content(name)) - 10)
    log = await world.open()
    assert log.journal(1).last_index == 4


async def test_damage_under_a_running_node_is_noticed_when_it_is_read() -> None:
    world = World(hot_bytes=0)
    log = await world.open()
    fill(log.journal(1), 5)
    await save(log)
    world.content("000000000001.log")[-200] ^= 1
    with pytest.raises(LogCorrupt):
        [log.journal(1).read(i) for i in range(2, 7)]


async def test_the_dump_prints_damage_and_exits_with_3() -> None:
    world = await written()
    out = io.StringIO()
    assert dump(FOLDER, out=out, disk=world.disk) == 0
    assert "verdict=sound" in out.getvalue()
    (name, offset, _) = offsets(world)[5]
    world.content(name)[offset + 50] ^= 8
    out = io.StringIO()
    assert dump(FOLDER, out=out, disk=world.disk, as_json=True) == 3
    assert f'"corrupt", "file": "{name}", "offset": {offset}' in out.getvalue()
    assert dump("/nowhere", out=out, disk=world.disk) == 2


async def test_reading_goes_on_behind_damage() -> None:
    world = await written()
    rows = offsets(world)
    world.content(rows[5][0])[rows[5][1] + 50] ^= 8
    found = list(read(FOLDER, disk=world.disk))
    assert [r.offset for r in found if r.kind != CORRUPT] == [
        o for i, (_, o, _) in enumerate(rows) if i != 5
    ]
