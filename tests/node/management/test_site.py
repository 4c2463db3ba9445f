"""The page at `/`: its files, what browsers are told about them, and sessions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from node.management.site import FOLDER, TYPES
from node.protocols.basic_auth import PAGE_HEADER
from tests.node.management.api import Api, api_of
from tests.node.nodes import Nodes

#: Of what is not ours, as its packages of npm have it.
VENDORED = {
    "preact-htm.js": "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7",
    "uplot.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
    "uplot.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
}
LICENCES = {"LICENSE-htm", "LICENSE-preact", "LICENSE-uplot"}
OURS = {PAGE_HEADER: "1"}


class Page:
    """A browser that knows cookies, and runs our page."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def ask(
        self, method: str, path: str, *, headers: dict[str, str] = OURS, json: Any = None
    ) -> tuple[int, Any, Mapping[str, str]]:
        async with self.http.request(
            method, f"{self.url}/{path}", headers=headers, json=json
        ) as response:
            body = await response.read()
            value = await response.json() if response.content_type == "application/json" else body
            return response.status, value, response.headers

    async def enter(self, user: str = "guest", password: str = "guest") -> Mapping[str, str]:
        said = {"username": user, "password": password}
        status, value, headers = await self.ask("POST", "ui/session", json=said)
        assert (status, value["name"]) == (200, user)
        return headers


@pytest.fixture
async def page(api: Api) -> AsyncIterator[Page]:
    page = Page(api.url)
    yield page
    await page.http.close()


def test_what_is_not_ours_is_as_it_was_published():
    folder = FOLDER / "vendor"
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert found.keys() == VENDORED.keys() | LICENCES
    digests = {name: hashlib.sha256(found[name]).hexdigest() for name in VENDORED}
    assert digests == VENDORED


