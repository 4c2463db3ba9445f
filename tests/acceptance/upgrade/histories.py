"""What a release makes of random histories, as CBOR on stdout: entries, answers, states.

Run by path, with the source tree of that release in front: it imports nothing but what the first
release has, too.

    PYTHONPATH=TREE python histories.py > FILE
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from typing import Any

import cbor2

from cluster.codec.entries import encode_entry, encode_reply
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine
from cluster.machine.commands import CreateGroup
from cluster.types import NodeId, Stamp
from tests.machine.histories import History
from tests.machine.test_catalog_model import any_command

SEEDS = range(6)
STEPS = 300
#: A state is written down every so many commands, and at the end.
STATE_EACH = 50


def queues(seed: int) -> Iterator[tuple[Stamp, Any]]:
    return History(seed).steps(STEPS)


def catalog(seed: int) -> Iterator[tuple[Stamp, Any]]:
    draw = Random(seed)
    commands: list[Any] = [
        CreateGroup("default-1", [NodeId("n1"), NodeId("n2"), NodeId("n3")], True)
    ]
    commands += [any_command(draw) for _ in range(STEPS)]
    upgrade = _upgrade()
    if upgrade is not None:
        commands.insert(draw.choice([0, STEPS // 3]), upgrade)
    for index, command in enumerate(commands, start=2):
        yield Stamp(index, 1 + index // 100, 1_000 * index), command


def _upgrade() -> Any:
    try:
        from cluster.machine import MACHINE_VERSION
        from cluster.machine.commands import UpgradeMachine
    except ImportError:  # the first release
        return None
    return UpgradeMachine(MACHINE_VERSION)


def rows(machine: Any, log: Iterator[tuple[Stamp, Any]]) -> list[list[Any]]:
    """Of each command: its place, its bytes, the answer, and now and then the digest and the
    snapshot after it.
    """
    found: list[list[Any]] = []
    for stamp, command in log:
        if isinstance(command, str):
            continue  # no command at all: it cannot be in a log
        written = encode_entry(stamp.now_ms, [command])
        place = [stamp.index, stamp.term, stamp.ordinal, stamp.body_offset]
        reply = encode_reply(machine.apply(stamp, command).reply)
        state = [machine.digest(), machine.snapshot()] if len(found) % STATE_EACH == 0 else None
        found.append([place, written, reply, state])
    found[-1][3] = [machine.digest(), machine.snapshot()]
    return found


def main() -> None:
    histories = [["queues", rows(QueueMachine(), queues(seed))] for seed in SEEDS]
    histories += [["catalog", rows(CatalogMachine(), catalog(seed))] for seed in SEEDS]
    sys.stdout.buffer.write(cbor2.dumps(histories))


if __name__ == "__main__":
    main()
