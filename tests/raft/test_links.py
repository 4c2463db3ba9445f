"""Links over real loopback sockets: up, down, order, limits, and everybody who must not get in."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
import struct
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
import structlog
import trustme
import uvloop

from cluster.log import SystemClock
from cluster.raft import link_protocol, links
from cluster.raft.link_auth import LINK_VERSIONS, LinkHandshake, LinkIdentity
from cluster.raft.links import LINK_FRAME_BYTES_MAX, TcpLinks, TlsConfig
from cluster.read_slices import SLICE_BYTES
from cluster.seams import Down
from cluster.types import NodeId
from quorate.ports import free_port
from tests.testkit.waiting import stays, until

SECRET = b"the secret of the cluster"
PATIENCE_S = 60


SKEW_NS = 3_600 * 10**9


class SkewedClock(SystemClock):
    def wall_ns(self) -> int:
        return time.time_ns() + SKEW_NS


PORTS: dict[str, int] = {}


@pytest.fixture(autouse=True)
def ports() -> None:
    PORTS.update({node: free_port() for node in ("n1", "n2", "n3")})


class End:
    """One node's links and all that they told."""

    def __init__(
        self,
        node: str,
        *,
        incarnation: int = 1,
        cluster: str = "c1",
        secret: bytes | None = SECRET,
        tls: TlsConfig | None = None,
        peers: tuple[str, ...] = ("n1", "n2"),
        host: str = "127.0.0.1",
        link_timeout_ms: int = 5_000,
        gone_after_s: float = 60.0,
        clock: SystemClock | None = None,
        link_bytes_max: int = 64 << 20,
        versions: str = "",
        previous: bytes | None = None,
    ) -> None:
        self.events: list[Any] = []
        self.received: list[Any] = []
        self.changed = asyncio.Event()
        self.links = TcpLinks(
            NodeId(node),
            cluster,
            incarnation,
            f"127.0.0.1:{PORTS[node]}",
            {NodeId(peer): f"{host}:{PORTS[peer]}" for peer in peers},
            secret=secret,
            tls=tls,
            clock=clock or SystemClock(),
            random=random.Random(1),
            link_timeout_ms=link_timeout_ms,
            gone_after_s=gone_after_s,
            link_bytes_max=link_bytes_max,
            versions=versions,
            previous_secret=previous,
        )

    async def start(self) -> None:
        await self.links.start(
            lambda peer, message: self.note(self.received, (peer, message)),
            lambda peer, incarnation: self.note(self.events, ("up", peer, incarnation)),
            lambda peer, down: self.note(self.events, ("down", peer, down)),
        )

    def note(self, where: list[Any], what: Any) -> None:
        where.append(what)
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def until_event(self, *event: Any) -> None:
        await self.until(lambda: event in self.events)


@asynccontextmanager
async def started(*ends: End) -> AsyncIterator[None]:
    for end in ends:
        await end.start()
    try:
        yield
    finally:
        for end in ends:
            await end.links.stop()


# --- up, messages, down ---------------------------------------------------------------------------


async def test_two_nodes_are_up_for_each_other_with_their_incarnations() -> None:
    a, b = End("n1", incarnation=3), End("n2", incarnation=8)
    async with started(a, b):
        await a.until_event("up", "n2", 8)
        await b.until_event("up", "n1", 3)
        assert a.links.connected(NodeId("n2"))
        assert a.links.peers() == ["n2"]
        assert not a.links.connected(NodeId("n3"))


async def test_messages_arrive_in_order_in_both_directions() -> None:
    a, b = End("n1"), End("n2")
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        for number in range(1_000):
            assert a.links.send(NodeId("n2"), [0, "from a", number])
            assert b.links.send(NodeId("n1"), [0, "from b", number])
            if number % 7 == 0:
                a.links.flush()
                b.links.flush()
        a.links.flush()
        b.links.flush()
        await b.until(lambda: len(b.received) == 1_000)
        await a.until(lambda: len(a.received) == 1_000)
    assert b.received == [("n1", [0, "from a", number]) for number in range(1_000)]
    assert a.received == [("n2", [0, "from b", number]) for number in range(1_000)]


@pytest.mark.parametrize("newest", [2, LINK_VERSIONS[1]])
async def test_a_link_knows_which_version_both_ends_speak(newest: int) -> None:
    a, b = End("n1"), End("n2")
    b.links._me = replace(b.links._me, links=(1, newest))
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        assert a.links.version(NodeId("n2")) == b.links.version(NodeId("n1")) == newest
        assert a.links.version(NodeId("n3")) == 0


