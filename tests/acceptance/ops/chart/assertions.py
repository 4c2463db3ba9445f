"""What must be true of a rendered release, whatever its values. Each function says what is not."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from node.settings.settings import Settings, SettingsError, load
from tests.acceptance.ops.chart.rendering import (
    NAMESPACE,
    Object,
    container,
    of_kind,
    settings_files,
    stateful_set,
)

UID = 10001
# What a stop needs after the drain: SIGTERM hands over again, then ends work in hand, each within
# stop_ms_max.
STOP_S = 20
PORTS = {
    "http": 8080,
    "amqp": 5672,
    "amqps": 5671,
    "https": 8443,
    "nats": 4222,
    "nats-tls": 4443,
    "nats-monitor": 8222,
    "peer": 7070,
}
CONFIG = "/etc/quorate"


def pod(found: list[Object]) -> Object:
    return stateful_set(found)["spec"]["template"]


def diagnostic(found: list[Object]) -> bool:
    return container(found).get("command") == ["sleep"]


def probes(found: list[Object]) -> list[str]:
    """One each for start, readiness and life; all ask this node about itself."""
    node = container(found)
    wrong: list[str] = []
    for name, path in (("startup", "startup"), ("readiness", "ready"), ("liveness", "live")):
        probe = node.get(f"{name}Probe")
        if diagnostic(found):
            wrong += [f"{name}Probe: a pod that only sleeps would be restarted"] if probe else []
        elif probe is None or probe["httpGet"] != {"path": f"/health/{path}", "port": "http"}:
            wrong.append(f"{name}Probe: is {probe}, not GET /health/{path} at http")
    startup = node.get("startupProbe")
    if startup and startup["periodSeconds"] * startup["failureThreshold"] < 900:
        wrong.append("startupProbe: a long log needs 15 minutes")
    return wrong


def stop(found: list[Object]) -> list[str]:
    """The drain and the stop after it fit into the grace."""
    if diagnostic(found):
        return []
    command = container(found)["lifecycle"]["preStop"]["exec"]["command"]
    wrong: list[str] = []
    if command[:6] != [
        "quorate",
        "node",
        "drain",
        "--config",
        f"{CONFIG}/quorate.toml",
        "--pre-stop",
    ]:
        wrong.append(f"preStop: is {command}")
    drain_s = int(command[command.index("--timeout") + 1].removesuffix("s"))
    grace_s = pod(found)["spec"]["terminationGracePeriodSeconds"]
    stop_s = max(STOP_S, 2 * _loaded(found)[0].stop_ms_max / 1000)
    if drain_s + stop_s >= grace_s:
        wrong.append(f"grace: {grace_s} s for a drain of {drain_s} s and {stop_s} s of stopping")
    skip = Path(command[command.index("--skip-file") + 1])
    if str(skip.relative_to(CONFIG)) not in _files(found):
        wrong.append(f"preStop: no volume has {skip}")
    return wrong


def selectors(found: list[Object]) -> list[str]:
    """Who selects nodes selects them all, and nothing else of the release."""
    nodes = pod(found)["metadata"]["labels"]
    others = [each["metadata"]["labels"] for each in of_kind(found, "Pod")]
    others += [_job_labels(each) for each in of_kind(found, "Job") + of_kind(found, "CronJob")]
    asked: list[tuple[str, dict[str, str]]] = []
    for each in found:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] == "Service":
            asked.append((name, dict(spec["selector"])))
        elif each["kind"] in {"StatefulSet", "PodDisruptionBudget", "PodMonitor"}:
            asked.append((name, spec["selector"]["matchLabels"]))
        elif each["kind"] == "NetworkPolicy":
            asked.append((name, spec["podSelector"]["matchLabels"]))
    for _, labels in asked:  # what the StatefulSet gives each pod
        of_pod = labels.pop("statefulset.kubernetes.io/pod-name", None)
        assert of_pod is None or of_pod.startswith(stateful_set(found)["metadata"]["name"])
    wrong = [f"{name}: selects no node" for name, labels in asked if not _within(labels, nodes)]
    wrong += [
        f"{name}: selects {other} too"
        for name, labels in asked
        for other in others
        if _within(labels, other)
    ]
    return wrong + ([] if len(asked) >= 4 else [f"only {len(asked)} objects select nodes"])


def _job_labels(each: Object) -> dict[str, str]:
    spec = each["spec"]
    spec = spec["jobTemplate"]["spec"] if each["kind"] == "CronJob" else spec
    return spec["template"]["metadata"]["labels"]


def _within(labels: dict[str, str], of: dict[str, str]) -> bool:
    return labels.items() <= of.items()


def security(found: list[Object]) -> list[str]:
    """Every pod of the release: no root, no writable root, no token."""
    wrong: list[str] = []
    for name, spec in _pods(found):
        pod_context = spec["securityContext"]
        # OpenShift gives both, and refuses pods that name others.
        given = pod_context.keys().isdisjoint({"runAsUser", "fsGroup"})
        rules: dict[str, bool] = {
            "has a token": spec["automountServiceAccountToken"] is False,
            "has links to services": spec["enableServiceLinks"] is False,
            "may be root": pod_context["runAsNonRoot"]
            and (given or pod_context["runAsUser"] == UID),
            "cannot read its volumes": given or pod_context["fsGroup"] == UID,
            "changes owners at each start": given
            or pod_context["fsGroupChangePolicy"] == "OnRootMismatch",
        }
        for each in spec["containers"] + spec.get("initContainers", []):
            context = each["securityContext"]
            wrong += _of_container(f"{name} {each['name']}", each, pod_context | context)
        wrong += [f"{name}: {rule}" for rule, holds in rules.items() if not holds]
    return wrong


def _of_container(name: str, each: Object, context: Object) -> list[str]:
    rules: dict[str, bool] = {
        "writes to its root": context["readOnlyRootFilesystem"] is True,
        "has capabilities": context["capabilities"] == {"drop": ["ALL"]},
        "may gain rights": context["allowPrivilegeEscalation"] is False,
        "has any system call": context["seccompProfile"] == {"type": "RuntimeDefault"},
        "has no /tmp": "/tmp" in {mount["mountPath"] for mount in each["volumeMounts"]},
        "may use more memory than it asks for": each["resources"]["requests"]["memory"]
        == each["resources"]["limits"]["memory"],
    }
    return [f"{name}: {rule}" for rule, holds in rules.items() if not holds]


def _pods(found: list[Object]) -> list[tuple[str, Object]]:
    pods: list[tuple[str, Object]] = []
    for each in found:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] == "Pod":
            pods.append((name, spec))
        elif each["kind"] in {"StatefulSet", "Job"}:
            pods.append((name, spec["template"]["spec"]))
        elif each["kind"] == "CronJob":
            pods.append((name, spec["jobTemplate"]["spec"]["template"]["spec"]))
    return pods


def settings(found: list[Object]) -> list[str]:
    """The node's own loader takes them for every pod, and they fit ports, volumes and names."""
    try:
        nodes = _loaded(found)
    except SettingsError as error:
        return str(error).splitlines()
    ports = {each["name"]: each["containerPort"] for each in container(found)["ports"]}
    files = _files(found)
    wrong: list[str] = []
    for each in nodes:
        tls = each.tls
        wrong += [
            f"{each.node}: no volume has {path}"
            for path in (
                each.secret_file,
                each.default_password_file,
                tls.client_cert,
                tls.client_ca,
                tls.peer_key,
                tls.peer_ca,
            )
            if path is not None and str(Path(path).relative_to(CONFIG)) not in files
        ]
        listening = {name: getattr(each, name.replace("-", "_")) for name in PORTS}
        expected = {name: f"0.0.0.0:{PORTS[name]}" for name in ports}
        if expected != {name: value for name, value in listening.items() if value is not None}:
            wrong.append(f"{each.node}: listens at {listening}, and the pod's ports are {ports}")
        own = each.peers[each.node]
        name = stateful_set(found)["spec"]["serviceName"]
        if not re.fullmatch(rf"{each.node}\.{name}\.{NAMESPACE}\.svc\.[a-z0-9.]+:7070", own):
            wrong.append(f"{each.node}: is known as {own}")
        if each.http_advertise != (_outside(found, each.node) or own.replace(":7070", ":8080")):
            wrong.append(f"{each.node}: sends clients to {each.http_advertise}")
    first = int(stateful_set(found)["metadata"]["annotations"]["quorate/initial-nodes"])
    joining = [int(each.node.rpartition("-")[2]) for each in nodes if each.join]
    if joining != list(range(first, stateful_set(found)["spec"]["replicas"])):
        wrong.append(f"nodes {joining} join a cluster that began with {first}")
    return wrong


