"""Mutations of recipes: a valid recipe and a seed give a broken recipe or, by chance, another valid one.

Half of the mutations edit the text like typing mistakes: a line is deleted, doubled, moved or indented, a character
changed, or random bytes added. The other half edit the values: a node is deleted, doubled, renamed, gets another type,
or moves to another section.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import yaml

STRANGE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3, 7, 1e-4, 0.5, 1e300, float("inf"), float("nan"), 10**30, -(2**63)),
    *("", " ", "no", "1e-4", "5%", "1 epoch", "3 steps", "-1 steps", "0%", "1 fortnight", "../../etc/passwd"),
    *(
        "{{ vars.nothing }}",
        "{{ 1 // 0 }}",
        "{{",
        "{% raw %}",
        "{{ [1] * 3 }}",
        "a b",
        "*",
        "é漢🙂",
        "\x85",
        "x" * 5000,
    ),
    *("hidden", "hidden.0", "hidden.output", "relu(hidden)", "hidden[:, 0]"),
    *([], {}, [1, 2], ["hidden"], [[1], [2]], [None], {"a": None}, {"x": "hidden"}),
    *({"type": "relu"}, {"type": "linear"}, {"type": 3}, {"type": "reuse", "node": "hidden"}),
)
NOISE = "\t\n\r :,-[]{}#&*!|>'\"%@`\\0aZ_\x00\x07\x85\u2028\ufeff\ud7ff\U0001f642é"
SECTIONS = ("data", "model", "objective", "training", "evaluation", "parallelism", "layout", "checkpoint", "vars")
Step = tuple[Any, Any]  # a container and the key or position in it


def mutate(text: str, seed: int) -> bytes:
    """Mutate a text one to three times. The same seed gives the same result."""
    rng = random.Random(seed)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(TEXT_EDITS)(text, rng) if rng.random() < 0.5 else _edit_values(text, rng)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.03:
        at = rng.randrange(len(data) + 1)
        data = data[:at] + rng.randbytes(rng.randint(1, 20)) + data[at:]
    return data


def _drop_line(lines: list[str], at: int, rng: random.Random) -> None:
    del lines[at]


def _double_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines.insert(at, lines[at])


def _move_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines.insert(rng.randrange(len(lines)), lines.pop(at))


def _indent_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines[at] = rng.choice((" ", "  ", "    ", "\t")) + lines[at]


def _dedent_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines[at] = lines[at][rng.randint(1, 4) :] if lines[at].startswith(" ") else lines[at].lstrip()


def _cut_line(lines: list[str], at: int, rng: random.Random) -> None:
    lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]


def _on_lines(edit: Callable[[list[str], int, random.Random], None]) -> Callable[[str, random.Random], str]:
    def run(text: str, rng: random.Random) -> str:
        lines = text.split("\n")
        edit(lines, rng.randrange(len(lines)), rng)
        return "\n".join(lines)

    return run


def _change_characters(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(NOISE) + text[at + rng.randint(0, 1) :]
    return text


def _drop_piece(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randint(1, 30) :]


def _cut_off(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text) + 1)]


TEXT_EDITS: tuple[Callable[[str, random.Random], str], ...] = (
    *(_on_lines(edit) for edit in (_drop_line, _double_line, _move_line, _indent_line, _dedent_line, _cut_line)),
    _change_characters,
    _drop_piece,
    _cut_off,
)


def _edit_values(text: str, rng: random.Random) -> str:
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):
        return _change_characters(text, rng)
    places = list(_places(tree))
    if not places:
        return _change_characters(text, rng)
    rng.choice(VALUE_EDITS)(tree, *rng.choice(places), places, rng)
    try:
        return yaml.safe_dump(
            tree, sort_keys=False, allow_unicode=True, default_flow_style=rng.choice((None, True, False))
        )
    except (RecursionError, yaml.YAMLError, TypeError):
        return text


def _places(tree: Any) -> Iterator[Step]:
    keys: Any = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    for key in keys:
        yield tree, key
        yield from _places(tree[key])


def _drop(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    del holder[key]


def _retype(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    holder[key] = rng.choice(STRANGE)


def _swap(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    other, name = rng.choice(places)
    if isinstance(other[name], str | int | float | bool) and isinstance(holder[key], str | int | float | bool):
        holder[key], other[name] = other[name], holder[key]
    else:
        holder[key] = rng.choice(STRANGE)


def _rename(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    if not isinstance(holder, dict):
        return _retype(tree, holder, key, places, rng)
    others = [name for _, name in places if isinstance(name, str)]
    name = str(key)
    at = rng.randrange(len(name) + 1)
    new = rng.choice(
        (name[:at] + name[at + 1 :], name[:at] + "x" + name[at:], name.upper(), rng.choice(others or [name]))
    )
    items = [(new if old == key else old, value) for old, value in holder.items()]
    holder.clear()
    holder.update(items)
    return None


def _double(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[f"{key}_2"] = holder[key]
    else:
        holder.append(holder[key])


def _shuffle(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    if isinstance(holder, list):
        rng.shuffle(holder)
    else:
        items = list(holder.items())
        rng.shuffle(items)
        holder.clear()
        holder.update(items)


def _misplace(tree: Any, holder: Any, key: Any, places: list[Step], rng: random.Random) -> None:
    section = tree.get(rng.choice(SECTIONS)) if isinstance(tree, dict) else None
    value = holder[key]
    del holder[key]
    (section if isinstance(section, dict) else tree if isinstance(tree, dict) else {})[str(key)] = value


VALUE_EDITS = (_drop, _retype, _retype, _swap, _rename, _double, _shuffle, _misplace)