async def test_nothing_leaves_before_the_flush() -> None:
    a, b = End("n1"), End("n2")
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        assert a.links.buffered(NodeId("n2")) == 0
        a.links.send(NodeId("n2"), [0, b"x" * 1_000])
        assert 1_000 < a.links.buffered(NodeId("n2")) < 1_100
        a.links.flush()
        await b.until(lambda: len(b.received) == 1)


async def test_the_largest_message_passes_and_a_larger_one_is_dropped_by_its_sender() -> None:
    a, b = End("n1"), End("n2")
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        assert not a.links.send(NodeId("n2"), [b"x" * LINK_FRAME_BYTES_MAX])
        assert a.links.dropped(NodeId("n2")) == 1
        assert a.links.send(NodeId("n2"), [b"y" * (17 << 20)])
        assert a.links.send(NodeId("n2"), ["after"])
        a.links.flush()
        await b.until(lambda: len(b.received) == 2)
        assert len(b.received[0][1][0]) == 17 << 20
        assert a.links.connected(NodeId("n2"))


async def test_over_its_limit_a_link_drops_and_counts() -> None:
    a, b = End("n1", link_bytes_max=10_000), End("n2")
    async with started(a, b):
        await a.until_event("up", "n2", 1)
        sent = [a.links.send(NodeId("n2"), [b"x" * 1_000]) for _ in range(20)]
        assert sent == [True] * 9 + [False] * 11
        assert a.links.dropped(NodeId("n2")) == 11
        a.links.flush()
        await b.until(lambda: len(b.received) == 9)
        await until(lambda: a.links.send(NodeId("n2"), ["again"]))


async def test_a_message_to_nobody_is_not_sent() -> None:
    a = End("n1")
    async with started(a):
        assert not a.links.send(NodeId("n2"), [1])
        assert not a.links.send(NodeId("n9"), [1])
        a.links.flush()


async def test_a_stopped_peer_is_gone_and_comes_back_with_its_new_incarnation() -> None:
    a, b = End("n1"), End("n2", incarnation=1)
    await b.start()
    async with started(a):
        await a.until_event("up", "n2", 1)
        await b.links.stop()
        await a.until_event("down", "n2", Down.GONE)
        assert not a.links.send(NodeId("n2"), [1])
        again = End("n2", incarnation=2)
        async with started(again):
            await a.until_event("up", "n2", 2)
        await a.until(lambda: len(a.events) >= 4 and a.events[-1][0] == "down")
        assert a.events[-4:] == [
            ("up", "n2", 1),
            ("down", "n2", Down.GONE),
            ("up", "n2", 2),
            ("down", "n2", Down.GONE),
        ]


async def test_a_peer_whose_process_dies_without_a_word_is_closed() -> None:
    a, b = End("n1"), End("n2")
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        connection = a.links._peers[NodeId("n2")].connection
        assert connection is not None
        connection.abort()  # what the kernel does for a killed process
        await b.until_event("down", "n1", Down.CLOSED)


async def test_a_refused_connection_says_once_that_the_peer_is_closed() -> None:
    a = End("n1", peers=("n1", "n2"))
    async with started(a):
        await a.until_event("down", "n2", Down.CLOSED)
        await stays(lambda: a.events == [("down", "n2", Down.CLOSED)])


@pytest.mark.parametrize("name", ["n1", "n2"], ids=["that dials", "that is dialed"])
async def test_a_peer_that_refuses_for_long_enough_is_gone(name: str) -> None:
    other = "n2" if name == "n1" else "n1"
    one = End(name, gone_after_s=2.0)
    async with started(one):
        dead = End(other)
        await dead.start()
        await asyncio.gather(one.until_event("up", other, 1), dead.until_event("up", name, 1))
        connection = dead.links._peers[NodeId(name)].connection
        assert connection is not None
        dead.links._peers[NodeId(name)].connection = None  # it dies without a word
        connection.abort()
        await dead.links.stop()
        await one.until_event("down", other, Down.GONE)
        assert one.events[-3:] == [
            ("up", other, 1),
            ("down", other, Down.CLOSED),
            ("down", other, Down.GONE),
        ]


async def test_who_waits_to_be_dialed_and_only_looks_is_no_stranger(monkeypatch: Any) -> None:
    monkeypatch.setattr(links, "PROBE_S", 0.05)
    a, b = End("n1"), End("n2", gone_after_s=0.1)
    a.links._start_dialing = lambda peer: None  # type: ignore[method-assign]
    with structlog.testing.capture_logs() as lines:
        async with started(a, b):
            await stays(lambda: b.events == [])
    assert [line for line in lines if line["event"] == "link_refused"] == []


