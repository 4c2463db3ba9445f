"""Notes of rounds: what the disk did, for a later reader, few however busy the node is."""

from __future__ import annotations

import asyncio

import cbor2

from cluster.log import Log, LogIdentity
from cluster.log.format import KIND_ROUND
from cluster.log.log import ROUND_NOTE_NS
from tests.log.memory_disk import MemoryDisk
from tests.testkit.clocks import FakeClock


def rounds_of(syncs: list[int], *, gap_ns: int) -> list[list[int]]:
    """The notes after one entry a sync; each sync takes that many ns."""
    clock = FakeClock()
    taking = iter(())

    async def pause(operation: str) -> None:
        if operation == "sync":
            clock.ns += next(taking, 0)

    async def run() -> list[list[int]]:
        nonlocal taking
        notes: list[list[int]] = []
        disk = MemoryDisk(pause=pause)
        log = await Log.open("d", disk=disk, clock=clock, identity=LogIdentity("n", "c"))
        note = log.note

        def noted(kind: int, group: int, index: int, term: int, payload: bytes) -> None:
            if kind == KIND_ROUND:
                notes.append(cbor2.loads(payload))
            note(kind, group, index, term, payload)

        log.note = noted  # type: ignore[method-assign]
        journal = log.journal(1)
        for number, nanoseconds in enumerate(syncs):
            taking = iter([nanoseconds])
            journal.add(b"\x00entry", journal.last_index + 1, 1)
            log.write()
            await log.sync()
            clock.ns += gap_ns
            assert number == 0 or journal.synced_index == journal.last_index
        return notes

    return asyncio.run(run())


def test_a_busy_node_notes_one_round_a_second() -> None:
    notes = rounds_of([1_000] * 100, gap_ns=ROUND_NOTE_NS // 10)

    assert 9 <= len(notes) <= 10
    assert [note[2] for note in notes[1:]] == [10] * (len(notes) - 1)
    assert all(note[0] >= 10 and note[1] > 0 for note in notes[1:])


def test_a_slow_sync_is_noted_by_itself() -> None:
    notes = rounds_of([1_000, 300_000_000, 1_000], gap_ns=1_000)

    assert [note[2:] for note in notes] == [[2, 300_000_000]]
