"""`python -m tests.acceptance.jetstream`: named checks for each row, at Quorate or any other NATS
server.
"""

from __future__ import annotations

import sys

from tests.acceptance.jetstream.servers import NatsReference, NatsServer, QuorateServers
from tests.acceptance.jetstream.suite import SUITE
from tests.acceptance.rows.command import Command

COMMAND = Command(
    suite=SUITE,
    scheme="nats",
    reference="nats-server, which Go builds",
    running=NatsServer,
    own=QuorateServers,
    reference_of=NatsReference,
)

if __name__ == "__main__":
    sys.exit(COMMAND.main())
