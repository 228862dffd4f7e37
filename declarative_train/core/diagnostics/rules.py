"""Manual pages of the diagnostic codes, read from the source files without importing them.

A code belongs to a function in a folder `checks/` of a package, or to a module there if the check has several
functions. The docstring is the page, in this form:

    name-of-the-mistake (Y003)

    Finds: what is diagnosed.
    Why:   why that is a mistake.
    Bad:
        training: {epochs: 3, epochs: 4}
    Good:
        training: {epochs: 3}

Examples that share lines are written as one: `-` before a line of the bad example, `+` before a line of the good one.

    Diff:
        training:
          epochs: 3
    -     epochs: 4
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

_HEAD = re.compile(r"(?P<name>[a-z0-9]+(?:-[a-z0-9]+)*) \((?P<code>[A-Z]\d{3})\)")
_SECTION = re.compile(r"^(Finds|Why|Bad|Good):[ \t]*", re.MULTILINE)
_ORDER = ["Finds", "Why", "Bad", "Good"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Manual page of a diagnostic code, parsed from a docstring. `finds` and `why`: one paragraph each. `bad` and
    `good`: examples in YAML. `page`: text of the whole docstring."""

    code: str
    name: str
    finds: str
    why: str
    bad: str
    good: str
    page: str
    path: str  # of the file with the rule


def read_rules(tables: Mapping[Path, Mapping[str, str]]) -> dict[str, Rule]:
    """Return the manual pages of all diagnostic codes. `tables`: for each folder `checks` of a package, its table
    RULES. RULES maps a code to the place of its docstring, `module.function` or `module`.

    Raises ValueError if a page does not have the form that this module's docstring describes, or if a code is in two
    tables. Both are mistakes in dtrain itself."""
    rules: dict[str, Rule] = {}
    for folder, table in tables.items():
        trees: dict[str, ast.Module] = {}
        for code, place in table.items():
            module, _, function = place.partition(".")
            path = folder / f"{module}.py"
            if module not in trees:
                trees[module] = ast.parse(path.read_text(encoding="utf-8"))
            rule = read_rule(path, trees[module], function)
            if rule.code != code or code in rules:
                raise ValueError(f"{rule.path}: the table says {code}, the page {rule.code}, or {code} is listed twice")
            rules[code] = rule
    return dict(sorted(rules.items()))


def find_tables(package: Path) -> dict[Path, dict[str, str]]:
    """Return the table RULES of every folder `checks` below `package`, by folder, without importing anything."""
    return {init.parent: find_table(init.parent) for init in sorted(package.glob("*/checks/__init__.py"))}


def find_table(folder: Path) -> dict[str, str]:
    """Return the table `RULES`, {code: `module.function`}, of a folder `checks`. It is read from the text of the
    folder's `__init__.py`, without an import."""
    for statement in ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body:
        name = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(name, ast.Name) and name.id == "RULES":
            return dict(ast.literal_eval(statement.value))  # type: ignore[attr-defined]
    return {}


def read_rule(path: Path, tree: ast.Module, function: str = "") -> Rule:
    """Return the manual page of a code: the docstring of `function` in the parsed module `tree`, or of the module
    itself if `function` is "". `path`: the module's file. Raises ValueError if the docstring does not have the form of
    a page."""
    documented: ast.Module | ast.FunctionDef = tree
    if function:
        documented = next(each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == function)
    page = _expand_diff(ast.get_docstring(documented) or "")
    head, _, body = page.partition("\n")
    found = _HEAD.fullmatch(head)
    parts = _SECTION.split(body)
    if found is None or parts[1::2] != _ORDER or parts[0].strip() or not all(part.strip() for part in parts[2::2]):
        raise ValueError(
            f"{path}, {function or 'module'}: the docstring is not a manual page (a head, then Finds, Why, Bad, Good)"
        )
    finds, why, bad, good = parts[2::2]
    return Rule(
        found["code"],
        found["name"],
        " ".join(finds.split()),
        " ".join(why.split()),
        _yaml(bad),
        _yaml(good),
        page,
        str(path),
    )


def _expand_diff(page: str) -> str:
    """Return the page with its example `Diff:` replaced by the two examples `Bad:` and `Good:`."""
    head, found, lines = page.partition("\nDiff:\n")
    for word, sign in (("Bad", "+"), ("Good", "-")) if found else ():
        head += "\n".join(
            ["", f"{word}:", *(line and f" {line[1:]}" for line in lines.split("\n") if line[:1] != sign)]
        )
    return head


def _yaml(text: str) -> str:
    """Return the example that follows `Bad:` or `Good:` in a manual page, without its indentation. `text`: the rest of
    the line, or the indented lines below it."""
    return dedent(text.lstrip("\n")).strip("\n") + "\n" if text.startswith("\n") else text.strip() + "\n"
