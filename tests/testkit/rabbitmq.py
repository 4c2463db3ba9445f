"""The RabbitMQ of Debian's package as processes of our own: on loopback, under one folder, with a
cookie and a name server of their own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions

from quorate.ports import free_port

#: The scripts themselves: those in PATH change the user and the folder of the data.
PROGRAMS = Path("/usr/lib/rabbitmq/bin")
START_S_MAX = 120.0
STOP_S_MAX = 30.0
POLL_S = 0.2


class RabbitError(Exception):
    """It did not start or end; the text says where to look."""


def installed() -> bool:
    return (PROGRAMS / "rabbitmq-server").exists()


class Names:
    """The name server (epmd) that the first node starts, and the cookie of all, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.port = free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        cookie = self.folder / ".erlang.cookie"
        cookie.write_text(secrets.token_hex(16))
        cookie.chmod(0o400)

    @property
    def environment(self) -> dict[str, str]:
        own = {"HOME": self.folder, "ERL_EPMD_PORT": self.port, "ERL_EPMD_ADDRESS": "127.0.0.1"}
        return {**os.environ, **{name: str(value) for name, value in own.items()}}

    def end(self) -> None:
        subprocess.run(
            ["epmd", "-port", str(self.port), "-kill"],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )


class RabbitProcess:
    """One node. `settings` and `advanced` are its two configuration files, `plugins` its third."""

    def __init__(
        self,
        names: Names,
        name: str = "rabbit",
        *,
        settings: str = "",
        advanced: str = "[].\n",
        plugins: str = "[].\n",
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        self.amqp, self._distribution = free_port(), free_port()
        self.name = f"{name}@localhost"
        self.pid = 0  # not known yet
        self._names = names
        self._ready = ready
        self._folder = names.folder / name
        self._process: subprocess.Popen[bytes] | None = None
        for part in ("mnesia", "log"):
            (self._folder / part).mkdir(parents=True, exist_ok=True)
        listener = f"listeners.tcp.local = 127.0.0.1:{self.amqp}\n"
        (self._folder / "rabbitmq.conf").write_text(listener + settings)
        (self._folder / "advanced.config").write_text(advanced)
        (self._folder / "enabled_plugins").write_text(plugins)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.amqp}/%2F"

    def start(self) -> None:
        """Until it answers. Raises RabbitError."""
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
        end_s = time.monotonic() + START_S_MAX
        while time.monotonic() < end_s:
            if process.poll() is not None:
                break
            with contextlib.suppress(OSError, ValueError, pika.exceptions.AMQPError):
                self.pid = int(pid_file.read_text())
                pika.BlockingConnection(pika.URLParameters(self.url)).close()
                if self._ready():
                    return
            time.sleep(POLL_S)
        raise RabbitError(f"RabbitMQ did not start: see {self._folder / 'output'}")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        """And wait until it is gone. Raises RabbitError."""
        with contextlib.suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, how)
                self._until_gone()
            elif self._process is not None:  # it did not come so far as to tell its own
                os.killpg(self._process.pid, signal.SIGKILL)

    def control(self, *words: str) -> str:
        """What `rabbitmqctl` prints."""
        done = subprocess.run(
            [PROGRAMS / "rabbitmqctl", "-q", "-n", self.name, *words],
            env=self._environment(),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def _until_gone(self) -> None:
        end_s = time.monotonic() + STOP_S_MAX
        while time.monotonic() < end_s:
            assert self._process is not None
            if self._process.poll() is not None and not Path(f"/proc/{self.pid}").exists():
                return
            time.sleep(POLL_S)
        raise RabbitError(f"RabbitMQ, process {self.pid}, does not end")

    def _environment(self) -> dict[str, str]:
        folder = self._folder
        own = {
            "RABBITMQ_NODENAME": self.name,
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
        return {**self._names.environment, **{name: str(value) for name, value in own.items()}}
