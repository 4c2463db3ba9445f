"""Streams by the native client, against real nodes; beside NATS's client, on the same streams."""

# pyright: basic
from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest

import quorate
from tests.local_nodes import three_nodes
from tests.node.management.api import api_of
from tests.node.nodes import Client, Nodes
from tests.testkit.waiting import WAIT_S, until


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(
        tmp_path, nats="127.0.0.1:0", **{"limits.message_bytes_max": 32 << 20}
    ) as nodes:
        yield nodes


@pytest.fixture
async def client(one: Nodes) -> AsyncIterator[quorate.Client]:
    async with quorate.connect(one.url("n1"), timeout=60) as client:
        await client.declare("orders", {"subjects": ["orders.*"]}, type="stream")
        yield client


async def filled(client: quorate.Client, count: int, first: int = 1) -> None:
    for number in range(first, first + count):
        published = await client.publish("orders", b"%d" % number, key=f"orders.{number % 2}")
        assert published.position == number


async def take(reader: quorate.Reader, count: int) -> list[quorate.Delivery]:
    async with asyncio.timeout(WAIT_S):
        return [await anext(reader) for _ in range(count)]


def positions(deliveries: list[quorate.Delivery]) -> list[int]:
    return [each.position for each in deliveries]


async def refused(work: Any) -> str:
    with pytest.raises(quorate.Refused) as error:
        await work
    return error.value.code


class TestPublishing:
    async def test_natss_clients_read_what_is_published_here(
        self, one: Nodes, client: quorate.Client
    ):
        await client.publish("orders", b"hi", key="orders.1", headers={"Source": "shop"})
        assert one.one.nats is not None
        other = await nats.connect(f"nats://{one.one.nats.address}", user="guest", password="guest")
        js = other.jetstream(timeout=WAIT_S)

        message = await js.get_msg("orders", 1)
        await js.publish("orders.7", b"back", headers={"Source": "nats"})
        async with client.read("orders", start=1) as reader:
            ours, theirs = await take(reader, 2)

        assert (message.subject, message.data) == ("orders.1", b"hi")
        assert message.headers == {"Source": "shop"}
        assert (ours.key, ours.body, ours.headers) == ("orders.1", b"hi", {"Source": "shop"})
        assert (theirs.key, theirs.body, theirs.headers) == (
            "orders.7",
            b"back",
            {"Source": "nats"},
        )
        await other.close()

    async def test_the_same_id_is_stored_once(self, client: quorate.Client):
        first = await client.publish("orders", b"a", key="orders.1", dedup_id="7")
        again = await client.publish("orders", b"a", key="orders.1", dedup_id="7")

        assert (first.position, again.duplicate) == (1, True)

    async def test_many_go_at_once(self, client: quorate.Client):
        bodies = [b"%d" % number for number in range(5_000)]

        done = await client.publish_many("orders", bodies, meta={"key": "orders.1"})
        async with client.read("orders", start="first") as reader:
            found = [each.body for each in await take(reader, 5_000)]

        assert done.stored == 5_000
        assert found == bodies

    @pytest.mark.parametrize(
        ("options", "code"),
        [
            ({}, "bad_argument"),
            ({"key": "other.1"}, "bad_argument"),
            ({"key": "orders.*"}, "bad_argument"),
            ({"key": "orders.1", "priority": 3}, "bad_argument"),
            ({"key": "orders.1", "ttl_ms": 5_000}, "bad_argument"),
        ],
    )
    async def test_what_the_stream_does_not_take_is_refused(
        self, client: quorate.Client, options: dict[str, Any], code: str
    ):
        assert await refused(client.publish("orders", b"x", **options)) == code

    async def test_a_full_stream_refuses_or_a_message_lives_so_long(self, client: quorate.Client):
        settings = {"subjects": ["full"], "max_msgs": 1, "discard": "new", "max_msg_size": 5}
        await client.declare("full", settings, type="stream")
        await client.publish("full", b"1")

        assert await refused(client.publish("full", b"2")) == "queue_full"
        assert await refused(client.publish("full", b"123456")) == "message_too_large"

    async def test_a_large_body_comes_back_whole(self, client: quorate.Client):
        body = bytes(range(256)) * (70 << 10)
        await client.publish("orders", b"small", key="orders.1")
        await client.publish("orders", body, key="orders.2")
        await client.add_cursor("orders", "c")

        async with client.read("orders", start="first") as reader:
            assert [len(each.body) for each in await take(reader, 2)] == [5, len(body)]
        async with client.read("orders", cursor="c") as reader:
            assert (await take(reader, 2))[1].body == body


