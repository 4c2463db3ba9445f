"""The Python client of Quorate: `async with quorate.connect("127.0.0.1:8081") as client`."""

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

__all__ = [
    "Batch",
    "BatchConsumer",
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
    "SyncClient",
    "Unreachable",
    "connect",
    "connect_sync",
]
