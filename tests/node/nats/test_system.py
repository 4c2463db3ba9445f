"""What administrators ask under `$SYS.REQ`, as `nats server` and `nats account` do."""

from __future__ import annotations

import json
from typing import Any

from tests.node.nats.conftest import Connect, Three
from tests.node.nats.test_core import ask
from tests.node.nats.wire import Wire
from tests.node.nodes import Running, until


def asked(client: Wire, subject: str, options: Any = None, *, count: int = 1) -> list[Any]:
    """So many answers."""
    body = b"" if options is None else json.dumps(options).encode()
    client.send(b"SUB _INBOX.sys.* 9\r\n")
    client.send(b"PUB %b _INBOX.sys.1 %d\r\n%b\r\n" % (subject.encode(), len(body), body))
    found = [client.delivery()[1] for _ in range(count)]
    client.send(b"UNSUB 9\r\n")
    return [each.status or each.json for each in found]


def test_every_node_answers_a_ping(three: Three, at: Connect):
    others = three.nodes.nodes["n2"].peer_rpc.others
    three.do(until(lambda: len(others()) == 2))
    found = asked(at("n2"), "$SYS.REQ.SERVER.PING", count=3)

    assert {each["server"]["name"] for each in found} == {"n1", "n2", "n3"}
    for each in found:
        assert each["server"]["ver"] == "2.12.0"
        assert each["statsz"]["active_servers"] == 3
        assert each["statsz"]["connections"] >= 0
        assert each["statsz"]["start"].endswith("Z")


def test_one_node_is_asked_by_its_name_or_its_number(three: Three, at: Connect):
    client = at("n1")
    for options in ({"server_name": "n3", "exact_match": True}, {"server_name": "3"}):
        (found,) = asked(client, "$SYS.REQ.SERVER.PING.VARZ", options)
        assert found["data"]["server_name"] == found["server"]["name"] == "n3"

    number = found["server"]["id"]
    (found,) = asked(client, f"$SYS.REQ.SERVER.{number}.HEALTHZ")
    assert found["data"] == {"status": "ok", "status_code": 200}
    (found,) = asked(client, f"$SYS.REQ.SERVER.{number}.STATSZ")
    assert found["server"]["id"] == number
    assert found["statsz"]["routes"] == [{"rid": 1, "name": "n1"}, {"rid": 2, "name": "n2"}]


def test_options_are_those_of_http(running: Running, connect: Connect):
    client = connect(name="watched")
    options = {"subscriptions": True, "auth": True, "state": 0, "limit": 1000}
    (found,) = asked(client, "$SYS.REQ.SERVER.PING.CONNZ", options)
    row = next(each for each in found["data"]["connections"] if each.get("name") == "watched")
    assert row["subscriptions_list"] == ["_INBOX.sys.*"]
    assert row["authorized_user"] == "guest"

    for what, options, code in (
        ("CONNZ", {"sort": "beauty"}, 400),
        ("NONSENSEZ", {}, 404),
        ("VARZ", [1], 400),
    ):
        (found,) = asked(client, f"$SYS.REQ.SERVER.PING.{what}", options)
        assert found["error"]["code"] == code


def test_who_may_not_look_at_nodes_finds_nobody(running: Running, connect: Connect):
    ask(running, "PUT", "users/plain", {"password": "plain", "tags": ""})
    anything = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(running, "PUT", "permissions/%2F/plain", anything)
    client = connect(**{"user": "plain", "pass": "plain"})

    assert asked(client, "$SYS.REQ.SERVER.PING") == [503]
    assert asked(client, "$SYS.REQ.NONSENSE") == [503]
    (found,) = asked(client, "$SYS.REQ.USER.INFO")
    assert found["data"] == {"user": "plain", "account": "/"}
    client.send(b"PUB $SYS.REQ.SERVER.PING 0\r\n\r\n")
    assert client.sync() == b""
