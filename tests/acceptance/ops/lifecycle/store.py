"""The objects of a pretended cluster, and the rules of Kubernetes that bite a release."""

from __future__ import annotations

import copy
import datetime as dt
import uuid
from dataclasses import dataclass, field
from typing import Any

# What kinds there are, by API version: plural, kind, whether in a namespace, short names.
KINDS: dict[str, list[tuple[str, str, bool, list[str]]]] = {
    "v1": [
        ("pods", "Pod", True, ["po"]),
        ("services", "Service", True, ["svc"]),
        ("configmaps", "ConfigMap", True, ["cm"]),
        ("secrets", "Secret", True, []),
        ("serviceaccounts", "ServiceAccount", True, ["sa"]),
        ("persistentvolumeclaims", "PersistentVolumeClaim", True, ["pvc"]),
        ("namespaces", "Namespace", False, ["ns"]),
        ("events", "Event", True, []),
    ],
    "apps/v1": [("statefulsets", "StatefulSet", True, ["sts"])],
    "policy/v1": [("poddisruptionbudgets", "PodDisruptionBudget", True, ["pdb"])],
    "networking.k8s.io/v1": [
        ("networkpolicies", "NetworkPolicy", True, ["netpol"]),
        ("ingresses", "Ingress", True, ["ing"]),
    ],
    "batch/v1": [("jobs", "Job", True, []), ("cronjobs", "CronJob", True, ["cj"])],
    "monitoring.coreos.com/v1": [
        ("podmonitors", "PodMonitor", True, []),
        ("servicemonitors", "ServiceMonitor", True, []),
        ("prometheusrules", "PrometheusRule", True, []),
    ],
    "cert-manager.io/v1": [
        ("certificates", "Certificate", True, []),
        ("issuers", "Issuer", True, []),
    ],
}
# All that may change in a StatefulSet's spec.
CHANGEABLE = (
    "minReadySeconds",
    "ordinals",
    "persistentVolumeClaimRetentionPolicy",
    "replicas",
    "revisionHistoryLimit",
    "template",
    "updateStrategy",
)

Object = dict[str, Any]
Key = tuple[str | None, str]


