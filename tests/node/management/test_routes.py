"""The rest of RabbitMQ's routes, which its tools ask for: none is 404."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import quorate
from cluster.log.journal import Journal
from node.management import observer, queues
from node.management.app import ROUTES
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes, until

GETS = [
    "cluster/tags",
    "nodes/n1/memory",
    "nodes/n1/memory/relative",
    "queues/detailed",
    "auth",
    "auth/attempts/n1",
    "auth/attempts/n1/source",
    "auth/hash_password/secret",
    "healthchecks/node",
    "healthchecks/node/n1",
    "health/checks/metadata-store/initialized/with-data",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts",
    "health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/.*",
    "health/checks/quorum-queues-without-elected-leaders/vhost/%2F",
    "health/checks/quorum-queues-without-elected-leaders/vhost/%2F/pattern/.*",
]


@pytest.mark.parametrize("path", GETS)
async def test_what_tools_ask_for_is_there(api: Api, path: str):
    assert (await api.ask("GET", path)).status == 200


@pytest.mark.parametrize("path", ["", "/", "/index.html"])
async def test_the_page_lists_every_route_for_anybody(api: Api, path: str):
    async with aiohttp.ClientSession() as session, session.get(f"{api.url}/api{path}") as response:
        assert response.status == 200
        assert response.content_type == "text/html"
        text = await response.text()
    for route in ROUTES:
        assert route.path in text
    async with aiohttp.ClientSession() as session, session.post(f"{api.url}/api{path}") as response:
        assert response.status == 405


async def test_a_password_is_hashed_as_rabbitmq_does(api: Api):
    kept = b64decode((await api.get("auth/hash_password/s%2Fcret"))["ok"])
    assert kept[4:] == hashlib.sha256(kept[:4] + b"s/cret").digest()


async def test_who_logs_in_by_a_form_is_told_who_it_is(api: Api):
    async def login(password: str) -> tuple[int, Any]:
        form = {"username": "guest", "password": password}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{api.url}/api/login", data=form) as response,
        ):
            assert "Set-Cookie" not in response.headers
            return response.status, await response.json()

    assert await login("guest") == (200, {"name": "guest", "tags": ["administrator"]})
    assert (await login("wrong"))[0] == 401


async def test_of_half_a_character_in_a_form_other_nodes_can_be_told(tmp_path: Path):
    kind = {"Content-Type": "application/x-www-form-urlencoded; charset=unicode_escape"}
    async with Nodes(tmp_path) as nodes, aiohttp.ClientSession(headers=kind) as session:
        url = f"{api_of(nodes.one).url}/api/login"
        async with session.post(url, data=rb"username=half\ud800") as response:
            assert response.status == 401
        assert [line["who"] for line in nodes.one.audit.recent] == ["half?"]


async def test_attempts_to_log_in_are_counted_and_forgotten(api: Api):
    await api.put("users/ann", password="right", tags="management")
    assert (await api.as_user("ann", "right").ask("GET", "whoami")).status == 200
    assert (await api.as_user("ann", "wrong").ask("GET", "whoami")).status == 401
    rows = {row["protocol"]: row for row in await api.get("auth/attempts/n1")}
    assert rows.keys() == {"amqp091", "http"}, (
        "RabbitMQ's tools fail on names that they do not know"
    )
    http = rows["http"]
    assert http["auth_attempts_failed"] == 1
    assert http["auth_attempts"] == http["auth_attempts_succeeded"] + 1
    (ann,) = [r for r in await api.get("auth/attempts/n1/source") if r["username"] == "ann"]
    assert (ann["remote_address"], ann["auth_attempts"], ann["auth_attempts_failed"]) == (
        "127.0.0.1",
        2,
        1,
    )
    assert await api.delete("auth/attempts/n1") == 204
    rows = {row["protocol"]: row for row in await api.get("auth/attempts/n1")}
    assert rows["http"]["auth_attempts_failed"] == 0
    assert (await api.ask("GET", "auth/attempts/nobody")).status == 404


async def test_a_protected_vhost_is_not_deleted(api: Api):
    await api.put("vhosts/v")
    assert await api.delete("vhosts/v/deletion/protection") == 204
    assert (await api.post("vhosts/v/deletion/protection")).status == 204
    shown = await api.get("vhosts/v")
    assert shown["protected_from_deletion"] is True
    refused = await api.ask("DELETE", "vhosts/v")
    assert (refused.status, refused.value["error"]) == (412, "precondition_failed")
    assert "protected from deletion" in refused.value["reason"]
    await api.put("vhosts/v", description="the same one")  # says nothing of it
    assert (await api.ask("DELETE", "vhosts/v")).status == 412
    (exported,) = [v for v in (await api.get("definitions"))["vhosts"] if v["name"] == "v"]
    assert exported["metadata"]["protected_from_deletion"] is True

    assert await api.delete("vhosts/v/deletion/protection") == 204
    assert await api.delete("vhosts/v") == 204
    assert (await api.post("vhosts/v/deletion/protection")).status == 404
    await api.post("definitions", vhosts=[exported])
    assert (await api.ask("DELETE", "vhosts/v")).status == 412


async def test_a_vhost_runs_on_every_node_that_is_up(api: Api):
    assert (await api.post("vhosts/%2F/start/n1")).status == 204
    assert (await api.post("vhosts/%2F/start/n9")).status == 404
    assert (await api.post("vhosts/none/start/n1")).status == 404


async def test_memory_adds_up(api: Api):
    memory = (await api.get("nodes/n1/memory"))["memory"]
    total = memory.pop("total")
    assert memory.pop("strategy") == "rss"
    assert sum(memory.values()) == total["rss"] > 0
    relative = (await api.get("nodes/n1/memory/relative"))["memory"]
    assert 90 <= sum(v for k, v in relative.items() if k != "total") <= 110


async def test_the_overview_says_where_it_is_and_what_comes_and_goes(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        shown = await api.get("overview")
        assert [(each["node"], int(each["port"])) for each in shown["contexts"]] == [
            ("n1", api.port)
        ]
        assert await api.put("global-parameters/cluster_tags", value={"region": "eu"}) == 201
        assert (await api.get("overview"))["cluster_tags"] == {"region": "eu"}
        assert await api.get("cluster/tags") == {"region": "eu"}
        before = shown["churn_rates"]
        await api.queue("q")
        async with quorate.connect(api.url, user="guest", password="guest") as client:
            await client.publish("q", b"x")
            churn = (await api.get("overview"))["churn_rates"]
            assert churn["connection_created"] == before["connection_created"] + 1
            assert churn["queue_created"] == before["queue_created"] + 1
            assert churn["queue_created_details"] == {"rate": 0.0} or churn["queue_created_details"]
        await until(lambda: _closed(api, before["connection_closed"] + 1))
        await api.delete("queues/%2F/q")
        churn = (await api.get("overview"))["churn_rates"]
        assert churn["queue_deleted"] == before["queue_deleted"] + 1


async def _closed(api: Api, count: int) -> bool:
    return (await api.get("overview"))["churn_rates"]["connection_closed"] == count


async def test_native_clients_are_connections_too(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        await api.queue("q")
        async with quorate.connect(api.url, user="guest", password="guest") as client:
            await client.publish("q", b"x")
            (row,) = await api.get("connections")
            assert (row["protocol"], row["user"], row["vhost"], row["state"], row["node"]) == (
                "Quorate",
                "guest",
                "/",
                "running",
                "n1",
            )
            assert row["port"] == api.port
            path = f"connections/{row['name'].replace(' ', '%20').replace('>', '%3E')}"
            assert (await api.get(path))["peer_port"] == row["peer_port"]
            assert len(await api.get("connections/username/guest")) == 1
            assert (await api.get("overview"))["object_totals"]["connections"] == 1
            assert await api.delete("connections/username/guest") == 204
        await until(lambda: _none(api))


async def _none(api: Api) -> bool:
    return await api.get("connections") == []


HEAD = "head_message_timestamp"


async def test_the_timestamp_of_the_oldest_message_is_its_publishers(
    api: Api, monkeypatch: pytest.MonkeyPatch
):
    async def heads(path: str = "queues?page=1") -> dict[str, int | None]:
        found = await api.get(path)
        return {row["name"]: row[HEAD] for row in found.get("items", [found])}

    await api.queue("empty")
    await api.queue("q")
    assert await heads("queues/%2F/q") == {"q": None}
    await api.publish("q", "no time")
    assert await heads("queues/%2F/q") == {"q": None}
    await api.take("q")
    await api.publish("q", "timed", timestamp=1_700_000_000)
    await api.publish("q", "later", timestamp=1_700_000_005)
    assert await heads("queues/%2F/q") == {"q": 1_700_000_000}
    expected = {"empty": None, "q": 1_700_000_000}
    for path in ("queues?page=1", f"queues?page=1&columns=name,{HEAD}"):
        assert await heads(path) == expected
    for path in ("queues", "queues/%2F", "queues/detailed"):
        assert {row["name"]: row[HEAD] for row in await api.get(path)} == expected
    assert HEAD not in (await api.get("queues?columns=name"))[0]
    latest = (await api.get(f"queues?sort={HEAD}&sort_reverse=true&columns=name"))[0]
    assert latest["name"] == "q"

    monkeypatch.setattr(queues, "HEADS_MAX", 1)
    assert await heads() == expected
    await api.queue("third")
    await api.publish("third", "too many to read", timestamp=1)
    assert await heads() == {"empty": None, "q": None, "third": None}
    assert await heads("queues/%2F/third") == {"third": 1}


async def test_a_listing_reads_only_so_much_for_the_timestamps_of_old_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it does not read the next one does, and what was read once is remembered."""
    read = 0
    fetch = Journal.fetch

    async def fetched(journal: Any, near: Any) -> Any:
        nonlocal read
        found = await fetch(journal, near)
        read += sum(len(command) for _, command in found)
        return found

    async with Nodes(tmp_path, **{"log.hot_bytes": 1 << 20}) as nodes:
        names = [f"q{number}" for number in range(6)]
        for at, name in enumerate(names, 1):
            await nodes.declare(name)
            await api_of(nodes.one).publish(name, "x" * 900_000, timestamp=at)
        await nodes.stop("n1")
        api = api_of(await nodes.start("n1"))
        await until(nodes.settled)
        monkeypatch.setattr(Journal, "fetch", fetched)
        monkeypatch.setattr(observer, "HEAD_BYTES_MAX", 2_000_000)
        told: list[int] = []
        while len(told) < len(names):
            read, before = 0, len(told)
            rows = await api.get("queues")
            told = sorted(row[HEAD] for row in rows if row[HEAD] is not None)
            assert before < len(told) <= before + 3  # one may be in memory
            assert read < 2_000_000
        assert told == [1, 2, 3, 4, 5, 6]
        read = 0
        assert all(row[HEAD] for row in await api.get("queues"))
        assert read == 0


