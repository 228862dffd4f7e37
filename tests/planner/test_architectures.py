"""Memory of models of transformers and timm: the plan's next to the live bytes of a real step."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from declarative_train.planner.estimate.shortened import find_chains, shorten
from declarative_train.planner.footprint import forecast
from declarative_train.planner.footprint.forecast import LONG, Forecast
from tests.planner import __main__ as planner
from tests.planner.architectures import KINDS, QUICK, Architecture, architectures, are_close, measure, plan_of

pytest.importorskip("transformers")
pytest.importorskip("timm")
pytestmark = pytest.mark.packs
ALL = architectures()


@pytest.mark.parametrize("each", [each for each in ALL if each.is_quick], ids=lambda each: each.name)
def test_a_model_needs_what_its_plan_says(each: Architecture) -> None:
    found = measure(each)
    assert found.predicted.is_traced
    assert are_close(found), dataclasses.asdict(found)


@pytest.mark.long
@pytest.mark.parametrize("each", [each for each in ALL if not each.is_quick], ids=lambda each: each.name)
def test_every_model_needs_what_its_plan_says(each: Architecture) -> None:
    found = measure(each)
    assert found.predicted.is_traced
    assert are_close(found), dataclasses.asdict(found)


@pytest.mark.parametrize(
    ("model", "precision", "checkpointing"),
    [
        ("StableLmForCausalLM", "fp32", "none"),
        ("OlmoeForCausalLM", "bf16", "blocks"),
        pytest.param("Olmo2ForCausalLM", "bf16", "selective", marks=pytest.mark.long),
        pytest.param("GPTNeoXForCausalLM", "fp32", "blocks", marks=pytest.mark.long),
    ],
)
def test_a_few_layers_of_a_library_model_show_the_memory_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, precision: str, checkpointing: str
) -> None:
    kind = next(kind for kind, names in KINDS.items() if model in names)
    plan = plan_of(Architecture(kind, model, precision, checkpointing), tmp_path, num_hidden_layers=10)
    (run,) = find_chains(plan, LONG)
    assert (len(run.paths), run.node) == (10, "net")
    assert any(".layers.4." in item.name for item in plan.parameters)
    short = shorten(plan, [run], [4])
    assert not any(".layers.4." in item.name for item in short.parameters)
    (found,) = Forecast().memory(plan).rows
    monkeypatch.setattr(forecast, "LONG", 100)
    (whole,) = Forecast().memory(plan).rows
    assert found == whole


def test_layers_of_two_kinds_are_all_traced(tmp_path: Path) -> None:
    each = Architecture("dense", "StableLmForCausalLM", "fp32", "none")
    kinds = ["full_attention", "sliding_attention"] * 5
    assert find_chains(plan_of(each, tmp_path, num_hidden_layers=10, layer_types=kinds), LONG) == []


def test_there_are_sixty_of_five_kinds() -> None:
    assert len(ALL) == len({each.model for each in ALL}) == 60
    quick = [each for each in ALL if each.is_quick]
    assert len(quick) == len(QUICK) == 12
    assert {each.kind for each in quick} == set(KINDS)
    ways = {(each.precision, each.checkpointing) for each in quick}
    assert {precision for precision, _ in ways} == {"fp32", "bf16"}
    assert {policy for _, policy in ways} == {"none", "blocks"}


def test_the_pages_have_a_row_of_each(tmp_path: Path) -> None:
    rows = planner.architecture_rows(planner.CELLS_PAGE.read_text(encoding="utf-8"))
    assert [each.name for each in rows] == [each.name for each in ALL], "run python -m tests.planner --architectures"


def test_a_wrong_figure_is_out_of_bounds() -> None:
    """The bounds are those of the issue: 3% of the total, 10% of a class."""
    from declarative_train.plan.predictions import MemoryPlan
    from declarative_train.planner.footprint.live_bytes import CLASSES
    from tests.planner.footprint import Footprint
    from tests.planner.measure import Result

    sizes = dict.fromkeys(CLASSES, 0) | {"parameters": 500, "activations": 500}

    def are_close_with(parameters: int, activations: int) -> bool:
        predicted = MemoryPlan("each device", parameters, 0, 0, 0, activations, is_traced=True)
        return are_close(Result("", predicted, Footprint(sizes), 1, 0.0))

    assert are_close_with(510, 510)
    assert not are_close_with(520, 520)
    assert not are_close_with(440, 560)
