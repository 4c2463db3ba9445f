"""`quorate node drain`, as an operator and as Kubernetes run it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import aiohttp
import pytest
import trustme

from node.node import Node
from node.settings.settings import load
from quorate.cli.drain import seconds
from quorate.cli.output import CommandError
from quorate.local import LocalCluster, LocalNode
from tests.node.nodes import free_ports, until
from tests.testkit.commands import command


async def drain(*words: str, **environment: str) -> tuple[int, str, str]:
    return await command("node", "drain", *words, **environment)


def settings_of(node: LocalNode) -> tuple[str, str]:
    return "--config", str(node.folder / "quorate.toml")


async def is_ready(node: LocalNode) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"{node.url}/health/ready") as answer:
        return answer.status == 200


@pytest.mark.parametrize(
    ("text", "is_s"), [("90", 90), ("90s", 90), ("1.5m", 90), ("500ms", 0.5), ("1h", 3600)]
)
def test_a_time_has_a_unit_or_is_seconds(text: str, is_s: float):
    assert seconds(text) == is_s


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 day", "1e3", "nan"])
def test_what_is_no_time_is_wrong_usage(text: str):
    with pytest.raises(CommandError, match="not a time; allowed: such as 90s"):
        seconds(text)


async def test_a_pre_stop_never_fails_and_says_why_nothing_was_done(tmp_path: Path):
    config = tmp_path / "quorate.toml"
    config.write_text(f'data_dir = "{tmp_path / "none"}"\n')
    status, out, said = await drain("--pre-stop", "--config", str(config))
    assert (status, out) == (0, "")
    assert "does not run" in said

    config.write_text("colour = 'red'\n")
    status, _, said = await drain("--pre-stop", "--config", str(config))
    assert (status, "colour: there is no such key" in said) == (0, True)
    status, _, said = await drain("--pre-stop")
    assert (status, "needs --config" in said) == (0, True)

    status, _, said = await drain("--config", str(tmp_path / "no.toml"))
    assert (status, "cannot be read" in said) == (2, True)
    status, _, said = await drain()
    assert (status, "which node?" in said) == (2, True)


async def test_a_pre_stop_does_nothing_while_the_whole_cluster_goes(tmp_path: Path):
    label, config = tmp_path / "skip", tmp_path / "quorate.toml"
    label.write_text("true")
    config.write_text(f'data_dir = "{tmp_path / "none"}"\n')
    asked = ("--pre-stop", "--config", str(config))

    status, _, said = await drain(*asked, "--skip-file", str(label))
    assert (status, said) == (
        0,
        f"not drained: {label} is not empty, the whole cluster is to go\n",
    )
    status, _, said = await drain(*asked, QUORATE_DRAIN__SKIP_FILE=str(label))
    assert (status, "the whole cluster is to go" in said) == (0, True)
    label.write_text("")
    status, _, said = await drain(*asked, "--skip-file", str(label))
    assert (status, "does not run" in said) == (0, True)


async def test_a_node_that_speaks_https_alone_is_drained_too(tmp_path: Path):
    """By an address that its certificate does not name."""
    authority = trustme.CA()
    made = authority.issue_cert("broker.example")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made.private_key_pem.write_to_path(str(key))
    made.cert_chain_pems[0].write_to_path(str(certificate))
    [peer] = free_ports(1)
    config = tmp_path / "quorate.toml"
    config.write_text(
        f"""
        data_dir = "{tmp_path / "data"}"
        http = "off"
        https = "127.0.0.1:0"
        amqp = "off"
        peer = "127.0.0.1:{peer}"
        log.min_free_bytes = 0
        tls.client_cert = "{certificate}"
        tls.client_key = "{key}"
        """
    )
    node = Node(load(file=config, environment={}))
    await node.start()
    try:
        await until(lambda: node.health.why_not_ready() == [])
        status, _, said = await drain("--config", str(config), "--json")
        assert status == 0, said
        assert node.health.why_not_ready()[0].startswith("the node is draining")
    finally:
        await node.stop()


@pytest.mark.live
async def test_nodes_are_drained_by_their_settings_alone(local: LocalCluster):
    first, second, third = local.nodes

    status, out, said = await drain(*settings_of(first))
    assert status == 0, said
    assert "leaderships handed over" in out
    assert "node-1: drained" in said
    assert not await is_ready(first)

    status, _, said = await drain(*settings_of(second), "--timeout", "200ms")
    assert status == 1
    assert "quorum_critical" in said
    assert "catalog lacks node-1" in said
    begun = time.monotonic()
    status, _, said = await drain(*settings_of(second), "--pre-stop", "--timeout", "2s")
    assert (status, "catalog lacks node-1" in said) == (0, True)
    assert time.monotonic() - begun >= 1  # it has waited
    assert await is_ready(second)

    status, _, said = await drain(*settings_of(first), "--undo")
    assert (status, said) == (0, "node node-1: serves again\n")
    assert await is_ready(first)
    status, out, said = await drain("node-3", "--url", second.url, "--json")
    assert (status, json.loads(out)["node"]) == (0, "node-3"), said
    status, _, said = await drain("node-9", "--url", second.url)
    assert (status, "there is no node 'node-9'" in said) == (1, True)

    assert third.process is not None
    third.process.send_signal(signal.SIGTERM)
    assert await third.process.wait() == 0
    log = third.log_file.read_text()
    assert '"drain_ended"' in log
    await local.start(third)
    await until(lambda: ready_again(third))


async def ready_again(node: LocalNode) -> bool:
    try:
        return await is_ready(node)
    except aiohttp.ClientError:
        return False
