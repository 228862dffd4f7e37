"""Plugin layers: classes in a user's Python file that recipes can name. The file is read here without running it.

Each public class that derives from `torch.nn.Module` is a layer. From the text of the class are read:

type      the class attribute `type = "name"`, or the class name in lower case
fields    arguments of `__init__`, with the types of their annotations or defaults. If a recipe leaves out
          `in_features`, `in_channels`, `input_size` or `input_dim`, the size of the first input is used
ports     arguments of `forward`; optional if the default is None. `*args`: any number of tensors
outputs   return annotation of `forward`. Tensor: `output`. Plain tuple: `output`, `output_1`, ... Named tuples and
          `tuple[Annotated[Tensor, "mean"], ...]` give names
mixing    `mixes_samples = True`: the result of a sample depends on the other samples of its batch
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field, create_model

from declarative_train.components.component import Port
from declarative_train.components.plugin_file import (
    ArgumentFields,
    PluginFile,
    PluginProblem,
    ProblemKind,
    arguments_of,
    positional,
    read_fields,
    type_name,
)
from declarative_train.components.plugin_layer import FROM_EDGE, PluginLayer
from declarative_train.components.plugin_types import default_of
from declarative_train.core.names import RESERVED, is_name

MIXES = "mixes_samples"
"""Attribute of a class which declares that the result of a sample depends on other samples of its batch."""
_TUPLES = ("tuple", "Tuple", "typing.Tuple")
_TAKEN = frozenset(dir(PluginLayer))
_OF_THE_EDGE = {
    name: (int | None, Field(default=None, description="Taken from the edge when left out.")) for name in FROM_EDGE
}


@dataclass(frozen=True, slots=True)
class FoundLayer:
    """Layer class that dtrain makes for a class in a plugin's file, and the position of the class's name in it."""

    layer: type[PluginLayer]
    line: int
    column: int
    end_column: int


@lru_cache(maxsize=64)
def read_plugin(
    path: str, text: str, *, may_import: bool
) -> tuple[Mapping[str, FoundLayer], tuple[PluginProblem, ...]]:
    """Return the layers of a plugin's file by type, and the problems found. `may_import`: whether the `build` of these
    layers may run the file. If not, the shapes of their outputs are unknown."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as found:
        line, column = getattr(found, "lineno", None) or 1, getattr(found, "offset", None) or 1
        message = getattr(found, "msg", None) or str(found) or "nested too deeply"
        return {}, (PluginProblem("syntax", message, line, column, column + 1),)
    file = PluginFile(path, text, tree)
    layers: dict[str, FoundLayer] = {}
    problems: list[PluginProblem] = []
    for node in file.public_classes("torch.nn"):
        found_layer, wrong = _Class(file, node).read(may_import)
        problems += wrong
        if found_layer is None:
            continue
        name = found_layer.layer.model_fields["type"].default
        if name in layers:
            message = f"two classes of this file are the layer `{name}`"
            problems.append(PluginProblem("name", message, *file.name_place(node), name))
        layers[name] = found_layer
    return layers, tuple(problems)


@lru_cache(maxsize=16)
def plugin_layers(path: str) -> Mapping[str, type[PluginLayer]]:
    """Return {type: layer class} for the plugin file at `path`. The classes may run the user's code. Raises OSError,
    and ValueError if the file does not pass the checks."""
    with open(path, encoding="utf-8") as file:
        found, problems = read_plugin(path, file.read(), may_import=True)
    if problems:
        raise ValueError(f"{path}:{problems[0].line}: {problems[0].message}")
    return {name: each.layer for name, each in found.items()}


