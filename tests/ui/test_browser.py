"""The page at `/` in Chromium, with real traffic on three nodes. `make ui` keeps the pictures."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.node.management.api import api_of
from tests.node.nodes import Nodes
from tests.ui.browser import SCHEMES, WIDTHS, Browser, browser, missing
from tests.ui.traffic import Shop

pytestmark = [
    pytest.mark.ops,
    pytest.mark.skipif(missing() is not None, reason=f"no browser: {missing()}"),
]

#: By the name of their picture.
PAGES = {
    "overview": "overview",
    "queues": "queues",
    "queue": "queues/%2F/payments.dead",
    "split": "queues/%2F/audit",
    "streams": "streams",
    "stream": "streams/%2F/EVENTS",
    "exchanges": "exchanges",
    "exchange": "exchanges/%2F/shop",
    "connections": "connections",
    "nodes": "nodes",
    "groups": "groups",
    "links": "links",
    "policies": "policies",
    "users": "users",
    "definitions": "definitions",
    "backups": "backups",
    "audit": "audit",
}
#: Pages that name queues; the last one has as many rows as there are queues.
MANY = ["queues", "queues/%2F/many-0000", "exchanges/%2F/amq.default"]


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with Nodes(tmp_path, 3) as nodes:
        api = api_of(nodes.one)
        await api.put("streams/%2F/EVENTS", subjects=["events.*"])
        await api.put(
            "policies/%2F/limits",
            pattern="^orders",
            definition={"max-length": 100_000},
            apply_to="queues",
        )
        for day, messages in ((20, 98_200), (21, 104_512)):
            await api.post(
                "backups",
                time=f"2026-11-{day}T03:00:00+00:00",
                folder=f"/backup/2026-11-{day}",
                host="ops1",
                messages=messages,
                bytes=messages * 102,
                groups=9,
            )
        address = nodes.one.amqp.address
        assert address is not None
        shop = Shop(int(address.rpartition(":")[2]))
        await asyncio.to_thread(shop.start)
        await api.post("queues/%2F/audit/split", shards=3)
        yield nodes
        await asyncio.to_thread(shop.close)


@pytest.fixture
async def chromium(nodes: Nodes) -> AsyncIterator[Browser]:
    async with browser(f"{api_of(nodes.one).url}/") as found:
        yield found


async def act(page: Any, button: str, **fields: str) -> None:
    """Opens a dialog, fills it in, and waits until it is done."""
    await page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    for name, value in fields.items():
        await dialog.locator(f"[name={name}]").fill(value)
    await dialog.locator("button:not([type=button])").click()
    await dialog.wait_for(state="detached")


async def test_a_message_is_published_found_moved_and_a_curve_follows(
    nodes: Nodes, chromium: Browser
):
    page = await chromium.page()
    await chromium.entered(page)
    await page.get_by_role("img", name="Messages a second").locator("canvas").wait_for()
    curve = 'document.querySelector(".chart canvas").toDataURL()'
    before = await page.evaluate(curve)

    await page.get_by_role("link", name="Queues", exact=True).click()
    for name in ("browser.from", "browser.to"):
        await act(page, "Declare a queue", name=name)
    await page.get_by_label("Filter by name").fill("browser")
    await page.get_by_role("link", name="orders").wait_for(state="detached")
    await page.get_by_role("link", name="browser.from").click()
    await act(page, "Publish", payload='{"said": "in a browser"}')
    await page.locator(".message", has_text="in a browser").first.locator("button").click()
    assert '"said": "in a browser"' in await page.locator(".message pre").inner_text()
    await page.get_by_role("link", name="History", exact=True).click()
    await page.locator(".timeline li", has_text="published").wait_for()
    await page.go_back()

    await act(page, "Move", to="browser.to")
    await page.get_by_text("The queue is empty").wait_for()
    await page.goto(f"{chromium.url}#/queues/%2F/browser.to")
    await page.locator(".message", has_text="in a browser").wait_for()
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_text("the queue is paused").wait_for()
    await page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog")
    delete = dialog.get_by_role("button", name="Delete")
    assert await delete.is_disabled()
    await dialog.locator("[name=confirm]").fill("browser.to")
    await delete.click()
    await page.get_by_role("heading", name="Queues").wait_for()

    await page.get_by_role("link", name="Overview").click()
    await page.get_by_role("img", name="Messages a second").locator("canvas").wait_for()
    await page.wait_for_function(f"{curve} !== {before!r}")
    await page.get_by_role("button", name="Log out").click()
    await page.get_by_role("button", name="Log in").wait_for()

    listed = await api_of(nodes.one).get("queues/%2F?columns=name")
    assert {"name": "browser.from"} in listed
    assert {"name": "browser.to"} not in listed
    assert chromium.seen.errors == []
    assert chromium.seen.elsewhere == []


async def test_every_page_is_whole_in_light_and_dark_on_a_desk_and_a_phone(
    chromium: Browser, tmp_path: Path
):
    folder = Path(os.environ.get("UI_PICTURES", tmp_path))
    for scheme in SCHEMES:
        for place, width in WIDTHS.items():
            page = await chromium.page(scheme, width)
            await page.goto(chromium.url)
            await page.get_by_role("button", name="Log in").wait_for()
            await page.screenshot(path=folder / f"login-{scheme}-{place}.png")
            await chromium.entered(page)
            for name, path in PAGES.items():
                await page.goto(f"{chromium.url}#/{path}")
                await page.locator("h1").wait_for()
                await page.get_by_text("Loading …").first.wait_for(state="detached")
                if name == "queue":
                    await page.locator(".message button").first.click()
                assert await page.locator("[role=alert]").count() == 0, name
                wide = await page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} is {wide} pixels wide on {width}"
                await page.screenshot(path=folder / f"{name}-{scheme}-{place}.png", full_page=True)
            await page.context.close()
    assert chromium.seen.errors == []
    assert chromium.seen.elsewhere == []


async def test_no_page_asks_for_all_of_many_queues(tmp_path: Path):
    async with Nodes(tmp_path) as nodes:
        api = api_of(nodes.one)
        names = [f"many-{number:04}" for number in range(1_000)]
        queues = [{"name": name, "vhost": "/", "durable": True} for name in names]
        await api.post("definitions", queues=[{**each, "arguments": {}} for each in queues])
        async with browser(f"{api.url}/") as chromium:
            page = await chromium.page()
            await chromium.entered(page)
            answers: list[Any] = []

            def keep(answer: Any) -> None:
                answers.append(answer)

            page.on("response", keep)
            for path in MANY:
                await page.evaluate("path => { location.hash = path }", f"#/{path}")
                await page.locator("h1").wait_for()
                await page.get_by_text("Loading …").first.wait_for(state="detached")
                await page.get_by_text("many-0000").first.wait_for()
            await page.get_by_text("The first 200 are shown").wait_for()
            sizes = {each.url: len(await each.body()) for each in answers if "/api/" in each.url}

    assert len(sizes) > len(MANY)
    assert {url: size for url, size in sizes.items() if size > 64_000} == {}
    assert chromium.seen.errors == []
