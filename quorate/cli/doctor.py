"""`quorate doctor`: what is wrong with a cluster, or soon will be, and what mends it.

`examine` is a pure function of what was seen (`Seen`); each finding has a next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from quorate.cli.api import with_api
from quorate.cli.asking import counted
from quorate.cli.copies import copies_up
from quorate.cli.output import emit, stdout
from quorate.cli.tables import Alarm, Row, printable
from quorate.errors import Refused

if TYPE_CHECKING:
    from quorate.management import Management

Level = Literal["problem", "warning"]

#: Of a limit: from here on it is near.
NEAR = 0.8
#: A copy that is so many entries behind takes long to be of use.
BEHIND_ENTRIES = 10_000
#: Queues that are asked why their messages do not move: those with the most.
QUEUES_ASKED = 20
GROUPS_ASKED = 100
#: A health check of each node about its own files.
CERTIFICATES = ("health", "checks", "certificate-expiration", "1", "months")
NAMED = 3
#: What a link says that does its work, or has nothing to do.
LINK_STATES = frozenset(("running", "starting", "terminated"))


class Finding(NamedTuple):
    level: Level
    what: str
    next: str


@dataclass(frozen=True, slots=True)
class Seen:
    """What the management API told; None: this user may not see it."""

    nodes: Sequence[Row]
    groups: Sequence[Row]
    copies: dict[str, dict[str, Row]] = field(default_factory=dict[str, dict[str, Row]])
    queues: Sequence[Row] = ()
    whys: dict[str, Sequence[Row]] = field(default_factory=dict[str, Sequence[Row]])
    upgrade: Row | None = None
    links: Sequence[Row] | None = None
    certificates: Sequence[Row] = ()  # that end within a month


def run_doctor(url: str | None, *, as_json: bool, timeout: float) -> int:
    seen = with_api(url, look, timeout=timeout)
    findings = [*examine(seen)]
    if as_json:
        for each in findings:
            emit(each._asdict())
    else:
        _show(seen, findings)
    return int(any(each.level == "problem" for each in findings))


async def look(api: Management) -> Seen:
    """With the right to monitor."""
    nodes, groups = await api.all("nodes"), await api.all("groups")
    columns = "vhost,name,messages_ready,consumers"
    queues = await api.all("queues", columns=columns)
    waiting = [row for row in queues if row.get("messages_ready")]
    waiting.sort(key=lambda row: -row["messages_ready"])
    whys = {
        _named(row): (await api.get("queues", row["vhost"], row["name"], "why"))["findings"]
        for row in waiting[:QUEUES_ASKED]
    }
    copies = {
        row["name"]: await api.get("groups", row["name"], "copies") for row in groups[:GROUPS_ASKED]
    }
    return Seen(
        nodes,
        groups,
        copies,
        queues,
        whys,
        await _allowed(api, "upgrade"),
        [*(await _allowed(api, "shovels") or ()), *(await _allowed(api, "federation-links") or ())],
        [
            {"node": at, **row}
            for at, answer in (await api.at_each(*CERTIFICATES)).items()
            for row in answer.get("expired", ())
        ],
    )


async def _allowed(api: Management, path: str) -> Any:
    try:
        return await api.get(path)
    except Refused:
        return None


def _named(row: Row) -> str:
    return row["name"] if row["vhost"] == "/" else f"{row['vhost']}:{row['name']}"


def examine(seen: Seen) -> Iterator[Finding]:
    """What is down first, then what is short, then what waits."""
    down = [row["name"] for row in seen.nodes if not row["running"]]
    yield from _nodes(seen, down)
    yield from _groups(seen, down)
    yield from _versions(seen)
    for each in seen.certificates:
        about = each.get("not_valid_after") or each.get("reason")
        yield Finding(
            "warning",
            f"{each['node']}: certificate {each['cert']} ends soon, or cannot be read: {about}",
            "put a new one in its place: the node reads it within seconds",
        )
    for row in seen.links or ():
        if row.get("state", row.get("status")) not in LINK_STATES:
            name = row.get("name") or row.get("exchange") or row.get("queue")
            state = row.get("state", row.get("status"))
            reason = row.get("reason") or row.get("error") or ""
            yield Finding(
                "warning",
                f"the link {name} is {state}" + (f": {reason}" if reason else ""),
                "`quorate shovel list` and `quorate federation list` show more of it",
            )
    for queue, findings in seen.whys.items():
        for found in findings:
            yield Finding("warning", f"queue {queue}: {found['sentence']}", found["next"])


def _nodes(seen: Seen, down: Sequence[str]) -> Iterator[Finding]:
    for name in down:
        yield Finding(
            "problem",
            f"node {name} is down",
            f"start it; if its disk is lost, `quorate node remove {name}` lets others take over",
        )
    for row in seen.nodes:
        if not row["running"]:
            continue
        name = row["name"]
        for kind, alarm, limit in (
            ("memory", "mem_alarm", "limits.memory"),
            ("disk", "disk_free_alarm", "limits.disk_free"),
        ):
            if row.get(alarm):
                yield Finding(
                    "problem",
                    f"node {name} is short of {kind}: publishers wait",
                    f"consume what waits, give it more, or change its limit ({limit})",
                )
        for used, total, what in (
            ("mem_used", "mem_limit", "memory that it may use"),
            ("fd_used", "fd_total", "file descriptors that it may open"),
            ("sockets_used", "sockets_total", "connections that it may have"),
        ):
            if not row.get("mem_alarm") and _share(row, used, total) >= NEAR:
                share = f"{_share(row, used, total):.0%}"
                yield Finding(
                    "warning",
                    f"node {name} has {share} of the {what}",
                    f"raise the limit, or spread the load: {row[used]:,} of {row[total]:,}",
                )
        free, least = row.get("disk_free"), row.get("disk_free_limit")
        if not row.get("disk_free_alarm") and free and least and free < 2 * least:
            yield Finding(
                "warning",
                f"node {name} has {free / 1e6:,.0f} MB of disk left; it stops publishers at"
                f" {least / 1e6:,.0f} MB",
                "give it a larger disk, keep less in streams, or move groups away",
            )
    if (count := len(seen.nodes)) < 3 or count % 2 == 0:
        more = max(3, count + 1)
        yield Finding(
            "warning",
            f"a cluster of {counted(count, 'node')} bears the loss of {(count - 1) // 2};"
            f" one of {more} bears {(more - 1) // 2}",
            "let another node in: `quorate node add`",
        )


def _share(row: Row, used: str, total: str) -> float:
    return row.get(used, 0) / row[total] if row.get(total) else 0.0


def _groups(seen: Seen, down: Sequence[str]) -> Iterator[Finding]:
    leaderless = [row["name"] for row in seen.groups if not row.get("leader")]
    if leaderless:
        yield Finding(
            "problem",
            f"{_names(leaderless, 'group')} without a leader: their queues stand still",
            "start the nodes that hold them; `quorate group list` names these",
        )
    few = [row["name"] for row in seen.groups if isinstance(copies_up(row, down), Alarm)]
    if few and not down:
        yield Finding(
            "warning",
            f"{_names(few, 'group')} with fewer copies than wanted",
            "`quorate group list` shows whether copies are being made; if not, let a node in",
        )
    for row in seen.groups:
        lags: dict[str, int | None] = row.get("lag") or {}
        for node, lag in lags.items():
            if node in down or lag is None or lag <= BEHIND_ENTRIES:
                continue
            yield Finding(
                "warning",
                f"node {node} is {lag:,} entries behind in group {row['name']}",
                "look at its disk and network: `quorate_log_fsync_seconds` in its metrics",
            )
    for group, copies in seen.copies.items():
        for node, copy in copies.items():
            if copy.get("poisoned") or copy.get("diverged"):
                why = copy.get("poisoned") or "it differs from the others"
                yield Finding(
                    "problem",
                    f"the copy of group {group} on node {node} is of no use: {why}",
                    f"`quorate group rebuild {group} {node}` makes it anew from the leader's",
                )
    leads = {row["name"]: 0 for row in seen.nodes if row["running"]}
    for row in seen.groups:
        if (leader := row.get("leader")) in leads:
            leads[leader] += 1
    idle = [node for node, count in leads.items() if count == 0]
    if idle and max(leads.values()) > 2:
        yield Finding(
            "warning",
            f"{_names(idle, 'node')} leads nothing while another one leads {max(leads.values())}"
            " groups",
            "`quorate group spread` evens it out",
        )


def _versions(seen: Seen) -> Iterator[Finding]:
    about = seen.upgrade
    if about is None:
        return
    newest = {row["name"]: row["newest"] for row in about["nodes"]}
    if len({*newest.values()}) > 1:
        said = ", ".join(f"{node} {version}" for node, version in sorted(newest.items()))
        yield Finding(
            "warning",
            f"nodes of different releases run together ({said})",
            "finish the upgrade: `quorate upgrade status`",
        )
    elif about["possible"] > about["machine_version"]:
        held = about["held_at"] is not None
        yield Finding(
            "warning",
            f"all nodes can run version {about['possible']}, the cluster is at"
            f" {about['machine_version']}" + (", where it is held" if held else ""),
            "`quorate upgrade finish`, when no node shall go back"
            if held
            else "`quorate upgrade status`",
        )


def _names(names: Sequence[str], one: str) -> str:
    more = "" if len(names) <= NAMED else f" and {len(names) - NAMED} more"
    return f"{counted(len(names), one)} ({', '.join(names[:NAMED])}{more})"


def _show(seen: Seen, findings: Sequence[Finding]) -> None:
    from rich.text import Text

    console = stdout()
    for each in findings:
        style, sign = ("red", "✗") if each.level == "problem" else ("yellow", "!")
        console.print(Text(f"{sign} {printable(each.what)}", style=style))
        console.print(Text(f"    next: {printable(each.next)}", style="dim"))
    looked = (
        f"{counted(len(seen.nodes), 'node')}, {counted(len(seen.groups), 'group')} and"
        f" {counted(len(seen.queues), 'queue')} were looked at"
    )
    if findings:
        console.print(looked)
    else:
        console.print(Text(f"✓ all is well: {looked}", style="green"))
