from __future__ import annotations

import ast
import functools
import re
import shlex
from typing import Any

import typer

from node.management.app import ROUTES
from node.settings.settings import fields
from quorate.cli.app import command_line
from tests.acceptance.jetstream.differences import DESIGN_DIFFERENCES as NATS_DIFFERENCES
from tests.acceptance.semantics.differences import DESIGN_DIFFERENCES
from tests.architecture.sources import ROOT, documents, make_targets, modules

FENCE = re.compile(r"^```(\w*)[^\n`]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")

#: Where a command ends, in a shell.
SHELL = frozenset({"|", "||", "&&", "&", ";", ">", ">>", "<", "2>", "2>&1"})


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


def test_every_quorate_command_of_the_documents_is_understood():
    """With all its options and arguments; inline ones may leave arguments away."""
    wrong: list[str] = []
    for path in documents():
        text = path.read_text()
        for line, whole in quorate_lines(text):
            if (why := misunderstood(line, whole=whole)) is not None:
                wrong.append(f"{path.name}: {line}: {why}")

    assert wrong == []


def test_a_command_that_is_wrong_is_noticed():
    assert misunderstood("quorate queue declare tasks x-max-length=5", whole=True) is None
    assert misunderstood("quorate --user ops user delete guest --yes", whole=True) is None
    assert misunderstood("quorate queue delete", whole=False) is None
    for line in (
        "quorate queue remove tasks",
        "quorate queue list --nonsense",
        "quorate user delete",
        "quorate bench --count many",
        "quorate user delete one two",
    ):
        assert misunderstood(line, whole=True) is not None, line


@functools.cache
def root() -> Any:
    return command_line()


def quorate_lines(text: str) -> list[tuple[str, bool]]:
    """Each with whether it is whole: to be typed as it stands."""
    blocks = "\n".join(
        code.replace("\\\n", " ")
        for language, code in FENCE.findall(text)
        if language in {"sh", "bash", "console", ""}
    )
    lines = [(line.removeprefix("$ ").strip(), True) for line in blocks.splitlines()]
    lines += [(line, False) for line in INLINE.findall(FENCE.sub("", text))]
    found = [(line, whole) for line, whole in lines if re.match(r"(?:\S*/)?quorate [a-z-]", line)]
    return [(line, whole and "..." not in line) for line, whole in found]


def misunderstood(line: str, *, whole: bool) -> str | None:
    """What the command line says to it, without doing it."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None  # a piece of a shell's script
    end = next((at for at, word in enumerate(words) if word in SHELL), len(words))
    command = root()
    words = words[1:end]
    try:
        while True:
            context = command.make_context("quorate", words)
            if not getattr(command, "commands", None):
                return None
            words = [*context._protected_args, *context.args]
            if not words:
                return "no command" if whole else None
            name, command, words = command.resolve_command(context, words)
            assert name is not None
    except typer.Exit:
        return None  # such as --version
    except Exception as error:  # noqa: BLE001 -- typer's own classes have no public names
        named = type(error).__name__ in {"MissingParameter", "NoArgsIsHelpError"}
        missing = named or "Missing argument" in str(error)
        abbreviated = not whole and (missing or "..." in line)
        return None if abbreviated else f"{type(error).__name__}: {error}"


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


def test_every_file_in_the_diagrams_of_the_architecture_exists():
    # They are named from the root, or from one of the two packages that messages cross.
    diagrams = "".join(block for _, block in FENCE.findall((ROOT / "ARCHITECTURE.md").read_text()))
    named = set(re.findall(r"[\w/]+\.py\b", diagrams))
    bases = (ROOT, ROOT / "node", ROOT / "cluster")

    assert len(named) > 20
    assert sorted(n for n in named if not any((base / n).exists() for base in bases)) == []


def test_every_function_that_the_architecture_names_exists():
    known: set[str] = set()
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                known |= {node.name} | {f"{node.name}.{name}" for name in _defined(node)}
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                known.add(node.name)
    text = (ROOT / "ARCHITECTURE.md").read_text()
    # `Class.method`: what looks like one must be one, in the diagrams too.
    named = {name for name in inline(text) if re.match(r"^[A-Z]\w+\.\w+$", name)}
    diagrams = "".join(block for _, block in FENCE.findall(text))
    named |= set(re.findall(r"\b[A-Z]\w*[a-z]\w*\.\w+\b", diagrams))
    files = {name for name in named if (ROOT / name).exists()}

    assert sorted(named - known - files) == []


def _defined(node: ast.ClassDef) -> set[str]:
    return {
        child.name
        for child in node.body
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def inline(text: str) -> list[str]:
    return INLINE.findall(FENCE.sub("", text))


def test_every_setting_that_the_documents_name_exists():
    known = set(fields())
    sections = {key.partition(".")[0] for key in known if "." in key}
    named = re.compile(rf"^(?:{'|'.join(sections)})\.[a-z_]+$")
    wrong = [
        f"{path.name}: {name}"
        for path in documents()
        if path.name != "CHANGELOG.md"  # which tells of those that were
        for name in inline(path.read_text())
        if named.match(name) and name not in known and not (ROOT / name).exists()
    ]

    assert wrong == []


def test_every_measure_that_the_documents_name_is_in_the_source():
    source = "".join((ROOT / module.path).read_text() for module in modules())
    wrong = [
        f"{path.name}: {name}"
        for path in documents()
        for name in inline(path.read_text())
        if re.match(r"^quorate_[a-z_]+$", name)
        and name.removesuffix("_total").removeprefix("quorate_") not in source
    ]

    assert wrong == []


def test_every_difference_from_rabbitmq_is_in_the_document_and_none_else():
    text = (ROOT / "docs" / "amqp.md").read_text()
    table = text.partition("\n## What differs, by design\n")[2].partition("\n## ")[0]

    assert set(re.findall(r"\b[ABC]\d\d\b", table)) == set(DESIGN_DIFFERENCES)


def test_every_difference_from_nats_server_is_in_the_document_and_none_else():
    text = (ROOT / "docs" / "nats.md").read_text()

    assert set(re.findall(r"`([nd]\d+_\w+)`", text)) == set(NATS_DIFFERENCES)


def test_every_route_of_the_document_exists():
    shapes = {tuple(route.path.split("/")) for route in ROUTES}
    text = (ROOT / "docs" / "management.md").read_text()
    table = text.partition("\n## Routes\n")[2].partition("\n## ")[0]
    wrong: list[str] = []
    for row in table.splitlines():
        if not row.startswith("| `"):
            continue
        before = ""
        for name in INLINE.findall(row.partition(" | ")[0]):
            path = name.removeprefix("/api").strip("/")
            if name.startswith(".../"):  # as the one before, with another end
                end = path.split("/")[1:]
                path = "/".join([*before.split("/")[: -len(end)], *end])
            before = path
            if path and "..." not in path and not name.startswith("/V"):
                wrong += [] if any(fits(path, shape) for shape in shapes) else [path]

    assert wrong == []


def fits(path: str, shape: tuple[str, ...]) -> bool:
    """Single letters stand for names and kinds."""
    parts = path.split("/")
    return len(parts) == len(shape) and all(
        part == wanted or (re.fullmatch(r"[A-Za-z]\d?", part) and wanted.startswith("{"))
        for part, wanted in zip(parts, shape, strict=True)
    )
