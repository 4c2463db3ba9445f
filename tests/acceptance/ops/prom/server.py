"""A real Prometheus that scrapes nodes on loopback as a PodMonitor would have it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from quorate.local import LocalNode
from quorate.ports import free_port

NAMESPACE = "shop"
START_S_MAX = 60.0
#: Path and query of each endpoint: each is a job of its own, or identities would be there twice.
ENDPOINTS: Mapping[str, tuple[str, dict[str, list[str]]]] = {
    "aggregated": ("/metrics", {}),
    "per-object": ("/metrics/per-object", {}),
    "detailed": (
        "/metrics/detailed",
        {"family": ["queue_coarse_metrics", "queue_consumer_count", "quorate_queue_metrics"]},
    ),
}


class PrometheusError(Exception):
    """It did not start, or refused a question; the text says why."""


@dataclass
class Prometheus:
    """One process, answering on loopback."""

    url: str
    http: aiohttp.ClientSession

    async def get(self, path: str, **query: str) -> Any:
        async with self.http.get(f"{self.url}/api/v1/{path}", params=query) as answer:
            body = await answer.json()
        if body["status"] != "success":
            raise PrometheusError(f"{body.get('errorType')}: {body.get('error')}")
        return body["data"]

    async def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        data = await self.get("query", query=expr)
        return data["result"] if data["resultType"] == "vector" else [data]

    async def rules(self) -> list[dict[str, Any]]:
        return [rule for group in (await self.get("rules"))["groups"] for rule in group["rules"]]

    async def scraped(self) -> dict[str, str]:
        """What is wrong with each target: "" when nothing."""
        active = (await self.get("targets", state="active"))["activeTargets"]
        return {
            f"{target['labels']['job']} {target['labels']['pod']}": ""
            if target["health"] == "up"
            else target["lastError"] or target["health"]
            for target in active
        }


def installed() -> bool:
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


#: Whoever scrapes both of them has these twice, and RabbitMQ's rules count nodes and links by them.
DROPPED = {"per-object": "rabbitmq_build_info|erlang_vm_dist_node_state"}


def configuration(nodes: Sequence[LocalNode], rule_files: Sequence[Path]) -> dict[str, Any]:
    """Each endpoint is a job; namespace and pod are labels of the target."""
    jobs = [
        {
            "job_name": f"{NAMESPACE}/quorate-{name}",
            "metrics_path": path,
            "params": params,
            "metric_relabel_configs": [
                {"source_labels": ["__name__"], "regex": DROPPED.get(name, ""), "action": "drop"}
            ],
            "static_configs": [
                {
                    "targets": [f"127.0.0.1:{node.http}"],
                    "labels": {
                        "namespace": NAMESPACE,
                        "pod": node.name,
                        "container": "quorate",
                        "endpoint": "http",
                    },
                }
                for node in nodes
            ],
        }
        for name, (path, params) in ENDPOINTS.items()
    ]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "5s"},
        "rule_files": [str(file) for file in rule_files],
        "scrape_configs": jobs,
    }


@contextlib.asynccontextmanager
async def prometheus(
    folder: Path, nodes: Sequence[LocalNode], rule_files: Sequence[Path]
) -> AsyncGenerator[Prometheus]:
    folder.mkdir()
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(nodes, rule_files)), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    output = folder / "prometheus.log"
    with output.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={address}",
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as http:
            await _until_ready(process, http, address, output)
            yield Prometheus(f"http://{address}", http)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


async def _until_ready(
    process: asyncio.subprocess.Process, http: aiohttp.ClientSession, address: str, output: Path
) -> None:
    async with asyncio.timeout(START_S_MAX):
        while process.returncode is None:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.get(f"http://{address}/-/ready") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)
    raise PrometheusError(f"prometheus ended:\n{output.read_text()[-2000:]}")