class TestDeclaring:
    async def test_it_is_made_once_with_jetstreams_settings(
        self, one: Nodes, client: quorate.Client
    ):
        again = await client.declare("orders", {"subjects": ["orders.*"]}, type="stream")

        assert (again["created"], again["leader"]) == (False, "n1")
        shown = await api_of(one.one).get("streams/%2F/orders")
        assert shown["config"]["subjects"] == ["orders.*"]
        declare = client.declare(
            "orders", {"subjects": ["orders.*"], "max_age": "1h"}, type="stream"
        )
        assert await refused(declare) == "inequivalent_arguments"
        assert await refused(client.declare("s", {"max_ag": 1}, type="stream")) == "bad_argument"
        assert await refused(client.declare("a.b", type="stream")) == "bad_argument"

    async def test_a_queue_and_a_stream_are_not_used_as_each_other(self, client: quorate.Client):
        await client.declare("queue")
        await client.publish("queue", b"x")

        assert await refused(client.read("queue", start="first").start()) == "wrong_kind"
        assert await refused(client.consume("orders").start()) == "wrong_kind"
        assert await refused(client.purge("orders")) == "wrong_kind"
        assert await refused(client.read("nothing", start="first").start()) == "no_queue"
        assert await refused(client.read("orders", cursor="nobody").start()) == "no_cursor"
        assert await refused(client.add_cursor("nothing", "c")) == "no_queue"

    async def test_permissions_hold(self, one: Nodes, client: quorate.Client):
        await filled(client, 1)
        api = api_of(one.one)
        await api.put("users/ann", password="secret", tags="")
        await api.put("permissions/%2F/ann", configure="^own", write="^own", read="^own")
        async with quorate.connect(one.url("n1"), user="ann", password="secret") as ann:
            for work in (
                ann.publish("orders", b"x", key="orders.1"),
                ann.read("orders", start="first").start(),
                ann.read("orders", cursor="c").start(),
                ann.add_cursor("orders", "c"),
                ann.delete_cursor("orders", "c"),
                ann.declare("other", type="stream"),
                ann.declare("own", {"subjects": ["others"]}, type="stream"),
            ):
                assert await refused(work) == "access_refused"
            await ann.declare("own", {"subjects": ["own.>"]}, type="stream")


class TestPlaces:
    async def test_a_reader_begins_where_it_is_told(self, client: quorate.Client):
        await filled(client, 10)

        async def first(start: Any) -> int:
            async with client.read("orders", start=start) as reader:
                return positions(await take(reader, 1))[0]

        assert [await first(each) for each in ("first", "last", 7)] == [1, 10, 7]
        assert await first(dt.datetime(2020, 1, 1, tzinfo=dt.UTC)) == 1
        async with client.read("orders", start="next") as reader:
            await filled(client, 1, first=11)
            assert positions(await take(reader, 1)) == [11]
        with pytest.raises(ValueError, match="first, last, next"):
            client.read("orders", start="middle")

    async def test_it_waits_for_what_comes_and_many_read_side_by_side(self, client: quorate.Client):
        readers = [client.read("orders", start="first") for _ in range(3)]
        waiting = [asyncio.create_task(take(reader, 20)) for reader in readers]

        await filled(client, 20)

        for task in waiting:
            assert positions(await task) == list(range(1, 21))
        for reader in readers:
            await reader.aclose()

    async def test_batches_bring_all_that_is_here(self, client: quorate.Client):
        await filled(client, 10)
        async with client.read("orders", start="first", count_max=4) as reader:
            assert positions(await take(reader, 2)) == [1, 2]
            found: list[tuple[int, int]] = []
            async with asyncio.timeout(WAIT_S):
                async for batch in reader.batches():
                    found += batch.ranges
                    if found[-1][1] == 10:
                        break
        assert [n for first, last in found for n in range(first, last + 1)] == list(range(3, 11))

    async def test_it_ends_when_the_stream_is_deleted(self, client: quorate.Client):
        reader = client.read("orders", start="first")
        await reader.start()

        await client.delete("orders")

        assert await refused(take(reader, 1)) == "no_queue"

    async def test_plain_calls_do_the_same(self, one: Nodes, client: quorate.Client):
        await filled(client, 3)

        def program(url: str) -> list[int]:
            with quorate.connect_sync(url) as plain:
                assert plain.add_cursor("orders", "c")
                found: list[int] = []
                for message in plain.read("orders", cursor="c"):
                    found.append(message.position)
                    message.settle(wait=True)
                    if len(found) == 3:
                        break
                return found

        assert await asyncio.to_thread(program, one.url("n1")) == [1, 2, 3]


