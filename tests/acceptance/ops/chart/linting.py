"""What tools of others say of the rendered chart: schemas of Kubernetes, policies, YAML."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.ops.chart import tools
from tests.acceptance.ops.chart.rendering import CHART, NAMESPACE, Object, run_helm

# Oldest that the chart names, the middle, and the newest whose schemas are at hand.
KUBERNETES = ("1.27", "1.32", "1.37")
# Kinds that Kubernetes' own schemas do not have: the models of their makers' CRDs judge them.
FOREIGN = {
    "PodMonitor": "prometheus-operator/monitoring.coreos.com/v1",
    "ServiceMonitor": "prometheus-operator/monitoring.coreos.com/v1",
    "PrometheusRule": "prometheus-operator/monitoring.coreos.com/v1",
    "Certificate": "cert-manager/cert-manager.io/v1",
    "Issuer": "cert-manager/cert-manager.io/v1",
}
YAML_RULES = (
    "{extends: default, rules: {line-length: {max: 140}, document-start: disable,"
    " braces: {max-spaces-inside: 0}, indentation: {spaces: 2, indent-sequences: consistent}}}"
)
TOOL_S_MAX = 300


def lint(values: Path) -> list[str]:
    """`helm lint --strict`."""
    done = run_helm(
        "lint", "--strict", str(CHART), f"--values={values}", f"--namespace={NAMESPACE}"
    )
    return [] if done.returncode == 0 else [done.stdout + done.stderr]


def against_schemas(text: str, version: str) -> list[str]:
    """By `kubernetes-validate`. A kind that it does not know must be one that others judge."""
    done = _run_on(text, str(tools.validator() / "kubernetes-validate"), "--strict", "-k", version)
    wrong = [] if done.returncode == 0 else [done.stdout + done.stderr]
    wrong += [
        f"{kind} has no schema for {version}, and nobody else judges it"
        for kind in re.findall(r"Couldn't find schema for kind (\S+)", done.stdout + done.stderr)
        if kind not in FOREIGN
    ]
    if "passed for resource statefulset" not in done.stdout + done.stderr:
        wrong.append("kubernetes-validate did not say that it looked at the StatefulSet")
    return wrong


def against_models(objects: Sequence[Object]) -> tuple[list[str], int]:
    """What is wrong with objects of cert-manager and Prometheus' operator, and their number."""
    mine = [each for each in objects if each["kind"] in FOREIGN]
    if not mine:
        return [], 0
    where = tools.models()
    done = subprocess.run(
        ["node", "--input-type=module", "-e", _program()],
        cwd=where,
        input=json.dumps(mine),
        capture_output=True,
        text=True,
        timeout=TOOL_S_MAX,
        check=False,
    )
    if done.returncode:
        return [done.stderr.strip()], len(mine)
    return list(json.loads(done.stdout)), len(mine)


def _program() -> str:
    imports = "\n".join(
        f"import {{{kind}}} from '@kubernetes-models/{module}/{kind}';"
        for kind, module in FOREIGN.items()
    )
    return f"""
{imports}
const kinds = {{{", ".join(FOREIGN)}}};
let text = '';
for await (const part of process.stdin) text += part;
const wrong = [];
for (const each of JSON.parse(text)) {{
    try {{ new kinds[each.kind](each).validate(); }}
    catch (error) {{ wrong.push(`${{each.kind}} ${{each.metadata.name}}: ${{error.message}}`); }}
}}
console.log(JSON.stringify(wrong));
"""


@dataclass(frozen=True, slots=True)
class Policies:
    """What checkov says of one file: exceptions are annotations of the objects, with reasons."""

    broken: list[str]
    held: int
    excepted: int


def against_policies(texts: Mapping[str, str]) -> dict[str, Policies]:
    """By checkov, all at once: most of its time is its start."""
    with tempfile.TemporaryDirectory() as place:
        for name, text in texts.items():
            (Path(place) / f"{name}.yaml").write_text(text)
        done = subprocess.run(
            [
                *(str(tools.checkov()), "-d", place, "--framework", "kubernetes"),
                *("--skip-download", "--compact", "--output", "json"),
            ],
            capture_output=True,
            text=True,
            timeout=TOOL_S_MAX,
            check=False,
            cwd=place,  # else it reads a configuration from where we are
        )
    try:
        found = json.loads(done.stdout)["results"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise tools.ToolMissing(f"checkov did not answer: {done.stderr[-500:]}") from error

    def of(name: str, outcome: str) -> list[Object]:
        return [each for each in found[outcome] if Path(each["file_path"]).stem == name]

    return {
        name: Policies(
            [
                f"{each['check_id']} {each['check_name']}: {each['resource']}"
                for each in of(name, "failed_checks")
            ],
            len(of(name, "passed_checks")),
            len(of(name, "skipped_checks")),
        )
        for name in texts
    }


def yaml_style() -> list[str]:
    """By yamllint: the files that are YAML as they are."""
    files = [CHART / "Chart.yaml", CHART / "values.yaml", *(CHART / "ci").glob("*.yaml")]
    done = subprocess.run(
        [
            *(str(tools.validator() / "yamllint"), "--strict", "--format", "parsable"),
            *("-d", YAML_RULES, *map(str, files)),
        ],
        capture_output=True,
        text=True,
        timeout=TOOL_S_MAX,
        check=False,
    )
    return (done.stdout + done.stderr).splitlines() if done.returncode else []


def _run_on(text: str, *command: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "chart.yaml"
        file.write_text(text)
        return subprocess.run(
            [*command, str(file)],
            capture_output=True,
            text=True,
            timeout=TOOL_S_MAX,
            check=False,
        )
