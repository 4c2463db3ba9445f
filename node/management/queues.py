"""Queues: as lists and one by one; declared, deleted, purged."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, cast

from cluster.machine.arguments import QUEUE_TYPE, STREAM, STREAM_CONFIG
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.commands import DeclareQueue
from cluster.machine.replies import Declared
from cluster.types import TRANSIENT_GROUPS, NodeId, QueueId
from node.broker.broker import check_placed, reserved, transient_by, with_type
from node.errors import reply_of
from node.management import shapes
from node.management.consumers import consumers_of, sessions_of
from node.management.context import DONE, Call, Endpoint, Response, created
from node.management.diagnosis import SHARED, diagnose
from node.management.errors import bad_request, not_found
from node.management.facts import COUNTED, QueueFacts
from node.management.paging import PAGE_SIZE_MAX, ListQuery, cut_columns, listed
from node.management.situation import situations_of
from node.management.values import Body
from node.protocols.amqp import stream_arguments
from node.routing.shards import split_of

Json = dict[str, Any]

#: Shown between two breaths of the loop.
AT_ONCE = 100
#: Queues with messages in an answer, above which `head_message_timestamp` is not told: the messages
#: have to be read.
HEADS_MAX = PAGE_SIZE_MAX


def _waited_ms(facts: QueueFacts, now_ms: int) -> int:
    """How old its oldest ready message is."""
    return 0 if facts.oldest_ready_ms is None else max(0, now_ms - facts.oldest_ready_ms)


def _rate_of(*names: str) -> Callable[[QueueFacts, int], float | None]:
    places = [COUNTED.index(name) for name in names]

    def rate(facts: QueueFacts, _: int) -> float | None:
        # As `message_stats`, which a queue that nothing happened to does not have.
        if not any(facts.counts):
            return None
        return round(sum(facts.rates[place] for place in places), 2)

    return rate


#: What lists of many queues are sorted by, without all else that is shown of each. The web UI sorts
#: by nothing else.
_QUICK: Mapping[tuple[str, ...], Callable[[QueueFacts, int], float | None]] = {
    ("messages",): lambda facts, _: facts.messages,
    ("messages_ready",): lambda facts, _: facts.ready,
    ("messages_unacknowledged",): lambda facts, _: facts.unsettled,
    ("consumers",): lambda facts, _: len(facts.consumers),
    ("oldest_ready_age",): _waited_ms,
    ("message_stats", "publish_details", "rate"): _rate_of("publish"),
    ("message_stats", "deliver_get_details", "rate"): _rate_of("deliver", "get", "get_no_ack"),
}
_LEADER = ("leader",)


async def list_queues(call: Call) -> Any:
    infos = [info for vhost in call.vhosts() for info in call.catalog.queues(vhost)]
    wanted = call.observer.asked(call.query)

    async def shown(some: Sequence[QueueInfo]) -> list[Json]:
        facts = await call.observer.queues(some)
        items: list[Json] = []
        for start in range(0, len(some), AT_ONCE):
            await asyncio.sleep(0)
            part = some[start : start + AT_ONCE]
            items += [queue(call, info, facts.get(info.queue)) for info in part]
        if wanted is not None:
            rows = [(i, facts.get(i.queue), item) for i, item in zip(some, items, strict=True)]
            await call.observer.add_history(wanted, rows)
        await _add_heads(call, some, facts, items)
        return items

    async def values(some: Sequence[QueueInfo]) -> list[Any]:
        if call.list_query.sort == _LEADER:
            return [_leader(call, info) for info in some]
        facts, now_ms = await call.observer.queues(some), call.services.cluster.now_ms()
        value_of, each = _QUICK[call.list_query.sort], (facts.get(info.queue) for info in some)
        return [None if fact is None else value_of(fact, now_ms) for fact in each]

    is_quick = call.list_query.sort in (*_QUICK, _LEADER)
    return await listed(
        call.list_query, infos, lambda info: info.name, shown, values if is_quick else None
    )


def _leader(call: Call, info: QueueInfo) -> NodeId | None:
    transient = info.group >= TRANSIENT_GROUPS
    return None if transient else call.services.cluster.leader_of(info.group)


def found(call: Call) -> QueueInfo:
    info = call.catalog.queue(call.vhost, call.names["queue"])
    if info is None:
        raise not_found()
    return info


def unlocked(call: Call) -> QueueInfo:
    """To be changed or emptied: not one that belongs to a connection."""
    info = found(call)
    check_unlocked(info)
    return info


def check_unlocked(info: QueueInfo) -> None:
    if info.exclusive:
        raise bad_request(
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue"
            f" '{info.name}' in vhost '{info.vhost}'"
        )


async def one_queue(call: Call) -> Json:
    info = found(call)
    facts = (await call.observer.queues([info])).get(info.queue)
    shown = queue(call, info, facts)
    wanted = call.observer.asked(call.query)
    if wanted is not None:
        await call.observer.add_history(wanted, [(info, facts, shown)])
    details: list[Json] = []
    if facts is not None and facts.consumers:
        details = consumers_of(info, facts, sessions_of(await call.observer.clients("channels")))
    await _add_heads(call, [info], {} if facts is None else {info.queue: facts}, [shown])
    if info.exclusive:
        shown["owner_pid_details"] = await _owner(call, info)
    return cut_columns(
        call.list_query, {"consumer_details": details, "deliveries": [], "incoming": [], **shown}
    )


async def _add_heads(
    call: Call,
    infos: Sequence[QueueInfo],
    facts: Mapping[QueueId, QueueFacts],
    items: Sequence[Json],
) -> None:
    """To what is shown of these queues."""
    if not _asks_for(call.list_query, "head_message_timestamp"):
        return
    filled = [i for i in infos if i.queue in facts and facts[i.queue].ready]
    if not 0 < len(filled) <= HEADS_MAX:
        return
    found = await call.observer.head_timestamps(filled)
    for info, item in zip(infos, items, strict=True):
        if info.queue in found:
            item["head_message_timestamp"] = found[info.queue]


def _asks_for(query: ListQuery, name: str) -> bool:
    return not query.columns or (name,) in (*query.columns, query.sort)


async def _owner(call: Call, info: QueueInfo) -> Json:
    """The connection that an exclusive queue belongs to."""
    for connection in await call.observer.clients("connections"):
        if connection.get("id") == info.owner:
            names = ("name", "peer_host", "peer_port")
            return {name: connection.get(name) for name in names}
    return {"name": info.owner}


def queue(call: Call, info: QueueInfo, facts: QueueFacts | None) -> Json:
    """`facts` None: nobody who has the queue could be asked."""
    cluster, catalog = call.services.cluster, call.catalog
    policy = catalog.policy_for(info.vhost, info.name, "queues")
    operator = catalog.policy_for(info.vhost, info.name, "queues", operator=True)
    leader = cluster.leader_of(info.group)
    transient = info.group >= TRANSIENT_GROUPS
    shown: Json = {
        "name": info.name,
        "vhost": info.vhost,
        "type": STREAM if info.stream is not None else "classic" if transient else "quorum",
        "durable": info.durable,
        "auto_delete": info.auto_delete,
        "exclusive": info.exclusive,
        # As declared: tools compare it. What a stream is besides, `streams` shows.
        "arguments": {k: v for k, v in info.arguments.items() if k != STREAM_CONFIG},
        "node": leader or info.node,
        "state": "running" if facts is not None else "down",
        "policy": None if policy is None else policy[0],
        "operator_policy": None if operator is None else operator[0],
        "effective_policy_definition": _effective(policy, operator),
    }
    if not transient:
        group = catalog.group(info.group)
        members = [] if group is None else list(group.members)
        up = {node for node, state in cluster.peers.states.items() if state.up}
        shown |= {
            "leader": leader,
            "members": members,
            "online": [node for node in members if NodeId(node) in up],
        }
    shown["oldest_ready_age"] = 0 if facts is None else _waited_ms(facts, cluster.now_ms())
    split = split_of(catalog, info)
    if split is not None:
        shown["shards"] = list(split.shards)
    slo_ms = catalog.config_for(info).slo_oldest_age_ms
    if slo_ms is not None:
        shown["slo_oldest_age"] = slo_ms
    return shown if facts is None else shown | _counted(facts)


def _effective(*policies: tuple[str, Mapping[str, Any]] | None) -> Json:
    """Of two numbers, which are limits, the lower counts."""
    merged: Json = {}
    for policy in policies:
        for key, value in cast(
            "Mapping[str, Any]", {} if policy is None else policy[1]["definition"]
        ).items():
            known = merged.get(key)
            merged[key] = min(known, value) if type(known) is int and type(value) is int else value
    return merged


def _counted(facts: QueueFacts) -> Json:
    active = next((each.tag for each in facts.consumers if each.active), None)
    tag = active if facts.is_single_active else None
    shown: Json = {
        **shapes.totals(facts.messages, facts.ready, facts.unsettled, facts.messages_rates),
        "messages_persistent": facts.messages,
        "messages_ram": 0,
        "messages_dlx": facts.dead_letters,
        "messages_delayed": facts.delayed,
        "message_bytes": facts.bytes,
        "message_bytes_persistent": facts.bytes,
        "message_bytes_ready": facts.ready_bytes,
        "message_bytes_unacknowledged": max(0, facts.bytes - facts.ready_bytes),
        "message_bytes_ram": 0,
        "message_bytes_dlx": 0,
        "consumers": len(facts.consumers),
        "consumer_capacity": facts.capacity,
        "consumer_utilisation": facts.capacity,
        "single_active_consumer_tag": tag,
        "single_active_consumer_ctag": tag,
        "exclusive_consumer_tag": next((c.tag for c in facts.consumers if c.exclusive), None),
        "head_message_timestamp": None,
    }
    if any(facts.counts):
        shown["message_stats"] = shapes.stats(facts.counts, facts.rates)
    if facts.used_ms and not any(facts.rates[COUNTED.index(n)] for n in ("publish", "deliver")):
        used = dt.datetime.fromtimestamp(facts.used_ms / 1000, dt.UTC)
        shown["idle_since"] = used.isoformat(timespec="milliseconds")
    return shown


# --- changes --------------------------------------------------------------------------------------


async def declare(call: Call) -> Response:
    name = call.names["queue"]
    call.access.check("configure", "queue", name)
    if call.catalog.queue(call.vhost, name) is None:
        call.access.check_dead_letters(name, call.body.mapping("arguments", {}))
    return created(await declare_queue(call, call.vhost, name, call.body))


async def declare_queue(call: Call, vhost: str, name: str, body: Body) -> bool:
    """Whether it is new."""
    step = queue_step(call.catalog, call.services.cluster.node, vhost, name, body)
    check_placed(call.catalog.queue(vhost, name), vhost, name, step.arguments)
    reply = reply_of(await call.services.cluster.names.declare(step))
    return isinstance(reply, Declared) and reply.created


def queue_step(
    catalog: CatalogMachine, node: NodeId, vhost: str, name: str, body: Body
) -> DeclareQueue:
    """What is not durable, or goes by itself, lives on this node alone."""
    why = reserved(name)
    if why is not None and catalog.queue(vhost, name) is None:
        raise bad_request(why)
    arguments = body.mapping("arguments", {})
    if body.values.get("type") == STREAM:  # as exports say it, beside the arguments
        arguments = {QUEUE_TYPE: STREAM, **arguments}
    durable = body.boolean("durable", False)
    auto_delete = body.boolean("auto_delete", False)
    transient = transient_by(
        durable=durable, exclusive=False, auto_delete=auto_delete, named=bool(name)
    )
    arguments = with_type(catalog, vhost, name, arguments, transient=transient)
    if arguments[QUEUE_TYPE] == STREAM and STREAM_CONFIG in arguments:
        arguments = stream_arguments.as_exported(catalog, vhost, name, arguments)
    elif arguments[QUEUE_TYPE] == STREAM:
        arguments = stream_arguments.as_declared(catalog, vhost, name, arguments)
    return DeclareQueue(
        vhost,
        name,
        arguments,
        durable=durable,
        auto_delete=auto_delete,
        node=None if transient is None else node,
    )


async def delete(call: Call) -> Response:
    info = unlocked(call)
    call.access.check("configure", "queue", info.name)
    await call.services.broker.delete(
        info.vhost, info.name, if_unused=call.flag("if-unused"), if_empty=call.flag("if-empty")
    )
    return DONE


async def purge(call: Call) -> Response:
    info = unlocked(call)
    call.access.check("read", "queue", info.name)
    await call.services.broker.purge(info)
    return DONE


async def why(call: Call) -> Json:
    """Why its messages do not move."""
    info = found(call)
    if info.stream is not None:
        raise bad_request(f"{info.name} is a stream: its cursors say how far they are")
    situation, *of_shards = await situations_of(call, call.services.broker.parts(info))
    findings = [each._asdict() for each in diagnose(situation)]
    for of_shard in of_shards:
        findings += [
            {**each._asdict(), "shard": of_shard.name}
            for each in diagnose(of_shard)
            if each.code not in SHARED
        ]
    return {
        "name": info.name,
        "vhost": info.vhost,
        "findings": findings,
        "state": None if situation.queue is None else asdict(situation.queue),
    }


async def pause(call: Call) -> Response:
    return await _pause(call, paused=True)


async def resume(call: Call) -> Response:
    return await _pause(call, paused=False)


async def _pause(call: Call, *, paused: bool) -> Response:
    info = unlocked(call)
    call.access.check("configure", "queue", info.name)
    await call.services.broker.pause(info, paused=paused)
    return DONE


# --- replicas -------------------------------------------------------------------------------------


async def replicas(call: Call) -> list[Json]:
    """Of a replicated queue: how far each copy is."""
    info = found(call)
    if info.group >= TRANSIENT_GROUPS:
        raise bad_request("not a quorum queue")
    statuses = await call.observer.group_statuses(info.group)
    return [
        {
            "Node Name": node,
            "Raft State": status["role"],
            "Membership": "voter",
            "Last Log Index": status["last"],
            "Last Written": status["last"],
            "Last Applied": status["applied"],
            "Commit Index": status["commit"],
            "Snapshot Index": status["base"],
            "Term": status["term"],
            "Machine Version": call.services.cluster.catalog_machine.version,
        }
        for node, status in sorted(statuses.items())
    ]


async def rebalance(call: Call) -> Response:
    """Leaders are spread at all times, by a rule: there is nothing left to do."""
    return DONE


_ONE = "queues/{vhost}/{queue}"

ROUTES = (
    Endpoint("GET", "queues", list_queues),
    Endpoint("GET", "queues/detailed", list_queues),
    Endpoint("GET", "queues/{vhost}", list_queues),
    Endpoint("GET", _ONE, one_queue),
    Endpoint("PUT", _ONE, declare),
    Endpoint("DELETE", _ONE, delete),
    Endpoint("DELETE", f"{_ONE}/contents", purge),
    Endpoint("GET", f"{_ONE}/why", why),
    Endpoint("PUT", f"{_ONE}/pause", pause),
    Endpoint("DELETE", f"{_ONE}/pause", resume),
    Endpoint("GET", "queues/quorum/{vhost}/{queue}/status", replicas, "monitoring"),
    Endpoint("POST", "rebalance/queues", rebalance, "administrator"),
)