async def test_who_is_taken_while_it_stops_is_not_called_one_too_many() -> None:
    end = End("n1")
    async with started(end):
        pass
    connection = link_protocol.LinkConnection(end.links, SystemClock(), accepted=True)
    with structlog.testing.capture_logs() as lines:
        end.links.accepted(connection, asyncio.Transport())
    assert connection.closed
    assert lines == []


async def test_a_peer_that_falls_silent_is_down_but_not_gone() -> None:
    a, b = End("n1", link_timeout_ms=600), End("n2", link_timeout_ms=60_000)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        connection = b.links._peers[NodeId("n1")].connection
        assert connection is not None
        connection._write_control = lambda frame: None  # it hears, but cannot be heard
        await a.until_event("down", "n2", Down.SILENT)
        # And the one that was given up is told that this is no death.
        await b.until_event("down", "n1", Down.SILENT)
        assert ("down", "n1", Down.CLOSED) not in b.events


async def test_an_idle_link_stays_up_by_its_pings() -> None:
    a, b = End("n1", link_timeout_ms=600), End("n2", link_timeout_ms=600)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        await stays(
            lambda: a.events[-1] == ("up", "n2", 1) and b.events == [("up", "n1", 1)],
            for_s=2 * 0.6,
        )


async def test_a_link_on_which_much_is_heard_is_pinged_once_a_second() -> None:
    a, b = End("n1", link_timeout_ms=60_000), End("n2", link_timeout_ms=60_000)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        connection = a.links._peers[NodeId("n2")].connection
        assert connection is not None
        pings: list[float] = []
        connection.ping = lambda: pings.append(a.links._loop.time())  # type: ignore[method-assign]

        def look() -> int:
            assert a.links._care is not None
            a.links._care.cancel()
            a.links._take_care()
            return len(pings)

        assert look() == 1
        assert look() == 1  # it was heard, and pinged, a moment ago
        a.links._peers[NodeId("n2")].pinged_s -= links.CLOCK_SAMPLE_S
        assert look() == 2
        connection.heard_s -= 60 / 4 + 1
        assert look() == 3


async def test_a_process_that_stood_still_does_not_blame_its_peers() -> None:
    a, b = End("n1", link_timeout_ms=400), End("n2", link_timeout_ms=60_000)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        time.sleep(0.8)
        await stays(lambda: a.events[-1] == ("up", "n2", 1))


async def test_a_new_process_takes_the_place_of_the_old_connection() -> None:
    b = End("n2")
    old, new = End("n1", incarnation=1), End("n1", incarnation=2)
    PORTS["n1"] = free_port()
    async with started(b, old):
        await b.until_event("up", "n1", 1)
        new.links._bind = ("127.0.0.1", 0)
        async with started(new):
            await b.until_event("up", "n1", 2)
            assert b.events[-3:] == [("up", "n1", 1), ("down", "n1", Down.GONE), ("up", "n1", 2)]
            # The old process comes again and again, and is kept out.
            await until(lambda: ("127.0.0.1", "old_incarnation") in b.links._refusals.seen)
            assert b.events[-1] == ("up", "n1", 2)


async def test_a_second_connection_of_the_same_process_replaces_the_first() -> None:
    """The peer gave the old one up and we have not noticed yet: no death, but a visible break."""
    b = End("n2")
    async with started(b):
        first = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
        await prove(*first)
        second = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
        await prove(*second)
        await b.until(lambda: len(b.events) == 3)
        assert b.events == [("up", "n1", 1), ("down", "n1", Down.SILENT), ("up", "n1", 1)]
        first[1].write(frame([[0, "too late"]]))
        second[1].write(frame([[0, "in time"]]))
        await b.until(lambda: len(b.received) > 0)
        assert b.received == [("n1", [0, "in time"])]
        for _, writer in (first, second):
            writer.close()


async def test_what_was_queued_for_a_broken_link_is_not_sent_on_the_next() -> None:
    a, b = End("n1"), End("n2")
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        a.links.send(NodeId("n2"), ["of the old connection"])
        connection = b.links._peers[NodeId("n1")].connection
        assert connection is not None
        connection.close(gone=False)
        await a.until(lambda: a.events[-2:] == [("down", "n2", Down.SILENT), ("up", "n2", 1)])
        a.links.send(NodeId("n2"), ["of the new one"])
        a.links.flush()
        await b.until(lambda: len(b.received) > 0)
        assert b.received == [("n1", ["of the new one"])]


