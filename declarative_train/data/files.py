"""A file -> its record: what tells, later, whether it is still the same."""

from __future__ import annotations

import hashlib

from declarative_train.components.datasets.files import read_bytes, size_bytes
from declarative_train.data.spec import FileRecord

WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20


def record(path: str) -> FileRecord:
    """`sha256` of the whole file up to 64 MiB, else of its size and the first and last MiB. Raises SourceError."""
    size = size_bytes(path)
    digest = hashlib.sha256()
    if size <= WHOLE_BYTES:
        digest.update(read_bytes(path))
    else:
        digest.update(f"{size}\n".encode())
        digest.update(read_bytes(path, 0, _END_BYTES))
        digest.update(read_bytes(path, size - _END_BYTES, size))
    return FileRecord(path, size, digest.hexdigest())
