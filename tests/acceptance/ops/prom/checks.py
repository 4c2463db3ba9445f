"""What is asked of a Prometheus that scrapes nodes under load, each with a verdict."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from node.metrics.detailed import FAMILIES
from quorate.local import LocalNode
from tests.acceptance.ops.prom import exceptions, rabbitmq
from tests.acceptance.ops.prom.dashboards import Target, filled
from tests.acceptance.ops.prom.server import ENDPOINTS, Prometheus, PrometheusError

RULE_TESTS = Path(__file__).parent / "rules"
ASK_AGAIN_S = 2.0
#: Words of rules that begin as names of metrics do.
LABELS = {"rabbitmq_cluster", "rabbitmq_node", "rabbitmq_endpoint"}


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    EXCUSED = "excused"


@dataclass(frozen=True)
class Verdict:
    """About one expression, rule file or endpoint."""

    subject: str
    part: str
    outcome: Outcome
    detail: str
    expr: str = ""


async def expressions(
    server: Prometheus,
    targets: Iterable[Target],
    variables: Mapping[str, str],
    *,
    until: float,
) -> list[Verdict]:
    """Asked again until all have data, or `until` (of time.monotonic): rates need some scrapes."""
    open_ones = list(targets)
    settled: list[Verdict] = []
    while True:
        asked = [(each, await _asked(server, each, variables)) for each in open_ones]
        settled += [verdict for _, verdict in asked if verdict.outcome is Outcome.OK]
        rest = [(each, found) for each, found in asked if found.outcome is not Outcome.OK]
        open_ones = [each for each, _ in rest]
        missing = [found for _, found in rest if found.outcome is Outcome.FAILED]
        if not missing or time.monotonic() > until:
            return [*settled, *(found for _, found in rest)]
        await asyncio.sleep(ASK_AGAIN_S)


async def _asked(server: Prometheus, target: Target, variables: Mapping[str, str]) -> Verdict:
    excuse = exceptions.PANELS.get((target.dashboard, target.panel))
    part = f"{target.panel} {target.ref}".strip()
    try:
        expr = filled(target.expr, variables)
    except KeyError as unknown:
        reason = f"the variable {unknown} is not known"
        return Verdict(target.dashboard, part, Outcome.FAILED, reason, target.expr)
    try:
        series = await server.query(expr)
    except PrometheusError as error:
        return Verdict(target.dashboard, part, Outcome.FAILED, str(error), expr)
    if series:
        return Verdict(target.dashboard, part, Outcome.OK, f"{len(series)} series", expr)
    outcome = Outcome.EXCUSED if excuse else Outcome.FAILED
    return Verdict(target.dashboard, part, outcome, excuse or "no data", expr)


def names() -> list[Target]:
    """Each name that RabbitMQ's boards and rules read, with the join of their panels."""
    return [
        Target(f"RabbitMQ's names, {endpoint}", name, "", rabbitmq.identified(name, endpoint))
        for endpoint, listed in rabbitmq.NAMES.items()
        for name in listed
    ]


def read_by(rules: Path, title: str) -> list[Target]:
    """Each metric that rules read: one that is not there would keep a rule silent for ever."""
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    expressions = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    # What follows a colon is recorded by a rule itself.
    named = re.findall(r"(?<!:)\b(?:quorate|rabbitmq|erlang|kube)_\w+", expressions)
    return [Target(title, name, "", name) for name in sorted({*named} - LABELS)]


async def scrapes(server: Prometheus) -> list[Verdict]:
    return [
        Verdict("scrapes", each, Outcome.FAILED if wrong else Outcome.OK, wrong or "up")
        for each, wrong in (await server.scraped()).items()
    ]


async def loaded_rules(server: Prometheus, *, until: float) -> list[Verdict]:
    """Every rule was evaluated without an error, and is silent when all is well."""
    while True:
        found = [_rule(each) for each in await server.rules()]
        if all(each.outcome is not Outcome.FAILED for each in found) or time.monotonic() > until:
            return found
        await asyncio.sleep(ASK_AGAIN_S)


def _rule(rule: Mapping[str, Any]) -> Verdict:
    state = rule.get("state", "recorded")
    excuse = exceptions.ACTIVE.get(rule["name"])
    if rule["health"] != "ok":
        outcome, detail = Outcome.FAILED, rule.get("lastError") or rule["health"]
    elif state not in {"pending", "firing"}:
        outcome, detail = Outcome.OK, state
    elif excuse:
        outcome, detail = Outcome.EXCUSED, f"{state}: {excuse}"
    else:
        labels = rule["alerts"][0]["labels"]
        outcome, detail = Outcome.FAILED, f"{state} on a cluster that is well: {labels}"
    return Verdict("rules loaded", rule["name"], outcome, detail, rule["query"])


async def promtool(*arguments: str | Path, text: bytes = b"") -> tuple[int, list[str]]:
    process = await asyncio.create_subprocess_exec(
        "promtool",
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate(text)
    assert process.returncode is not None
    return process.returncode, [line.strip() for line in output.decode().splitlines() if line]


async def rule_files(files: Sequence[Path]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for command, each in (
        *(("check", file) for file in files),
        *(("test", file) for file in sorted(RULE_TESTS.glob("*.yaml"))),
    ):
        status, lines = await promtool(command, "rules", each)
        said = " ".join(lines)
        outcome = Outcome.FAILED if status else Outcome.OK
        detail = said[-300:] if status else lines[-1]
        verdicts.append(Verdict(f"promtool {command} rules", each.name, outcome, detail))
    return verdicts


async def lint(nodes: Sequence[LocalNode]) -> list[Verdict]:
    """`promtool check metrics` on all that each endpoint of each node tells."""
    verdicts: list[Verdict] = []
    async with aiohttp.ClientSession() as http:
        for name, (path, _) in ENDPOINTS.items():
            found: dict[str, Verdict] = {}
            query = [("family", each) for each in FAMILIES] if name == "detailed" else []
            for node in nodes:
                async with http.get(f"{node.url}{path}", params=query) as answer:
                    body = await answer.read()
                _, lines = await promtool("check", "metrics", text=body)
                found |= {line: _linted(name, line) for line in lines}
            verdicts += found.values() or [_linted(name, "")]
    return verdicts


def _linted(endpoint: str, line: str) -> Verdict:
    subject = f"promtool check metrics, {endpoint}"
    metric, _, complaint = line.partition(" ")
    if not line:
        return Verdict(subject, "", Outcome.OK, "nothing to say")
    for (start, end), excuse in exceptions.LINT.items():
        if metric.startswith(start) and complaint.endswith(end):
            return Verdict(subject, metric, Outcome.EXCUSED, excuse)
    return Verdict(subject, metric, Outcome.FAILED, complaint)