async def test_a_message_whose_handler_fails_breaks_the_link_without_a_death() -> None:
    a, b = End("n1"), End("n2")

    def fail(peer: NodeId, message: list[Any]) -> None:
        raise RuntimeError("a bug")

    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        b.links._on_message = fail
        a.links.send(NodeId("n2"), [1])
        a.links.flush()
        await b.until_event("down", "n1", Down.SILENT)
        await a.until_event("down", "n2", Down.SILENT)
        await a.until(lambda: a.events[-1] == ("up", "n2", 1))


async def test_peers_are_added_and_removed_while_it_runs() -> None:
    a, b = End("n1", peers=()), End("n2")
    async with started(a, b):
        assert a.links.peers() == []
        a.links.add_peer(NodeId("n2"), f"127.0.0.1:{PORTS['n2']}")
        await a.until_event("up", "n2", 1)
        await b.until_event("up", "n1", 1)
        a.links.remove_peer(NodeId("n2"))
        await a.until_event("down", "n2", Down.SILENT)
        await b.until_event("down", "n1", Down.SILENT)
        assert a.links.peers() == []


@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_node_that_the_other_does_not_know_any_more_calls_until_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two is the one that usually calls."""
    monkeypatch.setattr(links, "PROBE_S", 0.02)
    monkeypatch.setattr(links, "CALL_S", 0.1)
    here = "n2" if name == "n1" else "n1"
    a, b = End(name, incarnation=7), End(here, peers=())
    strangers: list[tuple[str, int]] = []

    def on_unknown_peer(node: NodeId, incarnation: int) -> bool:
        strangers.append((node, incarnation))
        if len(strangers) == 2:
            b.links.add_peer(node, f"127.0.0.1:{PORTS[node]}")
        return False

    b.links.on_unknown_peer = on_unknown_peer
    async with started(a, b):
        await b.until_event("up", name, 7)
        await a.until_event("up", here, 1)
    assert strangers == [(name, 7)] * 2


@pytest.mark.parametrize("with_tls", [False, True])
@pytest.mark.parametrize("name", ["n1", "n2"])
async def test_a_stranger_that_has_the_secret_may_stay_as_it_came(
    name: str,
    with_tls: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    authority: trustme.CA,
) -> None:
    """Whichever of the two is the one that usually calls. Its certificate need not name it."""
    monkeypatch.setattr(links, "PROBE_S", 0.02)
    monkeypatch.setattr(links, "CALL_S", 0.1)
    here = "n2" if name == "n1" else "n1"
    tls = tls_of(authority, tmp_path, "127.0.0.1") if with_tls else None
    a, b = End(name, incarnation=7, tls=tls), End(here, peers=(), tls=tls)
    b.links.on_unknown_peer = lambda _node, _incarnation: True
    async with started(b):
        async with started(a):
            await b.until_event("up", name, 7)
            await a.until_event("up", here, 1)
            assert b.links.peers() == []
            assert b.links.connected(NodeId(name))
            for one, other in ((a, here), (b, name)):
                assert one.links.send(NodeId(other), [0, "hello"])
                one.links.flush()
            await a.until(lambda: (here, [0, "hello"]) in a.received)
            await b.until(lambda: (name, [0, "hello"]) in b.received)

            # It calls again when it was hung up on; and becomes a peer when it is made one.
            b.links.remove_peer(NodeId(name))
            await b.until(lambda: b.events.count(("up", name, 7)) == 2)
            b.links.add_peer(NodeId(name), f"127.0.0.1:{PORTS[name]}")
            await b.until(lambda: b.events.count(("up", name, 7)) == 3)
            assert b.links.peers() == [name]
            b.links.remove_peer(NodeId(name))
            await b.until(lambda: b.events.count(("up", name, 7)) == 4)
            await a.until(lambda: a.events.count(("up", here, 1)) == 4)
        await b.until_event("down", name, Down.GONE)
        assert not b.links.connected(NodeId(name))
        assert NodeId(name) not in b.links._peers
        assert NodeId(name) not in b.links.clock_samples


async def test_a_later_process_of_a_stranger_takes_the_place_of_the_earlier() -> None:
    a, later, b = End("n1", incarnation=7), End("n1", incarnation=8), End("n2", peers=())
    b.links.on_unknown_peer = lambda _node, _incarnation: True
    async with started(b, a):
        await b.until_event("up", "n1", 7)
        later.links._bind = ("127.0.0.1", 0)
        async with started(later):
            await b.until_event("up", "n1", 8)
            await b.until_event("down", "n1", Down.GONE)
            assert b.links.send(NodeId("n1"), [0, "to the later"])
            b.links.flush()
            await later.until(lambda: bool(later.received))


async def test_a_stranger_without_the_secret_may_not_stay(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """Nor with a certificate alone: others may have one of the same authority."""
    tls = tls_of(authority, tmp_path, "n1", "n2")
    for settings, code in (
        ({"secret": b"wrong"}, "wrong_secret"),
        ({"secret": None, "tls": tls}, "unknown_node"),
    ):
        a = End("n1", **settings)
        b = End("n2", peers=(), **{**settings, "secret": settings["secret"] and SECRET})
        b.links.on_unknown_peer = lambda _node, _incarnation: True
        with structlog.testing.capture_logs() as logs:
            async with started(b, a):
                await until(lambda code=code, logs=logs: code in codes_in(logs))
                assert b.events == []


async def test_a_new_address_of_a_peer_is_used_at_the_next_attempt() -> None:
    a = End("n1")
    async with started(a):
        await a.until_event("down", "n2", Down.CLOSED)
        PORTS["n2"] = free_port()
        b = End("n2")
        async with started(b):
            a.links.add_peer(NodeId("n2"), f"127.0.0.1:{PORTS['n2']}")
            await a.until_event("up", "n2", 1)


async def test_pings_measure_how_far_clocks_differ() -> None:
    a, b = End("n1"), End("n2", clock=SkewedClock())
    samples: list[Any] = []
    a.links.on_clock = samples.append
    began_ns = time.monotonic_ns()
    async with started(a, b):
        await until(lambda: samples)
        sample = samples[0]
        assert sample.peer == "n2"
        assert 0 <= sample.delay_ns <= time.monotonic_ns() - began_ns + 10_000_000
        # Known to half of the time that ping and pong took, which on a busy machine may be long.
        # The clocks that are compared tick on their own, by microseconds.
        assert abs(sample.offset_ns - SKEW_NS) <= sample.delay_ns / 2 + 10_000_000
        assert a.links.clock_samples[NodeId("n2")] == sample


async def test_a_port_of_its_own_choice_is_known() -> None:
    a = End("n1")
    a.links._bind = ("127.0.0.1", 0)
    async with started(a):
        assert a.links.port > 0


def test_without_a_secret_and_without_tls_there_are_no_links() -> None:
    with pytest.raises(ValueError, match="secret or TLS"):
        End("n1", secret=None)
    with pytest.raises(ValueError, match="secret or TLS"):
        End("n1", secret=b"")


def test_an_address_without_a_port_is_named() -> None:
    with pytest.raises(ValueError, match="write host:port"):
        End("n1").links.add_peer(NodeId("n9"), "n9")


# --- who must not get in --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stranger", "codes"),
    [
        ({"secret": b"wrong"}, {"wrong_secret"}),
        ({"cluster": "c2"}, {"other_cluster"}),
    ],
)
async def test_a_stranger_is_refused_by_both_ends_and_harms_nobody(
    stranger: dict[str, Any], codes: set[str]
) -> None:
    everybody = ("n1", "n2", "n3")
    a, b = End("n1", peers=everybody), End("n2", peers=everybody)
    c = End("n3", peers=everybody, **stranger)
    with structlog.testing.capture_logs() as logs:
        async with started(a, b, c):
            await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
            # n3 is told why, and says so too.
            told = {f"peer_says_{code}" for code in codes}
            await until(lambda: codes | told <= codes_in(logs))
            assert not c.links.connected(NodeId("n1"))
            assert not a.links.connected(NodeId("n3"))
            assert a.links.connected(NodeId("n2"))
    line = next(line for line in logs if line.get("code") in codes)
    assert line["event"] == "link_refused"
    assert line["peer_address"].startswith("127.0.0.1:")
    assert line["reason"]


NEW = b"the new secret of the cluster"
OLD_ONE: dict[str, Any] = {"secret": SECRET}
CHANGED: dict[str, Any] = {"secret": NEW, "previous": SECRET}
NEW_ONE: dict[str, Any] = {"secret": NEW}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (OLD_ONE, CHANGED),
        (CHANGED, OLD_ONE),
        (CHANGED, CHANGED),
        (CHANGED, NEW_ONE),
        (NEW_ONE, CHANGED),
    ],
)
async def test_a_secret_is_replaced_node_by_node(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    a, b = End("n1", **one), End("n2", **other)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))


async def test_a_secret_that_was_replaced_is_void_once_nobody_keeps_it() -> None:
    a, b = End("n1", **OLD_ONE), End("n2", **NEW_ONE)
    with structlog.testing.capture_logs() as logs:
        async with started(a, b):
            await until(lambda: "wrong_secret" in codes_in(logs))
            assert not a.links.connected(NodeId("n2"))


async def refusal_of(data: bytes, end: End | None = None, *, wait: bool = False) -> dict[str, Any]:
    """What n2 logs about somebody who sends this, while it serves n1 undisturbed."""
    a, b = End("n1"), end or End("n2")
    with structlog.testing.capture_logs() as logs:
        async with started(a, b):
            await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
            reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
            writer.write(data)
            await asyncio.wait_for(reader.read(), PATIENCE_S)  # it hangs up
            writer.close()
            assert a.links.send(NodeId("n2"), ["still served"])
            a.links.flush()
            await b.until(lambda: len(b.received) == 1)
            assert b.events[-1] == ("up", "n1", 1)
    (line,) = [line for line in logs if line["event"] == "link_refused" and "code" in line][-1:]
    return line


def frame(value: Any) -> bytes:
    data = cbor2.dumps(value)
    return struct.pack(">I", len(data)) + data


def hello(node: str, *, protocol: str = "quorate-link", version: int = 1) -> bytes:
    return frame([1, protocol, version, "c1", node, 1, b"n" * 32])


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "oversize"),
        (struct.pack(">I", 1 << 30), "oversize"),
        (struct.pack(">I", 8) + b"\xff" * 8, "garbage"),
        (frame("hello"), "not_a_link"),
        (frame([[0, "a message before the proof"]]), "not_a_link"),
        (hello("n1", protocol="other-link"), "not_a_link"),
        (hello("n1", version=9), "protocol_version"),
        (hello("n9"), "unknown_node"),
        (hello("n2"), "own_node_id"),
        (hello("n3"), "unknown_node"),
        (hello("n1") + frame([2, b"no proof"]), "wrong_secret"),
    ],
)
async def test_who_does_not_belong_is_refused_with_a_line_that_says_why(
    data: bytes, code: str
) -> None:
    line = await refusal_of(data)
    assert line["code"] == code
    assert line["log_level"] == "warning"
    assert line["peer_address"].startswith("127.0.0.1:")


async def test_of_two_nodes_only_the_one_with_the_smaller_id_may_call() -> None:
    line = await refusal_of(hello("n3"), End("n2", peers=("n1", "n3")))
    assert line["code"] == "wrong_direction"


@pytest.mark.parametrize("data", [b"", b"\x00", hello("n1")])
async def test_who_does_not_finish_the_handshake_is_hung_up_on(data: bytes) -> None:
    line = await refusal_of(data, End("n2", link_timeout_ms=1_000))
    assert line["code"] == "slow_handshake"


async def test_the_same_refusal_is_logged_once_however_often_it_happens() -> None:
    b = End("n2")
    with structlog.testing.capture_logs() as logs:
        async with started(b):
            for _ in range(20):
                reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
                writer.write(frame("hello"))
                await asyncio.wait_for(reader.read(), PATIENCE_S)
                writer.close()
            assert b.links._refusals.seen["127.0.0.1", "not_a_link"][1] == 19
    assert len([line for line in logs if line.get("code") == "not_a_link"]) == 1


async def test_connections_that_prove_nothing_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.raft.links.HANDSHAKES_MAX", 3)
    b = End("n2")
    async with started(b):
        held = [await asyncio.open_connection("127.0.0.1", PORTS["n2"]) for _ in range(4)]
        await until(lambda: ("127.0.0.1", "too_many") in b.links._refusals.seen)
        for _, writer in held:
            writer.close()
        await until(lambda: not b.links._shaking)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (struct.pack(">I", LINK_FRAME_BYTES_MAX + 1), "oversize"),
        (struct.pack(">I", 2) + b"\xff\xff", "garbage"),
        (frame({"a": "map"}), "garbage"),
        (frame([[0], "no list"]), "garbage"),
        (frame([[]]), "garbage"),
        (frame(["no kind"]), "garbage"),
    ],
)
async def test_a_proven_peer_that_talks_nonsense_is_cut_off_but_not_taken_for_dead(
    data: bytes, code: str
) -> None:
    b = End("n2")
    with structlog.testing.capture_logs() as logs:
        async with started(b):
            reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
            await prove(reader, writer)
            writer.write(data)
            await b.until_event("down", "n1", Down.SILENT)
            writer.close()
    assert code in [line.get("code") for line in logs]


async def test_a_control_frame_of_a_later_version_is_ignored() -> None:
    b = End("n2")
    async with started(b):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
        await prove(reader, writer)
        writer.write(frame([77, "later"]) + frame([[0, "message"]]))
        await b.until(lambda: b.received == [("n1", [0, "message"])])
        writer.close()


async def test_frames_may_arrive_in_any_pieces() -> None:
    b = End("n2")
    async with started(b):
        reader, writer = await asyncio.open_connection("127.0.0.1", PORTS["n2"])
        await prove(reader, writer)
        data = frame([[0, "one"], [0, "two"]]) + frame([[0, b"z" * 500]])
        for at in range(0, len(data), 3):
            writer.write(data[at : at + 3])
            await asyncio.sleep(0)
        await b.until(lambda: len(b.received) == 3)
        writer.close()
    assert [message for _, message in b.received] == [[0, "one"], [0, "two"], [0, b"z" * 500]]


async def prove(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Be node n1, by hand."""
    shake = LinkHandshake(
        LinkIdentity(NodeId("n1"), "c1", 1),
        secret=SECRET,
        dialing=NodeId("n2"),
        admit=lambda _: None,
    )
    for out in shake.start():
        writer.write(frame(out))
    while not shake.done:
        (size,) = struct.unpack(">I", await reader.readexactly(4))
        for out in shake.receive(cbor2.loads(await reader.readexactly(size))):
            writer.write(frame(out))


