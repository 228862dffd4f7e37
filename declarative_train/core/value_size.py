"""Size limit of a template's values: it bounds the memory that a recipe from somebody else can use."""

from __future__ import annotations


def excess(value: object, *, most: int, most_bits: int) -> str | None:
    """Return a text about what is too large in a value, or None.

    `most`: limit of characters and items, counted through nested values and keys. `most_bits`: limit of bits in an
    integer.
    """
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
            waiting += [part for pair in dict.items(item) for part in pair]  # a subclass may record each access
        elif isinstance(item, list | tuple):
            waiting += item
    return None
