"""Diagnostics -> the text of a format. The one place where it is decided how a mistake looks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal, get_args

from declarative_train.diagnostics import text
from declarative_train.diagnostics.diagnostic import Diagnostic
from declarative_train.diagnostics.lines import Lines
from declarative_train.diagnostics.order import arrange

if TYPE_CHECKING:
    from declarative_train.diagnostics.rules import Rule

Format = Literal["full", "concise", "json", "github", "sarif", "junit"]
FORMATS: tuple[str, ...] = get_args(Format)

_MAX_BYTES = 5_000_000


def render(
    diagnostics: Iterable[Diagnostic],
    texts: Mapping[str, str],
    *,
    format: Format = "full",
    color: bool = False,
    rules: Mapping[str, Rule] | None = None,
) -> str:
    """The diagnostics, sorted by place. `texts` are the sources by the path that spans name them with; a source that is
    not among them is read from the disk, an option such as `--set a=1` is its own text. `rules` describe the codes
    (SARIF shows them)."""
    arranged = arrange(diagnostics)
    if format == "full":
        return text.full(arranged, _Sources(texts), color=color)
    if format == "concise":
        return text.concise(arranged)
    if format == "sarif":
        from declarative_train.diagnostics import sarif

        return sarif.sarif(arranged, rules or {})
    from declarative_train.diagnostics import machine  # what few ask for is imported for them

    if format == "json":
        return machine.json_text(arranged)
    if format == "github":
        return machine.github(arranged)
    if format == "junit":
        return machine.junit(arranged, texts)
    raise ValueError(f"there is no format `{format}`: use one of {', '.join(FORMATS)}")


class _Sources(Mapping[str, Lines]):
    """The lines of every source, split when first asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts
        self._lines: dict[str, Lines] = {}

    def __getitem__(self, path: str) -> Lines:
        if path not in self._lines:
            self._lines[path] = Lines(path, self._text(path))
        return self._lines[path]

    def _text(self, path: str) -> str:
        if path in self._texts:
            return self._texts[path]
        if path.startswith("--"):
            return path
        try:
            if not os.path.isfile(path) or os.path.getsize(path) > _MAX_BYTES:
                raise KeyError(path)
            with open(path, encoding="utf-8", errors="replace", newline="") as file:
                return file.read()
        except (OSError, ValueError):
            raise KeyError(path) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)