# --- releases -------------------------------------------------------------------------------------


async def first_release(told: dict[str, list[Any]], reader: Any, writer: Any) -> None:
    """Node n2 as the first release takes a call: it insists on version 1, in its own form."""
    shake = LinkHandshake(
        LinkIdentity(NodeId("n2"), "c1", 1), secret=SECRET, dialing=None, admit=lambda _: None
    )
    with contextlib.suppress(asyncio.IncompleteReadError):
        while True:
            (size,) = struct.unpack(">I", await reader.readexactly(4))
            received = cbor2.loads(await reader.readexactly(size))
            if shake.done:
                told["heard"].append(received)
                continue
            if received[:3] == [1, "quorate-link", 2]:
                told["refused"].append(received)
                reason = "it speaks version 2 of the link protocol, this node 1"
                writer.write(frame([6, "protocol_version", reason]))
                break
            for out in shake.receive(received):
                writer.write(frame(out))
    writer.close()


async def test_the_first_release_is_called_again_in_the_form_that_it_understands() -> None:
    told: dict[str, list[Any]] = {"heard": [], "refused": []}
    server = await asyncio.start_server(
        lambda reader, writer: first_release(told, reader, writer), "127.0.0.1", PORTS["n2"]
    )
    a = End("n1")
    async with started(a):
        await a.until(lambda: ("up", "n2", 1) in a.events)
        a.links.send(NodeId("n2"), [0, "a message"])
        a.links.flush()
        await until(lambda: [[0, "a message"]] in told["heard"])
        assert len(told["refused"]) == 1
    server.close()


