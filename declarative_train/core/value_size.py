"""How much a value of a template holds: what bounds the memory that somebody else's text can ask for."""

from __future__ import annotations


def excess(value: object, *, most: int, most_bits: int) -> str | None:
    """What is too large of a value, in words; None where nothing is. `most`: characters and items, those of nested
    values and of keys too; `most_bits`: of an integer."""
    weight, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        weight += 1
        if isinstance(item, int) and item.bit_length() > most_bits:
            return f"an integer of more than {most_bits} bits"
        if isinstance(item, str | list | tuple | dict):
            weight += len(item)
        if weight > most:
            return f"a value of more than {most:,} characters or items"
        if isinstance(item, dict):
            waiting += [part for pair in dict.items(item) for part in pair]  # a subclass may count who asks
        elif isinstance(item, list | tuple):
            waiting += item
    return None
