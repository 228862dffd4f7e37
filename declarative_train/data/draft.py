"""Data section while it is compiled: what all steps read, and the diagnostics that they report."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from declarative_train.components.data import Field
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import DType
from declarative_train.data.fields import each_output
from declarative_train.data.late import TransformChain
from declarative_train.data.problems import Place
from declarative_train.data.skipping import Skipped
from declarative_train.data.spec import WindowSpec
from declarative_train.data.statistics import Inherited

if TYPE_CHECKING:
    from declarative_train.recipe.sections.data import DataSection


class DataDraft:
    """Data section while it is compiled. `fields`: with the other outputs that are read. `skipped`: rows that are left
    out.
    """

    def __init__(
        self,
        section: DataSection,
        seed: int,
        span: Place,
        floats: DType,
        offline: bool,
        inherited: Mapping[str, Inherited],
        read: Collection[str] | None,
    ) -> None:
        self.inherited = inherited
        self.section = section
        self.fields = dict(each_output(section.fields, read))
        self.seed = seed
        self.span = span
        self.floats = floats
        self.offline = offline
        self.diagnostics: list[Diagnostic] = []
        self.skips = section.on_bad_row == "skip"
        self.skipped: list[Skipped] = []
        self.window_fits = True
        self.chain = TransformChain(section.transforms, seed)
        self.window: WindowSpec | None = None
        if (window := section.window) is not None:
            self.window = WindowSpec(window.length, window.stride or window.length, window.by, window.sort)

    @property
    def cut(self) -> tuple[object, ...]:
        """Everything that decides which rows of a source a set has."""
        splits = {name: split.as_data() for name, split in self.section.split.items()}
        return splits, self.seed, None if self.window is None else asdict(self.window), self.section.on_bad_row

    def report(self, diagnostic: Diagnostic) -> None:
        self.diagnostics.append(diagnostic)

    def column_span(self, name: str, field: Field, column: str) -> Span:
        """Return the place where the recipe names a column of a field."""
        for position, unwanted in enumerate(field.unwanted):
            if unwanted == column:
                single = isinstance(getattr(field, "exclude", None), str)
                return self.span(("data", "fields", name, "exclude", *(() if single else (position,))))
        if field.takes_lists and column == getattr(field, "labels", None):
            return self.span(f"data.fields.{name}.labels")
        if getattr(field, "column", None) is not None:
            return self.span(f"data.fields.{name}.column")
        if isinstance(getattr(field, "columns", None), tuple) and column in field.wanted:
            return self.span(("data", "fields", name, "columns", field.wanted.index(column)))
        return self.span(f"data.fields.{name}.columns")
