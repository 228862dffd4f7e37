"""YAML writer for plain Python data; `read_text` reads the same values back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from declarative_train.source.scalars import resolve

_PLAIN = re.compile(r"[A-Za-z0-9_./][\w./%+-]*(?: [\w./%+-]+)*", re.ASCII)  # text that needs no quotes
_OF_OTHERS = frozenset({"yes", "no", "on", "off", "y", "n"})  # written in quotes: YAML 1.1 reads them as true or false
_LONGEST = 112  # characters of a mapping that is written on one line


def flow(value: object) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) is not None and resolve(value) == value and value.lower() not in _OF_OTHERS
        return value if is_plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return f"[{', '.join(flow(item) for item in value)}]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else f"{'-' if value < 0 else ''}.inf"
    return json.dumps(value)


def lines(data: Mapping[str, object], depth: int = 0) -> Iterator[str]:
    """Yield the lines of a mapping as YAML. `depth`: level of indentation.

    A list or mapping inside it is written on one line if it fits. Mappings at `depth` 0, and mappings whose values are
    all mappings, always get several lines."""
    indent = "  " * depth
    for key, value in data.items():
        name = flow(str(key))
        one = flow(value)
        is_long = len(indent) + len(name) + 2 + len(one) > _LONGEST
        if isinstance(value, Mapping) and value and (is_long or depth == 0 or _is_tall(value)):
            yield f"{indent}{name}:"
            yield from lines(value, depth + 1)
        elif is_long and isinstance(value, Sequence) and not isinstance(value, str):
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {flow(item)}" for item in value)
        else:
            yield f"{indent}{name}: {one}"


def _is_tall(value: Mapping[str, object]) -> bool:
    """Return whether all values of a mapping are mappings; each of them is then written on a line of its own."""
    return all(isinstance(item, Mapping) for item in value.values())
