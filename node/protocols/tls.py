"""Certificates: read when the node starts, and again when their files change."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import structlog
from cryptography import x509

from cluster.raft.links import TlsConfig
from node.settings.sections import TlsSettings
from node.settings.settings import SettingsError

log = structlog.get_logger(__name__)

LOOK_S: Final = 2.0
#: What TLS 1.2 may use, each with forward secrecy and authenticated; TLS 1.3 has no others.
CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"

#: Of each file, what changes when it does: Kubernetes swaps a link to the folder of a secret.
Stamp = tuple[tuple[int, int, int, int] | None, ...]


class Certificates:
    """One per node. `amqps`, `https` and `peer` are for new connections; open ones keep theirs."""

    def __init__(self, settings: TlsSettings) -> None:
        """SettingsError: they cannot be used."""
        self.amqps: ssl.SSLContext | None = None
        self.https: ssl.SSLContext | None = None
        self.peer: TlsConfig | None = None
        self.on_peer: Callable[[TlsConfig], None] | None = None
        #: When the certificate of a listener ends, in seconds since 1970.
        self.expiry_s: dict[str, float] = {}
        self._settings = settings
        self._wake = asyncio.Event()
        self._sets: list[tuple[tuple[str, ...], Callable[[], None]]] = []
        self._stamps: list[Stamp] = []
        for names, load in (
            (("client_cert", "client_key", "client_ca"), self._load_client),
            (("peer_cert", "peer_key", "peer_ca"), self._load_peer),
        ):
            paths = tuple(path for name in names if (path := getattr(settings, name)) is not None)
            if not paths:
                continue
            self._sets.append((paths, load))
            self._stamps.append(stamp_of(paths))
            try:
                load()
            except (OSError, ValueError) as error:  # ssl's errors are of the first kind
                keys = ", ".join(f"tls.{name}" for name in names)
                raise SettingsError(
                    f"{keys}: {error}; allowed: readable PEM files that belong together"
                ) from error

    def __bool__(self) -> bool:
        return bool(self._sets)

    # --- reload -----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Look now."""
        self._wake.set()

    async def watch(self) -> None:
        """Runs as long as the node does."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            self._wake.clear()
            for number in range(len(self._sets)):
                await self._look(number)

    async def _look(self, number: int) -> None:
        paths, load = self._sets[number]
        found = await asyncio.to_thread(stamp_of, paths)
        if found == self._stamps[number]:
            return
        try:
            load()
            if stamp_of(paths) != found:
                return  # still being written: again at the next look
        except (OSError, ValueError) as error:
            log.error(
                "certificate_refused",
                files=paths,
                reason=f"{error}: the old one stays in use; give PEM files that belong together",
            )
        else:
            log.info("certificate_loaded", files=paths, expiry_s=self.expiry_s)
        self._stamps[number] = found

    def _load_client(self) -> None:
        """Contexts are made anew and take the place of the old ones whole, or not at all."""
        settings = self._settings
        asked = ssl.CERT_OPTIONAL if settings.amqps_verify == "optional" else ssl.CERT_REQUIRED
        amqps = server_context(settings, asked if settings.client_ca else ssl.CERT_NONE)
        https = server_context(
            settings, ssl.CERT_REQUIRED if settings.https_verify else ssl.CERT_NONE
        )
        assert settings.client_cert is not None
        ends_s = _ends_s(settings.client_cert)
        self.amqps, self.https = amqps, https
        self.expiry_s |= {"amqps": ends_s, "https": ends_s}

    def _load_peer(self) -> None:
        settings = self._settings
        assert settings.peer_cert is not None
        assert settings.peer_key is not None
        assert settings.peer_ca is not None
        peer = TlsConfig.from_files(
            certificate=settings.peer_cert, key=settings.peer_key, authority=settings.peer_ca
        )
        ends_s = _ends_s(settings.peer_cert)
        self.peer = peer
        self.expiry_s["peer"] = ends_s
        if self.on_peer is not None:
            self.on_peer(peer)


def server_context(settings: TlsSettings, verify: ssl.VerifyMode) -> ssl.SSLContext:
    """For clients. OSError: the files cannot be used."""
    assert settings.client_cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION
    # A session that is taken up again would not show its certificate to a new authority.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    # A key with a password is refused: without this, OpenSSL would ask at the terminal.
    context.load_cert_chain(settings.client_cert, settings.client_key, password="")
    if verify != ssl.CERT_NONE:
        context.load_verify_locations(settings.client_ca)
        context.verify_mode = verify
    return context


def certificate_user(transport: asyncio.Transport) -> str | None:
    """The common name of the client's certificate, if it has shown one."""
    found: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate = None if found is None else found.getpeercert()
    if not certificate:
        return None
    subject = cast("tuple[tuple[tuple[str, Any], ...], ...]", certificate.get("subject", ()))
    for part in subject:
        for name, value in part:
            if name == "commonName":
                return str(value)
    return None


def stamp_of(paths: tuple[str, ...]) -> Stamp:
    return tuple(_stamp(path) for path in paths)


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _ends_s(path: str) -> float:
    """The first to end of those in the file."""
    found = x509.load_pem_x509_certificates(Path(path).read_bytes())
    return min(each.not_valid_after_utc.timestamp() for each in found)
