"""Reading of folders of runs by commands; a folder may be at a URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from declarative_train.files.open_files import local_path
from declarative_train.run.storage.remote_dir import local_copies


@contextmanager
def open_folder(path: str) -> Iterator[str]:
    """Yield a local path: `path` itself, or for a URL the path of a temporary copy."""
    path = path.rstrip("/") or "/"
    if local_path(path) is not None:
        yield path
        return
    with local_copies(path) as folder:
        yield folder
