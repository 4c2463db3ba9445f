"""`quorate stream ...` and `quorate cursor ...` against a real node, filled by a NATS client."""

# pyright: basic
from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import nats
import pytest
from nats.js.client import JetStreamContext

from quorate.cli import run
from tests.cli.at_node import Output, one_node, only_at, rows_of
from tests.node.nodes import Nodes
from tests.testkit.waiting import WAIT_S, wait_until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with one_node(tmp_path_factory.mktemp("node"), nats="127.0.0.1:0") as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def here(nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> Iterator[None]:
    """Every test begins and ends without streams."""
    only_at(nodes, monkeypatch)
    yield
    for row in rows_of(capsys, "stream", "list"):
        assert run(["stream", "delete", row["name"], "--vhost", row["vhost"], "--yes"]) == 0


def lines_of(capsys: Output, *command: str) -> list[list[str]]:
    """The cells of a table."""
    capsys.readouterr()
    assert run([*command]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]


def filled(nodes: Nodes, count: int, work: Any = None) -> None:
    """Messages of two subjects in turn, the last with a header."""

    async def fill() -> None:
        assert nodes.one.nats is not None
        address = f"nats://{nodes.one.nats.address}"
        client = await nats.connect(address, user="guest", password="guest")
        js: JetStreamContext = client.jetstream(timeout=WAIT_S)
        for number in range(1, count + 1):
            headers = {"Source": "shop"} if number == count else None
            await js.publish(f"orders.{number % 2}", b"order %d" % number, headers=headers)
        if work is not None:
            await work(js)
        await client.close()

    asyncio.run(fill())


def test_a_stream_is_made_listed_changed_and_deleted(capsys: Output, nodes: Nodes):
    add = ["stream", "add", "orders", "--subject", "orders.*", "max_age=24h", "max_msgs=1000"]
    assert run([*add, "description=of the shop"]) == 0
    assert run([*add, "description=of the shop"]) == 0
    assert "exists already; it stores orders.*" in capsys.readouterr().err
    filled(nodes, 4)

    [row] = lines_of(capsys, "stream", "list")
    assert row[:4] == ["orders", "/", "orders.*", "4"]
    assert row[5:8] == ["4", "0", "n1"]
    assert run(["stream", "edit", "orders", "description=", "max_msg_size=2000"]) == 0
    assert "max_msg_size=2,000" in capsys.readouterr().err
    assert run(["stream", "edit", "orders", "max_age=23h"]) == 2
    assert run(["stream", "edit", "orders", "max_age=24h"]) == 0
    assert run(["stream", "edit", "orders", "max_bytes=1"]) == 2

    shown = dict(lines_of(capsys, "stream", "show", "orders"))
    assert shown["messages"].startswith("4 (")
    assert shown["sequences"] == "1 to 4"
    assert shown["settings"] == "max_msgs=1,000, max_msg_size=2,000, max_age=24h"
    assert "description" not in shown
    counts = lines_of(capsys, "stream", "show", "orders", "--subjects", "*.1")
    assert ["orders.1", "2"] in counts

    assert run(["stream", "delete", "orders"]) == 2
    assert "4 messages and 0 cursors would be lost" in capsys.readouterr().err
    assert run(["stream", "delete", "orders", "--yes"]) == 0
    assert run(["stream", "list"]) == 0
    assert "`quorate stream add" in capsys.readouterr().err


def test_streams_follow_others(capsys: Output, nodes: Nodes):
    assert run(["stream", "add", "orders", "--subject", "orders.*"]) == 0
    assert run(["stream", "add", "copy", "--mirror", "orders"]) == 0
    assert "it stores mirror of orders" in capsys.readouterr().err
    more = ["--source", "orders", "--source", "none"]
    assert run(["stream", "add", "all", "--subject", "own", *more]) == 0
    filled(nodes, 4)

    def followed() -> bool:
        rows = {row["name"]: row for row in rows_of(capsys, "stream", "list")}
        return rows["copy"]["state"]["messages"] == rows["all"]["state"]["messages"] == 4

    wait_until(followed)
    shown = {row[0]: row for row in lines_of(capsys, "stream", "list")}
    assert shown["copy"][2] == "mirror of orders"
    about = dict(lines_of(capsys, "stream", "show", "all"))
    assert about["follows"] == "source orders, source none: stream not found"
    assert run(["stream", "edit", "copy", "mirror=", "--subject", "mine"]) == 0
    assert "follows" not in dict(lines_of(capsys, "stream", "show", "copy"))


def test_messages_are_shown_and_dropped(capsys: Output, nodes: Nodes):
    assert run(["stream", "add", "orders", "--subject", "orders.*"]) == 0
    filled(nodes, 9)
    capsys.readouterr()

    assert run(["stream", "get", "orders", "9"]) == 0
    out = capsys.readouterr().out
    assert "Source" in out
    assert out.endswith("order 9\n")
    assert run(["stream", "get", "orders", "--last", "orders.0", "--raw"]) == 0
    assert capsys.readouterr().out == "order 8"
    [message] = rows_of(capsys, "stream", "get", "orders", "1")
    assert (message["subject"], message["payload"], message["seq"]) == ("orders.1", "order 1", 1)

    purge = ["stream", "purge", "orders"]
    assert run(purge) == 2
    assert "9 messages would be lost\n  next: repeat it with --yes" in capsys.readouterr().err
    assert run([*purge, "--before", "3", "--keep", "1", "--yes"]) == 2
    assert run([*purge, "--before", "3", "--yes"]) == 0
    assert run([*purge, "--subject", "orders.1", "--keep", "1", "--yes"]) == 0
    assert run(["stream", "forget", "orders", "8", "--yes"]) == 0
    said = capsys.readouterr().err
    assert "2 messages dropped" in said
    assert "3 messages dropped" in said
    [row] = lines_of(capsys, "stream", "list")
    assert row[3] == "3"  # 4, 6 and 9


def test_a_cursor_is_made_read_by_paused_and_deleted(capsys: Output, nodes: Nodes):
    assert run(["stream", "add", "orders", "--subject", "orders.*"]) == 0
    add = ["cursor", "add", "orders", "billing", "--filter", "orders.1", "ack_wait=1m"]
    assert run(add) == 0
    assert run(add) == 0

    async def read(js: JetStreamContext) -> None:
        subscription = await js.pull_subscribe_bind("billing", stream="orders")
        first, second, _ = await subscription.fetch(3, timeout=WAIT_S)
        await first.ack_sync(WAIT_S)
        await second.ack_sync(WAIT_S)

    filled(nodes, 10, read)
    assert run(["cursor", "add", "orders", "audit", "--from", "5", "--ack", "all"]) == 0
    assert run(["cursor", "add", "orders", "recent", "--from", "1h"]) == 0

    audit, billing, _ = lines_of(capsys, "cursor", "list", "orders")
    assert audit == ["audit", "-", "4", "0", "0", "6"]
    assert billing == ["billing", "orders.1", "4", "1", "0", "2"]
    assert lines_of(capsys, "stream", "show", "orders")[-2] == billing
    shown = dict(lines_of(capsys, "cursor", "show", "orders", "audit"))
    assert (shown["began"], shown["delivered to"]) == ("by start sequence: 5", "nothing yet")

    assert run(["cursor", "edit", "orders", "billing", "ack_wait=5m"]) == 0
    assert run(["cursor", "pause", "orders", "billing", "--for", "1h"]) == 0
    assert lines_of(capsys, "cursor", "list", "orders")[1][0] == "billing (paused)"
    shown = dict(lines_of(capsys, "cursor", "show", "orders", "billing"))
    assert shown["paused (UTC)"].startswith("until ")
    assert run(["cursor", "resume", "orders", "billing"]) == 0
    shown = dict(lines_of(capsys, "cursor", "show", "orders", "billing"))
    assert "paused (UTC)" not in shown
    assert shown["settings"] == "ack_wait=5m"
    assert run(["cursor", "delete", "orders", "billing"]) == 2
    assert run(["cursor", "delete", "orders", "billing", "--yes"]) == 0
    assert [row["name"] for row in rows_of(capsys, "cursor", "list", "orders")] == [
        "audit",
        "recent",
    ]


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        ("stream show nope", 1, "`quorate stream list`"),
        ("stream add other --subject orders.1", 1, "subjects overlap"),
        ("stream add orders max_age=1h", 1, "`quorate stream edit`"),
        ("stream add other max_mgs=1", 1, "no setting 'max_mgs'"),
        ("stream add other max_age", 2, "KEY=VALUE"),
        ("stream edit orders", 2, "what shall change?"),
        ("stream edit orders max_msgs=1", 2, "messages that are over it would be lost"),
        ("stream get orders", 2, "SEQUENCE"),
        ("stream get orders 5", 1, "there is no message 5"),
        ("stream purge nope --yes", 1, "`quorate stream list`"),
        ("cursor add orders c --from tomorrow", 2, "how long ago"),
        ("cursor add nope c", 1, "`quorate stream list`"),
        ("cursor show orders c", 1, "`quorate cursor list orders`"),
        ("cursor pause orders c", 2, "--for 1h"),
        ("cursor pause orders c --for ever", 2, "a length of time"),
        ("stream add x --vhost nowhere", 1, "`quorate vhost list`"),
    ],
)
def test_what_is_wrong_is_said_with_the_next_step(
    capsys: Output, command: str, status: int, words: str
):
    assert run(["stream", "add", "orders", "--subject", "orders.*"]) == 0
    capsys.readouterr()

    assert run(command.split()) == status

    assert words in capsys.readouterr().err
