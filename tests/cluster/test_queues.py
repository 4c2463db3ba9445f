"""Queues by name, from every node, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.cluster_node import ClusterNode
from cluster.groups.outcome import Outcome
from cluster.machine import QueueMachine
from cluster.machine.catalog import CatalogMachine, QueueInfo
from cluster.machine.commands import Barrier, CreateQueue, DeclareQueue, DeleteQueue, QueueConfig
from cluster.machine.replies import NO_QUEUE, Declared
from cluster.members import maintenance
from cluster.peers import forwarding
from cluster.seams import Down
from cluster.types import CATALOG_GROUP, GroupId, NodeId, QueueId
from tests.cluster.world import MakeWorld, World, enqueue

pytestmark = pytest.mark.virtual_time


def machine(node: ClusterNode, group: GroupId) -> QueueMachine:
    found = node.groups[group].machine
    assert isinstance(found, QueueMachine)
    return found


async def missing(node: ClusterNode, queue: str) -> bool:
    found = await node.names.find("/", queue)
    return isinstance(found, Outcome) and found.code == NO_QUEUE


# --- declare


async def test_every_node_declares(world: World) -> None:
    for name in world.names:
        outcome = await world[name].declare_queue("/", f"q-{name}", {"x-max-length": 5})
        assert isinstance(outcome.reply, Declared)
        assert outcome.reply.created
        leader = world.nodes[world.leading(outcome.reply.group) or ""]
        kind = machine(leader, outcome.reply.group).queue(outcome.reply.queue)
        assert kind is not None
        assert kind.config.max_length == 5


async def test_queues_are_spread_over_the_default_groups(world: World) -> None:
    for n in range(6):
        await world.declare(f"q-{n}")
    groups = [world.group_of(f"q-{n}") for n in range(6)]
    assert sorted(groups) == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    "arguments",
    [{"x-max-length": -1}, {"x-queue-type": "stream"}, {"x-queue-group": 5}],
)
async def test_bad_arguments_are_refused_with_the_reason(
    world: World, arguments: dict[str, Any]
) -> None:
    outcome = await world["n2"].declare_queue("/", "q", arguments)
    assert outcome.kind == "refused"
    assert outcome.code == "bad_argument"
    assert next(iter(arguments)) in (outcome.reason or "")
    assert await missing(world["n2"], "q")


async def test_a_name_that_cannot_be_is_refused(world: World) -> None:
    for name in ("", "x" * 256):
        outcome = await world["n3"].declare_queue("/", name, {})
        assert (outcome.kind, outcome.code) == ("refused", "bad_argument")


async def test_other_arguments_are_refused_and_the_same_ones_answered_again(world: World) -> None:
    queue = await world.declare("q", at="n1", max_length=5)
    other = await world["n2"].declare_queue("/", "q", {"x-max-length": 6})
    assert (other.kind, other.code) == ("refused", "inequivalent_arguments")
    assert "x-max-length" in (other.reason or "")

    again = await world["n3"].declare_queue("/", "q", {"x-max-length": 5})
    assert again.reply == Declared(queue, world.group_of("q"), created=False)


async def test_of_concurrent_declares_of_one_name_one_creates(world: World) -> None:
    outcomes = await asyncio.gather(
        *(node.declare_queue("/", "q", {}) for node in world.nodes.values() for _ in range(5))
    )
    replies = [o.reply for o in outcomes]
    assert all(isinstance(reply, Declared) for reply in replies)
    assert len({reply.queue for reply in replies}) == 1  # type: ignore[union-attr]
    assert sum(reply.created for reply in replies) == 1  # type: ignore[union-attr]
    assert len(world.any.queues()) == 1


async def test_a_declare_outlives_the_leader_of_the_catalog(world: World) -> None:
    leader = world.leading() or ""
    node = world.other_than(leader)
    task = asyncio.create_task(node.declare_queue("/", "q", {}))
    await asyncio.sleep(0.0004)  # the question is on its way
    world.kill(leader)
    outcome = await task
    assert outcome.kind == "ok"
    assert len(node.queues()) == 1


async def test_without_a_majority_a_declare_ends_as_unknown_or_refused(world: World) -> None:
    for name in ("n2", "n3"):
        world.kill(name)
    outcome = await world["n1"].declare_queue("/", "q", {})
    assert outcome.kind != "ok"
    assert outcome.reply is None


# --- groups


async def test_queues_that_name_a_group_share_it(world: World) -> None:
    await world.declare("a", at="n1", queue_group="billing")
    await world.declare("b", at="n2", queue_group="billing")
    assert world.group_of("a") == world.group_of("b") > 3
    group = world["n1"].catalog_machine.group(world.group_of("a"))
    assert group is not None
    assert (group.name, group.members, group.default) == ("billing", ("n1", "n2", "n3"), False)


async def test_a_dedicated_queue_has_a_group_of_its_own_also_when_declared_again(
    world: World,
) -> None:
    for name in ("a", "b", "a"):
        await world.declare(name, queue_group="dedicated")
    assert world.group_of("a") != world.group_of("b")
    assert len(world.any.catalog_machine.groups()) == 5
    await world.publish("a", b"one")


async def test_a_new_group_has_as_many_members_as_were_asked_for(make_world: MakeWorld) -> None:
    world = await make_world(5).born()
    await world.declare("one", queue_group="one", quorum_initial_group_size=1)
    await world.declare("five", queue_group="five", quorum_initial_group_size=5)
    sizes = {info.name: len(info.members) for info in world.any.catalog_machine.groups()}
    assert (sizes["one"], sizes["five"], sizes["default-1"]) == (1, 5, 3)
    for node in world.nodes.values():  # also from those that hold no copy
        info = await node.names.find("/", "one")
        assert isinstance(info, QueueInfo)
        await world.until(lambda node=node, info=info: node.leader_of(info.group))
        assert (await node.ask(info.group, enqueue(info.queue, b"x"))).kind == "ok"


# --- find


async def test_a_lagging_node_finds_a_queue_behind_a_barrier(world: World) -> None:
    leader = world.leading() or ""
    node = world.other_than(leader)
    links = world.links[leader]
    links.drop = lambda peer, message: peer == node.node and message[:2] == [0, "ae"]
    await world.declare("q", at=leader)
    assert node.queue_info("/", "q") is None

    finding = asyncio.create_task(node.names.find("/", "q"))
    await asyncio.sleep(0.1)
    assert not finding.done()
    links.drop = lambda _peer, _message: False
    info = await finding
    assert isinstance(info, QueueInfo)
    assert info.queue == 1


async def test_a_queue_that_is_nowhere_is_none(world: World) -> None:
    for node in world.nodes.values():
        assert await missing(node, "nowhere")


async def test_what_nobody_can_look_up_now_is_not_said_to_be_missing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it as good as removed: an exclusive queue stayed behind."""
    monkeypatch.setattr(forwarding, "PATIENCE_S", 0.5)
    leader = world.leading() or ""
    node = world.other_than(leader)
    world.isolate(node.node)
    await world.declare("q", at=leader)

    found = await node.names.find("/", "q")
    assert isinstance(found, Outcome)
    assert found.code == "no_leader"
    assert (await node.remove_queue("/", "q")).code == "no_leader"


