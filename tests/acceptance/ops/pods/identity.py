"""Who a pod is, as it may ask by the downward API, and the variables of its containers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.acceptance.ops.pods.manifest import Manifest, Spec, Unsupported, expanded, part, quantity

_MAP_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True)
class Identity:
    """One pod of a StatefulSet, from its creation to its end."""

    name: str
    uid: str
    namespace: str
    headless: str
    address: str
    node_address: str
    service_account: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    def field(self, path: str) -> str:
        """Raises Unsupported."""
        if (found := _MAP_FIELD.fullmatch(path)) is not None:
            of: Mapping[str, str] = getattr(self, found.group(1))
            return of.get(found.group(2), "")
        if path in ("metadata.labels", "metadata.annotations"):
            pairs: Mapping[str, str] = getattr(self, path.partition(".")[2])
            return "\n".join(f'{key}="{value}"' for key, value in sorted(pairs.items()))
        fields = {
            "metadata.name": self.name,
            "metadata.namespace": self.namespace,
            "metadata.uid": self.uid,
            "spec.nodeName": "machine",
            "spec.serviceAccountName": self.service_account,
            "status.hostIP": self.node_address,
            "status.hostIPs": self.node_address,
            "status.podIP": self.address,
            "status.podIPs": self.address,
        }
        if path not in fields:
            raise Unsupported(f"the downward API's field {path}")
        return fields[path]


def resource_field(container: Spec, asked: Spec) -> str:
    """limits.memory and the like, in units of its divisor, rounded up."""
    side, _, name = str(asked["resource"]).partition(".")
    given = part(part(container, "resources"), side).get(name)
    if given is None:
        raise Unsupported(f"{asked['resource']} of a container that has none")
    divisor = quantity(asked.get("divisor") or "1") or 1.0
    return str(math.ceil(quantity(given) / divisor))


def variables_of(container: Spec, identity: Identity, manifest: Manifest) -> dict[str, str]:
    """Its environment, as the manifest says."""
    found: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        prefix = source.get("prefix", "")
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if key in source:
                optional = bool(source[key].get("optional"))
                data = manifest.data_of(kind, source[key]["name"], optional=optional)
                found |= {f"{prefix}{name}": value.decode() for name, value in data.items()}
    for each in container.get("env") or ():
        if "valueFrom" in each:
            value = _value_from(each["valueFrom"], container, identity, manifest)
        else:
            value = expanded(str(each.get("value", "")), found)
        if value is not None:
            found[each["name"]] = value
    return found


def _value_from(
    source: Spec, container: Spec, identity: Identity, manifest: Manifest
) -> str | None:
    if "fieldRef" in source:
        return identity.field(source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource_field(container, source["resourceFieldRef"])
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if key in source:
            asked = source[key]
            optional = bool(asked.get("optional"))
            data = manifest.data_of(kind, asked["name"], optional=optional)
            if asked["key"] not in data:
                if optional:
                    return None
                raise Unsupported(f"{kind} {asked['name']} has no key {asked['key']}")
            return data[asked["key"]].decode()
    raise Unsupported(f"a variable from {', '.join(source)}")
