"""Public keys and signatures, as NATS's own library makes them."""

from __future__ import annotations

import pytest

from cluster.machine.catalog_entries import checked_value
from cluster.machine.checks import BadValue
from node.access.nkeys import is_signed, wrong_nkey

#: Of the seed SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y.
NKEY = "UAB2CB576PHBBPQ5ODORRZ2LYCMWPZGWGCN2KDK7DXOIMZASKUY3RLKK"
SIGNED = "Aj_HcjDZwFlZktcyYu97JAgWYctxzcaFc0SikCYG0tfchHcFVhub4zZnHvakWWBUcdmRZEtv5hiISSzXSYZ5BA=="


def test_a_signature_holds_for_its_key_and_its_data():
    assert wrong_nkey(NKEY) is None
    assert is_signed(NKEY, b"nonce-1", SIGNED)
    assert is_signed(NKEY, b"nonce-1", SIGNED.rstrip("="))
    assert is_signed(NKEY, b"nonce-1", SIGNED.replace("_", "/").replace("-", "+"))
    assert not is_signed(NKEY, b"nonce-2", SIGNED)


@pytest.mark.parametrize(
    "signature", ["", "A", "AAAA", "!", "\ud800", "\u00e9", SIGNED[4:], "A" * 86]
)
def test_what_is_no_signature_is_none(signature: str):
    assert not is_signed(NKEY, b"nonce-1", signature)


@pytest.mark.parametrize(
    "text",
    [
        "",
        NKEY[:-1],
        NKEY[:-1] + "A",  # the checksum
        NKEY.lower(),
        "A" + NKEY[1:],  # an account's
        "U" * 55 + "1",
        "\u00dc" + NKEY[1:],
        "SUAAAAICAMCAKBQHBAEQUCYMBUHA6EARCIJRIFIWC4MBSGQ3DQOR4H776Y",
    ],
)
def test_what_is_no_key_of_a_user_is_told(text: str):
    assert "no public nkey" in (wrong_nkey(text) or "")
    assert not is_signed(text, b"nonce-1", SIGNED)


def test_a_user_may_have_them_from_machine_version_5_on():
    assert "nkeys" not in checked_value("users", {}, 5)
    assert checked_value("users", {"nkeys": [NKEY]}, 5)["nkeys"] == [NKEY]
    for value, version in (({"nkeys": [NKEY]}, 4), ({"nkeys": NKEY}, 5)):
        with pytest.raises(BadValue, match="nkeys"):
            checked_value("users", value, version)
