"""Command `dtrain lint PATH...`: find mistakes in recipes, without starting anything."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from declarative_train.app.api.compiling import STDIN_NAME, Linted, lint_recipe
from declarative_train.app.compile import STDIN, add_override_arguments, overrides_of, report_missing
from declarative_train.app.printing import print_text
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.diagnostics.render import FORMATS, Selection, render

if TYPE_CHECKING:
    from declarative_train.core.diagnostics.fixes import FixResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="recipes, folders of recipes, or - for standard input")
    parser.add_argument(
        "--format", choices=sorted(FORMATS), default="full", help="format of the diagnostics (default: full)"
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument("--select", default="", metavar="CODES", help="only these codes or prefixes: G,P012")
    parser.add_argument("--ignore", default="", metavar="CODES", help="all except these codes or prefixes")
    parser.add_argument(
        "--static", action="store_true", help="check only syntax, keys, wiring and layout: no data, no torch"
    )
    parser.add_argument("--plugins", action="store_true", help="import the recipes' plugins, for their shapes")
    parser.add_argument("--fix", action="store_true", help="apply fixes that cannot change the plan")
    parser.add_argument("--unsafe-fixes", action="store_true", help="also apply fixes that may change the plan")
    parser.add_argument("--diff", action="store_true", help="show what --fix would change, and change nothing")
    parser.add_argument("--statistics", action="store_true", help="count the diagnostics by code")
    add_override_arguments(parser)


def run(args: argparse.Namespace) -> int:
    files, num_skipped = recipe_files(args.paths)
    missing = [path for path in files if report_missing(path)]
    if missing:
        return 2
    if not files:
        print(f"dtrain: no recipe below {', '.join(args.paths)}{_text_of_skipped(num_skipped)}", file=sys.stderr)
        print(f"help: `dtrain init --from {args.paths[0]}` writes one for a folder of pictures", file=sys.stderr)
        return 2
    selection = Selection.parse(select=args.select, ignore=args.ignore)
    rules = {}
    if args.format == "sarif" or selection.selected or selection.ignored:
        from declarative_train.app.catalogue import catalogue

        rules = catalogue()
    if unknown := selection.unknown(rules) if rules else ():
        print(f"dtrain: no diagnostic begins with `{unknown[0]}`; `dtrain explain` lists them", file=sys.stderr)
        return 2
    stdin = sys.stdin.read() if STDIN in files else None
    linted = lint_all(files, stdin, selection, args)
    if args.diff:
        show_diff(linted, apply_fixes(linted, files, stdin, selection, args)[0])
        return exit_code(linted)
    if args.fix or args.unsafe_fixes:
        fixed, linted = apply_fixes(linted, files, stdin, selection, args)
        write(fixed)
    color = args.format == "full" and sys.stdout.isatty()
    sys.stdout.write(render(linted.diagnostics, linted.texts, format=args.format, color=color, rules=rules))
    if args.statistics:
        for code, count in Counter(item.code for item in linted.diagnostics).most_common():
            print_text(f"{count:>6}  {code}")
    if args.format == "full":
        print_text(summary(len(files), linted.diagnostics) + _text_of_skipped(num_skipped))
    return exit_code(linted)


def _text_of_skipped(count: int) -> str:
    if not count:
        return ""
    return f" ({count} other YAML file{'s' * (count != 1)} skipped: give one by name to lint it)"


def exit_code(linted: Linted) -> int:
    return 1 if any(item.is_error for item in linted.diagnostics) else 0


MODELINE = re.compile(r"#.*\$schema[=:].*recipe\.schema\.json")
SECTION = re.compile(r"(?m)^(data|model|objective|training|parallelism|layout|extends|fragment)\s*:")
PART = re.compile(r"(?m)^(?:extends\s*:\s*(?:-\s*)?\[?\s*[\"']?[^\s#]+\.ya?ml\b|fragment\s*:\s*true\b)")


def looks_like_recipe(text: str) -> bool:
    """Return whether a YAML file is a recipe of dtrain: it names dtrain's schema, has two of its sections, extends a
    file, or declares itself a fragment. (Folders contain other kinds of YAML too.)"""
    return MODELINE.search(text) is not None or len(set(SECTION.findall(text))) > 1 or PART.search(text) is not None


def recipe_files(paths: list[str]) -> tuple[list[str], int]:
    """Return (files to lint, number of YAML files in folders that are not recipes). A file that is named directly is
    always linted."""
    found: list[str] = []
    skipped = 0
    for path in paths:
        if path == STDIN or not Path(path).is_dir():
            found.append(path)
            continue
        for file in _yaml_below(path):
            try:
                is_recipe = looks_like_recipe(file.read_text("utf-8", "replace"))
            except OSError:
                is_recipe = True  # so that lint reports why it cannot be read
            if is_recipe:
                found.append(str(file))
            else:
                skipped += 1
    return found, skipped


def _yaml_below(path: str) -> list[Path]:
    """Return the YAML files in a folder and its subfolders, except hidden folders and installed packages."""
    found = []
    for folder, folders, files in os.walk(path):
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".")
            and name not in ("site-packages", "node_modules")
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        ]
        found += [Path(folder, name) for name in files if name.endswith((".yaml", ".yml")) and not name.startswith(".")]
    return sorted(found)


def lint_all(
    files: list[str],
    stdin: str | None,
    selection: Selection,
    args: argparse.Namespace,
    edited: Mapping[str, str] | None = None,
) -> Linted:
    """Lint all files. A mistake in a base that several recipes share is reported once. `stdin`: text from standard
    input, which is the file `-`; `selection`: the codes to report; `edited`: {path: content}, used in place of files on
    disk."""
    diagnostics: dict[Diagnostic, None] = {}
    texts: dict[str, str] = {}
    for path in files:
        linted = lint(path, stdin, args, edited)
        diagnostics |= dict.fromkeys(item for item in linted.diagnostics if selection.takes(item.code))
        texts |= linted.texts
    return Linted(list(diagnostics), texts)


def lint(path: str, stdin: str | None, args: argparse.Namespace, edited: Mapping[str, str] | None = None) -> Linted:
    """Lint one recipe; with `--static`, without torch and the data. `stdin`: text of the recipe if `path` is `-`.
    `edited`: {path: content}, used in place of files on disk."""
    name, texts = path, edited
    if path == STDIN and stdin is not None:
        name, texts = STDIN_NAME, {STDIN_NAME: stdin, **(edited or {})}
    find = lint_recipe
    if args.format == "json" or args.unsafe_fixes:
        from declarative_train.app.api.tried_fixes import lint_and_try as find  # imported only if fixes are searched
    return find(name, overrides_of(args), texts=texts, static=args.static, plugins=args.plugins)


def apply_fixes(
    linted: Linted, files: list[str], stdin: str | None, selection: Selection, args: argparse.Namespace
) -> tuple[FixResult, Linted]:
    """Apply the fixes of all diagnostics, lint again, and repeat this until no fix is left; nothing is written to disk.
    Return (new texts of the changed files, result of the last lint). `linted`: result of linting before any fix.
    `files`, `stdin`, `selection`: the arguments of `lint_all`."""
    from declarative_train.core.diagnostics import fixes

    last = linted

    def lint_again(texts: Mapping[str, str]) -> list[Diagnostic]:
        nonlocal last
        last = lint_all(files, stdin, selection, args, texts)
        return last.diagnostics

    texts = {
        path: text
        for path, text in linted.texts.items()
        if is_on_disk(path, text) or (args.diff and path == STDIN_NAME)
    }
    return fixes.fix_until_stable(linted.diagnostics, texts, lint_again, unsafe=args.unsafe_fixes), last


def is_on_disk(path: str, text: str) -> bool:
    """Return whether a text is exactly the content of a file. (It is not if the file has bytes that are not UTF-8,
    because they were replaced for display; writing the text would lose them.)"""
    return Path(path).is_file() and Path(path).read_bytes() == text.encode("utf-8", "surrogatepass")


def write(fixed: FixResult) -> None:
    for path, text in fixed.texts.items():
        Path(path).write_bytes(text.encode("utf-8"))
    print(f"fixed {fixed.count}", file=sys.stderr)


def show_diff(linted: Linted, fixed: FixResult) -> None:
    from declarative_train.core.diagnostics.fixes import unified_diff

    if not fixed.texts and linted.diagnostics:
        print("--fix would change nothing; `dtrain lint` shows what is wrong", file=sys.stderr)
    for path, text in fixed.texts.items():
        sys.stdout.write(unified_diff(path, linted.texts[path], text))


def summary(num_files: int, diagnostics: list[Diagnostic]) -> str:
    counts = Counter(str(item.severity) for item in diagnostics)
    files = f"{num_files} file{'s' * (num_files != 1)}"
    if not counts:
        return f"{files}: nothing wrong"
    words = (f"{count} {word}{'s' * (count != 1 and word != 'needs verification')}" for word, count in counts.items())
    return f"{files}: {', '.join(words)}"
