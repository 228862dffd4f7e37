"""Axes of a recipe -> the mesh of its ranks, and how words and axes meet in derived recipes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from declarative_train.components.pipeline_schedules import PIPELINE_SCHEDULES
from declarative_train.recipe.load import Loaded
from declarative_train.recipe.merge_rules import axes_of_word
from declarative_train.recipe.reading import read
from declarative_train.recipe.sections.parallelism import Axes, DataAxes, PipelineAxis
from declarative_train.source.node import Scalar

Laid = Callable[..., Loaded]


def axes(pipeline: tuple[int, str] | None = None, **data: Any) -> Axes:
    cut = None if pipeline is None else PipelineAxis(stages=pipeline[0], schedule=pipeline[1], microbatches=8)  # type: ignore[arg-type]
    return Axes(data=DataAxes(**data) if data else None, pipeline=cut)


@pytest.mark.parametrize(
    ("written", "num_gpus", "mesh"),
    [
        (axes(), 1, {}),
        (axes(replicate="all"), 4, {"replicate": 4}),
        (axes(replicate="all"), 1, {"replicate": 1}),
        (axes(replicate=4), 4, {"replicate": 4}),
        (axes(shard="all"), 4, {"shard": 4}),
        (axes(replicate=2, shard="all"), 8, {"replicate": 2, "shard": 4}),
        (axes(replicate="all", shard=4), 8, {"replicate": 2, "shard": 4}),
        (axes(replicate=1, shard="all"), 4, {"shard": 4}),
        (axes((4, "1f1b")), 4, {"pipeline": 4}),
        (axes((4, "1f1b"), shard=2), 8, {"pipeline": 4, "shard": 2}),
        (axes((2, "1f1b"), replicate=2, shard=2), 8, {"pipeline": 2, "replicate": 2, "shard": 2}),
        (axes((2, "1f1b"), replicate="all"), 2, {"pipeline": 2}),
        (axes((2, "1f1b"), replicate="all"), 8, {"pipeline": 2, "replicate": 4}),
        (axes((4, "zbv"), shard="all"), 8, {"pipeline": 2, "shard": 4}),
        (axes((2, "1f1b"), replicate=2, shard="all"), 8, {"pipeline": 2, "replicate": 2, "shard": 2}),
        (axes(replicate=2), 4, None),
        (axes(replicate=3, shard="all"), 4, None),
        (axes(replicate="all", shard="all"), 4, None),
        (axes((3, "1f1b"), shard="all"), 4, None),
        (axes((2, "1f1b"), shard=3), 4, None),
    ],
)
def test_the_mesh(written: Axes, num_gpus: int, mesh: dict[str, int] | None) -> None:
    found = written.mesh(num_gpus)
    assert (None if found is None else {axis.name: axis.size for axis in found}) == mesh


@pytest.mark.parametrize("schedule", sorted(PIPELINE_SCHEDULES))
def test_a_pipeline_beside_all_is_one_alone_wherever_that_can_be(schedule: str) -> None:
    """So a recipe over a base of `ddp` keeps its mesh: what is left for copies is one."""
    least, most = PIPELINE_SCHEDULES[schedule].stages_per_rank
    for num_ranks in (2, 3, 4, 8):
        for held in range(least, (most or least + 3) + 1):
            alone = axes((num_ranks * held, schedule))
            beside = axes((num_ranks * held, schedule), replicate="all")
            assert beside.mesh(num_ranks) == alone.mesh(num_ranks) is not None


@pytest.mark.parametrize(
    ("base", "over", "meant"),
    [
        ("fsdp", "{data: {replicate: 2}}", axes(replicate=2, shard="all")),
        ("ddp", "{data: {shard: all, reshard: false}}", axes(shard="all", reshard=False)),
        ("ddp", "{data: {shard: 2}}", axes(replicate="all", shard=2)),
        ("fsdp", "{pipeline: {stages: 2, microbatches: 8}}", axes((2, "1f1b"), shard="all")),
        ("single", "{data: {replicate: 4}}", axes(replicate=4)),
        ("auto", "{data: {shard: all}}", axes(shard="all")),
        ("{data: {replicate: 2, shard: all}}", "ddp", axes(replicate="all")),
        ("{data: {replicate: 2, shard: 2}}", "{data: {replicate: null, shard: all}}", axes(shard="all")),
    ],
)
def test_what_a_derived_recipe_says_meets_the_base(laid: Laid, small: str, base: str, over: str, meant: Axes) -> None:
    document = laid(f"parallelism: {over}\n", base=f"{small}parallelism: {base}\n").document
    assert document is not None
    node = document.find(("parallelism",))
    assert node is not None
    node = axes_of_word(node) if isinstance(node, Scalar) else node
    assert read(Axes, node, "parallelism", node.span) == (meant, [])
