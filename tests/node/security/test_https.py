"""Real clients over TLS, at nodes that are processes."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import sys
import time
from pathlib import Path

import aiohttp
import pika
import pytest
import trustme

import quorate
from tests.node.nodes import until
from tests.node.security.processes import Processes, Secret, get, trusting

GUEST = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
TLS_ONLY = ("https", "amqps", "peer")


async def test_all_that_http_serves_is_there_over_tls_alone(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, listeners=TLS_ONLY, **settings) as nodes:
        at = f"https://127.0.0.1:{nodes.one.ports['https']}"
        context = trusting(authority)

        async def ready() -> bool:
            return (await get(f"{at}/health/ready", context))[0] == 200

        await until(ready)
        assert (await get(f"{at}/api/overview", context, headers=GUEST))[0] == 200
        assert (await get(f"{at}/v1/status", context))[0] == 200
        _, metrics = await get(f"{at}/metrics", context)
        expiry = [line for line in metrics.splitlines() if "certificate_expiry" in line]
        listeners = {line.split('"')[1] for line in expiry if '"' in line}
        assert listeners == {"https", "amqps"}
        assert all(float(line.rpartition(" ")[2]) > time.time() for line in expiry if '"' in line)
        check = f"{at}/api/health/checks/certificate-expiration/7900/years"
        status, found = await get(check, context, headers=GUEST)
        assert (status, '"Certificates expiring"' in found) == (503, True)
        Path(secret.path("tls.pem")).unlink()
        status, found = await get(check, context, headers=GUEST)
        assert (status, '"Certificates that cannot be read"' in found) == (503, True)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await get(f"{at}/health/ready", ssl.create_default_context())
        with pytest.raises(aiohttp.ClientError):
            await get(f"http://127.0.0.1:{nodes.one.ports['https']}/health/ready")


@pytest.mark.parametrize("port", ["https", "amqps"])
async def test_tls_before_1_2_and_weak_ciphers_are_refused(
    tmp_path: Path, authority: trustme.CA, secret: Secret, port: str
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, **settings) as nodes:

        async def connects(context: ssl.SSLContext) -> bool:
            try:
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", nodes.one.ports[port], ssl=context
                )
            except (ssl.SSLError, ConnectionError):
                return False
            writer.close()
            return True

        assert await connects(trusting(authority))
        newer = trusting(authority)
        newer.maximum_version = ssl.TLSVersion.TLSv1_2
        assert await connects(newer)
        old = trusting(authority)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        assert not await connects(old)
        newer.set_ciphers("AES128-SHA256:AES256-GCM-SHA384")  # no forward secrecy
        assert not await connects(newer)


async def test_pika_publishes_and_gets_over_tls(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, listeners=TLS_ONLY, **settings) as nodes:

        def use() -> bytes:
            parameters = pika.ConnectionParameters(
                "127.0.0.1",
                nodes.one.ports["amqps"],
                ssl_options=pika.SSLOptions(trusting(authority), "localhost"),
            )
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                channel.queue_declare("q", durable=True)
                channel.basic_publish("", "q", b"x" * 300_000)
                _, _, body = channel.basic_get("q", auto_ack=True)
                assert body is not None
                return body

        assert await asyncio.to_thread(use) == b"x" * 300_000


async def test_the_client_and_the_commands_follow_leaders_over_tls_alone(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    settings = secret.settings("client", authority=False)
    async with Processes(
        tmp_path, 3, listeners=("http", "https", "peer"), secret="of all nodes", **settings
    ) as nodes:
        urls = [f"https://127.0.0.1:{node.ports['https']}" for node in nodes.nodes]
        sent_on = 0
        # At most one of them leads the queue, unless leaders change just then.
        for url in [*urls, *urls]:
            async with quorate.connect(url, tls=trusting(authority), timeout=60) as client:
                await client.reach()
                await client.declare("q1")
                await client.publish("q1", b"hello")
                used = {connection.url for connection in client._core.routes.connections}
                assert used <= set(urls)  # never in the clear
                sent_on += len(used) > 1
        assert sent_on

        ca = tmp_path / "ca.pem"
        ca.write_bytes(authority.cert_pem.bytes())
        for command in (["status"], ["queue", "list"], ["queue", "show", "q1"], ["user", "list"]):
            status, out = await quorate_command(
                *command,
                "--json",
                "--timeout",
                "60",
                QUORATE_URL=",".join(urls),
                QUORATE_CA=str(ca),
            )
            assert status == 0, out
            assert json.loads(out)
        status, out = await quorate_command("status", "--json", QUORATE_URL=urls[0])
        assert status == 4, out
        assert "certificate" in out.lower()


async def quorate_command(*arguments: str, **environment: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "quorate",
        *arguments,
        env={**os.environ, **environment},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, error = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out if process.returncode == 0 else error).decode()


@pytest.mark.parametrize("verify", [False, True])
async def test_https_asks_for_certificates_when_told_to(
    tmp_path: Path, authority: trustme.CA, secret: Secret, verify: bool
):
    async with Processes(
        tmp_path, **secret.settings("client"), **{"tls.https_verify": str(verify).lower()}
    ) as nodes:
        url = f"https://127.0.0.1:{nodes.one.ports['https']}/health/live"
        context = trusting(authority)
        if verify:
            with pytest.raises(aiohttp.ClientError):
                await get(url, context)
            authority.issue_cert("probe.example").configure_cert(context)
        assert (await get(url, context))[0] == 200
