from __future__ import annotations

import ast
import sys

import pytest
from importlinter.cli import lint_imports

from tests.architecture.sources import PACKAGES, ROOT, modules

# Where each third-party package may be imported: one home, so that it can be replaced.
HOMES = {
    "aiormq": ("node.links", "quorate.cli", "chaos.load", "chaos.simulator"),
    "aiohttp": ("node", "quorate", "chaos"),
    "cbor2": ("cluster", "node", "quorate", "chaos"),
    "click": ("quorate.cli",),
    "cryptography": ("cluster.raft", "node"),
    "google_crc32c": ("cluster.log",),
    "matplotlib": ("chaos.report",),
    "nats": ("chaos.load.nats_py_client", "node.links.shovel_nats"),
    "netfilterqueue": ("chaos.live.packets",),
    "numpy": ("chaos.postmortem",),
    "pamqp": ("node.protocols.amqp", "node.links", "chaos.simulator"),
    "prometheus_client": ("node",),
    "psutil": (),
    "pydantic": ("node", "quorate"),
    "pydantic_settings": ("node",),
    "py4j": ("chaos.postmortem",),  # what pyspark talks to Java with
    "pysail": ("chaos.postmortem.session",),
    "pyspark": ("chaos.postmortem",),
    "pyarrow": ("chaos.postmortem",),
    "pandas": ("chaos.postmortem",),
    # The simulator also runs the stock engine, to show that it sees what that one does wrong.
    "pysyncobj": ("cluster.raft.pysyncobj_core", "chaos.simulator.stock"),
    "rich": ("quorate", "chaos", "node"),
    "structlog": ("node", "cluster", "quorate", "chaos"),
    "typer": ("quorate", "chaos"),
    "uvloop": ("node", "quorate", "chaos"),
    "yarl": ("node.links",),
}

# All that the pure core may know of the standard library: no I/O, no time, no chance.
PURE = {
    "__future__",
    "abc",
    "array",
    "bisect",
    "collections",
    "contextlib",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "math",
    "operator",
    "re",
    "struct",
    "typing",
    "typing_extensions",
}
# CBOR in, CBOR out, and sorted containers: pure functions and data structures of others.
PURE_THIRD_PARTY = {"cbor2", "sortedcontainers", "pyroaring"}


def test_the_import_contracts_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(ROOT)

    code = lint_imports(config_filename="pyproject.toml", no_cache=True)

    assert code == 0, capsys.readouterr().out


def test_the_machine_imports_nothing_of_ours_but_itself_and_the_types():
    wrong = [
        f"{module.path}:{line}: {name}"
        for module in modules()
        if module.within("cluster.machine")
        for line, name in module.imports()
        if name.split(".")[0] in PACKAGES
        and name != "cluster.types"
        and not name.startswith("cluster.machine")
    ]

    assert wrong == []


def test_the_machine_imports_only_what_is_pure():
    wrong = [
        f"{module.path}:{line}: {name}"
        for module in modules()
        if module.within("cluster.machine")
        for line, name in module.imports()
        if (top := name.split(".")[0]) not in PACKAGES and top not in PURE | PURE_THIRD_PARTY
    ]

    assert wrong == []


def test_each_third_party_package_is_imported_only_in_its_home():
    wrong: list[str] = []
    for module in modules():
        for line, name in module.imports():
            top = name.split(".")[0]
            if top in PACKAGES or top in sys.stdlib_module_names or top in PURE_THIRD_PARTY:
                continue
            if not module.within(*HOMES.get(top, ())):
                wrong.append(f"{module.path}:{line}: {name}")

    assert wrong == []


def test_what_tests_import_of_each_other_is_there():
    """Programs among them are imported by no test that would say so."""
    missing: list[str] = []
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tests":
                assert node.module is not None
                place = ROOT.joinpath(*node.module.split("."))
                if not place.is_dir() and not place.with_suffix(".py").exists():
                    missing.append(f"{path.relative_to(ROOT)}: {node.module}")
    assert not missing


def test_no_module_imports_pickle_or_its_like():
    forbidden = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    wrong = [
        f"{module.path}:{line}: {name}"
        for module in modules()
        if module.name != "chaos.simulator.stock"  # the stock engine cannot do without
        for line, name in module.imports()
        if name.split(".")[0] in forbidden or name.startswith("pysyncobj.pickle")
    ]

    assert wrong == []
