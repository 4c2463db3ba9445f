"""Secrets that a node knows are nowhere in what it says, writes or shows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pika
import pytest
import trustme
from pika.exceptions import AMQPError

from tests.node.security.processes import Process, Processes, Secret, get, trusting
from tests.node.security.test_https import quorate_command

ADMIN, PASSWORD = "admin-x", "Xh7-admin-password"
OTHER = "Yk9-other-password"
WRONG = "Zq3-wrong-password"
CLUSTER_SECRET = "Wm5-cluster-secret"
ALL = (PASSWORD, OTHER, WRONG, CLUSTER_SECRET)


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": aiohttp.encode_basic_auth(user, password)}


async def test_no_secret_is_in_logs_arguments_metrics_answers_or_files(
    tmp_path: Path, authority: trustme.CA, secret: Secret
):
    password_file, secret_file = tmp_path / "password", tmp_path / "cluster-secret"
    password_file.write_text(PASSWORD + "\n")
    secret_file.write_text(CLUSTER_SECRET + "\n")
    key = (secret.folder / "tls.key").read_text().splitlines()[1]
    said: list[str] = []
    async with Processes(
        tmp_path,
        default_user=ADMIN,
        default_password_file=password_file,
        secret_file=secret_file,
        audit_file=tmp_path / "audit.log",
        log_level="debug",
        **secret.settings("client", authority=False),
    ) as nodes:
        node = nodes.one
        await node.logged("default_user_made")
        await exercise(node, authority, said)
        pid = node.process.pid
        said.append(Path(f"/proc/{pid}/cmdline").read_text())
    assert (tmp_path / "audit.log").read_text().count("audit") > 5
    written = [file for file in node.folder.rglob("*") if file.is_file()]
    assert written
    for text in (
        *said,
        node.log_file.read_text(),
        (tmp_path / "audit.log").read_text(),
        *(file.read_bytes().decode(errors="replace") for file in written),
    ):
        for each in (*ALL, key):
            assert each not in text, text[max(0, text.index(each) - 300) :][:600]


async def exercise(node: Process, authority: trustme.CA, said: list[str]) -> None:
    """Everything that gets secrets, well and wrongly; what is answered goes to `said`."""
    url = f"https://127.0.0.1:{node.ports['https']}"
    context = trusting(authority)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:

        async def ask(method: str, path: str, user: str, password: str, **more: Any) -> int:
            async with http.request(
                method, url + path, headers=basic(user, password), **more
            ) as response:
                said.append(str(response.headers) + await response.text())
                return response.status

        new = {"password": OTHER, "tags": "management"}
        assert await ask("PUT", "/api/users/bob", ADMIN, PASSWORD, json=new) == 201
        assert await ask("PUT", "/api/users/c", ADMIN, PASSWORD, json={"password": OTHER}) == 400
        broken = {**new, "tags": 7}
        assert await ask("PUT", "/api/users/d", ADMIN, PASSWORD, json=broken) == 400
        assert (
            await ask("PUT", "/api/users/d", ADMIN, PASSWORD, data=f'{{"password": "{OTHER}') == 400
        )
        assert await ask("GET", "/api/users", ADMIN, WRONG) == 401
        assert await ask("GET", "/api/users", "bob", OTHER) == 401
        assert await ask("PUT", "/v1/queues/%2F/q", ADMIN, PASSWORD, json={}) < 300
        assert await ask("GET", "/v1/status", ADMIN, WRONG) == 401
        users = {"users": [{"name": "e", "password": OTHER, "tags": ""}]}
        assert await ask("POST", "/api/definitions", ADMIN, PASSWORD, json=users) < 300
        for path in (
            "/api/overview",
            "/api/nodes",
            "/api/users",
            "/api/connections",
            "/api/definitions",
            "/api/parameters",
            "/v1/status",
            "/v1/queues",
        ):
            assert await ask("GET", path, ADMIN, PASSWORD) == 200, path

    def amqp(user: str, password: str) -> None:
        parameters = pika.ConnectionParameters(
            "127.0.0.1",
            node.ports["amqp"],
            credentials=pika.PlainCredentials(user, password),
            client_properties={"connection_name": "seen by all"},
        )
        with pika.BlockingConnection(parameters) as connection:
            connection.channel().basic_publish("", "q", b"hello")

    await asyncio.to_thread(amqp, ADMIN, PASSWORD)
    for user in (ADMIN, "nobody"):
        with pytest.raises(AMQPError):
            await asyncio.to_thread(amqp, user, WRONG)
    for path in ("/metrics", "/metrics/per-object", "/health/ready"):
        status, text = await get(url + path, context)
        assert status == 200
        said.append(text)
    for password in (PASSWORD, WRONG):
        file = node.folder.parent / "given"
        file.write_text(password)
        _, out = await quorate_command(
            "--user", ADMIN, "--password-file", str(file), "user", "list",
            QUORATE_URL=f"http://127.0.0.1:{node.ports['http']}",
        )  # fmt: skip
        said.append(out)


@pytest.mark.parametrize(
    "settings",
    [
        {"secret": "short"},
        {"default_password": PASSWORD},
        {"default_user": "", "default_password": PASSWORD},
        {"default_user": "a", "default_password": PASSWORD, "default_password_file": "x"},
        {"default_user": "a", "default_password_file": "missing"},
    ],
)
async def test_settings_that_will_not_do_are_refused_without_their_secrets(
    tmp_path: Path, settings: dict[str, str]
):
    node = Process(tmp_path, "n1", {}, **settings)
    await node.start()
    assert await node.process.wait() == 2
    said = node.log_file.read_text()
    assert "settings_refused" in said or "allowed" in said
    for value in ("short", PASSWORD):
        assert value not in said


async def test_what_a_node_writes_is_for_its_own_user_alone(tmp_path: Path):
    plain = ("http", "amqp", "peer")
    async with Processes(tmp_path, listeners=plain, audit_file=tmp_path / "audit.log") as nodes:
        folder = nodes.one.folder
        modes = {
            path: path.stat().st_mode & 0o777
            for path in (folder, tmp_path / "audit.log", *folder.rglob("*"))
        }
        assert len(modes) > 5
        for path, mode in modes.items():
            assert mode & 0o077 == 0, f"{path} {oct(mode)}"
