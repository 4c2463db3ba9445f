"""Certificates change while nodes run."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from tests.node.nodes import until
from tests.node.security.processes import Processes, Secret, get, shown, trusting


@pytest.mark.parametrize("hang_up", [False, True])
async def test_new_connections_get_the_new_certificate_and_open_ones_stay(
    tmp_path: Path, authority: trustme.CA, secret: Secret, hang_up: bool
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, **settings) as nodes:
        node, context = nodes.one, trusting(authority)
        https, amqps = node.ports["https"], node.ports["amqps"]
        before = await shown(https, context)
        assert await shown(amqps, context) == before
        reader, writer = await asyncio.open_connection("127.0.0.1", https, ssl=context)

        ends = datetime.now(UTC).replace(microsecond=0) + timedelta(days=33)
        secret.put(authority, "127.0.0.1", "localhost", not_after=ends)
        if hang_up:
            node.hang_up()
        await node.logged("certificate_loaded")

        after = await shown(https, context)
        assert after != before
        assert await shown(amqps, context) == after
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        answer = (await reader.read(-1)).decode()
        assert answer.startswith("HTTP/1.1 200")
        [line] = [x for x in answer.splitlines() if 'timestamp_seconds{listener="https"}' in x]
        assert float(line.rpartition(" ")[2]) == ends.timestamp()


async def test_what_cannot_be_used_is_not_taken(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    settings = secret.settings("client", authority=False)
    async with Processes(tmp_path, **settings) as nodes:
        node, context = nodes.one, trusting(authority)
        for count, broken in enumerate(("key of another", "not PEM", "missing", "locked"), start=1):
            before = await shown(node.ports["https"], context)
            one, other = (authority.issue_cert("127.0.0.1") for _ in range(2))
            certificate, key = one.cert_chain_pems[0].bytes(), other.private_key_pem.bytes()
            if broken == "missing":
                (secret.folder / "tls.key").unlink()
            else:
                bad = {"key of another": key, "not PEM": b"?", "locked": locked(one)}
                secret.put_bytes(b"", certificate, bad[broken])
            node.hang_up()

            told = await node.logged("certificate_refused", count)

            assert "the old one stays in use" in told["reason"], broken
            assert await shown(node.ports["https"], context) == before, broken
            assert await shown(node.ports["amqps"], context) == before, broken

            if broken == "missing":
                (secret.folder / "tls.key").symlink_to("..data/tls.key")
            secret.put(authority, "127.0.0.1")
            node.hang_up()
            await node.logged("certificate_loaded", count)
            assert await shown(node.ports["https"], context) != before, broken


def locked(issued: trustme.LeafCert) -> bytes:
    """Its key, behind a password."""
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"a password"),
    )


async def test_a_client_of_an_authority_that_is_no_longer_trusted_stays_out(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    async with Processes(
        tmp_path, **secret.settings("client"), **{"tls.https_verify": "true"}
    ) as nodes:
        node = nodes.one
        url = f"https://127.0.0.1:{node.ports['https']}/health/live"
        old = trusting(authority)
        authority.issue_cert("probe.example").configure_cert(old)
        assert (await get(url, old))[0] == 200

        other = trustme.CA()
        secret.put(other, "127.0.0.1")
        await node.logged("certificate_loaded")

        stranger = trusting(other)
        authority.issue_cert("probe.example").configure_cert(stranger)
        with pytest.raises(aiohttp.ClientError):
            await get(url, stranger)
        new = trusting(other)
        other.issue_cert("probe.example").configure_cert(new)
        assert (await get(url, new))[0] == 200


async def test_nodes_know_each_other_by_certificates_alone_and_by_new_ones_later(
    tmp_path: Path, authority: trustme.CA
):
    secret = Secret(tmp_path / "peers")
    secret.put(authority, "n1", "n2", "n3")
    async with Processes(
        tmp_path, 3, listeners=("http", "peer"), **secret.settings("peer")
    ) as nodes:
        secret.put(authority, "n1", "n2", "n3")
        for node in nodes.nodes:
            await node.logged("certificate_loaded")
        # A restarted node has the new certificate only, and is let in; a stranger's is not.
        last = nodes.nodes[-1]
        assert await last.stop() == 0
        await last.start()
        await last.logged("node_registered", 2)
        assert await last.stop() == 0
        stranger = Secret(tmp_path / "stranger")
        stranger.put(trustme.CA(), "n1", "n2", "n3")
        last.settings |= stranger.settings("peer")
        before = links(nodes)
        await last.start()
        refused = await until(
            lambda: [
                event
                for node in nodes.nodes
                for event in (*node.events("link_failed"), *node.events("link_refused"))
                if event["code"] == "tls"
            ]
        )
        assert refused
        assert links(nodes) == before


def links(nodes: Processes) -> int:
    """How often the last node was connected with the others."""
    name = nodes.nodes[-1].name
    ups = [event for node in nodes.nodes[:-1] for event in node.events("link_up")]
    return sum(event["peer"] == name for event in ups)
