"""What frozen weights may be held in, with fewer bits than what is trained: names and sizes, without torch.

A weight (rows, columns) is held as bytes (rows, `row_bytes`): each row stands for itself, so that whoever holds some
rows reads, packs and unpacks those alone.
"""

from __future__ import annotations

from typing import Literal

StorageName = Literal["bf16", "int8", "nf4"]
BLOCK = 64
"""Neighbouring numbers of a row that share a scale."""
SCALE_BYTES = 2
CODE_BITS: dict[StorageName, int] = {"int8": 8, "nf4": 4}


def num_blocks(columns: int) -> int:
    return -(-columns // BLOCK)


def code_bytes(storage: StorageName, columns: int) -> int:
    """Of a row: its numbers, the last block filled up."""
    if storage == "bf16":
        return 2 * columns
    return num_blocks(columns) * BLOCK * CODE_BITS[storage] // 8


def row_bytes(storage: StorageName, columns: int) -> int:
    """Behind the codes of a row stand the scales of its blocks, in bfloat16."""
    scales = 0 if storage == "bf16" else num_blocks(columns) * SCALE_BYTES
    return code_bytes(storage, columns) + scales


def held_bytes(storage: StorageName, shape: tuple[int, ...]) -> int:
    rows, columns = shape
    return rows * row_bytes(storage, columns)
