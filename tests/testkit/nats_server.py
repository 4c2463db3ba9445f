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
server_name: {node}
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
        self.ports = {f"nats{number}": free_port() for number in range(1, NODES + 1)}
        self._program, self._folder = program, folder.resolve()
        self._lines = {"extra": extra, "cluster": cluster, "other": other}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes.values()]

    def start(self) -> None:
        """Until they listen; it takes them a moment more to agree who leads."""
        routes = [free_port() for _ in range(NODES)]
        for (node, port), route in zip(self.ports.items(), routes, strict=True):
            folder = self._folder / node
            folder.mkdir(parents=True)
            (folder / "conf").write_text(
                SETTINGS.format(
                    node=node,
                    port=port,
                    route=route,
                    folder=folder,
                    routes=", ".join(f"nats://127.0.0.1:{each}" for each in routes),
                    **self._lines,
                )
            )
            self._spawn(node)
        self._until_listening(*self.ports.values())

    def launch(self, node: str) -> None:
        """Again, after it was killed, until it listens."""
        self._spawn(node)
        self._until_listening(self.ports[node])

    def kill(self, node: str) -> None:
        self._processes[node].kill()
        self._processes[node].wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _spawn(self, node: str) -> None:
        folder = self._folder / node
        with (folder / "output").open("ab") as output:
            command = [self._program, "-c", str(folder / "conf")]
            self._processes[node] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def _until_listening(self, *ports: int) -> None:
        end_s = time.monotonic() + START_S_MAX
        while any(map(is_free, ports)):
            assert time.monotonic() < end_s, f"nats-server does not listen: see {self._folder}"
            time.sleep(POLL_S)
