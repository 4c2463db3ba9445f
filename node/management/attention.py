"""What needs attention: what is wrong with the cluster, or soon will be, and what mends it.

`examine` is a pure function of what was seen (`Seen`): each finding has a next step and says which
page shows more. `quorate doctor` and the first page of the web UI show the same findings.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Final, Literal, NamedTuple

from cluster.machine.catalog import QueueInfo
from cluster.types import CATALOG_GROUP, NodeId
from node.management import diagnosis, federation, groups, nodes, shovels, upgrade
from node.management.context import Call, Endpoint
from node.management.situation import situations_of

Json = dict[str, Any]
Level = Literal["problem", "warning"]

#: Of a limit: from here on it is near.
NEAR: Final = 0.8
#: A copy that is so many entries behind takes long to be of use.
BEHIND_ENTRIES: Final = 10_000
#: Messages that have waited for less are on their way.
WAITED_MS: Final = 10_000
#: Queues whose messages wait are asked why, those with the most first; copies of groups are asked
#: how they are: no more of them than this.
QUEUES_ASKED: Final = 20
GROUPS_ASKED: Final = 100
#: Certificates that end sooner than this are named.
CERTIFICATE_DAYS: Final = 30
NAMED: Final = 3


class Finding(NamedTuple):
    level: Level
    what: str
    next: str
    about: Sequence[str]  # the page of the web UI that shows more: ("queues", VHOST, NAME)


class QueueSeen(NamedTuple):
    vhost: str
    name: str
    oldest_ms: int  # its oldest message has waited for so long
    slo_ms: int | None  # and shall wait for at most so long
    findings: Sequence[diagnosis.Finding] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """Rows are those of the API; nothing of what the user may not see."""

    nodes: Sequence[Json] = ()
    groups: Sequence[Json] = ()
    copies: Mapping[str, Mapping[NodeId, Json]] = field(
        default_factory=dict[str, dict[NodeId, Json]]
    )
    queues: Sequence[QueueSeen] = ()
    versions: Json | None = None
    shovels: Sequence[Json] = ()
    federation: Sequence[Json] = ()
    certificates: Mapping[NodeId, Sequence[Json]] = field(default_factory=dict[NodeId, list[Json]])


async def attention(call: Call) -> Json:
    """Problems first: what is wrong now. Warnings are what may become wrong."""
    infos = [
        info
        for vhost in call.vhosts()
        for info in call.catalog.queues(vhost)
        if info.stream is None
    ]
    seen = await _look(call, infos)
    findings = sorted(examine(seen), key=lambda each: each.level != "problem")
    return {
        "nodes": len(seen.nodes),
        "groups": len(seen.groups),
        "queues": len(infos),
        "findings": [each._asdict() for each in findings],
    }


async def _look(call: Call, infos: Sequence[QueueInfo]) -> Seen:
    queues = await _look_at_queues(call, infos)
    if not call.has("monitoring"):
        return Seen(queues=queues)
    named = [("catalog", CATALOG_GROUP), *((g.name, g.id) for g in call.catalog.groups())]
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(days=CERTIFICATE_DAYS)
    return Seen(
        nodes=await nodes.rows(call),
        groups=await groups.rows(call),
        copies={
            name: await call.observer.group_statuses(group) for name, group in named[:GROUPS_ASKED]
        },
        queues=queues,
        versions=upgrade.versions(call.catalog),
        shovels=await shovels.shovels(call),
        federation=[row for _, row in await federation.rows(call)],
        certificates=await call.observer.certificates(ends),
    )


async def _look_at_queues(call: Call, infos: Sequence[QueueInfo]) -> list[QueueSeen]:
    facts, now_ms = await call.observer.queues(infos), call.services.cluster.now_ms()

    def waited_ms(info: QueueInfo) -> int:
        oldest_ms = facts[info.queue].oldest_ready_ms
        return 0 if oldest_ms is None else max(0, now_ms - oldest_ms)

    def ready(info: QueueInfo) -> int:
        return facts[info.queue].ready

    waiting = [info for info in infos if info.queue in facts and waited_ms(info) > WAITED_MS]
    waiting.sort(key=ready, reverse=True)
    situations = await situations_of(call, waiting[:QUEUES_ASKED])
    return [
        QueueSeen(
            info.vhost,
            info.name,
            waited_ms(info),
            call.catalog.config_for(info).slo_oldest_age_ms,
            () if situation is None else diagnosis.diagnose(situation),
        )
        for info, situation in zip_longest(waiting, situations)
    ]


# --- what that means ------------------------------------------------------------------------------


def examine(seen: Seen) -> Iterator[Finding]:
    """What is down first, then what is short, then what waits."""
    down = [row["name"] for row in seen.nodes if not row["running"]]
    yield from _nodes(seen.nodes, down)
    yield from _groups(seen.groups, down)
    yield from _copies(seen.copies)
    yield from _lost_queues(seen.copies)
    yield from _unreadable_dead_letters(seen.copies)
    yield from _waiting_dead_letters(seen.copies)
    yield from _refused_dead_letters(seen.copies)
    yield from _unused(seen.nodes)
    yield from _versions(seen.versions)
    for node, certificates in seen.certificates.items():
        for each in certificates:
            yield Finding(
                "warning",
                f"node {node}: certificate {each['cert']} ends soon, or cannot be read:"
                f" {each.get('not_valid_after') or each.get('reason')}",
                "put a new one in its place: the node reads it within seconds",
                ("nodes",),
            )
    yield from _links(seen)
    for queue in seen.queues:
        yield from _queue(queue)


def _nodes(rows: Sequence[Json], down: Sequence[str]) -> Iterator[Finding]:
    about = ("nodes",)
    for name in down:
        yield Finding(
            "problem",
            f"node {name} is down",
            f"start it; if its disk is lost, `quorate node remove {name}` lets others take over",
            about,
        )
    for row in rows:
        if row["running"]:
            yield from _node(row)
    count = len(rows)
    if rows and (count < 3 or count % 2 == 0):
        more = max(3, count + 1)
        yield Finding(
            "warning",
            f"a cluster of {_counted(count, 'node')} survives the loss of {(count - 1) // 2};"
            f" one of {more} survives the loss of {(more - 1) // 2}",
            "let another node in: `quorate node add`",
            about,
        )


def _node(row: Json) -> Iterator[Finding]:
    about, name = ("nodes",), row["name"]
    for what, alarm, setting in (
        ("memory", "mem_alarm", "limits.memory_high_watermark"),
        ("disk", "disk_free_alarm", "log.min_free_bytes"),
    ):
        if row.get(alarm):
            yield Finding(
                "problem",
                f"node {name} is short of {what}: publishers wait",
                f"consume what waits, give it more {what}, or change its limit ({setting})",
                about,
            )
    for used, total, what in (
        ("mem_used", "mem_limit", "memory that it may use"),
        ("fd_used", "fd_total", "file descriptors that it may open"),
        ("sockets_used", "sockets_total", "connections that it may have"),
    ):
        share = row.get(used, 0) / row[total] if row.get(total) else 0.0
        if share >= NEAR and not (used == "mem_used" and row.get("mem_alarm")):
            yield Finding(
                "warning",
                f"node {name} has {share:.0%} of the {what}",
                f"raise the limit, or spread the load: {row[used]:,} of {row[total]:,}",
                about,
            )
    free, least = row.get("disk_free"), row.get("disk_free_limit")
    if not row.get("disk_free_alarm") and free and least and free < 2 * least:
        yield Finding(
            "warning",
            f"node {name} has {free / 1e6:,.0f} MB of disk left; it stops publishers at"
            f" {least / 1e6:,.0f} MB",
            "give it a larger disk, keep less in streams, or move groups away",
            about,
        )
    if row.get("being_drained"):
        yield Finding(
            "warning",
            f"node {name} is drained: it leads nothing and takes no clients",
            f"`quorate node drain {name} --undo`, or its next start, ends that",
            about,
        )


def _groups(rows: Sequence[Json], down: Sequence[str]) -> Iterator[Finding]:
    about = ("groups",)
    leaderless = [row["name"] for row in rows if not row.get("leader")]
    if leaderless:
        yield Finding(
            "problem",
            f"{_names(leaderless, 'group')} without a leader: their queues stand still",
            "start the nodes that hold them; `quorate group list` names these",
            about,
        )
    moving = [row["name"] for row in rows if row.get("moving")]
    if moving and not down:
        yield Finding(
            "warning",
            f"{_names(moving, 'group')} on the move: copies are being made",
            "`quorate group list` shows how far they are",
            about,
        )
    few = [
        row["name"]
        for row in rows
        if len(set(row["voters"]) - set(down)) < row["wanted"] and not row.get("moving")
    ]
    if few and not down:
        yield Finding(
            "warning",
            f"{_names(few, 'group')} with fewer copies than wanted",
            "let another node in: `quorate node add`, then `quorate group spread`",
            about,
        )
    for row in rows:
        lags: dict[str, int | None] = row.get("lag") or {}
        for node, lag in lags.items():
            if lag is not None and lag > BEHIND_ENTRIES and node not in down:
                yield Finding(
                    "warning",
                    f"node {node} is {lag:,} entries behind in group {row['name']}",
                    "look at its disk and network: `quorate_log_fsync_seconds` in its metrics",
                    about,
                )


def _copies(copies: Mapping[str, Mapping[NodeId, Json]]) -> Iterator[Finding]:
    for group, by_node in copies.items():
        for node, copy in by_node.items():
            if copy.get("poisoned") or copy.get("diverged"):
                why = copy.get("poisoned") or "it differs from the others"
                yield Finding(
                    "problem",
                    f"the copy of group {group} on node {node} is of no use: {why}",
                    f"`quorate group rebuild {group} {node}` makes it anew from the leader's",
                    ("groups",),
                )


def _lost_queues(copies: Mapping[str, Mapping[NodeId, Json]]) -> Iterator[Finding]:
    """Nobody can use them, and nobody said that they shall go."""
    for group, by_node in copies.items():
        nodes: dict[str, list[str]] = {}
        for node, copy in sorted(by_node.items()):
            for lost in copy.get("lost_queues", ()):
                nodes.setdefault(_within(lost["vhost"], lost["name"]), []).append(node)
        for name, holding in nodes.items():
            yield Finding(
                "problem",
                f"group {group} has queue {name}, which the catalog lost with a majority",
                f"declare it at node {' or '.join(holding)}, with the same arguments as before and"
                f" without x-queue-group or with {group}: then it has its messages again. A queue"
                " that has its name by now is another one: move its messages and delete it first",
                ("groups",),
            )


def _unreadable_dead_letters(
    copies: Mapping[str, Mapping[NodeId, Json]],
) -> Iterator[Finding]:
    for group, by_node in copies.items():
        for node, copy in by_node.items():
            for each in copy.get("unreadable_dead_letters", ()):
                count = _counted(each["count"], "dead letter")
                queue = _within(each["vhost"], each["name"])
                yield Finding(
                    "problem",
                    f"node {node} cannot read {count} of queue {queue}: they stay, and others pass"
                    " them",
                    f"restart node {node}: another one then leads group {group}, and may have them."
                    " Those that nobody has go when the queue is deleted",
                    ("queues", each["vhost"], each["name"]),
                )


def _waiting_dead_letters(copies: Mapping[str, Mapping[NodeId, Json]]) -> Iterator[Finding]:
    """Those of a queue that drops none. Only the leader knows of them."""
    for copy in (copy for by_node in copies.values() for copy in by_node.values()):
        for each in copy.get("waiting_dead_letters", ()):
            count, exchange, key = each["count"], each["exchange"], each["key"]
            wait = "waits, since no queue takes it" if count == 1 else "wait: no queue takes them"
            bind = f"bind a queue to exchange {exchange} for key {key or '(empty)'}"
            step = bind if exchange else f"declare queue {key}"
            yield Finding(
                "problem",
                f"{_counted(count, 'dead letter')} of queue {_within(each['vhost'], each['name'])}"
                f" {wait}",
                f"{step}, for which the first of them waits; or change the policy",
                ("queues", each["vhost"], each["name"]),
            )


def _refused_dead_letters(copies: Mapping[str, Mapping[NodeId, Json]]) -> Iterator[Finding]:
    """Only the leader knows of them."""
    for copy in (copy for by_node in copies.values() for copy in by_node.values()):
        for each in copy.get("refused_dead_letters", ()):
            vhost, target = each["vhost"], each["target"]
            full = each["reason"] == "is full"
            room = f"consume from {target}, or raise its limit" if full else f"change {target}"
            yield Finding(
                "problem",
                f"dead letters of queue {_within(vhost, each['name'])} wait, {each['count']:,} in"
                f" all: target {_within(vhost, target)} {each['reason']}",
                f"{room}: they go as soon as it takes them; or route them elsewhere",
                ("queues", vhost, each["name"]),
            )


def _unused(rows: Sequence[Json]) -> Iterator[Finding]:
    """Leaders are spread by themselves, copies are not."""
    unused = [row["name"] for row in rows if row["running"] and not row["copies"]]
    if unused and len(unused) < len(rows):
        yield Finding(
            "warning",
            f"{_names(unused, 'node')} without a copy of any group",
            "`quorate group spread` moves some there",
            ("groups",),
        )


def _versions(versions: Json | None) -> Iterator[Finding]:
    if versions is None:
        return
    newest = {row["name"]: row["newest"] for row in versions["nodes"]}
    if len({*newest.values()}) > 1:
        said = ", ".join(f"{node} {version}" for node, version in sorted(newest.items()))
        yield Finding(
            "warning",
            f"nodes of different releases run together ({said})",
            "finish the upgrade: `quorate upgrade status`",
            ("nodes",),
        )
    elif versions["possible"] > versions["machine_version"]:
        held = versions["held_at"] is not None
        yield Finding(
            "warning",
            f"all nodes can run version {versions['possible']}, the cluster is at"
            f" {versions['machine_version']}" + (", where it is held" if held else ""),
            "`quorate upgrade finish`, when no node shall go back"
            if held
            else "`quorate upgrade status`",
            ("nodes",),
        )


def _links(seen: Seen) -> Iterator[Finding]:
    """A link that fails tries again and again; until it is well it says why it failed."""
    failing = [
        *(
            (f"shovel {_within(row['vhost'], row['name'])}", row["reason"], "quorate shovel list")
            for row in seen.shovels
            if row.get("reason")
        ),
        *(
            (
                f"federation link of {row['type']} {row[row['type']]}",
                row.get("error") or row["status"],
                "quorate federation list",
            )
            for row in seen.federation
            if row["status"] not in federation.WELL
        ),
    ]
    for link, why, command in failing:
        yield Finding("warning", f"{link}: {why}", f"`{command}` shows more of it", ("links",))


def _queue(seen: QueueSeen) -> Iterator[Finding]:
    name = _within(seen.vhost, seen.name)
    about = ("queues", seen.vhost, seen.name)
    if seen.slo_ms is not None and seen.oldest_ms > seen.slo_ms:
        yield Finding(
            "problem",
            f"queue {name}: its oldest message has waited for {diagnosis.span(seen.oldest_ms)};"
            f" {diagnosis.span(seen.slo_ms)} is its limit",
            f"`quorate queue why {diagnosis.argument(seen.vhost, seen.name)}` says what keeps it"
            " there",
            about,
        )
    for found in seen.findings:
        yield Finding("warning", f"queue {name}: {found.sentence}", found.next, about)


def _within(vhost: str, name: str) -> str:
    return name if vhost == "/" else f"{vhost}:{name}"


def _counted(count: int, one: str) -> str:
    return f"{count:,} {one}" + ("" if count == 1 else "s")


def _names(names: Sequence[str], one: str) -> str:
    more = "" if len(names) <= NAMED else f" and {len(names) - NAMED} more"
    return f"{_counted(len(names), one)} ({', '.join(names[:NAMED])}{more})"


ROUTES = (Endpoint("GET", "attention", attention),)
