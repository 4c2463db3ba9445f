"""Tools that administer RabbitMQ or put load on it, against three nodes: rabbitmqadmin of the
second generation, rabbit-hole (with which Terraform's provider speaks) and PerfTest. That of the
first generation is in tests/node/management/test_tools.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from tests.acceptance.clients import toolchains
from tests.acceptance.clients.brokers import QuorateBroker, quorate_nodes
from tests.acceptance.clients.toolchains import MissingError, Program

#: Building the crate may take long on a small machine; the tools themselves take seconds.
TOOL_S_MAX = 4_000
SAID_S_MAX = 240.0

pytestmark = [
    pytest.mark.clients,
    pytest.mark.toolchain,
    pytest.mark.timeout(TOOL_S_MAX),
    pytest.mark.xdist_group("clients"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[QuorateBroker]:
    async with quorate_nodes(tmp_path_factory.mktemp("tools") / "cluster") as broker:
        yield broker


async def prepared(prepare: Callable[[], Awaitable[Program]]) -> Program:
    try:
        return await prepare()
    except MissingError as missing:
        pytest.skip(str(missing))


async def run(program: Program, *arguments: str, fails: bool = False) -> str:
    process = await asyncio.create_subprocess_exec(
        *program.command,
        *arguments,
        env=os.environ | program.environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SAID_S_MAX):
        said, _ = await process.communicate()
    text = said.decode(errors="replace")
    assert (process.returncode != 0) == fails, f"{' '.join(arguments)}: {text}"
    return text


#: In this order; what is made first is used later.
COMMANDS = """
declare vhost --name v --description d
declare user --name u --password p --tags management
declare permissions --user u --configure .* --read .* --write .*
declare queue --name q --type quorum --durable true
declare queue --name c --type classic --durable true
declare exchange --name e --type topic
declare binding --source e --destination q --destination-type queue --routing-key a.*
declare policy --name p --pattern ^q --apply-to queues --definition {"max-length":10} --priority 1
declare operator_policy --name o --pattern ^q --apply-to queues --definition {"expires":99999}
declare vhost_limit --name max-queues --value 100
declare user_limit --user u --name max-connections --value 5
publish message --routing-key q --payload hello
list nodes
list users
list vhosts
list permissions
list connections
list user_connections --username guest
list channels
list queues
list exchanges
list bindings
list consumers
list parameters
list policies
list operator_policies
list vhost_limits
list user_limits
list feature_flags
list deprecated_features
list deprecated_features_in_use
queues show --name q
show overview
show churn
show memory_breakdown_in_bytes --node {node}
show memory_breakdown_in_percent --node {node}
health_check local_alarms
health_check cluster_wide_alarms
health_check port_listener --port {port}
health_check protocol_listener --protocol amqp
auth_attempts stats --node {node}
plugins list_all
passwords salt_and_hash secret
global_parameters list
rebalance queues
vhosts enable_deletion_protection --name v
definitions export --file {file}
vhosts disable_deletion_protection --name v
delete vhost --name v
definitions import --file {file}
vhosts disable_deletion_protection --name v
purge queue --name c
delete binding --source e --destination q --destination-type queue --routing-key a.*
delete exchange --name e
delete queue --name c
delete user --name u
""".strip().splitlines()


async def test_rabbitmqadmin_2_administers_and_survives_a_leader(
    broker: QuorateBroker, tmp_path: Path
):
    program = await prepared(toolchains.rabbitmqadmin)

    async def admin(line: str, *, fails: bool = False) -> str:
        at = urlsplit(broker.management_urls[0])
        login = ("--host", str(at.hostname), "--port", str(at.port))
        login += ("--username", "guest", "--password", "guest", "--non-interactive")
        return await run(program, *login, *line.split(), fails=fails)

    places = {
        "{node}": "node-1",
        "{port}": str(urlsplit(broker.urls[0]).port),
        "{file}": str(tmp_path / "definitions.json"),
    }
    for line in COMMANDS:
        for name, value in places.items():
            line = line.replace(name, value)
        await admin(line)
    users = json.loads((tmp_path / "definitions.json").read_text())["users"]
    assert {user["name"] for user in users} == {"guest", "u"}

    declared = "declare vhost --name w", "vhosts enable_deletion_protection --name w"
    for line in declared:
        await admin(line)
    assert "protected from deletion" in await admin("delete vhost --name w", fails=True)
    mirrors = (
        'declare policy --name ha --pattern q --apply-to queues --definition {"ha-mode":"all"}'
    )
    assert "ha-mode" in await admin(mirrors, fails=True)
    shovel = "shovels declare_amqp091 --name s --source-uri amqp:// --destination-uri amqp://"
    await admin(f"{shovel} --source-queue c --destination-queue c2")
    assert "c2" in await admin("shovels list --vhost /")
    assert "c2" not in await admin("shovels delete --name s") + await admin("shovels list_all")
    await _federate(admin)

    await broker.kill(await broker.leader("q"))
    got = await admin("get messages --queue q --count 1 --ack-mode ack_requeue_false")
    assert "hello" in got
    await admin("delete queue --name q")
    await broker.mend()


async def _federate(admin: Callable[[str], Awaitable[str]]) -> None:
    """With an upstream that nobody listens at: its links say so."""
    uri = "--uri amqp://127.0.0.1:1"
    await admin(f"federation declare_upstream --name whole {uri}")
    await admin(f"federation declare_upstream_for_exchanges --name part {uri} --max-hops 2")
    await admin(f"federation declare_upstream_for_queues --name other {uri} --queue-name q")
    await admin("federation delete_upstream --name part")
    upstreams = await admin("federation list_all_upstreams")
    assert "whole" in upstreams
    assert "other" in upstreams
    assert "part" not in upstreams
    await admin("declare exchange --name fed --type topic")
    definition = '{"federation-upstream":"whole"}'
    policy = "declare policy --name fed --pattern ^fed$ --apply-to exchanges --priority 1"
    await admin(f"{policy} --definition {definition}")
    async with asyncio.timeout(SAID_S_MAX):
        while "whole" not in await admin("federation list_all_links"):
            await asyncio.sleep(0.2)
    await admin("policies delete --name fed")
    for name in ("whole", "other"):
        await admin(f"federation delete_upstream --name {name}")
    await admin("delete exchange --name fed")


async def test_rabbit_hole_makes_reads_and_removes_everything(broker: QuorateBroker):
    program = await prepared(toolchains.rabbit_hole)
    assert "all done" in await run(program, broker.management_urls[0])


async def test_perf_test_goes_on_when_the_leader_of_its_queue_dies(broker: QuorateBroker):
    program = await prepared(toolchains.perf_test)
    arguments = ["--uris", ",".join(broker.urls), "--quorum-queue", "--queue", "perf"]
    arguments += ["--confirm", "100", "--rate", "500", "--producers", "1", "--consumers", "2"]
    process = await asyncio.create_subprocess_exec(
        *program.command,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said: list[str] = []

    async def received(lines: int) -> None:
        """So many lines tell of messages that came back."""
        assert process.stdout is not None
        async for line in process.stdout:
            said.append(line.decode(errors="replace"))
            found = re.search(r"received: ([\d.]+) msg/s", said[-1])
            lines -= found is not None and float(found[1]) > 0
            if lines <= 0:
                return
        raise AssertionError("PerfTest ended: " + "".join(said[-20:]))

    try:
        async with asyncio.timeout(SAID_S_MAX):
            await received(2)
            await broker.kill(await broker.leader("perf"))
            await received(1)  # it may have been on its way to us
            await received(5)
    except TimeoutError:
        raise AssertionError("nothing came after the kill: " + "".join(said[-20:])) from None
    finally:
        process.terminate()
        await process.wait()
        await broker.mend()