# --- remove


async def test_a_removed_queue_is_gone_everywhere_and_its_name_is_free(world: World) -> None:
    first = await world.declare("q", max_length=5)
    await world.publish("q", b"one")
    group = world.group_of("q")
    assert (await world["n2"].remove_queue("/", "q")).kind == "ok"
    assert all(n.queue_info("/", "q") is None for n in world.nodes.values())
    # Copies that do not lead hear of it with the next append, or in a moment.
    await world.until(
        lambda: all(machine(n, group).find(first) is None for n in world.nodes.values()), seconds=1
    )
    second = await world.declare("q", max_length=6)
    assert second > first


async def test_conditions_of_a_removal_are_judged_in_the_group(world: World) -> None:
    await world.declare("q")
    await world.publish("q", b"one")
    outcome = await world["n3"].remove_queue("/", "q", if_empty=True)
    assert (outcome.kind, outcome.code) == ("refused", "not_empty")
    assert world["n3"].queue_info("/", "q") is not None


async def test_what_is_not_there_cannot_be_removed(world: World) -> None:
    outcome = await world["n2"].remove_queue("/", "q")
    assert (outcome.kind, outcome.code) == ("refused", "no_queue")


async def test_a_node_that_was_cut_off_removes_the_queue_that_has_the_name_now(
    world: World,
) -> None:
    """Simulator: what it knew under that name was gone, so it said that the name was free."""
    await world.declare("q")
    node = world.other_than(world.leading() or "")
    world.isolate(node.node)
    await world.until(lambda: world.leading() not in (None, node.node))
    other = world.leading() or ""
    assert (await world[other].remove_queue("/", "q")).kind == "ok"
    await world.declare("q", at=other)

    removing = asyncio.create_task(node.remove_queue("/", "q"))
    await asyncio.sleep(0.1)
    world.heal()
    assert (await removing).kind == "ok"
    assert await missing(world[other], "q")


