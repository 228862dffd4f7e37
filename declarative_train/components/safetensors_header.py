"""The header of a safetensors file: names, shapes and dtypes, without the numbers."""

from __future__ import annotations

import json
import os

_MOST_BYTES = 100 << 20  # as safetensors itself

Header = dict[str, tuple[tuple[int, ...], str]]
"""Of each tensor its shape and its dtype, in the words of safetensors."""


def read_header(path: str) -> Header:
    """The header alone: https://huggingface.co/docs/safetensors, "Format". Raises ValueError and OSError."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if not 2 <= size <= min(_MOST_BYTES, os.path.getsize(path)):
            raise ValueError("it is not a safetensors file")
        try:
            header = json.loads(file.read(size))
            items = {name: item for name, item in header.items() if name != "__metadata__"}
            return {name: (tuple(map(int, item["shape"])), str(item["dtype"])) for name, item in items.items()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise ValueError("its header is not that of a safetensors file") from None
