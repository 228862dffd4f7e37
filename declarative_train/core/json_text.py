"""JSON parser with one kind of exception, for text from outside."""

from __future__ import annotations

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for text that nests too deeply, where `json.loads`
    raises RecursionError."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it has too many brackets inside each other") from None