class Refused(Exception):
    """As the API server refuses: a code, a reason and a message."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason


@dataclass
class Store:
    """All objects; what controllers would do to them happens at once."""

    objects: dict[tuple[str, str], dict[Key, Object]] = field(default_factory=dict[Any, Any])
    version: int = 0

    def all(self, api: str, plural: str) -> dict[Key, Object]:
        return self.objects.setdefault((api, plural), {})

    def get(self, api: str, plural: str, key: Key) -> Object:
        found = self.all(api, plural).get(key)
        if found is None:
            raise Refused(404, "NotFound", f'{plural} "{key[1]}" not found')
        return found

    def create(self, api: str, plural: str, key: Key, new: Object, *, kept: bool = True) -> Object:
        if key in self.all(api, plural):
            raise Refused(409, "AlreadyExists", f'{plural} "{key[1]}" already exists')
        new = copy.deepcopy(new)
        new["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now(), "generation": 1}
        if key[0] is not None:
            new["metadata"]["namespace"] = key[0]
        self._stamp(new)
        if kept:
            self.all(api, plural)[key] = new
            self._controllers(new)
        return new

    def change(self, api: str, plural: str, key: Key, new: Object, *, kept: bool = True) -> Object:
        old = self.get(api, plural, key)
        if new["kind"] == "StatefulSet":
            _refuse_immutable(old, new)
        if new["kind"] == "Job" and new["spec"]["template"] != old["spec"]["template"]:
            raise Refused(422, "Invalid", f'Job "{key[1]}": spec.template: field is immutable')
        new = copy.deepcopy(new)
        new["metadata"] = {**old["metadata"], **new["metadata"]}
        if new.get("spec") != old.get("spec"):
            new["metadata"]["generation"] = old["metadata"].get("generation", 1) + 1
        self._stamp(new)
        if kept:
            self.all(api, plural)[key] = new
            self._controllers(new)
        return new

    def delete(self, api: str, plural: str, key: Key) -> Object:
        gone = self.get(api, plural, key)
        del self.all(api, plural)[key]
        if gone["kind"] == "StatefulSet":  # its pods go, its claims stay: whenDeleted is Retain
            self._scale(gone, 0)
            if _retention(gone, "whenDeleted") == "Delete":
                self._drop_claims(gone, 0)
        return gone

    def _stamp(self, new: Object) -> None:
        self.version += 1
        new["metadata"]["resourceVersion"] = str(self.version)

    def _controllers(self, each: Object) -> None:
        """What the controllers of a cluster without trouble would have done after a while."""
        kind, spec = each["kind"], each.get("spec", {})
        if kind == "StatefulSet":
            count = spec.get("replicas", 1)
            each["status"] = {
                "observedGeneration": each["metadata"]["generation"],
                "currentRevision": "current",
                "updateRevision": "current",
                **dict.fromkeys(
                    (
                        "replicas",
                        "readyReplicas",
                        "currentReplicas",
                        "updatedReplicas",
                        "availableReplicas",
                    ),
                    count,
                ),
            }
            self._scale(each, count)
        elif kind == "Pod":
            hook = "helm.sh/hook" in each["metadata"].get("annotations", {})
            each["status"] = {
                "phase": "Succeeded" if hook else "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "startTime": now(),
            }
        elif kind == "Job":
            each["status"] = {
                "succeeded": 1,
                "conditions": [{"type": "Complete", "status": "True"}],
            }
        elif kind == "PersistentVolumeClaim":
            each["status"] = {"phase": "Bound"}
        elif kind == "Service" and "clusterIP" not in spec:
            spec["clusterIP"] = "192.0.2.1"
            if spec.get("type") == "LoadBalancer":
                each["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}]}}

    def _scale(self, whole: Object, count: int) -> None:
        """Pods and claims of a StatefulSet."""
        namespace, name = whole["metadata"]["namespace"], whole["metadata"]["name"]
        pods, claims = self.all("v1", "pods"), self.all("v1", "persistentvolumeclaims")
        for key in [key for key in pods if key[0] == namespace and _ordinal(key[1], name) >= count]:
            del pods[key]
        template = whole["spec"]["template"]
        for ordinal in range(count):
            pod = f"{name}-{ordinal}"
            pods.pop((namespace, pod), None)
            made = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"]}
            made["metadata"] = {**template.get("metadata", {}), "name": pod}
            self.create("v1", "pods", (namespace, pod), made)
            for claim in whole["spec"].get("volumeClaimTemplates", []):
                key = (namespace, f"{claim['metadata']['name']}-{pod}")
                if key not in claims:
                    metadata = {**claim["metadata"], "name": key[1]}
                    kind = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
                    made = {**kind, "spec": claim["spec"], "metadata": metadata}
                    self.create("v1", "persistentvolumeclaims", key, made)
        if _retention(whole, "whenScaled") == "Delete" and count:
            self._drop_claims(whole, count)

    def _drop_claims(self, whole: Object, count: int) -> None:
        namespace, name = whole["metadata"]["namespace"], whole["metadata"]["name"]
        claims = self.all("v1", "persistentvolumeclaims")
        for template in whole["spec"].get("volumeClaimTemplates", []):
            prefix = f"{template['metadata']['name']}-{name}"
            for key in [k for k in claims if k[0] == namespace and _ordinal(k[1], prefix) >= count]:
                del claims[key]


def now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _refuse_immutable(old: Object, new: Object) -> None:
    keys = set(old["spec"]) | set(new["spec"])
    fixed = sorted(
        key for key in keys - set(CHANGEABLE) if old["spec"].get(key) != new["spec"].get(key)
    )
    if fixed:
        name = old["metadata"]["name"]
        raise Refused(
            422,
            "Invalid",
            f'StatefulSet.apps "{name}" is invalid: spec: Forbidden: updates to statefulset spec'
            f" for fields other than {', '.join(CHANGEABLE)} are forbidden: {', '.join(fixed)}",
        )


def _ordinal(name: str, whole: str) -> int:
    """Of a pod or claim; -1 for those of others."""
    head, _, last = name.rpartition("-")
    return int(last) if head == whole and last.isdigit() else -1


def _retention(whole: Object, when: str) -> str:
    return whole["spec"].get("persistentVolumeClaimRetentionPolicy", {}).get(when, "Retain")
