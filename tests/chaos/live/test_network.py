"""Every fault of a network, between real processes: in namespaces, and through the proxy."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import pytest

from chaos.faults import Weather, bridge, deafen, halves, isolate, ring, silence
from chaos.live.networks import choose, why_no_namespaces
from chaos.live.seams import Network
from tests.chaos.live.network_hosts import SILENCE_S, Hosts, happened

pytestmark = pytest.mark.live

NAMES = ["node-1", "node-2", "node-3"]
CUTS = {
    "isolate": isolate("node-1", NAMES),
    "deafen": deafen("node-1", NAMES),
    "silence": silence("node-1", NAMES),
    "halves": halves(["node-1"], ["node-2", "node-3"]),
    "ring": ring(NAMES),
    "bridge": bridge("node-2", NAMES),
}


@pytest.fixture(params=["namespaces", "proxy"])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    if request.param == "namespaces" and (why := why_no_namespaces()):
        pytest.skip(f"no network namespaces: {why}")
    network = choose(request.param)
    yield network
    network.close()


@pytest.fixture
def hosts(network: Network) -> Iterator[Hosts]:
    hosts = Hosts(network, NAMES)
    yield hosts
    hosts.close()


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_silences_exactly_what_it_says_and_what_was_said_meanwhile_comes_after_it_heals(
    hosts: Hosts, name: str
):
    grudge: Mapping[str, AbstractSet[str]] = CUTS[name]
    cut = {(source, target) for target, sources in grudge.items() for source in sources}
    through = set(hosts.pairs) - cut
    hosts.until_heard(hosts.say(hosts.pairs), hosts.pairs)

    hosts.network.partition(grudge, reset=False)

    word = hosts.say(hosts.pairs)
    hosts.until_heard(word, through)
    time.sleep(SILENCE_S)
    assert hosts.who_hears(word) == through
    hosts.network.heal()
    hosts.until_heard(word, hosts.pairs)


def test_a_new_partition_takes_the_place_of_the_one_before(hosts: Hosts):
    hosts.network.partition(isolate("node-1", NAMES), reset=False)
    hosts.network.partition(isolate("node-2", NAMES), reset=False)

    word = hosts.say(hosts.pairs)

    through = {("node-1", "node-3"), ("node-3", "node-1")}
    hosts.until_heard(word, through)
    time.sleep(SILENCE_S)
    assert hosts.who_hears(word) == through


@pytest.mark.parametrize("cut", ["isolate", "deafen", "silence"])
def test_with_a_reset_both_ends_lose_their_connections_over_the_cut_and_no_others(
    hosts: Hosts, cut: str
):
    over = [pair for pair in hosts.pairs if "node-1" in pair]

    hosts.network.partition(CUTS[cut], reset=True)

    for node, peer in over:
        hosts.until(happened("lost dialed", node, peer))
        hosts.until(happened("lost accepted", node, peer))
    resets = [event for event in hosts.told if event["event"].startswith("lost ")]
    assert {event["error"] for event in resets} <= {
        "ConnectionResetError",
        "ConnectionAbortedError",
    }
    between_others = [("node-2", "node-3"), ("node-3", "node-2")]
    hosts.until_heard(hosts.say(between_others), between_others)
    hosts.network.heal()
    for node, peer in over:
        hosts.told.clear()
        hosts.dial(node, peer)
        hosts.until(happened("accepted", node, peer))
        hosts.until_heard(hosts.say([(node, peer)]), [(node, peer)])


def test_over_a_cut_with_reset_new_connections_fail_at_once(hosts: Hosts):
    hosts.network.partition(isolate("node-1", NAMES), reset=True)
    hosts.until(happened("lost dialed", "node-2", "node-1"))
    hosts.told.clear()

    hosts.dial("node-2", "node-1")

    # A proxy has accepted before it can refuse.
    failed = hosts.until(
        lambda event: event["who"] == "node-2" and event["event"] in ("refused", "lost dialed")
    )
    assert failed["error"] in ("ConnectionRefusedError", "ConnectionResetError")


def _needs(hosts: Hosts, fault: str) -> None:
    if why := hosts.network.missing.get(fault):
        pytest.skip(why)


def test_delay_and_jitter_are_seen_between_nodes_until_heal(hosts: Hosts):
    _needs(hosts, "degrade:delay")
    pairs = [("node-1", "node-2"), ("node-3", "node-1")]
    hosts.network.degrade(Weather(delay_ms=60, jitter_ms=5))

    took_s = [took for _ in range(10) for took in hosts.until_heard(hosts.say(pairs), pairs)]

    assert statistics.median(took_s) >= 0.8 * 0.060
    hosts.network.heal()
    # Whatever the machine does meanwhile, some word is as fast as the wire.
    words = (took for _ in range(200) for took in hosts.until_heard(hosts.say(pairs), pairs))
    assert any(took_s < 0.8 * 0.060 for took_s in words)


def test_a_slow_line_takes_its_time_and_carries_everything(hosts: Hosts):
    _needs(hosts, "degrade:bandwidth")
    pair = [("node-1", "node-2")]
    hosts.network.degrade(Weather(bytes_per_s=100_000))

    [took_s] = hosts.until_heard(hosts.say(pair, size_bytes=150_000), pair)

    # The first packets over an idle line cost nothing yet.
    assert took_s >= 0.8 * (150_000 - 32_000) / 100_000


def test_lost_packets_are_lost_between_nodes(hosts: Hosts):
    _needs(hosts, "degrade:loss")
    hosts.network.degrade(Weather(loss=0.2))

    arrived = hosts.flood("node-1", "node-2", 600, at_least=200)

    assert 200 <= arrived < 560


def test_clients_are_cut_off_one_node_until_heal(hosts: Hosts):
    _needs(hosts, "cut_clients")
    cut, other = hosts.places["node-1"], hosts.places["node-2"]

    hosts.network.cut_clients("node-1")

    with pytest.raises(TimeoutError):
        socket.create_connection((cut.host, cut.ports.peer), timeout=SILENCE_S)
    socket.create_connection((other.host, other.ports.peer), timeout=20).close()
    word = hosts.say(hosts.pairs)
    hosts.until_heard(word, hosts.pairs)
    # The nodes' cuts change, the clients' stay.
    hosts.network.partition({}, reset=False)
    with pytest.raises(TimeoutError):
        socket.create_connection((cut.host, cut.ports.peer), timeout=SILENCE_S)
    hosts.network.heal()
    hosts.network.heal()
    socket.create_connection((cut.host, cut.ports.peer), timeout=20).close()


def test_clients_reach_every_node_whatever_is_cut_and_however_bad_the_weather(hosts: Hosts):
    hosts.network.partition(isolate("node-1", NAMES), reset=True)
    hosts.network.degrade(Weather(delay_ms=5_000, loss=1.0))

    for place in hosts.places.values():
        socket.create_connection((place.host, place.ports.peer), timeout=4).close()


def test_a_node_that_comes_later_has_the_same_weather(hosts: Hosts):
    _needs(hosts, "degrade:delay")
    hosts.network.degrade(Weather(delay_ms=60))

    hosts.add("node-4")

    pairs = [("node-1", "node-4"), ("node-4", "node-1")]
    assert min(hosts.until_heard(hosts.say(pairs), pairs)) >= 0.8 * 0.060
