"""Core NATS over three nodes: interest, queue groups, and nodes that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster.cluster_node import ClusterNode
from cluster.types import NodeId
from node.protocols.nats.routes import Routed
from tests.node.nats.conftest import Connect, Three
from tests.node.nats.wire import Wire
from tests.node.nodes import Nodes, until
from tests.testkit import threads


@contextmanager
def sent_by(cluster: ClusterNode) -> Generator[list[tuple[NodeId, Routed]]]:
    """What goes to other nodes."""
    found: list[tuple[NodeId, Routed]] = []
    send = cluster.send

    def watched(peer: NodeId, message: list[Any]) -> bool:
        match message[1:]:
            case ["tell", "nats", ["messages", messages]]:
                found.extend((peer, each) for each in messages)
            case _:
                pass
        return send(peer, message)

    cluster.send = watched  # type: ignore[method-assign]
    try:
        yield found
    finally:
        cluster.send = send  # type: ignore[method-assign]


def subscribed(client: Wire, *subjects: bytes) -> Wire:
    """Each is `subject` or `subject queue`; their ids count from 1."""
    for sid, subject in enumerate(subjects, 1):
        client.send(b"SUB %b %d\r\n" % (subject, sid))
    client.sync()
    return client


def test_a_message_crosses_to_a_node_once_and_only_if_it_is_wanted_there(three: Three, at: Connect):
    subscribers = [subscribed(at("n2"), b"once.*", b"once.a g") for _ in range(2)]
    publisher = at("n1")
    three.knows("n1", b"once.a", lambda match: match.nodes and match.groups)

    with sent_by(three.nodes.nodes["n1"].cluster) as sent:
        publisher.send(b"PUB once.a r.1 2\r\nhi\r\nPUB once.a r.1 2\r\nho\r\nPUB other 0\r\n\r\n")
        publisher.sync()
        for each in subscribers:
            assert each.message()[3] == b"hi"

    assert sent == [("n2", ("/", b"once.a", b"r.1", 0, 2, True, [b"g"], b"hi\r\nho\r\n", b""))]
    said = [each.sync() for each in subscribers]
    assert sum(each.count(b"MSG once.a 2 ") for each in said) == 2


def test_headers_and_large_payloads_cross_whole(three: Three, at: Connect):
    subscriber, publisher = subscribed(at("n3"), b"large"), at("n1")
    three.knows("n1", b"large", lambda match: match.nodes)
    header, size = b"NATS/1.0\r\nA: b\r\n\r\n", 1 << 20

    publisher.send(b"HPUB large %d %d\r\n%b" % (len(header), size, header))
    publisher.send(b"x" * (size - len(header)) + b"\r\n")

    assert subscriber.message()[3] == header + b"x" * (size - len(header))


def test_a_queue_group_has_one_member_in_the_cluster_and_a_local_one_first(
    three: Three, at: Connect
):
    members = {node: subscribed(at(node), b"jobs workers") for node in ("n2", "n3")}
    publisher = at("n1")
    three.knows("n1", b"jobs", lambda match: len(match.groups[b"workers"].nodes) == 2)

    def counts(messages: int) -> dict[str, int]:
        got = dict.fromkeys(members, 0)
        publisher.send(b"PUB jobs 1\r\nx\r\n" * messages)
        publisher.sync()

        def look() -> bool:
            for node, member in members.items():
                got[node] += member.sync().count(b"MSG jobs ")
            return sum(got.values()) >= messages

        asyncio.run(until(look))
        return got

    spread = counts(100)
    assert sum(spread.values()) == 100
    assert min(spread.values()) > 0

    members["n1"] = subscribed(at("n1"), b"jobs workers")
    assert counts(100) == {"n1": 100, "n2": 0, "n3": 0}


def test_a_request_is_answered_through_any_node(three: Three, at: Connect):
    client, service = at("n1"), subscribed(at("n2"), b"svc")
    three.knows("n1", b"svc", lambda match: match.nodes)

    # The answer is wanted from the moment at which the question arrives.
    for number in range(50):
        client.send(b"SUB _INBOX.%d 1\r\nPUB svc _INBOX.%d 0\r\n\r\n" % (number, number))
        assert service.message()[2] == b"_INBOX.%d" % number
        service.send(b"PUB _INBOX.%d 2\r\nok\r\n" % number)
        assert client.message() == (b"_INBOX.%d" % number, b"1", b"", b"ok")
        client.send(b"UNSUB 1\r\n")


def test_nobody_is_said_once_nobody_is_left_anywhere(three: Three, at: Connect):
    client, service = at("n1"), subscribed(at("n3"), b"leaves", b"leaves")
    client.send(b"SUB _INBOX.* 7\r\n")
    three.knows("n1", b"leaves", lambda match: match.nodes)

    service.send(b"UNSUB 1\r\n")
    service.sync()
    client.send(b"PUB leaves _INBOX.1 0\r\n\r\n")
    assert client.sync() == b""
    service.close()
    three.knows("n1", b"leaves", lambda match: not match.nodes)
    client.send(b"PUB leaves _INBOX.1 0\r\n\r\n")

    assert b"NATS/1.0 503" in client.sync()


def test_clients_learn_of_all_nodes(three: Three, at: Connect):
    addresses = {node.nats.address for node in three.nodes.nodes.values() if node.nats is not None}

    assert set(at("n1").info["connect_urls"]) == addresses


def test_interest_is_told_again_in_full_after_it_found_no_room(three: Three, at: Connect):
    cluster = three.nodes.nodes["n2"].cluster
    send = cluster.send
    cluster.send = lambda *_: False  # type: ignore[method-assign]
    try:
        client = subscribed(at("n2"), b"full.link")
    finally:
        cluster.send = send  # type: ignore[method-assign]

    three.knows("n1", b"full.link", lambda match: match.nodes == ["n2"])
    at("n1").send(b"PUB full.link 2\r\nhi\r\n")
    assert client.message()[3] == b"hi"


def test_thousands_of_subjects_are_told_in_parts(three: Three, at: Connect):
    client = at("n2")
    client.send(b"".join(b"SUB many.%d %d\r\n" % (n, n) for n in range(5_000)))
    client.sync()

    three.knows("n3", b"many.0", lambda match: match.nodes)
    three.knows("n3", b"many.4999", lambda match: match.nodes)
    client.close()
    three.knows("n3", b"many.4999", lambda match: not match.nodes)
    three.knows("n3", b"many.0", lambda match: not match.nodes)


def test_a_node_that_goes_leaves_no_interest_and_one_that_comes_back_has_it_all(
    tmp_path: Path, wires: Callable[[str], Wire]
):
    nodes = Nodes(tmp_path, 3, nats="127.0.0.1:0")
    with threads.in_a_thread(nodes) as (_, loop):
        three = Three(nodes, loop)

        def client(name: str, **options: Any) -> Wire:
            nats = nodes.nodes[name].nats
            assert nats is not None
            assert nats.address is not None
            return wires(nats.address).connect(**options)

        told = client("n1", protocol=1)
        lost, stays = subscribed(client("n3"), b"a"), subscribed(client("n2"), b"a")
        three.knows("n1", b"a", lambda match: len(match.nodes) == 2)
        assert len(json.loads(told.line().removeprefix(b"INFO "))["connect_urls"]) == 3

        three.do(nodes.stop("n3", transfer=False))

        three.knows("n1", b"a", lambda match: match.nodes == ["n2"])
        assert lost.until_closed() == b""
        while len(json.loads(told.line().removeprefix(b"INFO "))["connect_urls"]) != 2:
            pass

        three.do(nodes.start("n3"))

        while len(json.loads(told.line().removeprefix(b"INFO "))["connect_urls"]) != 3:
            pass
        three.knows("n3", b"a", lambda match: match.nodes == ["n2"])
        again = subscribed(client("n3"), b"a")
        three.knows("n1", b"a", lambda match: set(match.nodes) == {"n2", "n3"})
        told.send(b"PUB a 2\r\nhi\r\n")
        assert [each.message()[3] for each in (again, stays)] == [b"hi", b"hi"]


def test_a_drain_is_announced_then_clients_go_and_come_back_after_it_is_undone(
    tmp_path: Path, wires: Callable[[str], Wire]
):
    nodes = Nodes(tmp_path, 3, nats="127.0.0.1:0")
    with threads.in_a_thread(nodes) as (_, loop):
        three = Three(nodes, loop)
        drained, other = nodes.nodes["n1"], nodes.nodes["n2"]
        assert drained.nats is not None
        assert drained.nats.address is not None
        assert other.nats is not None
        assert other.nats.address is not None
        client = wires(drained.nats.address).connect(protocol=1)
        neighbour = wires(other.nats.address).connect()
        subscribed(client, b"a")
        three.knows("n2", b"a", lambda match: match.nodes)

        report = three.do(drained.drain.drain(NodeId("n1"), timeout_s=20, force=False, by="test"))

        assert report["nats_connections"] == 1
        said = client.until_closed().split(b"\r\n")
        [*_, last] = [json.loads(each[5:]) for each in said if each.startswith(b"INFO ")]
        assert last["ldm"] is True
        assert drained.nats.address not in last["connect_urls"]
        three.knows("n2", b"a", lambda match: not match.nodes)
        assert neighbour.sync() == b""

        three.do(drained.drain.undo(NodeId("n1"), by="test"))

        back = subscribed(wires(drained.nats.address).connect(), b"a")
        assert "ldm" not in back.info
        three.knows("n2", b"a", lambda match: match.nodes)
        neighbour.send(b"PUB a 2\r\nhi\r\n")
        assert back.message()[3] == b"hi"
