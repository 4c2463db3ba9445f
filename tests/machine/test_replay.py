"""The same log leads to the same state and answers: replayed, cut anywhere, in any process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.machine import MACHINE_VERSION, QueueMachine, admission
from cluster.machine import machine as machine_module
from cluster.machine.admission import DedupIds
from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig, TransactionDone
from cluster.machine.marks import Mark
from cluster.machine.queue import Queue
from cluster.types import QueueId, Stamp
from tests.machine.histories import History, outcome

ROOT = Path(__file__).parents[2]
SEEDS = range(12)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_at_any_cut_and_the_tail_equal_the_whole_log(seed: int):
    log = list(History(seed).steps(300))
    whole = QueueMachine()
    copies: list[QueueMachine] = []
    for number, (stamp, command) in enumerate(log):
        if number % 25 == seed % 25:
            data = whole.snapshot()
            copy = QueueMachine()
            copy.restore(data)
            copy.invariants()
            assert copy.snapshot() == data
            assert copy.on_leader() == whole.on_leader()
            assert copy.live_indexes() == whole.live_indexes()
            copies.append(copy)
        applied = whole.apply(stamp, command)
        whole.invariants()
        for copy in copies:
            assert copy.apply(stamp, command) == applied
    for copy in copies:
        copy.invariants()
        assert copy.digest() == whole.digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_leader_that_ticks_when_told_to_ends_like_one_that_never_did(seed: int):
    """Looking when nothing is due changes nothing but the clock, which is the stamp's anyway."""
    often, rarely = QueueMachine(), QueueMachine()
    for stamp, command in History(seed).steps(300):
        due_ms = often.next_due_ms()
        if due_ms is None or due_ms > often.now_ms:
            # Nothing is due: an extra look at this very time is harmless.
            for queue in often.queues():
                often._queues[queue].deadline.due_ms = often.now_ms
                often._timetable.schedule(often._queues[queue])
        assert often.apply(stamp, command) == rarely.apply(stamp, command)
    assert often.digest() == rarely.digest()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_snapshot_made_in_pieces_is_the_one_of_the_moment_it_was_asked_for(seed: int):
    machine = QueueMachine(1 + seed % MACHINE_VERSION)
    for stamp, command in History(seed).steps(300):
        before, pieces = machine.snapshot(), machine.snapshot_pieces()
        machine.apply(stamp, command)
        assert b"".join(pieces) == before


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_kept_of_unchanged_queues_equals_what_is_made_anew(
    seed: int, monkeypatch: pytest.MonkeyPatch
):
    """Digest, snapshot and the entries that are needed; also when the state is restored, and when
    commands come between the steps that prepare a snapshot.
    """
    monkeypatch.setattr(machine_module, "PREPARED_AT_ONCE", 1)
    machine, preparing = QueueMachine(MACHINE_VERSION), iter(())
    for number, (stamp, command) in enumerate(History(seed).steps(300)):
        machine.apply(stamp, command)
        if next(preparing, "done") == "done":
            preparing = machine.prepare_snapshot()
        fresh = QueueMachine()
        fresh.restore(machine.snapshot())
        if number % 3 == 0:
            assert b"".join(machine.snapshot_pieces()) == fresh.snapshot(), command
        assert machine.live_indexes() == fresh.live_indexes(), command
        assert machine.digest() == fresh.digest(), command
        if number % 50 == 49:
            machine.restore(fresh.snapshot())


def test_a_snapshot_costs_what_changed(monkeypatch: pytest.MonkeyPatch):
    machine = QueueMachine(MACHINE_VERSION)
    for number in range(1, 101):
        create = CreateQueue(QueueId(number), "/", f"q{number}", QueueConfig())
        machine.apply(Stamp(number, 1, 1_000), create)
    dumped: list[str] = []
    dump = Queue.dump
    monkeypatch.setattr(Queue, "dump", lambda queue: dumped.append(queue.name) or dump(queue))
    steps = len(list(machine.prepare_snapshot()))
    assert len(dumped) == 100
    assert steps == 100 // machine_module.PREPARED_AT_ONCE
    dumped.clear()
    machine.apply(Stamp(101, 1, 1_000), Enqueue(QueueId(7), None, 0, [b"x"]))

    list(machine.snapshot_pieces())

    assert dumped == ["q7"]


