"""N1: the client protocol, verb by verb and error by error."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.acceptance.jetstream.servers import NARROW
from tests.acceptance.jetstream.visit import QUIET_S, Visit
from tests.acceptance.rows.suite import needs
from tests.node.nats.wire import Wire, without_info

MAX_PAYLOAD = 1 << 20


def error_of(wire: Wire) -> str:
    """The next error, before which anything may be said."""
    while not (line := wire.line()).startswith(b"-ERR "):
        pass
    return line.decode().removeprefix("-ERR ").strip("'")


def same(js: Visit, text: str, expected: str) -> None:
    """Clients compare without regard to case."""
    js.heard.append(text)
    assert text.lower() == expected.lower(), f"{text!r} instead of {expected!r}"


def closes_with(js: Visit, wire: Wire, expected: str) -> None:
    """The error, and the end of the connection."""
    found = re.findall(rb"-ERR '([^']*)'", wire.until_closed())
    assert found, "closed without a word"
    same(js, found[-1].decode(), expected)


def raw(js: Visit, wire: Wire) -> None:
    """Still served."""
    assert b"-ERR" not in wire.sync()


def n1_info(js: Visit) -> None:
    """The first thing that is said: who serves, and what may be done."""
    info = js.wire().info
    texts = {"server_id", "server_name", "version", "go", "host", "client_ip"}
    assert all(isinstance(info[each], str) and info[each] for each in texts)
    assert info["headers"] is True
    assert info["proto"] == 1
    assert info["max_payload"] == MAX_PAYLOAD
    assert info["jetstream"] is True
    assert info["port"] > 0
    assert info["client_id"] > 0
    assert re.match(r"\d+\.\d+\.\d+", info["version"])
    assert not info.get("tls_required")
    assert not info.get("ldm")


@needs("cluster")
def n1_info_names_the_other_nodes(js: Visit) -> None:
    """Where else a client may go, and the name of the cluster."""
    info = js.wire().info
    assert info["cluster"]
    assert set(js.server.addresses) <= set(info["connect_urls"])


@needs("users")
def n1_info_asks_for_a_login(js: Visit) -> None:
    """It says so."""
    assert js.wire().info["auth_required"] is True


def n1_ping(js: Visit) -> None:
    """PONG; also before anything else but CONNECT."""
    wire = js.connected()
    wire.send(b"PING\r\nPING\r\n")
    wire.until(b"PONG\r\nPONG\r\n")


def n1_verbs_in_any_case(js: Visit) -> None:
    """Operations are known in lower case, too; lines may end by LF alone."""
    wire = js.connected()
    wire.send(b"sub a.b 1\r\npub a.b 2\r\nhi\r\n")
    assert wire.message() == (b"a.b", b"1", b"", b"hi")
    wire.send(b"PUB  a.b\t2\r\nyo\r\n")
    assert wire.message() == (b"a.b", b"1", b"", b"yo")
    wire.send(b"ping\r\n")
    wire.until(b"PONG\r\n")


def n1_verbose(js: Visit) -> None:
    """+OK after each operation."""
    wire = js.connected(verbose=True)
    wire.send(b"SUB a 1\r\nPUB b 2\r\nhi\r\nUNSUB 1\r\n")
    assert without_info(wire.sync()).count(b"+OK\r\n") == 3


def n1_pub_and_msg(js: Visit) -> None:
    """Subject, sid, reply and bytes, whatever they are."""
    wire = js.connected()
    subject = js.name().encode()
    wire.send(b"SUB %b.* 7\r\nPUB %b.a 0\r\n\r\n" % (subject, subject))
    assert wire.message() == (subject + b".a", b"7", b"", b"")
    wire.send(b"PUB %b.b reply.to 4\r\na\r\nb\r\n" % subject)
    assert wire.message() == (subject + b".b", b"7", b"reply.to", b"a\r\nb")
    wire.send(b"PUB %b.A 1\r\nx\r\n" % subject)
    assert wire.message()[0] == subject + b".A"


def n1_hpub_and_hmsg(js: Visit) -> None:
    """Headers keep their case and their order, and may repeat."""
    wire = js.connected()
    subject = js.name().encode()
    block = b"NATS/1.0\r\nColour: blue\r\ncolour: Red\r\nColour: green\r\n\r\n"
    wire.send(b"SUB %b 1\r\n" % subject)
    wire.send(b"HPUB %b r %d %d\r\n%bhi\r\n" % (subject, len(block), len(block) + 2, block))
    _, message = wire.delivery()
    assert (message.header, message.body, message.reply) == (block, b"hi", "r")


def n1_headers_are_taken_off(js: Visit) -> None:
    """For clients that know none."""
    plain = js.connected(1, headers=False, no_responders=False)
    subject = js.name()
    plain.send(f"SUB {subject} 1\r\n".encode())
    plain.sync()
    block = b"NATS/1.0\r\nA: b\r\n\r\n"
    wire = js.connected(1)
    wire.send(b"HPUB %b %d %d\r\n%bhi\r\n" % (subject.encode(), len(block), len(block) + 2, block))
    assert plain.line().startswith(b"MSG ") or plain.message()[3] == b"hi"


def n1_wildcards(js: Visit) -> None:
    """* is one token, > is one or more at the end."""
    client = js.client()
    root = js.name()
    one, rest = client.subscribe(f"{root}.*.c"), client.subscribe(f"{root}.a.>")
    for subject in ("a.c", "a.b.c", "b.c", "b.b.c", "a", "a.b"):
        client.tell(f"{root}.{subject}", subject.encode())
    client.flush()
    assert [each.subject.removeprefix(f"{root}.") for each in one.some(2)] == ["a.c", "b.c"]
    assert [each.body for each in rest.some(3)] == [b"a.c", b"a.b.c", b"a.b"]


def n1_unsub(js: Visit) -> None:
    """At once, or after so many messages, counted from SUB."""
    client = js.client()
    subject = js.name()
    target = client.subscribe(subject)
    client.tell(subject, b"1")
    assert target.body() == b"1"
    target.end(after=3)
    for number in (b"2", b"3", b"4"):
        client.tell(subject, number)
    assert [target.body(), target.body()] == [b"2", b"3"]
    target.quiet("three have come")
    again = client.subscribe(subject)
    again.end()
    client.tell(subject, b"5")
    again.quiet("it has ended")


def n1_echo(js: Visit) -> None:
    """Without it a client does not get its own messages; others do."""
    silent, other = js.client(echo=False), js.client()
    subject = js.name()
    own, others = silent.subscribe(subject), other.subscribe(subject)
    silent.tell(subject, b"1")
    assert others.body() == b"1"
    other.tell(subject, b"2")
    assert own.body() == b"2"


def n1_queue_groups(js: Visit) -> None:
    """Each group gets a message once, whoever of its members; plain subscribers get it, too."""
    client = js.client()
    subject = js.name()
    first = [client.subscribe(subject, "one") for _ in range(3)]
    second, plain = client.subscribe(subject, "two"), client.subscribe(subject)
    for number in range(60):
        client.tell(subject, str(number).encode())
    client.flush()
    assert len(plain.some(60)) == 60
    assert len(second.some(60)) == 60
    counts = [len(client.arrived(each.sid, 0)) for each in first]
    assert sum(counts) == 60
    assert all(counts), f"of the members one got nothing: {counts}"


@needs("cluster")
def n1_queue_groups_prefer_their_own_node(js: Visit) -> None:
    """A member at the publisher's node is preferred to others."""
    near, far = js.client(0), js.client(1)
    subject = js.name()
    own, other = near.subscribe(subject, "group"), far.subscribe(subject, "group")
    probe = far.subscribe(f"{subject}.probe")
    js.until(lambda: near.tell(f"{subject}.probe") or far.arrived(probe.sid, 0.02), "no route")
    for _ in range(20):
        near.tell(subject)
    near.flush()
    assert len(own.some(20)) == 20
    other.quiet("there is a member nearer")


