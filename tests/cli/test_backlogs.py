"""`quorate queue why`, `move`, `copy`, `drain-to`, `replay-dead-letters`, `delayed` at a node."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

import quorate
from quorate.cli import run
from quorate.cli.relief import Held, Levels, Phase, next_phase
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes
from tests.testkit.threads import in_a_thread
from tests.testkit.waiting import wait_until

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """What the node logs must not stand between what a command says."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.__stderr__))
    nodes = Nodes(tmp_path_factory.mktemp("node"))
    with in_a_thread(nodes):
        yield nodes
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def here(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUORATE_URL", nodes.url("n1"))
    for name in ("QUORATE_USER", "QUORATE_PASSWORD", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def told(capsys: Output, *command: str, status: int = 0) -> Any:
    capsys.readouterr()
    assert run([*command, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def said(capsys: Output, *command: str, status: int = 0) -> str:
    capsys.readouterr()
    assert run([*command]) == status
    return capsys.readouterr().err


def made(nodes: Nodes, *queues: str, **arguments: Any) -> Api:
    api = api_of(nodes.one)

    async def make() -> None:
        for queue in queues:
            await api.queue(queue, **arguments)

    asyncio.run(make())
    return api


def publish(api: Api, queue: str, *bodies: str, **properties: Any) -> None:
    async def send() -> None:
        for body in bodies:
            await api.publish(queue, body, **properties)

    asyncio.run(send())


def bodies(api: Api, queue: str, ackmode: str = "ack_requeue_false") -> list[str]:
    return [each["payload"] for each in asyncio.run(api.take(queue, 1_000, ackmode))]


def test_why(nodes: Nodes, capsys: Output):
    api = made(nodes, "why")
    publish(api, "why", "m")
    words = said(capsys, "queue", "why", "why", status=1)
    assert "no_consumer: 1 messages are ready, and nobody is subscribed" in words
    assert "next: start a consumer" in words
    assert [each["code"] for each in told(capsys, "queue", "why", "why", status=1)["findings"]] == [
        "no_consumer"
    ]
    assert bodies(api, "why") == ["m"]
    assert "nothing keeps its messages" in said(capsys, "queue", "why", "why")
    assert "there is no queue none" in said(capsys, "queue", "why", "none", status=1)


def test_a_queue_with_an_old_message_is_shown_with_its_limit(nodes: Nodes, capsys: Output):
    api = made(nodes, "aging", slo_oldest_age=60_000)
    asyncio.run(api.put("policies/%2F/short", pattern="^ag", definition={"slo-oldest-age": 1}))
    publish(api, "aging", "m")

    def shown() -> dict[str, Any]:
        capsys.readouterr()
        assert run(["queue", "list", "--json"]) == 0
        rows = map(json.loads, capsys.readouterr().out.splitlines())
        return next(row for row in rows if row["name"] == "aging")

    row = wait_until(lambda: (row := shown())["oldest_ready_age"] > 1 and row)
    assert row["slo_oldest_age"] == 1, "of both the lower counts"
    assert run(["queue", "list"]) == 0
    assert "s of 0.001 s" in capsys.readouterr().out


def test_move_by_count_and_filter_and_dry_run(nodes: Nodes, capsys: Output):
    api = made(nodes, "from", "to")
    publish(api, "from", *map(str, range(6)), headers={"kind": "a"})
    publish(api, "from", *map(str, range(6, 12)), headers={"kind": "b"})
    dry = told(capsys, "queue", "move", "from", "to", "--dry-run", "--where", "header.kind=b")
    assert dry == {"count": 6, "bytes": 8}
    command = ("queue", "move", "from", "to", "--where", "header.kind=b,older-than=0", "-n", "4")
    assert told(capsys, *command)["done"] == 4
    assert bodies(api, "to") == ["6", "7", "8", "9"]
    words = said(capsys, "queue", "move", "from", "to", "--rate", "1000")
    assert "8 messages moved to to" in words
    assert bodies(api, "to") == ["0", "1", "2", "3", "4", "5", "10", "11"]
    assert "not NAME=VALUE" in said(capsys, "queue", "move", "from", "to", "--where", "x", status=2)
    publish(api, "from", "left")
    assert "no queue from or none" in said(capsys, "queue", "move", "from", "none", status=1)
    assert bodies(api, "from") == ["left"]


def test_copy_twice_under_one_name_is_once(nodes: Nodes, capsys: Output):
    api = made(nodes, "original", "twin")
    publish(api, "original", "a", "b", "c")
    for _ in range(2):
        command = ("queue", "copy", "original", "twin", "--operation", "once")
        assert told(capsys, *command)["done"] == 3
    assert bodies(api, "twin") == ["a", "b", "c"]
    assert bodies(api, "original") == ["a", "b", "c"]


def test_what_finds_no_room_stays_and_drain_to_waits_for_it(nodes: Nodes, capsys: Output):
    api = made(nodes, "wide")
    made(nodes, "narrow", max_length=2, overflow="reject-publish")
    publish(api, "wide", "a", "b", "c")
    words = said(capsys, "queue", "move", "wide", "narrow", status=1)
    assert "2 messages moved to narrow; narrow is full" in words
    assert bodies(api, "wide", "ack_requeue_true") == ["c"]

    async def drained() -> None:
        draining = asyncio.to_thread(run, ["queue", "drain-to", "wide", "narrow"])
        taken: list[Any] = []
        task = asyncio.create_task(draining)
        while len(taken) < 3:
            taken += await api.take("narrow", 2)
        assert await task == 0

    asyncio.run(drained())
    assert bodies(api, "wide") == []


def test_dead_letters_are_replayed(nodes: Nodes, capsys: Output):
    api = made(nodes, "graveyard")
    made(nodes, "worked", dead_letter_exchange="", dead_letter_routing_key="graveyard")
    publish(api, "worked", "m")
    assert bodies(api, "worked", "reject_requeue_false") == ["m"]
    command = ("queue", "replay-dead-letters", "graveyard", "--where", "reason=rejected")
    wait_until(lambda: told(capsys, *command, "--dry-run")["count"] == 1)
    assert told(capsys, *command)["done"] == 1
    assert bodies(api, "worked") == ["m"]


def test_delayed_messages_are_listed_cancelled_and_retimed(nodes: Nodes, capsys: Output):
    api = made(nodes, "later")
    publish(api, "later", "a", "b", headers={"x-delay": 3_600_000})
    capsys.readouterr()
    assert run(["queue", "delayed", "list", "later", "--json"]) == 0
    a, b = map(json.loads, capsys.readouterr().out.splitlines())
    assert (a["payload"], b["payload"]) == ("a", "b")
    assert run(["queue", "delayed", "list", "later"]) == 0
    assert a["id"] in capsys.readouterr().out
    words = said(capsys, "queue", "delayed", "cancel", "later", a["id"], "99", status=1)
    assert "1 of 2 messages cancelled; not there: 99" in words
    words = said(capsys, "queue", "delayed", "retime", "later", b["id"], "--in", "0")
    assert "1 of 1 messages ready in 0" in words
    wait_until(lambda: bodies(api, "later") == ["b"])


LEVELS = Levels.of(20_000, 10_000)  # stop below 1,000 and 500; back below 100 and 50


@pytest.mark.parametrize(
    ("phase", "here", "there", "after"),
    [
        ("rest", (20_000, 10_000), (0, 0), "rest"),
        ("rest", (20_001, 0), (0, 0), "out"),  # (1) by messages
        ("rest", (1, 10_001), (0, 0), "out"),  # or by bytes
        ("out", (5_000, 10), (9, 9), "out"),
        ("out", (10, 5_000), (9, 9), "out"),  # one measure is low, the other is not
        ("out", (999, 499), (9, 9), "rest"),  # (2)
        ("rest", (100, 10), (9, 9), "rest"),
        ("rest", (99, 49), (9, 9), "back"),  # (3)
        ("rest", (99, 49), (0, 0), "rest"),
        ("rest", (99, 60), (9, 9), "rest"),
        ("back", (500, 400), (9, 9), "back"),
        ("back", (1_001, 0), (9, 9), "rest"),  # (4)
        ("back", (0, 501), (9, 9), "rest"),
        ("back", (500, 400), (0, 0), "rest"),
        ("back", (20_001, 0), (9, 9), "out"),
    ],
)
def test_when_a_queue_is_relieved(
    phase: Phase, here: tuple[int, int], there: tuple[int, int], after: Phase
):
    assert next_phase(phase, Held(*here), Held(*there), LEVELS) == after


def test_a_backlog_goes_aside_and_comes_back_when_there_is_room(nodes: Nodes, capsys: Output):
    api = made(nodes, "main", "aside")

    async def publish_many() -> None:
        async with quorate.connect([nodes.url("n1")]) as client:
            await client.publish_many("main", [b"%d" % number for number in range(600)])

    asyncio.run(publish_many())
    levels = ("--above", "400", "--until", "100", "--back-below", "10", "--back-until", "50")
    command = ("queue", "relieve", "main", "aside", *levels, "--once")
    words = said(capsys, *command)
    assert "messages go to aside; it holds 600 messages" in words
    assert "at rest; it holds 99 messages (297 bytes), aside 501 (1,393 bytes)" in words
    assert said(capsys, *command) == "", "between the levels nothing happens"

    # Its consumers have caught up: the oldest come back, and are as old as ever.
    assert bodies(api, "main") == list(map(str, range(501, 600)))
    words = said(capsys, *command)
    assert "they come back from aside; it holds 0 messages" in words
    assert "at rest; it holds 51 messages" in words
    assert bodies(api, "main") == list(map(str, range(51)))
    wrong = said(capsys, *command, "--until", "500", status=2)
    assert "--until must be below --above" in wrong
