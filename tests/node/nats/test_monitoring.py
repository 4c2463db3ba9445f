"""What NATS's monitoring tools are told by HTTP, and what the management API says of clients."""

# pyright: basic
from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import nats
import pytest
from nats.js.api import StreamSource

from node.node import Node
from node.protocols.nats.jetstream.times import ms_of_text
from node.settings.settings import SettingsError, load
from tests.node.management.api import api_of
from tests.node.nats.conftest import Connect, Three
from tests.node.nodes import Running
from tests.testkit.waiting import WAIT_S, until, wait_until

Ask = Callable[[str], Any]


def told(node: Node, path: str) -> tuple[int, str]:
    assert node.nats_monitoring is not None
    try:
        with urllib.request.urlopen(f"http://{node.nats_monitoring.address}/{path}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.fixture
def ask(running: Running) -> Ask:
    def asked(path: str) -> Any:
        status, text = told(running.node, path)
        assert status == 200, text
        return json.loads(text)

    return asked


def row_of(ask: Ask, name: str, more: str = "") -> dict[str, Any]:
    [row] = [each for each in ask(f"connz?{more}")["connections"] if each.get("name") == name]
    return row


class TestConnections:
    def test_each_says_who_it_is_and_what_it_did(self, ask: Ask, connect: Connect):
        client = connect(name="me", lang="wire", version="1.0")
        client.send(b"SUB m.* q 7\r\nSUB m.b 8\r\nUNSUB 8 5\r\n" + b"PUB m.a 3\r\nabc\r\n" * 4)
        client.sync()

        row = row_of(ask, "me")
        assert (row["in_msgs"], row["in_bytes"], row["out_msgs"], row["out_bytes"]) == (4, 12) * 2
        assert (row["lang"], row["version"], row["ip"]) == ("wire", "1.0", "127.0.0.1")
        assert (row["kind"], row["type"], row["subscriptions"]) == ("Client", "nats", 2)
        started, active = ms_of_text(row["start"]), ms_of_text(row["last_activity"])
        assert 0 < (started or 0) <= (active or 0)
        assert "authorized_user" not in row
        assert row_of(ask, "me", "auth=1")["authorized_user"] == "guest"
        assert row_of(ask, "me", "subs=1")["subscriptions_list"] == ["m.*", "m.b"]
        assert row_of(ask, "me", "subs=detail")["subscriptions_list_detail"] == [
            {"subject": "m.*", "qgroup": "q", "sid": "7", "msgs": 4, "cid": row["cid"]},
            {"subject": "m.b", "sid": "8", "msgs": 0, "max": 5, "cid": row["cid"]},
        ]

    def test_they_come_in_pages_and_in_the_order_that_is_asked_for(
        self, ask: Ask, connect: Connect
    ):
        clients = [connect(name=f"page-{number}") for number in range(5)]
        for number, client in enumerate(clients):
            client.send(b"PUB page 1\r\nx\r\n" * (100 + number))
            client.sync()

        page = ask("connz?sort=msgs_from&offset=1&limit=3")
        assert [row["name"] for row in page["connections"]] == ["page-3", "page-2", "page-1"]
        assert (page["num_connections"], page["offset"], page["limit"]) == (3, 1, 3)
        assert page["total"] >= 5
        numbers = [row["cid"] for row in ask("connz?limit=9999")["connections"]]
        assert numbers == sorted(numbers)
        cid = row_of(ask, "page-2")["cid"]
        assert [row["name"] for row in ask(f"connz?cid={cid}")["connections"]] == ["page-2"]
        assert ask("connz?state=closed")["connections"] == []
        assert ask("connz?acc=nowhere")["total"] == 0

    def test_what_is_sent_counts_on_after_a_connection_is_gone(self, ask: Ask, connect: Connect):
        before = ask("varz")
        client = connect(name="short")
        client.send(b"PUB gone 3\r\nabc\r\n" * 10)
        client.sync()
        client.close()
        wait_until(lambda: "short" not in json.dumps(ask("connz")))

        after = ask("varz")
        assert after["in_msgs"] - before["in_msgs"] == 10
        assert after["total_connections"] - before["total_connections"] == 1

    @pytest.mark.parametrize(
        "query",
        [
            "connz?limit=-1",
            "connz?limit=a",
            "connz?offset=9999999999999999999",
            "connz?sort=x",
            "connz?state=x",
            "connz?auth=perhaps",
            "jsz?streams=2",
            "accountz?acc=nope",
        ],
    )
    def test_what_cannot_be_asked_is_refused(self, running: Running, query: str):
        status, text = told(running.node, query)

        assert status == 400
        assert text
        assert "Traceback" not in text

    def test_nothing_can_be_changed_and_there_is_no_more_than_is_listed(self, running: Running):
        assert running.node.nats_monitoring is not None
        url = f"http://{running.node.nats_monitoring.address}/varz"
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(urllib.request.Request(url, data=b"{}"))
        assert told(running.node, "api/overview")[0] == 404
        assert "/varz\n" in told(running.node, "")[1]


def test_subscriptions_are_listed_and_tried(ask: Ask, connect: Connect):
    client = connect()
    client.send(b"SUB tried.*.c 1\r\nSUB tried.> q 2\r\nSUB other 3\r\n")
    client.sync()

    found = ask("subsz?test=tried.b.c")
    assert [each["subject"] for each in found["subscriptions_list"]] == ["tried.*.c", "tried.>"]
    assert found["total"] == 2
    assert found["num_subscriptions"] >= 3
    assert len(ask("subsz?subs=1&limit=1")["subscriptions_list"]) == 1
    assert ask("accountz?acc=/")["account_detail"]["subscriptions"] >= 3
    assert "/" in ask("accountz")["accounts"]


def test_the_node_says_what_it_is(running: Running, ask: Ask):
    found = ask("varz")

    nats_server = running.node.nats
    assert nats_server is not None
    assert f"{found['host']}:{found['port']}" == nats_server.address
    assert found["version"].split(".")[0] == "2"
    assert found["mem"] > 1 << 20
    assert found["jetstream"]["stats"]["memory"] == 0
    assert "meta" not in found["jetstream"]
    assert ask("varz")["http_req_stats"]["/varz"] >= 2
    assert ask("healthz") == {"status": "ok"}


def test_what_is_not_here_is_shown_as_empty(ask: Ask, connect: Connect):
    assert ask("leafz")["leafs"] == []
    assert ask("gatewayz")["outbound_gateways"] == ask("gatewayz")["inbound_gateways"] == {}
    connect().sync()
    assert ask("accstatz")["account_statz"][0]["acc"] == "/"


def test_a_node_that_is_not_ready_says_so(running: Running, ask: Ask):
    async def drain(*, draining: bool) -> None:
        running.node.health.draining = draining

    running.do(drain(draining=True))
    status, text = told(running.node, "healthz")
    running.do(drain(draining=False))

    assert status == 503
    assert "draining" in json.loads(text)["error"]
    assert ask("healthz") == {"status": "ok"}


async def test_streams_and_consumers_are_shown_by_every_node(three: Three):
    nodes = three.nodes.nodes
    client = await nats.connect(
        f"nats://{nodes['n1'].nats.address}",  # pyright: ignore[reportOptionalMemberAccess]
        user="guest",
        password="guest",
    )
    js = client.jetstream(timeout=WAIT_S)
    for each in await js.streams_info():
        await js.delete_stream(str(each.config.name))
    await js.add_stream(name="ORDERS", subjects=["orders.>"], num_replicas=3)
    ack = await js.publish("orders.1", b"x" * 100)
    await js.pull_subscribe("orders.>", durable="billing")

    def counted(node: Node) -> bool:
        found = json.loads(told(node, "jsz")[1])
        shown = [found[each] for each in ("streams", "consumers", "messages")]
        return shown == [1, 1, ack.seq] and found["bytes"] > 100

    for node in nodes.values():
        await until(lambda node=node: counted(node))
        found = json.loads(told(node, "jsz?accounts=1&streams=1&consumers=1&config=1&raft=1")[1])
        assert found["meta_cluster"]["leader"] in nodes
        assert found["meta_cluster"]["quorum_needed"] == 2
        assert found["meta_cluster"]["cluster_size"] == 3
        [account] = found["account_details"]
        [stream] = account["stream_detail"]
        assert (account["name"], stream["name"]) == ("/", "ORDERS")
        assert stream["cluster"]["leader"] in nodes
        group = stream["stream_raft_group"]
        assert group.endswith(":ORDERS")
        raft = {"name": "billing", "raft_group": f"{group}:billing"}
        assert stream["consumer_raft_groups"] == [raft]
        assert len(stream["cluster"]["replicas"]) == 2
        assert stream["config"]["subjects"] == ["orders.>"]
        assert stream["state"]["messages"] == 1
        [consumer] = stream["consumer_detail"]
        assert (consumer["name"], consumer["num_pending"]) == ("billing", 1)
        path = "healthz?account=/&stream=ORDERS&consumer=billing"
        await until(lambda node=node, path=path: told(node, path)[0] == 200)
        assert told(node, "healthz?account=/&stream=NOPE")[0] == 404
        assert told(node, "healthz?account=/&stream=ORDERS&consumer=nope")[0] == 404
        assert told(node, "healthz?stream=ORDERS")[0] == 400
        routes = json.loads(told(node, "routez")[1])["routes"]
        assert len(routes) == 2
        for route in routes:
            other = nodes[route["remote_name"]].settings
            assert f"{route['ip']}:{route['port']}" == other.peers[other.node]
            assert route["start"] < found["now"]
            assert route["uptime"].endswith("s")
            assert route["pending_size"] >= 0
        own = json.loads(told(node, "varz")[1])["cluster"]
        assert f"{own['addr']}:{own['cluster_port']}" == node.settings.peers[node.settings.node]
    led = [
        json.loads(told(node, "jsz?streams=1&stream-leader-only=1")[1])["account_details"]
        for node in nodes.values()
    ]
    assert sum(len(account["stream_detail"]) for rows in led for account in rows) == 1

    await js.add_stream(name="COPY", mirror=StreamSource(name="ORDERS"))

    def mirrors() -> list[str]:
        """As the node that leads it shows it."""
        rows = [
            json.loads(told(node, "jsz?streams=1&stream-leader-only=1")[1])["account_details"]
            for node in nodes.values()
        ]
        found = [each for row in rows for account in row for each in account["stream_detail"]]
        return [each["mirror"]["name"] for each in found if each.get("mirror")]

    await until(lambda: mirrors() == ["ORDERS"])
    await js.delete_stream("COPY")
    await js.delete_stream("ORDERS")
    await client.close()


def test_the_management_api_lists_clients_and_closes_one_by_its_name(
    running: Running, connect: Connect
):
    api = api_of(running.node)
    client = connect(name="listed", lang="wire", version="1.0")

    [row] = [
        each
        for each in running.do(api.get("connections"))
        if each["user_provided_name"] == "listed"
    ]
    assert (row["protocol"], row["user"], row["vhost"]) == ("NATS", "guest", "/")
    assert row["client_properties"]["product"] == "wire"
    assert row["recv_oct"] > 0
    name = row["name"].replace(" ", "%20").replace(">", "%3E")
    assert running.do(api.ask("DELETE", f"connections/{name}")).status == 204
    assert b"-ERR" not in client.until_closed()
    assert running.do(api.ask("GET", f"connections/{name}")).status == 404


def test_it_listens_only_where_clients_do():
    with pytest.raises(SettingsError, match="nats_monitor: allowed: with nats"):
        load(environment={}, flags={"nats_monitor": "127.0.0.1:0"})