@needs("cluster")
def n1_messages_reach_all_nodes(js: Visit) -> None:
    """Whoever wants a subject gets it, wherever it is published, each message once."""
    clients = [js.client(node) for node in range(3)]
    subject = js.name()
    targets = [each.subscribe(f"{subject}.>") for each in clients]
    for target in targets:
        js.until(
            lambda target=target: (
                clients[0].tell(f"{subject}.probe") or target.client.arrived(target.sid, 0.02)
            ),
            "it does not come",
        )
    clients[0].tell(f"{subject}.end", b"end")
    for target in targets:
        while target.next().body != b"end":
            pass
    for number in range(30):
        clients[number % 3].tell(f"{subject}.x", str(number).encode())
    for target in targets:
        assert sorted(int(each.body) for each in target.some(30)) == list(range(30))


def n1_no_responders(js: Visit) -> None:
    """A request that nobody would get is answered at once: 503."""
    client = js.client()
    answer = client.request(js.name())
    assert (answer.status, answer.body) == (503, b"")
    plain = js.client(no_responders=False)
    inbox = plain.inbox()
    plain.tell(js.name(), reply=inbox.subject)
    inbox.quiet("it did not ask for that")


def n1_requests(js: Visit) -> None:
    """A reply goes to who asked, at whichever node."""
    server, client = js.client(0), js.client(1)
    subject = js.name()
    service = server.subscribe(subject)
    js.until(lambda: not _nobody(client, subject, service), "nobody is known there")


