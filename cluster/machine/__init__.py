"""The pure core: everything that replicas must agree on, as deterministic state machines."""

from __future__ import annotations

from cluster.machine.effects import Applied
from cluster.machine.interface import ConsumerView, Machine, QueueView, Row
from cluster.machine.machine import MACHINE_VERSION, QueueMachine
from cluster.machine.snapshot import UnsupportedSnapshot

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