def _outside(found: list[Object], node: str) -> str | None:
    """Where clients from outside find it: at its own port of all machines, or by the name that its
    own Service is given in the DNS.
    """
    for each in of_kind(found, "Service"):
        if each["metadata"]["name"] == node:
            if each["spec"]["type"] == "NodePort":
                return f"machines.example.org:{each['spec']['ports'][0]['nodePort']}"
            (name,) = each["metadata"]["annotations"].values()
            return f"{name}:8080"
    return None


def _loaded(found: list[Object]) -> list[Settings]:
    """Of each pod, from the file that its arguments name, with its environment."""
    files, node, whole = settings_files(found), container(found), stateful_set(found)
    config = (node["args"] if not diagnostic(found) else ["--config", f"{CONFIG}/quorate.toml"])[-1]
    loaded: list[Settings] = []
    with tempfile.TemporaryDirectory() as place:
        for name, text in files.items():
            (Path(place) / name).write_text(text)
        for ordinal in range(whole["spec"]["replicas"]):
            environment: dict[str, str] = {}
            for each in node["env"]:
                value = each.get("value", f"{whole['metadata']['name']}-{ordinal}")
                for known, content in environment.items():
                    value = value.replace(f"$({known})", content)
                environment[each["name"]] = value
            file = Path(config.replace("$(QUORATE_NODE)", environment["QUORATE_NODE"])).name
            loaded.append(load(file=Path(place) / file, environment=environment))
    return loaded


