"""Real nodes come, go and are replaced by commands, while messages pass."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import replace
from typing import Any

import pytest

import quorate
from cluster.machine import MACHINE_VERSION
from node.operating.removal import risks_of
from quorate.cli.moves import View, word_of
from quorate.local import LocalCluster, LocalNode
from tests.node.nodes import free_ports, until
from tests.testkit.commands import begin

pytestmark = pytest.mark.timeout(900)

#: Every look is a process that begins, beside five nodes and a load.
SLOW_S = 300.0
Row = dict[str, Any]


# --- what is said, without nodes ------------------------------------------------------------------


def node(name: str, *, state: str = "member", running: bool = True) -> Row:
    return {"name": name, "state": state, "running": running, "copies": 0, "addresses": {}}


def group(number: int, *members: str, **more: Any) -> Row:
    return {
        "id": number,
        "name": f"g{number}",
        "members": list(members),
        "held": list(members),
        "voters": list(members),
        "learners": [],
        "leader": members[0],
        "last": 1_000,
        "lag": {},
        "moving": False,
        **more,
    }


def three(**states: bool) -> View:
    names = ("a", "b", "c")
    nodes = [node(name, running=states.get(name, True)) for name in names]
    return View(nodes, [group(0, *names), group(1, *names), group(2, "a", "b")])


def risks(view: View, node: str, successor: str | None) -> list[str]:
    return risks_of(view.nodes, view.groups, node, successor)


def test_a_removal_that_costs_nothing_is_not_warned_about():
    view = replace(three(), nodes=[*three().nodes, node("d")])
    assert risks(view, "a", None) == []
    assert risks(view, "a", "d") == []


def test_a_removal_that_costs_copies_or_a_majority_says_how_many():
    assert risks(three(), "a", None) == ["1 of 2 groups would lose a copy and have as few as 2"]
    assert risks(three(), "a", "c") == ["1 of 2 groups would lose a copy and have as few as 2"]
    assert risks(three(b=False), "a", "b")[1:] == [
        "of the 2 nodes that stay 1 are up, and a majority is 2",
        "b, which is to take over, is down",
    ]


@pytest.mark.parametrize(
    ("row", "down", "words"),
    [
        ({"leader": None}, (), "g1: has no leader now"),
        ({"learners": ["d"], "lag": {"d": 400}}, (), "g1: d has 600 of 1,000 entries"),
        ({"learners": ["d"], "lag": {"d": 400}}, ("d",), "g1: waits for d, which is down"),
        ({"members": ["a", "b", "d"]}, (), "g1: d is next"),
        ({"members": ["a", "b"]}, (), "g1: without c next"),
    ],
)
def test_what_a_moving_group_waits_for(row: Row, down: tuple[str, ...], words: str):
    assert word_of(group(1, "a", "b", "c", **row), down) == words


# --- real nodes -----------------------------------------------------------------------------------


def ready_to_join(local: LocalCluster, name: str) -> LocalNode:
    """As an operator writes it: the settings of a node that is there, with another name."""
    http, peer, amqp = free_ports(3)
    made = LocalNode(name, http, peer, amqp, local.folder / name)
    made.folder.mkdir()
    peers = [f"{each.name}=127.0.0.1:{each.peer}" for each in (*local.nodes[:3], made)]
    text = (local.nodes[1].folder / "quorate.toml").read_text()
    kept = [line for line in text.splitlines() if line.startswith(("cluster ", "secret_file "))]
    lines = {
        "node": name,
        "data_dir": str(made.folder / "data"),
        "http": f"127.0.0.1:{http}",
        "peer": f"127.0.0.1:{peer}",
        "amqp": f"127.0.0.1:{amqp}",
        "peers": peers,
        "join": True,
    }
    settings = [*kept, *(f"{key} = {json.dumps(value)}" for key, value in lines.items())]
    (made.folder / "quorate.toml").write_text("\n".join(settings) + "\n")
    local.nodes.append(made)
    return made


class Commands:
    def __init__(self, *urls: str) -> None:
        self.urls = ",".join(urls)

    async def begin(self, *command: str) -> asyncio.subprocess.Process:
        return await begin(*command, "--url", self.urls)

    async def run(self, *command: str, status: int = 0) -> str:
        """What it says, on both outputs."""
        process = await self.begin(*command)
        out, words = await process.communicate()
        said = out.decode() + words.decode()
        assert process.returncode == status, said
        return said

    async def rows(self, *command: str) -> dict[str, Row]:
        said = await self.run(*command, "--json")
        return {row["name"]: row for row in map(json.loads, said.splitlines())}

    async def joined(self, name: str) -> bool:
        return (await self.rows("node", "list"))[name]["state"] == "member"


@pytest.mark.live
async def test_three_nodes_become_five_and_the_first_one_leaves(local: LocalCluster):
    quorate_ = Commands(*local.urls)
    stop = asyncio.Event()
    sent: list[bytes] = []
    got: set[bytes] = set()

    async def publish(client: quorate.Client) -> None:
        while not stop.is_set():
            bodies = [b"%d" % number for number in range(len(sent), len(sent) + 20)]
            await client.publish_many("orders", bodies, batch=10)
            sent.extend(bodies)

    async def consume(client: quorate.Client) -> None:
        async with client.consume_batches("orders", credit=200) as consumer:
            async for batch in consumer:
                got.update(batch.bodies)
                await batch.settle()
                if b"last" in got and len(got) == len(sent):
                    return

    async with quorate.connect(local.urls) as client:
        await client.declare("orders")
        publishing = asyncio.create_task(publish(client))
        consuming = asyncio.create_task(consume(client))
        for name in ("node-4", "node-5"):
            made = ready_to_join(local, name)
            said = await quorate_.run("node", "add", name, f"127.0.0.1:{made.peer}")
            assert "next: start it with `join = true`" in said
            await local.start(made)
            await until(lambda name=name: quorate_.joined(name), within_s=SLOW_S)

        planned = await quorate_.run("group", "spread", "--dry-run")
        assert "5 of 8 groups would move" in planned
        said = await quorate_.run("group", "spread")
        assert "5 groups moved; copies: node-1 5" in said
        copies = {
            name: row["copies"] for name, row in (await quorate_.rows("node", "list")).items()
        }
        assert sorted(copies.values()) == [4, 5, 5, 5, 5]

        # Only the node that goes is named: the others are found.
        said = await Commands(local.nodes[0].url).run("node", "remove", "node-1")
        assert "node node-1: removed; copies: node-2 6, node-3 6, node-4 6, node-5 6" in said
        assert local.nodes[0].process is not None
        async with asyncio.timeout(SLOW_S):
            assert await local.nodes[0].process.wait() == 0

        stop.set()
        await publishing
        sent.append(b"last")
        await client.publish("orders", b"last")
        async with asyncio.timeout(SLOW_S):
            await consuming
    assert got == set(sent)
    nodes = await Commands(local.nodes[1].url).rows("node", "list")
    assert set(nodes) == {"node-2", "node-3", "node-4", "node-5"}
    assert "moving" not in await Commands(local.nodes[1].url).run("status")


@pytest.mark.live
async def test_a_node_that_is_silent_and_then_killed_is_replaced_by_another(local: LocalCluster):
    quorate_ = Commands(*local.urls)
    bodies = [b"%d" % number for number in range(5_000)]
    async with quorate.connect(local.urls) as client:
        await client.declare("orders")
        await client.publish_many("orders", bodies, batch=100)
    assert local.nodes[1].process is not None
    local.nodes[1].process.send_signal(signal.SIGSTOP)
    silent = Commands(local.nodes[1].url, local.nodes[2].url)
    assert set(await silent.rows("node", "list")) == {"node-1", "node-2", "node-3"}
    made = ready_to_join(local, "node-4")
    await local.kill(local.nodes[1])
    said = await quorate_.run("node", "remove", "node-2", status=2)
    assert "8 of 8 groups would lose a copy and have as few as 2" in said
    assert "--yes" in said

    replacing = await quorate_.begin(
        "node", "replace", "node-2", "node-4", f"127.0.0.1:{made.peer}"
    )
    await until(lambda: _is_known(quorate_, "node-4"), within_s=SLOW_S)
    replacing.send_signal(signal.SIGINT)
    _, words = await replacing.communicate()
    assert replacing.returncode == 130, words.decode()
    assert b"node-2 stays until this command is given once more" in words

    await local.start(made)
    said = await quorate_.run("node", "replace", "node-2", "node-4", f"127.0.0.1:{made.peer}")
    assert "node node-2: removed; copies: node-1 8, node-3 8, node-4 8" in said
    groups = await quorate_.rows("group", "list")
    assert all(row["held"] == ["node-1", "node-3", "node-4"] for row in groups.values())
    await local.kill(local.nodes[2])
    async with quorate.connect([local.nodes[0].url, made.url]) as client:
        got: list[bytes] = []
        async with client.consume_batches("orders", credit=500) as consumer:
            async for batch in consumer:
                got += batch.bodies
                await batch.settle()
                if len(got) >= len(bodies):
                    break
    assert sorted(set(got)) == sorted(bodies)


async def _is_known(commands: Commands, name: str) -> bool:
    return name in await commands.rows("node", "list")


@pytest.mark.live
async def test_a_copy_is_dropped_and_got_anew(local: LocalCluster):
    quorate_ = Commands(*local.urls)
    async with quorate.connect(local.urls) as client:
        await client.declare("orders")
        await client.publish_many("orders", [b"%d" % number for number in range(100)], batch=10)
        group = json.loads(await quorate_.run("queue", "show", "orders", "--json"))["group"]
        refused = await quorate_.run("group", "rebuild", group, "node-2", status=2)
        assert "will be on 2 nodes until node node-2 has it again" in refused

        said = await quorate_.run("group", "rebuild", group, "node-2", "--yes")

        assert f"group {group}: node node-2 has it anew" in said
        row = (await quorate_.rows("group", "list"))[group]
        assert sorted(row["voters"]) == ["node-1", "node-2", "node-3"]
        log = await asyncio.to_thread(local.nodes[1].log_file.read_text)
        assert log.count("copy_dropped") == 1
        async with client.consume_batches("orders", credit=200) as consumer:
            got: set[bytes] = set()
            async for batch in consumer:
                got.update(batch.bodies)
                await batch.settle()
                if len(got) == 100:
                    break


@pytest.mark.live
async def test_an_upgrade_is_held_and_finished(local: LocalCluster):
    quorate_ = Commands(*local.urls)
    state = json.loads(await quorate_.run("upgrade", "finish", "--json"))
    assert {row["newest"] for row in state["nodes"]} == {MACHINE_VERSION}
    assert set(state["groups"].values()) == {MACHINE_VERSION}
    assert len(state["groups"]) == 9

    assert f"machine version {MACHINE_VERSION} is kept" in await quorate_.run("upgrade", "hold")
    said = await quorate_.run("upgrade", "status")
    assert f"held at {MACHINE_VERSION}" in said
    assert f"node-1: machine=1-{MACHINE_VERSION} " in said
    await quorate_.run("upgrade", "finish")
    assert "held" not in await quorate_.run("upgrade", "status")
