"""What needs no container: names, rules, rendered objects, arguments and gaps."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
import yaml

from chaos.history import Op
from tests.acceptance.ops.pods.container import Place, run_arguments
from tests.acceptance.ops.pods.identity import Identity, variables_of
from tests.acceptance.ops.pods.judging import Seen, judge, longest_gap_ms
from tests.acceptance.ops.pods.manifest import (
    Manifest,
    Unsupported,
    credentials,
    expanded,
    quantity,
)
from tests.acceptance.ops.pods.names import answer
from tests.acceptance.ops.pods.network import forward_rules
from tests.acceptance.ops.pods.volumes import Volumes

IDENTITY = Identity(
    name="quorate-1",
    uid="0a1b2c3d",
    namespace="shop",
    headless="quorate-headless",
    address="10.244.0.7",
    node_address="10.244.0.1",
    service_account="quorate",
    labels={"app": "quorate"},
)
OBJECTS = """
kind: ConfigMap
metadata: {name: settings}
data: {quorate.toml: 'cluster = "shop"', mode: fast}
---
kind: Secret
metadata: {name: keys}
data: {cluster-secret: cXVvcmF0ZQ==}
---
kind: Pod
metadata: {name: hook, annotations: {helm.sh/hook: test}}
"""
CONTAINER: dict[str, Any] = {
    "name": "quorate",
    "image": "quorate:1",
    "args": ["node", "start", "--config", "/etc/quorate/$(QUORATE_NODE).toml"],
    "env": [
        {"name": "QUORATE_NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "ADVERTISE", "value": "$(QUORATE_NODE).quorate-headless:8080 $(OTHER) $$(X)"},
        {"name": "MODE", "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "mode"}}},
        {
            "name": "MEMORY",
            "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
        },
    ],
    "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "500m"}},
    "securityContext": {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    },
    "volumeMounts": [{"name": "settings", "mountPath": "/etc/quorate", "readOnly": True}],
}


@pytest.fixture
def manifest() -> Manifest:
    return Manifest.read(OBJECTS, "shop")


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">6H", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)


def test_a_name_is_answered_with_the_addresses_that_it_has_now():
    said = answer(question("q.shop.svc.cluster.local"), {"q.shop.svc.cluster.local": ["10.1.2.3"]})

    assert said is not None
    number, flags, _, answers, _, _ = struct.unpack_from(">6H", said)
    assert (number, flags & 0x800F, answers) == (7, 0x8000, 1)
    assert said.endswith(bytes([10, 1, 2, 3]))


@pytest.mark.parametrize(
    ("asked", "code"), [(question("known", kind=28), 0), (question("other.known"), 3)]
)
def test_a_known_name_without_such_addresses_is_no_unknown_name(asked: bytes, code: int):
    """Or a resolver that asks for IPv6 first would take it that there is no such name."""
    said = answer(asked, {"known": ["10.1.2.3"]})

    assert said is not None
    _, flags, _, answers, _, _ = struct.unpack_from(">6H", said)
    assert (flags & 0xF, answers) == (code, 0)


@pytest.mark.parametrize("noise", [b"", b"\0" * 12, question("known")[:20], b"\xff" * 40])
def test_what_is_no_question_is_not_answered(noise: bytes):
    assert answer(noise, {"known": ["10.1.2.3"]}) is None


def test_each_ready_pod_gets_the_same_share_of_a_service():
    rules = forward_rules({("10.96.0.1", 5672): [("10.244.0.3", 5672), ("10.244.0.4", 5673)]})

    assert (
        "ip daddr 10.96.0.1 tcp dport 5672 numgen random mod 2 0 dnat to 10.244.0.3:5672" in rules
    )
    assert "ip daddr 10.96.0.1 tcp dport 5672 dnat to 10.244.0.4:5673" in rules


def test_variables_are_those_of_the_manifest(manifest: Manifest):
    assert variables_of(CONTAINER, IDENTITY, manifest) == {
        "QUORATE_NODE": "quorate-1",
        "ADVERTISE": "quorate-1.quorate-headless:8080 $(OTHER) $(X)",
        "MODE": "fast",
        "MEMORY": "512",
    }


def test_a_container_is_started_as_its_manifest_says(manifest: Manifest, tmp_path: Path):
    place = Place(IDENTITY, "ns", {"settings": tmp_path}, tmp_path)

    arguments = run_arguments({"securityContext": {"fsGroup": 10001}}, CONTAINER, place, manifest)

    assert {
        "--user=10001:10001",
        "--group-add=10001",
        "--read-only",
        "--read-only-tmpfs=false",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--memory=536870912b",
        "--cpu-shares=512",
        "--hostname=quorate-1",
        f"--volume={tmp_path}:/etc/quorate:ro",
    } <= set(arguments)
    assert "--security-opt=seccomp=unconfined" not in arguments
    assert arguments[-5:] == [
        "quorate:1",
        "node",
        "start",
        "--config",
        "/etc/quorate/quorate-1.toml",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"securityContext": {"privileged": True}},
        {"securityContext": {"runAsNonRoot": True, "runAsUser": 0}},
        {"securityContext": {"seccompProfile": {"type": "Localhost"}}},
        {"volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]},
        {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.unknown"}}}]},
        {"resources": {"limits": {"memory": "lots"}}},
    ],
)
def test_what_cannot_be_done_is_said(change: dict[str, Any], manifest: Manifest, tmp_path: Path):
    place = Place(IDENTITY, "ns", {"settings": tmp_path}, tmp_path)

    with pytest.raises(Unsupported):
        run_arguments({}, {**CONTAINER, **change}, place, manifest)


async def test_volumes_hold_what_the_manifest_names(
    manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    volumes = Volumes(tmp_path / "work", tmp_path / "run")
    spec = yaml.safe_load("""
        containers: [{name: quorate}]
        volumes:
          - name: settings
            projected:
              defaultMode: 0440
              sources:
                - configMap: {name: settings}
                - secret: {name: keys, items: [{key: cluster-secret, path: secrets/cluster-secret}]}
                - secret: {name: keys, optional: true, items: [{key: former, path: secrets/former}]}
                - downwardAPI:
                    items: [{path: pod/app, fieldRef: {fieldPath: "metadata.labels['app']"}}]
          - {name: tmp, emptyDir: {}}
        """)

    found = await volumes.of_pod(spec, [], IDENTITY, manifest)

    settings = found["settings"]
    files = {str(p.relative_to(settings)): p for p in settings.rglob("*") if p.is_file()}
    assert {name: path.read_text() for name, path in files.items()} == {
        "quorate.toml": 'cluster = "shop"',
        "mode": "fast",
        "secrets/cluster-secret": "quorate",
        "pod/app": "quorate",
    }
    assert {path.stat().st_mode & 0o777 for path in files.values()} == {0o440}
    assert list(found["tmp"].iterdir()) == []


@pytest.mark.parametrize(
    ("text", "value"), [("2Gi", 2 << 30), ("500m", 0.5), (2, 2.0), ("1k", 1000.0)]
)
def test_quantities(text: str | float, value: float):
    assert quantity(text) == value


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("cluster = 'shop'", "guest:guest"),
        ("default_user = 'admin'\ndefault_password_file = '/etc/quorate/secrets/pw'", "admin:x"),
    ],
)
def test_clients_come_as_the_first_user(settings: str, expected: str):
    objects: list[dict[str, Any]] = [
        {"kind": "ConfigMap", "metadata": {"name": "s"}, "data": {"quorate.toml": settings}},
        {"kind": "Secret", "metadata": {"name": "k"}, "stringData": {"pw": "x"}},
        {
            "kind": "StatefulSet",
            "metadata": {"name": "q"},
            "spec": {"template": {"spec": {"containers": [CONTAINER]}}},
        },
    ]

    assert credentials(Manifest("shop", objects)) == expected


def test_hooks_are_no_part_of_what_runs(manifest: Manifest):
    assert manifest.of_kind("Pod") == []


def test_an_unknown_variable_stays_as_it_is():
    assert expanded("$(A) $(B)", {"A": "1"}) == "1 $(B)"


def confirm(process: str, ms: int, index: int = 0) -> Op:
    value = {"queue": "q", "publisher": process, "first": index, "count": 1}
    return Op(index, process, "ok", "publish", value, monotonic_ns=ms * 1_000_000)


def test_the_longest_gap_is_one_publishers_own():
    ops = [confirm("p0", ms) for ms in (0, 100, 900, 1000)]
    ops += [confirm("p1", ms) for ms in (0, 500, 1000)]

    assert longest_gap_ms(ops, 90_000_000, 950_000_000) == 800.0


def test_who_never_had_a_confirm_again_has_no_gap():
    ops = [confirm("p0", ms) for ms in (0, 100, 1000)]
    late = [confirm("p1", ms) for ms in (0, 100)]

    assert longest_gap_ms(ops, 90_000_000, 950_000_000) == 900.0
    assert longest_gap_ms([*ops, *late], 90_000_000, 950_000_000) is None


def test_a_scene_without_load_shows_nothing():
    seen = Seen("start")

    judge(seen, [], 0, 1)

    assert not seen.passed
    assert seen.wrong[0].startswith("no load")
