"""JetStream's domain: clients that name it, and those that do not, find the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import nats
import pytest

from node.settings.settings import SettingsError, load
from tests.node.nats.test_core import address, ask
from tests.node.nats.wire import Wire
from tests.node.nodes import Running, in_a_thread
from tests.testkit.waiting import WAIT_S


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("nats-domain")
    with in_a_thread(folder, nats="127.0.0.1:0", nats_domain="hub") as running:
        yield running


async def _pass(_: Exception) -> None: ...


async def test_clients_with_the_domain_and_without_it_find_the_same(hub: Running):
    client = await nats.connect(f"nats://{address(hub)}", user="guest", password="guest")
    named, plain = client.jetstream(domain="hub"), client.jetstream()
    await named.add_stream(name="S", subjects=["s"])
    for number in range(100):
        await client.publish("s", b"%d" % number)
    assert (await plain.publish("s", b"last")).seq == 101
    subscription = await named.pull_subscribe("s", "c")

    found = await subscription.fetch(101, timeout=WAIT_S)
    for each in found:
        await each.ack_sync()

    assert [each.metadata.sequence.stream for each in found] == [*range(1, 102)]
    assert (await plain.consumer_info("S", "c")).num_ack_pending == 0
    answer = await client.request("$JS.hub.API.INFO", b"", timeout=WAIT_S)
    assert json.loads(answer.data)["domain"] == "hub"
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("$JS.other.API.INFO", b"", timeout=WAIT_S)
    await client.close()


async def test_keys_are_put_behind_the_prefix_of_the_domain(
    hub: Running, wires: Callable[[str], Wire]
):
    client = await nats.connect(f"nats://{address(hub)}", user="guest", password="guest")
    bucket = await client.jetstream().create_key_value(bucket="b")
    wire = wires(address(hub)).connect()
    assert wire.info["domain"] == "hub"
    puts = [b"PUB $JS.hub.API.$KV.b.k _INBOX.%d 1\r\n%d\r\n" % (each, each) for each in range(5)]

    wire.send(b"SUB _INBOX.* 1\r\n" + b"".join(puts))

    assert {json.loads(wire.message()[3])["seq"] for _ in puts} == {1, 2, 3, 4, 5}
    assert (await bucket.get("k")).value == b"4"
    await client.close()


async def test_permissions_are_those_of_subjects_without_it(hub: Running):
    client = await nats.connect(f"nats://{address(hub)}", user="guest", password="guest")
    await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
    may = {"configure": "", "write": r"^\$JS\.API\.STREAM\.INFO", "read": "^_INBOX"}
    for path, body in (
        ("users/reader", {"password": "reader", "tags": ""}),
        ("permissions/%2f/reader", may),
    ):
        await asyncio.to_thread(ask, hub, "PUT", path, body)
    reader = await nats.connect(
        f"nats://{address(hub)}", user="reader", password="reader", error_cb=_pass
    )

    assert b'"KEPT"' in (await reader.request("$JS.hub.API.STREAM.INFO.KEPT", timeout=WAIT_S)).data
    with pytest.raises(nats.errors.TimeoutError):
        await reader.request("$JS.hub.API.STREAM.DELETE.KEPT", b"", timeout=0.5)

    assert (await client.jetstream().stream_info("KEPT")).config.name == "KEPT"
    await reader.close()
    await client.close()


@pytest.mark.parametrize("domain", ["API", "a.b", "a b", ">", "*"])
def test_a_domain_is_one_token(tmp_path: Path, domain: str):
    with pytest.raises(SettingsError, match="nats_domain: allowed: letters"):
        load(environment={}, flags={"data_dir": str(tmp_path), "nats_domain": domain})