async def test_a_removal_that_stopped_half_way_is_finished_by_the_next_one(
    make_world: MakeWorld,
) -> None:
    """The group dropped the queue, the catalog did not hear of it: no leader, a lost answer."""
    world = await make_world(care_period_s=1000.0).born()
    queue = await world.declare("q")
    await world["n1"].ask(world.group_of("q"), DeleteQueue(queue, False, False))
    assert (await world["n1"].remove_queue("/", "q")).kind == "ok"
    assert await missing(world["n1"], "q")


# --- reconciliation


async def test_a_queue_that_only_the_catalog_knows_is_made(world: World) -> None:
    outcome = await world["n1"].retries.ask(CATALOG_GROUP, DeclareQueue("/", "q", {}))
    assert isinstance(outcome.reply, Declared)
    await world.until(
        lambda: all(
            machine(n, outcome.reply.group).find(outcome.reply.queue)  # type: ignore[union-attr]
            for n in world.nodes.values()
        )
    )


async def test_a_queue_that_only_its_group_knows_is_dropped_unless_it_is_newer(
    world: World,
) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    await world["n1"].remove_queue("/", "q")
    for number in (queue, queue + 1):
        config = QueueConfig()
        await world["n1"].ask(group, CreateQueue(type(queue)(number), "/", "q", config))
    await asyncio.sleep(12)
    left = machine(world["n1"], group).queues()
    assert left == [queue + 1]  # as when the catalog's copy here lags behind


async def test_a_dead_letter_queue_of_the_same_group_is_resolved_whenever_it_comes(
    world: World,
) -> None:
    config = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead", "queue_group": "g"}
    early = await world.declare("early", **config)
    group = world.group_of("early")

    def target(queue: Any) -> Any:
        kind = machine(world["n1"], group).queue(queue)
        return None if kind is None else kind.config.dead_letter_queue

    assert target(early) is None
    dead = await world.declare("dead", queue_group="g")
    await world.until(lambda: target(early) == dead)
    late = await world.declare("late", **config)
    await world.until(lambda: target(late) == dead)

    await world["n2"].remove_queue("/", "dead")
    await world.until(lambda: target(early) is None and target(late) is None)
    again = await world.declare("dead", queue_group="g")
    await world.until(lambda: target(early) == again == target(late))
    assert again != dead


async def test_a_dead_letter_queue_of_another_group_goes_through_the_outbox(world: World) -> None:
    await world.declare("dead", queue_group="other")
    queue = await world.declare(
        "q", queue_group="g", dead_letter_exchange="", dead_letter_routing_key="dead"
    )
    await asyncio.sleep(3)
    kind = machine(world["n1"], world.group_of("q")).queue(queue)
    assert kind is not None
    assert kind.config.dead_letter_queue is None


async def test_groups_that_agree_with_the_catalog_are_not_compared_again(world: World) -> None:
    await world.declare("q")
    await asyncio.sleep(3)
    compared: list[GroupId] = []
    to_compare = maintenance.queues_to_compare
    maintenance.queues_to_compare = lambda c, m, g: compared.append(g) or to_compare(c, m, g)
    try:
        await world.publish("q", b"one")
        await asyncio.sleep(5)
        assert len(compared) <= 3  # once in ten periods, to be sure
        compared.clear()
        await world.declare("q2")
        await asyncio.sleep(1.5)
        assert compared
    finally:
        maintenance.queues_to_compare = to_compare


