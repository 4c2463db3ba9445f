"""The `nats` command: what README shows, and what operators ask of servers."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from pathlib import Path

from tests.acceptance.clients.programs import program
from tests.acceptance.clients.programs.program import Given, equal

COMMAND_S_MAX = 120.0
MESSAGES = 2_000
OBJECT_BYTES = 50_000_000


class Command:
    """`nats` in a folder of its own, which is its home too."""

    def __init__(self, given: Given, folder: str) -> None:
        self._urls = given.urls
        self._folder = folder

    def __call__(self, line: str) -> str:
        """What it says. Raises if it fails."""
        code, said = self._run(line)
        if code != 0:
            raise AssertionError(f"nats {line}: {code}: {said[-500:]}")
        return said

    def refused(self, line: str) -> str:
        """What it says. Raises if it does not fail."""
        code, said = self._run(line)
        if code == 0:
            raise AssertionError(f"nats {line}: it was done: {said[-500:]}")
        return said

    def _run(self, line: str) -> tuple[int, str]:
        done = subprocess.run(
            ["nats", *line.split()],
            cwd=self._folder,
            env={**os.environ, "NATS_URL": ",".join(self._urls), "HOME": self._folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_S_MAX,
            check=False,
            text=True,
        )
        return done.returncode, done.stdout


def streams(given: Given) -> str:
    with tempfile.TemporaryDirectory() as folder:
        nats, name = Command(given, folder), given.name("cli").replace(".", "-")
        nats(f"stream add {name} --subjects {name}.> --defaults")
        nats(f"pub --count {MESSAGES} --jetstream {name}.new order-{{{{Count}}}} -q")
        found = json.loads(nats(f"stream info {name} --json"))
        equal(found["state"]["messages"], MESSAGES, "messages")
        nats(f"consumer add {name} billing --pull --defaults")
        said = nats(f"consumer next {name} billing --count 3 --raw")
        equal([f"order-{number}" in said for number in (1, 2, 3, 4)], [True] * 3 + [False], "next")
        nats(f"server check stream --stream {name}")
        nats(f"server check consumer --stream {name} --consumer billing")
        nats(f"stream purge {name} -f")
        nats(f"stream rm {name} -f")
    return f"{MESSAGES} messages"


def stores(given: Given) -> str:
    with tempfile.TemporaryDirectory() as folder:
        nats, name = Command(given, folder), given.name("cli").replace(".", "-")
        nats(f"kv add {name}")
        nats(f"kv put {name} colour green")
        equal(nats(f"kv get {name} colour --raw").strip(), "green", "a value")
        nats(f"server check kv --bucket {name}")
        nats(f"kv del {name} -f")
        data = secrets.token_bytes(OBJECT_BYTES)
        (Path(folder) / "large").write_bytes(data)
        nats(f"object add {name}")
        nats(f"object put {name} large --no-progress")
        nats(f"object get {name} large -O again --no-progress -f")
        equal((Path(folder) / "again").read_bytes() == data, True, "the object")
        nats(f"object del {name} -f")
    return f"an object of {OBJECT_BYTES:,} bytes"


def bench(given: Given) -> str:
    with tempfile.TemporaryDirectory() as folder:
        nats, name = Command(given, folder), given.name("cli").replace(".", "-")
        also = f"--msgs {MESSAGES} --stream {name} --no-progress"
        nats(f"bench js pub sync {name} {also} --create")
        for how in ("async", "atomic"):
            nats(f"bench js pub {how} {name} {also}")
        nats(f"bench js ordered {also}")
        for how in ("consume", "fetch"):
            nats(f"bench js {how} {also}")
            nats(f"consumer rm {name} nats-bench -f")
        nats(f"stream rm {name} -f")
    return f"{MESSAGES} messages, six ways"


def backups(given: Given) -> str:
    """Of a stream with a consumer in the middle of it, which is deleted and restored."""
    with tempfile.TemporaryDirectory() as folder:
        nats, name = Command(given, folder), given.name("cli").replace(".", "-")
        nats(f"stream add {name} --subjects {name}.> --defaults")
        nats(f"pub --count {MESSAGES} --jetstream {name}.new order-{{{{Count}}}} -q")
        nats(f"stream rmm {name} 3 -f")
        nats(f"consumer add {name} billing --pull --defaults")
        nats(f"consumer next {name} billing --count 10 --raw")
        before = json.loads(nats(f"stream info {name} --json"))
        nats(f"stream backup {name} kept --consumers --no-progress")
        refused = nats.refused("stream restore kept --no-progress")
        equal("already" in refused, True, "what is said of a stream that is there")
        nats(f"stream rm {name} -f")
        nats("stream restore kept --no-progress")
        after = json.loads(nats(f"stream info {name} --json"))
        for part in ("config", "state"):
            equal(after[part], before[part], part)
        said = nats(f"consumer next {name} billing --count 1 --raw")
        equal("order-12" in said, True, "what comes next")
        nats(f"stream rm {name} -f")
    return f"{MESSAGES} messages"


def servers(given: Given) -> str:
    with tempfile.TemporaryDirectory() as folder:
        nats, count = Command(given, folder), len(given.urls)
        rows = json.loads(nats(f"server list {count} --json"))
        equal(len(rows), count, "servers")
        nats(f"server ping {count}")
        nats(f"server info {rows[0]['server']['name']}")
        nats("server check jetstream")
        nats("server check connection")
        nats(f"server check meta --expect {count} --lag-critical 1000 --seen-critical 60s")
        nats("server report jetstream")
        nats("server report connections")
        equal("guest" in nats("account info"), True, "the user")
    return f"{count} servers"


if __name__ == "__main__":
    program.run(
        {f"nats-{step.__name__}": step for step in (streams, stores, backups, bench, servers)}
    )