async def test_a_release_that_cannot_run_the_cluster_is_refused_and_both_sides_say_so() -> None:
    a, b = End("n1", versions="machine=1-2"), End("n2", versions="machine=1-3")
    b.links.machine_version = lambda: 3

    def reasons() -> dict[str, str]:
        found = [line for line in lines if line["event"] == "link_refused"]
        return {line["code"]: line["reason"] for line in found}

    with structlog.testing.capture_logs() as lines:
        async with started(a, b):
            await until(lambda: len(reasons()) == 2)
    assert (
        "node n1 runs machine version 2 at most, the cluster has 3" in reasons()["machine_version"]
    )
    assert "it refused this node: node n1 runs" in reasons()["peer_says_machine_version"]
    assert "up" not in {event for event, *_ in a.events + b.events}


# --- TLS ------------------------------------------------------------------------------------------


def tls_of(authority: trustme.CA, folder: Path, *names: str) -> TlsConfig:
    certificate = authority.issue_cert(*names)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    stem = folder / names[0]
    certificate.private_key_pem.write_to_path(f"{stem}.key")
    certificate.cert_chain_pems[0].write_to_path(f"{stem}.pem")
    return TlsConfig.from_files(
        certificate=f"{stem}.pem", key=f"{stem}.key", authority=str(folder / "ca.pem")
    )


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("secret", [None, SECRET])
async def test_nodes_with_certificates_for_their_ids_are_up(
    authority: trustme.CA, tmp_path: Path, secret: bytes | None
) -> None:
    a = End("n1", secret=secret, tls=tls_of(authority, tmp_path, "n1"))
    b = End("n2", secret=secret, tls=tls_of(authority, tmp_path, "n2"))
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
        a.links.send(NodeId("n2"), [0, b"x" * 300_000])
        a.links.flush()
        await b.until(lambda: len(b.received) == 1)
        await b.links.stop()
        await a.until_event("down", "n2", Down.GONE)


