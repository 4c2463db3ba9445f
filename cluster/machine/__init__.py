"""The pure core: everything that replicas must agree on, as deterministic state machines."""

from __future__ import annotations

from cluster.machine.effects import Applied
from cluster.machine.interface import ConsumerView, Machine, QueueView, Row
from cluster.machine.machine import QueueMachine
from cluster.machine.snapshot import UnsupportedSnapshot
from cluster.machine.versions import MACHINE_VERSION

__all__ = [
    "MACHINE_VERSION",
    "Applied",
    "ConsumerView",
    "Machine",
    "QueueMachine",
    "QueueView",
    "Row",
    "UnsupportedSnapshot",
]
