"""Passwords as they are kept: scrypt for ours, and the salted hashes of RabbitMQ, so that users
come along with the definitions of a cluster there.

A hash is base64 of the salt and the digest. An empty one belongs to a user who has no password and
cannot log in by one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Literal

SCRYPT = "scrypt"
#: How RabbitMQ hashes when definitions do not say so.
RABBIT_SHA256 = "rabbit_password_hashing_sha256"
_SALTED = {RABBIT_SHA256: "sha256", "rabbit_password_hashing_sha512": "sha512"}
#: What RabbitMQ can read.
RABBIT_ALGORITHMS = frozenset(_SALTED)
#: What the settings offer for new passwords.
Hashing = Literal["scrypt", "rabbitmq_sha256"]

#: 16 MiB and some 50 ms for each guess.
SCRYPT_N = 2**14
SCRYPT_R = 8
SCRYPT_P = 1
SCRYPT_SALT_BYTES = 16
SCRYPT_DIGEST_BYTES = 32
RABBIT_SALT_BYTES = 4


def hash_password(
    password: str, salt: bytes | None = None, *, hashing: Hashing = "scrypt"
) -> tuple[str, str]:
    """(hash, algorithm), as an entry of the table of users has them."""
    if hashing == "rabbitmq_sha256":
        salt = secrets.token_bytes(RABBIT_SALT_BYTES) if salt is None else salt
        digest = hashlib.sha256(salt + _bytes(password)).digest()
        return base64.b64encode(salt + digest).decode(), RABBIT_SHA256
    salt = secrets.token_bytes(SCRYPT_SALT_BYTES) if salt is None else salt
    return base64.b64encode(salt + _scrypt(password, salt)).decode(), SCRYPT


def wrong_hash(password_hash: str, algorithm: str) -> str | None:
    """What it would have to be, in words. None: somebody may have made it, or nobody has one."""
    if algorithm == SCRYPT:
        salt, digest = SCRYPT_SALT_BYTES, SCRYPT_DIGEST_BYTES
    elif algorithm in _SALTED:
        salt, digest = RABBIT_SALT_BYTES, hashlib.new(_SALTED[algorithm]).digest_size
    else:
        return None  # the catalog knows no such algorithm, and says so
    try:
        size = len(base64.b64decode(password_hash, validate=True))
    except (binascii.Error, ValueError):
        size = -1
    if not password_hash or size == salt + digest:
        return None
    return (
        f"password_hash is no hash of {algorithm}: that is base64 of {salt + digest} bytes,"
        f" {salt} of salt and {digest} of digest"
    )


def verify(password: str, password_hash: str, algorithm: str) -> bool:
    """Whether this is the password. False, too, for a hash that nobody can have made."""
    try:
        kept = base64.b64decode(password_hash, validate=True)
    except (binascii.Error, ValueError):
        return False
    if algorithm == SCRYPT:
        salt, digest = kept[:SCRYPT_SALT_BYTES], kept[SCRYPT_SALT_BYTES:]
        found = _scrypt(password, salt)
    elif algorithm in _SALTED:
        salt, digest = kept[:RABBIT_SALT_BYTES], kept[RABBIT_SALT_BYTES:]
        found = hashlib.new(_SALTED[algorithm], salt + _bytes(password)).digest()
    else:
        return False
    return hmac.compare_digest(found, digest)


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(
        _bytes(password),
        salt=salt,
        n=SCRYPT_N,
        r=SCRYPT_R,
        p=SCRYPT_P,
        dklen=SCRYPT_DIGEST_BYTES,
    )


def _bytes(password: str) -> bytes:
    return password.encode(errors="surrogatepass")  # any text is somebody's guess
