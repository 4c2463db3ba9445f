"""The scripts of `helm test` against three real nodes, with the chart's administrator."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from quorate.local import LocalCluster
from tests.acceptance.ops.chart.rendering import Object, objects, of_kind, settings_files
from tests.local_nodes import three_nodes

pytestmark = [pytest.mark.ops, pytest.mark.timeout(600), pytest.mark.usefixtures("helm")]

PASSWORD = "a password of the release"
SCRIPT_S_MAX = 300


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    (tmp_path / "password").write_text(PASSWORD)
    # In the words of the chart's own settings.
    text = settings_files(objects("default"))["quorate.toml"]
    user = "\n".join(
        line for line in text.splitlines() if line.startswith(("default_user", "default_password"))
    )
    user = user.replace("/etc/quorate/secrets/admin-password", f"{tmp_path}/password")
    async with three_nodes(tmp_path / "cluster", settings=user) as cluster:
        yield cluster


def urls(local: LocalCluster) -> list[str]:
    return [f"127.0.0.1:{node.http}" for node in local.nodes]


async def run(script: str, **environment: str) -> tuple[int, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("sh", "-euc", script),
        env={**os.environ, **environment, "PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(SCRIPT_S_MAX):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def job_script(case: str, kind: str, local: LocalCluster, folder: Path) -> tuple[str, Object]:
    """Of a Job or CronJob of a case, and its environment, with loopback for the pods' names."""
    (found,) = of_kind(objects(case), kind)
    spec = found["spec"] if kind == "Job" else found["spec"]["jobTemplate"]["spec"]
    spec = spec["template"]["spec"]
    first = (spec.get("initContainers") or spec["containers"])[0]
    assert first["command"] == ["sh", "-euc"]
    environment = {each["name"]: each["value"] for each in first["env"]}
    assert environment["QUORATE_URL"].count(":8080") == 3
    environment |= {"QUORATE_URL": ",".join(urls(local)), "HOME": str(folder)}
    (script,) = first["args"]
    script = re.sub(r"/(secrets|tmp|definitions)/", f"{folder}/", script)
    return script.replace("/backups", f"{folder}/backups"), environment


async def test_definitions_are_there_after_the_install(local: LocalCluster, tmp_path: Path):
    (given,) = [each for each in of_kind(objects("outside"), "Secret") if "stringData" in each]
    (tmp_path / "definitions.json").write_text(given["stringData"]["definitions.json"])
    script, environment = job_script("outside", "Job", local, tmp_path)

    for _ in range(2):  # a try that was cut short is repeated
        code, out = await run(script, **environment)
        assert code == 0, out

    code, out = await run(
        f"quorate --password-file {tmp_path}/password queue list --json", **environment
    )
    assert code == 0, out
    assert '"orders"' in out


async def test_backups_are_made_verified_and_kept_for_a_while(local: LocalCluster, tmp_path: Path):
    script, environment = job_script("backup", "CronJob", local, tmp_path)
    script = script.replace("--keep 24", "--keep 2")
    backups = tmp_path / "backups"
    for name in ("2026-01-01T00-00-00Z", "2026-01-02T00-00-00Z", "of-mine"):
        (backups / name).mkdir(parents=True)  # nothing in them: runs that did not end
    made: list[str] = []
    for _ in range(3):
        code, out = await run(script, **environment)
        assert code == 0, out
        assert ": whole; cluster" in out
        made.append(max(each.name for each in backups.iterdir() if each.name[0] == "2"))

    assert len(set(made)) == 3
    assert sorted(each.name for each in backups.iterdir()) == [*made[1:], "of-mine"]


def pod(name: str) -> Object:
    (found,) = [
        each
        for each in of_kind(objects("default"), "Pod")
        if each["metadata"]["name"].endswith(name)
    ]
    return found["spec"]["containers"][0]


def script_for(local: LocalCluster, name: str, folder: Path) -> str:
    """The pod's own, with loopback for the pods' names."""
    container = pod(name)
    assert container["command"] == ["sh", "-euc"]
    (script,) = container["args"]
    addresses = "\n".join(f"  {n}) echo {url};;" for n, url in enumerate(urls(local)))
    script, count = re.subn(
        r"(?m)^node\(\) .*$", lambda _: f"node() {{ case $1 in\n{addresses}\nesac; }}", script
    )
    assert count == 1
    script, count = re.subn(r"(?m)^drained=\S+$", f"drained={local.nodes[0].name}", script)
    assert count == (name == "drain")
    return re.sub(r"/(secrets|tmp)/", f"{folder}/", script)


async def test_messages_go_in_at_one_node_and_come_out_at_another(
    local: LocalCluster, tmp_path: Path
):
    code, out = await run(
        script_for(local, "publish-consume", tmp_path), QUORATE_USER="admin", HOME=str(tmp_path)
    )

    assert code == 0, out
    assert "confirmed 1,000 messages" in out
    assert "consumed 1,000 messages" in out
    assert "missing 0" in out


async def test_a_node_is_drained_while_publishing_goes_on(local: LocalCluster, tmp_path: Path):
    code, out = await run(
        script_for(local, "drain", tmp_path), QUORATE_USER="admin", HOME=str(tmp_path)
    )

    assert code == 0, out
    assert "drained, waited" in out
    assert "consumed 7,000 messages" in out
    assert "missing 0" in out
    assert "serves again" in out


async def test_with_another_password_the_pod_says_who_was_not_let_in(
    local: LocalCluster, tmp_path: Path
):
    (tmp_path / "password").write_text("another password")

    code, out = await run(
        script_for(local, "publish-consume", tmp_path), QUORATE_USER="admin", HOME=str(tmp_path)
    )

    assert code == 1
    assert "come as the user admin" in out
