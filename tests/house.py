"""Figures of the package: files, lines, functions, the depth of its imports, and files that ask for a mode of
parallelism.

python -m tests.house                          the working tree
python -m tests.house REV [REV...]             the working tree, compared with commits
python -m tests.house --of BASE [REV...]       the same, without files that are newer than the commit BASE

With `--of`, a file counts if at least half of its lines (without blank ones) are somewhere in the package at BASE. So
files that were moved, renamed or joined count, and files of later features do not. Lines that were added to a counted
file do count.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "declarative_train"

MODE_CLASSES = {"Dp"}  # the only mode that is not a product of axes
MODE_WORDS = {"single", "dp", "ddp", "fsdp"}  # without `pipeline`, which is also the name of an axis
MAY_ASK = re.compile(rf"""["'](?:{"|".join([*sorted(MODE_WORDS), "pipeline"])})["']|sections\.parallelism\b""")


def working_tree() -> dict[str, str]:
    """Return a dict from path (below the repository) to text, for every Python file of the package."""
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


def at_commit(rev: str) -> dict[str, str]:
    packed = subprocess.run(["git", "archive", rev, PACKAGE.name], cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        files = [member for member in archive if member.name.endswith(".py")]
        return {member.name: archive.extractfile(member).read().decode() for member in files}  # type: ignore[union-attr]


def files_of_base(base: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    """Return the files of `texts` of which at least half of the lines are in `base`."""
    known = {line.strip() for text in base.values() for line in text.splitlines()}
    found = {}
    for name, text in texts.items():
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if sum(line in known for line in lines) * 2 >= len(lines):
            found[name] = text
    return found


def code_lines(text: str) -> int:
    """Count the lines that are not blank, comments or docstrings (of a module, class, function or field)."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            for each in node.body:
                if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):
                    left_out.update(range(each.lineno, (each.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in left_out for n, line in lines)


def functions(text: str) -> list[int]:
    """Return the number of lines of each function and method, without decorators."""
    nodes = ast.walk(ast.parse(text))
    return [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, ast.FunctionDef)]


@cache
def imports_of(text: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return all imports of a module, also those inside functions."""
    return tuple(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom))


@cache
def imports_at_load(text: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """Return the imports of a module that run when it is loaded: all except those in functions and under
    TYPE_CHECKING."""
    found, bodies = [], [ast.parse(text).body]
    for body in bodies:
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.append(node)
            elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                bodies.append(node.orelse)
            elif isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef):
                handlers = [handler.body for handler in getattr(node, "handlers", ())]
                bodies += [node.body, getattr(node, "orelse", []), getattr(node, "finalbody", []), *handlers]
    return tuple(found)


def import_graph(texts: Mapping[str, str], *, at_load: bool = False) -> dict[str, set[str]]:
    """Return a dict from each module of the package to the modules of the package that it imports. `at_load`: count
    only imports that run when a module is loaded."""
    imports = imports_at_load if at_load else imports_of
    files = {module_of(name): text for name, text in texts.items()}
    graph = {}
    for name, text in files.items():
        found: set[str] = set()
        for node in imports(text):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names} & set(files)
                found |= inside or {node.module}
        graph[name] = found & set(files) - {name}
    return graph


def module_of(path: str) -> str:
    parts = Path(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return groups of modules that import each other, directly or through others (Kosaraju's algorithm). `graph`:
    result of `import_graph`."""
    order: list[str] = []
    seen: set[str] = set()
    for start in graph:
        _walk(start, graph, seen, order)
    reverse: dict[str, set[str]] = {name: set() for name in graph}
    for name, others in graph.items():
        for other in others:
            reverse[other].add(name)
    seen, found = set(), []
    for start in reversed(order):
        if start not in seen:
            group: list[str] = []
            _walk(start, reverse, seen, group)
            found.append(set(group))
    return [group for group in found if len(group) > 1]


def _walk(name: str, graph: Mapping[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Visit the modules that can be reached from `name`, depth first. A module is appended to `order` after all modules
    that it imports."""
    if name not in seen:
        seen.add(name)
        for other in sorted(graph[name]):
            _walk(other, graph, seen, order)
        order.append(name)


def depth(graph: Mapping[str, set[str]]) -> int:
    """Return the number of modules on the longest path through the imports. A group of modules that import each other
    counts as one."""
    group_of = {name: frozenset(group) for group in circles(graph) for name in group}

    @cache
    def below(group: frozenset[str]) -> int:
        others = {group_of.get(other, frozenset({other})) for name in group for other in graph[name]} - {group}
        return 1 + max((below(other) for other in others), default=0)

    return max(below(group_of.get(name, frozenset({name}))) for name in graph)


def asks_for_a_mode(text: str) -> bool:
    """Return whether a module asks for a mode of parallelism: by its word, by its class, or by creating one."""
    if not MAY_ASK.search(text):
        return False
    tree = ast.parse(text)
    classes = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("sections.parallelism")
        for alias in node.names
        if alias.name in MODE_CLASSES
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and node.value in MODE_WORDS:
            return True
        if isinstance(node, ast.Compare) and ".mode" in ast.unparse(node) and "'pipeline'" in ast.unparse(node):
            return True
        asked: list[ast.expr] = []
        if isinstance(node, ast.Call):
            asked = [node.func, *node.args]
        elif isinstance(node, ast.MatchClass):
            asked = [node.cls]
        if any(name.id in classes for each in asked for name in ast.walk(each) if isinstance(name, ast.Name)):
            return True
    return False


def measured(texts: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    lines = [text.count("\n") for text in texts.values()]
    lengths = sorted(length for text in texts.values() for length in functions(text))
    graph = import_graph(texts)
    yield "files", f"{len(texts)}"
    yield "lines", f"{sum(lines):,}"
    yield "lines of code", f"{sum(map(code_lines, texts.values())):,}"
    yield "median file", f"{median(lines):.0f} lines"
    yield "longest file", f"{max(lines)} lines"
    yield "files under 40 lines", f"{sum(each < 40 for each in lines)}"
    yield "functions", f"{len(lengths):,}"
    yield (
        "median, nine of ten, longest",
        f"{median(lengths):.0f}, {lengths[len(lengths) * 9 // 10]}, {lengths[-1]} lines",
    )
    yield "depth of the import graph", f"{depth(graph)}"
    yield "depth of the imports at load", f"{depth(import_graph(texts, at_load=True))}"
    yield "circles, function bodies counted", f"{len(circles(graph))}"
    yield "files that ask for a mode", f"{sum(map(asks_for_a_mode, texts.values()))}"


def table(houses: Mapping[str, Mapping[str, str]]) -> str:
    columns = [dict(measured(texts)) for texts in houses.values()]
    rows = [("", *houses), *((name, *(each[name] for each in columns)) for name in columns[0])]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.house", description="The package in figures.")
    parser.add_argument("revs", nargs="*", metavar="REV", help="commits to compare the working tree with")
    parser.add_argument("--of", metavar="BASE", help="only files that hold what the package at BASE held")
    options = parser.parse_args(words)
    houses = {**{rev: at_commit(rev) for rev in options.revs}, "now": working_tree()}
    if options.of is not None:
        base = at_commit(options.of)
        houses = {rev: files_of_base(base, texts) for rev, texts in houses.items()}
    print(table(houses))


if __name__ == "__main__":
    main()
