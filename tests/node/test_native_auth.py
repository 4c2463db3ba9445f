"""Who may use the native protocol of a real node, and for what."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import quorate
from cluster.machine.commands import DropEntry, PutEntry
from node.access.passwords import hash_password
from node.protocols.basic_auth import is_loopback
from tests.node.nodes import Client, Nodes, until
from tests.node.test_http import ORDERS, Http

PUBLISH, SUBSCRIBE, GET, DECLARE, DELETE, PURGE, PAUSE, INFO = 10, 20, 40, 50, 51, 52, 53, 54
#: A request comes from elsewhere when a proxy says so.
FROM_AFAR = {"X-Forwarded-For": "192.0.2.1"}


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


SHOP = basic("shop", "secret")


async def change(nodes: Nodes, command: PutEntry | DropEntry) -> None:
    outcome = await nodes.one.cluster.change(command)
    assert outcome.kind == "ok", outcome


async def add_user(nodes: Nodes, name: str, password: str, **permissions: str) -> None:
    kept, algorithm = hash_password(password)
    value: dict[str, Any] = {"password_hash": kept, "hashing_algorithm": algorithm, "tags": []}
    await change(nodes, PutEntry("users", (name,), value))
    await permit(nodes, name, **permissions)


async def permit(nodes: Nodes, name: str, **permissions: str) -> None:
    value = {"configure": "", "write": "", "read": "", **permissions}
    await change(nodes, PutEntry("permissions", (name, "/"), value))


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("orders")
        await nodes.declare("other")
        await add_user(nodes, "shop", "secret", write="^orders$")
        yield nodes


@pytest.fixture
async def http(nodes: Nodes) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(nodes.url("n1"), session)


def shop(nodes: Nodes) -> str:
    return nodes.url("n1").replace("http://", "http://shop:secret@")


@pytest.mark.parametrize(
    ("address", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
        (None, False),
        ("localhost", False),
    ],
)
def test_loopback_is_what_the_system_says(address: str | None, is_one: bool):
    assert is_loopback(address) is is_one


# --- who ------------------------------------------------------------------------------------------


async def test_on_the_machine_itself_nobody_need_say_who_they_are(http: Http):
    assert (await http("GET", ORDERS))[0] == 200


@pytest.mark.parametrize("headers", [FROM_AFAR, {"Origin": "http://page.example"}])
async def test_from_elsewhere_and_for_pages_in_a_browser_they_must(
    nodes: Nodes, http: Http, headers: dict[str, str]
):
    status, refusal = await http("GET", ORDERS, headers=headers)

    assert (status, refusal["code"]) == (401, "access_refused")
    assert http.headers["WWW-Authenticate"].startswith("Basic ")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.session.ws_connect(f"{nodes.url('n1')}/v1/connect", headers=headers)
    assert caught.value.status == 401

    assert (await http("GET", ORDERS, headers={**headers, **SHOP}))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [{"Origin": "http://page.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
)
async def test_a_page_of_another_site_changes_nothing_with_a_password_that_a_browser_kept(
    nodes: Nodes, http: Http, headers: dict[str, str]
):
    given = {**headers, **SHOP}
    status, refusal = await http("POST", f"{ORDERS}/messages", headers=given)
    assert (status, refusal["code"]) == (403, "access_refused")
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await http.session.ws_connect(f"{nodes.url('n1')}/v1/connect", headers=given)
    assert caught.value.status == 403

    own = {"Origin": nodes.url("n1"), **SHOP}
    assert (await http("POST", f"{ORDERS}/messages", headers=own))[0] != 403


REBOUND = [
    "evil.example",
    "evil.example:8080",
    "127.0.0.1.evil.example",
    "localhost.evil.example:8080",
    "0.0.0.0:8080",
    "10.0.0.1",
    "[::ffff:10.0.0.1]:8080",
    "",
]


@pytest.mark.parametrize("host", REBOUND)
async def test_a_site_whose_name_leads_to_this_machine_is_not_on_it(
    nodes: Nodes, http: Http, host: str
):
    """DNS rebinding: to the browser its pages and the node are one site, and they may read."""
    for headers in ({"Host": host}, {"Host": host, **basic("guest", "guest")}):
        for method, path in (("GET", f"{ORDERS}/peek"), ("POST", f"{ORDERS}/messages")):
            status, refusal = await http(method, path, headers=headers)
            assert (status, refusal["code"]) == (401, "access_refused"), path
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await http.session.ws_connect(f"{nodes.url('n1')}/v1/connect", headers=headers)
        assert caught.value.status == 401
    assert (await http("GET", "/api/overview", headers={"Host": host, **basic("guest", "guest")}))[
        0
    ] == 401
    assert (await http("GET", ORDERS, headers={"Host": host, **SHOP}))[0] == 200


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "localhost.", "127.0.0.9:80", "[::1]:8080", "[::1]"]
)
async def test_loopback_by_any_of_its_names_is_this_machine(http: Http, host: str):
    assert (await http("GET", ORDERS, headers={"Host": host}))[0] == 200


async def test_so_is_an_advertised_address(tmp_path: Path):
    async with Nodes(tmp_path, http_advertise="quorate.example:8080") as nodes:
        await nodes.declare("orders")
        async with aiohttp.ClientSession() as session:
            http = Http(nodes.one._http.local_url, session)
            named = {"Host": "Quorate.example:8080"}
            assert (await http("GET", ORDERS, headers=named))[0] == 200
            assert (await http("GET", ORDERS, headers={"Host": "other.example"}))[0] == 401


async def test_two_hosts_are_none(nodes: Nodes):
    reader, writer = await asyncio.open_connection(*nodes.one.http_address.split(":"))
    writer.write(b"GET /v1/queues HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n")
    status = await reader.readline()
    assert status.split()[1] in (b"400", b"401")
    writer.close()


async def test_unless_it_is_set_who_is_on_the_machine_says_who_they_are(tmp_path: Path):
    flags: dict[str, Any] = {"auth.passwordless_guest": False}
    async with Nodes(tmp_path, **flags) as nodes:
        await nodes.declare("orders")
        async with aiohttp.ClientSession() as session:
            http = Http(nodes.url("n1"), session)
            assert (await http("GET", ORDERS))[0] == 401
            assert (await http("GET", ORDERS, headers=basic("guest", "guest")))[0] == 200
        # Which is what our client says unless it is told otherwise.
        async with quorate.connect([nodes.url("n1")]) as client:
            await client.publish("orders", b"x")


async def test_guest_is_for_the_machine_itself(http: Http):
    guest = basic("guest", "guest")
    assert (await http("GET", ORDERS, headers=guest))[0] == 200

    status, refusal = await http("GET", ORDERS, headers={**guest, **FROM_AFAR})
    assert status == 401
    assert refusal["reason"] == "user 'guest' can only connect via localhost"


async def test_without_guest_everybody_must_say_who_they_are(nodes: Nodes, http: Http):
    await change(nodes, DropEntry("users", ("guest",)))

    assert (await http("GET", ORDERS))[0] == 401
    assert (await http("GET", ORDERS, headers=SHOP))[0] == 200


async def test_health_and_metrics_are_for_everyone(http: Http):
    async def ready() -> bool:
        return (await http("GET", "/health/ready", headers=FROM_AFAR))[0] == 200

    await until(ready)
    for path in ("/health/live", "/metrics"):
        assert (await http("GET", path, headers=FROM_AFAR))[0] == 200


@pytest.mark.parametrize(
    "header",
    ["", "Basic", "Basic !", "Basic c2hvcA==", "Bearer c2hvcDpzZWNyZXQ=", "Basic /////w=="],
)
async def test_what_is_no_basic_is_refused(http: Http, header: str):
    assert (await http("GET", ORDERS, headers={"Authorization": header}))[0] == 401


async def test_a_wrong_password_is_refused_and_never_told(http: Http):
    status, refusal = await http("GET", ORDERS, headers=basic("shop", "hunter2"))

    assert (status, refusal["reason"]) == (401, "user 'shop' - invalid credentials")


# --- what -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "method", "path", "options"),
    [
        ("configure", "PUT", "", {}),
        ("configure", "POST", "/purge", {}),
        ("configure", "POST", "/pause", {"json": {"paused": False}}),
        ("write", "POST", "/messages", {"data": b"a"}),
        ("read", "GET", "/peek", {}),
        ("read", "POST", "/get", {}),
        ("configure", "DELETE", "", {}),
    ],
)
async def test_each_request_over_http_needs_its_permission(
    nodes: Nodes, http: Http, operation: str, method: str, path: str, options: dict[str, Any]
):
    every = {"configure": ".*", "write": ".*", "read": ".*"}
    await permit(nodes, "shop", **{**every, operation: "^other$"})
    status, refusal = await http(method, ORDERS + path, headers=SHOP, **options)
    assert (status, refusal["code"]) == (403, "access_refused")
    assert refusal["reason"] == "access to queue 'orders' in vhost '/' refused for user 'shop'"

    await permit(nodes, "shop", **{operation: "^orders$"})
    assert (await http(method, ORDERS + path, headers=SHOP, **options))[0] == 200


FRAMES: list[tuple[str, int, list[Any]]] = [
    ("configure", DECLARE, [{}]),
    ("configure", PURGE, []),
    ("configure", PAUSE, [False]),
    ("write", PUBLISH, [None, 0, [b"a"], None, None]),
    ("read", GET, [1, True]),
    ("read", SUBSCRIBE, [{"tag": "t"}]),
    ("configure", DELETE, [False, False]),
]


@pytest.mark.parametrize(("operation", "opcode", "fields"), FRAMES)
async def test_each_frame_needs_its_permission(
    nodes: Nodes, operation: str, opcode: int, fields: list[Any]
):
    async with Client(shop(nodes)) as client:
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        await permit(nodes, "shop", **{**every, operation: "^other$"})
        assert await client.ask(opcode, 1, "orders", *fields) == [
            *[4, 1, "access_refused"],
            "access to queue 'orders' in vhost '/' refused for user 'shop'",
            None,
        ]

        await permit(nodes, "shop", **{operation: "^orders$"})
        assert (await client.ask(opcode, 2, "orders", *fields))[0] != 4


STEPS: list[tuple[str, list[Any]]] = [
    ("write", [10, "orders", [b"a"], None, None]),
    ("write", [13, "orders", "", [b"a"], None, None]),
    ("read", [30, "orders", 1, [[1, 1]], None]),
    ("read", [32, "orders", 1, [[1, 1]], None]),
]


@pytest.mark.parametrize(("operation", "step"), STEPS)
async def test_each_step_of_a_transaction_needs_its_permission(
    nodes: Nodes, operation: str, step: list[Any]
):
    async with Client(shop(nodes)) as client:
        every = {"configure": ".*", "write": ".*", "read": ".*"}
        await permit(nodes, "shop", **{**every, operation: "^other$"})
        refused = await client.ask(14, 1, [[10, "other", [b"a"], None, None], step])
        assert refused[2] == "access_refused", refused


async def test_an_exchange_needs_permissions_of_its_own(nodes: Nodes):
    async with Client(shop(nodes)) as client:
        await permit(nodes, "shop", configure="^mine$", write="^orders$", read="^mine$")
        assert (await client.ask(57, 1, "other", "direct", {}))[2] == "access_refused"
        assert (await client.ask(57, 2, "mine", "direct", {}))[0] == 3
        assert (await client.ask(59, 3, "mine", "queue", "other", "", {}))[2] == "access_refused"
        assert (await client.ask(59, 4, "mine", "queue", "orders", "", {}))[0] == 3
        assert (await client.ask(13, 5, "mine", "", [b"a"], None, None))[2] == "access_refused"
        await permit(nodes, "shop", configure="^mine$", write="^mine$", read="^mine$")
        assert await client.ask(13, 6, "mine", "", [b"a"], None, None) == [3, 6, 1]


async def test_info_needs_no_more_than_the_vhost(nodes: Nodes):
    async with Client(shop(nodes)) as client:
        assert (await client.ask(INFO, 1, "other"))[0] == 3


async def test_a_vhost_is_for_those_with_permissions_in_it(nodes: Nodes, http: Http):
    await change(nodes, PutEntry("vhosts", ("dark",), {"description": "", "tags": []}))
    await nodes.one.broker.declare("dark", "hidden", {})

    status, refusal = await http("GET", "/v1/queues/dark/hidden", headers=SHOP)
    assert (status, refusal["reason"]) == (403, "access to vhost 'dark' refused for user 'shop'")
    assert (await http("GET", "/v1/queues/nowhere/q", headers=SHOP))[0] == 404
    rows = (await http("GET", "/v1/queues", headers=SHOP))[1]["queues"]
    assert {row["name"] for row in rows} == {"orders", "other"}

    for vhost, code in (("dark", "access_refused"), ("nowhere", "no_vhost")):
        async with Client(shop(nodes), hello=False) as client:
            await client.send(1, 1, {"vhost": vhost})
            assert (await client.expect(4))[2] == code
            assert await client.closed() == 4030


# --- the client -----------------------------------------------------------------------------------


async def test_the_client_logs_in_and_hears_what_it_may_not_do(nodes: Nodes):
    url = nodes.url("n1")
    async with quorate.connect(url, user="shop", password="secret", timeout=60) as client:
        await client.publish("orders", b"a")
        with pytest.raises(quorate.Refused) as caught:
            await client.publish("other", b"a")

    assert caught.value.code == "access_refused"


async def test_the_client_that_is_not_let_in_gives_up(nodes: Nodes):
    async with quorate.connect(nodes.url("n1"), user="shop", password="wrong") as client:
        with pytest.raises(quorate.ClientClosed):
            await client.declare("orders")
    async with quorate.connect(shop(nodes), vhost="nowhere") as client:
        with pytest.raises(quorate.ClientClosed, match="vhost 'nowhere' not found"):
            await client.declare("orders")
