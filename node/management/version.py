"""Who we say that we are. Tools read the version of RabbitMQ to know which routes there are."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

PRODUCT = "Quorate"
#: The one whose API this is.
RABBITMQ_VERSION = "3.13.7"


def _own_version() -> str:
    try:
        return version("quorate")
    except PackageNotFoundError:  # run from its sources
        return "0"


PRODUCT_VERSION = _own_version()
