"""Weights of a published model: its tensors, held against the parameters that they fill, by headers alone.

The names of a file are turned into those of the parameters by the family's map: a parameter is the rows of one tensor
or of several, which may stand transposed. What a rank holds of it is read from what lies in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.components.published import (
    TIMM,
    TRANSFORMERS,
    WEIGHTS,
    Part,
    PublishedError,
    family_of,
    is_of_timm,
    kind_of,
    read_config,
)
from declarative_train.core.amounts import counted
from declarative_train.plan.plan import PartPlan, PublishedPlan, TensorMapPlan, WeightsPlan
from declarative_train.plan.run_folder import Shapes
from declarative_train.recipe.model.published_names import find_published_blocks
from declarative_train.recipe.model.selectors import compile_selector
from declarative_train.recipe.model.tree import Scope

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 3
_PLACE = re.compile(r"\*|\{\+(\d+)\}")
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
        for node in find_published_blocks(scope)
    )


def _data(params: Mapping[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def tensor_map(
    found: PublishedPlan, library: str = TRANSFORMERS, config: Mapping[str, object] | None = None
) -> TensorMapPlan:
    """By the names of the kind that a config says, by default that which the node was made after. Raises PublishedError
    where the library has no such model."""
    family = family_of(found.block)
    assert family is not None
    if library not in family.names:
        raise PublishedError(f"{library} has no model that `{found.block}` is", f"it is of {', '.join(family.names)}")
    told = found.config if config is None else config
    kind = None if told is None else kind_of(family, told)
    if kind is not None and family.kinds[kind].library != library:
        kind = None
    names = family.map(found.params, library, kind)
    entries = {
        name: [PartPlan(part.name, part.share, part.transpose, part.ones) for part in parts]
        for name, parts in names.entries.items()
    }
    return TensorMapPlan(
        entries,
        names.prefix,
        names.ignored,
        hints=dict(family.hints),
        drawn=names.drawn,
        respelt=dict(names.respelt),
    )


def respelt(tensors: TensorMapPlan, name: str) -> str:
    """A name in a file, as it would be spelt today."""
    old = next((end for end in tensors.respelt if name.endswith(end)), None)
    return name if old is None else name.removesuffix(old) + tensors.respelt[old]


def other_param(found: PublishedPlan, library: str) -> tuple[str, str | None] | None:
    """The first param that all models of a library have, and the node has otherwise: no tensor shows it."""
    family = family_of(found.block)
    assert family is not None
    for name, value in family.names[library].params.items():
        if found.params.get(name) != value:
            said = str(value).lower() if isinstance(value, bool) else str(value)
            return f"is not what `{found.node}` is: all of {library} have `{name}: {said}`", f"say so at `{found.node}`"
    return None


def names_without_head(tensors: TensorMapPlan) -> TensorMapPlan:
    """Those of the model without its head."""
    cut = {
        name: [replace(part, name=part.name.removeprefix(tensors.prefix)) for part in parts]
        for name, parts in tensors.entries.items()
    }
    return replace(tensors, entries=cut)


def library_of(folder: str) -> str:
    """Whose names the tensors of a folder have, by its config. Raises PublishedError."""
    return TIMM if is_of_timm(read_config(folder)) else TRANSFORMERS


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
    parts = [Part(_filled(part.name, copies), part.share, part.transpose, part.ones) for part in found]
    if tensors.prefix and stored is not None and not any(name.startswith(tensors.prefix) for name in stored):
        parts = [part._replace(name=part.name.removeprefix(tensors.prefix)) for part in parts]
    return tuple(parts)


def _match(pattern: str, name: str) -> tuple[str, ...] | None:
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)"), name)
    return None if found is None else found.groups()


def _filled(pattern: str, copies: tuple[str, ...]) -> str:
    """`*` is the number of a copy, `{+1}` one more: torchvision counts the stages of a ResNet from 1 on."""
    left = iter(copies)
    return _PLACE.sub(lambda place: str(int(next(left)) + int(place[1] or 0)), pattern)


def shape_of(parts: Iterable[Part], found: Shapes) -> tuple[int, ...] | None:
    """Of the parameter that the parts of a file make; None where they do not stand in rows below each other, as their
    shares say."""
    parts = list(parts)
    shapes = [_without_ones(found[part.name], part.ones) for part in parts]
    shapes = [shape[::-1] if part.transpose else shape for shape, part in zip(shapes, parts, strict=True)]
    if len({shape[1:] for shape in shapes}) > 1 or not all(shapes):
        return None
    rows, shares = sum(shape[0] for shape in shapes), sum(part.share for part in parts)
    if any(shape[0] * shares != rows * part.share for shape, part in zip(shapes, parts, strict=True)):
        return None
    return (rows, *shapes[0][1:])


def _without_ones(shape: tuple[int, ...], ones: int) -> tuple[int, ...]:
    """() where other sizes stand there."""
    if ones < 0:
        return (1,) * -ones + shape
    return shape[ones:] if shape[:ones] == (1,) * ones else ()


def published_misfit(
    held: Held, plan: WeightsPlan, found: Shapes, *, whole: bool = True
) -> tuple[str, str | None] | None:
    """All that is missing, unexpected and misshapen, by the names of the file, and a hint; None where all fits. With
    `whole` False a part of the model is held, and what is not there is another's."""
    node, tensors = plan.node, plan.tensors
    assert tensors is not None
    if tensors.alone:
        return misfit_of_entries(held.shapes, tensors, found)
    below, aliases = _below(held, node)
    if whole and (idle := idle_exclusion(plan.exclude, below)):
        return idle
    missing, wrong, misshapen, used = [], [], [], set()
    drawn = set(_drawn(below, aliases, tensors, found))
    for names in aliases:
        ways = [(name, parts_in(tensors, name, found)) for name in names]
        used |= {part.name for _, parts in ways for part in parts}
        if any(is_selected(plan.exclude, name) for name in names):
            continue
        present = [(name, parts) for name, parts in ways if parts and all(part.name in found for part in parts)]
        if not present and names[0] in drawn:
            continue
        if not present:
            name, parts = next(((name, parts) for name, parts in ways if parts), (names[0], ()))
            lacking = [part.name for part in parts if part.name not in found]
            missing += lacking or [f"anything for `{name}`"]
        for name, parts in present:
            shape = shape_of(parts, found)
            if shape != below[name]:
                given = " and ".join(f"{part.name} {found[part.name]}" for part in parts)
                wrong.append(f"{given} cannot fill `{name}` {below[name]}")
                misshapen.append(name)
    unexpected = [name for name in found if name not in used and not is_ignored(tensors, name)]
    told = []
    if missing:
        told.append(f"missing in the files: {_several(missing)}")
    if unexpected and whole:
        told.append(f"unexpected in the files: {_several(unexpected)}")
    if wrong:
        told.append(f"of another shape: {_several(wrong)}")
    if not told:
        return None
    special = [tensors.hints[name] for name in misshapen if name in tensors.hints]
    hint = special[0] if special else _hint(missing, unexpected, wrong, has_heads=bool(tensors.drawn))
    return f"does not fit{f' `{node}`' if node else ''}: {'; '.join(told)}", hint


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


