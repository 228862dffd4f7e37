"""Folders of runs that commands read, also those at a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from declarative_train.files.open_files import local_path
from declarative_train.run.storage.remote_dir import local_copies


@contextmanager
def open_folder(path: str) -> Iterator[str]:
    """Return a local folder for a path, or a copy of what is at a URL."""
    path = path.rstrip("/") or "/"
    if local_path(path) is not None:
        yield path
        return
    with local_copies(path) as folder:
        yield folder
