"""Tensor maps: from the parameters of a model to the tensors of a published file that fill them. The header of a file
is enough to compare its tensors with the parameters.

A parameter is filled by one tensor, or by several that are stacked as rows; tensors may be transposed. Each rank reads
only its part of the file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from declarative_train.components.adapters.adapted import is_added
from declarative_train.core.amounts import list_names
from declarative_train.plan.checkpoint_files import Shapes
from declarative_train.plan.plan import PartPlan, PublishedPlan, TensorMapPlan, WeightsPlan
from declarative_train.recipe.model.selectors import compile_selector
from declarative_train.recipe.model.tree import BlockNode, Published, Scope
from declarative_train.recipe.model.walk import Frame, all_nodes

if TYPE_CHECKING:
    from torch import nn

_SHOWN = 3
_PLACE = re.compile(r"\*|\{\+(\d+)\}")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def find_blocks(scope: Scope) -> Iterator[tuple[BlockNode, Published]]:
    """Yield (block, published model) for each block of the model whose weights can come from a published model."""
    for _, node in all_nodes(Frame(scope)):
        if isinstance(node, BlockNode) and node.params and node.published is not None:
            yield node, node.published


def plan_published(scope: Scope) -> tuple[PublishedPlan, ...]:
    """Return a PublishedPlan for each block of the model whose weights can come from a published model."""
    return tuple(
        PublishedPlan(
            node.path,
            node.block,
            _data(node.params),
            published.config,
            published.folder,
        )
        for node, published in find_blocks(scope)
    )


def _data(params: Mapping[str, object]) -> dict[str, object]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in params.items()}


def respell(tensors: TensorMapPlan, name: str) -> str:
    """Return the current name of the tensor that a file calls `name`. In older files, names can have other endings: the
    keys of `TensorMapPlan.respelt`."""
    old = next((end for end in tensors.respelt if name.endswith(end)), None)
    return name if old is None else name.removesuffix(old) + tensors.respelt[old]


def parts_in(tensors: TensorMapPlan, parameter: str, stored: Iterable[str] | None = None) -> tuple[PartPlan, ...]:
    """Return the tensors of a published file that fill the parameter `parameter`. Return () if published models do not
    have this parameter.

    `stored`: the names in the file; None if unknown. The tensor names in the result begin with `TensorMapPlan.prefix`.
    If no name in `stored` begins with it, the prefix is left out.
    """
    found: Iterable[PartPlan] = tensors.entries.get(parameter, ())
    copies: tuple[str, ...] = ()
    if not found and not tensors.alone:
        copies = tuple(_NUMBER.findall(parameter))
        found = tensors.entries.get(_NUMBER.sub("*", parameter), ())
        if not found:
            mixed = (each for each in tensors.entries if "*" in each and _NUMBER.search(each))
            pattern, copies = next(((each, it) for each in mixed if (it := _match(each, parameter))), ("", ()))
            found = tensors.entries.get(pattern, ())
    parts = [replace(part, name=fill_numbers(part.name, copies)) for part in found]
    if tensors.prefix and stored is not None and not any(name.startswith(tensors.prefix) for name in stored):
        parts = [replace(part, name=part.name.removeprefix(tensors.prefix)) for part in parts]
    return tuple(parts)


def _match(pattern: str, name: str) -> tuple[str, ...] | None:
    found = re.fullmatch(re.escape(pattern).replace(r"\*", r"(\d+)"), name)
    return None if found is None else found.groups()


def fill_numbers(pattern: str, copies: Iterable[str]) -> str:
    """Replace each `*` in a pattern by the next number in `copies`, and each `{+1}` by the next number plus 1:
    `layer{+1}.*.conv` and 0, 2 give `layer1.2.conv`."""
    left = iter(copies)
    return _PLACE.sub(lambda place: str(int(next(left)) + int(place[1] or 0)), pattern)


def shape_of(parts: Iterable[PartPlan], found: Shapes) -> tuple[int, ...] | None:
    """Return the shape of the parameter that `parts`, tensors of a file, form together. Return None if they do not fit
    together. `found`: shapes of the file's tensors."""
    parts = list(parts)
    shapes = [shape_of_part(part, found[part.name]) for part in parts]
    if len({shape[1:] for shape in shapes}) > 1 or not all(shapes):
        return None
    rows, shares = sum(shape[0] for shape in shapes), sum(part.share for part in parts)
    if any(shape[0] * shares != rows * part.share for shape, part in zip(shapes, parts, strict=True)):
        return None
    return (rows, *shapes[0][1:])


