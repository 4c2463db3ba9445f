from __future__ import annotations

import random
from typing import Any

from chaos.simulator.links import NetworkOptions, SimLinks, SimNetwork
from chaos.simulator.loop import Process, World
from cluster.seams import Down
from cluster.types import NodeId

A, B = NodeId("a"), NodeId("b")


class End:
    """A process that writes down what its links tell it."""

    def __init__(
        self, network: SimNetwork, node: NodeId, peer: NodeId, incarnation: int = 1
    ) -> None:
        self.network = network
        self.peer = peer
        self.told: list[tuple[Any, ...]] = []
        self.process = Process(network.world, node)
        self.links: SimLinks = network.open(node, self.process, [peer], incarnation)
        self.process.spawn(
            self.links.start(
                lambda peer, message: self.told.append(("message", *message)),
                lambda peer, incarnation: self.told.append(("up", incarnation)),
                lambda peer, down: self.told.append(("down", down)),
            )
        )

    def send(self, *message: Any) -> bool:
        sent = self.links.send(self.peer, list(message))
        self.links.flush()
        return sent

    def messages(self) -> list[Any]:
        return [told[1] for told in self.told if told[0] == "message"]


def _pair(seed: int = 1, **options: Any) -> tuple[World, SimNetwork, End, End]:
    world = World()
    network = SimNetwork(world, random.Random(seed), NetworkOptions(**options))
    ends = End(network, A, B), End(network, B, A)
    world.run(1)
    return world, network, *ends


def test_messages_arrive_in_order_each_once() -> None:
    world, _, a, b = _pair(latency_ms=5, jitter_ms=20)
    for number in range(200):
        world.kernel.call_later(number / 1e4, a.send, number)
    world.run(3)

    assert b.messages() == list(range(200))


def test_a_reset_tells_both_ends_loses_what_was_in_flight_and_heals_by_itself() -> None:
    world, network, a, b = _pair(latency_ms=50)
    a.send(1)
    network.reset(A, B)
    world.run(3)
    a.send(2)
    world.run(4)

    assert a.told == [("up", 1), ("down", Down.CLOSED), ("up", 1)]
    assert b.told == [("up", 1), ("down", Down.CLOSED), ("up", 1), ("message", 2)]


def test_a_short_silence_only_delays() -> None:
    world, network, a, b = _pair(silence_ms=1_000)
    network.set_cut({(A, B)})
    a.send(1)
    world.run(1.5)
    assert b.messages() == []
    network.set_cut(set())
    world.run(2.5)

    assert b.told == [("up", 1), ("message", 1)]


def test_a_long_silence_is_noticed_by_who_does_not_hear() -> None:
    world, network, _, b = _pair(silence_ms=1_000)
    network.set_cut({(A, B), (B, A)})
    world.run(5)
    assert b.told == [("up", 1), ("down", Down.SILENT)]
    network.set_cut(set())
    world.run(7)

    assert b.told[-1] == ("up", 1)


def test_in_a_one_way_cut_the_end_that_hears_learns_of_the_close() -> None:
    world, network, a, b = _pair(silence_ms=1_000)
    network.set_cut({(A, B)})
    world.run(3)

    assert b.told == [("up", 1), ("down", Down.SILENT)]
    assert a.told == [("up", 1), ("down", Down.CLOSED)]


def test_a_killed_process_is_gone_at_once_and_comes_back_with_a_new_incarnation() -> None:
    world, network, a, b = _pair()
    a.process.kill()
    world.run(1.1)
    assert b.told == [("up", 1), ("down", Down.CLOSED)]
    End(network, A, B, incarnation=2)
    world.run(3)

    assert b.told[-1] == ("up", 2)


def test_a_lost_machine_is_silent() -> None:
    world, network, a, b = _pair(silence_ms=1_000)
    network.power_off(A)
    a.process.kill()
    world.run(1.5)
    assert b.told == [("up", 1)]
    world.run(4)

    assert b.told == [("up", 1), ("down", Down.SILENT)]


def test_a_paused_process_gets_later_what_was_sent_meanwhile() -> None:
    world, _, a, b = _pair(silence_ms=10_000)
    b.process.pause()
    a.send(1)
    world.run(3)
    assert b.messages() == []
    b.process.resume()
    world.run(3.1)

    assert b.messages() == [1]


def test_a_full_buffer_drops_and_says_so() -> None:
    world, network, a, b = _pair(bytes_max=1_000)
    network.set_cut({(A, B)})
    sent = [a.send(bytes(400)) for _ in range(4)]
    network.set_cut(set())
    world.run(2)

    assert sent == [True, True, False, False]
    assert len(b.messages()) == 2


def test_nothing_can_be_sent_before_the_connection_is_up() -> None:
    world = World()
    network = SimNetwork(world, random.Random(1), NetworkOptions())
    end = End(network, A, B)
    world.kernel.call_later(0.5, lambda: None)
    world.run(0.5)

    assert end.send(1) is False
