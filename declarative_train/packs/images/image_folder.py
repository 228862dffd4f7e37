"""Source of images in folders, one folder for each class. An image file is read when its row is read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal
from urllib.parse import unquote

from pydantic import Field

from declarative_train.components.data import Column, Dataset, Table
from declarative_train.files.folders import files_below, list_remote, read_all
from declarative_train.files.open_files import format_path, local_path, objects, read_bytes
from declarative_train.files.paths import SourceError
from declarative_train.packs.images import ENDINGS

if TYPE_CHECKING:
    import numpy as np


class ImageFolderDataset(Dataset):
    """Pictures in folders, one for each class: columns `image` (the file), `label` (the name of the folder) and `path`.

    Rows are sorted by folder, then by the path below it. Folders inside a class belong to it. Without folders there is
    no `label`. Files with other endings, and those whose name begins with a dot, are skipped.
    """

    type: Literal["image_folder"] = "image_folder"
    files_column: ClassVar[str | None] = "image"
    path: Annotated[str, Field(min_length=1)]
    """The folder that contains the class folders, relative to the recipe's file; or a URL of one (`s3://bucket/pets`),
    which is listed when the source is opened, and whose files are kept in the user's cache as they are read."""

    @property
    def paths(self) -> tuple[str, ...]:
        return (self.path,)

    def open(self) -> Table:
        root = local_path(self.path)
        if root is None:
            return _table_of(self.path.rstrip("/"), list_remote(self.path, ENDINGS))
        if not os.path.isdir(root):
            raise _no_folder(root)
        try:
            return _table_of(root, files_below(root, ENDINGS))
        except OSError as error:
            raise SourceError("unreadable", f"cannot list {format_path(root)}: {error.strerror}") from error

    @classmethod
    def open_files(cls, paths: Sequence[str], source: Mapping[str, object]) -> Table:
        return cls(path=paths[0]).open() if os.path.isdir(paths[0]) else FilesTable(paths)


def _no_folder(root: str) -> SourceError:
    if os.path.isfile(root):
        return SourceError("unreadable", f"{format_path(root)} is a file; a folder of pictures is expected")
    above = os.path.dirname(root.rstrip("/")) or "."
    siblings = tuple(sorted(os.listdir(above))) if os.path.isdir(above) else ()
    hint = f"folders in its folder: {', '.join(siblings[:8])}" if siblings else None
    name = os.path.basename(root.rstrip("/"))
    return SourceError(
        "not_found", f"there is no folder {format_path(root)}", help=hint, name=name, known=siblings, path=root
    )


class FilesTable(Table):
    """Table of files. It keeps only their names in memory; a file is opened, read and closed when its row is read.
    `labels`: label of each file, or None for a file without one. If `labels` itself is None, the table has no column
    `label`."""

    def __init__(self, files: Sequence[str], root: str = "", labels: Sequence[str | None] | None = None) -> None:
        self.files = (f"{root}/" if is_elsewhere(root) else root,) if root else tuple(files)
        self.num_rows = len(files)
        self.columns = {"image": Column("image", "bytes"), "path": Column("path", "object")}
        self._root = root
        self._names = objects(files)
        self._labels: np.ndarray | None = None
        if labels is None:
            self.left_out = {
                "label": "no image is in a subfolder, whose name would be its class; a csv can name files and classes"
            }
        else:
            self._labels = objects(labels)
            self.columns["label"] = Column("label", "object")

    def read(self, columns: Sequence[str], rows: slice | np.ndarray) -> dict[str, np.ndarray]:
        return {name: self._column(name, rows) for name in columns}

    def _column(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        import numpy as np

        if name == "label":
            assert self._labels is not None
            return np.asarray(self._labels[rows])
        paths = [os.path.join(self._root, each) for each in self._names[rows]]
        if name == "path":
            return objects(paths)
        return objects(
            read_all(paths, _read_or_error) if is_elsewhere(self._root) else [_read_or_error(path) for path in paths]
        )

    def place(self, row: int) -> str:
        return format_path(os.path.join(self._root, self._names[row]))


def _read_or_error(path: str) -> bytes | OSError:
    """Return the bytes of a file, or the exception if the file is missing or may not be read. Such an error concerns
    only one row, and is raised when this row is decoded. Raises SourceError for other errors."""
    try:
        return read_bytes(path)
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError | PermissionError):
            return error.__cause__
        raise


def is_elsewhere(root: str) -> bool:
    """Return whether `root` is a URL, not a local folder."""
    return local_path(root) is None


def _table_of(root: str, found: Iterable[str]) -> FilesTable:
    names = sorted(tuple(name.split("/" if is_elsewhere(root) else os.sep)) for name in found)
    if not names:
        kinds = ", ".join(sorted(ENDINGS))
        raise SourceError("no_match", f"there is no picture in {format_path(root)}", help=f"looked for: {kinds}")
    is_quoted = root.startswith(("http://", "https://"))
    # rows of a class share one string
    classes = {parts[0]: unquote(parts[0]) if is_quoted else parts[0] for parts in names}
    has_classes = any(len(parts) > 1 for parts in names)
    labels = [classes[parts[0]] if len(parts) > 1 else None for parts in names] if has_classes else None
    return FilesTable(["/".join(parts) if is_elsewhere(root) else os.sep.join(parts) for parts in names], root, labels)
