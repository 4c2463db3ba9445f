"""What the chart renders: a StatefulSet and the objects that its pods refer to."""

from __future__ import annotations

import base64
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from tests.acceptance.ops.chart.tools import helm
from tests.acceptance.ops.pods.tools import run_now

_UNITS = {
    "m": 1e-3,
    "": 1.0,
    **{unit: 1024.0 ** (at + 1) for at, unit in enumerate(("Ki", "Mi", "Gi", "Ti"))},
    **{unit: 1000.0 ** (at + 1) for at, unit in enumerate(("k", "M", "G", "T"))},
}
_QUANTITY = re.compile(r"([0-9.]+)([a-zA-Z]*)")

Spec = Mapping[str, Any]


class Unsupported(Exception):
    """The manifest asks for what is not done here: it is said, never passed over."""


def part(of: Spec, name: str) -> Spec:
    """An object in it; empty when it is not there."""
    found: Spec | None = of.get(name)
    return found or {}


def quantity(text: str | float) -> float:
    """Bytes or cores."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found.group(2) not in _UNITS:
        raise Unsupported(f"a quantity {text!r}")
    return float(found.group(1)) * _UNITS[found.group(2)]


def render(chart: Path, release: str, namespace: str, values: Mapping[str, str]) -> str:
    """By `helm template`. Raises ToolMissing or ToolFailed."""
    given = [f"--set={name}={value}" for name, value in values.items()]
    return run_now(str(helm()), "template", release, str(chart), f"--namespace={namespace}", *given)


@dataclass(frozen=True)
class Manifest:
    """All objects of one namespace."""

    namespace: str
    objects: Sequence[Spec]

    @staticmethod
    def read(text: str, namespace: str) -> Manifest:
        found = [each for each in yaml.safe_load_all(text) if each]
        # Hooks are run by helm, not by the cluster.
        kept = [
            each
            for each in found
            if "helm.sh/hook" not in (each["metadata"].get("annotations") or {})
        ]
        return Manifest(namespace, kept)

    def of_kind(self, kind: str) -> list[Spec]:
        return [each for each in self.objects if each["kind"] == kind]

    @property
    def stateful_set(self) -> Spec:
        found = self.of_kind("StatefulSet")
        if len(found) != 1:
            raise Unsupported(f"{len(found)} StatefulSets instead of one")
        return found[0]

    def data_of(self, kind: str, name: str, *, optional: bool = False) -> dict[str, bytes]:
        """Of a ConfigMap or Secret."""
        for each in self.of_kind(kind):
            if each["metadata"]["name"] == name:
                return _data(each)
        if optional:
            return {}
        raise Unsupported(f"there is no {kind} {name}")


def credentials(manifest: Manifest) -> str:
    """Of the first user, as the nodes' settings name it; else those that a new cluster has."""
    container: Spec = manifest.stateful_set["spec"]["template"]["spec"]["containers"][0]
    given = {each["name"]: each.get("value") for each in container.get("env") or ()}
    for each in manifest.of_kind("ConfigMap"):
        if "quorate.toml" in part(each, "data"):
            settings = tomllib.loads(each["data"]["quorate.toml"])
            user = given.get("QUORATE_DEFAULT_USER") or settings.get("default_user")
            file = given.get("QUORATE_DEFAULT_PASSWORD_FILE") or settings.get(
                "default_password_file"
            )
            if user and file:
                key = PurePath(file).name
                found = [_data(secret) for secret in manifest.of_kind("Secret")]
                return next(f"{user}:{data[key].decode()}" for data in found if key in data)
    return "guest:guest"


def _data(each: Spec) -> dict[str, bytes]:
    data: dict[str, str] = each.get("data") or {}
    if each["kind"] == "Secret":
        plain: dict[str, str] = each.get("stringData") or {}
        return {key: base64.b64decode(value) for key, value in data.items()} | {
            key: value.encode() for key, value in plain.items()
        }
    binary: dict[str, str] = each.get("binaryData") or {}
    return {key: value.encode() for key, value in data.items()} | {
        key: base64.b64decode(value) for key, value in binary.items()
    }


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) of a variable that was set before; $$ is a dollar."""

    def value(found: re.Match[str]) -> str:
        if found.group(0) == "$$":
            return "$"
        return variables.get(found.group(1), found.group(0))

    return re.sub(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", value, text)