async def test_timestamps_of_queues_elsewhere_are_asked_for_by_leader(tmp_path: Path):
    async with Nodes(tmp_path, count=4) as nodes:
        apis = [api_of(node) for node in nodes.nodes.values()]
        names = [f"q{number}" for number in range(6)]
        for at, name in enumerate(names):
            await apis[0].queue(name)
            await apis[0].publish(name, "x", timestamp=at + 1)
        for api in apis:

            async def told(api: Api = api) -> bool:
                shown = {row["name"]: row[HEAD] for row in await api.get("queues")}
                return shown == {name: at + 1 for at, name in enumerate(names)}

            await until(told)


async def test_replicas_grow_and_shrink_by_node(tmp_path: Path):
    async with Nodes(tmp_path, count=4) as nodes:
        api = api_of(nodes.one)
        await api.queue("q", queue_group="mine")
        members = set((await api.get("groups/mine"))["members"])
        assert len(members) == 3
        [fourth] = {"n1", "n2", "n3", "n4"} - members
        wrong = await api.post(f"queues/quorum/replicas/on/{fourth}/grow", strategy="some")
        assert wrong.status == 400
        none = await api.post(
            f"queues/quorum/replicas/on/{fourth}/grow", strategy="all", queue_pattern="^other"
        )
        assert (none.status, set((await api.get("groups/mine"))["members"])) == (204, members)
        grown = await api.post(
            f"queues/quorum/replicas/on/{fourth}/grow",
            strategy="all",
            vhost_pattern=".*",
            queue_pattern="^q$",
        )
        assert grown.status == 204
        assert set((await api.get("groups/mine"))["members"]) == {*members, fourth}
        assert await api.delete(f"queues/quorum/replicas/on/{fourth}/shrink") == 204
        assert set((await api.get("groups/mine"))["members"]) == members
        assert await api.delete("queues/quorum/replicas/on/n9/shrink") == 404


async def test_amqp_and_management_state_one_version(api: Api):
    from node.protocols.amqp.handshake import server_properties

    shown = await api.get("overview")
    assert server_properties("c")["version"] == shown["rabbitmq_version"]
    assert shown["rabbitmq_version"] == shown["management_version"] == await api.get("version")
