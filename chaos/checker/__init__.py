"""Judges of histories: pure functions, three-valued verdicts."""

from chaos.checker.ack_finality import ack_finality
from chaos.checker.convergence import convergence
from chaos.checker.dead_letters import dead_letters
from chaos.checker.delivery_count import delivery_count
from chaos.checker.linearizable import linearizable_lengths
from chaos.checker.liveness import liveness
from chaos.checker.log_safety import log_safety
from chaos.checker.low_disk import low_disk
from chaos.checker.message_groups import message_groups
from chaos.checker.publisher_order import publisher_order
from chaos.checker.sac_exclusion import sac_exclusion
from chaos.checker.total_queue import total_queue
from chaos.checker.transactions import transactions
from chaos.checker.vanished import vanished
from chaos.checker.verdict import Checker, Verdict, check_all, merge

__all__ = [
    "Checker",
    "Verdict",
    "ack_finality",
    "check_all",
    "convergence",
    "dead_letters",
    "delivery_count",
    "linearizable_lengths",
    "liveness",
    "log_safety",
    "low_disk",
    "merge",
    "message_groups",
    "publisher_order",
    "sac_exclusion",
    "total_queue",
    "transactions",
    "vanished",
]
