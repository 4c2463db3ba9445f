"""Entries, hard state, truncation and what `sync` promises."""

from __future__ import annotations

from hashlib import blake2b

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.log import FatalDiskError, LogIdentity, LogOptions, UnsupportedFormat, WrongIdentity
from cluster.log.format import (
    KIND_ROLE,
    NO_HASH,
    NO_OP,
    REGULAR,
    chain,
    checksum,
    decode_file_header,
    encode_file_header,
)
from cluster.log.index import Tail
from tests.log.support import World, command, contents, fill, save


async def test_a_new_journal_holds_the_no_op_at_index_1() -> None:
    journal = (await World().open()).journal(3)
    assert journal.entries(1) == [(NO_OP, 1, 0)]
    assert (journal.base_index, journal.last_index) == (1, 1)
    assert journal.load_snapshot() is None


async def test_what_was_synced_is_there_after_a_crash_and_the_rest_is_not() -> None:
    world = World()
    log = await world.open()
    journal = log.journal(3)
    journal.set_term(4, "n2")
    fill(journal, 10, term=4)
    await save(log)
    digest = journal.last_hash
    fill(journal, 5, term=4)
    assert log.write()
    assert journal.synced_index == 11
    world.crash()
    journal = (await world.open()).journal(3)
    assert (journal.last_index, journal.last_term, journal.last_hash) == (11, 4, digest)
    assert (journal.current_term, journal.voted_for, journal.synced_index) == (4, "n2", 11)
    assert journal.read(7) == command(7, 4)


async def test_sync_covers_what_was_written_when_it_began() -> None:
    world = World()
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 3)
    log.write()
    fill(journal, 2)
    await log.sync()
    assert journal.synced_index == 4
    await save(log)
    assert journal.synced_index == 6


async def test_what_is_written_during_a_sync_is_not_covered_by_it() -> None:
    world = World()
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 3)
    log.write()

    async def write(_: str) -> None:
        world.disk._pause = None
        fill(journal, 2)
        log.write()

    world.disk._pause = write
    await log.sync()
    assert (journal.written_index, journal.synced_index) == (6, 4)
    world.crash()
    assert (await world.open()).journal(1).last_index == 4


async def test_entries_replaced_during_a_sync_do_not_count_as_synced() -> None:
    world = World()
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 10)
    log.write()

    async def conflict(_: str) -> None:
        journal.truncate_from(5)
        fill(journal, 3, term=2)
        world.disk._pause = None

    world.disk._pause = conflict
    await log.sync()
    assert (journal.last_index, journal.synced_index) == (7, 4)


async def test_commits_and_notes_alone_need_no_sync() -> None:
    log = await World().open()
    fill(log.journal(1), 3)
    await save(log)
    log.journal(1).set_commit(4)
    log.note(KIND_ROLE, 1, 0, 1, b"")
    assert not log.write()
    log.journal(1).set_term(9, None)
    assert log.write()


async def test_a_truncate_holds_after_recovery_also_without_new_entries() -> None:
    world = World()
    log = await world.open()
    fill(log.journal(1), 20)
    log.journal(1).truncate_from(12)
    await save(log)
    world.crash()
    log = await world.open()
    assert log.journal(1).last_index == 11
    fill(log.journal(1), 1, term=2)
    await save(log)
    world.crash()
    journal = (await world.open()).journal(1)
    assert (journal.last_index, journal.term_at(12), journal.term_at(13)) == (12, 2, None)


@pytest.mark.parametrize("version", [1, 2, 3, 200])
@pytest.mark.parametrize("size", [10, 4096, 4097, 70_000])
async def test_of_a_large_command_the_chain_has_length_and_checksum(
    version: int, size: int
) -> None:
    def entry(fill: bytes) -> bytes:
        return (REGULAR + cbor2.dumps([version, 0, []])).ljust(size, fill)

    command, other = entry(b"a"), entry(b"b")
    sums = len(command).to_bytes(8, "little") + checksum(command).to_bytes(4, "little")
    hashed = sums if version >= 3 and size > 4096 else command
    assert (
        chain(b"before", 7, command)
        == blake2b(b"before" + (7).to_bytes(8, "little") + hashed, digest_size=16).digest()
    )
    assert chain(b"before", 7, command) != chain(b"before", 7, other)
    assert chain(b"before", 7, command) != chain(b"before", 7, command + b"a")
    assert chain(b"before", 7, command) != chain(b"after", 7, command)

    world = World()
    log = await world.open()
    for index, each in enumerate((command, other, command), start=2):
        log.journal(1).add(each, index, 1)
    await log.close()
    journal = (await world.open()).journal(1)
    assert [journal.read(index) for index in (2, 3, 4)] == [command, other, command]
    whole = blake2b(NO_HASH + (1).to_bytes(8, "little") + command, digest_size=16).digest()
    assert (journal.hash_at(2) == whole) == (hashed is command)


