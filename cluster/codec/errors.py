"""The one error of this package: bytes that are not what they should be."""

from __future__ import annotations


class CodecError(ValueError):
    """These bytes (or this value) cannot be what was asked for; the message says why."""
