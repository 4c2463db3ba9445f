"""What an installed node imports comes with it: an environment for developers has more."""

from __future__ import annotations

import re
import sys
import tomllib

from tests.architecture.sources import PACKAGES, ROOT, modules


def test_all_that_a_node_imports_is_among_its_dependencies():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = {
        re.split(r"[^A-Za-z0-9_.-]", each)[0].replace("-", "_") for each in project["dependencies"]
    }
    # These come with others of them; nats is nats-py.
    known = {*declared, *PACKAGES, *sys.stdlib_module_names, "pydantic", "nats"}

    missing = [
        f"{module.path}:{line}: {name}"
        for module in modules()
        if module.within("cluster", "node", "quorate")
        for line, name in module.imports()
        if name.split(".")[0] not in known
    ]

    assert missing == []