async def test_equal_logs_have_equal_hashes_and_others_do_not() -> None:
    log = await World().open()
    one, two = log.journal(1), log.journal(2)
    fill(one, 5)
    fill(two, 5)
    assert one.last_hash == two.last_hash
    assert one.hash_at(4) == two.hash_at(4) != one.hash_at(5)
    assert one.hash_at(2) == chain(NO_HASH, 1, command(2, 1))
    two.truncate_from(6)
    two.add(command(6, 1), 6, 2)
    assert one.last_hash != two.last_hash


async def test_entries_are_the_same_from_memory_and_from_the_file() -> None:
    cold, hot = World(hot_bytes=0), World()
    for world in (cold, hot):
        log = await world.open()
        fill(log.journal(1), 50)
        assert contents(log.journal(1)) == {i: command(i, 1) for i in range(2, 52)}
        journal = log.journal(1)
        assert journal.entries(10, 3) == [(command(i, 1), i, 1) for i in (10, 11, 12)]
        assert [e[1] for e in journal.entries(10, None, 100)] == [10, 11]
        assert [e[1] for e in journal.entries(10, None, 1)] == [10]
        assert journal.entries(52) == []


async def test_a_removed_group_does_not_come_back() -> None:
    world = World()
    log = await world.open()
    fill(log.journal(1), 5)
    fill(log.journal(2), 5)
    await save(log)
    log.remove_group(1)
    await save(log)
    world.crash()
    log = await world.open()
    assert log.groups() == [2]
    assert log.journal(1).last_index == 1


@pytest.mark.parametrize("identity", [LogIdentity("n2", "test"), LogIdentity("n1", "other")])
async def test_the_folder_of_another_node_or_cluster_is_refused(identity: LogIdentity) -> None:
    world = World()
    await (await world.open()).close()
    with pytest.raises(WrongIdentity, match=r"belongs to node 'n1' of cluster 'test'"):
        await world.open(identity)


async def test_a_newer_format_is_refused_and_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    monkeypatch.setattr("cluster.log.format.FORMAT_VERSION", 2)
    log = await world.open()
    fill(log.journal(1), 1)
    await log.close()
    monkeypatch.setattr("cluster.log.format.FORMAT_VERSION", 1)
    before = {name: bytes(world.content(name)) for name in world.files()}
    with pytest.raises(UnsupportedFormat, match="format 2, this release knows up to 1"):
        await world.open()
    assert {name: bytes(world.content(name)) for name in world.files()} == before


@pytest.mark.parametrize("operation", ["append", "sync"])
async def test_after_a_failed_write_or_sync_everything_is_refused(operation: str) -> None:
    world = World()
    log = await world.open()
    journal = log.journal(1)
    fill(journal, 3)
    world.disk.failing = {operation}
    with pytest.raises(FatalDiskError):
        await save(log)
    world.disk.failing = set()
    with pytest.raises(FatalDiskError):
        log.write()
    with pytest.raises(FatalDiskError):
        await log.sync()
    with pytest.raises(FatalDiskError):
        fill(journal, 1)
    assert journal.synced_index == 1


async def test_a_nearly_full_disk_refuses_publishes() -> None:
    world = World(min_free_bytes=1000)
    log = await world.open()
    world.disk.free = 1000
    assert not log.space().refuse_publishes
    world.disk.free = 999
    assert log.space().refuse_publishes
    assert log.space().free_bytes == 999


async def test_an_entry_may_be_larger_than_a_segment() -> None:
    world = World(segment_bytes=1000)
    log = await world.open()
    log.journal(1).add(b"\0" + b"x" * 50_000, 2, 1)
    fill(log.journal(1), 1)
    await save(log)
    world.crash()
    journal = (await world.open()).journal(1)
    assert [len(c) for c, _, _ in journal.entries(2)] == [50_001, 40]


async def test_every_boot_has_segments_of_its_own() -> None:
    world = World()
    for _ in range(2):
        log = await world.open()
        fill(log.journal(1), 1)
        await log.close()
    headers = [decode_file_header(bytes(world.content(n)), n) for n in world.files()]
    assert len({h.boot for h in headers}) == len(headers) == 2


@given(node=st.text(max_size=60), cluster=st.text(max_size=60), number=st.integers(0, 1 << 40))
def test_a_file_header_survives_the_round_trip(node: str, cluster: str, number: int) -> None:
    data = encode_file_header(number, 5, 6, b"b" * 16, LogIdentity(node, cluster))
    header = decode_file_header(data + b"records", "f")
    assert (header.number, header.identity, header.size) == (
        number,
        LogIdentity(node, cluster),
        len(data),
    )


def test_a_million_entries_are_indexed_in_less_than_40_megabytes() -> None:
    tail = Tail(2)
    for i in range(1_000_000):
        tail.append(i >> 14, i & 0x3FFFFFF, 100, 7)
    columns = (tail.segments, tail.offsets, tail.lengths, tail.terms)
    assert sum(column.__sizeof__() for column in columns) < 40_000_000


def test_the_defaults_are_those_of_the_manual() -> None:
    assert LogOptions().segment_bytes == 64 * 1024 * 1024
