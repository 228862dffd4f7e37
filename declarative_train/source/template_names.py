"""What templates see: `vars` and `env` under their names, with lists for tuples."""

from __future__ import annotations

import os
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from typing import NoReturn

from declarative_train.core.secrets import record_variable, used_variables
from declarative_train.source.node import Node, Scalar, Sequence

FAILED = object()  # the value of a var that could not be rendered


class Values(dict[str, object]):
    """The values of `vars`; `failed` names those whose own template went wrong, which is reported there alone,
    `from_env` those that were made of the environment."""

    failed: frozenset[str] = frozenset()
    from_env: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> object:
        used_variables.num_reads += name in self.from_env
        return super().__getitem__(name)


class Circle(Exception):  # noqa: N818
    """A var that needs itself."""

    def __init__(self, chain: list[str]) -> None:
        super().__init__(" -> ".join(chain))
        self.chain = chain


class FailedBefore(Exception):  # noqa: N818
    """A var that is asked for, but could not be rendered."""


def to_lists(node: Node) -> object:
    """Plain values as templates see them: lists, not tuples."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Sequence):
        return [to_lists(item) for item in node.items]
    return {entry.name: to_lists(entry.value) for entry in node.entries}


class Names(dict[str, object]):
    """The names of a template, with lists for tuples; `vars` and `env` are looked into only when asked."""

    def __init__(self, names: MappingABC[str, object]) -> None:
        super().__init__({name: _listed(value) for name, value in names.items()})


class Environment(MappingABC[str, str]):
    """The variables of the environment, one at a time: all of them together, which hold secrets, are not a value."""

    def __init__(self, variables: MappingABC[str, str]) -> None:
        self.variables = variables

    def __getitem__(self, name: str) -> str:
        value = self.variables[name]
        record_variable(name, value)
        return value

    def _as_a_whole(self) -> NoReturn:
        from declarative_train.source.sandbox import NoValue  # there already: plain templates ask for nothing whole

        raise NoValue("the whole environment")

    def __iter__(self) -> Iterator[str]:
        self._as_a_whole()

    def __len__(self) -> int:
        self._as_a_whole()

    def __str__(self) -> str:
        self._as_a_whole()

    __repr__ = __str__


def _listed(value: object) -> object:
    if isinstance(value, type(os.environ)):
        return Environment(value)
    if isinstance(value, tuple | list):
        return [_listed(item) for item in value]
    if isinstance(value, dict) and not isinstance(value, Values):
        return {key: _listed(item) for key, item in value.items()}
    return value
