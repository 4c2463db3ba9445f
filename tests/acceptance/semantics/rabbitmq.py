"""The installed RabbitMQ as a broker of our own: one node on loopback, under one folder."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from pathlib import Path

import pika
import pika.exceptions

from quorate.ports import free_port
from tests.acceptance.semantics.brokers import POLL_S, READY_S_MAX, Broker, BrokerError

#: The scripts themselves: those in PATH change the user and the folder of the data.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
PLUGINS = (
    "[rabbitmq_management,rabbitmq_consistent_hash_exchange,rabbitmq_random_exchange,"
    "rabbitmq_sharding].\n"
)
SETTINGS = """\
listeners.tcp.local = 127.0.0.1:{amqp}
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
STOP_S_MAX = 30.0


def installed() -> bool:
    return (PROGRAMS / "rabbitmq-server").exists()


class RabbitNode(Broker):
    """One node of the RabbitMQ that this machine has."""

    def __init__(self, folder: Path) -> None:
        amqp, management, self._distribution, self._names = [free_port() for _ in range(4)]
        super().__init__(
            "RabbitMQ",
            f"amqp://guest:guest@127.0.0.1:{amqp}/%2F",
            f"http://127.0.0.1:{management}",
            frozenset({"restart", "alarm"}),
        )
        self._folder = folder.resolve()
        self._pid = 0  # not known yet
        self._process: subprocess.Popen[bytes] | None = None
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "enabled_plugins").write_text(PLUGINS)
        (self._folder / "rabbitmq.conf").write_text(
            SETTINGS.format(amqp=amqp, management=management)
        )
        (self._folder / "advanced.config").write_text(ADVANCED)
        cookie = self._folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)

    def start(self) -> None:
        self._launch()
        self.arrive()

    def restart(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._until_gone()
        self._launch()

    def alarm(self, raised: bool) -> None:
        self._control("set_vm_memory_high_watermark", "0.00001" if raised else "0.8")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._pid:
                os.kill(self._pid, signal.SIGTERM)
                self._until_gone()
            elif self._process is not None:  # it did not come so far as to tell its own
                os.killpg(self._process.pid, signal.SIGKILL)
        # The name server that our node started, on a port of its own.
        subprocess.run(
            ["epmd", "-port", str(self._names), "-kill"],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )

    def _launch(self) -> None:
        pid_file = self._folder / "pid"
        pid_file.unlink(missing_ok=True)
        with (self._folder / "output").open("ab") as output:
            process = self._process = subprocess.Popen(
                [PROGRAMS / "rabbitmq-server"],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end_s = time.monotonic() + READY_S_MAX
        while time.monotonic() < end_s:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError, pika.exceptions.AMQPError):
                self._pid = int(pid_file.read_text())
                pika.BlockingConnection(pika.URLParameters(self.url)).close()
                if self._has_management():
                    return
            time.sleep(POLL_S)
        raise BrokerError(f"RabbitMQ did not start: see {self._folder / 'output'}")

    def _until_gone(self) -> None:
        end_s = time.monotonic() + STOP_S_MAX
        while time.monotonic() < end_s:
            assert self._process is not None
            if self._process.poll() is not None and not Path(f"/proc/{self._pid}").exists():
                return
            time.sleep(POLL_S)
        raise BrokerError(f"RabbitMQ, process {self._pid}, does not end")

    def _control(self, *words: str) -> None:
        subprocess.run(
            [PROGRAMS / "rabbitmqctl", "-q", "-n", "rabbit@localhost", *words],
            env=self._environment(),
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        for part in ("mnesia", "log"):
            (folder / part).mkdir(exist_ok=True)
        own = {
            "HOME": folder,
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_DIST_PORT": self._distribution,
            "RABBITMQ_MNESIA_BASE": folder / "mnesia",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": folder / "advanced.config",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "enabled_plugins",
            "RABBITMQ_CONF_ENV_FILE": folder / "none",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        return {**os.environ, **{name: str(value) for name, value in own.items()}}
