"""A delivery settled, returned or discarded through every listener while its leader is in trouble:
its node asks again until a leader has decided, and a listener that answers says what was decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import aiohttp
import pytest
from pamqp.commands import Basic, Channel

from cluster.groups.outcome import Done, refused, unknown
from cluster.machine.commands import Command, Discard, Return, Settle
from node.protocols.native.frames import Opcode
from tests.acceptance.semantics.wire import Wire
from tests.node.management.api import api_of
from tests.node.nodes import Client, Running, in_a_thread
from tests.testkit.waiting import wait_until

DONE = "done"
UNKNOWN = "unknown"
VERDICTS = ("settle", "return", "discard")
LOST = unknown("the leader changed")

_numbers = count(1)


def by_amqp(running: Running, queue: str, verdict: str) -> Any:
    """Its clients are not answered: closing the channel waits for what they settled."""
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    tag = wire.call(Basic.Get(0, queue), Basic.GetOk).delivery_tag or 0
    if verdict == "settle":
        wire.send(Basic.Ack(tag))
    else:
        wire.send(Basic.Reject(tag, verdict == "return"))
    wire.call(Channel.Close(200, "", 0, 0), Channel.CloseOk)
    wire.close()
    return None


def by_socket(running: Running, queue: str, verdict: str, *, guarded: bool = True) -> Any:
    async def settle() -> Any:
        async with Client(f"http://{running.node.http_address}") as client:
            _, _, _, consumer, _, chunks = await client.ask(Opcode.GET, 1, queue, 1, False)
            ((position, token, *_),) = chunks
            about = (queue, consumer, [[position, position]])
            more = [True, None] if verdict == "return" else []
            answer = await client.ask(
                Opcode[verdict.upper()], 2, *about, *more, token if guarded else None
            )
            return DONE if answer[0] == Opcode.OK else answer[2]

    return running.do(settle())


def by_http(running: Running, queue: str, verdict: str, *, guarded: bool = True) -> Any:
    url = f"http://{running.node.http_address}/v1/queues/%2F/{queue}"

    async def settle() -> Any:
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/get", json={}) as response:
                got = await response.json()
            (message,) = got["messages"]
            about = {
                "consumer": got["consumer"],
                "ranges": [[message["position"], message["position"]]],
                "outcome": verdict,
            }
            if guarded:
                about["token"] = message["token"]
            async with session.post(f"{url}/settle", json=about) as response:
                answer = await response.json()
                return DONE if response.status == 200 else answer["outcome"]

    return running.do(settle())


def by_management(running: Running, queue: str, verdict: str) -> Any:
    """Shows what it took, whatever is known of its end: nobody else can show it."""
    mode = {
        "settle": "ack_requeue_false",
        "return": "reject_requeue_true",
        "discard": "reject_requeue_false",
    }[verdict]
    got = running.do(api_of(running.node).take(queue, ackmode=mode))
    assert [each["payload"] for each in got] == ["a message"]
    return None


LISTENERS: dict[str, Callable[[Running, str, str], Any]] = {
    "amqp": by_amqp,
    "socket": by_socket,
    "http": by_http,
    "management": by_management,
}
every_listener = pytest.mark.parametrize("listener", LISTENERS)
every_verdict = pytest.mark.parametrize("verdict", VERDICTS)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with in_a_thread(tmp_path_factory.mktemp("listeners")) as running:
        yield running


Propose = Callable[[Command, Done | None], None]
#: What a leader in trouble does with a proposal.
Trouble = Callable[[Propose, Command, Done], None]


def lost_before(propose: Propose, command: Command, done: Done) -> None:
    """It goes with the leader, and nothing was done."""
    done(LOST)


def lost_after(propose: Propose, command: Command, done: Done) -> None:
    """It is done, and nobody says so."""
    propose(command, lambda outcome: done(LOST))


def overloaded(propose: Propose, command: Command, done: Done) -> None:
    done(refused("overloaded", "try again later"))


class Group:
    """That of a new queue with a message, whose leader's trouble concerns one settle."""

    def __init__(self, running: Running, patch: pytest.MonkeyPatch, trouble: Trouble) -> None:
        self.queue = f"queue-{next(_numbers)}"
        self.troubled: list[Command] = []
        self.tried: list[Command] = []
        api = api_of(running.node)
        running.do(api.queue(self.queue))
        assert running.do(api.publish(self.queue, "a message"))
        info = running.node.broker.locate("/", self.queue)
        assert info is not None
        self.id, self._info = info.queue, info
        self._group: Any = running.node.cluster.group(info.group)
        propose = self._group.propose

        def proposed(command: Command, done: Done | None = None) -> None:
            if not isinstance(command, (Settle, Return, Discard)) or done is None:
                propose(command, done)
                return
            self.tried.append(command)
            if self.troubled:
                propose(command, done)
            else:
                self.troubled.append(command)
                trouble(propose, command, done)

        patch.setattr(self._group, "propose", proposed)

    @property
    def counts(self) -> tuple[int, int]:
        view = self._group.machine.queue(self.id)
        return view.ready_count, view.unsettled_count

    def ends_with(self, ready: int, tries: int) -> bool:
        wait_until(lambda: self.counts == (ready, 0) and len(self.tried) >= tries)
        return len(self.tried) == tries


