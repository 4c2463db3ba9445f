"""Public keys of users, as NATS writes them: `U` and base32 of a prefix, an Ed25519 key and a
checksum. Pure.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

KEY_CHARACTERS: Final = 56
#: Of a user's key, so that its text begins with U.
_USER: Final = 20 << 3


def wrong_nkey(text: str) -> str | None:
    """Why it is none."""
    if _key_of(text) is None:
        return f"{text[:80]!r} is no public nkey of a user: {KEY_CHARACTERS} characters from U on"
    return None


def is_signed(nkey: str, data: bytes, signature: str) -> bool:
    """By the one whose public key it is; the signature in base64, of URLs or not."""
    key = _key_of(nkey)
    if key is None:
        return False
    try:
        text = signature.rstrip("=").translate(str.maketrans("+/", "-_")).encode("ascii")
        given = base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
        Ed25519PublicKey.from_public_bytes(key).verify(given, data)
    except (ValueError, InvalidSignature):  # also of base64, or of no character of it
        return False
    return True


def _key_of(text: str) -> bytes | None:
    if len(text) != KEY_CHARACTERS:
        return None
    try:
        raw = base64.b32decode(text)
    except ValueError:
        return None
    prefix, key, check = raw[0], raw[1:33], raw[33:]
    right = binascii.crc_hqx(raw[:33], 0).to_bytes(2, "little")
    return key if prefix == _USER and check == right else None
