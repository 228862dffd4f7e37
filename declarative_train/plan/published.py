"""Weights of a published model: its tensors, held against the parameters that they fill, by headers alone.

The names of a file are turned into those of the parameters by the family's map: a parameter is the rows of one tensor
or of several, which may stand transposed. What a rank holds of it is read from what lies in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.published import WEIGHTS, Part, PublishedError, family_of
from declarative_train.plan.plan import PartPlan, PublishedPlan, TensorMapPlan
from declarative_train.plan.run_folder import Shapes
from declarative_train.recipe.model.published_names import published_blocks
from declarative_train.recipe.model.tree import Scope
from declarative_train.terms.amounts import counted

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 3
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def plan_published(scope: Scope) -> tuple[PublishedPlan, ...]:
    """The nodes that published models can be, with what they are made of."""
    return tuple(
        PublishedPlan(
            node.path,
            node.block,
            _data(node.params),
            None if node.published is None else node.published.config,
            None if node.published is None else node.published.folder,
        )
        for node in published_blocks(scope)
    )


def _data(params: Mapping[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def tensor_map(found: PublishedPlan) -> TensorMapPlan:
    family = family_of(found.block)
    assert family is not None
    entries = {
        name: [PartPlan(part.name, part.share, part.transpose) for part in parts]
        for name, parts in family.parts(found.params).items()
    }
    return TensorMapPlan(entries, family.prefix, list(family.ignored))


def tensors_of(folder: str) -> str:
    """The file that names all tensors of a folder. Raises PublishedError."""
    for name in WEIGHTS:
        if os.path.exists(os.path.join(folder, name)):
            return os.path.join(folder, name)
    if any(name.endswith(".bin") for name in os.listdir(folder)):
        raise PublishedError(f"{folder} has its weights as a pickle", "save it again with `save_pretrained`")
    raise PublishedError(
        f"there is neither {' nor '.join(WEIGHTS[::-1])} in {folder}", "`hf download` fetches all of it"
    )


def parts_in(tensors: TensorMapPlan, parameter: str, stored: Iterable[str] | None = None) -> tuple[Part, ...]:
    """The tensors of a file that a parameter is made of, by name; () for one that no published model has. `stored`: the
    names in the file, one without the head where none begins with the prefix."""
    found: Iterable[PartPlan] = tensors.entries.get(parameter, ())
    copies: tuple[str, ...] = ()
    if not found and not tensors.alone:
        copies = tuple(_NUMBER.findall(parameter))
        found = tensors.entries.get(_NUMBER.sub("*", parameter), ())
        if not found:
            mixed = (each for each in tensors.entries if "*" in each and _NUMBER.search(each))
            pattern, copies = next(((each, it) for each in mixed if (it := _match(each, parameter))), ("", ()))
            found = tensors.entries.get(pattern, ())
    parts = [Part(_filled(part.name, copies), part.share, part.transpose) for part in found]
    if tensors.prefix and stored is not None and not any(name.startswith(tensors.prefix) for name in stored):
        parts = [part._replace(name=part.name.removeprefix(tensors.prefix)) for part in parts]
    return tuple(parts)


def _match(pattern: str, name: str) -> tuple[str, ...] | None:
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)"), name)
    return None if found is None else found.groups()


def _filled(pattern: str, copies: tuple[str, ...]) -> str:
    for copy in copies:
        pattern = pattern.replace("*", copy, 1)
    return pattern


def shape_of(parts: Iterable[Part], found: Shapes) -> tuple[int, ...] | None:
    """Of the parameter that the parts of a file make; None where they do not stand in rows below each other, as their
    shares say."""
    parts = list(parts)
    shapes = [found[part.name][::-1] if part.transpose else found[part.name] for part in parts]
    if len({shape[1:] for shape in shapes}) > 1 or not all(shapes):
        return None
    rows, shares = sum(shape[0] for shape in shapes), sum(part.share for part in parts)
    if any(shape[0] * shares != rows * part.share for shape, part in zip(shapes, parts, strict=True)):
        return None
    return (rows, *shapes[0][1:])


def published_misfit(
    held: Held, node: str, tensors: TensorMapPlan, found: Shapes, *, whole: bool = True
) -> tuple[str, str | None] | None:
    """All that is missing, unexpected and misshapen, by the names of the file, and a hint; None where all fits. With
    `whole` False a part of the model is held, and what is not there is another's."""
    if tensors.alone:
        return misfit_of_entries(held.shapes, tensors, found)
    below, aliases = _below(held, node)
    missing, wrong, used = [], [], set()
    for names in aliases:
        ways = [(name, parts_in(tensors, name, found)) for name in names]
        present = [(name, parts) for name, parts in ways if parts and all(part.name in found for part in parts)]
        used |= {part.name for _, parts in ways for part in parts}
        if not present:
            name, parts = next(((name, parts) for name, parts in ways if parts), (names[0], ()))
            lacking = [part.name for part in parts if part.name not in found]
            missing += lacking or [f"anything for `{name}`"]
        for name, parts in present:
            shape = shape_of(parts, found)
            if shape != below[name]:
                given = " and ".join(f"{part.name} {found[part.name]}" for part in parts)
                wrong.append(f"{given} cannot fill `{name}` {below[name]}")
    ignored = [*tensors.ignored, *(each.removeprefix(tensors.prefix) for each in tensors.ignored)]
    unexpected = [name for name in found if name not in used and not any(fnmatchcase(name, each) for each in ignored)]
    told = []
    if missing:
        told.append(f"missing in the files: {_several(missing)}")
    if unexpected and whole:
        told.append(f"unexpected in the files: {_several(unexpected)}")
    if wrong:
        told.append(f"of another shape: {_several(wrong)}")
    if not told:
        return None
    return f"does not fit{f' `{node}`' if node else ''}: {'; '.join(told)}", _hint(missing, unexpected, wrong)