def test_files_import_what_is_there_and_name_no_other_site():
    for path in FOLDER.rglob("*"):
        if path.suffix not in TYPES or path.parent.name == "vendor":
            continue
        text = path.read_text(encoding="utf-8")
        for name in re.findall(r'from "(.+?)"', text):
            assert (path.parent / name).resolve().is_file(), f"{path.name}: {name}"
        addresses = set(re.findall(r"https?://[^\"'` )<]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, path.name
        assert ' style="' not in text, path.name  # which the policy forbids
        assert "innerHTML" not in text, path.name


async def test_the_page_may_run_nothing_but_the_nodes_own_files(page: Page):
    status, body, headers = await page.ask("GET", "", headers={})

    assert (status, headers["Content-Type"]) == (200, "text/html")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Cache-Control"] == "no-cache"
    text = body.decode()
    assert "{{" not in text
    assert re.findall(r"<script(?![^>]* src=)|<style|\bon\w+=", text) == []
    again, _, _ = await page.ask("GET", "", headers={"If-None-Match": headers["ETag"]})
    assert again == 304
    for name in re.findall(r'(?:href|src)="(ui/[^"]+)"', text):
        status, _, headers = await page.ask("GET", name, headers={})
        assert status == 200, name
        assert "immutable" in headers["Cache-Control"]
        assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["ui/{}/nothing.js", "ui/{}/index.html", "ui/0000/app.js"])
@pytest.mark.parametrize("more", ["", "../site.py"])
async def test_what_is_not_there_is_404(page: Page, path: str, more: str):
    _, body, _ = await page.ask("GET", "", headers={})
    found = re.search(r"ui/(\w+)/app\.js", body.decode())
    assert found is not None
    asked = path.format(found[1]).replace("nothing.js", f"{more}nothing.js")
    status, _, _ = await page.ask("GET", asked, headers={})
    assert status == 404


async def test_who_logs_in_may_ask_the_api_until_it_logs_out(page: Page, api: Api):
    assert (await page.ask("GET", "ui/session"))[1] == {"name": None}
    status, _, headers = await page.ask("GET", "api/overview")
    assert status == 401
    assert "WWW-Authenticate" not in headers  # which would have the browser ask

    cookie = (await page.enter())["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert f"quorate-{api.port}=" in cookie
    assert (await page.ask("GET", "ui/session"))[1]["tags"] == ["administrator"]
    assert (await page.ask("GET", "api/overview"))[0] == 200
    assert (await page.ask("PUT", "api/queues/%2F/q", json={"durable": True}))[0] == 201
    assert (await page.ask("GET", "v1/queues/%2F/q"))[0] == 200

    kept = list(page.http.cookie_jar)
    assert (await page.ask("DELETE", "ui/session"))[0] == 204
    page.http.cookie_jar.update_cookies({each.key: each.value for each in kept})
    assert (await page.ask("GET", "api/overview"))[0] == 401


async def test_a_session_is_of_no_use_to_a_page_of_another_site(page: Page, api: Api):
    await page.enter()
    for headers in (
        {},  # as a form or an image of anybody's
        OURS | {"Sec-Fetch-Site": "cross-site"},
        OURS | {"Origin": "http://127.0.0.1:1"},
    ):
        for method, path in (("GET", "overview"), ("PUT", "queues/%2F/q")):
            status, _, _ = await page.ask(method, f"api/{path}", headers=headers, json={})
            assert status in (401, 403), (headers, method)
        said = {"username": "guest", "password": "guest"}
        assert (await page.ask("POST", "ui/session", headers=headers, json=said))[0] == 403
        assert (await page.ask("DELETE", "ui/session", headers=headers))[0] == 403
    assert (await page.ask("GET", "ui/session"))[1]["name"] == "guest"
    assert (await api.ask("GET", "queues/%2F/q")).status == 404


async def test_a_wrong_login_says_why(page: Page):
    ask = page.ask
    wrong = {"username": "guest", "password": "no"}
    status, value, _ = await ask("POST", "ui/session", json=wrong)
    assert (status, value["reason"]) == (401, "user 'guest' - invalid credentials")
    status, value, _ = await ask("POST", "ui/session", json={"username": 1})
    assert (status, value["error"]) == (400, "bad_request")
    half = {"username": "\ud800", "password": "no"}  # no node could tell another one of it
    assert (await ask("POST", "ui/session", json=half))[0] == 400
    assert (await ask("POST", "ui/session", json={"username": "x" * 5_000}))[0] == 413
    far = OURS | {"X-Forwarded-For": "192.0.2.1"}
    right = {"username": "guest", "password": "guest"}
    assert (await ask("POST", "ui/session", headers=far, json=right))[0] == 401


async def test_a_session_of_guest_counts_on_the_nodes_machine_only(page: Page):
    await page.enter()
    far = OURS | {"X-Forwarded-For": "192.0.2.1"}
    assert (await page.ask("GET", "api/overview", headers=far))[0] == 401


async def test_a_session_may_what_its_user_may(page: Page, api: Api):
    await api.put("users/ann", password="one", tags="management")
    await api.put("permissions/%2F/ann", configure="^mine", write="", read="")
    await page.enter("ann", "one")

    assert (await page.ask("PUT", "api/queues/%2F/mine", json={"durable": True}))[0] == 201
    status, value, _ = await page.ask("PUT", "api/queues/%2F/other", json={"durable": True})
    assert (status, value["error"]) == (401, "not_authorised")
    assert (await page.ask("GET", "api/nodes"))[0] == 401
    assert (await page.ask("PUT", "api/queues/%2F/mine/pause"))[0] == 204
    assert (await page.ask("GET", "api/queues/%2F/mine/peek"))[0] == 401

    await api.put("users/ann", password="two", tags="management")
    assert (await page.ask("GET", "api/queues"))[0] == 401  # the password is not the one it had
    await page.enter("ann", "two")
    assert await api.delete("users/ann") == 204
    assert (await page.ask("GET", "ui/session"))[1] == {"name": None}


# --- what the page needs of the API ---------------------------------------------------------------


async def test_messages_are_looked_at_from_any_node_without_being_taken(tmp_path: Path):
    async with Nodes(tmp_path, 3) as nodes:
        apis = [api_of(node) for node in nodes.nodes.values()]
        await apis[0].queue("q")
        await apis[0].publish("q", "first", headers={"tenant": "a"})
        await apis[0].publish("q", "late", headers={"x-delay": 3_600_000})
        for api in apis:
            first, *others = await api.get("queues/%2F/q/peek?count=5")
            assert (first["payload"], first["state"], first["position"]) == ("first", "ready", 1)
            assert first["properties"]["headers"] == {"tenant": "a"}
            assert first["routing_key"] == "q"
            assert first["payload_bytes"] == 5
            assert first["id"].count("-") == 2
            assert len(others) == 1
            assert (await api.get("queues/%2F/q/peek?truncate=2"))[0]["payload"] == "fi"
            assert await api.get("queues/%2F/q/peek?start=3") == []
            assert await api.get("queues/%2F/q/peek?state=unsettled") == []
        for wrong in ("state=gone", "count=0", "start=x"):
            assert (await apis[0].ask("GET", f"queues/%2F/q/peek?{wrong}")).status == 400


async def test_a_queue_is_paused_and_says_so(api: Api):
    await api.queue("q")
    await api.publish("q", "x")

    assert await api.put("queues/%2F/q/pause") == 204
    why = await api.get("queues/%2F/q/why")
    assert why["state"]["paused"] is True
    assert why["state"]["ready"] == 1
    assert why["findings"][0]["code"] == "paused"
    assert await api.delete("queues/%2F/q/pause") == 204
    assert (await api.get("queues/%2F/q/why"))["state"]["paused"] is False


async def test_queues_are_sorted_by_how_long_their_messages_wait(api: Api):
    for name in ("a", "b", "c"):
        await api.queue(name)
    await api.publish("b", "x")
    listed = await api.get("queues?page=1&sort=oldest_ready_age&sort_reverse=true")
    assert listed["items"][0]["name"] == "b"
    assert [each["oldest_ready_age"] for each in listed["items"]][1:] == [0, 0]
