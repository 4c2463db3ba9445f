"""A real control plane on loopback: etcd, kube-apiserver and kube-controller-manager.

Defaults, validation, admission, patches and controllers are Kubernetes' own, and pods must satisfy
its profile `restricted`. Pods are bound and reported ready by `kubelet`; no container runs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import ClientError, ClientSession, TCPConnector

from tests.acceptance.ops.chart.tools import ToolMissing
from tests.acceptance.ops.lifecycle.build import VERSION, control_plane
from tests.acceptance.ops.lifecycle.cluster import Cluster, CommandFailed, write_kubeconfig
from tests.acceptance.ops.lifecycle.kubelet import Kubelet
from tests.acceptance.ops.lifecycle.store import KINDS
from tests.node.nodes import free_ports

START_S_MAX = 180.0
STOP_S_MAX = 20.0
CONTROLLERS = (
    "cronjob-controller",
    "disruption-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "serviceaccount-controller",
    "statefulset-controller",
)
# Kinds of operators: the server must know them, or the chart leaves them away.
FOREIGN = [api for api in KINDS if "monitoring" in api or "cert-manager" in api]


@asynccontextmanager
async def cluster(folder: Path) -> AsyncGenerator[Cluster]:
    etcd = shutil.which("etcd")
    if etcd is None:
        raise ToolMissing("etcd is missing. On Debian: apt-get install etcd-server")
    if shutil.which("openssl") is None:
        raise ToolMissing("openssl is missing. On Debian: apt-get install openssl")
    binary = await control_plane()
    async with _Plane(folder, etcd, binary) as plane:
        trusted = ssl.create_default_context(cafile=str(plane.certificate))
        await _define_kinds(plane, trusted)
        kubelet = asyncio.create_task(Kubelet(plane.address, plane.token, trusted).run())
        try:
            yield Cluster(
                f"kube-apiserver and controllers {VERSION} with etcd; pods are only said to run",
                plane.kubeconfig,
                folder,
                flags=("--set=minReadySeconds=1",),
                logs=False,
            )
        finally:
            kubelet.cancel()
            await asyncio.gather(kubelet, return_exceptions=True)


class _Plane:
    """Its processes, from first to last."""

    def __init__(self, folder: Path, etcd: str, binary: Path) -> None:
        self._folder = folder
        self._etcd = etcd
        self._binary = str(binary)
        self._processes: list[asyncio.subprocess.Process] = []
        self.token = secrets.token_hex(16)
        self.address = ""
        self.kubeconfig = folder / "kubeconfig"
        self.certificate = folder / "certs" / "apiserver.crt"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            if process.returncode is None:
                process.terminate()
                try:
                    async with asyncio.timeout(STOP_S_MAX):
                        await process.wait()
                except TimeoutError:
                    process.kill()
                    await process.wait()

    async def _start(self) -> None:
        client, peer, port = free_ports(3)
        store, members = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        await self._run(
            "etcd",
            *(self._etcd, "--data-dir", str(self._folder / "etcd"), "--unsafe-no-fsync"),
            *("--listen-client-urls", store, "--advertise-client-urls", store),
            *("--listen-peer-urls", members, "--initial-advertise-peer-urls", members),
            *("--initial-cluster", f"default={members}"),
        )
        key, tokens = self._folder / "accounts.key", self._folder / "tokens.csv"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True
        )
        tokens.write_text(f"{self.token},admin,1,system:masters\n")
        self.address = f"https://127.0.0.1:{port}"
        await self._run(
            "apiserver",
            *(self._binary, "apiserver", f"--etcd-servers={store}", f"--secure-port={port}"),
            *("--bind-address=127.0.0.1", f"--cert-dir={self.certificate.parent}"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *(f"--token-auth-file={tokens}", "--authorization-mode=RBAC"),
            *(
                "--service-cluster-ip-range=10.0.0.0/24",
                f"--admission-control-config-file={_admission(self._folder)}",
            ),
        )
        await self._until_ready()
        write_kubeconfig(
            self.kubeconfig, self.address, {"token": self.token}, str(self.certificate)
        )
        await self._run(
            "controllers",
            *(self._binary, "controller-manager", f"--kubeconfig={self.kubeconfig}"),
            *(f"--service-account-private-key-file={key}", "--leader-elect=false"),
            *("--secure-port=0", f"--controllers={','.join(CONTROLLERS)}"),
        )

    async def _run(self, name: str, *command: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        self._processes.append(process)

    async def _until_ready(self) -> None:
        loop = asyncio.get_running_loop()
        end_s = loop.time() + START_S_MAX
        headers = {"Authorization": f"Bearer {self.token}"}
        said = "nothing"
        # Its certificate is made at its start, so it cannot be trusted before.
        async with ClientSession(headers=headers, connector=TCPConnector(ssl=False)) as api:
            while loop.time() < end_s:
                for process in self._processes:
                    if process.returncode is not None:
                        raise CommandFailed(f"the control plane ended: {self._last_words()}")
                try:
                    async with api.get(f"{self.address}/readyz") as answer:
                        if answer.status == 200:
                            return
                        said = await answer.text()
                except ClientError as error:
                    said = str(error)
                await asyncio.sleep(0.2)
        raise CommandFailed(f"kube-apiserver is not ready: {said}; {self._last_words()}")

    def _last_words(self) -> str:
        logs = [self._folder / "etcd.log", self._folder / "apiserver.log"]
        return " ".join(file.read_text()[-500:] for file in logs if file.exists())


def _admission(folder: Path) -> Path:
    """Pods of every namespace must satisfy the profile `restricted`."""
    strict = {"enforce": "restricted", "enforce-version": "latest"}
    security = {
        "apiVersion": "pod-security.admission.config.k8s.io/v1",
        "kind": "PodSecurityConfiguration",
        "defaults": strict,
    }
    file = folder / "admission.json"
    whole: dict[str, Any] = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AdmissionConfiguration",
        "plugins": [{"name": "PodSecurity", "configuration": security}],
    }
    file.write_text(json.dumps(whole))
    return file


async def _define_kinds(plane: _Plane, trusted: ssl.SSLContext) -> None:
    """Without schemas: `python -m tests.acceptance.ops.chart` judges those objects."""
    headers = {"Authorization": f"Bearer {plane.token}"}
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    connector = TCPConnector(ssl=trusted)
    async with ClientSession(plane.address, headers=headers, connector=connector) as api:
        for group_version in FOREIGN:
            group, _, version = group_version.partition("/")
            for plural, kind, _, _ in KINDS[group_version]:
                definition = {
                    "apiVersion": "apiextensions.k8s.io/v1",
                    "kind": "CustomResourceDefinition",
                    "metadata": {"name": f"{plural}.{group}"},
                    "spec": {
                        "group": group,
                        "scope": "Namespaced",
                        "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                        "versions": [
                            {
                                "name": version,
                                "served": True,
                                "storage": True,
                                "schema": {"openAPIV3Schema": anything},
                            }
                        ],
                    },
                }
                path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                async with api.post(path, json=definition) as answer:
                    if answer.status != 201:
                        raise CommandFailed(f"{kind} was not defined: {await answer.text()}")
