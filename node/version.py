"""Who we say that we are, and whose behaviour this is: clients and tools choose by the version of
RabbitMQ, which AMQP and the management API both state, what they may count on.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

PRODUCT: Final = "Quorate"
RABBITMQ: Final = "RabbitMQ"
RABBITMQ_VERSION: Final = "3.13.7"


def _own_version() -> str:
    try:
        return version("quorate")
    except PackageNotFoundError:  # run from its sources
        return "0"


PRODUCT_VERSION = _own_version()
