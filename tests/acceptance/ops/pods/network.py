"""The network of the pods: each in a namespace with an address of its own, on one bridge; clients
behind a router; services have addresses that are nobody's, as kube-proxy makes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.acceptance.ops.pods.tools import must

GATEWAY = "10.244.0.1"
PODS = "10.244.0.0/16"
CLIENTS = "clients"
CLIENT_ROUTER, CLIENT = "10.245.0.1", "10.245.0.2"

#: An address and port of a service, to addresses and ports of pods.
Forwards = Mapping[tuple[str, int], Sequence[tuple[str, int]]]


def forward_rules(forwards: Forwards) -> str:
    """The whole table, for one transaction. A service without pods goes nowhere: no route."""
    chain: list[str] = []
    for (address, port), endpoints in sorted(forwards.items()):
        for at, (pod, target) in enumerate(endpoints):
            left = len(endpoints) - at
            draw = f"numgen random mod {left} 0 " if left > 1 else ""
            chain.append(f"ip daddr {address} tcp dport {port} {draw}dnat to {pod}:{target}")
    rules = "".join(f"    {rule}\n" for rule in chain)
    # It must exist to be deleted. A pod that asks itself by the service must hear from elsewhere.
    return (
        "table ip services\ndelete table ip services\ntable ip services {\n"
        f"  chain to {{\n    type nat hook prerouting priority dstnat;\n{rules}  }}\n"
        f"  chain from {{\n    type nat hook postrouting priority srcnat;\n"
        f"    ip saddr {PODS} ip daddr {PODS} ct status dnat masquerade\n  }}\n}}\n"
    )


class Network:
    """In the namespace of this process, which is the machine's only node."""

    def __init__(self) -> None:
        self._numbers = itertools.count(2)

    async def open(self) -> None:
        await _ip(
            "link add name pods type bridge",
            f"address add {GATEWAY}/16 dev pods",
            "link set pods up",
            f"netns add {CLIENTS}",
            f"link add name {CLIENTS} type veth peer name eth0 netns {CLIENTS}",
            f"address add {CLIENT_ROUTER}/24 dev {CLIENTS}",
            f"link set {CLIENTS} up",
        )
        await _ip(
            "link set lo up",
            f"address add {CLIENT}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {CLIENT_ROUTER}",
            namespace=CLIENTS,
        )

    async def add(self, namespace: str) -> str:
        """A new pod's address, which nobody had before."""
        number = next(self._numbers)
        address = f"10.244.{number // 250}.{number % 250 + 1}"
        port = f"pod{number}"
        await _ip(
            f"netns add {namespace}",
            f"link add name {port} type veth peer name eth0 netns {namespace}",
            f"link set {port} master pods up",
        )
        await _ip(
            "link set lo up",
            f"address add {address}/16 dev eth0",
            "link set eth0 up",
            f"route add default via {GATEWAY}",
            namespace=namespace,
        )
        return address

    async def remove(self, namespace: str) -> None:
        await _ip(f"netns delete {namespace}")

    async def forward(self, forwards: Forwards) -> None:
        await must("nft", "-f", "-", text=forward_rules(forwards))


def of_namespace(namespace: str) -> Path:
    return Path("/run/netns") / namespace


async def _ip(*lines: str, namespace: str | None = None) -> None:
    where = ["-n", namespace] if namespace is not None else []
    await must("ip", *where, "-batch", "-", text="".join(f"{line}\n" for line in lines))
