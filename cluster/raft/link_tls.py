"""Mutual TLS between nodes: the two contexts of a node and whose certificates they take."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """Contexts for links, both of which must ask for the peer's certificate.

    A certificate is for a peer when one of its names (DNS or IP, `*.` allowed) is its node id
    or the host by which it is configured. The links look at that themselves, at both ends, so the
    contexts need not check host names.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext

    def __post_init__(self) -> None:
        for context in (self.server, self.client):
            if context.verify_mode is not ssl.CERT_REQUIRED:
                raise ValueError("both TLS contexts of a link must have verify_mode CERT_REQUIRED")

    @classmethod
    def from_files(cls, *, certificate: str, key: str, authority: str) -> TlsConfig:
        """One certificate and key for both directions; peers' are signed by `authority`."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname = False
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.verify_mode = ssl.CERT_REQUIRED
            # A key with a password is refused: without this, OpenSSL would ask at the terminal.
            context.load_cert_chain(certificate, key, password="")
            context.load_verify_locations(authority)
        return cls(server, client)


async def secured(
    transport: asyncio.Transport,
    protocol: asyncio.Protocol,
    tls: TlsConfig,
    *,
    dialed_host: str | None,
) -> asyncio.Transport:
    """The transport with TLS around it. OSError (ssl's errors are such) when the peer will not."""
    upgraded = await asyncio.get_running_loop().start_tls(
        transport,
        protocol,
        tls.server if dialed_host is None else tls.client,
        server_side=dialed_host is None,
        server_hostname=dialed_host,
    )
    if upgraded is None:
        raise ConnectionResetError("it hung up during the TLS handshake")
    return upgraded