def misfit_of_entries(held: Shapes, tensors: TensorMapPlan, found: Shapes) -> tuple[str, str | None] | None:
    """Of tensors that fill some parameters alone: what is lacking or misshapen, of those that are held here."""
    told = []
    for name in tensors.entries:
        parts = parts_in(tensors, name)
        if name not in held:
            continue
        lacking = [part.name for part in parts if part.name not in found]
        if lacking:
            told.append(f"{_several(lacking)} missing in the file")
        elif shape_of(parts, found) != held[name]:
            given = " and ".join(f"{part.name} {found[part.name]}" for part in parts)
            told.append(f"{given} cannot fill `{name}` {held[name]}")
    return (f"does not fit: {_several(told)}", None) if told else None


def _hint(missing: list[str], unexpected: list[str], wrong: list[str]) -> str | None:
    if wrong or unexpected:
        return "`from:` at the node takes all sizes from the model's config.json"
    if missing:
        return "a model without its head cannot fill one: `AutoModelForCausalLM` saves the whole of it"
    return None


class Held(NamedTuple):
    """The parameters that there are, by name: their shapes, and for a tied one the name of that whose values it has."""

    shapes: Shapes
    ties: Mapping[str, str]

    @classmethod
    def by(cls, module: nn.Module) -> Held:
        named = dict(module.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        for name, item in named.items():
            first.setdefault(id(item), name)
        ties = {name: first[id(item)] for name, item in named.items() if first[id(item)] != name}
        return cls({name: tuple(item.shape) for name, item in named.items()}, ties)


def _below(held: Held, node: str) -> tuple[dict[str, tuple[int, ...]], list[list[str]]]:
    """Shapes of parameters below a node by names relative to it, and the names that each of them has."""
    prefix = f"{node}." if node else ""
    names: dict[str, list[str]] = {}
    below = {}
    for name, shape in held.shapes.items():
        if name.startswith(prefix) and not is_added(name):
            below[name.removeprefix(prefix)] = shape
            names.setdefault(held.ties.get(name, name), []).append(name.removeprefix(prefix))
    return below, list(names.values())


def odd_dtype(dtypes: Mapping[str, str]) -> str | None:
    """What is wrong with the numbers of a file that are none to compute with."""
    odd = [f"{name} ({dtype})" for name, dtype in dtypes.items() if dtype not in ("F64", "F32", "F16", "BF16")]
    if not odd:
        return None
    return f"{counted(len(odd), 'tensor')} of it not in floating point of 16 bits or more: {_several(odd)}"


def _several(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
