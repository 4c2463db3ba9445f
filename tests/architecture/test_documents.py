from __future__ import annotations

import ast
import re

import typer

from quorate.cli.app import app
from tests.architecture.sources import ROOT, documents, make_targets, modules

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")


def commands(text: str) -> list[str]:
    """Every command line of a document: those of its shell blocks, and what stands inline."""
    lines: list[str] = []
    for language, block in FENCE.findall(text):
        if language in {"sh", "bash", "console"}:
            lines += block.splitlines()
    lines += INLINE.findall(FENCE.sub("", text))
    return [line.strip().removeprefix("$ ").split(" #")[0].strip() for line in lines]


def test_every_make_target_has_a_help_text():
    silent = [name for name, text in make_targets().items() if not text]

    assert silent == []


def test_every_make_command_of_the_documents_exists():
    targets = make_targets()
    wrong: list[str] = []
    for path in documents():
        for line in commands(path.read_text()):
            if match := re.match(r"make((?: [a-z-]+)+)", line):
                wrong += [f"{path.name}: {line}" for t in match[1].split() if t not in targets]

    assert wrong == []


def test_every_quorate_command_of_the_documents_exists():
    root = typer.main.get_command(app)
    wrong: list[str] = []
    for path in documents():
        for line in commands(path.read_text()):
            match = re.match(r"(?:\S*/)?quorate((?: [a-z][a-z-]*)+)", line)
            if not match:
                continue
            command = root
            for word in match[1].split():
                children = getattr(command, "commands", None)
                if children is None:
                    break  # the rest are arguments
                if word not in children:
                    wrong.append(f"{path.name}: {line}")
                    break
                command = children[word]

    assert wrong == []


def test_every_link_between_the_documents_leads_somewhere():
    wrong = [
        f"{path.name}: {target}"
        for path in documents()
        for target in LINK.findall(path.read_text())
        if not target.startswith(("http://", "https://", "mailto:"))
        and not (path.parent / target).exists()
    ]

    assert wrong == []


def test_every_path_in_the_tables_and_trees_of_the_documents_exists():
    # What stands in backticks and starts with one of our folders.
    pattern = re.compile(r"^(?:cluster|node|quorate|chaos|tests|docs)/[\w./-]*$")
    wrong = [
        f"{path.name}: {text}"
        for path in documents()
        for text in INLINE.findall(FENCE.sub("", path.read_text()))
        if pattern.match(text) and not (ROOT / text).exists()
    ]

    assert wrong == []


def test_every_function_that_the_architecture_names_exists():
    known: set[str] = set()
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                known |= {node.name} | {f"{node.name}.{name}" for name in _defined(node)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known.add(node.name)
    text = FENCE.sub("", (ROOT / "ARCHITECTURE.md").read_text())
    # `Class.method`: what looks like one must be one.
    named = {name for name in INLINE.findall(text) if re.match(r"^[A-Z]\w+\.\w+$", name)}
    files = {name for name in named if (ROOT / name).exists()}

    assert sorted(named - known - files) == []


def _defined(node: ast.ClassDef) -> set[str]:
    return {
        child.name
        for child in node.body
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
    }
