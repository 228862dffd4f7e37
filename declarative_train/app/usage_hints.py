"""Hints on arguments that no command accepts: what to type instead."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from typing import NoReturn

COMMANDS_ELSEWHERE = {
    **dict.fromkeys(("train", "fit", "start", "launch", "exec"), "run"),
    **dict.fromkeys(("test", "eval", "score", "val"), "evaluate"),
    **dict.fromkeys(("check", "validate"), "lint"),
    **dict.fromkeys(("infer", "inference", "apply"), "predict"),
    **dict.fromkeys(("new", "create"), "init"),
    **dict.fromkeys(("ls", "history"), "runs"),
    **dict.fromkeys(("hpo", "search", "tune"), "sweep"),
    **dict.fromkeys(("sample", "write"), "generate"),
    **dict.fromkeys(("convert", "save"), "export"),
    "diff": "compare",
    "dataset": "data",
    "resume": "run RECIPE --resume",
}
_INPUT = dict.fromkeys(("--source", "--data", "--input", "--file", "--from"), "the rows follow the run: `RUN FILE`")
OPTIONS_ELSEWHERE: dict[str, dict[str, str]] = {  # command -> {option of another tool: hint}
    "init": {
        **dict.fromkeys(("--data", "--source", "--csv", "--input", "--file"), "its name here is `--from`"),
        **dict.fromkeys(
            ("--label", "--y", "--target-column", "--label-column", "--class"), "its name here is `--target`"
        ),
    },
    "evaluate": dict.fromkeys(("--source", "--input", "--file", "--from", "--test"), "its name here is `--data`"),
    "export": dict.fromkeys(("--format", "--type", "--as"), "its name here is `--to`"),
    "predict": _INPUT | dict.fromkeys(("--save", "--csv"), "its name here is `-o`"),
}
OF_RECIPES = frozenset({"data", "lint", "plan", "run", "show", "sweep", "trace"})
_YAML = (".yaml", ".yml")


class Parser(argparse.ArgumentParser):
    """Argument parser whose error messages end with a hint on what to type, if there is one."""

    hint: str | None = None

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        if (found := re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message)) is not None:
            message = f"there is no command `{found[1]}`"
            self.hint = self.hint or f"known: {found[2].replace(chr(39), '')}"
        self.exit(2, f"{self.prog}: error: {message}\n" + (f"help: {self.hint}\n" if self.hint else ""))


def hint_on_command(words: Sequence[str], commands: Sequence[str]) -> str | None:
    """Return a hint on a wrong command, or on `-v` or `-V` given instead of `--version`; None if there is neither.
    `words`: the arguments; the first one that is not an option is the command. `commands`: the names of all
    commands."""
    first = next((word for word in words if not word.startswith("-")), None)
    if first is None or first in commands:
        return "`dtrain --version`" if words[:1] in (["-v"], ["-V"]) else None
    if first == "help":
        return "`dtrain --help`, `dtrain COMMAND --help`"
    if first in COMMANDS_ELSEWHERE:
        return f"`dtrain {COMMANDS_ELSEWHERE[first]}`"
    if os.path.isfile(first):
        return f"`dtrain run {first}`" if first.endswith((*_YAML, ".json")) else None
    from declarative_train.core.diagnostics.suggest import nearest

    close = nearest(first, commands)
    return None if close is None else f"did you mean `dtrain {close}`?"


def hint_on_options(command: str | None, words: Sequence[str]) -> str | None:
    """Return a hint for the first argument in `words` that similar commands of other tools have as an option, but
    `command` does not. Return None if there is no such argument."""
    known = OPTIONS_ELSEWHERE.get(command or "", {})
    return next((known[name] for name in (word.partition("=")[0] for word in words) if name in known), None)


def hint_on_rest(command: str, rest: Sequence[str], words: Sequence[str] = ()) -> str | None:
    """Return a hint on the arguments of `command` that were not understood (`rest`); None if there is no hint. `words`:
    all arguments."""
    first = rest[0]
    before = list(words[: words.index(first)])[-2:] if first in words else []
    if before[:1] == ["--set"] and "=" not in before[-1]:
        return f"without a blank: `--set {before[-1]}={first}`"
    if command == "evaluate" and os.path.exists(first):
        return f"pass new rows with an option: `--data {first}`"
    if command not in OF_RECIPES:
        return None
    if os.path.isfile(first) and first.endswith(_YAML):
        return f"give only one recipe; `--with {first}` merges it over the recipe"
    if os.path.exists(first):
        return "give only one at a time"
    typed = re.fullmatch(r"(?:--?)?([A-Za-z][\w.-]*)(?:=(.*))?", first)
    if typed is None:
        return None
    value = typed[2] if typed[2] is not None else rest[1] if first.startswith("-") and len(rest) > 1 else "..."
    from declarative_train.recipe.hints.key_places import find_key_path

    path = typed[1] if "." in typed[1] else find_key_path(typed[1].replace("-", "_"))
    return None if path is None else f"set values of the recipe with `--set {path}={value}`"
