"""`quorate recover-messages`: what expired or was purged is found in a node's folder."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import quorate
from cluster.history.lost_messages import lost_messages
from cluster.history.message_history import find_queue
from quorate.cli import run
from quorate.cli.nodes import log_folder
from tests.node.management.api import api_of
from tests.node.nodes import Nodes, until
from tests.testkit.commands import command


@pytest.mark.live
async def test_what_expired_and_what_was_purged_is_published_again_and_nothing_twice(
    tmp_path: Path,
):
    folder = tmp_path / "n1"
    window = [
        (datetime.now(UTC) + timedelta(hours=hours)).isoformat(timespec="seconds")
        for hours in (-1, 1)
    ]
    async with Nodes(tmp_path) as nodes:
        url = nodes.url("n1")
        await nodes.declare("q")
        await nodes.declare("aside")
        async with quorate.connect([url]) as client:
            for number in range(3):
                await client.publish("q", b"purged %d" % number, key="k", headers={"n": number})
            await client.purge("q")
            await client.publish("q", b"expired", ttl_ms=1)

            async def empty() -> bool:
                return (await client.info("q"))["messages"] == 0

            await until(empty)
            # None of these was lost.
            await client.publish_many("q", [b"settled", b"moved", b"stays"])
            [settled] = await client.get("q")
            await settled.settle(wait=True)
            moved = await api_of(nodes.one).post(
                "queues/%2F/q/move", to="aside", positions=[[6, 6]]
            )
            assert moved.value["done"] == 1, moved

            since, until_ = window
            options = ("--data", str(folder), "--queue", "q", "--from", since, "--to", until_)
            status, out, said = await command("recover-messages", *options, "--json")
            assert status == 0, said
            rows = [json.loads(line) for line in out.splitlines()]
            assert [(row["reason"], row["body"]) for row in rows] == [
                ("purged", "purged 0"),
                ("purged", "purged 1"),
                ("purged", "purged 2"),
                ("expired", "expired"),
            ]
            for stored in (4, 0):
                command_line = ("recover-messages", *options, "--publish", "--into", "aside")
                status, _, said = await command(*command_line, "--url", url)
                assert status == 0, said
                assert f"4 messages are there again, {stored} by this command" in said
            rows = await client.peek("aside", count=10)
            assert [row["body"] for row in rows] == [
                b"moved",
                b"purged 0",
                b"purged 1",
                b"purged 2",
                b"expired",
            ]
            assert rows[1]["meta"]["headers"] == {"n": 0}
            assert rows[1]["meta"]["key"] == "k"

    # A folder of a node that has ended is read alike.
    paths = [str(log_folder(folder))]
    found = lost_messages(paths, *find_queue(paths, "/", "q"), from_ms=0, to_ms=1 << 50)
    assert (len(found.found), found.out_of_reach) == (4, 0)
    at_ms = found.found[-1].at_ms
    later = lost_messages(paths, *find_queue(paths, "/", "q"), from_ms=at_ms, to_ms=at_ms + 1)
    assert [each.body for each in later.found] == [b"expired"]


def test_a_time_or_a_folder_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for since, why in (("yesterday", "is no time such as"), ("2026-11-24", "no log segments")):
        window = ["--queue", "q", "--from", since, "--to", "2026-11-25"]
        assert run(["recover-messages", "--data", str(tmp_path), *window]) == 2
        assert why in capsys.readouterr().err
