"""Fingerprints of the files from which a plan was made: they show whether a file has changed since."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from declarative_train.core.amounts import format_count
from declarative_train.data.source import record_file
from declarative_train.data.spec import FileRecord
from declarative_train.files.paths import SourceError, format_path
from declarative_train.plan.plan import Plan
from declarative_train.recipe.recipe import Recipe

_STANDARD_INPUT = "<stdin>"


def recipe_files(recipe: Recipe) -> tuple[FileRecord, ...]:
    """Return the path, size and hash of each file that the recipe consists of: the recipe, the files that it extends,
    `--with` files, and plugins. Blocks that come with dtrain are left out."""
    found = {
        _absolute(file.path): FileRecord(_absolute(file.path), len(file.text.encode()), file.sha256)
        for file in recipe.document.files
        if file.role != "block"
    }
    found |= {path: _read(path) for path in recipe.plugins if Path(path).is_file()}
    return tuple(found.values())


def staleness(plan: Plan) -> list[str]:
    """Return a sentence for each file that has changed since the plan was made; [] if none has."""
    return [*_compare_recipes(plan.files), *_compare_data(plan.data.files)]


def _compare_recipes(records: tuple[FileRecord, ...]) -> Iterator[str]:
    for known in records:
        if known.path == _STANDARD_INPUT:
            continue
        path = format_path(known.path)
        try:
            if _read(known.path) != known:
                yield f"{path} has changed since the plan was made"
        except OSError as problem:
            yield f"{path} can no longer be read: {(problem.strerror or str(problem)).lower()}"


def _compare_data(records: tuple[FileRecord, ...]) -> Iterator[str]:
    for known in records:
        path = format_path(known.path)
        try:
            found = record_file(known.path, whole=known.modified_ns is None)
        except (SourceError, OSError) as problem:
            yield f"{path} can no longer be read: {problem}"
            continue
        if found.size_bytes != known.size_bytes:
            yield f"{path} has {format_count(found.size_bytes, 'byte')} now, but had {known.size_bytes:,}"
        elif found.sha256 != known.sha256:
            yield f"{path} has the same size, but other content"
        elif found.modified_ns != known.modified_ns:
            yield f"{path} has another date, and is too large to compare"


def _read(path: str) -> FileRecord:
    content = Path(path).read_bytes()
    return FileRecord(_absolute(path), len(content), hashlib.sha256(content).hexdigest())


def _absolute(path: str) -> str:
    return path if path == _STANDARD_INPUT else os.path.abspath(path)