class TestCursors:
    async def test_what_is_settled_does_not_come_again(self, one: Nodes, client: quorate.Client):
        await filled(client, 10)
        assert await client.add_cursor("orders", "billing", {"filter_subject": "orders.1"})
        assert not await client.add_cursor("orders", "billing", {"filter_subject": "orders.1"})
        assert await refused(client.add_cursor("orders", "billing")) == "inequivalent_arguments"

        async with client.read("orders", cursor="billing") as reader:
            first, second, third = await take(reader, 3)
            assert positions([first, second, third]) == [1, 3, 5]
            await first.settle()
            await second.discard()
            await third.settle(wait=True)
            await reader.flush()
        # What was read ahead and not taken went back.
        async with client.read("orders", cursor="billing") as reader:
            rest = await take(reader, 2)
            assert positions(rest) == [7, 9]
            for each in rest:
                await each.settle(wait=True)

        shown = await api_of(one.one).get("streams/%2F/orders/consumers/billing")
        assert (shown["ack_floor"]["stream_seq"], shown["num_ack_pending"]) == (9, 0)
        assert shown["num_pending"] == 0

    async def test_what_is_returned_comes_again_and_counts(self, client: quorate.Client):
        await filled(client, 2)
        await client.add_cursor("orders", "c")

        async with client.read("orders", cursor="c") as reader:
            first, second = await take(reader, 2)
            assert (first.redelivered, first.delivery_count) == (False, 0)
            await second.extend()
            await first.return_()
            (again,) = await take(reader, 1)
            assert (again.position, again.redelivered, again.delivery_count) == (1, True, 1)
            await again.return_(delay_ms=1)
            (again,) = await take(reader, 1)
            assert (again.position, again.delivery_count) == (1, 2)

    async def test_one_answer_says_it_of_all_before(self, one: Nodes, client: quorate.Client):
        await filled(client, 10)
        await client.add_cursor("orders", "c", {"ack_policy": "all"})

        async with client.read("orders", cursor="c") as reader:
            await (await take(reader, 7))[-1].settle(wait=True)

        shown = await api_of(one.one).get("streams/%2F/orders/consumers/c")
        assert shown["ack_floor"]["stream_seq"] == 7

    async def test_what_was_lost_on_its_way_is_not_settled_with_what_is_behind_it(
        self, one: Nodes, client: quorate.Client
    ):
        await filled(client, 10)
        await client.add_cursor("orders", "c", {"ack_policy": "all"})
        info, cursors = one.one.broker.locate("/", "orders"), one.one.parts.jetstream.cursors
        assert info is not None

        async def fetch(have: int) -> list[int]:
            number = cursors.next_number()
            found = await cursors.fetch(number, info, "c", count=3, wait_ms=0, have=have)
            return [each.message.sequence for each in found]

        assert await fetch(0) == [1, 2, 3]
        assert await fetch(3) == [4, 5, 6]
        assert await fetch(4) == [5, 6, 7]
        assert await fetch(7) == [8, 9, 10]
        assert await fetch(0) == [1, 2, 3]

    async def test_where_one_answer_means_all_before_one_program_reads(
        self, one: Nodes, client: quorate.Client
    ):
        await filled(client, 3)
        await client.add_cursor("orders", "c", {"ack_policy": "all"})
        older = client.read("orders", cursor="c")
        assert positions(await take(older, 3)) == [1, 2, 3]

        async with client.read("orders", cursor="c") as newer:
            assert positions(await take(newer, 3)) == [1, 2, 3]
            assert await refused(take(older, 1)) == "cursor_taken"

    async def test_one_request_gives_back_no_more_than_so_many(
        self, one: Nodes, client: quorate.Client
    ):
        await client.add_cursor("orders", "c")
        async with Client(one.url("n1")) as raw:
            for opcode, rest in ((31, [False, None, 0]), (32, [0]), (33, [None])):
                answer = await raw.ask(opcode, 1, "orders", "c", [[1, 2**62]], *rest)
                assert answer[:3] == [4, 1, "bad_argument"]
            assert await raw.ask(30, 2, "orders", "c", [[1, 2**62]], 0) == [3, 2, 0]
            answer = await raw.ask(33, 3, "orders", "c", [[1, 1]], 5_000)
            assert "ack_wait" in answer[3]
            assert (await raw.ask(30, 4, "orders", "nobody", [[1, 1]], 0))[2] == "no_cursor"

    async def test_two_programs_share_a_cursor(self, one: Nodes, client: quorate.Client):
        await client.add_cursor("orders", "c")
        seen: list[int] = []

        async def work(reader: quorate.Reader) -> None:
            async for message in reader:
                seen.append(message.position)
                await message.settle()

        async with quorate.connect(one.url("n1")) as second:
            readers = [each.read("orders", cursor="c", count_max=5) for each in (client, second)]
            tasks = [asyncio.create_task(work(reader)) for reader in readers]
            await filled(client, 50)
            await until(lambda: len(seen) == 50)
            for reader in readers:
                await reader.aclose()
            await asyncio.gather(*tasks)

        assert sorted(seen) == list(range(1, 51))

    async def test_a_deleted_cursor_ends_its_readers(self, client: quorate.Client):
        await client.add_cursor("orders", "c")
        reader = client.read("orders", cursor="c")
        await reader.start()

        await client.delete_cursor("orders", "c")

        assert await refused(take(reader, 1)) == "no_cursor"
        assert await refused(client.delete_cursor("orders", "c")) == "no_cursor"

    async def test_a_consumer_of_nats_that_is_pushed_is_not_read(
        self, one: Nodes, client: quorate.Client
    ):
        config = {"deliver_subject": "to.me", "ack_policy": "explicit"}
        await api_of(one.one).ask("PUT", "streams/%2F/orders/consumers/p", config)

        assert await refused(client.read("orders", cursor="p").start()) == "bad_argument"

    async def test_a_program_that_is_gone_leaves_nothing_waiting(
        self, one: Nodes, client: quorate.Client
    ):
        await client.add_cursor("orders", "c")

        async def waiting() -> int:
            return (await api_of(one.one).get("streams/%2F/orders/consumers/c"))["num_waiting"]

        async def waits(count: int) -> bool:
            return await waiting() == count

        other = quorate.connect(one.url("n1"))
        await other.__aenter__()
        reading = asyncio.create_task(anext(other.read("orders", cursor="c")))
        await until(lambda: waits(1))
        for connection in other._core.routes.connections:
            await connection._shut()  # without a goodbye
        other._core.routes.drop()
        await until(lambda: waits(0))

        await filled(client, 1)
        async with client.read("orders", cursor="c") as mine:
            assert positions(await take(mine, 1)) == [1]
        reading.cancel()
        await other.close()


