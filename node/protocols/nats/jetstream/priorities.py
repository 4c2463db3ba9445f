"""Priority groups of a pull consumer: whose turn it is. Pure.

- `overflow`: a request may wait until enough is pending, or not acknowledged.
- `prioritized`: lower numbers go first.
- `pinned_client`: one client gets all, named by an id that its first message brings. The others
  wait until it asks for nothing for a while, or is unpinned.

A pin is the leader's alone: after a change of leader another client may get it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from node.protocols.nats.jetstream.times import NS_PER_S

GROUP: Final = re.compile(r"[a-zA-Z0-9/_=-]{1,16}")
POLICIES: Final = ("none", "overflow", "pinned_client", "prioritized")
PRIORITY_MAX: Final = 9
PIN_BYTES: Final = 16


class Wish(NamedTuple):
    """What a request says of its group."""

    group: str = ""
    min_pending: int = 0
    min_ack_pending: int = 0
    id: str = ""
    priority: int = 0


NO_WISH: Final = Wish()


class Supply(NamedTuple):
    """What a consumer has."""

    pending: int = 0
    ack_pending: int = 0
    ready: int = 1 << 30  # that may be handed out now


class Pinned(NamedTuple):
    """What is told of a pin. No id: it is over, for this reason."""

    group: str
    id: str = ""
    reason: Literal["", "timeout", "admin"] = ""


@dataclass(slots=True)
class Pin:
    """At most one per consumer."""

    id: str
    group: str
    since_ms: int
    until_s: float


def policy_of(config: Mapping[str, Any]) -> str:
    return config.get("priority_policy") or "none"


def refusal(wish: Wish, config: Mapping[str, Any]) -> str | None:
    """Why a request cannot be of this consumer."""
    policy = policy_of(config)
    if (wish.min_pending or wish.min_ack_pending) and policy != "overflow":
        return "Not a Overflow Priority consumer"
    if wish.id and policy != "pinned_client":
        return "Not a Pinned Client Priority consumer"
    if not 0 <= wish.priority <= PRIORITY_MAX:
        return f"Priority must be between 0 and {PRIORITY_MAX}"
    if policy == "none":
        return None
    if not wish.group:
        return "Priority Group missing"
    if wish.group not in config.get("priority_groups", ()):
        return "Invalid Priority Group"
    return None


def room(wish: Wish, supply: Supply, ahead: int) -> int | None:
    """So many messages an overflow request may have now, behind others that get `ahead`; None: any
    number.
    """
    if not wish.min_pending and not wish.min_ack_pending:
        return None
    if 0 < wish.min_ack_pending <= supply.ack_pending:
        return None
    if not wish.min_pending:
        return 0
    return max(0, supply.pending - ahead - wish.min_pending + 1)


def new_pin(group: str, config: Mapping[str, Any], now_s: float, now_ms: int) -> Pin:
    return Pin(secrets.token_urlsafe(PIN_BYTES), group, now_ms, now_s + timeout_s(config))


def timeout_s(config: Mapping[str, Any]) -> float:
    return (config.get("priority_timeout") or 0) / NS_PER_S
