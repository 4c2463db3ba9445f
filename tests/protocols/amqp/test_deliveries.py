"""The consuming half of a channel, without a broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.errors import Refused
from node.metrics.client_counters import ClientCounters, Counts
from node.protocols.amqp.deliveries import Deliveries


def test_a_closed_channel_opens_no_session_any_more() -> None:
    """Work beside the methods may be behind: nobody would end that session."""
    broker = SimpleNamespace(settle_retry=None, counts=Counts())
    services = SimpleNamespace(broker=broker, sessions=None, counters=ClientCounters())
    deliveries = Deliveries(cast(Any, SimpleNamespace(closed=True, host=None, services=services)))
    with pytest.raises(Refused):
        deliveries.client  # noqa: B018
