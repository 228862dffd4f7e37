"""Data sections made of plain mappings, as a recipe would hold them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from declarative_train.components.data import Dataset, Field
from declarative_train.components.datasets import DATASETS
from declarative_train.components.fields import FIELDS
from declarative_train.components.split import Split
from declarative_train.components.splits import SPLITS
from declarative_train.components.transform import Transform
from declarative_train.components.transforms import TRANSFORMS
from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import DType
from declarative_train.data import shared_sets
from declarative_train.data.build_spec import describe
from declarative_train.data.spec import DataSpec


@dataclass(frozen=True)
class Window:
    length: int
    stride: int | None = None
    by: str | None = None
    sort: str | None = None


@dataclass(frozen=True)
class Section:
    source: Dataset
    fields: dict[str, Field]
    split: dict[str, Split] = field(default_factory=dict)
    window: Window | None = None
    shuffle: bool = True
    shuffle_window: int | None = None
    shuffle_streams: int | None = None
    workers: int = 0
    last_batch: str = "keep"
    on_bad_row: str = "error"
    transforms: tuple[Transform, ...] = ()


def component(table: object, mapping: dict[str, object], kind: str | None = None) -> object:
    name = mapping.get("type", kind)
    return table[name].model_validate_json(json.dumps({**mapping, "type": name}))  # type: ignore[index]


def section(
    source: dict[str, object],
    fields: dict[str, dict[str, object]],
    split: dict[str, object] | None = None,
    window: dict[str, object] | None = None,
    transforms: Sequence[dict[str, object]] = (),
    **keys: object,
) -> Section:
    splits = {}
    for name, each in (split or {}).items():
        if isinstance(each, float):
            each = {"type": "random", "fraction": each}
        splits[name] = component(SPLITS, each, "source")  # type: ignore[arg-type]
    return Section(
        component(DATASETS, source),  # type: ignore[arg-type]
        {name: component(FIELDS, each, "tensor") for name, each in fields.items()},  # type: ignore[misc]
        splits,  # type: ignore[arg-type]
        None if window is None else Window(**window),  # type: ignore[arg-type]
        transforms=tuple(component(TRANSFORMS, each) for each in transforms),  # type: ignore[misc]
        **keys,  # type: ignore[arg-type]
    )


def place(path: str | tuple[str | int, ...]) -> Span:
    """A span whose path is the dotted path that was asked for."""
    return Span(path if isinstance(path, str) else ".".join(map(str, path)), 1, 1, 1, 2)


Described = tuple[DataSpec | None, list[Diagnostic]]


@pytest.fixture
def look() -> Iterator[Callable[..., Described]]:
    """`describe` of a section given as mappings."""

    def looked(*, seed: int = 0, floats: DType = "float32", offline: bool = False, **keys: object) -> Described:
        return describe(section(**keys), seed, place, floats=floats, offline=offline)  # type: ignore[arg-type]

    yield looked
    shared_sets._latest.clear()


@pytest.fixture
def spec(look: Callable[..., Described]) -> Callable[..., DataSpec]:
    """The DataSpec of a section without a mistake."""

    def made(**keys: object) -> DataSpec:
        found, diagnostics = look(**keys)
        assert not [
            item for item in diagnostics if item.code != "D021"
        ]  # a warning, of sets that are parted on purpose
        assert found is not None
        return found

    return made