def grow_shape(tensors: TensorMapPlan, name: str, shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the shape of the parameter `name` in the model. It has more rows than in the file if tokens were added to
    the model (`TensorMapPlan.grown`). `shape`: shape of the parameter in the file, after its tensors are joined; None
    if unknown."""
    before, after = tensors.grown.get(name, (0, 0))
    return (after, *shape[1:]) if shape and shape[0] == before else shape


def shape_of_part(part: PartPlan, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of a tensor of a file after it is indexed and transposed as `part` says, or () if it does not
    fit `part`. `shape`: shape of the tensor in the file."""
    if part.count:
        if shape[:1] != (part.count,) or len(shape) < 2:
            return ()
        shape = (*shape[1:-1], len(range(part.first, shape[-1], part.step)))
    shape = _without_ones(shape, part.ones)
    return shape[::-1] if part.transpose else shape


def _without_ones(shape: tuple[int, ...], ones: int) -> tuple[int, ...]:
    """Return `shape` without its first `ones` dimensions, or () if one of these is not of size 1. A negative `ones`
    adds dimensions in front: (3, 4) and -1 -> (1, 3, 4)."""
    if ones < 0:
        return (1,) * -ones + shape
    return shape[ones:] if shape[:ones] == (1,) * ones else ()


def check_published(
    held: ModelTensors, plan: WeightsPlan, found: Shapes, *, whole: bool = True
) -> tuple[str, str | None] | None:
    """Return (problem, hint) if tensors of a published file are missing, unexpected or of the wrong shape; None if
    everything fits.

    `held`: tensors of the model. `found`: shapes in the file. `whole`: False if `held` is only a part of the model.
    Unexpected tensors are then not a problem, because they may belong to other ranks.
    """
    node, tensors = plan.node, plan.tensors
    assert tensors is not None
    if tensors.alone:
        return check_entries(held.shapes, tensors, found)
    below, aliases = _below(held, node)
    if whole and (idle := idle_exclusion(plan.exclude, below)):
        return idle
    missing, wrong, misshapen, used = [], [], [], set()
    drawn = set(_missing_heads(below, aliases, tensors, found))
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
            shape = grow_shape(tensors, name, shape_of(parts, found))
            if shape != below[name]:
                given = " and ".join(f"{part.name} {found[part.name]}" for part in parts)
                wrong.append(f"{given} cannot fill `{name}` {below[name]}")
                misshapen.append(name)
    unexpected = [name for name in found if name not in used and not is_ignored(tensors, name)]
    problems = []
    if missing:
        problems.append(f"missing in the files: {list_names(missing, _SHOWN)}")
    if unexpected and whole:
        problems.append(f"unexpected in the files: {list_names(unexpected, _SHOWN)}")
    if wrong:
        problems.append(f"of another shape: {list_names(wrong, _SHOWN)}")
    if not problems:
        return None
    special = [tensors.hints[name] for name in misshapen if name in tensors.hints]
    hint = special[0] if special else _hint(missing, unexpected, wrong, has_heads=bool(tensors.drawn))
    return f"does not fit{f' `{node}`' if node else ''}: {'; '.join(problems)}", hint


def check_entries(held: Shapes, tensors: TensorMapPlan, found: Shapes) -> tuple[str, str | None] | None:
    """Return (problem, hint) if tensors that `tensors.entries` names are missing in a file, or do not have the shapes
    of their parameters; otherwise None. `held`: shapes of the parameters. `found`: shapes of the tensors in the file.
    """
    problems = []
    for name in tensors.entries:
        parts = parts_in(tensors, name)
        if name not in held:
            continue
        lacking = [part.name for part in parts if part.name not in found]
        if lacking:
            problems.append(f"{list_names(lacking, _SHOWN)} missing in the file")
        elif shape_of(parts, found) != held[name]:
            given = " and ".join(f"{part.name} {found[part.name]}" for part in parts)
            problems.append(f"{given} cannot fill `{name}` {held[name]}")
    return (f"does not fit: {list_names(problems, _SHOWN)}", None) if problems else None


def is_ignored(tensors: TensorMapPlan, name: str) -> bool:
    """Return whether a tensor of the file matches a pattern in `TensorMapPlan.ignored`: it is known not to be a
    parameter."""
    ignored = [*tensors.ignored, *(each.removeprefix(tensors.prefix) for each in tensors.ignored)]
    return any(fnmatchcase(name, each) for each in ignored)


def is_selected(selectors: Iterable[str], name: str) -> bool:
    return any(compile_selector(each).match(name) for each in selectors)


def idle_exclusion(selectors: Iterable[str], names: Collection[str]) -> tuple[str, str | None] | None:
    """Return the texts (problem, hint) of an error about the first of `selectors` that matches no parameter; None if
    each matches one. `selectors`: those of the key `exclude`. `names`: names of the parameters."""
    idle = next((each for each in selectors if not any(is_selected([each], name) for name in names)), None)
    if idle is None:
        return None
    heads = list(dict.fromkeys(name.partition(".")[0] for name in names))
    return (
        f"has `{idle}` under `exclude`, which matches no parameter here",
        f"their names start with {list_names(heads, _SHOWN)}",
    )


def find_drawn(held: ModelTensors, plan: WeightsPlan, found: Shapes) -> list[str]:
    """Return the names of the parameters that get random initial values, because they belong to output layers that the
    file lacks completely.

    Parameters that the plan excludes are left out. `held`: tensors of the model. `found`: shapes in the file.
    """
    assert plan.tensors is not None
    below, aliases = _below(held, plan.node)
    names = [
        name for name in _missing_heads(below, aliases, plan.tensors, found) if not is_selected(plan.exclude, name)
    ]
    return [f"{plan.node}.{name}" if plan.node else name for name in names]


def _missing_heads(below: Shapes, aliases: Iterable[list[str]], tensors: TensorMapPlan, found: Shapes) -> list[str]:
    """Return the parameters of output layers that the file lacks completely: it has no tensor for any parameter of the
    layer.

    `below`: {parameter: shape}. `aliases`: all names of each parameter. `found`: {tensor in the file: shape}.
    """
    held = {name for name in below if any(part.name in found for part in parts_in(tensors, name, found))}
    full = {name.rpartition(".")[0] for name in held}
    names = [names[0] for names in aliases if not held & {*names}]
    return [name for name in names if name in tensors.drawn and name.rpartition(".")[0] not in full]


def _hint(missing: list[str], unexpected: list[str], wrong: list[str], *, has_heads: bool) -> str | None:
    if has_heads and unexpected and not missing and not wrong:
        heads = dict.fromkeys(name.rpartition(".")[0] for name in unexpected)
        dropped = ", ".join(f'"{head}.": drop' for head in heads)
        return f"to remove them: `rename: {{{dropped}}}` next to `path`"
    if wrong or unexpected:
        return (
            "`from:` at the node takes all sizes from the model's config.json; `exclude: [logits]` next to `path` "
            "starts parameters from random numbers, such as a head of another size"
        )
    if missing:
        return (
            "a model without a head has no weights for the head: save `AutoModelForCausalLM`, which has them, or let "
            "`exclude: [logits]` next to `path` start a new head"
        )
    return None


class ModelTensors(NamedTuple):
    """Shapes of the parameters and buffers of a model, by name. `ties`: dict from the name of a tied tensor to the
    first name of the same tensor."""

    shapes: Shapes
    ties: Mapping[str, str]

    @classmethod
    def by(cls, module: nn.Module) -> ModelTensors:
        """Return the shapes of a module's parameters and buffers, and which of them are tied."""
        from declarative_train.components.layers.modules.packed import as_computed

        named = as_computed(module)
        first: dict[int, str] = {}
        for name, item in named.items():
            first.setdefault(id(item), name)
        ties = {name: first[id(item)] for name, item in named.items() if first[id(item)] != name}
        return cls({name: tuple(item.shape) for name, item in named.items()}, ties)


def _below(held: ModelTensors, node: str) -> tuple[dict[str, tuple[int, ...]], list[list[str]]]:
    """Return the shapes of a node's parameters, {name: shape}, and for each parameter a list of its names; a tied
    parameter has several. `node`: path of the node; "" for the whole model. Names are relative to the node."""
    prefix = f"{node}." if node else ""
    names: dict[str, list[str]] = {}
    below = {}
    for name, shape in held.shapes.items():
        if name.startswith(prefix) and not is_added(name):
            below[name.removeprefix(prefix)] = shape
            names.setdefault(held.ties.get(name, name), []).append(name.removeprefix(prefix))
    return below, list(names.values())
