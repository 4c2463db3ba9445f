"""Three nodes of nats-server with JetStream, as processes of our own on loopback."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from quorate.ports import free_port, is_free

NODES = 3
START_S_MAX = 60.0
STOP_S_MAX = 30.0
POLL_S = 0.02
SETTINGS = """\
server_name: nats{number}
listen: 127.0.0.1:{port}
log_file: "{folder}/log"
jetstream {{ store_dir: "{folder}/js", max_mem: 1G, max_file: 20G
  {extra}
}}
cluster {{ name: peers, listen: 127.0.0.1:{route}, routes: [ {routes} ]
  {cluster}
}}
{other}
"""
#: Clients stay at the address that they were given.
STAY = "no_advertise: true"


class NatsServers:
    """`extra`: further lines of their `jetstream` block; `cluster`: of the one of that name;
    `other`: of none.
    """

    def __init__(
        self, program: str, folder: Path, extra: str = "", *, cluster: str = STAY, other: str = ""
    ) -> None:
        self.ports = [free_port() for _ in range(NODES)]
        self._program, self._folder = program, folder.resolve()
        self._lines = {"extra": extra, "cluster": cluster, "other": other}
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def start(self) -> None:
        """Until they listen; it takes them a moment more to agree who leads."""
        routes = [free_port() for _ in range(NODES)]
        for number, (port, route) in enumerate(zip(self.ports, routes, strict=True), 1):
            folder = self._folder / f"nats{number}"
            folder.mkdir(parents=True)
            (folder / "conf").write_text(
                SETTINGS.format(
                    number=number,
                    port=port,
                    route=route,
                    folder=folder,
                    routes=", ".join(f"nats://127.0.0.1:{each}" for each in routes),
                    **self._lines,
                )
            )
            with (folder / "output").open("wb") as output:
                command = [self._program, "-c", str(folder / "conf")]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
                self._processes.append(process)
        end_s = time.monotonic() + START_S_MAX
        while any(map(is_free, self.ports)):
            assert time.monotonic() < end_s, f"nats-server does not listen: see {self._folder}"
            time.sleep(POLL_S)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
