"""The Python client of Quorate: `async with quorate.connect("127.0.0.1:8081") as client`.

Its parts are imported when they are first used: the command line starts without aiohttp.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorate.batches import Confirmed, Published
    from quorate.client import Client, connect
    from quorate.consumer import BatchConsumer, Consumer
    from quorate.delivery import Batch, Delivery
    from quorate.errors import (
        ClientClosed,
        ConsumerEnded,
        OutcomeUnknown,
        QuorateError,
        Refused,
        Unreachable,
    )
    from quorate.publisher import Publisher
    from quorate.reader import Reader
    from quorate.sync import SyncClient, connect_sync
    from quorate.transaction import Transaction
    from quorate.worker import CannotWork, Reject

__all__ = [
    "Batch",
    "BatchConsumer",
    "CannotWork",
    "Client",
    "ClientClosed",
    "Confirmed",
    "Consumer",
    "ConsumerEnded",
    "Delivery",
    "OutcomeUnknown",
    "Published",
    "Publisher",
    "QuorateError",
    "Reader",
    "Refused",
    "Reject",
    "SyncClient",
    "Transaction",
    "Unreachable",
    "connect",
    "connect_sync",
]

#: Modules whose public names are ours.
_MODULES = (
    *("errors", "batches", "delivery", "publisher", "reader", "consumer", "worker", "transaction"),
    "client",
    "sync",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            if (found := getattr(import_module(f"quorate.{module}"), name, None)) is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module 'quorate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
