"""Certificates of this node, of which some end soon."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from cryptography import x509

from node.settings.sections import TlsSettings

_FILES = ("peer_cert", "peer_ca", "client_cert", "client_ca")


def ending_certificates(tls: TlsSettings, until: dt.datetime) -> list[dict[str, Any]]:
    """Those that end by then, with when, and those that cannot be read, with why."""
    paths = [path for name in _FILES if (path := getattr(tls, name)) is not None]
    return [found for path in paths for found in _ending(Path(path), until)]


def _ending(path: Path, until: dt.datetime) -> list[dict[str, Any]]:
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as error:
        return [{"cert": str(path), "reason": str(error)}]
    return [
        {"cert": str(path), "not_valid_after": each.not_valid_after_utc.isoformat()}
        for each in found
        if each.not_valid_after_utc <= until
    ]
