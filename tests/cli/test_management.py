"""The client of the management API where nodes do not answer as they should."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from quorate.errors import OutcomeUnknown, Refused, Unreachable
from quorate.management import Management
from tests.node.nodes import free_ports


class Node:
    """Answers as it is told to, in turn; the last answer again and again."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[str] = []
        self.answers: list[web.Response | None] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.rel_url.raw_path}")
        answer = self.answers.pop(0)
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            raise web.HTTPInternalServerError
        return answer


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    node = Node()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", node.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    [port] = free_ports(1)
    await web.TCPSite(runner, "127.0.0.1", port).start()
    node.url = f"http://127.0.0.1:{port}"
    yield node
    await runner.cleanup()


def busy() -> web.Response:
    return web.json_response({"error": "service_unavailable", "reason": "no leader"}, status=503)


def api_of(*urls: str, timeout_s: float = 30.0) -> Management:
    return Management(urls, timeout_s=timeout_s)


async def test_another_node_is_asked_when_one_is_down(node: Node):
    node.answers = [web.json_response([])]
    async with api_of("127.0.0.1:1", node.url) as api:
        assert await api.get("users") == []


async def test_a_node_that_cannot_now_is_asked_again(node: Node):
    node.answers = [busy(), web.Response(status=201)]
    async with api_of(node.url) as api:
        assert await api.put("vhosts", "a/b c", body={})
    assert node.seen == ["PUT /api/vhosts/a%2Fb%20c"] * 2


async def test_what_may_not_be_done_twice_is_not_asked_again(node: Node):
    node.answers = [busy()]
    async with api_of(node.url) as api:
        with pytest.raises(Unreachable, match="no leader"):
            await api.post("exchanges", "/", "e", "publish", body={}, repeat=False)
    assert len(node.seen) == 1


async def test_a_lost_answer_to_a_change_is_an_unknown_outcome(node: Node):
    node.answers = [None]
    async with api_of(node.url) as api:
        with pytest.raises(OutcomeUnknown, match="no answer came"):
            await api.post("definitions", body={})
    assert len(node.seen) == 1


async def test_a_question_that_a_node_does_not_know_the_end_of_is_unknown(node: Node):
    node.answers = [web.json_response({"error": "timeout", "reason": "late"}, status=504)]
    async with api_of(node.url) as api:
        with pytest.raises(OutcomeUnknown, match="late"):
            await api.put("users", "ann", body={})


async def test_who_answers_no_json_is_refused_by_its_status(node: Node):
    node.answers = [web.Response(status=404, text="<html>"), web.Response(status=418)]
    async with api_of(node.url) as api:
        assert await api.find("users", "ann") is None
        with pytest.raises(Refused, match="418"):
            await api.get("users")


async def test_a_list_that_became_shorter_while_it_was_read_ends_there(node: Node):
    page = {"items": [{"name": "a"}], "page_count": 2}
    gone = {"error": "page_out_of_range", "reason": "Page out of range"}
    node.answers = [web.json_response(page), web.json_response(gone, status=400)]
    async with api_of(node.url) as api:
        assert await api.all("users") == [{"name": "a"}]
