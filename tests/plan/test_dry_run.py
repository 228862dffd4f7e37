"""What the rehearsal of the first step finds, and what it leaves in the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from declarative_train.graph import dry_run
from declarative_train.graph.build import build
from tests.plan.conftest import Compile


def said(compiled: Compile, *nodes: str, more: str = "") -> list[tuple[str, str]]:
    """Codes and messages of the recipe with these nodes, `out` for the loss."""
    graph = "\n".join(f"    {node}" for node in nodes)
    _, found = compiled(f"model:\n  graph:\n{graph}\nobjective: {{loss: {{input: out}}}}\n{more}")
    return [(item.code, item.message) for item in found]


@pytest.mark.parametrize(
    "out",
    [
        "detach(logits)",
        "float(logits > 0)",
        "float(argmax(logits, dim=-1, keepdim=true)) * ones_like(logits)",
        "round(logits)",
        "floor(logits)",
        "float(int(logits))",
        "logits * 0 // 1",
    ],
)
def test_a_loss_that_no_gradient_leaves_is_an_error(out: str, compiled: Compile) -> None:
    (code, _), *_ = said(compiled, f"out: {out}")
    assert code == "G009"


@pytest.mark.parametrize(
    "out", ["logits - detach(logits)", "logits + round(logits)", "where(logits > 0, logits, -logits)"]
)
def test_a_way_round_is_enough(out: str, compiled: Compile) -> None:
    assert said(compiled, f"out: {out}") == []


def test_what_no_loss_reaches_is_frozen_and_said(compiled: Compile) -> None:
    plan, found = compiled("model: {graph: {cut: detach(act), logits: {type: linear, out_features: 10, input: cut}}}")
    assert plan is not None
    assert [item.code for item in found] == ["G010"]
    assert "`hidden.weight`" in found[0].message
    assert {item.name: (item.frozen, item.idle) for item in plan.parameters} == {
        "hidden.weight": (True, True),
        "hidden.bias": (True, True),
        "logits.weight": (False, False),
        "logits.bias": (False, False),
    }


def test_an_idle_parameter_of_a_model_too_large_to_build(compiled: Compile) -> None:
    plan, _ = compiled(
        """
        model:
          graph:
            hidden: {type: linear, out_features: 200000}
            cut: detach(act)
            logits: {type: linear, out_features: 10, input: cut}
        """
    )
    assert plan is not None
    assert {item.name for item in plan.parameters if item.idle} == {"hidden.weight", "hidden.bias"}


PAIR = """
        model:
          blocks:
            pair:
              inputs: [x]
              graph:
                wide: {type: linear, out_features: 20000, input: x}
                act: {type: relu}
                narrow: {type: linear, out_features: 10}
                BESIDE
              outputs: {result: narrow, hidden: HIDDEN}
          graph:
            logits: {type: pair, input: act}
        objective: {loss: {input: "logits.result"}}
        """


@pytest.mark.parametrize(
    ("beside", "hidden", "idle"),
    [("", "act", set()), ("beside: {type: linear, out_features: 5, input: act}", "beside", {"weight", "bias"})],
)
def test_what_a_block_gives_and_nobody_reads_is_a_loose_end_only_where_the_block_goes_no_further(
    beside: str, hidden: str, idle: set[str], compiled: Compile, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def noted(*given: Any, **more: Any) -> Any:
        built.append(given)
        return build(*given, **more)

    monkeypatch.setattr(dry_run, "build", noted)
    monkeypatch.setattr(dry_run, "_is_small", lambda lowered: False)
    plan, found = compiled(PAIR.replace("BESIDE", beside).replace("HIDDEN", hidden))
    assert plan is not None, found
    assert {item.name for item in plan.parameters if item.idle} == {f"logits.beside.{name}" for name in idle}
    assert bool(built) == bool(idle)


def test_a_number_that_is_not_finite_is_traced_to_its_node(compiled: Compile) -> None:
    _, found = compiled(
        "model: {graph: {zero: act - act, bad: act / zero, logits: {type: linear, out_features: 10, input: bad}}}"
    )
    assert [item.code for item in found] == ["G013"]
    assert "`loss` is nan in the first step" in found[0].message
    assert "`bad`" in found[0].related[0].message


def test_a_metric_reads_a_named_output_of_a_block_of_fields(compiled: Compile) -> None:
    plan, found = compiled(
        """
        model:
          blocks: {twice: {inputs: [x], graph: {y: x * 2}, outputs: {y: y}}}
          graph: {made: {type: twice, input: x}}
        objective: {metrics: {m: {type: mean, input: made.y}}}
        """
    )
    assert plan is not None, found
    assert found == []


def test_the_rows_of_the_rehearsal_hold_the_extremes_of_every_field(compiled: Compile, tmp_path: Path) -> None:
    """One divisor of a thousand is zero, far behind the first samples."""
    rows = [f"{row % 7 - 3},{0 if row == 500 else 1 + row % 4},{row % 10}" for row in range(1000)]
    (tmp_path / "table.csv").write_text("\n".join(["a,count,y", *rows]) + "\n")
    fields = "{x: {columns: [a]}, count: {column: count}, y: {type: category, column: y, num_classes: 10}}"
    data = f"data: {{source: {{type: csv, path: table.csv}}, fields: {fields}}}\n"
    found = dict(said(compiled, "out: logits / unsqueeze(count, -1)", more=data))
    assert "in the first step" in found["G013"]


def test_the_rehearsal_leaves_the_generator_alone(compiled: Compile) -> None:
    import torch

    torch.manual_seed(3)
    wanted = torch.rand(2)
    torch.manual_seed(3)
    drawn = "{type: dropout, p: 0.5, input: act}"
    compiled(f"model: {{graph: {{drop: {drawn}, logits: {{type: linear, out_features: 10, input: drop}}}}}}")
    assert torch.equal(torch.rand(2), wanted)
