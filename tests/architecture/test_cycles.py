"""Import cycles, those that `TYPE_CHECKING` hides from the running program included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from tests.architecture.sources import Module, modules


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


def test_there_are_no_import_cycles():
    known = {module.name: module for module in modules()}
    graph = {
        name: {each for each in _imported(module, known) if each in known and each != name}
        for name, module in known.items()
    }

    assert cycles(graph) == []


def test_a_cycle_is_seen():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}

    assert cycles(graph) == [["d", "e"], ["a", "b", "c"]]
