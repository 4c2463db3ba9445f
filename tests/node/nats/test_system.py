"""What administrators ask under `$SYS.REQ`, as `nats server` and `nats account` do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.groups.group import Group
from cluster.types import CATALOG_GROUP
from tests.node.nats.conftest import Connect, Three
from tests.node.nats.test_core import ask
from tests.node.nats.wire import Wire
from tests.node.nodes import Running, until
from tests.testkit.waiting import wait_until


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


def test_an_account_is_counted_for_all_and_shown_to_those_who_look_at_nodes(
    running: Running, connect: Connect
):
    ask(running, "PUT", "vhosts/counted.here")
    anything = {"configure": ".*", "write": ".*", "read": ".*"}
    for vhost in ("%2F", "counted.here"):
        ask(running, "PUT", f"permissions/{vhost}/guest", anything)
    ask(running, "PUT", "users/teller", {"password": "teller", "tags": ""})
    ask(running, "PUT", "permissions/counted.here/teller", anything)
    gone = connect(**{"user": "counted.here/teller", "pass": "teller"})
    gone.send(b"PUB nowhere 4\r\nfour\r\n" * 3)
    gone.sync()
    gone.close()

    client = connect(**{"user": "counted.here/teller", "pass": "teller"})
    until_gone(running, 1, "counted.here")
    (found,) = asked(client, "$SYS.REQ.ACCOUNT.PING.STATZ", {"accounts": ["/"], "acc": "/"})
    (row,) = found["data"]["account_statz"]
    assert (row["acc"], row["name"], row["conns"]) == ("counted.here", "counted.here", 1)
    assert row["received"]["msgs"] == 4
    assert row["num_subscriptions"] == 1
    assert row["slow_consumers"] == row["leafnodes"] == 0
    for subject in ("counted.here.STATZ", "PING.CONNZ", "PING.INFO"):
        assert asked(client, f"$SYS.REQ.ACCOUNT.{subject}") == [503]

    watcher = connect()
    rows = {
        what: asked(watcher, f"$SYS.REQ.ACCOUNT.counted.here.{what}")[0]
        for what in ("CONNZ", "SUBSZ", "INFO", "LEAFZ", "JSZ", "STATZ", "NONSENSE")
    }
    assert rows["CONNZ"]["data"]["num_connections"] == 1
    assert rows["SUBSZ"]["data"]["total"] == 0
    assert rows["INFO"]["data"]["account_name"] == "counted.here"
    assert rows["LEAFZ"]["data"]["leafs"] == []
    assert rows["JSZ"]["data"]["name"] == "counted.here"
    assert rows["STATZ"]["data"]["account_statz"][0]["conns"] == 1
    assert rows["NONSENSE"]["error"]["code"] == 404
    assert asked(watcher, "$SYS.REQ.ACCOUNT.nobody.INFO")[0]["error"]["code"] == 400
    (found,) = asked(watcher, "$SYS.REQ.ACCOUNT.PING.CONNZ")
    assert found["data"]["num_connections"] >= 1


def until_gone(running: Running, count: int, vhost: str) -> None:
    nats = running.node.nats
    assert nats is not None
    wait_until(lambda: sum(each.vhost == vhost for each in nats.connected) == count)


def told(client: Wire, verb: str, about: Any = None) -> Any:
    (found,) = asked(client, f"$JS.API.{verb}", about)
    return found if isinstance(found, int) else {**found, "type": found["type"].split(".")[-1]}


def test_the_catalog_is_led_by_another_node_when_it_is_asked_for(three: Three, at: Connect):
    cluster = three.nodes.nodes["n1"].cluster
    leader = cluster.leader_of(CATALOG_GROUP)
    other = next(node for node in three.nodes.nodes if node != leader)
    client = at("n2")
    for preferred in ("n9", leader):
        found = told(client, "META.LEADER.STEPDOWN", {"placement": {"preferred": preferred}})
        assert found["error"]["err_code"] == 10005

    found = told(client, "META.LEADER.STEPDOWN", {"placement": {"preferred": other}})

    assert found == {"type": "meta_leader_stepdown_response", "success": True}
    three.do(until(lambda: cluster.leader_of(CATALOG_GROUP) == other))
    assert told(client, "META.LEADER.STEPDOWN")["success"]
    three.do(until(lambda: cluster.leader_of(CATALOG_GROUP) not in (other, None)))


def test_a_stream_is_led_by_the_node_that_is_preferred(three: Three, at: Connect):
    client = at("n1")
    told(client, "STREAM.CREATE.LED", {"name": "LED", "subjects": ["led"]})
    cluster = three.nodes.nodes["n1"].cluster
    info = cluster.queue_info("/", "LED")
    assert info is not None
    for preferred in ("n3", "n2"):
        three.do(until(lambda: cluster.leader_of(info.group) is not None))
        if cluster.leader_of(info.group) != preferred:
            about = {"placement": {"preferred": preferred}}
            before = three.nodes.nodes[str(cluster.leader_of(info.group))].cluster
            assert told(client, "STREAM.LEADER.STEPDOWN.LED", about)["success"]
            assert before.leader_of(info.group) == preferred
            three.do(until(lambda node=preferred: cluster.leader_of(info.group) == node))
    tags = {"placement": {"tags": ["ssd"]}}
    assert told(client, "STREAM.LEADER.STEPDOWN.LED", tags)["error"]["err_code"] == 10005
    told(client, "STREAM.DELETE.LED")


def test_an_advisory_of_a_request_says_who_asked(three: Three, at: Connect):
    watcher, client = at("n1"), at("n2", name="auditor", lang="test", version="1.2")
    watcher.send(b"SUB $JS.EVENT.ADVISORY.API 1\r\n")
    watcher.sync()
    three.knows("n2", b"$JS.EVENT.ADVISORY.API", lambda match: match.nodes == ["n1"])

    told(client, "STREAM.CREATE.AUDITED", {"name": "AUDITED", "subjects": ["audited"]})
    cluster = three.nodes.nodes["n1"].cluster
    info = cluster.queue_info("/", "AUDITED")
    assert info is not None
    for leader in ("n3", "n2"):
        three.do(until(lambda: cluster.leader_of(info.group) is not None))
        about = {"placement": {"preferred": leader}}
        told(client, "STREAM.LEADER.STEPDOWN.AUDITED", about)
        assert told(client, "STREAM.INFO.AUDITED")["state"]["messages"] == 0
    told(client, "STREAM.DELETE.AUDITED")

    found = [watcher.delivery()[1].json for _ in range(6)]
    for each in found:
        asker = each["client"]
        assert asker["start"].endswith("Z")
        assert asker.pop("id") > 0
        assert {**asker, "start": ""} == {
            "start": "",
            "host": "127.0.0.1",
            "acc": "/",
            "user": "guest",
            "name": "auditor",
            "lang": "test",
            "ver": "1.2",
            "server": "n2",
            "cluster": "test",
            "kind": "Client",
            "client_type": "nats",
        }
    assert {each["subject"].split(".")[2] for each in found} == {"STREAM"}


@pytest.mark.parametrize("begun", [False, True], ids=["no_link", "in_vain"])
def test_a_leader_that_could_not_hand_over_says_so(
    three: Three, at: Connect, monkeypatch: pytest.MonkeyPatch, begun: bool
):
    client = at("n1")
    told(client, "STREAM.CREATE.STAYS", {"name": "STAYS", "subjects": ["stays"]})
    monkeypatch.setattr(Group, "transfer", lambda *_: begun)
    monkeypatch.setattr("node.protocols.nats.jetstream.api.PATIENCE_S", 0.1)

    found = told(client, "STREAM.LEADER.STEPDOWN.STAYS")

    assert found["error"]["err_code"] == 10008
    assert "try again" in found["error"]["description"]
    monkeypatch.undo()
    told(client, "STREAM.DELETE.STAYS")


def test_an_administrator_removes_all_streams_of_an_account(running: Running, connect: Connect):
    ask(running, "PUT", "vhosts/other")
    anything = {"configure": ".*", "write": ".*", "read": ".*"}
    ask(running, "PUT", "permissions/other/guest", anything)
    ask(running, "PUT", "users/plain", {"password": "plain", "tags": "monitoring"})
    ask(running, "PUT", "permissions/other/plain", anything)
    there = connect(**{"user": "other/plain", "pass": "plain"})
    for name in ("A", "B"):
        told(there, f"STREAM.CREATE.{name}", {"name": name, "subjects": [name.lower()]})
    here = connect()
    told(here, "STREAM.CREATE.KEPT", {"name": "KEPT", "subjects": ["kept"]})

    assert told(there, "ACCOUNT.PURGE.other") == 503
    assert told(there, "META.LEADER.STEPDOWN") == 503
    assert told(there, "STREAM.NAMES")["total"] == 2
    found = told(here, "ACCOUNT.PURGE.other")

    assert found == {"type": "account_purge_response", "initiated": True}
    assert told(there, "STREAM.NAMES")["total"] == 0
    assert told(here, "STREAM.INFO.KEPT")["state"]["messages"] == 0
    assert told(here, "META.LEADER.STEPDOWN")["error"]["err_code"] == 10010
    told(here, "STREAM.DELETE.KEPT")
    ask(running, "DELETE", "vhosts/other")
