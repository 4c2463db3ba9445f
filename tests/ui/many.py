"""`make ui-many`: how long pages of the web UI take beside 10,000 queues, and beside 100.

Three nodes as `quorate up` starts them. The server's part is asked for as the page asks for it; the
browser's part ends when rows are on the screen.
"""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from quorate.local import LocalCluster
from tests.architecture.sources import ROOT
from tests.local_nodes import three_nodes
from tests.ui.browser import Browser, browser, missing

PAGE = ROOT / "node" / "management" / "ui" / "pages" / "queues.js"
#: Queues with a message in them, so that there are ages and lengths to sort by.
USED = 200
REPETITIONS = 20
#: What the page asks for when it is opened, and after a click or a few letters.
ASKED = {
    "by name": {},
    "by age": {"sort": "oldest_ready_age", "sort_reverse": "true"},
    "by length": {"sort": "messages_ready", "sort_reverse": "true"},
    "by rate": {"sort": "message_stats.publish_details.rate", "sort_reverse": "true"},
    "filtered by name": {"name": "-0042"},
}
#: Other pages that might look at all queues, until nothing on them is loading.
OTHERS = {
    "overview": "overview",
    "one queue": "queues/%2F/shop.orders-00000",
    "exchanges": "exchanges",
    "default exchange": "exchanges/%2F/amq.default",
    "groups": "groups",
    "nodes": "nodes",
}
REPETITIONS_OF_OTHERS = 5


def columns() -> str:
    """As the page names them."""
    (block,) = re.findall(r"const COLUMNS = \[(.*?)\]", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return ",".join(re.findall(r'"([^"]+)"', block))


def name(number: int) -> str:
    return f"shop.orders-{number:05}"


async def declare(http: aiohttp.ClientSession, url: str, count: int) -> None:
    queues = [
        {"name": name(number), "vhost": "/", "durable": True, "auto_delete": False, "arguments": {}}
        for number in range(count)
    ]
    async with http.post(f"{url}/api/definitions", json={"queues": queues}) as reply:
        assert reply.status in (200, 201, 204), await reply.text()
    for number in range(0, count, max(1, count // USED)):
        body = {"properties": {}, "routing_key": name(number), "payload": "x"}
        body["payload_encoding"] = "string"
        async with http.post(f"{url}/api/exchanges/%2F/amq.default/publish", json=body) as reply:
            assert reply.status == 200, await reply.text()


async def timed(act: Callable[[], Awaitable[Any]], times: int = REPETITIONS) -> list[float]:
    spent: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        await act()
        spent.append((time.perf_counter() - began) * 1_000)
    return spent


async def of_server(http: aiohttp.ClientSession, url: str, wanted: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for title, more in ASKED.items():
        query = {"page": "1", "page_size": "50", "columns": columns(), **more}

        async def ask(query: dict[str, str] = query) -> None:
            async with http.get(f"{url}/api/queues", params=query) as reply:
                told = await reply.json()
                assert reply.status == 200, told
                assert told["total_count"] >= wanted
                assert len(told["items"]) <= 50

        await ask()
        found[title] = await timed(ask)
    return found


async def of_browser(chromium: Browser) -> dict[str, list[float]]:
    page = await chromium.page()
    await chromium.entered(page)
    rows = page.locator("table tbody tr")

    async def open_page() -> None:
        await page.get_by_role("link", name="Queues", exact=True).click()
        await rows.first.wait_for()

    async def leave() -> None:
        await page.get_by_role("link", name="Exchanges", exact=True).click()
        await page.get_by_role("heading", name="Exchanges").wait_for()

    found: dict[str, list[float]] = {"queues opened": []}
    for _ in range(REPETITIONS):
        found["queues opened"] += await timed(open_page, 1)
        assert await rows.count() <= 50
        await leave()
    await open_page()

    async def turn() -> None:
        first = await rows.first.inner_text()
        await page.get_by_role("button", name="Next page").click()
        await page.wait_for_function(
            "first => document.querySelector('table tbody tr').innerText !== first", arg=first
        )

    async def filter_by(text: str) -> None:
        await page.get_by_label("Filter by name").fill(text)
        await page.wait_for_function(
            "text => [...document.querySelectorAll('table tbody tr')].every("
            "  each => each.innerText.includes(text))",
            arg=text,
        )

    found["next page"] = await timed(turn, 1)
    for title, path in OTHERS.items():
        found[title] = []
        for _ in range(REPETITIONS_OF_OTHERS):
            await page.goto(f"{chromium.url}#/policies")
            await page.get_by_role("heading", name="Policies").first.wait_for()

            async def go(path: str = path) -> None:
                await page.evaluate("path => { location.hash = path }", f"#/{path}")
                await page.get_by_role("heading", name="Policies").first.wait_for(state="detached")
                await page.get_by_text("Loading …").first.wait_for(state="detached")

            found[title] += await timed(go, 1)
    await page.goto(f"{chromium.url}#/queues")
    await rows.first.wait_for()
    found["filtered, 250 ms after the last letter"] = []
    for number in (42, 17, 99):
        found["filtered, 250 ms after the last letter"] += await timed(
            lambda number=number: filter_by(f"-000{number}"), 1
        )
    assert chromium.seen.errors == []
    return found


async def measure(cluster: LocalCluster, count: int) -> dict[str, list[float]]:
    url = cluster.nodes[0].url
    guest = {"Authorization": aiohttp.encode_basic_auth("guest", "guest")}
    patience = aiohttp.ClientTimeout(600)
    async with aiohttp.ClientSession(headers=guest, timeout=patience) as http:
        began = time.perf_counter()
        await declare(http, url, count)
        print(f"{count} queues made in {time.perf_counter() - began:.1f} s", flush=True)
        found = {
            f"server, {key}": value for key, value in (await of_server(http, url, count)).items()
        }
    if missing() is None:
        async with browser(f"{url}/") as chromium:
            found |= {
                f"browser, {key}": value for key, value in (await of_browser(chromium)).items()
            }
    return found


async def run(counts: list[int]) -> dict[int, dict[str, list[float]]]:
    found: dict[int, dict[str, list[float]]] = {}
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="ui-many-", ignore_cleanup_errors=True) as folder:
            async with three_nodes(Path(folder)) as cluster:
                found[count] = await measure(cluster, count)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make ui-many", description=__doc__)
    parser.add_argument("--queues", type=int, default=10_000)
    given = parser.parse_args()
    if (why := missing()) is not None:
        print(f"without the browser: {why}", file=sys.stderr)
    counts = [100, given.queues]
    found = asyncio.run(run(counts))
    print(
        f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; median (slowest), ms\n"
    )
    print("| | " + " | ".join(f"{count:,} queues" for count in counts) + " |")
    print("|---|" + "---|" * len(counts))
    for title in found[counts[0]]:
        cells = [
            f"{statistics.median(times):.0f} ({max(times):.0f})"
            for times in (found[count][title] for count in counts)
        ]
        print(f"| {title} | {' | '.join(cells)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