def is_ignored(tensors: TensorMapPlan, name: str) -> bool:
    """Of a tensor of the file that holds no parameter."""
    ignored = [*tensors.ignored, *(each.removeprefix(tensors.prefix) for each in tensors.ignored)]
    return any(fnmatchcase(name, each) for each in ignored)


def is_selected(selectors: Iterable[str], name: str) -> bool:
    return any(compile_selector(each).match(name) for each in selectors)


def idle_exclusion(selectors: Iterable[str], names: Collection[str]) -> tuple[str, str | None] | None:
    """The first of `exclude` that names no parameter, and a hint."""
    idle = next((each for each in selectors if not any(is_selected([each], name) for name in names)), None)
    if idle is None:
        return None
    heads = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return f"has `{idle}` under `exclude`, which no parameter here meets", f"they stand below {_several(heads)}"


def published_drawn(held: Held, plan: WeightsPlan, found: Shapes) -> list[str]:
    """The parameters of a head that the file does not have, by their whole names; not those that are excluded."""
    assert plan.tensors is not None
    below, aliases = _below(held, plan.node)
    names = [name for name in _drawn(below, aliases, plan.tensors, found) if not is_selected(plan.exclude, name)]
    return [f"{plan.node}.{name}" if plan.node else name for name in names]


def _drawn(below: Shapes, aliases: Iterable[list[str]], tensors: TensorMapPlan, found: Shapes) -> list[str]:
    """Of a layer whose parameters are none of them in the file: half a head is a file in disorder."""
    held = {name for name in below if any(part.name in found for part in parts_in(tensors, name, found))}
    full = {name.rpartition(".")[0] for name in held}
    names = [names[0] for names in aliases if not held & {*names}]
    return [name for name in names if name in tensors.drawn and name.rpartition(".")[0] not in full]


def _hint(missing: list[str], unexpected: list[str], wrong: list[str], *, has_heads: bool) -> str | None:
    if has_heads and unexpected and not missing and not wrong:
        heads = dict.fromkeys(name.rpartition(".")[0] for name in unexpected)
        dropped = ", ".join(f'"{head}.": drop' for head in heads)
        return f"to leave them out: `rename: {{{dropped}}}` beside `path`"
    if wrong or unexpected:
        return (
            "`from:` at the node takes all sizes from the model's config.json; `exclude: [logits]` beside `path` "
            "starts parameters anew, such as a head of another size"
        )
    if missing:
        return (
            "a model without its head cannot fill one: `AutoModelForCausalLM` saves the whole of it, and "
            "`exclude: [logits]` beside `path` starts one anew"
        )
    return None


class Held(NamedTuple):
    """The parameters and buffers that there are, by name: their shapes, and for a tied one the name of that whose
    values it has."""

    shapes: Shapes
    ties: Mapping[str, str]

    @classmethod
    def by(cls, module: nn.Module) -> Held:
        from declarative_train.components.layers.modules.packed import as_computed

        named = as_computed(module)
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
