"""Conversions by the library transformers: when a model is loaded, tensors of its files are renamed, joined or split.

One tensor of the model is converted at a time, so that a rank reads only what its rows need. The library has no public
function that says from which tensors of the files a tensor is made, so private ones are used:

| in transformers | for |
|---|---|
| `conversion_mapping.get_model_conversion_mapping` | the conversions of a model; PEFT uses it too |
| `core_model_loading.rename_source_key`, `dot_natural_key` | a name of the file -> a name of the model; their order |
| `core_model_loading.WeightConverter`: `add_tensor`, `convert`, `operations` | tensors of the file -> of the model |
| `PreTrainedModel._adjust_missing_and_unexpected_keys` | the names that models no longer have, or never save |
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from declarative_train.packs.pretrained.libraries.files import Files, Stored, TensorOrigin, match, tensor_origin
from declarative_train.packs.pretrained.libraries.problem import LibraryError

Names = dict[str, list[str]]
"""Tensors of the files by the pattern of a converter that they match, in the order in which it takes them."""


@lru_cache(maxsize=8)
def files_of(model: Any, stored: Stored, may_differ: tuple[str, ...]) -> Files:
    """Match the tensors in the files of a model with its parameters. In the result, `missing` and `unexpected` lack the
    names that transformers ignores, such as parameters that are never in files. `may_differ`: parameters that may have
    another shape in the files. Raises LibraryError."""
    from transformers.utils.loading_report import LoadStateDictInfo

    files = match(model, *_find_origins(model, stored), may_differ)
    info = LoadStateDictInfo(set(files.missing), set(files.unexpected), set(), [], {}, set())
    model._adjust_missing_and_unexpected_keys(info)
    return files._replace(
        missing=tuple(name for name in files.missing if name in info.missing_keys),
        unexpected=tuple(name for name in files.unexpected if name in info.unexpected_keys),
    )


def _find_origins(model: Any, stored: Stored) -> tuple[dict[str, TensorOrigin], tuple[str, ...]]:
    """Return ({name of a tensor of the model: from which tensors in files it is made}, names in the files that are not
    used). The names are matched as by transformers' function `convert_and_load_state_dict_in_model`. Raises
    LibraryError."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    converters = [each for each in mapping if isinstance(each, WeightConverter)]
    renamings = [each for each in mapping if not isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    state, prefix = model.state_dict(), model.base_model_prefix
    origins: dict[str, TensorOrigin] = {}
    unexpected: list[str] = []
    joined: dict[str, tuple[Any, Names]] = {}
    for name in sorted(stored.tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, state)  # type: ignore[arg-type]
        if target not in state and name in state:
            target, pattern = rename_source_key(name, [], [], prefix, state)
        if target not in state or target in origins:
            unexpected.append(name)
        elif pattern is None:
            origins[target] = tensor_origin(name, stored.tensors[name])
        else:
            _, names = joined.setdefault(target, (by_pattern[pattern], {}))
            names.setdefault(pattern, []).append(name)
    for target, (converter, names) in joined.items():
        origins |= _origins(model, stored, target, converter, names)
    return origins, tuple(unexpected)


def _origins(model: Any, stored: Stored, target: str, converter: Any, names: Names) -> dict[str, TensorOrigin]:
    """Return {name: TensorOrigin} for the tensors of the model that `converter` makes from tensors in files.
    `converter`: an object of transformers that, for example, stacks tensors. `target`: name of the first tensor that it
    makes. `names`: {pattern of the converter: names in the files that match}."""

    def convert(chosen: Names, read: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        fresh = copy.deepcopy(converter)
        for pattern, each in chosen.items():
            for name in each:
                fresh.add_tensor(target, name, pattern, read(name))
        made = fresh.convert(target, model=model, config=model.config)
        return {name: item[0] if isinstance(item, list) else item for name, item in made.items()}

    def read_one(name: str) -> torch.Tensor:
        return tensor_origin(name, stored.tensors[name]).read(0, None)

    def origin(made: str, shape: tuple[int, ...]) -> TensorOrigin:
        def read(first: int, count: int | None) -> torch.Tensor:
            if count is not None and _gives_rows(converter, names, shape):
                chosen = {pattern: each[first : first + count] for pattern, each in names.items()}
                return convert(chosen, read_one)[made] if count else torch.empty(0, *shape[1:])
            whole = convert(names, read_one)[made]
            return whole if count is None else whole[first : first + count]

        every = tuple(name for each in names.values() for name in each)
        return TensorOrigin(every, frozenset(stored.tensors[name].dtype for name in every), shape, read)

    try:
        shapes = convert(names, lambda name: torch.empty(stored.tensors[name].shape, device="meta"))
    except Exception as problem:  # an operation may raise anything for wrong shapes or a missing tensor
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
        raise LibraryError(f"transformers cannot make `{target}` from the files: {reason}", field="path") from None
    return {name: origin(name, tuple(item.shape)) for name, item in shapes.items()}


def _gives_rows(converter: Any, names: Names, shape: tuple[int, ...]) -> bool:
    """Return whether row i of a converter's result can be computed from the i-th tensor of each pattern alone, as when
    the weights of experts are stacked. `names`: {pattern: names of the tensors that match it}. `shape`: shape of the
    result."""
    from transformers.core_model_loading import Concatenate, MergeModulelist

    first, *others = converter.operations
    return (
        isinstance(first, MergeModulelist)
        and first.dim == 0
        and all(isinstance(each, Concatenate) and each.dim > 0 for each in others)
        and all(len(each) == shape[0] for each in names.values())
    )
