from __future__ import annotations

import asyncio

import pytest

from chaos.simulator.loop import Process, Stuck, World


def test_a_day_of_sleep_takes_no_time() -> None:
    world = World()
    process = Process(world, "p")
    woke: list[float] = []

    async def sleep() -> None:
        await asyncio.sleep(86_400)
        woke.append(world.now_s)

    process.spawn(sleep())
    world.run(90_000)

    assert woke == [86_400.0]
    assert world.now_s == 90_000


def test_a_timer_never_fires_early() -> None:
    world = World()
    process = Process(world, "p")
    early: list[float] = []

    async def sleep() -> None:
        for number in range(1, 200):
            until = process.time() + number / 7e5
            await asyncio.sleep(until - process.time())
            if process.time() < until - 1e-12:
                early.append(until - process.time())

    process.spawn(sleep())
    world.run(1)

    assert early == []


def test_a_killed_process_runs_not_one_more_line() -> None:
    world = World()
    process = Process(world, "p")
    lines: list[str] = []

    async def work() -> None:
        try:
            lines.append("before")
            await asyncio.sleep(1)
            lines.append("after")
        finally:
            lines.append("finally")

    process.spawn(work())
    world.kernel.call_later(0.5, process.kill)
    world.run(5)

    assert lines == ["before"]


def test_a_paused_process_goes_on_where_it_was_with_stale_timers() -> None:
    world = World()
    process = Process(world, "p")
    woke: list[float] = []

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            woke.append(world.now_s)

    process.spawn(work())
    world.kernel.call_later(1.5, process.pause)
    world.kernel.call_later(4.0, process.resume)
    world.run(10)

    assert woke == [1.0, 4.0, 5.0]


def test_processes_do_not_see_each_other_as_the_running_loop() -> None:
    world = World()
    seen: list[bool] = []

    async def look(process: Process) -> None:
        for _ in range(3):
            seen.append(asyncio.get_running_loop() is process)
            await asyncio.sleep(0.1)

    for name in ("p", "q"):
        process = Process(world, name)
        process.spawn(look(process))
    world.run(1)

    assert seen == [True] * 6


def test_timeouts_and_task_groups_work_as_in_asyncio() -> None:
    world = World()
    process = Process(world, "p")
    ended: list[float] = []

    async def work() -> None:
        try:
            async with asyncio.timeout(2), asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(1))
                group.create_task(asyncio.sleep(100))
        except TimeoutError:
            ended.append(world.now_s)

    process.spawn(work())
    world.run(10)

    assert ended == [2.0]
    assert process.crashes == []


def test_a_task_that_raises_is_a_crash_of_its_process() -> None:
    world = World()
    process = Process(world, "p")

    async def work() -> None:
        raise ValueError("a bug")

    process.spawn(work())
    process.call_soon(lambda: 1 // 0)
    world.kernel.call_later(1, lambda: None)
    world.run(1)

    assert sorted(type(crash).__name__ for crash in process.crashes) == [
        "ValueError",
        "ZeroDivisionError",
    ]


def test_when_everybody_waits_for_ever_it_says_so() -> None:
    world = World()
    process = Process(world, "p")
    process.spawn(asyncio.Event().wait())

    with pytest.raises(Stuck, match="no timer is set"):
        world.run(10)


def test_when_somebody_spins_it_says_who() -> None:
    world = World()
    process = Process(world, "spinner")

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    process.spawn(spin())

    with pytest.raises(Stuck, match="spinner"):
        world.run(10)


def test_what_a_task_would_start_at_the_end_of_a_run_is_no_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    world = World()
    process = Process(world, "p")

    async def more() -> None: ...

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            later = more()
            asyncio.get_running_loop().create_task(later)

    process.spawn(work())
    world.run(1)
    world.close()
    assert not recwarn.list
