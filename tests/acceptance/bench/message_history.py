"""`python -m tests.acceptance.bench.message_history`: what the history of a message costs a node
whose log has millions.

Two logs are written by the real log and machine: in `settled` all messages are delivered and
settled at once, in `waiting` slow consumers leave a backlog. The oldest message (that waits), one
in the middle and the newest are asked for, each as a node does it: by a process of its own. Its
processor time is measured, its start and imports included. All segments are kept, and as in every
node the last two snapshots: the message in the middle is older than both.

`--compare` also applies every entry, as was done before there were leaps, in this process, and
compares the answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from cluster.codec.cbor import pack, unpack
from cluster.groups.snapshotting import SNAPSHOT_BYTES, SNAPSHOT_ENTRIES
from cluster.history.message_events import Wanted
from cluster.history.message_history import history
from cluster.machine.commands import (
    CreateQueue,
    Enqueue,
    OpenSession,
    QueueConfig,
    Settle,
    Subscribe,
)
from cluster.machine.replies import Ok
from cluster.types import ConsumerKey, GroupId, NodeId, QueueId, SessionId
from node.operating.history import HELPER
from tests.postmortem.builder import Built

GROUP: Final = GroupId(1)
SESSION: Final = SessionId("s")
QUEUES: Final = 4
BODY_BYTES: Final = 90
CREDIT: Final = 200
#: Of a slow consumer: so many messages, once in so many publishes.
SLOW_MESSAGES, SLOW_PUBLISHES = 10, 8
TARGET_S: Final = 1.0
SETTLED, WAITING = "settled", "waiting"
PLACES: Final = ("oldest", "middle", "newest")

Json = dict[str, Any]


@dataclass
class WrittenQueue:
    id: QueueId
    consumer: ConsumerKey
    batch: int
    entries: list[int] = field(default_factory=list[int])  # that publish
    settled: int = 0

    @property
    def published(self) -> int:
        return len(self.entries) * self.batch

    def wanted(self, position: int) -> tuple[Wanted, Wanted]:
        """By its id and by its position."""
        publish, offset = divmod(position - 1, self.batch)
        by_id = Wanted(GROUP, self.entries[publish], offset)
        return by_id, Wanted(GROUP, queue=self.id, position=position)


def write(folder: Path, kind: str, messages: int, commands: int, console: Console) -> WrittenQueue:
    """On one node, which keeps its segments."""
    draw = random.Random(1)
    pool = draw.randbytes(1 << 16)
    publishes = (
        commands // 2 if kind == SETTLED else commands * SLOW_PUBLISHES // (SLOW_PUBLISHES + 1)
    )
    batch = max(1, messages // publishes)
    with Built(folder, nodes=1, retain_bytes=1 << 50) as cluster:
        cluster.elect(GROUP, "n1")
        cluster.propose(GROUP, OpenSession(SESSION, NodeId("n1"), 1))
        queues: list[WrittenQueue] = []
        for number in range(1, QUEUES + 1):
            queue = QueueId(number)
            cluster.propose(GROUP, CreateQueue(queue, "/", f"orders-{number}", QueueConfig()))
            index = cluster.propose(GROUP, Subscribe(queue, SESSION, f"c{number}", CREDIT))
            queues.append(WrittenQueue(queue, ConsumerKey(index << 16), batch))
        entries_left, bytes_left = SNAPSHOT_ENTRIES, SNAPSHOT_BYTES
        for count in range(publishes):
            queue = queues[count % QUEUES]
            starts = [draw.randrange(len(pool) - BODY_BYTES) for _ in range(batch)]
            bodies = [pool[at : at + BODY_BYTES] for at in starts]
            enqueue = Enqueue(queue.id, f"shop-{queue.id}", queue.published + 1, bodies)
            queue.entries.append(cluster.propose(GROUP, enqueue))
            entries_left, bytes_left = entries_left - 1, bytes_left - batch * BODY_BYTES
            settles = batch if kind == SETTLED else SLOW_MESSAGES
            if kind == SETTLED or draw.randrange(SLOW_PUBLISHES) == 0:
                ranges = [(queue.settled + 1, queue.settled + settles)]
                cluster.propose(GROUP, Settle(queue.id, queue.consumer, ranges))
                assert cluster.replies == [Ok(settles)]
                queue.settled += settles
                entries_left -= 1
            if min(entries_left, bytes_left) <= 0:
                cluster.snapshot(GROUP)
                cluster.maintain()
                entries_left, bytes_left = SNAPSHOT_ENTRIES, SNAPSHOT_BYTES
    size = sum(file.stat().st_size for file in folder.rglob("*.log"))
    total = sum(queue.published for queue in queues)
    console.print(f"{kind}: {total:,} messages, {size / 1e6:,.0f} MB, batches of {batch}")
    return queues[0]


def ask(log: Path, wanted: Wanted) -> tuple[Json, float]:
    """The answer, and the seconds of processor time that it took."""
    request = {
        "folders": [str(log)],
        "wanted": asdict(wanted),
        "applied": 0,
        "memory_bytes_max": 2 << 30,
        "seconds_max": 600,
    }
    before = os.times()
    done = subprocess.run(HELPER, input=pack(request), stdout=subprocess.PIPE, check=True)
    after = os.times()
    seconds = after.children_user - before.children_user
    seconds += after.children_system - before.children_system
    return unpack(done.stdout), seconds


def by_folding(log: Path, wanted: Wanted) -> tuple[Json, float]:
    """The same in this process, with every entry read and applied."""
    before = os.times()
    told = history([str(log)], wanted, leaps=False)
    after = os.times()
    return {"told": told}, after.user - before.user + after.system - before.system


def measure(folder: Path, kind: str, given: argparse.Namespace, console: Console) -> list[Json]:
    queue = write(folder, kind, round(given.millions * 1e6), given.commands, console)
    log = folder / "n1" / "log"
    oldest = 1 if kind == SETTLED else queue.settled + CREDIT + 1
    rows: list[Json] = []
    for place, position in zip(
        PLACES, (oldest, queue.published // 2, queue.published), strict=True
    ):
        by_id, by_position = queue.wanted(position)
        answer, seconds = ask(log, by_id)
        state = answer["told"]["now"]["state"]
        row: Json = {"log": kind, "message": place, "it is": state, "by id": seconds}
        found, row["by position"] = ask(log, by_position)
        assert found == answer
        if given.compare:
            found, row["all applied"] = by_folding(log, by_id)
            assert found == answer
        rows.append(row)
        assert state == ("settled" if kind == SETTLED else "ready")
    return rows


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.acceptance.bench.message_history", description=__doc__
    )
    parser.add_argument("--millions", type=float, default=3.0, help="of messages in each log")
    parser.add_argument("--commands", type=int, default=90_000, help="in each log")
    parser.add_argument("--compare", action="store_true", help="also apply all, and compare")
    parser.add_argument("--dir", type=Path, help="keep the logs here")
    given = parser.parse_args(arguments)
    console = Console(highlight=False)
    folder = given.dir or Path(tempfile.mkdtemp(prefix="quorate-bench-"))
    try:
        rows = [
            row
            for kind in (SETTLED, WAITING)
            for row in measure(folder / kind, kind, given, console)
        ]
    finally:
        if given.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows, console)
    Path("bench-results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    late = [row for row in rows if row["message"] != PLACES[1] and row["by id"] > TARGET_S]
    return 1 if late else 0


def show(rows: list[Json], console: Console) -> None:
    table = Table(title="seconds of processor time of one history")
    heads = list(rows[0])
    for head in heads:
        table.add_column(head, justify="left" if head in {"log", "message", "it is"} else "right")
    for row in rows:
        table.add_row(*(f"{row[h]:.2f}" if isinstance(row[h], float) else row[h] for h in heads))
    console.print(table)
    console.print(f"target: {TARGET_S:g} s for the oldest and the newest")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
