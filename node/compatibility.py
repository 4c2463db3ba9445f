"""Whose behaviour this is, for clients and tools that choose by it what they may count on: the
version of RabbitMQ that AMQP and the management API both state.
"""

from __future__ import annotations

from typing import Final

RABBITMQ: Final = "RabbitMQ"
RABBITMQ_VERSION: Final = "3.13.7"
