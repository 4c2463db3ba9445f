"""`quorate message`: the history of one message for people and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import quorate
from cluster.machine.commands import CreateQueue, Enqueue, QueueConfig
from cluster.types import QueueId
from quorate.cli import run
from quorate.cli.message import headline, more, remarks, time_of
from quorate.local import LocalCluster
from tests.postmortem.builder import Built
from tests.testkit.commands import command

Output = pytest.CaptureFixture[str]


# --- from a running cluster -----------------------------------------------------------------------


@pytest.mark.live
async def test_it_is_told_after_the_leader_was_killed_and_from_the_dead_nodes_folder(
    local: LocalCluster,
):
    async with quorate.connect(local.urls) as client:
        await client.declare("orders")
        publisher = client.publisher("orders", "shop")
        await publisher.publish_many([b"1", b"2", b"3"])
        leader = (await client.info("orders"))["leader"]
        first, *_ = await client.get("orders", 3)
        await first.settle(wait=True)

        status, peeked, _ = await command("queue", "peek", "orders", "--url", local.urls[0])
        assert status == 0
        row = next(line for line in peeked.splitlines() if "│ 2 " in line)
        message = row.split("│")[1].strip()

        dead = local.named(leader)
        await local.kill(dead)
        left = ",".join(node.url for node in local.nodes if node is not dead)
        await client.publish("orders", b"4")
        again = await client.get("orders", 1)
        await again[0].settle(wait=True)

    status, out, said = await command("message", message, "--url", left)
    assert status == 0, said
    assert f"message {message}, queue orders in vhost /, position 2" in out
    for word in ("published", "by shop, number 2", "taken by a get"):
        assert word in out
    assert "from the log of node" in said

    by_number = ("message", "shop:2", "--queue", "orders", "--url", left, "--json")
    status, out, _ = await command(*by_number)
    told = json.loads(out)
    assert (status, told["message"]) == (0, message)
    assert [event["event"] for event in told["events"]][:2] == ["published", "got"]

    # What the dead node knew.
    status, out, said = await command("message", message, "--data", str(dead.folder), "--json")
    before = json.loads(out)
    assert (status, before["read"]["node"]) == (0, leader)
    count = len(before["events"])
    assert [e["entry"] for e in before["events"]] == [e["entry"] for e in told["events"][:count]]

    by_position = ("message", "2", "--queue", "orders", "--data", str(dead.folder), "--json")
    status, out, _ = await command(*by_position)
    assert json.loads(out)["events"] == before["events"]

    status, out, said = await command("message", "1-999999-0", "--url", left)
    assert (status, out) == (1, "")
    assert "refused (no_message)" in said
    assert "next: `quorate queue peek NAME`" in said


# --- from a folder --------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pipe: lines are whole."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """Of a node with a queue in the catalog, and one message in it."""
    with Built(tmp_path, nodes=1, groups=(1,)) as cluster:
        cluster.elect(1, "n1")
        cluster.propose(1, CreateQueue(QueueId(7), "/", "or\x1b[2Jders", QueueConfig()))
        cluster.propose(1, Enqueue(QueueId(7), "shop", 1, [b"x"]))
        yield tmp_path / "n1"


def test_a_folder_is_read_without_a_cluster(data: Path, capsys: Output):
    assert run(["message", "1-4-0", "--data", str(data)]) == 0
    shown = capsys.readouterr()
    assert "message 1-4-0, queue or\\x1b[2Jders in vhost /, position 1: ready" in shown.out
    assert "by shop, number 1, committed after" in shown.out
    assert "\x1b[2J" not in shown.out
    assert "entries 2 to 4" in shown.err

    assert run(["message", "1-4-0", "--data", str(data), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["events"][0]["publisher"] == "shop"


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (["1-5-0"], 1, "entry 5 is not committed"),
        (["nonsense"], 2, "is no message's id: it is GROUP-ENTRY-OFFSET"),
        (["1-4-0", "--queue", "orders"], 2, "goes without --queue"),
        (["shop:0", "--queue", "orders"], 2, "PUBLISHER:SEQNO such as shop:17"),
        (["1", "--queue", "orders"], 1, "knows no queue 'orders'"),
        (["1", "--queue", "orders"], 1, "next: if it was deleted, give the message's id"),
    ],
)
def test_what_cannot_be_told_is_explained(
    data: Path, capsys: Output, words: list[str], status: int, reason: str
):
    assert run(["message", *words, "--data", str(data)]) == status
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.out == ""


def test_what_a_queue_lost_needs_the_queue(data: Path, capsys: Output):
    window = ["--from", "2026-11-24", "--to", "2026-11-25"]
    assert run(["recover-messages", "--data", str(data), "--queue", "orders", *window]) == 1
    said = capsys.readouterr().err
    assert "knows no queue 'orders' in vhost '/'\n  next: name its --vhost" in said
    assert "GROUP-ENTRY-OFFSET" not in said


def test_a_folder_without_a_log_and_an_archive_without_a_folder_are_wrong_usage(
    tmp_path: Path, capsys: Output
):
    assert run(["message", "1-4-0", "--data", str(tmp_path)]) == 2
    assert "give the data folder of a node" in capsys.readouterr().err
    assert run(["message", "1-4-0", "--archive", str(tmp_path)]) == 2
    assert "give --data too" in capsys.readouterr().err


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"event": "published"}, "-"),
        ({"event": "published", "written_ms": 5, "committed_ms": 9}, "committed after 4 ms"),
        ({"event": "published", "written_ms": None, "committed_ms": 9}, "-"),
        ({"event": "delivered", "acquired": 0, "failed": 0}, "-"),
        (
            {"event": "delivered", "acquired": 2, "failed": 1},
            "redelivered, 2 times before, 1 failed",
        ),
        ({"event": "delivered", "acquired": 1}, "redelivered, once before"),
        ({"event": "settled", "reason": "auto"}, "by its delivery"),
        ({"event": "returned", "failed": 1, "reason": "asked"}, "as failed"),
        (
            {"event": "returned", "failed": 0, "reason": "ended"},
            "not as failed, its consumer ended",
        ),
        ({"event": "died", "reason": "expired", "goes": False}, "expired"),
        (
            {"event": "died", "reason": "rejected", "goes": True},
            "rejected, goes on as a dead letter",
        ),
    ],
)
def test_each_event_in_words(event: dict[str, Any], words: str):
    assert more(event) == words


def told(now: dict[str, Any], **read: Any) -> dict[str, Any]:
    about: dict[str, Any] = {
        "node": "n1",
        "from": 1,
        "to": 9,
        "whole": True,
        "damage": [],
        "cut_short": False,
        **read,
    }
    return {"message": "1-2-0", "now": now, "read": about, "left_out": 0, "events": []}


def test_where_it_is_now_in_words():
    place = {"vhost": "/", "queue": "q", "position": 3}
    start = "message 1-2-0, queue q in vhost /, position 3: "
    assert headline(told({**place, "state": "settled"})) == start + "settled"
    unsettled = {**place, "state": "unsettled", "consumer": 7}
    assert headline(told(unsettled)) == start + "held by consumer 7, not settled"
    dead = {**place, "state": "died", "reason": "expired", "goes": True}
    assert headline(told(dead)) == start + "dead (expired), on its way as a dead letter"
    hidden = told({"state": "withheld"})
    assert headline(hidden) == "message 1-2-0: in a queue that you may not read"


def test_what_is_not_covered_is_said():
    assert remarks(told({})) == ["from the log of node n1, entries 2 to 9"]
    found = told({}, whole=False, current=False, damage=["a.log:80"])
    found |= {"left_out": 1_000, "withheld": 2}
    assert [line.split(":")[0] for line in remarks(found)[1:]] == [
        "the log begins behind entry 1",
        "the group has no leader now, or this copy is behind",
        "1,000 events in the middle are left out",
        "2 events in queues that you may not read are left out",
        "damaged",
    ]


def test_that_there_was_no_time_is_said():
    (_, line) = remarks(told({}, whole=False, cut_short=True))
    assert line.startswith("there was no time for segments older than entry 1")


def test_times_are_in_utc_to_the_millisecond():
    assert time_of(1_767_607_200_012) == "2026-01-05 10:00:00.012"


def test_a_dead_letter_is_shown_with_the_queues_that_it_was_in(tmp_path: Path, capsys: Output):
    with Built(tmp_path, nodes=1) as cluster:
        cluster.elect(1, "n1")
        dead = QueueConfig(max_length=1, dead_letter_exchange="", dead_letter_queue=QueueId(8))
        cluster.propose(1, CreateQueue(QueueId(8), "/", "letters", QueueConfig()))
        cluster.propose(1, CreateQueue(QueueId(7), "/", "orders", dead))
        cluster.propose(1, Enqueue(QueueId(7), None, 0, [b"old"]))
        cluster.propose(1, Enqueue(QueueId(7), None, 0, [b"new"]))
        assert run(["message", "1-5-0", "--data", str(tmp_path / "n1")]) == 0
    shown = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[2:4]] for line in shown.splitlines()[4:-1]]
    assert rows == [
        ["orders 1", "published"],
        ["orders 1", "died"],
        ["letters 1", "arrived as a dead letter"],
    ]
    assert shown.startswith("message 1-5-0, queue letters in vhost /, position 1: ready\n")
