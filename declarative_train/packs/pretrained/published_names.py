"""Names that the weights of dtrain's blocks have in the files of published models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from declarative_train.packs.pretrained.adapters.peft_folder import PeftFolder, Slice
from declarative_train.packs.pretrained.published import TRANSFORMERS, family_of, kind_of
from declarative_train.plan.plan import PartPlan
from declarative_train.plan.tensor_maps import fill_numbers, find_blocks
from declarative_train.recipe.model.tree import Scope

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


class PublishedNames:
    """Names that published files use for the parameters of a model's blocks."""

    def __init__(self, scope: Scope) -> None:
        self._blocks: dict[str, tuple[Mapping[str, tuple[PartPlan, ...]], str]] = {}
        for node, published in find_blocks(scope):
            family = family_of(node.block)
            assert family is not None
            kind = None if published.config is None else kind_of(family, published.config)
            is_its = kind is not None and family.kinds[kind].library == TRANSFORMERS
            found = family.map(node.params, TRANSFORMERS, kind if is_its else None)
            self._blocks[f"{node.path}."] = found.entries, found.prefix

    def parts(self, parameter: str) -> tuple[tuple[PartPlan, ...], str]:
        """Return (tensors, prefix) for a parameter. `tensors`: the tensors of a published file that form the parameter.
        `prefix`: beginning of their names, which is left out in files of a model without its head. Return ((), "") if
        no published model has the parameter."""
        for node, (entries, prefix) in self._blocks.items():
            if parameter.startswith(node):
                name = parameter.removeprefix(node)
                copies = _NUMBER.findall(name)
                found = entries.get(name) or entries.get(_NUMBER.sub("*", name)) or ()
                return tuple(replace(part, name=fill_numbers(part.name, copies)) for part in found), prefix
        return (), ""

    def slices(self, folder: PeftFolder, path: str, rows: int) -> list[Slice]:
        """Return the linear maps of a published model that together form dtrain's linear map at `path` (q, k and v form
        `qkv`), each with its range of rows (outputs). If `folder` has an adapter for `path` itself, return only `path`,
        with all rows. `rows`: number of rows of dtrain's map."""
        own = [Slice(path, 0, rows)]
        if folder.find_adapted(own):
            return own
        parts, prefix = self.parts(f"{path}.weight")
        if not any(name.startswith(prefix) for name in folder.shapes):
            parts = tuple(replace(part, name=part.name.removeprefix(prefix)) for part in parts)
        shares, first, found = sum(part.share for part in parts), 0, []
        for part in parts:
            last = first + rows * part.share // shares
            found.append(Slice(part.name.removesuffix(".weight"), first, last))
            first = last
        return found