async def test_readers_go_on_when_the_leader_is_killed(tmp_path: Path):
    """By a place, and by cursors of either policy: nothing is missing, and nothing that was settled
    comes again.
    """
    cursors = {None: None, "each": "explicit", "upto": "all"}
    async with (
        three_nodes(tmp_path / "cluster") as cluster,
        quorate.connect(cluster.urls, timeout=60) as client,
    ):
        settings = {"subjects": ["orders.*"], "num_replicas": 3}
        made = await client.declare("orders", settings, type="stream")
        for cursor, policy in cursors.items():
            if cursor is not None:
                given = {"ack_policy": policy, "ack_wait": "2s"}
                await client.add_cursor("orders", cursor, given)
        await filled(client, 50)
        readers = [
            client.read("orders", start="first", cursor=cursor, count_max=20) for cursor in cursors
        ]
        for reader in readers:
            seen = await take(reader, 30)
            assert positions(seen) == list(range(1, 31))
            await seen[-1].settle(wait=True)
            if reader.cursor == "each":
                for each in seen:
                    await each.settle(wait=True)

        await cluster.kill(cluster.named(made["leader"]))
        for number in range(51, 101):
            published = await client.publish("orders", b"%d" % number, key="orders.1")
            assert published.position in (number, None)

        async def read_on(reader: quorate.Reader) -> set[int]:
            got: set[int] = set()
            async for message in reader:
                assert message.position > 30
                assert message.body == b"%d" % message.position
                if reader.cursor is None:
                    assert message.position == 31 + len(got)
                got.add(message.position)
                await message.settle(wait=True)
                if len(got) == 70:
                    break
            await reader.aclose()
            return got

        async with asyncio.timeout(WAIT_S):
            for got in await asyncio.gather(*map(read_on, readers)):
                assert got == set(range(31, 101))
