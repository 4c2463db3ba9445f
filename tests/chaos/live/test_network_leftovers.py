"""Nothing stays behind of a network, however its run ended; and what a lesser machine gets."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from chaos.faults import Weather
from chaos.live import namespaces
from chaos.live.namespaces import CommandFailed, Namespaces, sweep
from chaos.live.networks import NoSuchNetwork, choose, why_no_namespaces
from chaos.live.packets import BACKLOG_S_MAX, Lane
from chaos.live.proxy import LoopbackProxy
from tests.chaos.live.network_hosts import SILENCE_S, Hosts

pytestmark = pytest.mark.live

#: A run that has hosts, and something on one of them, and ends as its argument says.
RUN = """
import os, signal, subprocess, sys
from chaos.live.namespaces import Namespaces
network = Namespaces()
place = network.add("node-1")
left = subprocess.Popen([*place.launch, "sleep", "600"], stdout=subprocess.DEVNULL)
print(left.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit("it gave up")
"""


@pytest.fixture
def _root() -> None:
    if why := why_no_namespaces():
        pytest.skip(f"no network namespaces: {why}")


def _ours(pid: int) -> str:
    """Namespaces and links of that process."""
    lines = [
        line
        for command in (["ip", "netns", "list"], ["ip", "-brief", "link"])
        for line in subprocess.check_output(command, text=True).splitlines()
    ]
    return "\n".join(line for line in lines if line.startswith(f"qc{pid}-"))


def _run_that_is(how: str) -> tuple[int, int]:
    """Its own process id, and that of the process that it left on a host."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None
        left = int(run.stdout.readline())
    return run.pid, left


def _until_gone(pid: int) -> None:
    deadline = time.monotonic() + 20
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(pid, 0)
            time.sleep(0.02)
        os.kill(pid, signal.SIGKILL)
        pytest.fail(f"process {pid} is still there")


@pytest.mark.usefixtures("_root")
def test_a_closed_network_leaves_nothing_and_closes_again():
    network = Namespaces()
    network.add("node-1")
    network.degrade(Weather(delay_ms=10))
    assert _ours(os.getpid())

    network.close()
    network.close()

    assert not _ours(os.getpid())


@pytest.mark.usefixtures("_root")
def test_a_run_that_gives_up_leaves_nothing():
    run, left = _run_that_is("failed")

    assert not _ours(run)
    _until_gone(left)


@pytest.mark.usefixtures("_root")
def test_what_a_killed_run_left_is_taken_away_by_the_next_and_a_living_one_keeps_its_own():
    run, left = _run_that_is("killed")
    assert _ours(run)
    living = Namespaces()
    try:
        kept = _ours(os.getpid())
        assert not _ours(run)
        _until_gone(left)

        sweep()

        assert kept
        assert _ours(os.getpid()) == kept
    finally:
        living.close()


@pytest.mark.usefixtures("_root")
def test_two_networks_at_once_are_strangers():
    one, other = Namespaces(), Namespaces()
    try:
        a, b = one.add("node-1"), other.add("node-1")
        assert a.host != b.host

        one.cut_clients("node-1")

        with pytest.raises(TimeoutError):
            socket.create_connection((a.host, a.ports.http), timeout=SILENCE_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((b.host, b.ports.http), timeout=20)
    finally:
        one.close()
        other.close()


@pytest.mark.usefixtures("_root")
def test_where_packets_cannot_be_queued_delay_is_missing_and_loss_is_not(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: object) -> None:
        raise CommandFailed("no such module")

    monkeypatch.setattr(namespaces._Helper, "ask", refuse)
    network = Namespaces()
    hosts = None
    try:
        assert network.missing.keys() == {"degrade:delay", "degrade:bandwidth"}
        hosts = Hosts(network, ["node-1", "node-2"])
        network.degrade(Weather(delay_ms=1_000, loss=0.2))

        assert 200 <= hosts.flood("node-1", "node-2", 600, at_least=200) < 560
        network.heal()
    finally:
        if hosts is not None:
            hosts.close()
        network.close()


def test_without_root_the_proxy_is_chosen_and_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    network = choose()

    assert isinstance(network, LoopbackProxy)
    assert "it needs root" in network.kind
    network.close()
    with pytest.raises(NoSuchNetwork, match="it needs root"):
        choose("namespaces")


def test_a_lane_in_fair_weather_holds_nothing_up():
    assert Lane().leaves_at(Weather(), 1_500, 10.0, random.Random(1)) == 10.0


def test_a_slow_lane_sends_one_packet_after_the_other_and_loses_what_it_cannot_hold():
    lane, weather, chance = Lane(), Weather(bytes_per_s=1_000), random.Random(1)

    leaves = [lane.leaves_at(weather, 400, 0.0, chance) for _ in range(5)]

    assert leaves == [0.4, 0.8, pytest.approx(1.2), None, None]
    assert lane.leaves_at(weather, 400, BACKLOG_S_MAX, chance) == pytest.approx(1.6)


def test_a_lane_delays_around_what_was_asked_and_loses_the_share_that_was_asked():
    lane, chance = Lane(), random.Random(1)
    weather = Weather(delay_ms=50, jitter_ms=5, loss=0.1)

    leaves = [lane.leaves_at(weather, 100, 0.0, chance) for _ in range(2_000)]

    through = [at for at in leaves if at is not None]
    assert 1_700 < len(through) < 1_900
    assert sum(through) / len(through) == pytest.approx(0.050, rel=0.05)
