"""Plugin sinks: classes in a user's Python file that `logging.sinks` can name, read without running the file.

A sink is a public class that derives from `declarative_train.run.sink.Sink`. Its type is `slack` for `SlackSink`, or
the class attribute `type = "name"`. Its `__init__` takes the run's folder, then the settings, with the type of their
annotation or default."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from declarative_train.components.plugin_file import PluginFile, PluginProblem, arguments_of, read_fields, type_name

_BASES = ("declarative_train.run", "declarative_train.plugins.Sink")


@dataclass(frozen=True, slots=True)
class FoundSink:
    """Sink class in a plugin's file, and the position of the class name. `fields`: a dict from name to (type, default);
    the default is `...` if the field is required."""

    name: str
    class_name: str
    doc: str
    fields: Mapping[str, tuple[Any, Any]]
    line: int
    column: int
    end_column: int


@lru_cache(maxsize=64)
def read_sinks(path: str, text: str) -> tuple[Mapping[str, FoundSink], tuple[PluginProblem, ...]]:
    """Return the sinks of a plugin's file by name, and the problems found. If the file is not valid Python, both are
    empty, because `read_plugin` reports the error."""
    try:
        file = PluginFile(path, text, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}, ()
    found: dict[str, FoundSink] = {}
    problems: list[PluginProblem] = []
    for node in file.public_classes(_BASES):
        sink, wrong = _read(file, node)
        problems += wrong
        if sink is not None and sink.name in found:
            message = f"two classes of this file are the sink `{sink.name}`"
            problems.append(PluginProblem("name", message, *file.name_place(node), sink.name))
        elif sink is not None:
            found[sink.name] = sink
    return found, tuple(problems)


def _read(file: PluginFile, node: ast.ClassDef) -> tuple[FoundSink | None, list[PluginProblem]]:
    place = file.name_place(node)
    name, problems = type_name(file, node, node.name.removesuffix("Sink") or node.name, "sink")
    missing = [each for each in ("write", "flush", "close") if file.method(node, each) is None]
    is_background = any(file.full_name(base).endswith(".BackgroundSink") for base in node.bases)
    if missing and not is_background:
        problems.append(PluginProblem("signature", f"the sink `{node.name}` has no `{missing[0]}`", *place, node.name))
    function = file.method(node, "__init__")
    arguments = [] if function is None else arguments_of(function)
    if not arguments:
        hint = "def __init__(self, run_dir: Path, ...): the other arguments are its settings"
        message = f"the sink `{node.name}` has no `__init__` that takes the run's folder"
        problems.append(PluginProblem("signature", message, *place, node.name, hint))
    found, wrong = read_fields(file, node.name, arguments[1:], ())
    problems += wrong
    if problems:
        return None, problems
    doc = ast.get_docstring(node) or f"`{node.name}` of {file.path}."
    return FoundSink(name, node.name, doc, found.fields, *place), []
