"""Settings: where they come from, and what is said when they will not do."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.settings.settings import SettingsError, fields, load, parse_flags
from node.settings.settings_docs import configuration_markdown

ROOT = Path(__file__).parents[2]


def refusal(**flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load(environment={}, flags={k.replace("__", "."): v for k, v in flags.items()})
    return str(caught.value)


def test_the_defaults_are_a_cluster_of_one():
    settings = load(environment={})

    assert (settings.node, settings.peers, settings.http) == ("node-1", {}, "127.0.0.1:8080")


def test_a_flag_beats_the_environment_beats_the_file(tmp_path: Path):
    file = tmp_path / "node.toml"
    file.write_text('node = "a"\ncluster = "a"\ndata_dir = "a"\n[log]\nretain_hours = 1\n')
    environment = {"QUORATE_NODE": "b", "QUORATE_CLUSTER": "b", "QUORATE_LOG__HOT_BYTES": "2MiB"}

    settings = load(file=file, environment=environment, flags=parse_flags(["--node", "c"]))

    assert (settings.node, settings.cluster, settings.data_dir) == ("c", "b", "a")
    assert (settings.log.retain_hours, settings.log.hot_bytes) == (1, 2 * 1024 * 1024)


def test_peers_may_be_one_line_of_text():
    text = "a=127.0.0.1:1, b=h:2"

    settings = load(environment={}, flags={"node": "a", "peers": text, "secret": "long enough"})

    assert settings.peers == {"a": "127.0.0.1:1", "b": "h:2"}


def test_a_listener_may_be_off():
    assert load(environment={"QUORATE_AMQP": "off"}).amqp is None


def test_a_flag_may_have_dashes_and_an_equals_sign():
    assert parse_flags(["--log.retain-hours=24", "--data-dir", "x"]) == {
        "log.retain_hours": "24",
        "data_dir": "x",
    }


@pytest.mark.parametrize(
    ("flags", "key", "may_be"),
    [
        ({"log_level": "loud"}, "log_level", "debug | info | warning | error"),
        ({"http": "8080"}, "http", "host:port"),
        ({"node": "a b"}, "node", "letters, digits"),
        ({"default_groups": 0}, "default_groups", "whole number, at least 1, at most 1024"),
        ({"log__segment_bytes": "big"}, "log.segment_bytes", "64MiB"),
        ({"limits__credit_defualt": 1}, "limits.credit_defualt", "limits.credit_default"),
        ({"peers": "a:1"}, "peers", "node=host:port"),
        ({"peers": "a=h:1"}, "peers", "node-1=127.0.0.1:7070"),
        ({"raft__heartbeat_ms": 334}, "raft.heartbeat_ms", "at most 333"),
        ({"raft__election_ms_max": 1000}, "raft.election_ms_max", "more than 1000"),
        ({"tls__peer_key": "k"}, "tls.peer_key", "all three, or none"),
        ({"peers": "node-1=h:1,b=h:2"}, "secret", "at least 8 characters"),
        ({"amqp": "5672"}, "amqp", "host:port, or off"),
        ({"amqps": "127.0.0.1:5671"}, "amqps", "with tls.client_cert"),
        ({"tls": {"amqps_verify": "optional"}}, "tls.amqps_verify", "with tls.client_ca"),
        ({"tls__client_cert": "c"}, "tls.client_key", "both, or none"),
    ],
)
def test_a_bad_setting_names_its_key_and_what_it_may_be(
    flags: dict[str, object], key: str, may_be: str
):
    text = refusal(**flags)

    assert key in text
    assert may_be in text


def test_a_secret_is_never_shown():
    assert "hush" not in refusal(secret="hush")


def test_every_bad_setting_is_named_at_once():
    assert len(refusal(log_level="loud", replication=0).splitlines()) == 2


def test_a_file_that_is_missing_or_no_toml_is_named(tmp_path: Path):
    broken = tmp_path / "broken.toml"
    broken.write_text("= 1")

    for file in (broken, tmp_path / "missing.toml"):
        with pytest.raises(SettingsError, match=file.name):
            load(file=file, environment={})


def test_a_word_that_is_no_flag_is_refused():
    for words in (["node"], ["--node"]):
        with pytest.raises(SettingsError, match="--"):
            parse_flags(words)


def test_the_secret_can_be_in_a_file(tmp_path: Path):
    file = tmp_path / "secret"
    file.write_text("something long\n")

    assert load(environment={}, flags={"secret_file": str(file)}).cluster_secret() == (
        "something long"
    )


def test_every_key_is_described():
    assert [key for key, field in fields().items() if not field.description] == []


def test_the_configuration_document_is_up_to_date():
    """`python -m node.settings.settings_docs > docs/configuration.md` writes it anew."""
    assert (ROOT / "docs/configuration.md").read_text() == configuration_markdown()