async def test_a_certificate_for_the_configured_host_will_do(
    authority: trustme.CA, tmp_path: Path
) -> None:
    tls = tls_of(authority, tmp_path, "127.0.0.1")
    a, b = End("n1", secret=None, tls=tls), End("n2", secret=None, tls=tls)
    async with started(a, b):
        await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))


async def refusals_of_tls(a: End, b: End) -> set[str]:
    with structlog.testing.capture_logs() as logs:
        async with started(a, b):
            await until(lambda: {"wrong_certificate", "wrong_secret", "tls"} & codes_in(logs))
            assert not a.links.connected(NodeId("n2"))
            assert not b.links.connected(NodeId("n1"))
    return codes_in(logs)


def codes_in(logs: Any) -> set[str]:
    return {line["code"] for line in logs if line["event"] in ("link_refused", "link_failed")}


async def test_a_certificate_for_another_node_is_refused(
    authority: trustme.CA, tmp_path: Path
) -> None:
    a = End("n1", secret=None, tls=tls_of(authority, tmp_path, "n3"))
    b = End("n2", secret=None, tls=tls_of(authority, tmp_path, "n2"))
    assert "wrong_certificate" in await refusals_of_tls(a, b)


async def test_a_certificate_of_another_authority_is_refused(
    authority: trustme.CA, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    a = End("n1", secret=None, tls=tls_of(trustme.CA(), other, "n1"))
    b = End("n2", secret=None, tls=tls_of(authority, tmp_path, "n2"))
    assert "tls" in await refusals_of_tls(a, b)


async def test_plain_text_towards_tls_is_refused(authority: trustme.CA, tmp_path: Path) -> None:
    a = End("n1")
    b = End("n2", tls=tls_of(authority, tmp_path, "n2"))
    assert "tls" in await refusals_of_tls(a, b)


async def test_the_wrong_secret_is_refused_inside_tls_too(
    authority: trustme.CA, tmp_path: Path
) -> None:
    a = End("n1", secret=b"wrong", tls=tls_of(authority, tmp_path, "n1"))
    b = End("n2", tls=tls_of(authority, tmp_path, "n2"))
    assert "wrong_secret" in await refusals_of_tls(a, b)


def test_contexts_that_do_not_ask_for_certificates_are_not_taken() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ValueError, match="CERT_REQUIRED"):
        TlsConfig(context, context)


