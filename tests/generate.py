"""`python -m tests.generate [--check]`: write the files that are made from the code. With `--check`, compare them
instead, and name those that differ."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from declarative_train.app.catalogue import catalogue
from declarative_train.app.index import tables
from declarative_train.app.main import all_commands, command_module
from declarative_train.app.views.components import component_page, hardware_table
from declarative_train.app.views.sections import NAMES, section_page
from declarative_train.components.hardware import HARDWARE
from declarative_train.recipe.model.blocks import list_shipped, read_shipped_file
from declarative_train.recipe.schema import schema_text
from tests.silent.suite import page as silent_page

ROOT = Path(__file__).parent.parent


def checks_page() -> str:
    """Return the text of docs/checks.md."""
    lines = [
        "# Checks",
        "",
        "Every diagnostic that `dtrain lint`, `plan` and `run` may give, as `dtrain explain CODE` prints it.",
        "The first letter of a code is its [subject](architecture.md#diagnostics).",
    ]
    for rule in catalogue().values():
        lines += ["", f"## {rule.code} {rule.name}", "", f"Finds: {rule.finds}", "", f"Why: {rule.why}"]
        lines += ["", "Bad:", "", "```yaml", rule.bad.strip("\n"), "```"]
        lines += ["", "Good:", "", "```yaml", rule.good.strip("\n"), "```"]
    return "\n".join([*lines, ""])


def components_page() -> str:
    """Return the text of docs/components.md."""
    lines = ["# Components", "", "Everything that a recipe can name by `type:`, as `dtrain list TYPE` prints it."]
    for kind, table in tables().items():
        lines += ["", f"## {kind}"]
        for name in sorted(table):
            page = component_page(kind, table[name]).partition("\n")[2].strip("\n")
            lines += ["", f"### {name}", "", *in_markdown(page)]
    lines += ["", "## blocks"]
    for name in list_shipped():
        lines += ["", f"### {name}", "", "```yaml", read_shipped_file(name).text.strip("\n"), "```"]
    lines += ["", "## hardware", "", "```text", hardware_table(list(HARDWARE.values())), "```"]
    lines += ["", *(f"- {each.name}: {each.source}" for each in HARDWARE.values())]
    return "\n".join([*lines, ""])


def sections_page() -> str:
    """Return the text of docs/sections.md."""
    lines = [
        "# Sections",
        "",
        "Every key of every section of a recipe, as `dtrain list SECTION` prints it.",
    ]
    lines += ["The keys of what a `type:` names are in [Components](components.md)."]
    for name in NAMES:
        head, _, page = section_page(name).partition("\n")
        lines += ["", f"## {head}", "", *in_markdown(page.strip("\n"))]
    return "\n".join([*lines, ""])


KEY = re.compile(r"( *)([\w-]+): (.+), (?:(required|optional)|default (.+))$")


def in_markdown(page: str) -> list[str]:
    """Convert a manual page of the terminal to Markdown: paragraphs, and a table of its keys."""
    text, _, _ = page.partition("\nfields:\n")
    keys = page[len(text) :].splitlines()
    if not keys:
        lines = page.splitlines()
        first = next((number for number, line in enumerate(lines) if KEY.match(line) and line[0] == " "), len(lines))
        text, keys = "\n".join(lines[:first]), lines[first:]
    found = [line for part in text.strip("\n").split("\n\n") if part != "no fields" for line in [*paragraph(part), ""]]
    rows: list[list[str]] = []
    above: list[tuple[int, str]] = []  # (indentation, name) of the keys that contain this one
    for line in keys:
        match = KEY.match(line)
        if match is not None:
            margin = len(match[1])
            above = [(at, name) for at, name in above if at < margin]
            path = ".".join([*(name for _, name in above), match[2]])
            above.append((margin, match[2]))
            rows.append([f"`{path}`", cell(match[3]), match[4] or f"`{match[5]}`", ""])
        elif rows and line.strip() and line.strip() != "fields:":
            rows[-1][3] = f"{rows[-1][3]} {cell(line.strip())}".strip()
    if rows:
        found += ["| key | value | default | meaning |", "|---|---|---|---|"]
        found += [f"| {' | '.join(row)} |" for row in rows]
    return found if rows else found[:-1]


def paragraph(part: str) -> list[str]:
    """Convert a paragraph of a manual page to Markdown. One with indented lines becomes a code block."""
    lines = part.splitlines()
    if part.startswith("inputs:"):
        inputs, outputs = (line.partition(":")[2].strip() for line in lines)
        return [f"Inputs: {plain(inputs)}. Outputs: {plain(outputs)}."]
    if any(line.startswith(" ") for line in lines):
        return ["```text", *lines, "```"]
    return [plain(line) for line in lines]


def cell(text: str) -> str:
    return plain(text).replace("|", "\\|")


def plain(text: str) -> str:
    """Escape the Markdown in a text, except backquotes."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*_<\[])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def commands_page() -> str:
    """Return the text of docs/commands.md. It does not use the help text of argparse, which differs between versions of
    Python."""
    lines = [
        "# Commands",
        "",
        "Every command of `dtrain` and its options, as in `dtrain COMMAND --help`, and the [exit codes](#exit-codes).",
    ]
    for name, (summary, _, _) in all_commands().items():
        parser = argparse.ArgumentParser(prog=f"dtrain {name}", add_help=False)
        command_module(name).add_arguments(parser)
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        positional = [action for action in shown if not action.option_strings]
        usage = " ".join([f"dtrain {name}", *(argument(action) for action in positional)])
        lines += ["", f"## {name}", "", f"{summary[0].upper()}{summary[1:]}.", "", "```text", usage, "```"]
        if shown:
            lines += ["", "| argument | what it does |", "|---|---|"]
            lines += [f"| `{escaped(option(action))}` | {escaped(meaning(parser, action))} |" for action in shown]
    return "\n".join([*lines, "", EXIT_CODES])


