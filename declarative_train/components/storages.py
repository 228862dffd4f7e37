"""Storage formats of frozen weights in fewer bits (nf4, int8, bf16): names and sizes, without torch.

A weight (rows, columns) is stored as bytes (rows, `row_bytes`). Rows are independent of each other, so a rank reads,
packs and unpacks only the rows that it holds."""

from __future__ import annotations

from typing import Literal

StorageName = Literal["bf16", "int8", "nf4"]
BLOCK = 64
"""Number of neighbouring elements of a row that share a scale."""
SCALE_BYTES = 2
CODE_BITS: dict[StorageName, int] = {"int8": 8, "nf4": 4}


def num_blocks(columns: int) -> int:
    return -(-columns // BLOCK)


def code_bytes(storage: StorageName, columns: int) -> int:
    """Return how many bytes the numbers of one row of a weight take in this storage format, without the scales of the
    blocks. `columns`: how many numbers the row has. In nf4 and int8, the last block of a row is padded to full length.
    """
    if storage == "bf16":
        return 2 * columns
    return num_blocks(columns) * BLOCK * CODE_BITS[storage] // 8


def row_bytes(storage: StorageName, columns: int) -> int:
    """Return how many bytes one row of `columns` numbers takes in this storage format. In nf4 and int8, these are the
    values and, after them, one scale in bfloat16 for each block."""
    scales = 0 if storage == "bf16" else num_blocks(columns) * SCALE_BYTES
    return code_bytes(storage, columns) + scales


def storage_bytes(storage: StorageName, shape: tuple[int, ...]) -> int:
    rows, columns = shape
    return rows * row_bytes(storage, columns)