# --- the other loop -------------------------------------------------------------------------------


@pytest.mark.parametrize("with_tls", [False, True])
def test_links_work_the_same_on_uvloop(
    authority: trustme.CA, tmp_path: Path, with_tls: bool
) -> None:
    async def run() -> None:
        tls = tls_of(authority, tmp_path, "127.0.0.1") if with_tls else None
        a, b = End("n1", tls=tls), End("n2", tls=tls)
        async with started(a, b):
            await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
            for number in range(100):
                a.links.send(NodeId("n2"), [0, number, b"x" * 10_000])
            a.links.flush()
            await b.until(lambda: len(b.received) == 100)
            await b.links.stop()
            await a.until_event("down", "n2", Down.GONE)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("with_tls", [False, True])
def test_what_comes_fast_is_read_in_slices(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_tls: bool
) -> None:
    """Others on the loop have their turn between two of them."""
    turn = 0
    read: dict[int, int] = {}  # bytes, by turn
    receive = link_protocol.LinkConnection.data_received

    def data_received(self: link_protocol.LinkConnection, data: bytes) -> None:
        read[turn] = read.get(turn, 0) + len(data)
        receive(self, data)

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def run() -> None:
        tls = tls_of(authority, tmp_path, "127.0.0.1") if with_tls else None
        a, b = End("n1", tls=tls), End("n2", tls=tls)
        async with started(a, b):
            await asyncio.gather(a.until_event("up", "n2", 1), b.until_event("up", "n1", 1))
            turns = asyncio.create_task(count_turns())
            for number in range(32):
                a.links.send(NodeId("n2"), [0, number, bytes(1 << 20)])
            a.links.flush()
            await b.until(lambda: len(b.received) == 32)
            turns.cancel()

    monkeypatch.setattr(link_protocol.LinkConnection, "data_received", data_received)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert max(read.values()) < 2 * SLICE_BYTES


def test_a_frame_has_room_for_the_largest_entry() -> None:
    assert link_protocol.LINK_FRAME_BYTES_MAX > (17 << 20) + 4_096


async def test_an_end_that_is_numbered_again_connects_again_by_its_new_number() -> None:
    one, two = End("n1", incarnation=3), End("n2", incarnation=5)
    async with started(one, two):
        await one.until_event("up", "n2", 5)
        await two.until_event("up", "n1", 3)
        one.links.renumber(9)
        two.links.renumber(8)
        await two.until_event("up", "n1", 9)
        await one.until_event("up", "n2", 8)
        assert one.links.incarnation == 9
