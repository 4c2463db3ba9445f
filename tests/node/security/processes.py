"""Nodes as processes of their own, with certificates in a folder as Kubernetes mounts a secret."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import trustme

from tests.node.nodes import free_ports, until

START_S = 60.0


class Secret:
    """`ca.pem`, `tls.pem` and `tls.key` behind a link that is swapped when they change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir()

    def put(
        self, authority: trustme.CA, *names: str, not_after: datetime | None = None, **more: Any
    ) -> None:
        issued = authority.issue_cert(*names, not_after=not_after, **more)
        self.put_bytes(
            authority.cert_pem.bytes(),
            issued.cert_chain_pems[0].bytes(),
            issued.private_key_pem.bytes(),
        )

    def put_bytes(self, authority: bytes, certificate: bytes, key: bytes) -> None:
        self._count += 1
        data = self.folder / f"..{self._count}"
        data.mkdir()
        (data / "ca.pem").write_bytes(authority)
        (data / "tls.pem").write_bytes(certificate)
        (data / "tls.key").write_bytes(key)
        fresh = self.folder / "..data_tmp"
        fresh.symlink_to(data.name)
        fresh.replace(self.folder / "..data")
        for name in ("ca.pem", "tls.pem", "tls.key"):
            link = self.folder / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def settings(self, kind: str, *, authority: bool = True) -> dict[str, str]:
        """`kind`: client or peer."""
        found = {
            f"tls.{kind}_cert": self.path("tls.pem"),
            f"tls.{kind}_key": self.path("tls.key"),
        }
        return {**found, f"tls.{kind}_ca": self.path("ca.pem")} if authority else found


class Process:
    """One node. Settings are given as the environment's, so that files stay as tests made them."""

    def __init__(self, folder: Path, name: str, ports: dict[str, int], **settings: Any) -> None:
        self.name = name
        self.ports = ports
        self.folder = folder / name
        self.log_file = folder / f"{name}.log"
        self.settings = {
            "node": name,
            "data_dir": str(self.folder),
            "log_format": "json",
            "default_groups": 3,
            "log.min_free_bytes": 0,
            "auth.passwordless_guest": "true",
            **{key: f"127.0.0.1:{port}" for key, port in ports.items()},
            **settings,
        }
        self.process: asyncio.subprocess.Process

    @property
    def arguments(self) -> list[str]:
        return [sys.executable, "-m", "quorate", "node", "start"]

    async def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("QUORATE_")}
        for key, value in self.settings.items():
            environment["QUORATE_" + key.replace(".", "__").upper()] = str(value)
        with self.log_file.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.arguments, env=environment, stdout=log, stderr=log
            )

    async def stop(self) -> int:
        if self.process.returncode is None:
            self.process.terminate()
        return await self.process.wait()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def hang_up(self) -> None:
        self.process.send_signal(signal.SIGHUP)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.log_file.read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in events if event["event"] == name]

    async def logged(self, name: str, count: int = 1) -> dict[str, Any]:
        """The newest of at least so many."""

        def there() -> list[dict[str, Any]]:
            if self.process.returncode is not None:
                raise AssertionError(self.log_file.read_text()[-3000:])
            events = self.events(name)
            return events if len(events) >= count else []

        return (await until(there, within_s=START_S))[-1]


class Processes:
    """A cluster of them."""

    def __init__(
        self,
        folder: Path,
        count: int = 1,
        *,
        listeners: Sequence[str] = ("http", "https", "amqp", "amqps", "peer"),
        **settings: Any,
    ) -> None:
        names = [f"n{number}" for number in range(1, count + 1)]
        ports = iter(free_ports(count * len(listeners)))
        given = {name: {listener: next(ports) for listener in listeners} for name in names}
        peers = ",".join(f"{name}=127.0.0.1:{given[name]['peer']}" for name in names)
        several = {"peers": peers} if count > 1 else {}
        if "http" not in listeners:
            several["http"] = "off"
        if "amqp" not in listeners:
            several["amqp"] = "off"
        self.nodes = [Process(folder, n, given[n], **several, **settings) for n in names]

    @property
    def one(self) -> Process:
        return self.nodes[0]

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        for node in self.nodes:
            await node.logged("node_registered")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Those that are told to end together wait for each other for seconds.
        await asyncio.gather(*[node.kill() for node in self.nodes])


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """What a client uses."""
    context = ssl.create_default_context()
    context.load_verify_locations(cadata=authority.cert_pem.bytes().decode())
    return context


async def shown(port: int, context: ssl.SSLContext) -> bytes:
    """The certificate that a listener shows, when the client trusts it."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def get(url: str, context: ssl.SSLContext | None = None, **options: Any) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, ssl=context if context is not None else True, **options) as response,
    ):
        return response.status, await response.text()