def _nobody(client: Any, subject: str, service: Any) -> bool:
    inbox = client.inbox()
    client.tell(subject, b"?", reply=inbox.subject)
    client.flush()
    if any(each.status == 503 for each in client.arrived(inbox.sid, QUIET_S)):
        return True
    asked = service.next()
    service.client.tell(asked.reply, b"!")
    assert inbox.body() == b"!"
    return False


def n1_info_comes_again(js: Visit) -> None:
    """After CONNECT, as a client may take it at any time."""
    wire = js.wire()
    options = {"verbose": False, "headers": True, "no_responders": True, "protocol": 1}
    wire.send(b"CONNECT %b\r\nPING\r\n" % json.dumps({**options, **js.server.login}).encode())
    said = wire.until(b"PONG\r\n") + wire.wait(QUIET_S)
    again = re.search(rb"INFO ({.*?}) ?\r\n", said)
    assert again is not None
    assert json.loads(again[1])["connect_info"] is True


# What ends a connection.


def n1_error_unknown_operation(js: Visit) -> None:
    """Closed."""
    wire = js.connected()
    wire.send(b"DANCE now\r\n")
    closes_with(js, wire, "Unknown Protocol Operation")


def n1_error_of_arguments(js: Visit) -> None:
    """Closed; and told why."""
    for line in (b"PUB a\r\n", b"PUB a b c d e\r\n", b"SUB a\r\n", b"SUB a b c d\r\n"):
        wire = js.connected()
        wire.send(line)
        closes_with(js, wire, "Parser Error")


def n1_error_payload_length(js: Visit) -> None:
    """A payload that is longer than it said: closed."""
    wire = js.connected()
    wire.send(b"PUB a 2\r\nhello\r\n")
    closes_with(js, wire, "Unknown Protocol Operation")


def n1_error_payload_too_large(js: Visit) -> None:
    """Closed, before it is sent."""
    wire = js.connected()
    wire.send(b"PUB a %d\r\n" % (MAX_PAYLOAD + 1))
    closes_with(js, wire, "Maximum Payload Violation")


def n1_largest_payload(js: Visit) -> None:
    """As large as it may be."""
    wire = js.connected()
    subject = js.name().encode()
    wire.send(b"SUB %b 1\r\nPUB %b %d\r\n" % (subject, subject, MAX_PAYLOAD))
    wire.send(b"x" * MAX_PAYLOAD + b"\r\n")
    assert len(wire.message()[3]) == MAX_PAYLOAD


