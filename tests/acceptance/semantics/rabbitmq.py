"""The installed RabbitMQ as a broker of our own: one node on loopback, under one folder."""

from __future__ import annotations

import signal
from pathlib import Path

from quorate.ports import free_port
from tests.acceptance.rows.suite import ServerError
from tests.acceptance.semantics.brokers import Broker
from tests.testkit.rabbitmq import Names, RabbitError, RabbitProcess, installed

PLUGINS = (
    "[rabbitmq_management,rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange,"
    "rabbitmq_sharding].\n"
)
SETTINGS = """\
management.tcp.ip = 127.0.0.1
management.tcp.port = {management}
collect_statistics_interval = 200
"""
# Statistics are gathered every second instead of every five.
ADVANCED = """\
[{rabbit, [{quorum_tick_interval, 500}]},
 {rabbitmq_management_agent, [{sample_retention_policies,
   [{global, [{605, 1}]}, {basic, [{605, 1}]}, {detailed, [{10, 1}]}]}]}].
"""


class RabbitNode(Broker):
    """One node of the RabbitMQ that this machine has."""

    def __init__(self, folder: Path) -> None:
        if not installed():
            raise ServerError("RabbitMQ is not installed")
        management = free_port()
        self._names = Names(folder)
        self._process = RabbitProcess(
            self._names,
            settings=SETTINGS.format(management=management),
            advanced=ADVANCED,
            plugins=PLUGINS,
            ready=self._has_management,
        )
        super().__init__(
            self._process.url,
            f"http://127.0.0.1:{management}",
            frozenset({"restart", "alarm"}),
        )

    def start(self) -> None:
        self._launch()
        super().start()

    def restart(self) -> None:
        self._process.kill()
        self._launch()

    def alarm(self, raised: bool) -> None:
        self._process.control("set_vm_memory_high_watermark", "0.00001" if raised else "0.8")

    def end(self) -> None:
        self._process.kill(signal.SIGTERM)
        self._names.end()

    def _launch(self) -> None:
        try:
            self._process.start()
        except RabbitError as error:
            raise ServerError(str(error)) from error
