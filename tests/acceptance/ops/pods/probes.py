"""Probes of a container, polled as a kubelet does: at the manifest's periods and thresholds."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.acceptance.ops.pods.container import Container
from tests.acceptance.ops.pods.manifest import Spec, Unsupported
from tests.acceptance.ops.pods.tools import ToolFailed

#: None: it is well; else what is wrong.
Outcome = str | None
Tell = Callable[[Outcome], Awaitable[bool]]


def port_of(container: Spec, port: Any) -> int:
    """By number or by name."""
    if isinstance(port, int):
        return port
    for each in container.get("ports") or ():
        if each.get("name") == port:
            return int(each["containerPort"])
    raise Unsupported(f"port {port!r}, which {container['name']} does not have")


async def ask(probe: Spec, container: Container, address: str) -> Outcome:
    """Once."""
    timeout_s = float(probe.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(timeout_s):
            if (http := probe.get("httpGet")) is not None:
                return await _http(http, container.spec, address)
            if (tcp := probe.get("tcpSocket")) is not None:
                port = port_of(container.spec, tcp["port"])
                _, writer = await asyncio.open_connection(tcp.get("host", address), port)
                writer.close()
                return None
            if (command := probe.get("exec")) is not None:
                done = await container.execute(command["command"], timeout_s)
                return None if done.code == 0 else (done.out + done.err).strip()[:200]
    except TimeoutError:
        return f"no answer within {timeout_s:g} s"
    except (OSError, aiohttp.ClientError, ToolFailed) as error:
        return str(error) or repr(error)
    raise Unsupported(f"a probe by {', '.join(probe)}")


async def _http(asked: Spec, container: Spec, address: str) -> Outcome:
    scheme = asked.get("scheme", "HTTP").lower()
    where = f"{scheme}://{asked.get('host', address)}:{port_of(container, asked['port'])}"
    headers = {each["name"]: each["value"] for each in asked.get("httpHeaders") or ()}
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE  # as a kubelet does
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session,
        session.get(where + asked.get("path", "/"), headers=headers, allow_redirects=False) as said,
    ):
        if 200 <= said.status < 400:
            return None
        return f"{said.status} {(await said.text())[:200]}"


async def poll(probe: Spec, container: Container, address: str, tell: Tell) -> None:
    """Until `tell` is no longer interested. It hears None after enough good answers in a row, and
    what was wrong after enough bad ones, each time anew.
    """
    await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)))
    good, bad = 0, 0
    while True:
        wrong = await ask(probe, container, address)
        good, bad = (good + 1, 0) if wrong is None else (0, bad + 1)
        decided = good >= int(probe.get("successThreshold", 1)) or bad >= int(
            probe.get("failureThreshold", 3)
        )
        if decided and not await tell(wrong):
            return
        await asyncio.sleep(float(probe.get("periodSeconds", 10)))
