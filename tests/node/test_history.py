"""Histories of messages, asked of real nodes: who tells them, who is told, and what it may cost."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

import quorate
from cluster.history.message_events import Wanted
from cluster.types import MessageId
from node.errors import Refused
from node.operating.history import WAITING_MAX, Histories
from node.operating.history_helper import answer
from node.peering import log_folders
from tests.node.nodes import Nodes, until
from tests.node.test_http import Http
from tests.node.test_native_auth import add_user, basic

OWN_CLOCK = {"written_ms", "committed_ms"}  # of the node that tells it
SLOW = (sys.executable, "-c", "import time; time.sleep(600)")
BROKEN = (sys.executable, "-c", "raise SystemExit('it broke')")


def words(told: dict[str, Any]) -> list[str]:
    return [
        each["event"] + (" again" if each.get("redelivered") else "") for each in told["events"]
    ]


def shared(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in each.items() if k not in OWN_CLOCK} for each in told["events"]]


async def ask(nodes: Nodes, name: str, path: str, **headers: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session:
        return await Http(nodes.url(name), session)("GET", path, headers=headers)


# --- who tells it ---------------------------------------------------------------------------------


async def test_every_copy_tells_the_same_also_after_its_leader_was_lost(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        await nodes.declare("orders")
        leader = await nodes.leader("orders")
        others = [name for name in nodes.nodes if name != leader]
        async with quorate.connect([nodes.url(name) for name in others]) as client:
            publisher = client.publisher("orders", "shop")
            await publisher.publish(b"first")
            await publisher.publish(b"second")
            message = (await client.peek("orders"))[1]["message"]
            _, second = await client.get("orders", 2)
            await second.return_(failed=True)
            await nodes.stop(leader, transfer=False)
            await nodes.leader("orders")
            await client.publish("orders", b"third")
            (again,) = await client.get("orders")
            await again.settle()
            by_number = await client.history(queue="orders", publisher="shop", seqno=2)

        told = [await ask(nodes, name, f"/v1/messages/{message}/history") for name in others]
        assert [status for status, _ in told] == [200, 200]
        (_, one), (_, other) = told
        assert words(one) == ["published", "got", "returned", "got again", "settled"]
        assert shared(one) == shared(other) == shared(by_number)
        assert one["now"]["state"] == "settled"
        assert {each["read"]["node"] for each in (one, other)} == set(others)
        terms = [event["term"] for event in one["events"]]
        assert terms[0] < terms[-1]
        assert all(each["read"]["current"] and each["read"]["whole"] for each in (one, other))

        await nodes.stop(others[0], transfer=False)
        _, alone = await ask(nodes, others[1], f"/v1/messages/{message}/history")
        assert shared(alone) == shared(one)
        assert not alone["read"]["current"]


async def test_a_node_without_a_copy_says_who_has_one(tmp_path: Path):
    async with Nodes(tmp_path, 4) as nodes:
        await nodes.declare("orders")
        info = nodes.one.broker.locate("/", "orders")
        assert info is not None
        members = await until(
            lambda: (group := nodes.one.cluster.catalog_machine.group(info.group)) and group.members
        )
        (stranger,) = set(nodes.nodes) - set(members)
        async with quorate.connect([nodes.url(stranger)]) as client:
            await client.publish("orders", b"x")
            message = (await client.peek("orders"))[0]["message"]
            path = f"/v1/messages/{message}/history"
            async with aiohttp.ClientSession() as session:
                http = Http(nodes.url(stranger), session)
                assert (await http("GET", path))[0] == 307
                location = http.headers["Location"]
            assert location in [nodes.url(name) + path for name in members]
            assert words(await client.history(message)) == ["published"]
            for wrong in ("99-2-0", "0-2-0", f"{1 << 20}-2-0"):
                with pytest.raises(quorate.Refused):
                    await client.history(wrong)


# --- one node -------------------------------------------------------------------------------------


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path) as nodes:
        await nodes.declare("letters")
        yield nodes


@pytest.fixture
async def orders(nodes: Nodes) -> str:
    """A queue in the same group as the one that its dead letters go to."""
    letters = nodes.one.broker.locate("/", "letters")
    assert letters is not None
    for number in range(100):
        name = f"orders-{number}"
        await nodes.declare(name, dead_letter_exchange="", dead_letter_routing_key="letters")
        info = nodes.one.broker.locate("/", name)
        assert info is not None
        if info.group == letters.group:
            break
    else:
        raise AssertionError("queues are not spread over groups")
    machine = nodes.one.broker.machine(info.group)

    def knows_where() -> bool:
        view = machine.queue(info.queue)
        return view is not None and view.config.dead_letter_queue == letters.queue

    await until(knows_where)
    return name


@pytest.fixture
async def message(nodes: Nodes, orders: str) -> str:
    """One that died."""
    async with quorate.connect([nodes.url("n1")]) as client:
        await client.publish(orders, b"x")
        message = (await client.peek(orders))[0]["message"]
        (delivery,) = await client.get(orders)
        await delivery.discard(wait=True)
    return message


DEAD = ["published", "got", "died", "letter"]


async def test_it_is_told_to_who_may_read_the_queue(nodes: Nodes, orders: str, message: str):
    by_id = f"/v1/messages/{message}/history"
    by_queue = f"/v1/queues/%2F/{orders}/history?position=1"
    for path in (by_id, by_queue):
        status, told = await ask(nodes, "n1", path)
        assert (status, words(told), told["withheld"]) == (200, DEAD, 0)
        assert (told["now"]["queue"], told["now"]["state"]) == ("letters", "ready")

    await add_user(nodes, "writer", "secret", write=".*", configure=".*")
    await add_user(nodes, "reader", "secret", read="^orders")
    await add_user(nodes, "undertaker", "secret", read="^letters$")
    writer, reader, undertaker = (basic(n, "secret") for n in ("writer", "reader", "undertaker"))
    for path in (by_id, by_queue):
        assert (await ask(nodes, "n1", path, **writer))[0] == 403
        assert (await ask(nodes, "n1", path, **undertaker))[0] == 403
        assert (await ask(nodes, "n1", path, **basic("reader", "wrong")))[0] == 401
        _, told = await ask(nodes, "n1", path, **reader)
        assert (words(told), told["withheld"]) == (DEAD[:-1], 1)
        assert told["now"] == {"state": "withheld"}
    path = "/v1/queues/%2F/letters/history?position=1"
    _, told = await ask(nodes, "n1", path, **undertaker)
    assert (words(told), told["message"]) == (DEAD[-1:], message)
    assert (await ask(nodes, "n1", path, **reader))[0] == 403


async def test_who_may_read_nothing_there_has_no_process_started(
    nodes: Nodes, message: str, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(*_: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(Histories, "_run", refuse)
    await add_user(nodes, "nobody", "secret", write=".*")
    found = MessageId.parse(message)
    assert found is not None
    for each in (found, found._replace(entry=10_000)):
        path = f"/v1/messages/{each}/history"
        assert (await ask(nodes, "n1", path, **basic("nobody", "secret")))[0] == 403
    guest = basic("guest", "guest") | {"Sec-Fetch-Site": "cross-site"}
    path = f"/v1/messages/{message}/history"
    status, refusal = await ask(nodes, "n1", path, **guest)
    assert (status, refusal["code"]) == (403, "access_refused")


async def test_what_makes_no_sense_is_refused_by_name(nodes: Nodes, orders: str, message: str):
    queue = f"/v1/queues/%2F/{orders}/history"
    for path, code in (
        ("/v1/messages/1-2/history", "bad_argument"),
        (f"/v1/messages/1-2-{'9' * 30}/history", "bad_argument"),
        (queue, "bad_argument"),
        (f"{queue}?position=0", "bad_argument"),
        (f"{queue}?position=1&publisher=shop&seqno=1", "bad_argument"),
        (f"{queue}?publisher=shop", "bad_argument"),
        (f"{queue}?position=2", "no_message"),
        (f"{queue}?publisher=shop&seqno=1", "no_message"),
        (f"/v1/messages/{message}9/history", "no_message"),
        ("/v1/messages/77-2-0/history", "no_message"),
        (f"/v1/messages/{1 << 20}-2-0/history", "out_of_reach"),
        ("/v1/queues/%2F/nowhere/history?position=1", "no_queue"),
    ):
        status, refusal = await ask(nodes, "n1", path)
        assert (path, refusal["code"]) == (path, code)
        assert status == {"bad_argument": 400, "out_of_reach": 409}.get(code, 404)


async def test_messages_of_a_transient_queue_have_no_id(nodes: Nodes):
    await nodes.one.cluster.declare_queue("/", "passing", {}, transient=True)
    async with quorate.connect([nodes.url("n1")]) as client:
        await client.publish("passing", b"x")
        (row,) = await client.peek("passing")
        assert row["message"] is None
        with pytest.raises(quorate.Refused, match="in no log"):
            await client.history(queue="passing", position=1)


# --- what it may cost -----------------------------------------------------------------------------


def histories(nodes: Nodes, helper: Sequence[str], **limits: int) -> Histories:
    settings = nodes.one.settings
    changed = settings.limits.model_copy(update=limits)
    return Histories(nodes.one.cluster, changed, log_folders(settings), helper=helper)


async def wanted_of(message: str) -> Wanted:
    found = MessageId.parse(message)
    assert found is not None
    return Wanted.of(found)


async def test_one_at_a_time_is_told_few_wait_and_none_for_ever(
    nodes: Nodes, message: str, monkeypatch: pytest.MonkeyPatch
):
    wanted = await wanted_of(message)
    slow = histories(nodes, SLOW, history_ms_max=200)
    running: list[subprocess.Popen[bytes]] = []
    most = 0

    class Counted(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **options: Any) -> None:
            nonlocal most
            super().__init__(*given, **options)
            running.append(self)
            most = max(most, sum(each.poll() is None for each in running))

    monkeypatch.setattr("node.operating.history.subprocess.Popen", Counted)
    asked = [slow.of(wanted) for _ in range(WAITING_MAX + 1)]
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    codes = [each.code for each in outcomes if isinstance(each, Refused)]
    assert sorted(codes) == ["out_of_reach"] * WAITING_MAX + ["overloaded"]
    assert (len(running), most) == (WAITING_MAX, 1)
    assert all(each.returncode is not None for each in running)


async def test_nobody_who_asked_is_left_no_process_is_either(nodes: Nodes, message: str):
    slow = histories(nodes, SLOW)
    before = set(_children())
    asking = asyncio.create_task(slow.of(await wanted_of(message)))
    await until(lambda: set(_children()) - before)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await until(lambda: set(_children()) <= before)


def _children() -> list[int]:
    import psutil

    return [each.pid for each in psutil.Process().children()]


def test_memory_that_does_not_suffice_is_said(monkeypatch: pytest.MonkeyPatch):
    def too_much(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("node.operating.history_helper.history", too_much)
    request = {"folders": [], "wanted": {"group": 1}, "applied": 0, "seconds_max": 1}
    said = answer({**request, "memory_bytes_max": 1 << 20})
    assert said["code"] == "out_of_reach"
    assert "more than 1,048,576 bytes" in said["reason"]


async def test_a_process_that_breaks_is_in_the_nodes_log(nodes: Nodes, message: str):
    with capture_logs() as lines, pytest.raises(Refused, match="log says why"):
        await histories(nodes, BROKEN).of(await wanted_of(message))
    (line,) = [line for line in lines if line["event"] == "history_failed"]
    assert "it broke" in line["reason"]


async def test_the_process_comes_behind_the_node_and_knows_none_of_its_secrets(
    nodes: Nodes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("QUORATE_SECRET", "a secret for tests")
    script = tmp_path / "look.py"
    script.write_text(
        "import json, os, resource, sys\n"
        "from node.operating.history_helper import main\n"
        "sys.stdout.flush()\n"
        "status = main()\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps([os.nice(0),"
        " resource.getrlimit(resource.RLIMIT_AS)[0], resource.getrlimit(resource.RLIMIT_CPU)[0],"
        " open('/proc/self/oom_score_adj').read().strip(), sorted(os.environ)]))\n"
    )
    asked = histories(nodes, (sys.executable, "-P", str(script)), history_ms_max=60_000)
    assert words(await asked.of(await wanted_of(message))) == DEAD
    nice, memory, seconds, score, environment = json.loads((tmp_path / "seen").read_text())
    assert (nice, memory, seconds, score) == (min(os.nice(0) + 10, 19), 512 << 20, 61, "1000")
    assert not any(name.startswith("QUORATE") for name in environment)
