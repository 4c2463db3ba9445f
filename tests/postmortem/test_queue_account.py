"""Whatever a queue machine does: the tables say what a naive account of the same events says."""
# Spark and Arrow come with few types.
# pyright: basic

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.builds import broken
from chaos.postmortem.limits import Limits
from cluster.history.event_rows import Event
from cluster.history.group_replay import GroupReplay
from cluster.log import Snapshot
from cluster.machine.commands import CreateQueue, DeleteQueue, Tick
from cluster.types import GroupId
from tests.cluster.test_group_replay import Entries, command_bytes
from tests.postmortem.queue_account import Account
from tests.postmortem.queue_events import filled, findings_of, rows_of

pytestmark = pytest.mark.spark

STEPS = 400
SEEDS = 14
#: Other builds than the right one, and where to look for seeds of theirs that show it.
BUILDS = {"sac-without-fencing": 100, "unflagged-redelivery": 200}
TELLING = 2


class Kept(Entries):
    """As in a cluster, a queue that was deleted never comes back under its number."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.deleted: set[int] = set()

    def command(self) -> Any:
        command = super().command()
        if isinstance(command, CreateQueue) and command.queue in self.deleted:
            return Tick()
        if isinstance(command, DeleteQueue):
            self.deleted.add(command.queue)
        return command


def events_of(seed: int) -> Iterator[Event]:
    """Of a log of its own group. Every third one is known from its middle on only."""
    life = GroupReplay(GroupId(seed + 1))
    late = seed % 3 == 0
    for stamp, command in Kept(seed).steps(STEPS):
        life.apply(stamp.index, stamp.term, command_bytes(stamp.now_ms, command))
        if late and stamp.index == STEPS // 2:
            here = Snapshot(stamp.index, 1, b"", life.machine.snapshot(), [])
            life = GroupReplay.after(GroupId(seed + 1), here)
            yield from map(Event._make, life.known())
        elif not late or stamp.index > STEPS // 2:
            yield from map(Event._make, life.take_rows())


def telling(build: str) -> list[tuple[int, list[Event]]]:
    """The first seeds at which this build breaks its promise: what is drawn changes with every new
    command.
    """
    found: list[tuple[int, list[Event]]] = []
    with broken(build):
        for seed in itertools.count(BUILDS[build]):
            events, account = list(events_of(seed)), Account()
            account.read(events)
            if account.not_active or any(each.broken for each in account.messages.values()):
                found.append((seed, events))
            if len(found) == TELLING:
                return found
    raise AssertionError


def test_the_tables_agree_with_a_naive_account(spark: Any, tmp_path: Path) -> None:
    events: list[Event] = []
    for seed in range(SEEDS):
        events += events_of(seed)
    broken_seeds: set[int] = set()
    for build in BUILDS:
        for seed, some in telling(build):
            broken_seeds.add(seed)
            events += some
    account = Account()
    account.read(events)
    assert len(account.messages) > 10_000
    outcomes = {message.outcome for message in account.messages.values()}
    assert outcomes == {
        *("ready", "unsettled", "settled", "died", "purged", "withdrawn", "deleted"),
    }

    tables = filled(spark, tmp_path, events)

    rows = rows_of(tables, "messages")
    told = {(row["group"], row["queue"], row["position"]): row for row in rows}
    assert len(told) == len(rows)
    assert told.keys() == account.messages.keys()
    for key, message in account.messages.items():
        expected = message.told()
        found = {name: told[key][name] for name in expected}
        assert found | {"broken": set(found["broken"])} == expected | {
            "broken": set(expected["broken"])
        }, key

    counts = {
        (row["group"], row["queue"], row["second_ms"], name): row[name]
        for row in rows_of(tables, "throughput")
        for name in ("published", "delivered", "redelivered", "settled", "returned", "dead")
        if row[name]
    }
    assert counts == account.throughput

    again = {
        (row["group"], row["queue"], row["minute_ms"]): (row["redelivered"], row["messages"])
        for row in rows_of(tables, "redelivery")
        if row["redelivered"]
    }
    assert again == {key: (each.total(), len(each)) for key, each in account.again.items()}

    held = {
        (row["group"], row["queue"], row["consumer"]): (row["held"], row["longest_ms"])
        for row in rows_of(tables, "unacked")
        if row["held"] or row["longest_ms"]
    }
    assert held == {key: each for key, each in account.unacked().items() if any(each)}

    findings = [row.asDict() for row in findings_of(tables, Limits())]
    violations = {row["code"] for row in findings if row["severity"] == "violation"}
    assert violations == {"unflagged_duplicate", "sac_overlap"}
    assert {row["group"] - 1 for row in findings if row["severity"] == "violation"} == broken_seeds
    overlaps = {
        (row["group"], row["queue"]): row["first"]
        for row in findings
        if row["code"] == "sac_overlap"
    }
    expected = {(key[0], f"q{key[1]}"): at for key, at in account.not_active.items()}
    assert overlaps == expected
    unflagged = sum(
        "unflagged_duplicate" in message.broken for message in account.messages.values()
    )
    assert unflagged > 50
