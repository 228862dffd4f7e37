"""Names of a block's weights in the files of the published models that it matches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from declarative_train.components.adapters.peft_folder import PeftFolder, Slice
from declarative_train.components.published import TRANSFORMERS, TensorPart, family_of, kind_of
from declarative_train.recipe.model.tree import BlockNode, Scope

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def find_published_blocks(scope: Scope) -> Iterator[BlockNode]:
    """Yield the nodes of a model whose weights published models can provide."""
    for node in scope.nodes:
        if isinstance(node, BlockNode):
            if node.params and family_of(node.block) is not None:
                yield node
            yield from find_published_blocks(node.scope)


class PublishedNames:
    """Names that a model's parameters have in published files."""

    def __init__(self, scope: Scope) -> None:
        self._blocks: dict[str, tuple[Mapping[str, tuple[TensorPart, ...]], str]] = {}
        for node in find_published_blocks(scope):
            family = family_of(node.block)
            assert family is not None
            kind = None if node.published is None else kind_of(family, node.published.config)
            is_its = kind is not None and family.kinds[kind].library == TRANSFORMERS
            found = family.map(node.params, TRANSFORMERS, kind if is_its else None)
            self._blocks[f"{node.path}."] = found.entries, found.prefix

    def parts(self, parameter: str) -> tuple[tuple[TensorPart, ...], str]:
        """Return the tensors that form a parameter, and the prefix of all names; () if no published model has it."""
        for node, (entries, prefix) in self._blocks.items():
            if parameter.startswith(node):
                name = parameter.removeprefix(node)
                copies = _NUMBER.findall(name)
                found = entries.get(name) or entries.get(_NUMBER.sub("*", name)) or ()
                return tuple(part._replace(name=_fill(part.name, copies)) for part in found), prefix
        return (), ""

    def slices(self, folder: PeftFolder, path: str, rows: int) -> list[Slice]:
        """Return the modules in a PEFT folder whose adapters belong to a linear map: the one with the map's own name,
        else those of the published model."""
        own = [Slice(path, 0, rows)]
        if folder.names_of(own):
            return own
        parts, prefix = self.parts(f"{path}.weight")
        if not any(name.startswith(prefix) for name in folder.shapes):
            parts = tuple(part._replace(name=part.name.removeprefix(prefix)) for part in parts)
        shares, first, found = sum(part.share for part in parts), 0, []
        for part in parts:
            last = first + rows * part.share // shares
            found.append(Slice(part.name.removesuffix(".weight"), first, last))
            first = last
        return found


def _fill(pattern: str, copies: list[str]) -> str:
    for copy in copies:
        pattern = pattern.replace("*", copy, 1)
    return pattern
