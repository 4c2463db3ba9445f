"""What is known of a queue whose messages do not move: gathered from its leader, this node's
catalog, the other nodes' alarms and the lists of clients. See `diagnosis`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cluster.machine.catalog import QueueInfo
from cluster.types import TRANSIENT_GROUPS, NodeId
from node.broker.dead_letters import keeps_all
from node.errors import BrokerError
from node.management.consumers import sessions_of
from node.management.context import Call
from node.management.diagnosis import (
    ConsumerState,
    DeadLetterTarget,
    KeyState,
    QueueState,
    Situation,
)
from node.management.queue_state import KIND, refused_by
from node.routing.shards import split_of, whole_of

Json = dict[str, Any]


async def situations_of(call: Call, infos: Sequence[QueueInfo]) -> list[Situation]:
    if not infos:
        return []
    channels = sessions_of(await call.observer.clients("channels"))
    return [await _situation(call, info, channels) for info in infos]


async def _situation(call: Call, info: QueueInfo, channels: Mapping[str, Json]) -> Situation:
    services, catalog = call.services, call.catalog
    leader = services.broker.leader(info)
    members: list[str] = [] if info.node is None else [info.node]
    if info.group < TRANSIENT_GROUPS:
        group = catalog.group(info.group)
        members = [] if group is None else [str(each) for each in group.members]
    up = {services.cluster.node, *services.peer_rpc.others()}
    split = split_of(catalog, info)
    return Situation(
        name=info.name,
        vhost=info.vhost,
        leader=leader,
        members=members,
        down=[each for each in members if NodeId(each) not in up],
        queue=None if leader is None else await _ask(call, leader, info, channels),
        bindings=len(catalog.bindings_to(info.vhost, "queue", info.name)),
        shards=0 if split is None or split.joining else len(split.shards),
        whole=None if (whole := whole_of(catalog, info)) is None else whole.name,
        alarms=_alarms(call),
        vhost_full=services.broker.ingress.full_vhosts.get(info.vhost),
        dead_letters=await _dead_letters(call, info),
    )


async def _ask(
    call: Call, leader: NodeId, info: QueueInfo, channels: Mapping[str, Json]
) -> QueueState | None:
    try:
        found: Json | None = await call.services.peer_rpc.request(leader, KIND, info.queue)
    except BrokerError:
        return None
    if found is None:
        return None
    consumers = [ConsumerState(**each) for each in found.pop("consumers")]
    keys = [KeyState(**each) for each in found.pop("keys", ())]  # none from an older node
    return QueueState(
        **found,
        consumers=[replace(each, who=_named(each.who, channels)) for each in consumers],
        keys=[replace(each, who=each.who and _named(each.who, channels)) for each in keys],
    )


def _named(who: str, channels: Mapping[str, Json]) -> str:
    """For people: the tag, and the connection that it is on."""
    tag, _, session = who.partition("\0")
    channel = channels.get(session)
    if channel is None:
        return f"consumer {tag or '(a get)'}"
    connection = cast("Json", channel.get("connection_details") or {}).get("name")
    return f"consumer {tag or '(a get)'} on {connection or channel.get('name')}"


def _alarms(call: Call) -> list[str]:
    alarms = call.services.alarms
    lacks = {call.services.cluster.node: (alarms.memory, alarms.disk), **alarms.lacks}
    return [
        f"node {node} is low on {' and '.join(words)}"
        for node, (memory, disk) in sorted(lacks.items())
        if (words := [word for word, low in (("memory", memory), ("disk", disk)) if low])
    ]


async def _dead_letters(call: Call, info: QueueInfo) -> DeadLetterTarget | None:
    catalog = call.catalog
    config = catalog.config_for(info)
    exchange = config.dead_letter_exchange
    if exchange is None:
        return None
    keeps = keeps_all(catalog, info, config)
    if catalog.exchange(info.vhost, exchange) is None:
        return DeadLetterTarget(exchange, exists=False, keeps=keeps)
    key = config.dead_letter_routing_key
    if exchange == "":
        # Without a key of its own a letter goes back to where it was published: to this queue.
        named = [key if key is not None else info.name]
        bound = catalog.queue(info.vhost, named[0]) is not None
    elif key is None:
        bindings = catalog.bindings_from(info.vhost, exchange)
        named = [each.destination for each in bindings if each.kind == "queue"]
        bound = bool(bindings)
    else:
        route = call.services.broker.ingress.router.route(info.vhost, exchange, key, dict)
        named = [] if route is None else [each.name for each in route.queues]
        bound = bool(named)
    found = [each for name in named if (each := catalog.queue(info.vhost, name)) is not None]
    facts = await call.observer.queues(found)
    full = [
        each.name
        for each in found
        if (fact := facts.get(each.queue)) is not None
        and refused_by(catalog.config_for(each), fact.ready + fact.delayed, fact.ready_bytes)
    ]
    names = [each.name for each in found]
    return DeadLetterTarget(exchange, queues=names, full=full, bound=bound, keeps=keeps)
