"""The values: what is refused, that nothing is open, that the README tells of all of them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
import yaml

from tests.acceptance.ops.chart.linting import yaml_style
from tests.acceptance.ops.chart.nonsense import NONSENSE, Nonsense, not_refused
from tests.acceptance.ops.chart.readme import stale
from tests.acceptance.ops.chart.rendering import CHART
from tests.architecture.sources import ROOT

Schema = dict[str, Any]


@pytest.mark.ops
@pytest.mark.usefixtures("helm")
@pytest.mark.parametrize("each", NONSENSE, ids=lambda each: each.name)
def test_values_that_make_no_sense_are_refused_in_words(each: Nonsense):
    assert not_refused(each) == []


@pytest.mark.ops
@pytest.mark.usefixtures("helm")
def test_the_yaml_of_the_chart_is_tidy():
    assert yaml_style() == []


def schema() -> Schema:
    return json.loads((CHART / "values.schema.json").read_text())


def open_places(part: Schema, path: str) -> list[str]:
    """Objects that take keys of any name and any value."""
    found: list[str] = []
    if part.get("type") == "object":
        more = part.get("additionalProperties", True)
        if more is True and "minProperties" not in part:
            found.append(path)
        if isinstance(more, dict):
            found += open_places(cast("Schema", more), f"{path}.*")
    for key, inner in part.get("properties", {}).items():
        found += open_places(inner, f"{path}.{key}"[not path :])
    for word in ("definitions",):
        for key, inner in part.get(word, {}).items():
            found += open_places(inner, f"#{key}")
    if "items" in part:
        found += open_places(part["items"], f"{path}[]")
    for word in ("anyOf", "allOf", "oneOf"):
        for inner in part.get(word, []):
            found += open_places(inner, path)
    return found


def test_the_schema_is_closed_at_every_level():
    # `global` is Helm's: a parent chart may put there what it likes. The others are Kubernetes' own
    # objects, which it checks itself.
    kubernetes_own = ["affinity", "podSecurityContext", "containerSecurityContext"]
    assert open_places(schema(), "") == ["global", *kubernetes_own]


def test_schema_and_values_have_the_same_keys():
    whole = schema()

    def compare(part: Schema, values: Any, path: str) -> list[str]:
        if "$ref" in part:
            part = whole["definitions"][part["$ref"].rpartition("/")[2]]
        if "properties" not in part:
            return []
        given = set(values or {})
        known = set(part["properties"])
        # Kubernetes gives these a default of its own.
        optional = {"global", "initialDelaySeconds", "ephemeral-storage", "cpu"}
        wrong = [f"{path}.{key}: not in the schema" for key in sorted(given - known)]
        wrong += [f"{path}.{key}: not in values.yaml" for key in sorted(known - given - optional)]
        for key in sorted(given & known):
            wrong += compare(part["properties"][key], values[key], f"{path}.{key}")
        return wrong

    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert compare(whole, values, "") == []


def test_the_readme_is_what_its_script_makes():
    assert stale() == []


def test_every_value_has_a_word_of_explanation():
    assert readme_script().undocumented() == []


def test_a_stale_readme_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = readme_script()
    other = tmp_path / "README.md"
    other.write_text(script.text().replace("`replicas`", "`nodes`"))
    monkeypatch.setattr(script, "README", other)
    monkeypatch.setattr("sys.argv", ["readme.py", "--check"])

    assert script.main() == 1


def readme_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readme", ROOT / "helm" / "readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
