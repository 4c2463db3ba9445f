"""Import cycles, those that `TYPE_CHECKING` hides from the running program included."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping

from tests.architecture.sources import Module, modules

#: Modules that are in a cycle, by package; a package that is not named has none. Only ever lower.
IN_CYCLES_MAX = {
    "cluster": 1,
    "cluster.catalog": 1,
    "cluster.members": 5,
    "cluster.raft": 5,
    "node.management": 4,
    "node.metrics": 2,
    "node.protocols.amqp": 8,
    "quorate": 2,
    "quorate.cli": 7,
}


def _imported(module: Module, known: Mapping[str, Module]) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module or ""


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of modules that can all be reached from each other (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in sorted(graph[module]):
            if other not in number:
                visit(other)
                low[module] = min(low[module], low[other])
            elif other in stack:
                low[module] = min(low[module], number[other])
        if low[module] == number[module]:
            at = stack.index(module)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in number:
            visit(module)
    return found


def test_import_cycles_only_become_fewer():
    known = {module.name: module for module in modules()}
    graph = {
        name: {each for each in _imported(module, known) if each in known and each != name}
        for name, module in known.items()
    }
    found = cycles(graph)

    packages = Counter(name.rpartition(".")[0] for cycle in found for name in cycle)
    assert packages <= Counter(IN_CYCLES_MAX), f"the cycles are {found}"


def test_a_cycle_is_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}

    assert cycles(graph) == [["d", "e"], ["a", "b", "c"]]
