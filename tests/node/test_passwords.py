"""Hashes of passwords: our own, and those that come with definitions of RabbitMQ."""

from __future__ import annotations

import base64
import hashlib

import pytest

from cluster.machine.catalog import CatalogMachine
from cluster.machine.catalog_entries import HASHING_ALGORITHMS
from node.access.passwords import SCRYPT, hash_password, verify, wrong_hash

#: The example of RabbitMQ's documentation: "test12" with the salt 908DC60A.
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
SHA256 = "rabbit_password_hashing_sha256"
SHA512 = "rabbit_password_hashing_sha512"


def test_the_documented_hash_of_rabbitmq_is_that_of_its_password():
    assert base64.b64decode(DOCUMENTED)[:4] == bytes.fromhex("908DC60A")
    assert verify("test12", DOCUMENTED, SHA256)
    assert not verify("test13", DOCUMENTED, SHA256)


def test_sha512_of_rabbitmq():
    salt = bytes.fromhex("01020304")
    kept = base64.b64encode(salt + hashlib.sha512(salt + "pässword".encode()).digest()).decode()

    assert verify("pässword", kept, SHA512)
    assert not verify("pässword", kept, SHA256)


def test_ours_is_salt_and_scrypt():
    kept, algorithm = hash_password("secret", bytes(range(16)))
    data = base64.b64decode(kept)

    assert algorithm == "scrypt"
    assert data[:16] == bytes(range(16))
    assert data[16:] == hashlib.scrypt(
        b"secret", salt=bytes(range(16)), n=2**14, r=8, p=1, dklen=32
    )
    assert verify("secret", kept, algorithm)
    assert not verify("Secret", kept, algorithm)


def test_every_algorithm_that_the_catalog_takes_can_be_checked():
    kept, _ = hash_password("secret")
    digests = {
        "scrypt": base64.b64decode(kept),
        SHA256: b"salt" + hashlib.sha256(b"saltsecret").digest(),
        SHA512: b"salt" + hashlib.sha512(b"saltsecret").digest(),
    }

    for algorithm in HASHING_ALGORITHMS:
        assert verify("secret", base64.b64encode(digests[algorithm]).decode(), algorithm)


def test_guest_of_a_new_cluster_has_the_password_guest():
    entry = CatalogMachine().entry("users", ("guest",))

    assert entry is not None
    assert verify("guest", entry["password_hash"], entry["hashing_algorithm"])


def test_equal_passwords_have_different_hashes():
    assert hash_password("secret") != hash_password("secret")


@pytest.mark.parametrize("kept", ["", "AAAA", "no base64!", "ä", "kI3GCg=="])
@pytest.mark.parametrize("algorithm", ["scrypt", SHA256, SHA512, "md5", ""])
@pytest.mark.parametrize("password", ["", "secret", "\ud800"])
def test_a_hash_that_nobody_made_has_no_password(kept: str, algorithm: str, password: str):
    assert not verify(password, kept, algorithm)


@pytest.mark.parametrize("algorithm", [SCRYPT, SHA256, SHA512])
def test_what_cannot_be_a_hash_is_known(algorithm: str):
    size = {SCRYPT: 48, SHA256: 36, SHA512: 68}[algorithm]
    for fine in ("", base64.b64encode(bytes(size)).decode()):
        assert wrong_hash(fine, algorithm) is None
    for wrong in (
        "secret",
        "é",
        "A" * 7,
        *(base64.b64encode(bytes(other)).decode() for other in (1, size - 1, size + 1, size * 2)),
    ):
        assert f"base64 of {size} bytes" in (wrong_hash(wrong, algorithm) or "")


def test_what_was_hashed_can_be_a_hash():
    assert wrong_hash(*hash_password("secret")) is None
    assert wrong_hash(DOCUMENTED, SHA256) is None
