"""Variables that templates can read, such as `vars` and `env`. A YAML list is a Python list in them, not a tuple."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import NoReturn

from declarative_train.core.secrets import record_variable, used_variables
from declarative_train.source.node import Node, Scalar, Sequence

FAILED = object()  # value of a var that could not be rendered


class VarValues(dict[str, object]):
    """Values of the section `vars` by name. `failed`: names of variables that could not be rendered, which is already
    reported. `from_env`: names of variables that depend on environment variables; `used_variables` counts how often
    they are read."""

    failed: frozenset[str] = frozenset()
    from_env: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> object:
        used_variables.num_reads += name in self.from_env
        return super().__getitem__(name)


class CircularVars(Exception):  # noqa: N818
    """Error: a variable of the section `vars` refers to itself, directly or through others."""

    def __init__(self, chain: list[str]) -> None:
        super().__init__(" -> ".join(chain))
        self.chain = chain


class FailedVar(Exception):  # noqa: N818
    """Error: a template uses a variable of the section `vars` that could not be rendered."""


def to_lists(node: Node) -> object:
    """Return a YAML node as plain Python data. Sequences become lists, because templates expect lists."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [to_lists(item) for item in node.items]
    return {entry.name: to_lists(entry.value) for entry in node.entries}


class TemplateNames(dict[str, object]):
    """Variables that one template can read. Lists take the place of tuples. The mappings `vars` and `env` are not
    copied, because they render an entry, or record it, when the template reads it."""

    def __init__(self, names: MappingABC[str, object]) -> None:
        super().__init__({name: _with_lists(value) for name, value in names.items()})


class Environment(MappingABC[str, str]):
    """Environment variables as `env` in templates, read one at a time. A template cannot print or iterate over all of
    them (NoValue), because they include secrets."""

    def __init__(self, variables: MappingABC[str, str]) -> None:
        self.variables = variables

    def __getitem__(self, name: str) -> str:
        value = self.variables[name]
        record_variable(name, value)
        return value

    def _refuse_whole(self) -> NoReturn:
        from declarative_train.source.sandbox import NoValue  # already imported by the template that calls this

        raise NoValue("the whole environment")

    def __iter__(self) -> Iterator[str]:
        self._refuse_whole()

    def __len__(self) -> int:
        self._refuse_whole()

    def __str__(self) -> str:
        self._refuse_whole()

    __repr__ = __str__


def _with_lists(value: object) -> object:
    if isinstance(value, type(os.environ)):
        return Environment(value)
    if isinstance(value, tuple | list):
        return [_with_lists(item) for item in value]
    if isinstance(value, dict) and not isinstance(value, VarValues):
        return {key: _with_lists(item) for key, item in value.items()}
    return value