BYTE_STRING = 2  # the major type of CBOR
BYTE_STRING_HEAD = 9


def test_no_piece_of_a_large_snapshot_is_large():
    machine = QueueMachine(MACHINE_VERSION)
    machine.apply(
        Stamp(1, 1, 1_000), CreateQueue(QueueId(1), "/", "q", QueueConfig(dedup_window_ms=9_999))
    )
    queue = machine.find(QueueId(1))
    assert isinstance(queue, Queue)
    for number in range(50_000):
        queue.admission.dedup_ids.remember(f"id-{number}", 1_000)
    queue.messages.add(2, 0, [1] * 50_000, 1_000)
    for number in range(1, 50_001):
        queue.messages.marks.put(number, number, Mark(expires_at_ms=number))
    pieces = list(machine.snapshot_pieces())
    assert b"".join(pieces) == machine.snapshot()
    columns = [piece for piece in pieces if piece[0] >> 5 == BYTE_STRING]  # copied, not encoded
    assert max(map(len, columns)) < 8 * 50_000 + BYTE_STRING_HEAD
    assert max(len(piece) for piece in pieces if piece not in columns) < 32 << 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_digest_of_what_changed_equals_one_of_everything(seed: int):
    machine = QueueMachine(MACHINE_VERSION)
    for stamp, command in History(seed).steps(300):
        machine.apply(stamp, command)
        kept = machine.digest()
        copy = QueueMachine()
        copy.restore(machine.snapshot())
        assert copy.digest() == kept, command


@pytest.mark.parametrize("seed", SEEDS)
def test_a_checkpoint_is_the_snapshot_of_its_moment_whatever_is_done_later(seed: int):
    machine = QueueMachine()
    for number, (stamp, command) in enumerate(History(seed).steps(300)):
        before, checkpoint = machine.snapshot(), machine.checkpoint()
        machine.apply(stamp, command)
        assert checkpoint() == before, f"{number}: {command}"


def test_a_digest_tells_dedup_ids_apart_and_costs_what_changed(monkeypatch: pytest.MonkeyPatch):
    hashed: list[str] = []
    hash_of = admission._hash_of

    def counted(dedup_id: str, at_ms: int) -> int:
        hashed.append(dedup_id)
        return hash_of(dedup_id, at_ms)

    monkeypatch.setattr(admission, "_hash_of", counted)
    one, other = DedupIds(), DedupIds()
    for number in range(1_000):
        one.remember(f"id-{number}", number)
    other.load(one.dump())
    assert one.fingerprint() == other.fingerprint()
    assert len(hashed) == 2_000
    for ids in (one, other):
        ids.remember("more", 1_000)
        ids.forget(500, 1_000)
    assert one.fingerprint() == other.fingerprint()
    assert len(hashed) < 2_000 + 2 * 510
    other.remember("other", 1_000)
    one.remember("another", 1_000)
    assert one.fingerprint() != other.fingerprint()


def test_two_processes_with_other_hash_seeds_agree():
    outcomes = {
        subprocess.run(
            [sys.executable, "-m", "tests.machine.histories", "7", "600"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for hash_seed in ("1", "4242")
    }

    assert outcomes == {outcome(7, 600)}


def test_nothing_is_live_when_everything_is_done():
    history = History(3)
    for _ in history.steps(300):
        pass
    machine = history.machine
    assert machine.live_indexes()
    for queue in machine.queues():
        machine._queues.pop(queue)
    for each in machine.transactions():
        machine._transactions.done(TransactionDone(each.number, each.groups))

    assert machine.live_indexes() == []
