"""Which network a live cluster gets: the truest that this machine allows."""

from __future__ import annotations

import os
import shutil
import socket

from chaos.live.namespaces import CommandFailed, Namespaces
from chaos.live.proxy import LoopbackProxy
from chaos.live.seams import Network, Place
from cluster.types import NodeId

TOOLS = ("ip", "nft", "iptables-restore", "ss")  # `tools.PACKAGES` says where they are from
#: Long enough for an answer from a port of this machine where nobody listens.
ANSWER_S_MAX = 2.0
SILENCE_S = 0.1


class NoSuchNetwork(Exception):
    """It was asked for by name, and this machine does not allow it."""


def choose(prefer: str | None = None) -> Network:
    """Namespaces, else the proxy, whose `kind` says why; or by name. Raises NoSuchNetwork."""
    if prefer not in (None, "namespaces", "proxy"):
        raise NoSuchNetwork(f"a network is namespaces or proxy, not {prefer!r}")
    if prefer == "proxy":
        return LoopbackProxy()
    why = why_no_namespaces()
    if why is None:
        return Namespaces()
    if prefer == "namespaces":
        raise NoSuchNetwork(f"no network namespaces: {why}")
    return LoopbackProxy(because=f"no network namespaces: {why}")


def why_no_namespaces() -> str | None:
    """Tried for real: a host is made, reached, cut off, and reached again."""
    if os.geteuid():
        return "it needs root"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed: {', '.join(missing)}"
    try:
        network = Namespaces()
    except CommandFailed as error:
        return str(error)
    try:
        node = NodeId("probe")
        place = network.add(node)
        if not _answers(place, ANSWER_S_MAX):
            return "a host is not reached"
        network.cut_clients(node)
        if _answers(place, SILENCE_S):
            return "packets are not dropped"
        network.heal()
        if not _answers(place, ANSWER_S_MAX):
            return "a host is not reached again"
    except CommandFailed as error:
        return str(error)
    finally:
        network.close()
    return None


def _answers(place: Place, timeout_s: float) -> bool:
    """Nobody listens there, so that its answer is a refusal."""
    try:
        socket.create_connection((place.host, place.ports.http), timeout=timeout_s).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return True