def n1_error_control_line(js: Visit) -> None:
    """Over 4096 bytes: closed."""
    wire = js.connected()
    wire.send(b"SUB %b 1\r\n" % (b"a" * 5000))
    closes_with(js, wire, "maximum control line exceeded")


@needs("users")
def n1_error_authorization(js: Visit) -> None:
    """A wrong password, an unknown user, nobody at all before CONNECT."""
    for given in ({"user": "guest", "pass": "wrong"}, {"user": "nobody", "pass": "x"}):
        wire = js.wire()
        options = {"verbose": False, "headers": True, **given}
        wire.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
        closes_with(js, wire, "Authorization Violation")
    for first in (b"SUB a 1\r\n", b"PUB a 2\r\nhi\r\n"):
        wire = js.wire()
        wire.send(first)
        closes_with(js, wire, "Authorization Violation")


@needs("users")
def n1_error_authentication_timeout(js: Visit) -> None:
    """Who says nothing for 2 s is closed."""
    closes_with(js, js.wire(), "Authentication Timeout")


def n1_error_protocol_version(js: Visit) -> None:
    """A number that nobody knows: closed."""
    wire = js.wire()
    options = {"verbose": False, "headers": True, "protocol": 7, **js.server.login}
    wire.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
    closes_with(js, wire, "invalid client protocol")


def n1_error_headers(js: Visit) -> None:
    """Of a client that said it has none: closed."""
    wire = js.connected(headers=False, no_responders=False)
    block = b"NATS/1.0\r\n\r\n"
    wire.send(b"HPUB a %d %d\r\n%b\r\n" % (len(block), len(block), block))
    closes_with(js, wire, "message headers not supported")


def n1_error_no_responders(js: Visit) -> None:
    """Wanted without headers: closed."""
    wire = js.wire()
    options = {"verbose": False, "headers": False, "no_responders": True, **js.server.login}
    wire.send(b"CONNECT %b\r\nPING\r\n" % json.dumps(options).encode())
    closes_with(js, wire, "no responders requires headers support")


# What does not.


def n1_error_invalid_subject(js: Visit) -> None:
    """Of a subscription; the connection stays."""
    wire = js.connected()
    for subject in (b"a..b", b".a", b"a.", b"a.>.b"):
        wire.send(b"SUB %b 1\r\n" % subject)
        same(js, error_of(wire), "Invalid Subject")
    raw(js, wire)


def n1_error_invalid_publish_subject(js: Visit) -> None:
    """For pedantic clients; the connection stays."""
    wire = js.connected(pedantic=True)
    for subject in (b"a.*", b"a.>"):
        wire.send(b"PUB %b 2\r\nhi\r\n" % subject)
        same(js, error_of(wire), "Invalid Publish Subject")
    raw(js, wire)
    wire = js.connected()
    wire.send(b"PUB a.* 2\r\nhi\r\n")
    raw(js, wire)


@needs("users")
def n1_error_permissions(js: Visit) -> None:
    """Of publishing and subscribing, by subject and queue; the connection stays."""
    wire = js.connected(0, **NARROW)
    wire.send(b"SUB open.a 1\r\nPUB open.a 2\r\nhi\r\n")
    assert wire.message()[3] == b"hi"
    wire.send(b"PUB closed.a 2\r\nhi\r\n")
    same(js, error_of(wire), 'Permissions Violation for Publish to "closed.a"')
    wire.send(b"SUB closed.a 2\r\n")
    same(js, error_of(wire), 'Permissions Violation for Subscription to "closed.a"')
    wire.send(b"SUB closed.a workers 3\r\n")
    text = 'Permissions Violation for Subscription to "closed.a" using queue "workers"'
    same(js, error_of(wire), text)
    raw(js, wire)


@needs("users")
def n1_permissions_hold_for_the_api(js: Visit) -> None:
    """Who may not publish to its subjects may not use it."""
    wire = js.connected(0, **NARROW)
    wire.send(b"SUB _INBOX.x 1\r\nPUB $JS.API.INFO _INBOX.x 0\r\n\r\n")
    same(js, error_of(wire), 'Permissions Violation for Publish to "$JS.API.INFO"')