async def test_a_group_of_many_queues_is_compared_with_breaks_for_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is declared and deleted meanwhile stays as it was asked for."""
    monkeypatch.setattr(maintenance, "QUEUES_AT_ONCE", 1)
    monkeypatch.setattr(maintenance, "COMPARE_PERIODS", 1)
    slices: list[int] = []
    commands_for = maintenance.commands_for

    def counted(c: CatalogMachine, m: QueueMachine, g: GroupId, some: Sequence[QueueId]) -> Any:
        slices.append(len(some))
        return commands_for(c, m, g, some)

    monkeypatch.setattr(maintenance, "commands_for", counted)
    for number in range(6):
        await world.declare(f"q{number}", queue_group="g")
    for number in range(40):
        await world.declare(f"more{number % 3}", queue_group="g")
        await asyncio.sleep(0.1)
        await world["n1"].remove_queue("/", f"more{number % 3}")
    left = [await world.declare(f"q{number}", queue_group="g") for number in range(6)]
    await asyncio.sleep(3)

    assert set(slices) == {1}
    assert len(slices) > 6
    for node in world.nodes.values():
        assert sorted(machine(node, world.group_of("q0")).queues()) == sorted(left)


# --- ask


async def test_a_question_is_forwarded_to_the_leader_and_answered(world: World) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    for node in world.nodes.values():
        outcome = await node.ask(group, enqueue(queue, b"x"))
        assert outcome.kind == "ok"
        assert outcome.stamp is not None
        assert outcome.stamp.index <= world.group(group).last_index


async def test_a_refusal_of_the_machine_comes_back_with_its_reply(world: World) -> None:
    queue = await world.declare("q")
    follower = world.other_than(world.leading(world.group_of("q")))
    outcome = await follower.ask(world.group_of("q"), enqueue(type(queue)(99), b"x"))
    assert (outcome.kind, outcome.code) == ("refused", "no_queue")
    assert outcome.reply is not None


async def test_an_answer_that_a_broken_link_took_is_unknown(world: World) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    leader = world.leading(group) or ""
    node = world.other_than(leader)
    world.links[leader].drop = lambda _peer, message: message[:2] == [-1, "answer"]
    asking = asyncio.create_task(node.ask(group, enqueue(queue, b"x")))
    await asyncio.sleep(0.1)
    assert not asking.done()
    world.break_link(leader, node.node, Down.SILENT)
    outcome = await asking
    assert (outcome.kind, outcome.code) == ("unknown", "link_lost")


async def test_without_a_leader_a_question_is_refused(world: World) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    for name in ("n2", "n3"):
        world.kill(name)
    await world.until(lambda: world["n1"].leader_of(group) is None)
    outcome = await world["n1"].ask(group, enqueue(queue, b"x"))
    assert (outcome.kind, outcome.code) == ("refused", "no_leader")


async def test_questions_over_a_full_link_are_refused(world: World) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    leader = world.leading(group) or ""
    node = world.other_than(leader)
    world.links[node.node].full.add(leader)
    outcome = await node.ask(group, enqueue(queue, b"x"))
    assert (outcome.kind, outcome.code) == ("refused", "no_leader")


async def test_a_stopping_node_answers_its_open_questions(world: World) -> None:
    queue = await world.declare("q")
    group = world.group_of("q")
    leader = world.leading(group) or ""
    node = world.other_than(leader)
    world.links[leader].drop = lambda _peer, message: message[:2] == [-1, "answer"]
    asking = asyncio.create_task(node.ask(group, enqueue(queue, b"x")))
    await asyncio.sleep(0.01)
    await world.nodes.pop(node.node).stop(transfer=False)
    assert (await asking).kind == "unknown"
    assert (await node.ask(group, enqueue(queue, b"x"))).code == "stopping"


async def test_malformed_messages_of_a_peer_harm_nothing(world: World) -> None:
    node = world["n1"]
    for message in (
        [],
        [-1],
        [-1, "ask"],
        [-1, "ask", 1, 1, b"\xff"],
        [-1, "ask", 1, 99, b"\x80"],
        [-1, "ask", "x", {}, None],
        [-1, "answer", 7, "ok", None, None, None, None, None],
        [-1, "answer", 7],
        [-1, "leads", None, None],
        [-1, "nonsense"],
        [99, "ae"],
        ["x"],
        [-3],
    ):
        node._on_message(NodeId("n2"), message)
    assert (await node.ask(CATALOG_GROUP, Barrier())).kind == "ok"
    assert node.failed is None