EXIT_CODES = """## Exit codes

| code | meaning |
|---|---|
| 0 | done; of `run`, also after `--max-steps` |
| 1 | the recipe has errors; the new rows do not fit the model; `plan --diff` found a difference |
| 2 | wrong use of the command: an unknown option, or a file, run, set or node that does not exist |
| 3 | the command failed: a damaged file, a full disk, a lost process; also a run that a second Ctrl-C stopped at once |
| 75 | `run` or `sweep` stopped early, with checkpoints that `--resume` continues from: Ctrl-C, SIGTERM, SIGUSR1, \
SIGUSR2, SIGHUP, and of a run `training.max_time` |
| 130, 143 | ended by Ctrl-C or SIGTERM (others: 128 and the signal's number); of `run`, before the first step, with \
nothing lost |

Agents of several nodes exit with the same code. torchrun passes none on: it exits with 0 or 1
([stopping a run](launching.md#stop-and-resume)).
"""


def argument(action: argparse.Action) -> str:
    word = str(action.metavar or action.dest.upper())
    return {"?": f"[{word}]", "*": f"[{word} ...]", "+": f"{word} ..."}.get(str(action.nargs), word)


def option(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest.upper())
    words = ", ".join(action.option_strings)
    if action.nargs == 0:
        return words
    value = str(action.metavar or "|".join(map(str, action.choices or [action.dest.upper()])))
    return f"{words} [{value}]" if action.nargs == "?" else f"{words} {value}"


def meaning(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    return (action.help or "") % {"prog": parser.prog, "default": action.default}


def escaped(text: str) -> str:
    return text.replace("|", "\\|")


WITHOUT_HEADINGS = frozenset(  # pages for maintainers, and generated ones
    {
        *("adding-an-axis", "architecture", "checks", "commands", "components", "decisions", "from-recipe-to-step"),
        *("planner-cells", "sections", "silent-mistakes", "transformers-models"),
    }
)
HEADING = re.compile(r"^##? (.+)$", re.MULTILINE)


def headings() -> str:
    """Return the text of declarative_train/app/headings.json: the pages of docs/ for users, with their headings."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    found = [
        [page.relative_to(ROOT / "docs").as_posix(), heading.replace("`", "")]
        for page in pages
        if page.stem not in WITHOUT_HEADINGS
        for heading in HEADING.findall(_without_code(page.read_text("utf-8")))
    ]
    return json.dumps(found, indent=0, ensure_ascii=False) + "\n"


def _without_code(text: str) -> str:
    return "".join(text.split("```")[::2])


FILES = {
    "declarative_train/app/headings.json": headings,
    "docs/commands.md": commands_page,
    "schemas/recipe.schema.json": schema_text,
    "docs/checks.md": checks_page,
    "docs/components.md": components_page,
    "docs/sections.md": sections_page,
    "docs/silent-mistakes.md": silent_page,
}


def stale_files() -> list[str]:
    """Return the names of the files that differ from what the code gives."""
    return [
        name for name, text in FILES.items() if not (ROOT / name).exists() or (ROOT / name).read_text("utf-8") != text()
    ]


def main() -> int:
    stale = stale_files()
    if "--check" in sys.argv:
        for name in stale:
            print(f"{name} is not what the code says; run `make generate`")
        return 1 if stale else 0
    for name in stale:
        (ROOT / name).write_text(FILES[name](), "utf-8")
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
