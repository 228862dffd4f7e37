"""Base class of sources that read files, with their paths in the recipe."""

from __future__ import annotations

from abc import ABC
from typing import Annotated

from pydantic import Field

from declarative_train.components.data import Dataset
from declarative_train.files.paths import expand

Paths = (
    Annotated[str, Field(min_length=1)]
    | Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
)


class FilesDataset(Dataset, ABC):
    """Rows of files that the recipe names."""

    path: Paths
    """A file, a glob, or a list of them: any fsspec URL, relative to the recipe's file."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,) if isinstance(self.path, str) else self.path

    def files(self) -> list[str]:
        """Return every file, in the order written; the files of a glob are sorted by name. Raises SourceError."""
        return expand(self.paths)
