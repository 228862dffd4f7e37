"""File of a plugin as text: its public classes, their base classes and arguments. Also the import of the file, which
runs its code.

Plugins of every kind are read by this module. No code of a plugin runs before `import_plugin` is called."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from declarative_train.components.plugin_types import DefaultKind, default_of, type_of
from declarative_train.core.names import RESERVED, is_name

if TYPE_CHECKING:
    from types import ModuleType

_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MOST_BASES = 20

ProblemKind = Literal["syntax", "signature", "reserved", "name"]


@dataclass(frozen=True, slots=True)
class PluginProblem:
    """Problem in the text of a plugin. Lines and columns count from 1. `name`: the word at that position."""

    kind: ProblemKind
    message: str
    line: int
    column: int
    end_column: int
    name: str = ""
    help: str | None = None


class PluginFile:
    """Parsed file of a plugin: its classes, and the full dotted name of each name that it imports."""

    def __init__(self, path: str, text: str, tree: ast.Module) -> None:
        self.path, self.text = path, text
        self.lines = text.splitlines() or [""]
        self.classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
        self.imports = dict(_imports(tree))

    def public_classes(self, start: str | tuple[str, ...]) -> Iterator[ast.ClassDef]:
        """Yield the public classes that derive, directly or through other classes of the file, from a class whose
        dotted name starts with `start`."""
        for node in self.classes.values():
            if not node.name.startswith("_") and self.derives(node, start):
                yield node

    def derives_just(self, node: ast.ClassDef, starts: tuple[str, ...], depth: int = 0) -> bool:
        """Return whether a class derives only from classes whose dotted names begin with one of `starts`. A base class
        in this file is replaced by its own base classes. The result for a class without base classes is True."""
        bases = self.bases(node)
        return depth < _MOST_BASES and all(
            self.derives_just(self.classes[name], starts, depth + 1)
            if name in self.classes
            else name.startswith(starts)
            for name in bases
        )

    def derives(self, node: ast.ClassDef, start: str | tuple[str, ...], depth: int = 0) -> bool:
        bases = self.bases(node)
        own = [self.classes[name] for name in bases if name in self.classes and depth < _MOST_BASES]
        return any(name.startswith(start) for name in bases) or any(
            self.derives(each, start, depth + 1) for each in own
        )

    def bases(self, node: ast.ClassDef) -> list[str]:
        """Return the dotted names of a class's base classes, without type arguments: `Dataset` for `Dataset[int]`."""
        return [self.full_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]

    def is_named_tuple(self, node: ast.ClassDef) -> bool:
        return any(name in ("typing.NamedTuple", "NamedTuple") for name in self.bases(node))

    def full_name(self, node: ast.expr | None) -> str:
        """Return the full dotted name of an expression, such as `torch.nn.Module` for `nn.Module`. Return "" if the
        expression is not a name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def method(self, node: ast.ClassDef, name: str, depth: int = 0) -> ast.FunctionDef | None:
        """Return the method `name` of a class, or of its base classes in this file. Return None if there is none."""
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and item.name == name:
                return item
        for base in self.bases(node):
            if base in self.classes and depth < _MOST_BASES:
                found = self.method(self.classes[base], name, depth + 1)
                if found is not None:
                    return found
        return None

    def attribute(self, node: ast.ClassDef, name: str, depth: int = 0) -> ast.Assign | ast.AnnAssign | None:
        """Return the assignment of the class attribute `name` in a class, or in its base classes in this file. Return
        None if there is none."""
        for item in node.body:
            if isinstance(item, ast.Assign | ast.AnnAssign) and item.value is not None:
                target = item.targets[0] if isinstance(item, ast.Assign) else item.target
                if isinstance(target, ast.Name) and target.id == name:
                    return item
        own = [self.classes[base] for base in self.bases(node) if base in self.classes and depth < _MOST_BASES]
        return next((found for base in own if (found := self.attribute(base, name, depth + 1)) is not None), None)

    def place(self, node: ast.AST) -> tuple[int, int, int]:
        """Return (line, column, end column) of a syntax node. Columns count characters, where `ast` counts bytes."""
        line, start = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end = getattr(node, "end_col_offset", None) if getattr(node, "end_lineno", line) == line else None
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return line, _characters(text, start) + 1, (len(text) if end is None else _characters(text, end)) + 1

    def name_place(self, node: ast.ClassDef) -> tuple[int, int, int]:
        """Return (line, column, end column) of the name after `class`."""
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else ""
        column = max(0, line.find(node.name, _characters(line, node.col_offset))) + 1
        return node.lineno, column, column + len(node.name)


def _characters(line: str, num_bytes: int) -> int:
    return len(line.encode()[:num_bytes].decode(errors="ignore"))


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (root, root)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


class ArgumentFields(NamedTuple):
    """Arguments of `__init__` of a user's class, as pydantic fields. `lists`: names of the arguments that are annotated
    as lists. `computed`: names of the arguments whose default is an expression, which is unknown until the code
    runs."""

    fields: Mapping[str, Any]
    lists: frozenset[str]
    computed: frozenset[str]


def read_fields(
    file: PluginFile,
    class_name: str,
    arguments: Iterable[tuple[ast.arg, ast.expr | None]],
    taken: Container[str],
    given: Mapping[str, Any] = {},
) -> tuple[ArgumentFields, list[PluginProblem]]:
    """Return the arguments of `__init__` of the class `class_name` as pydantic fields, and the problems found.
    `arguments`: each argument with its default, if any. `taken`: names that arguments cannot have, because they are
    used for another purpose. `given`: fields by name that replace the type and default of an argument."""
    fields: dict[str, Any] = {}
    lists: set[str] = set()
    computed: set[str] = set()
    problems: list[PluginProblem] = []

    def say(kind: ProblemKind, message: str, node: ast.AST, name: str, help: str | None = None) -> None:
        problems.append(PluginProblem(kind, message, *file.place(node), name, help))

    for argument, default in arguments:
        name = argument.arg
        if name in RESERVED or name in taken:
            say("reserved", f"an argument of `{class_name}`", argument, name)
        elif not is_name(name):
            say("name", f"the argument `{name}` cannot be a field", argument, name, "use lower case")
        elif name in given:
            fields[name] = given[name]
        else:
            kind, value = default_of(default)
            if kind is DefaultKind.KNOWN and not _is_plain(value):
                assert default is not None
                message = f"the default of `{name}` is a {type(value).__name__}, which no recipe can hold"
                say(
                    "signature",
                    message,
                    default,
                    name,
                    "a field is a number, a text, true or false, a list or a mapping",
                )
                continue
            annotation, is_list = type_of(argument.annotation, file.full_name, kind, value)
            lists |= {name} if is_list else set()
            computed |= {name} if kind is DefaultKind.COMPUTED else set()
            if kind is DefaultKind.COMPUTED:
                annotation = Any if annotation is Any else annotation | None
            required = kind is DefaultKind.NONE
            fields[name] = (annotation, ... if required else tuple(value) if isinstance(value, list) else value)
    return ArgumentFields(fields, frozenset(lists), frozenset(computed)), problems


def _is_plain(value: object) -> bool:
    """Return whether a value can be written as JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def type_name(file: PluginFile, node: ast.ClassDef, own: str, what: str) -> tuple[str, list[PluginProblem]]:
    """Return (type, problems). `type` is the name of a plugin's class in recipes: its attribute `type` or, if it has
    none, `own` in lower case with `_` between words. `what`: the kind of component, for messages."""
    for item in node.body:
        target = item.targets[0] if isinstance(item, ast.Assign) else getattr(item, "target", None)
        if isinstance(target, ast.Name) and target.id == "type":
            value = getattr(item, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and is_name(value.value):
                return value.value, []
            message = "`type` is a name in lower case, such as `gated_unit`"
            return "", [PluginProblem("name", message, *file.place(item))]
    name = _WORD.sub("_", own).lower()
    if is_name(name):
        return name, []
    message, hint = f"`{node.name}` gives no name for a {what}", 'add `type = "name"` to it'
    return name, [PluginProblem("name", message, *file.name_place(node), node.name, hint)]


def positional(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    """Return the positional arguments of a method except `self`, each with its default, or None if it has no
    default."""
    arguments = [*function.args.posonlyargs, *function.args.args]
    missing: list[ast.expr | None] = [None] * (len(arguments) - len(function.args.defaults))
    return list(zip(arguments, [*missing, *function.args.defaults], strict=True))[1:]


def arguments_of(function: ast.FunctionDef) -> list[tuple[ast.arg, ast.expr | None]]:
    return [*positional(function), *zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)]


@lru_cache(maxsize=16)
def import_plugin(path: str) -> ModuleType:
    """Import a plugin's file as a module, which runs its code, and return it. Raises any exception of the code."""
    from importlib.util import module_from_spec, spec_from_file_location

    name = f"dtrain_plugin_{Path(path).stem}_{sha256(path.encode()).hexdigest()[:8]}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look up its classes
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