class _Class:
    """Reader of one class of a plugin's file. It collects the problems, so that all are reported at once."""

    def __init__(self, file: PluginFile, node: ast.ClassDef) -> None:
        self._file, self._node = file, node
        self._problems: list[PluginProblem] = []

    def read(self, may_import: bool) -> tuple[FoundLayer | None, list[PluginProblem]]:
        name, wrong = type_name(self._file, self._node, self._node.name, "layer")
        self._problems += wrong
        fields, lists, computed = self._fields()
        mixes = self._mixes()
        ports, outputs = self._ports(), self._outputs()
        if self._problems:
            return None, self._problems
        kind: Any = (Literal[name], name)
        made = create_model(self._node.name, __base__=PluginLayer, __module__=__name__, type=kind, **fields)
        made.__doc__ = ast.get_docstring(self._node) or f"`{self._node.name}` of {self._file.path}."
        made.ports, made.outputs = ports, outputs
        made.plugin_path, made.plugin_class, made.may_import = self._file.path, self._node.name, may_import
        made.list_fields, made.computed_defaults, made.mixes = lists, computed, mixes
        return FoundLayer(made, *self._file.name_place(self._node)), []

    def _say(self, kind: ProblemKind, message: str, node: ast.AST, name: str = "", help: str | None = None) -> None:
        self._problems.append(PluginProblem(kind, message, *self._file.place(node), name, help))

    def _say_of_class(self, kind: ProblemKind, message: str, help: str | None = None) -> None:
        at = self._file.name_place(self._node)
        self._problems.append(PluginProblem(kind, message, *at, self._node.name, help))

    def _fields(self) -> ArgumentFields:
        function = self._file.method(self._node, "__init__")
        if function is None:
            known = ("torch.nn.Module", *self._file.classes)
            if any(self._file.full_name(base) not in known for base in self._node.bases):
                message = f"`{self._node.name}` has no `__init__` of its own, so its fields are not known"
                self._say_of_class("signature", message, "write one that names its arguments")
            return ArgumentFields({}, frozenset(), frozenset())
        found, problems = read_fields(self._file, self._node.name, arguments_of(function), _TAKEN, _OF_THE_EDGE)
        self._problems += problems
        return found

    def _mixes(self) -> bool:
        item = self._file.attribute(self._node, MIXES)
        value = None if item is None else default_of(item.value)[1]
        if item is not None and not isinstance(value, bool):
            self._say("signature", f"`{MIXES}` is true or false", item)
        return value is True

    def _ports(self) -> tuple[Port, ...]:
        function = self._file.method(self._node, "forward")
        if function is None:
            self._say_of_class("signature", f"`{self._node.name}` has no `forward`")
            return ()
        ports: list[Port] = []
        for argument, default in positional(function):
            name = argument.arg
            is_none = isinstance(default, ast.Constant) and default.value is None
            if name in RESERVED and name != "input":  # `input` is torch's usual name of the argument
                self._say("reserved", f"an argument of `{self._node.name}.forward`", argument, name)
            elif not is_name(name):
                self._say("name", f"the argument `{name}` cannot be a port", argument, name, "use lower case")
            elif default is not None and not is_none:
                message = f"`{name}` of `forward` has a default, so it is not a port"
                hint = "a tensor that may be left out has the default None; settings belong to `__init__`"
                self._say("signature", message, argument, name, hint)
            else:
                ports.append(Port(name, optional=is_none))
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if default is None:
                message = f"`{argument.arg}` of `forward` is keyword-only"
                self._say("signature", message, argument, argument.arg, "ports are passed by position")
        if function.args.vararg is not None:
            ports.append(Port(function.args.vararg.arg, variadic=True))
        return tuple(ports)

    def _outputs(self) -> tuple[str, ...]:
        function = self._file.method(self._node, "forward")
        returns = None if function is None else function.returns
        if isinstance(returns, ast.Constant) and isinstance(returns.value, str):
            try:
                returns = ast.parse(returns.value, mode="eval").body
            except SyntaxError:
                returns = None
        named = self._file.classes.get(self._file.full_name(returns))
        if named is not None and self._file.is_named_tuple(named):
            items = [item.target for item in named.body if isinstance(item, ast.AnnAssign)]
            return tuple(item.id for item in items if isinstance(item, ast.Name)) or ("output",)
        if not isinstance(returns, ast.Subscript) or self._file.full_name(returns.value) not in _TUPLES:
            return ("output",)
        parts = returns.slice.elts if isinstance(returns.slice, ast.Tuple) else [returns.slice]
        if any(isinstance(part, ast.Constant) and part.value is ... for part in parts):
            self._say("signature", "`forward` returns a tuple of unknown length", returns, help="write each output out")
        plain = ["output", *(f"output_{number}" for number in range(1, len(parts)))]
        names = [_annotation_name(part, self._file.full_name) or name for part, name in zip(parts, plain, strict=True)]
        for name, part in zip(names, parts, strict=True):
            if not is_name(name):
                self._say("name", f"`{name}` cannot be an output", part, name, "use lower case")
        return tuple(names)


def _annotation_name(node: ast.expr, dotted: Any) -> str | None:
    """Return the name in the annotation `Annotated[Tensor, "name"]`, or None for other annotations. `dotted`: function
    that returns the dotted name of an expression, such as `typing.Annotated`."""
    if isinstance(node, ast.Subscript) and dotted(node.value) in ("typing.Annotated", "Annotated"):
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
        if len(parts) > 1 and isinstance(parts[1], ast.Constant) and isinstance(parts[1].value, str):
            return parts[1].value
    return None
