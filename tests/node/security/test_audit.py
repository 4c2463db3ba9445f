"""The audit log: who did what, from where, with which outcome."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import AMQPError

from node.node import Node
from node.operating.audit import RECENT_MAX, Audit
from node.settings.settings import SettingsError, load
from tests.node.management.api import api_of
from tests.node.nodes import Nodes


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_each_act_of_an_administrator_is_one_line(tmp_path: Path):
    file = tmp_path / "audit.log"
    async with Nodes(tmp_path / "nodes", audit_file=str(file)) as nodes:
        api = api_of(nodes.one)
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        await api.put("users/ann", password="hunter2", tags="")
        await api.put("vhosts/shop")
        await api.put("permissions/shop/ann", **everything)
        await api.put("policies/%2F/p", pattern="^a", definition={"max-length": 5})
        await api.put("vhost-limits/shop/max-connections", value=5)
        assert (await api.ask("POST", "definitions", {"users": []})).status < 300
        await api.get("definitions")
        await api.queue("q")
        assert (await api.ask("PUT", "exchanges/%2F/x", {"type": "fanout"})).status == 201
        await api.publish("q", "hello")
        assert await api.delete("queues/%2F/q/contents") == 204
        assert await api.delete("queues/%2F/q") == 204
        assert await api.delete("users/nobody") == 404
        assert await api.delete("users/ann") == 204

    told = [(line["what"], line["target"], line["outcome"]) for line in lines(file)]
    assert told == [
        ("PUT users/{user}", "/api/users/ann", "ok"),
        ("PUT vhosts/{vhost}", "/api/vhosts/shop", "ok"),
        ("PUT permissions/{vhost}/{user}", "/api/permissions/shop/ann", "ok"),
        ("PUT policies/{vhost}/{name}", "/api/policies/%2F/p", "ok"),
        ("PUT vhost-limits/{vhost}/{name}", "/api/vhost-limits/shop/max-connections", "ok"),
        ("POST definitions", "/api/definitions", "ok"),
        ("GET definitions", "/api/definitions", "ok"),
        ("DELETE queues/{vhost}/{queue}/contents", "/api/queues/%2F/q/contents", "ok"),
        ("DELETE queues/{vhost}/{queue}", "/api/queues/%2F/q", "ok"),
        ("DELETE users/{user}", "/api/users/nobody", "refused"),
        ("DELETE users/{user}", "/api/users/ann", "ok"),
    ]
    for line in lines(file):
        assert (line["event"], line["who"], line["from"]) == ("audit", "guest", "127.0.0.1")
        assert line["node"] == "n1"
        assert line["time"]
    assert "hunter2" not in file.read_text()


async def test_who_had_no_right_to_is_told_of_too(tmp_path: Path):
    file = tmp_path / "audit.log"
    async with Nodes(tmp_path / "nodes", audit_file=str(file)) as nodes:
        api = api_of(nodes.one)
        await api.put("users/ann", password="secret", tags="management")
        ann = api.as_user("ann", "secret")
        assert (await ann.ask("PUT", "users/eve", {"password": "x", "tags": ""})).status == 401
        assert (await ann.ask("GET", "users")).status == 401
        assert (await api.as_user("ann", "hunter2").ask("GET", "overview")).status == 401
        assert (await api.ask("GET", "overview", auth=False)).status == 401  # nobody was named
        cross = {"Sec_Fetch_Site": "cross-site"}
        assert (await api.ask("DELETE", "users/ann", **cross)).status == 403

    assert [(line["who"], line["target"], line["reason"]) for line in lines(file)[1:]] == [
        ("ann", "/api/users/eve", "Not administrator user"),
        ("ann", "/api/users", "Not administrator user"),
        ("ann", "/api/overview", "user 'ann' - invalid credentials"),
        ("guest", "/api/users/ann", "pages of other sites may not change anything"),
    ]
    assert {line["outcome"] for line in lines(file)[1:]} == {"refused"}


async def test_the_end_of_a_connection_and_a_file_that_is_moved_away(tmp_path: Path):
    file = tmp_path / "audit.log"
    async with Nodes(tmp_path / "nodes", audit_file=str(file)) as nodes:
        api = api_of(nodes.one)
        assert nodes.one.amqp.address is not None
        port = int(nodes.one.amqp.address.rpartition(":")[2])
        parameters = pika.ConnectionParameters("127.0.0.1", port)
        connection = await asyncio.to_thread(pika.BlockingConnection, parameters)
        [name] = [row["name"] for row in await api.get("connections")]
        file.rename(tmp_path / "audit.log.1")

        assert await api.delete(f"connections/{quote(name)}") == 204

        [line] = lines(file)
        assert line["what"] == "DELETE connections/{connection}"
        with pytest.raises(AMQPError):
            await asyncio.to_thread(connection.process_data_events, 5)


async def test_a_file_that_cannot_be_written_stops_the_start(tmp_path: Path):
    flags = {"data_dir": str(tmp_path / "n"), "audit_file": str(tmp_path / "no" / "audit.log")}
    node = Node(load(environment={}, flags={**flags, "http": "127.0.0.1:0", "amqp": "off"}))
    with pytest.raises(SettingsError, match="audit_file: cannot write"):
        await node.start()


async def test_a_password_in_a_path_is_not_told(tmp_path: Path):
    file = tmp_path / "audit.log"
    async with Nodes(tmp_path / "nodes", audit_file=str(file)) as nodes:
        api = api_of(nodes.one)
        await api.put("users/ann", password="x", tags="management")
        for password in ("x", "wrong"):
            ann = api.as_user("ann", password)
            assert (await ann.ask("GET", "auth/hash_password/hunter2")).status == 401

    assert "hunter2" not in file.read_text()
    told = [line["target"] for line in lines(file) if "hash_password" in line["what"]]
    assert told == ["/api/auth/hash_password/{password}"] * 2


async def test_what_all_nodes_remember_is_told_to_administrators(tmp_path: Path):
    async with Nodes(tmp_path, 2) as nodes:
        first, second = (api_of(nodes.nodes[name]) for name in ("n1", "n2"))
        await first.put("users/ann", password="secret", tags="monitoring")
        await second.put("vhosts/shop")
        assert (await first.as_user("ann", "secret").ask("GET", "audit")).status == 401

        found = await second.get("audit")
        newest = (await first.get("audit?page=1&page_size=500"))["items"]
        assert newest == sorted(newest, key=lambda line: line["time"], reverse=True)
        page = await first.get("audit?page=1&page_size=1&name=shop&sort=time&sort_reverse=true")

    assert [(each["node"], each["what"], each["outcome"]) for each in found] == [
        ("n1", "GET audit", "refused"),
        ("n2", "PUT vhosts/{vhost}", "ok"),
        ("n1", "PUT users/{user}", "ok"),
    ]
    assert (page["filtered_count"], page["total_count"]) == (1, 3)
    [line] = page["items"]
    assert (line["who"], line["target"]) == ("guest", "/api/vhosts/shop")


async def test_a_node_remembers_the_last_lines(tmp_path: Path):
    audit = Audit("n1", None)
    for number in range(RECENT_MAX + 1):
        await audit.write(who="a", address="", what="w", target=str(number), outcome="ok")
    assert [line["target"] for line in audit.recent] == [str(n) for n in range(1, RECENT_MAX + 1)]


async def test_what_is_done_again_and_again_is_remembered_as_one_line(tmp_path: Path):
    audit = Audit("n1", str(tmp_path / "audit.log"))
    for target in "aaabac":
        await audit.write(who="a", address="", what="move", target=target, outcome="ok")
    told = [(line["target"], line.get("times", 1)) for line in audit.recent]
    assert told == [("a", 3), ("b", 1), ("a", 1), ("c", 1)]
    assert [line["target"] for line in lines(tmp_path / "audit.log")] == list("aaabac")


async def test_looking_for_messages_is_no_act_and_moving_them_is(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("q")
        assert (await api.ask("POST", "queues/%2F/q/select", {})).status == 200
        assert (await api.ask("POST", "queues/%2F/q/move", {})).status == 400
        [line] = await api.get("audit")
    assert line["what"] == "POST queues/{vhost}/{queue}/move"
