"""The chart as `helm template` renders it, one case of helm/quorate/ci at a time."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.acceptance.ops.chart import tools
from tests.architecture.sources import ROOT

CHART = ROOT / "helm" / "quorate"
EARLIER = Path(__file__).parent / "earlier"
RELEASE = "mq"
NAMESPACE = "shop"
APIS = ("monitoring.coreos.com/v1", "cert-manager.io/v1")
RENDER_S_MAX = 120

# An object of Kubernetes, as YAML has it.
Object = dict[str, Any]


class RenderFailed(Exception):
    """Helm did not render; says what helm said."""


@dataclass(frozen=True)
class Case:
    """A set of values that somebody may use."""

    name: str
    values: Path


def cases() -> list[Case]:
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return [Case(file.name.removesuffix("-values.yaml"), file) for file in files]


def case(name: str) -> Case:
    return next(each for each in cases() if each.name == name)


def run_helm(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tools.helm()), *arguments],
        capture_output=True,
        text=True,
        timeout=RENDER_S_MAX,
        check=False,
        env=environment or None,
    )


def render(
    *flags: str,
    values: Path | None = None,
    chart: Path = CHART,
    apis: Sequence[str] = APIS,
    kubernetes: str | None = None,
) -> str:
    """The manifests as text; `flags` are helm's, such as --set."""
    words = ["template", RELEASE, str(chart), f"--namespace={NAMESPACE}"]
    words += [f"--api-versions={each}" for each in apis]
    if kubernetes is not None:
        words.append(f"--kube-version={kubernetes}")
    # The chart names no image of its own, so without values there are at least those of `default`.
    words.append(f"--values={values or case('default').values}")
    done = run_helm(*words, *flags)
    if done.returncode:
        raise RenderFailed(done.stderr.strip())
    return done.stdout


def read(text: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(text) if each]


@cache
def objects(name: str, *flags: str) -> list[Object]:
    """Of a case, rendered once."""
    return read(render(*flags, values=case(name).values))


def of_kind(found: list[Object], kind: str) -> list[Object]:
    return [each for each in found if each["kind"] == kind]


def stateful_set(found: list[Object]) -> Object:
    (only,) = of_kind(found, "StatefulSet")
    return only


def container(found: list[Object]) -> Object:
    """The node's."""
    (only,) = stateful_set(found)["spec"]["template"]["spec"]["containers"]
    return only


def settings_files(found: list[Object]) -> dict[str, str]:
    """The TOML files of a release by name."""
    name = stateful_set(found)["metadata"]["name"]
    (only,) = [each for each in of_kind(found, "ConfigMap") if each["metadata"]["name"] == name]
    return only["data"]