@every_verdict
@every_listener
@pytest.mark.parametrize("trouble", [lost_before, overloaded])
def test_what_a_leader_did_not_decide_is_decided_by_the_next_try(
    running: Running, monkeypatch: pytest.MonkeyPatch, listener: str, verdict: str, trouble: Trouble
):
    group = Group(running, monkeypatch, trouble)

    assert LISTENERS[listener](running, group.queue, verdict) in {DONE, None}

    assert group.ends_with(ready=int(verdict == "return"), tries=2)


@every_verdict
@every_listener
def test_what_may_have_been_done_is_not_said_to_be_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch, listener: str, verdict: str
):
    group = Group(running, monkeypatch, lost_after)

    assert LISTENERS[listener](running, group.queue, verdict) in {UNKNOWN, None}

    assert group.ends_with(ready=int(verdict == "return"), tries=2)


@every_verdict
@pytest.mark.parametrize("listener", [by_socket, by_http])
def test_without_a_token_what_may_have_been_done_is_not_tried_again(
    running: Running, monkeypatch: pytest.MonkeyPatch, listener: Any, verdict: str
):
    """It could hit a later delivery of the same message."""
    group = Group(running, monkeypatch, lost_after)

    assert listener(running, group.queue, verdict, guarded=False) == UNKNOWN

    assert group.ends_with(ready=int(verdict == "return"), tries=1)


def test_who_wants_no_answer_is_told_of_a_refusal_all_the_same(
    running: Running, monkeypatch: pytest.MonkeyPatch
):
    group = Group(running, monkeypatch, overloaded)

    async def settle() -> list[Any]:
        async with Client(f"http://{running.node.http_address}") as client:
            _, _, _, consumer, _, chunks = await client.ask(Opcode.GET, 1, group.queue, 1, False)
            position, token, *_ = chunks[0]
            about = (group.queue, consumer, [[position, position]], token)
            for _ in range(2):
                await client.send(Opcode.SETTLE, 0, *about)
            refusal = await client.expect(Opcode.ERROR)
            return [*refusal[:3], len(client.seen)]

    assert running.do(settle()) == [Opcode.ERROR, 0, "no_consumer", 0]
    assert group.ends_with(ready=0, tries=3)


@every_listener
def test_an_ack_counts_once_it_is_decided(
    running: Running, monkeypatch: pytest.MonkeyPatch, listener: str
):
    counts = running.node.traffic.dispatcher.counts
    group = Group(running, monkeypatch, lost_before)
    before = counts.settled

    LISTENERS[listener](running, group.queue, "settle")

    assert group.ends_with(ready=0, tries=2)
    wait_until(lambda: counts.settled != before)
    assert counts.settled == before + 1


def test_what_needs_no_ack_counts_as_none(running: Running, monkeypatch: pytest.MonkeyPatch):
    """Whoever settles it, and however large it is."""
    counts = running.node.traffic.dispatcher.counts
    group = Group(running, monkeypatch, overloaded)
    before = counts.settled
    wire = Wire(f"amqp://guest:guest@{running.node.amqp.address}/%2F")
    wire.open()
    wire.publish(group.queue, b"x" * (2 << 20))
    wire.call(Basic.Get(0, group.queue, True), Basic.GetOk)
    wire.call(Basic.Get(0, group.queue, True), Basic.GetOk)

    assert group.ends_with(ready=0, tries=3)
    assert counts.settled == before
    wire.close()
