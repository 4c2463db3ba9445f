"""The page in a real browser: what it says on its console and whom it asks is kept."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

WIDTHS = {"phone": 400, "desk": 1400}
SCHEMES = ("light", "dark")
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def missing() -> str | None:
    """Why no browser can be driven here; None: it can."""
    if shutil.which("chromium") is None:
        return "chromium is not installed (apt-get install chromium)"
    try:
        import playwright.async_api  # noqa: F401 -- whether it is there
    except ImportError:
        return "playwright is not installed (make ui, or pip install -e '.[ui]')"
    return None


@dataclass
class Seen:
    """By all pages of a browser."""

    host: str
    errors: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def watch(self, page: Any) -> None:
        page.on("console", lambda said: said.type == "error" and self.errors.append(said.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in ("data", "blob") and parts.netloc != self.host:
            self.elsewhere.append(request.url)


@dataclass
class Browser:
    url: str
    seen: Seen
    chromium: Any

    async def page(self, scheme: str = "light", width: int = WIDTHS["desk"]) -> Any:
        """Of somebody who has not been here before."""
        context = await self.chromium.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
        )
        page = await context.new_page()
        page.set_default_timeout(20_000)
        self.seen.watch(page)
        return page

    async def entered(self, page: Any, user: str = "guest", password: str = "guest") -> None:
        await page.goto(self.url)
        await page.get_by_label("User").fill(user)
        await page.get_by_label("Password").fill(password)
        await page.get_by_role("button", name="Log in").click()
        await page.get_by_role("heading", name="Overview").wait_for()


@asynccontextmanager
async def browser(url: str) -> AsyncIterator[Browser]:
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(ARGUMENTS)
        )
        try:
            yield Browser(url, Seen(urlsplit(url).netloc), chromium)
        finally:
            await chromium.close()
