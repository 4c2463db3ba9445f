"""Names and passwords: where a client takes them from, and where they never show."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

import quorate
from quorate.cli import run
from quorate.credentials import split_credentials
from tests.client.fake_node import FakeCluster


def header(user: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def test_an_address_may_have_a_user_and_a_percent_encoded_password():
    urls, headers = split_credentials(["http://shop:p%40ss%2C@h:1/", "h:2"], None, None)

    assert urls == ["http://h:1", "http://h:2"]
    assert headers == header("shop", "p@ss,")


def test_without_a_user_nothing_is_sent():
    assert split_credentials(["h:1"], None, None) == (["http://h:1"], {})


def test_a_user_given_apart_beats_that_of_an_address():
    assert split_credentials(["a:b@h:1"], "shop", "pässword")[1] == header("shop", "pässword")


@pytest.mark.parametrize(
    ("addresses", "user", "password"),
    [
        (["a:secret@h:1", "b:secret@h:2"], None, None),
        (["h:1"], None, "secret"),
        (["h:1"], "a:b", "secret"),
    ],
)
def test_what_cannot_be_sent_is_refused_without_showing_the_password(
    addresses: list[str], user: str | None, password: str | None
):
    with pytest.raises(ValueError) as caught:
        split_credentials(addresses, user, password)

    assert "secret" not in str(caught.value)


async def test_every_request_carries_the_credentials_also_to_the_node_it_is_sent_to(
    cluster: FakeCluster,
):
    await cluster.lead(cluster.nodes[1])
    url = cluster.nodes[0].url.replace("http://", "http://shop:secret@")
    async with quorate.connect(url, timeout=60) as client:
        await client.declare("orders")
        await client.publish("orders", b"a")
        assert len(await client.peek("orders")) == 1

    seen = [
        (node.name, path, given) for node in cluster.nodes for path, given in node.authorizations
    ]
    assert {given for _, _, given in seen} == {header("shop", "secret")["Authorization"]}
    assert {name for name, path, _ in seen if path.endswith("peek")} >= {"n2"}


async def test_a_client_that_is_not_let_in_says_so_at_once(cluster: FakeCluster):
    for node in cluster.nodes:
        node.closed_to_strangers = True
    url = cluster.nodes[0].url.replace("http://", "http://shop:secret@")
    async with quorate.connect(url, timeout=60) as client:
        with pytest.raises(quorate.ClientClosed, match="give the name and the password") as caught:
            await client.declare("orders")
        with pytest.raises(quorate.Refused) as refused:
            await client.status()

    assert refused.value.code == "access_refused"
    assert "secret" not in str(caught.value)


def test_the_command_takes_the_password_from_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from quorate.cli.output import login

    file = tmp_path / "password"
    file.write_text("secret\n")
    # No cluster is here: the command fails, after it has read who it is.
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("QUORATE_URL", raising=False)
    run(["--user", "shop", "--password-file", str(file), "status"])
    assert (login.user, login.password) == ("shop", "secret")

    monkeypatch.setenv("QUORATE_USER", "till")
    monkeypatch.setenv("QUORATE_PASSWORD", "other")
    run(["status"])
    assert (login.user, login.password) == ("till", "other")
    monkeypatch.setenv("QUORATE_URL", "127.0.0.1:1")
    assert run(["--password-file", str(tmp_path / "none"), "status"]) == 2
