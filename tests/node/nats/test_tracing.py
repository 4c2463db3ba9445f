"""Where a message goes, as `nats trace` asks: by `Nats-Trace-Dest`, and `Nats-Trace-Only`."""

from __future__ import annotations

from typing import Any

from tests.node.nats.conftest import Connect, Three
from tests.node.nats.test_core import ask
from tests.node.nats.test_system import told
from tests.node.nats.wire import Wire
from tests.node.nodes import Running

ONLY = {"Nats-Trace-Dest": "traced", "Nats-Trace-Only": "true"}


def publish(client: Wire, subject: str, headers: dict[str, str], body: bytes = b"") -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode()
    sizes = (len(block), len(block) + len(body))
    client.send(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject.encode(), *sizes, block, body))


def traces(client: Wire, count: int = 1) -> list[dict[str, Any]]:
    return [client.delivery()[1].json for _ in range(count)]


def rows(trace: dict[str, Any], kind: str, *names: str) -> list[tuple[Any, ...]]:
    found = [each for each in trace["events"] if each["type"] == kind]
    return [tuple(each.get(name) for name in names) for each in found]


def test_who_would_get_a_message_is_told_and_nobody_does(running: Running, connect: Connect):
    client, other = connect(name="asks"), connect(name="listens")
    told(client, "STREAM.CREATE.WAY", {"name": "WAY", "subjects": ["way.*"]})
    client.send(b"SUB traced 1\r\n")
    other.send(b"SUB way.> 1\r\nSUB way.a group 2\r\n")
    assert other.sync() == client.sync() == b""

    publish(client, "way.a", {**ONLY, "More": "1"}, b"body")
    (trace,) = traces(client)

    assert trace["server"]["name"] == running.node.settings.node
    assert trace["request"]["header"] == {
        "Nats-Trace-Dest": ["traced"],
        "Nats-Trace-Only": ["true"],
        "More": ["1"],
    }
    assert trace["request"]["msgsize"] == 73
    ((cid, name, account, subject),) = rows(trace, "in", "cid", "name", "acc", "subj")
    assert (name, account, subject) == ("asks", "/", "way.a")
    assert cid != rows(trace, "eg", "cid")[0][0]
    assert rows(trace, "js", "stream", "subject") == [("WAY", "way.a")]
    assert rows(trace, "eg", "kind", "name", "sub", "queue") == [
        (0, "listens", "way.>", None),
        (0, "listens", "way.a", "group"),
    ]
    assert other.sync() == b""
    assert told(client, "STREAM.INFO.WAY")["state"]["messages"] == 0

    publish(client, "nobody", ONLY)
    assert rows(traces(client)[0], "eg") == []
    publish(client, "$JS.API.STREAM.DELETE.WAY", ONLY)
    assert rows(traces(client)[0], "eg", "kind", "name") == [(5, "JetStream")]
    assert told(client, "STREAM.DELETE.WAY")["success"]


def test_a_message_that_is_traced_goes_its_way(running: Running, connect: Connect):
    client, first, second = connect(), connect(name="first"), connect(name="second")
    client.send(b"SUB traced 1\r\n")
    for each in (first, second):
        each.send(b"SUB goes pair 1\r\n")
        each.sync()
    client.sync()
    for body in (b"1", b"2", b"3", b"4"):
        publish(client, "goes", {"Nats-Trace-Dest": "traced"}, body)
        ((name,),) = rows(traces(client)[0], "eg", "name")
        got = {"first": first, "second": second}[name].delivery()[1]
        assert got.body == body
        assert b"Nats-Trace-Dest: traced" in got.header

    publish(client, "traced", {"A": "1", "Nats-Trace-Dest": "trace disabled"})
    assert b"trace disabled" in client.delivery()[1].header
    publish(client, "traced", {"Nats-Trace-Only": "1"})
    assert client.sync() == b""


def test_a_trace_goes_where_its_client_may_publish(running: Running, connect: Connect):
    ask(running, "PUT", "users/tracer", {"password": "tracer", "tags": ""})
    only = {"configure": "", "write": "^mine", "read": ".*"}
    ask(running, "PUT", "permissions/%2F/tracer", only)
    client = connect(**{"user": "tracer", "pass": "tracer"})
    client.send(b"SUB mine.> 1\r\n")
    publish(client, "mine.a", {"Nats-Trace-Dest": "theirs"})
    assert client.line() == b"-ERR 'Permissions Violation for Publish to \"theirs\"'"
    assert client.sync() == b""
    publish(client, "mine.a", {"Nats-Trace-Dest": "mine.trace", "Nats-Trace-Only": "true"})
    assert rows(traces(client)[0], "eg", "sub") == [("mine.>",)]


def test_other_nodes_tell_who_is_there(three: Three, at: Connect):
    client, there = at("n1"), at("n3", name="there")
    client.send(b"SUB traced 1\r\n")
    there.send(b"SUB far.a 1\r\nSUB far.* group 2\r\n")
    there.sync()
    three.knows("n1", b"far.a", lambda match: match.nodes == ["n3"] and match.groups)

    publish(client, "far.a", ONLY)
    found = {each["server"]["name"]: each for each in traces(client, 2)}

    assert found["n1"]["hops"] == 1
    assert rows(found["n1"], "eg", "kind", "name", "hop") == [(1, "n3", "1")]
    assert found["n3"]["request"]["header"]["Nats-Trace-Hop"] == ["1"]
    assert rows(found["n3"], "in", "kind", "name", "acc", "subj") == [(1, "n1", "/", "far.a")]
    assert rows(found["n3"], "eg", "kind", "name", "sub", "queue") == [
        (0, "there", "far.a", None),
        (0, "there", "far.*", "group"),
    ]
    assert there.sync() == b""
