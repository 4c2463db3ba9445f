"""Nodes that come and go, and groups that move, as the management API is asked for it."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from node.node import Node
from node.settings.settings import SettingsError, load
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, free_ports, until


class Growing(Nodes):
    """Three nodes, and those that are made ready to join."""

    def make(self, name: str) -> str:
        """The settings of one more; its address for peers."""
        [port] = free_ports(1)
        others = self._flags["n1"]["peers"]
        self._flags[name] = {
            **self._flags["n1"],
            "node": name,
            "data_dir": str(self.folder / name),
            "peer": f"127.0.0.1:{port}",
            "peers": {**others, name: f"127.0.0.1:{port}"},
            "join": True,
        }
        return f"127.0.0.1:{port}"

    async def join(self, api: Api, name: str) -> Node:
        assert await api.put(f"nodes/{name}", address=self.make(name)) == 201
        node = await self.start(name)
        await until(lambda: in_state(api, name, "member"))
        return node


async def in_state(api: Api, name: str, state: str) -> bool:
    return any(row["name"] == name and row["state"] == state for row in await api.get("nodes"))


async def settled(api: Api) -> bool:
    return not any(row["moving"] for row in await api.get("groups"))


async def copies(api: Api) -> dict[str, int]:
    return {row["name"]: row["copies"] for row in await api.get("nodes")}


async def test_groups_are_listed_with_their_leaders_and_members(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.one)
        await until(lambda: settled(api))

        rows = await api.get("groups")

        assert [row["name"] for row in rows] == ["catalog", "default-1", "default-2", "default-3"]
        assert [row["default"] for row in rows] == [False, True, True, True]
        for row in rows:
            assert row["leader"] in nodes.nodes
            assert row["members"] == row["held"] == row["voters"] == ["n1", "n2", "n3"]
            assert row["learners"] == []
            assert set(row["lag"]) == {"n1", "n2", "n3"} - {row["leader"]}
        assert (await api.get("groups/default-2"))["id"] == 2
        assert (await api.ask("GET", "groups/none")).status == 404
        assert await copies(api) == {"n1": 3, "n2": 3, "n3": 3}


async def test_nodes_join_take_their_share_and_leave_again(tmp_path: Path):
    async with Growing(tmp_path, 3) as nodes:
        api = api_of(nodes.one)
        await api.queue("q")
        await api.publish("q", "kept")
        await nodes.join(api, "n4")
        await nodes.join(api, "n5")
        assert await copies(api) == {"n1": 3, "n2": 3, "n3": 3, "n4": 0, "n5": 0}

        asked = (await api.ask("POST", "groups/spread?dry-run=true")).value["moves"]
        assert await copies(api) == {"n1": 3, "n2": 3, "n3": 3, "n4": 0, "n5": 0}
        done = (await api.post("groups/spread")).value["moves"]
        assert done == asked
        assert {move["group"] for move in done} <= {"default-1", "default-2", "default-3"}
        await until(lambda: settled(api))
        assert sorted((await copies(api)).values()) == [1, 2, 2, 2, 2]
        assert (await api.post("groups/spread")).value["moves"] == []

        n1 = nodes.nodes["n1"]
        other = api_of(nodes.nodes["n2"])
        assert await other.delete("nodes/n1") == 204
        await until(n1.left.done)
        await nodes.stop("n1")

        async def gone() -> bool:
            return "n1" not in await copies(other)

        await until(gone)
        await until(lambda: settled(other))
        held = Counter(node for row in await other.get("groups") for node in row["held"])
        assert set(held) == {"n2", "n3", "n4", "n5"}
        [message] = await until(lambda: other.take("q"))
        assert message["payload"] == "kept"
        size = await other.get("health/checks/reached-target-cluster-size")
        assert (size["cluster_size"], size["target_cluster_size"]) == (4, 4)
        assert (await other.ask("GET", "nodes/n1")).status == 404
        assert await other.delete("nodes/n1") == 404


async def test_a_group_moves_where_it_is_told(tmp_path: Path):
    async with Growing(tmp_path, 3) as nodes:
        api = api_of(nodes.one)
        await nodes.join(api, "n4")

        with capture_logs() as logs:
            assert await api.put("groups/default-1/members", members=["n2", "n3", "n4"]) == 204

        async def there() -> bool:
            row = await api.get("groups/default-1")
            return row["held"] == ["n2", "n3", "n4"] and not row["moving"]

        await until(there)
        assert await api.put("groups/default-1/members", members=["n4", "n2", "n3"]) == 204
        fewer = await api.ask("PUT", "groups/default-1/members", {"members": ["n4"]})
        assert (fewer.status, "1 copies instead of 3" in fewer.value["reason"]) == (400, True)
        told = [(e["who"], e["target"], e["outcome"]) for e in logs if e["event"] == "audit"]
        assert told == [("guest", "/api/groups/default-1/members", "ok")]

        only_one = {"members": ["n4"], "fewer": True}
        assert await api.put("groups/default-1/members", **only_one) == 204


async def test_a_removal_that_costs_copies_or_a_majority_has_to_be_meant(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.nodes["n1"])
        await until(lambda: settled(api))

        asked = await api.ask("DELETE", "nodes/n3")
        assert asked.status == 400
        assert "3 of 3 groups would lose a copy and have as few as 2" in asked.value["reason"]
        assert "?fewer=true" in asked.value["reason"]
        assert {row["state"] for row in await api.get("nodes")} == {"member"}

        await nodes.stop("n2")

        async def seen_down() -> bool:
            reply = await api.ask("DELETE", "nodes/n3?heir=n2")
            words = ("a majority is 2", "n2, which is to take over, is down")
            return reply.status == 400 and all(word in reply.value["reason"] for word in words)

        await until(seen_down)
        await nodes.start("n2")
        n3 = nodes.nodes["n3"]
        assert await api.delete("nodes/n3?fewer=true") == 204
        assert await api.delete("nodes/n3") in (204, 404)  # meant already, or gone
        await until(n3.left.done)


@pytest.mark.parametrize("name", ["n1", "n3"])
async def test_a_node_that_was_removed_and_starts_on_an_empty_folder_is_told_and_ends(
    tmp_path: Path, name: str
):
    """Of two nodes one calls the other: n1 calls all, n3 is called by all."""
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.nodes["n2"])
        await until(lambda: settled(api))
        assert await api.delete(f"nodes/{name}?fewer=true") == 204
        await until(nodes.nodes[name].left.done)
        await nodes.stop(name)

        async def gone() -> bool:
            return name not in await copies(api)

        await until(gone)
        shutil.rmtree(tmp_path / name)
        with capture_logs() as logs:
            node = await nodes.start(name)
            await until(node.left.done)
        [told] = [line for line in logs if line["event"] == "removed_from_cluster"]
        assert told["node"] == name
        assert node.failed is not None
        assert not node.failed.done()
        assert name not in await copies(api)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("PUT", "nodes/n2", {}, 400, "address"),
        ("PUT", "nodes/n2", {"address": "nowhere"}, 400, "host:port"),
        ("PUT", "nodes/n2", {"address": ":1"}, 400, "host:port"),
        ("DELETE", "nodes/n2", None, 404, "no node 'n2'"),
        ("DELETE", "nodes/n1", None, 400, "the only one"),
        ("DELETE", "nodes/n1?heir=n9", None, 400, "'n9'"),
        ("PUT", "groups/none/members", {"members": ["n1"]}, 404, "no group 'none'"),
        ("PUT", "groups/catalog/members", {"members": ["n1"]}, 400, "every node"),
        ("PUT", "groups/default-1/members", {}, 400, "members"),
        ("PUT", "groups/default-1/members", {"members": "n1,n1"}, 400, "different"),
        ("PUT", "groups/default-1/members", {"members": []}, 400, "from 1"),
        ("PUT", "groups/default-1/members", {"members": [1]}, 400, "members"),
        ("PUT", "groups/default-1/members", {"members": ["n9"]}, 400, "'n9'"),
    ],
)
async def test_what_cannot_be_is_refused_in_words(
    api: Api, method: str, path: str, body: Any, status: int, says: str
):
    reply = await api.ask(method, path, body)
    assert reply.status == status, reply
    assert says in reply.value["reason"]
    assert await copies(api) == {"n1": 3}


async def test_only_administrators_change_members(api: Api):
    await api.put("users/watcher", password="secret", tags="monitoring")
    watcher = api.as_user("watcher", "secret")
    assert len(await watcher.get("groups")) == 4
    for method, path in [
        ("PUT", "nodes/n2"),
        ("DELETE", "nodes/n1"),
        ("PUT", "groups/default-1/members"),
        ("POST", "groups/spread"),
    ]:
        assert (await watcher.ask(method, path, {})).status == 401, path


async def test_nothing_is_spread_while_a_node_is_down(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.nodes["n1"])
        await nodes.stop("n3")

        async def refused() -> bool:
            reply = await api.post("groups/spread")
            return reply.status == 400 and "n3 is down" in reply.value["reason"]

        await until(refused)


async def test_a_node_that_waits_to_be_let_in_says_what_to_do(tmp_path: Path):
    async with Growing(tmp_path, 3) as nodes:
        api = api_of(nodes.one)
        address = nodes.make("n4")
        with capture_logs() as logs:
            await nodes.start("n4")
            [said] = await until(
                lambda: [e for e in logs if e["event"] == "waiting_to_be_let_in"], within_s=60
            )
        assert f"quorate node add n4 {address}" in said["reason"]
        assert await api.put("nodes/n4", address=address) == 201
        await until(lambda: in_state(api, "n4", "member"))
        status = nodes.nodes["n4"].cluster.status()
        assert {row["node"]: row["state"] for row in status["nodes"]} == dict.fromkeys(
            ("n1", "n2", "n3", "n4"), "member"
        )
        assert status["moving"] == []


def test_a_node_joins_others_not_itself():
    with pytest.raises(SettingsError, match="join: needs a cluster that exists"):
        load(environment={"QUORATE_JOIN": "true"})
