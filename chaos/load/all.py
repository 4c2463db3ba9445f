"""All workloads by name: w1-native, w1-amqp and so on, streams-nats, and those about links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from chaos.load.churn import Churn
from chaos.load.dead_lettering import DeadLettering
from chaos.load.driver import PROTOCOLS, Protocols
from chaos.load.expiry import Expiry
from chaos.load.lengths import Lengths
from chaos.load.links import FEDERATION, SHOVEL, Federation, Shovels
from chaos.load.numbered_publishers import NumberedPublishers
from chaos.load.publish_consume import PublishConsume
from chaos.load.publisher_order import PublisherOrder
from chaos.load.single_active import SingleActive
from chaos.load.streams import NAME as STREAMS
from chaos.load.streams import Streams
from chaos.load.transactions import Transactions
from chaos.load.workload import Scene, Workload

Maker = Callable[[Scene, Protocols], Workload]

_BOTH: Mapping[str, Maker] = {
    "w1": PublishConsume,
    "w2": DeadLettering,
    "w3": SingleActive,
    "w4": PublisherOrder,
    "w5": Churn,
    "w6": Expiry,
    "w8": Lengths,
}
#: Each has something that the other protocol has no word for.
_ONE: Mapping[str, tuple[Maker, Protocols]] = {
    "w7": (Transactions, "amqp"),
    "w9": (NumberedPublishers, "native"),
}
#: Links connect by sockets of their own, so only real nodes have them.
LINKS: Mapping[str, Callable[[Scene], Workload]] = {SHOVEL: Shovels, FEDERATION: Federation}


def _all() -> dict[str, Callable[[Scene], Workload]]:
    found: dict[str, Callable[[Scene], Workload]] = {}
    for protocol in PROTOCOLS:
        found |= {f"{name}-{protocol}": _bound(make, protocol) for name, make in _BOTH.items()}
    found |= {f"{name}-{only}": _bound(make, only) for name, (make, only) in _ONE.items()}
    return {**dict(sorted(found.items())), STREAMS: Streams, **LINKS}


def _bound(make: Maker, protocol: Protocols) -> Callable[[Scene], Workload]:
    return lambda scene: make(scene, protocol)


WORKLOADS = _all()


def make_workloads(names: Sequence[str], scene: Scene, *, true_clocks: bool) -> list[Workload]:
    """`true_clocks`: no node's clock is set wrong, so that times may be judged."""
    timed: dict[str, Callable[[Scene], Workload]] = {}
    if not true_clocks:
        for protocol in PROTOCOLS:
            late = partial(Expiry, tolerance_ms=None)
            timed[f"w6-{protocol}"] = _bound(late, protocol)
        timed[STREAMS] = partial(Streams, true_clocks=False)
    return [{**WORKLOADS, **timed}[name](scene) for name in names]
