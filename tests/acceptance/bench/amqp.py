"""`python -m tests.acceptance.bench.amqp`: the runs of the benchmark through AMQP, by a C
client and by pika.

Each is measured at the node that leads the queue, and where it matters at another one too, which
forwards.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

from tests.acceptance.bench import many
from tests.acceptance.bench.amqp_works import AmqpConsume, AmqpPublish, PikaConsume, PikaPublish
from tests.acceptance.bench.hard import FAILOVER_RATE, FAILOVER_WINDOW, measure_gaps
from tests.acceptance.bench.measure import percentile
from tests.acceptance.bench.neighbours import cold, large, shares
from tests.acceptance.bench.program import main
from tests.acceptance.bench.report import Goal, Row
from tests.acceptance.bench.runs import KIB, Bench, size_name
from tests.acceptance.bench.workers import Outcome, Work, run_all, span_s

WINDOW = 1000
PREFETCH = 300
BACKLOG = 1_000_192
#: Nodes that have just met hand leaderships over to where they belong.
BALANCED_S = 8.0
PUBLISHED_A_S_MIN = 40_000
CONSUMED_A_S_MIN = 60_000
CPU_S_PER_100K_MAX = 4.0
#: Of message groups, and what they have of the rate of a queue without them.
KEYS = 10_000
GROUPS_COUNT = 200_192
GROUPS_ROUNDS = 5
GROUPS_ACK_EVERY = 10
GROUPS_RATE_MIN = 0.75


@dataclass(frozen=True)
class Place:
    """A queue, and the ports of nodes."""

    queue: str
    leader: int
    follower: int
    all: list[int]

    @property
    def each(self) -> list[tuple[str, int]]:
        return [("at the leader", self.leader), ("at a follower", self.follower)]


@asynccontextmanager
async def new_queue(bench: Bench) -> AsyncGenerator[Place]:
    first = not bench.rows
    async with bench.queues() as (name,):
        if first:
            await asyncio.sleep(BALANCED_S)
        leader = await bench.nodes.leader(name)
        others = [node.amqp for node in bench.nodes.all if node is not leader]
        rows = len(bench.rows)
        yield Place(name, leader.amqp, others[0], [*others, leader.amqp])
        if await bench.nodes.leader(name) is not leader:
            for row in bench.rows[rows:]:
                row.detail += " The leader moved meanwhile."


async def measured(
    bench: Bench,
    name: str,
    what: str,
    works: Sequence[Work],
    *,
    messages: int = 0,
    waited: bool = False,
) -> tuple[Row, list[Outcome]]:
    """`waited`: the messages were there before, so their age says nothing."""
    outcomes, cost = await bench.run(works)
    messages = messages or sum(outcome.count for outcome in outcomes)
    row = Row(name, what, messages=messages, rate=messages / span_s(outcomes), cost=cost)
    if not waited:
        latencies = outcomes[0].latencies_ms
        row.p50_ms, row.p99_ms = percentile(latencies, 50), percentile(latencies, 99)
    bench.rows.append(row)
    if refused := sum(outcome.extra.get("refused", 0) for outcome in outcomes):
        row.error = f"{refused} publishes were refused"
    return row, outcomes


def rate_goals(row: Row, rate_min: int) -> list[Goal]:
    goals = [Goal(f"≥ {rate_min:,} msgs/s", (row.rate or 0) >= rate_min)]
    if rate_min == PUBLISHED_A_S_MIN:
        cheap = (row.cpu_s_per_100k or 0) <= CPU_S_PER_100K_MAX
        goals.append(Goal(f"≤ {CPU_S_PER_100K_MAX:g} CPU s", cheap))
    return goals


async def fill(bench: Bench, place: Place, count: int) -> None:
    """Messages to work with; not measured."""
    await run_all([AmqpPublish([place.leader], place.queue, count)], lambda _: None)


async def publish(bench: Bench) -> None:
    """Confirmed publish with a window of 1000."""
    for size, full in ((100, 512_000), (KIB, 128_000), (64 * KIB, 2_560)):
        for index, where in enumerate(("at the leader", "at a follower")):
            count = bench.count(full)
            async with new_queue(bench) as place:
                port = place.each[index][1]
                row, _ = await measured(
                    bench,
                    "amqp publish",
                    f"C, {size_name(size)}, window {WINDOW}, {where}",
                    [AmqpPublish([port], place.queue, count, size, WINDOW)],
                )
            if size == 100 and index == 0:
                row.goals = rate_goals(row, PUBLISHED_A_S_MIN)
    for ids in (False, True):
        async with new_queue(bench) as place:
            await measured(
                bench,
                "amqp publish",
                f"pika, 100 B, window {WINDOW}" + ", each its message_id" * ids,
                [PikaPublish(place.leader, place.queue, bench.count(51_200), message_ids=ids)],
            )


async def outstanding(bench: Bench) -> None:
    """One unconfirmed message; then 100 connections with one each."""
    for index, where in enumerate(("at the leader", "at a follower")):
        for connections, full in ((1, 5_120), (100, 102_400)):
            async with new_queue(bench) as place:
                port = place.each[index][1]
                work = AmqpPublish(
                    [port], place.queue, bench.count(full), window=1, connections=connections
                )
                many = f"{connections} connections, " if connections > 1 else ""
                await measured(
                    bench, "amqp latency", f"C, 100 B, {many}one outstanding, {where}", [work]
                )
    async with new_queue(bench) as place:
        work = PikaPublish(place.leader, place.queue, bench.count(5_120), window=1)
        await measured(bench, "amqp latency", "pika, 100 B, one outstanding, at the leader", [work])


async def consume(bench: Bench) -> None:
    """What is there already, acked one by one and by the hundred."""
    for every in (1, 100):
        for index, where in enumerate(("at the leader", "at a follower")):
            count = bench.count(256_000)
            async with new_queue(bench) as place:
                await fill(bench, place, count)
                port = place.each[index][1]
                acked = "each acked" if every == 1 else f"every {every}th acked"
                row, _ = await measured(
                    bench,
                    "amqp consume",
                    f"C, 100 B, prefetch {PREFETCH}, {acked}, {where}",
                    [AmqpConsume([port], place.queue, count, ack_every=every)],
                    waited=True,
                )
            if index == 0:
                row.goals = rate_goals(row, CONSUMED_A_S_MIN)
    count = bench.count(51_200)
    async with new_queue(bench) as place:
        await fill(bench, place, count)
        await measured(
            bench,
            "amqp consume",
            f"pika, 100 B, prefetch {PREFETCH}, each acked",
            [PikaConsume(place.leader, place.queue, count)],
            waited=True,
        )


async def both(bench: Bench) -> None:
    """Publish and consume the same queue at once."""
    for index, where in enumerate(("at the leader", "at a follower")):
        count = bench.count(256_000)
        async with new_queue(bench) as place:
            port = place.each[index][1]
            row, outcomes = await measured(
                bench,
                "amqp both",
                f"C, 100 B, publish and consume at once, {where}; latency is end to end",
                [
                    AmqpConsume([port], place.queue, count, ack_every=100),
                    AmqpPublish([port], place.queue, count),
                ],
                messages=count,
            )
        confirms = outcomes[1].latencies_ms
        row.detail = (
            f"confirms: p50 {percentile(confirms, 50):.1f} ms, "
            f"p99 {percentile(confirms, 99):.1f} ms"
        )


async def backlog(bench: Bench) -> None:
    """Rates with a large backlog behind them."""
    large, count = bench.count(BACKLOG), bench.count(204_800)
    async with new_queue(bench) as place:
        await fill(bench, place, large)
        for what, work in (
            ("publish", AmqpPublish([place.leader], place.queue, count)),
            ("consume", AmqpConsume([place.leader], place.queue, count, ack_every=100)),
        ):
            await measured(
                bench,
                "amqp backlog",
                f"C, {what} 100 B at a backlog of {large:,}",
                [work],
                waited=what == "consume",
            )


async def groups(bench: Bench) -> None:
    """Message groups, by queues without them: with the same messages, and with ones that have no
    header. What each takes in turn, a few times; the row is of all rounds together, and what it is
    compared by the median of the rounds.
    """
    async with AsyncExitStack() as stack:
        place = await stack.enter_async_context(new_queue(bench))
        group = str((await bench.nodes.about(place.queue))["group"])
        same = await stack.enter_async_context(bench.queues(1, group))
        keyed = await stack.enter_async_context(bench.queues(1, group, {"x-group-key": "order"}))
        queues = {"groups": (keyed[0], KEYS), "same": (same[0], KEYS), "bare": (place.queue, 0)}
        port, count = [place.leader], bench.count(GROUPS_COUNT)
        found: dict[tuple[str, str], list[Row]] = {}
        for _ in range(GROUPS_ROUNDS):
            for queue, (name, keys) in queues.items():
                publish = AmqpPublish(port, name, count, groups=keys)
                consume = AmqpConsume(port, name, count, ack_every=GROUPS_ACK_EVERY)
                for what, works in (
                    ("publish", [publish]),
                    ("consume", [consume]),
                    ("both at once", [consume, publish]),
                ):
                    row, _ = await measured(
                        bench, "", "", works, messages=count, waited=what == "consume"
                    )
                    found.setdefault((what, queue), []).append(bench.rows.pop())
                    assert row is found[what, queue][-1]
    for (what, queue), rows in found.items():
        if queue == "groups":
            bench.rows.append(_compared(what, rows, found[what, "same"], found[what, "bare"]))


def _compared(what: str, ours: Sequence[Row], same: Sequence[Row], bare: Sequence[Row]) -> Row:
    def times(others: Sequence[Row]) -> tuple[float, float]:
        pairs = list(zip(ours, others, strict=True))
        rates = [(one.rate or 0) / (other.rate or 1) for one, other in pairs]
        cpu = [(one.cpu_s_per_100k or 0) / (other.cpu_s_per_100k or 1) for one, other in pairs]
        return median(rates), median(cpu)

    rows = sorted(ours, key=lambda row: row.rate or 0)
    row = rows[len(rows) // 2]
    row.name = "amqp groups"
    row.what = f"C, {what}, {KEYS:,} keys in turn, every {GROUPS_ACK_EVERY}th acked, at the leader"
    (rate, cpu), (rate_bare, cpu_bare) = times(same), times(bare)
    row.detail = (
        f"by a queue without groups: x {rate:.2f} of the rate, x {cpu:.2f} of the CPU; by one, and "
        f"messages, without: x {rate_bare:.2f}, x {cpu_bare:.2f}"
    )
    row.figures = {"rate": rate, "cpu": cpu, "rate_bare": rate_bare, "cpu_bare": cpu_bare}
    row.goals = [Goal(f"≥ x {GROUPS_RATE_MIN}", rate >= GROUPS_RATE_MIN)]
    return row


async def failover(bench: Bench) -> None:
    """The client goes on at another node if its own dies."""
    async with new_queue(bench) as place:
        work = AmqpPublish(
            place.all,
            place.queue,
            0,
            window=FAILOVER_WINDOW,
            rate=FAILOVER_RATE,
            times=True,
        )

        def read_back(count: int) -> Work:
            # What was published again after a lost connection may be there twice.
            return AmqpConsume(
                place.all, place.queue, 2 * count, ack_every=100, numbers=True, idle_s=5
            )

        await measure_gaps(bench, place.queue, work, read_back, how=", C client")
    bench.rows[-1].name = "amqp failover"


RUNS = {
    "publish": publish,
    "outstanding": outstanding,
    "consume": consume,
    "both": both,
    "backlog": backlog,
    "groups": groups,
    "failover": failover,
    "cold": cold,
    "shares": shares,
    "large": large,
    "declare": many.declare,
    "idle": many.idle,
    "busy": many.busy,
    "fan-out": many.fan_out,
    "unused": many.unused,
}

if __name__ == "__main__":
    sys.exit(main(RUNS, "python -m tests.acceptance.bench.amqp"))