def _files(found: list[Object]) -> set[str]:
    """What is in the volume at /etc/quorate, by relative path."""
    sources = _volume(found, "settings")["projected"]["sources"]
    paths: set[str] = set(settings_files(found))
    for source in sources:
        for kind in ("secret", "downwardAPI"):
            paths |= {item["path"] for item in source.get(kind, {}).get("items", [])}
    return paths


def _volume(found: list[Object], name: str) -> Any:
    return next(each for each in pod(found)["spec"]["volumes"] if each["name"] == name)


def identity(found: list[Object]) -> list[str]:
    """All pods start at once, find each other before they are ready, and keep their volumes."""
    whole = stateful_set(found)["spec"]
    services = {each["metadata"]["name"]: each["spec"] for each in of_kind(found, "Service")}
    headless = services[whole["serviceName"]]
    (budget,) = of_kind(found, "PodDisruptionBudget")
    away = budget["spec"]["maxUnavailable"]
    rules = {
        "pods wait for each other": whole["podManagementPolicy"] == "Parallel",
        "the headless service has an address": headless["clusterIP"] == "None",
        "nodes must be ready to be found": headless["publishNotReadyAddresses"] is True,
        "clients come to nodes that are not ready": not any(
            each.get("publishNotReadyAddresses")
            for name, each in services.items()
            if name != whole["serviceName"]
        ),
        "clients reach the peer port": all(
            "peer" not in {port["name"] for port in each["ports"]}
            for name, each in services.items()
            if name != whole["serviceName"]
        ),
        "volumes go with the StatefulSet": whole["persistentVolumeClaimRetentionPolicy"][
            "whenDeleted"
        ]
        == "Retain",
        "a restart goes on at once": whole["minReadySeconds"] > 0,
        "a majority may be evicted": 1 <= away <= (whole["replicas"] - 1) // 2,
        "nodes are not spread": "podAntiAffinity" in pod(found)["spec"]["affinity"]
        and pod(found)["spec"]["topologySpreadConstraints"][0]["maxSkew"] == 1,
    }
    return [rule for rule, holds in rules.items() if not holds]
