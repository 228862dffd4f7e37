"""Cuts for the ranks of `tensor`, derived for all shipped recipes and in small graphs."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.components.storages import StorageName
from declarative_train.core.cuts import Block, ParameterCut, RankCut
from declarative_train.core.mesh import MeshAxis
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.cuts import Cuts, DivisionInput, derive_cuts
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.layout import describe_cuts
from tests.test_recipes import CASES, ROOT, compiled

GOLDEN = ROOT / "tests" / "golden" / "cuts.txt"


def cuts_of(plan: Plan, size: int) -> Cuts:
    ties = {item.name: item.tie for item in plan.parameters if item.tie is not None}
    names = tuple(item.name for item in plan.parameters)
    heads = {term.input: "vocabulary" for term in plan.objective.terms if term.component["type"] == "cross_entropy"}
    return derive_cuts(plan.graph, DivisionInput(size, names, {}, ties, plugins=plan.plugins), heads)  # type: ignore[arg-type]


def test_the_cuts_of_every_shipped_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    lines = []
    for name, (path, switches) in sorted(CASES.items()):
        plan = compiled(path, switches)
        layout = replace(plan.layout, mesh=(MeshAxis("tensor", 2),), cuts=cuts_of(plan, 2))
        lines += [name, *(f"  {line}" for line in describe_cuts(layout, plan.parameters)), ""]
    text = "\n".join(lines)
    if "ACCEPT" in os.environ:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


LINEAR = "{{type: linear, out_features: {}{}}}"
RECIPE = """
name: small
data: {{source: {{type: npy, path: data.npz}}, fields: {{x: {{column: x}}, y: {{column: x}}}}}}
model: {{graph: {graph}}}
objective: {{loss: {{type: mse, input: last, target: y}}}}
training: {{steps: 1, global_batch_size: 4, optimizer: {{type: sgd, lr: 0.1}}}}
parallelism: {{tensor: 2}}
layout: {{gpus: 2, device: cpu}}
"""


@pytest.mark.parametrize(
    ("graph", "kinds"),
    [
        ("a: L6, act: {type: gelu}, last: L4", "columns rows"),
        ("a: L6, b: tanh(a) + 1, last: L4", "columns rows"),
        ("a: L5, last: L4", "whole whole"),
        ("a: L6, norm: {type: layer_norm}, last: L4", "whole whole whole"),
        ("a: L4, b: a * x, last: L4", "whole whole"),
        ("a: L6, b: 'a[:, :4]', last: L4", "whole whole"),
        ("a: L6, b: softmax(a), last: L4", "whole whole"),
        ("a: L6, b: 'a * [1, 2, 3, 4, 5, 6]', last: L4", "whole whole"),
        ("a: L6, b: L6 of x, c: a * sigmoid(b), last: L4", "columns columns rows"),
        ("a: L6, b: L4, c: x + b, last: L4", "columns rows whole"),
        ("a: L4, again: {type: reuse, node: a}, last: L4", "whole whole"),
    ],
)  # fmt: skip
def test_a_region(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: str, kinds: str) -> None:
    import numpy as np

    graph = re.sub(r"L(\d)( of x)?", lambda found: LINEAR.format(found[1], ", input: x" if found[2] else ""), graph)
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.zeros((8, 4), np.float32))
    Path("r.yaml").write_text(RECIPE.format(graph=f"{{first: x * 1, {graph}}}"))
    loaded = recipe_room.load("r.yaml")
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, diagnostics
    assert plan.layout.cuts is not None
    assert " ".join(node.kind or "whole" for node in plan.layout.cuts.nodes.values()) == kinds
    assert ("P110" in {each.code for each in diagnostics}) == (set(kinds.split()) == {"whole"})


@pytest.mark.parametrize(("storage", "size", "kind"), [("nf4", 2, "rows"), ("int8", 4, ""), ("bf16", 4, "rows")])
def test_blocks_of_a_quantised_weight_are_not_broken(storage: StorageName, size: int, kind: str) -> None:
    spec = TensorSpec((128,))
    nodes = (
        Node("up", "layer", {"x": "x"}, {"y": spec}, {"type": "linear", "out_features": 128}),
        Node("down", "layer", {"x": "up:y"}, {"y": spec}, {"type": "linear", "out_features": 128}),
    )
    names = [f"{node.name}.{word}" for node in nodes for word in ("weight", "bias")]
    given = DivisionInput(size, names, storages={"up.weight": storage, "down.weight": storage})
    found = derive_cuts(Graph({"x": spec}, nodes, {"y": "down:y"}), given, {})
    assert found.nodes["down"].kind == kind
    assert kind or f"blocks of 64 columns, which {size} ranks would break" in found.nodes["up"].reason


def test_blocks_of_a_fused_parameter() -> None:
    cut = ParameterCut(0, (8, 4, 4))
    found = [list(RankCut(cut, index, 2).blocks((8, 3))) for index in range(2)]
    assert [(block.local[0], block.whole[0], block.sizes[0]) for block in found[1]] == [
        (0, 4, 4),
        (4, 10, 2),
        (6, 14, 2),
    ]
    assert sorted(block.whole[0] for part in found for block in part) == [0, 4, 8, 10, 12, 14]
    in_shards = list(RankCut(cut, 1, 2).blocks((8, 3), range(3, 7)))  # the rows that a shard of this part holds
    assert [(block.local[0], block.whole[0], block.sizes[0]) for block in in_shards] == [
        (0, 7, 1),
        (1, 10, 2),
        (3, 14, 1),
    ]
    columns = list(RankCut(ParameterCut(1, (6,)), 1, 3).blocks((5, 2), range(2, 4)))
    assert [tuple(block) for block in columns] == [((0, 0), (2, 2), (2, 2))]


def rows_of(blocks: list[Block]) -> list[tuple[int, int, int]]:
    return [(block.local[0], block.whole[0], block.sizes[0]) for block in blocks]
