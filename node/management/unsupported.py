"""What RabbitMQ has and this broker has not: refused in words instead of kept without effect.

RabbitMQ refuses the same with 400 where it has it not: parameters of plugins that are not enabled,
and since 4.0 mirroring policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cluster.machine.arguments import STREAM
from cluster.machine.policies import PolicyTable, no_setting, not_settings
from node.management.errors import ApiError

_MIRRORING: Final = "ha-"

_NO_MIRRORS = "queues are not mirrored: a durable queue is replicated by Raft without a policy"

#: Keys of the sharding plugin.
_SHARDING: Final = ("shards-per-node", "routing-key")
_NO_SHARDS: Final = "no policy makes shards: `quorate queue split` spreads a queue over several"


class Unsupported(ApiError):
    """400. `settings`: those without which the rest could be taken; none: nothing could."""

    def __init__(self, reason: str, *settings: str) -> None:
        super().__init__(400, "bad_request", f"Validation failed\n\n{reason}")
        self.settings = settings


def no_component(component: str) -> Unsupported:
    """None that reads such parameters."""
    return Unsupported(f"component {component} not found: nothing here reads such parameters")


def check_definition(definition: Mapping[str, Any], table: PolicyTable) -> None:
    """Of a policy. A name that nobody knows is a plugin's in a document of RabbitMQ, which checks
    them, too.
    """
    mirrors = [name for name in definition if name.startswith(_MIRRORING)]
    if mirrors:
        raise Unsupported(f"{', '.join(mirrors)}: {_NO_MIRRORS}", *mirrors)
    unknown = not_settings(definition)
    sharding = [name for name in unknown if name in _SHARDING]
    if sharding:
        raise Unsupported(f"{', '.join(sharding)}: {_NO_SHARDS}", *sharding)
    if unknown:
        raise Unsupported(no_setting(unknown[0], table), unknown[0])


def check_default_type(kind: Any) -> None:
    """Of the queues of a virtual host."""
    if kind == STREAM:
        reason = f"default_queue_type {STREAM}: a stream is what a declare asks for"
        raise Unsupported(reason, "default_queue_type")
