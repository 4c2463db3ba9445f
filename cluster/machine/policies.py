"""Policies: settings for whatever has a name that matches, and how they meet what was declared.

RabbitMQ's rules. Of the policies that match, the one with the highest priority counts, and so it is
with operator policies. What was declared beats a policy, but of two limits the lower one counts.
What only a declaration may say (single active consumer, priorities, type) no policy changes (A31).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cluster.machine.arguments import (
    SLO_OLDEST_AGE,
    SLO_SINCE,
    STREAM,
    settings_from,
    wrong_value,
)
from cluster.machine.catalog_tables import Entries, QueueInfo
from cluster.machine.checks import BadValue, is_plain, is_text, shown, text
from cluster.machine.commands import QueueConfig
from cluster.machine.versions import FEDERATION_SINCE, STREAM_POLICIES_SINCE
from cluster.types import QueueId

PolicyTarget = Literal["queues", "exchanges"]
PolicyTable = Literal["policies", "operator_policies"]

#: What a policy may be said to apply to, from `STREAM_POLICIES_SINCE` on.
STREAMS = "streams"

#: A pattern is matched against names of at most 255 bytes; only administrators write any.
PATTERN_BYTES_MAX = 2_048

#: Of two the lower counts. The value is the one that means: no limit.
_LIMITS: dict[str, int | None] = {
    "consumer-timeout": 0,
    "delivery-limit": -1,
    "expires": None,
    "max-length": None,
    "max-length-bytes": None,
    "message-ttl": None,
    "slo-oldest-age": None,
}
#: Read by who moves dead letters, not by queues. Older releases took any value, so logs hold those.
DEAD_LETTER_STRATEGY = "dead-letter-strategy"
#: The argument wins.
_DEFAULTS = frozenset(
    {
        "dead-letter-exchange",
        "dead-letter-routing-key",
        DEAD_LETTER_STRATEGY,
        "dedup-window",
        "delayed-retry-max",
        "delayed-retry-min",
        "delayed-retry-type",
        "overflow",
    }
)
_ALTERNATE = "alternate-exchange"
#: What federates queues and exchanges: read by links, not by queues.
FEDERATION_PATTERN = "federation-upstream-pattern"
FEDERATION = ("federation-upstream", "federation-upstream-set", FEDERATION_PATTERN)
#: Settings that a later machine version brought.
SETTINGS_SINCE = {
    FEDERATION_PATTERN: FEDERATION_SINCE,
    "initial-cluster-size": STREAM_POLICIES_SINCE,
    "stream-filter-size-bytes": STREAM_POLICIES_SINCE,
    SLO_OLDEST_AGE.removeprefix("x-"): SLO_SINCE,
}
#: RabbitMQ's names without effect on a queue; definitions of its clusters are full of them.
_WITHOUT_EFFECT = frozenset(
    {
        *FEDERATION,
        DEAD_LETTER_STRATEGY,
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "initial-cluster-size",
        "max-age",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-priority",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "single-active-consumer",
        "stream-filter-size-bytes",
        "stream-max-segment-size-bytes",
        "target-group-size",
    }
)
_WITH_EFFECT = {"policies": {*_LIMITS, *_DEFAULTS, _ALTERNATE}, "operator_policies": {*_LIMITS}}

_is_exchange = text(empty=True)


def compiled(pattern: str) -> re.Pattern[str] | None:
    """None when it is no regular expression."""
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None


def regex(value: Any) -> str:
    """A check like those of `checks`."""
    if not isinstance(value, str) or not is_text(value, PATTERN_BYTES_MAX):
        raise BadValue(f"a regular expression of at most {PATTERN_BYTES_MAX} bytes")
    if compiled(value) is None:
        raise BadValue("a regular expression, and this one cannot be compiled")
    return value


def wrong_definition(definition: Mapping[Any, Any], table: PolicyTable) -> str | None:
    """A sentence about the first setting that a policy cannot have."""
    if not definition:
        return "the definition is empty: a policy sets something"
    for name, value in definition.items():
        if name in _WITHOUT_EFFECT and is_plain(value):
            continue
        if name not in _WITH_EFFECT[table]:
            return no_setting(name, table)
        wrong = _wrong_alternate(value) if name == _ALTERNATE else wrong_value(f"x-{name}", value)
        if wrong is not None:
            return f"invalid value {shown(value)} for {name!r}: must be {wrong}"
    return None


def not_settings(definition: Mapping[Any, Any]) -> list[Any]:
    """Names that no policy has."""
    return [name for name in definition if name not in _WITHOUT_EFFECT | _WITH_EFFECT["policies"]]


def no_setting(name: Any, table: PolicyTable) -> str:
    allowed = ", ".join(sorted(_WITH_EFFECT[table]))
    return f"{shown(name)} is not a policy setting; allowed are {allowed}"


def _wrong_alternate(value: Any) -> str | None:
    try:
        _is_exchange(value)
    except BadValue as error:
        return str(error)
    return None


def effective_arguments(
    arguments: Mapping[str, Any], *definitions: Mapping[str, Any]
) -> dict[str, Any]:
    """The arguments that a queue would have been declared with to be what policies make of it."""
    merged = dict(arguments)
    for definition in definitions:
        for key, value in definition.items():
            name = f"x-{key}"
            if key in _LIMITS:
                merged[name] = _lower(merged.get(name), value, unlimited=_LIMITS[key])
            elif key in _DEFAULTS:
                merged.setdefault(name, value)
    low, high = merged.get("x-delayed-retry-min"), merged.get("x-delayed-retry-max")
    if low is not None and high is not None and low > high:  # one of each origin
        merged["x-delayed-retry-max"] = low
    return merged


def _lower(first: int | None, second: int, *, unlimited: int | None) -> int:
    if first is None or first == unlimited:
        return second
    return first if second == unlimited else min(first, second)


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str
    pattern: re.Pattern[str]
    applies_to: str
    entry: Mapping[str, Any]


class Policies:
    """Finds the policies of names. Only remembers what the entries say: `forget` at a change."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries
        self._rules: dict[tuple[PolicyTable, str], list[_Rule]] = {}
        self._configs: dict[str, dict[QueueId, QueueConfig]] = {}
        self.version = 0  # of this copy: grows when any queue may have other settings

    def forget(self, vhost: str | None = None) -> None:
        """What was worked out for this vhost, or for all."""
        self.version += 1
        if vhost is None:
            self._rules.clear()
            self._configs.clear()
            return
        self._rules.pop(("policies", vhost), None)
        self._rules.pop(("operator_policies", vhost), None)
        self._configs.pop(vhost, None)

    def forget_queue(self, info: QueueInfo) -> None:
        self._configs.get(info.vhost, {}).pop(info.queue, None)

    def find(
        self, table: PolicyTable, vhost: str, name: str, what: PolicyTarget, kind: str | None = None
    ) -> tuple[str, Mapping[str, Any]] | None:
        """The policy that counts: its name and its entry. `kind` is a word of `apply_to`."""
        for rule in self._rules_of(table, vhost):
            if rule.applies_to in ("all", what, kind) and rule.pattern.search(name):
                return rule.name, rule.entry
        return None

    def for_queue(
        self, table: PolicyTable, vhost: str, name: str, arguments: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, Any]] | None:
        kind: str | None = arguments.get("x-queue-type")
        if kind is None:
            kind = (self._entries.find("vhosts", vhost) or {}).get("default_queue_type")
        word = STREAMS if kind == STREAM else f"{kind or 'classic'}_queues"
        return self.find(table, vhost, name, "queues", word)

    def config_of(self, info: QueueInfo) -> QueueConfig:
        """The effective settings. The same object as long as nothing changes."""
        configs = self._configs.setdefault(info.vhost, {})
        config = configs.get(info.queue)
        if config is None:
            config = configs[info.queue] = self.config_for(info)
        return config

    def config_for(self, info: QueueInfo) -> QueueConfig:
        """The same of a queue that the tables need not hold yet."""
        return settings_from(self.arguments_of(info), auto_delete=info.auto_delete)

    def arguments_of(self, info: QueueInfo) -> dict[str, Any]:
        """With what policies, and the default quota of the vhost, make of them."""
        tables: tuple[PolicyTable, PolicyTable] = ("policies", "operator_policies")
        found = [self.for_queue(each, info.vhost, info.name, info.arguments) for each in tables]
        definitions = [policy[1]["definition"] for policy in found if policy is not None]
        arguments = effective_arguments(info.arguments, *definitions)
        self._add_default_quota(info.vhost, arguments)
        return arguments

    def _add_default_quota(self, vhost: str, arguments: dict[str, Any]) -> None:
        """`max-queue-bytes` of the vhost is for queues that name no limit of bytes. They refuse
        what is too much, unless something is said of that, or another limit drops the oldest.
        """
        limit: int = (self._entries.find("vhost_limits", vhost) or {}).get("max-queue-bytes", -1)
        if limit < 0 or "x-max-length-bytes" in arguments:
            return
        arguments["x-max-length-bytes"] = limit
        if "x-max-length" not in arguments:
            arguments.setdefault("x-overflow", "reject-publish")

    def _rules_of(self, table: PolicyTable, vhost: str) -> list[_Rule]:
        rules = self._rules.get((table, vhost))
        if rules is None:
            rules = self._rules[table, vhost] = self._sorted_rules(table, vhost)
        return rules

    def _sorted_rules(self, table: PolicyTable, vhost: str) -> list[_Rule]:
        rules: list[_Rule] = []
        for (owner, name), entry in self._entries.by_table[table].items():
            pattern = compiled(entry["pattern"]) if owner == vhost else None
            if pattern is not None:
                rules.append(_Rule(name, pattern, entry["apply_to"], entry))
        return sorted(rules, key=lambda rule: (-rule.entry["priority"], rule.name))
