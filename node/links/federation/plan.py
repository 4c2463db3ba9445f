"""What a federated exchange asks of its upstream: names, bindings, and what it adds to messages.

Pure. All of it is as RabbitMQ's plugin has it, so that either may be at the other end of a link. On
the upstream a queue collects for the downstream; in front of it is an internal exchange, bound to
the upstream exchange as the downstream exchange's destinations are bound to that: see
`internal_exchanges.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import cbor2

from cluster.machine.catalog_routing import DOWNSTREAM_NAME, DOWNSTREAM_VHOST, MAX_HOPS
from cluster.machine.catalog_tables import BindingInfo
from node.links.federation.upstreams import Upstream
from node.routing.federation import CLUSTER, RECEIVED_FROM, VHOST, visited

BOUND_FROM = "x-bound-from"
HOPS = "hops"
#: What marks queues and exchanges that no policy federates.
PURPOSE = "x-internal-purpose"
OURS: Mapping[str, Any] = {PURPOSE: "federation"}
SUFFIXES = ("A", "B")
#: What the client library takes.
NAME_BYTES_MAX = 127


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link: an exchange or a queue of a cluster."""

    cluster: str | None  # None: the upstream did not say
    vhost: str
    name: str


class Wanted(NamedTuple):
    """A binding on the upstream exchange."""

    key: str
    arguments: Mapping[str, Any]


def queue_name(upstream: End, downstream: End) -> str:
    """ValueError: it is too long."""
    place = downstream.cluster or ""
    if downstream.vhost != upstream.vhost:
        place += f":{downstream.vhost}:{downstream.name}"
    elif downstream.name != upstream.name:
        place += f":{downstream.name}"
    name = f"federation: {upstream.name} -> {place}"
    if len(name.encode()) + len(" A") > NAME_BYTES_MAX:
        raise ValueError(f"the name of the queue upstream is too long: {name[:80]}...")
    return name


def exchange_name(queue: str, suffix: str) -> str:
    return f"{queue} {suffix}"


def queue_arguments(upstream: Upstream) -> dict[str, Any]:
    given = {
        "x-expires": upstream.expires_ms,
        "x-message-ttl": upstream.message_ttl_ms,
        "x-queue-type": upstream.queue_type,
    }
    return {name: value for name, value in given.items() if value is not None} | dict(OURS)


def exchange_arguments(upstream: Upstream, downstream: End) -> dict[str, Any]:
    return {
        MAX_HOPS: upstream.hops_max,
        DOWNSTREAM_NAME: downstream.cluster,
        DOWNSTREAM_VHOST: downstream.vhost,
        **OURS,
    }


# --- bindings -------------------------------------------------------------------------------------


def wanted_bindings(
    bindings: Iterable[BindingInfo], upstream: End, downstream: End, *, hops_max: int, suffix: str
) -> dict[bytes, Wanted]:
    """For the bindings whose source is the downstream exchange: each different one once."""
    found: dict[bytes, Wanted] = {}
    for binding in bindings:
        arguments = _passed_on(binding.arguments, upstream, downstream, hops_max, suffix)
        if arguments is not None:
            identity = cbor2.dumps([binding.key, arguments], canonical=True)
            found[identity] = Wanted(binding.key, arguments)
    return found


def _passed_on(
    arguments: Mapping[str, Any], upstream: End, downstream: End, hops_max: int, suffix: str
) -> dict[str, Any] | None:
    """None: it came from too far, or from there. What another federated exchange wants from this
    one is in its arguments.
    """
    hops = hops_max
    before = arguments.get(BOUND_FROM)
    tables = cast("list[Any]", before) if isinstance(before, list) else []
    if tables:
        left = cast("dict[str, Any]", tables[0]).get(HOPS) if isinstance(tables[0], dict) else None
        hops = min(hops_max, left - 1) if type(left) is int else 0
        if visited(tables, cluster=upstream.cluster, vhost=upstream.vhost):
            hops = 0
    if hops < 1:
        return None
    here = {
        CLUSTER: downstream.cluster,
        VHOST: downstream.vhost,
        "exchange": f"{downstream.vhost}:{downstream.name} {suffix}",
        HOPS: hops,
    }
    return {**arguments, BOUND_FROM: [here, *tables]}


class Changes(NamedTuple):
    bind: Sequence[Wanted]
    unbind: Sequence[Wanted]


def changes(present: Mapping[bytes, Wanted], wanted: Mapping[bytes, Wanted]) -> Changes:
    """New ones first: a key that only changes its arguments is never unbound in between."""
    return Changes(
        [each for identity, each in wanted.items() if identity not in present],
        [each for identity, each in present.items() if identity not in wanted],
    )


# --- headers --------------------------------------------------------------------------------------


def received(
    headers: Mapping[str, Any], uri: str, upstream: End, *, redelivered: bool
) -> dict[str, Any]:
    """Of a message that came through an exchange: the newest hop first."""
    hop: dict[str, Any] = {
        "uri": uri,
        "exchange": upstream.name,
        "redelivered": redelivered,
    }
    if upstream.cluster is not None:
        hop[CLUSTER] = upstream.cluster
    hop[VHOST] = upstream.vhost
    return {**headers, RECEIVED_FROM: [hop, *_hops(headers)]}


def moved(
    headers: Mapping[str, Any], uri: str, upstream: End, *, redelivered: bool
) -> dict[str, Any]:
    """Of a message that came from a queue. It may come any number of times: each queue is in the
    header once, with how often.
    """
    hops = _hops(headers)
    visits = 0
    rest: list[Any] = []
    for hop in hops:
        if isinstance(hop, dict):
            known = cast("dict[str, Any]", hop)
            if known.get("uri") == uri and known.get("queue") == upstream.name:
                count = known.get("visit-count")
                visits += count if type(count) is int else 0
                continue
        rest.append(hop)
    newest = {
        "uri": uri,
        "queue": upstream.name,
        "redelivered": redelivered,
        "visit-count": visits + 1,
    }
    return {**headers, RECEIVED_FROM: [newest, *rest]}


def _hops(headers: Mapping[str, Any]) -> list[Any]:
    hops = headers.get(RECEIVED_FROM)
    return cast("list[Any]", hops) if isinstance(hops, list) else []
