"""`python -m tests.acceptance.semantics`: one named check per row, at Quorate or any other AMQP
broker.
"""

from __future__ import annotations

import sys

from tests.acceptance.rows.command import Command
from tests.acceptance.semantics.brokers import Broker, QuorateNodes
from tests.acceptance.semantics.rabbitmq import RabbitNode
from tests.acceptance.semantics.suite import SUITE

COMMAND = Command(
    suite=SUITE,
    scheme="amqp",
    reference="the installed RabbitMQ",
    running=Broker,
    own=QuorateNodes,
    reference_of=RabbitNode,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
