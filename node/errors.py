"""How a request can end other than well, in no protocol's words: refused, elsewhere, unknown."""

from __future__ import annotations

from typing import Any

from cluster.groups.outcome import ELSEWHERE, Outcome
from cluster.machine.replies import Reply
from cluster.types import NodeId


class BrokerError(Exception):
    """`code` is one word for programs, `reason` a sentence that says what to do."""

    def __init__(self, code: str, reason: str, detail: Any = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.detail = detail


class Refused(BrokerError):
    """Surely did not happen."""


class AccessRefused(Refused):
    """Not this user, or not with this password, or not there."""

    def __init__(self, reason: str) -> None:
        super().__init__("access_refused", reason)


class Elsewhere(BrokerError):
    """Surely did not happen here: ask the leader. None: there is none now, ask again soon."""

    def __init__(self, leader: NodeId | None) -> None:
        where = "has no leader now: try again" if leader is None else f"is led by node {leader}"
        super().__init__("no_leader" if leader is None else "not_leader", f"the queue {where}")
        self.leader = leader


class OutcomeUnknown(BrokerError):
    """May or may not have happened."""

    def __init__(self, reason: str | None) -> None:
        super().__init__("unknown", f"{reason or 'the leader changed'}; it may have happened")


def reply_of(outcome: Outcome) -> Reply:
    """The reply, or the error that the outcome is."""
    if outcome.kind == "ok" and outcome.reply is not None:
        return outcome.reply
    raise error_of(outcome)


def error_of(outcome: Outcome) -> BrokerError:
    if outcome.kind != "refused":
        return OutcomeUnknown(outcome.reason)
    if outcome.code in ELSEWHERE:
        return Elsewhere(outcome.leader)
    detail = getattr(outcome.reply, "detail", None)
    return Refused(outcome.code or "refused", outcome.reason or "refused", detail)
