"""`quorate queue why`, `move`, `copy`, `drain-to`, `replay-dead-letters`, `delayed` at a node."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

import quorate
from quorate.cli import run
from quorate.cli.relief import Held, Levels, Phase, next_phase
from tests.cli.at_node import Output, one_node, only_at
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes
from tests.testkit.waiting import wait_until


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with one_node(tmp_path_factory.mktemp("node")) as nodes:
        yield nodes


@pytest.fixture(autouse=True)
def here(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    only_at(nodes, monkeypatch)


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


@pytest.mark.parametrize("how", ["replay-dead-letters", "drain-to", "copy"])
def test_what_died_without_a_consumer_comes_back_too(nodes: Nodes, capsys: Output, how: str):
    """As a dead letter it would end there, as a cycle; it is none when a person wants it back."""
    grave, source = f"grave-{how}", f"source-{how}"
    api = made(nodes, grave)
    made(nodes, source, dead_letter_exchange="", dead_letter_routing_key=grave, max_length=1)
    publish(api, source, "m1", "m2")
    wait_until(
        lambda: told(capsys, "queue", "replay-dead-letters", grave, "--dry-run")["count"] == 1
    )
    assert bodies(api, source) == ["m2"]

    target = () if how == "replay-dead-letters" else (source,)
    assert told(capsys, "queue", how, grave, *target)["done"] == 1

    assert bodies(api, source) == ["m1"]
    assert bodies(api, grave) == (["m1"] if how == "copy" else [])


def test_why(nodes: Nodes, capsys: Output):
    api = made(nodes, "why")
    publish(api, "why", "m")
    words = said(capsys, "queue", "why", "why", status=1)
    assert "no_consumer: 1 message is ready, and nobody is subscribed" in words
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
    assert "no queue none" in said(capsys, "queue", "move", "from", "none", status=1)
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


def test_a_target_that_is_not_there_is_named_before_there_is_anything_to_move(
    nodes: Nodes, capsys: Output
):
    api = made(nodes, "empty", "there")
    for command in ("move", "copy", "drain-to"):
        words = said(capsys, "queue", command, "empty", "nowhere", status=1)
        assert "there is no queue nowhere" in words
        assert "quorate queue declare nowhere" in words
        assert "its own messages" in said(capsys, "queue", command, "empty", "empty", status=2)
        assert "there is no queue none:" in said(
            capsys, "queue", command, "none", "there", status=1
        )

    body = {"to": "there", "positions": [[1, 1]], "operation": "o"}
    assert asyncio.run(api.ask("POST", "queues/%2F/there/copy", body)).status == 400


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
    for command in (
        ["cancel", "none", "1"],
        ["fetch", "none", "1"],
        ["retime", "none", "1", "--in", "0"],
    ):
        assert "there is no queue none" in said(capsys, "queue", "delayed", *command, status=1)
    words = said(capsys, "queue", "delayed", "retime", "later", "1", "--in", "soon", status=2)
    assert "--in soon: not a time" in words


def test_deferred_messages_are_told_apart_and_fetched_by_id(nodes: Nodes, capsys: Output):
    api = made(nodes, "aside")
    publish(api, "aside", "a", "b", "c")
    with quorate.connect_sync(nodes.one.http_address) as client:
        for delivery in client.get("aside", 2):
            delivery.defer(wait=True)
        [c] = client.get("aside")
        c.defer(9_000_000, wait=True)  # 2.5 h
    capsys.readouterr()
    assert run(["queue", "delayed", "list", "aside"]) == 0
    words = capsys.readouterr().out
    assert words.count("deferred") == 2
    assert "2 h" in words
    assert run(["queue", "delayed", "list", "aside", "--json"]) == 0
    a, b, c = map(json.loads, capsys.readouterr().out.splitlines())
    fetch = ["queue", "delayed", "fetch", "aside"]
    assert run([*fetch, a["id"], "--keep"]) == 0
    assert capsys.readouterr().out == "a\n"
    wait_until(lambda: bodies(api, "aside") == ["a"])
    assert run([*fetch, b["id"], str(c["position"]), "99"]) == 1
    told = capsys.readouterr()
    assert told.out == "b\nc\n"
    assert "2 of 3 messages fetched; not deferred or delayed: 99" in told.err
    assert "no message is delayed" in said(capsys, "queue", "delayed", "list", "aside")


def test_a_queue_is_split_and_joined_with_all_that_waits(nodes: Nodes, capsys: Output):
    api = made(nodes, "hot")
    publish(api, "hot", *[f"{number}" for number in range(20)])
    found = told(capsys, "queue", "split", "hot", "--shards", "2")
    assert (found["shards"], found["done"]) == (["hot.1", "hot.2"], 20)
    publish(api, "hot", *[f"{number}" for number in range(20, 40)])
    words = said(capsys, "queue", "split", "hot", "--shards", "2")
    assert "split over hot.1, hot.2; 0 messages that waited were moved" in words
    assert "`quorate queue join hot` first" in said(
        capsys, "queue", "split", "hot", "--shards", "3", status=1
    )
    capsys.readouterr()
    assert run(["queue", "list"]) == 0
    assert "hot (2 shards)" in capsys.readouterr().out
    assert run(["publish", "hot", "of a native client"]) == 0
    assert run(["queue", "why", "hot"]) == 1
    why = capsys.readouterr().err
    assert "queue hot.1: no_consumer" in why
    assert "`quorate consume hot` is one" in why
    assert run(["consume", "hot", "--count", "3", "--keep"]) == 0  # of the queue or of its shards
    assert told(capsys, "queue", "split", "hot", "--shards", "2")["done"] == 0
    words = said(capsys, "queue", "delete", "hot", "--yes", status=1)
    assert "join it first" in words
    assert "--if-unused" not in words
    words = said(capsys, "queue", "split", "hot.1", status=1)
    assert "queue 'hot.1' in vhost '/' is a shard of 'hot'" in words
    found = told(capsys, "queue", "join", "hot")
    assert (found["done"], found["removed"]) == (41, ["hot.1", "hot.2"])
    assert told(capsys, "queue", "join", "hot")["done"] == 0
    held = bodies(api, "hot")
    held.remove("of a native client")
    assert sorted(held, key=int) == [f"{number}" for number in range(40)]
    assert "queue hot: deleted" in said(capsys, "queue", "delete", "hot", "--yes")


def test_what_shards_hold_is_counted_before_a_split_queue_is_purged(nodes: Nodes, capsys: Output):
    api = made(nodes, "spread")
    told(capsys, "queue", "split", "spread", "--shards", "2")
    publish(api, "spread", *[f"{number}" for number in range(6)])
    words = said(capsys, "queue", "purge", "spread", status=2)
    assert "6 messages would be lost" in words
    assert "queue spread: 6 messages dropped" in said(capsys, "queue", "purge", "spread", "--yes")


def rows(capsys: Output, *command: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_commands_take_the_one_name_of_a_split_queue_for_all_of_it(nodes: Nodes, capsys: Output):
    api = made(nodes, "wide", "slim", "twin")
    told(capsys, "queue", "split", "wide", "--shards", "2")
    publish(api, "wide", *[f"{number}" for number in range(10)])
    seen = rows(capsys, "queue", "peek", "wide")
    assert [each["body"] for each in seen] == [f"{number}" for number in range(10)]
    assert {each["queue"] for each in seen} == {"wide.1", "wide.2"}
    capsys.readouterr()
    assert run(["queue", "peek", "wide", "--count", "1"]) == 0
    assert "shard" in capsys.readouterr().out
    words = said(capsys, "queue", "move", "wide", "slim", "--dry-run")
    assert "10 messages, 10 bytes, would be affected" in words

    copy = ("queue", "copy", "wide", "twin", "--operation", "a")
    assert told(capsys, *copy)["done"] == 10
    assert told(capsys, *copy)["done"] == 10
    assert sorted(bodies(api, "twin")) == [f"{number}" for number in range(10)]
    words = said(capsys, *copy, "--start", "2", status=2)
    assert "positions count in each of its shards: name one of wide.1, wide.2" in words

    assert told(capsys, "queue", "move", "wide", "slim", "-n", "3")["done"] == 3
    assert "7 messages moved to slim" in said(capsys, "queue", "drain-to", "wide", "slim")
    assert told(capsys, "queue", "move", "slim", "wide")["done"] == 10
    assert {each["queue"] for each in rows(capsys, "queue", "peek", "wide")} == {"wide.1", "wide.2"}
    words = said(capsys, "queue", "move", "wide.1", "wide", status=1)
    assert "wide.1 is a shard of wide, and would get them back" in words
    words = said(capsys, "queue", "relieve", "wide", "twin", "--once", status=2)
    assert "relieve wide.1, wide.2, each with another queue" in words

    words = said(capsys, "queue", "why", "wide.1", status=1)
    assert "queue wide.1: no_consumer" in words
    assert "`quorate consume wide` is one" in words
    assert said(capsys, "queue", "why", "wide", status=1).count("no_consumer") == 2


def test_delayed_messages_of_a_split_queue_are_seen_and_changed_by_its_one_name(
    nodes: Nodes, capsys: Output
):
    made(nodes, "someday")
    told(capsys, "queue", "split", "someday", "--shards", "2")
    due_ms = round(time.time() * 1000) + 3_600_000

    async def send() -> None:
        async with quorate.connect(nodes.url("n1")) as client:
            for key in ("a", "b", "c", "d"):
                await client.publish("someday", key.encode(), key=key, deliver_at_ms=due_ms)

    asyncio.run(send())
    listed = rows(capsys, "queue", "delayed", "list", "someday")
    assert {each["queue"] for each in listed} == {"someday.1", "someday.2"}
    ids = {each["routing_key"]: each["id"] for each in listed}
    assert set(ids) == {"a", "b", "c", "d"}
    assert "1 of 1" in said(capsys, "queue", "delayed", "cancel", "someday", ids["a"])
    assert "1 of 1" in said(capsys, "queue", "delayed", "retime", "someday", ids["b"], "--in", "0")
    assert "2 of 2" in said(capsys, "queue", "delayed", "fetch", "someday", ids["c"], ids["d"])
    assert [each["body"] for each in rows(capsys, "queue", "peek", "someday")] == ["b"]


def test_a_split_that_is_refused_makes_no_shard(nodes: Nodes, capsys: Output):
    made(nodes, "warm", "warm.2")
    words = said(capsys, "queue", "split", "warm", status=1)
    assert "another queue has that name" in words
    assert run(["queue", "list", "--json"]) == 0
    assert '"warm.1"' not in capsys.readouterr().out


def test_commands_that_are_advised_name_the_virtual_host(nodes: Nodes, capsys: Output):
    everything = ("--configure", ".*", "--write", ".*", "--read", ".*")
    for command in (
        ("vhost", "add", "shop"),
        ("permission", "set", "guest", "--vhost", "shop", *everything),
        ("queue", "declare", "a b", "--vhost", "shop"),
        ("publish", "a b", "--vhost", "shop", "--count", "1"),
    ):
        assert run([*command]) == 0
    words = said(capsys, "queue", "why", "a b", "--vhost", "shop", status=1)
    assert "`quorate consume 'a b' --vhost shop`" in words
    assert "`quorate queue move 'a b' --vhost shop TARGET`" in words


def test_consumers_are_given_longer(nodes: Nodes, capsys: Output):
    api = made(nodes, "slow")
    publish(api, "slow", "a", "b")
    words = said(capsys, "queue", "extend", "slow", "--by", "30m")
    assert "consumers have 30m from now for 0 messages" in words
    assert "consumers have any time for" in said(capsys, "queue", "extend", "slow", "--by", "0")
    words = said(capsys, "queue", "extend", "slow", "--by", "long", status=2)
    assert "--by long: not a time" in words


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
