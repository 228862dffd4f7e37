"""Points of grids and random searches, what optuna asks for, slots for points at once, mistakes at their places."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from declarative_train import recipe as recipe_room
from declarative_train.recipe.recipe import Recipe
from declarative_train.recipe.sweeps import choices, find_metric
from declarative_train.tools.sweep import device_slots as seats_module
from declarative_train.tools.sweep.device_slots import NoRoomError, assign_device_slots
from declarative_train.tools.sweep.search import FixedSearch, OptunaSearch, Point, corners, list_points
from declarative_train.tools.sweep.sweep import point_name
from tests.engine.made_recipes import DIGITS, compiled, merged, write_data
from tests.engine.plans import make_plan

LR, WIDTH = "training.optimizer.lr", "model.graph.hidden.out_features"


def recipe_of(tmp_path: Path, sweep: dict[str, Any], **changes: Any) -> Recipe:
    found = load(tmp_path, sweep, **changes)
    assert found.recipe is not None, found.diagnostics
    return found.recipe


def load(tmp_path: Path, sweep: dict[str, Any], **changes: Any) -> Any:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(merged(DIGITS, {"sweep": sweep, **changes}), sort_keys=False))
    return recipe_room.load(str(path))


def points_of(recipe: Recipe) -> list[Point]:
    assert recipe.sweep is not None
    return list_points(recipe.sweep, choices(recipe))


def test_a_grid_is_every_combination(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, {"type": "grid", "over": {LR: [0.1, 0.01], WIDTH: [8, 16, 32]}})
    points = points_of(recipe)
    assert [tuple(point.values.values()) for point in points] == [
        (0.1, 8), (0.1, 16), (0.1, 32), (0.01, 8), (0.01, 16), (0.01, 32)
    ]  # fmt: skip
    assert point_name(points[4]) == "004-lr=0.01-out_features=16"
    search = FixedSearch(points)
    assert [search.next() for _ in range(7)] == [*points, None]


def test_a_point_is_an_ordinary_recipe(tmp_path: Path) -> None:
    write_data(tmp_path)
    optimizers = [{"type": "adam", "lr": 0.003}, {"type": "sgd", "lr": 0.3}]
    recipe = recipe_of(tmp_path, {"type": "grid", "over": {"training.optimizer": optimizers}})
    first = points_of(recipe)[0]
    found = recipe_room.load(str(tmp_path / "recipe.yaml"), over=first.over).recipe
    assert found is not None
    assert found.training.optimizer.as_data()["type"] == "adam"
    assert found.document.overrides == ('--set training.optimizer={"type": "adam", "lr": 0.003}',)


def test_random_draws_stay_in_their_ranges_and_repeat(tmp_path: Path) -> None:
    over = {LR: {"low": 1e-4, "high": 1e-1, "log": True}, WIDTH: {"low": 4, "high": 64, "step": 4}, "seed": [1, 2]}
    recipe = recipe_of(tmp_path, {"type": "random", "trials": 200, "seed": 3, "over": over})
    points = points_of(recipe)
    rates = [float(str(point.values[LR])) for point in points]
    widths = {point.values[WIDTH] for point in points}
    assert len(points) == len({point.key for point in points}) == 200
    assert 1e-4 <= min(rates) <= max(rates) <= 1e-1
    assert sum(rate < math.sqrt(1e-5) for rate in rates) == pytest.approx(100, abs=25)  # the middle of the logarithm
    assert widths == set(range(4, 65, 4))
    assert {point.values["seed"] for point in points} == {1, 2}
    assert points == points_of(recipe)
    few = recipe_of(tmp_path, {"type": "random", "trials": 9, "over": {"seed": [1, 2]}})
    assert len(points_of(few)) == 2


def test_the_metric_and_its_direction(tmp_path: Path) -> None:
    over = {LR: [0.1]}
    assert find_metric(recipe_of(tmp_path, {"type": "grid", "over": over})) == ("validation/accuracy", True)
    no_best = {"checkpoint": {"best": {"metric": "validation/loss", "mode": "min"}}}
    assert find_metric(recipe_of(tmp_path, {"type": "grid", "over": over}, **no_best)) == ("validation/loss", False)
    given = {"type": "grid", "over": over, "metric": "training/loss"}
    assert find_metric(recipe_of(tmp_path, given)) == ("training/loss", False)
    assert find_metric(recipe_of(tmp_path, {**given, "mode": "max"})) == ("training/loss", True)


@pytest.mark.parametrize(
    ("sweep", "code", "text"),
    [
        ({"type": "grid", "trials": 3, "over": {LR: [1]}}, "K010", "`trials`"),
        ({"type": "random", "over": {LR: [1]}}, "K010", "needs `trials`"),
        ({"type": "grid", "over": {LR: {"low": 0.1, "high": 1.0}}}, "K011", "not ranges"),
        ({"type": "random", "trials": 1, "over": {LR: {"low": 0, "high": 1, "log": True}}}, "K011", "above 0"),
        ({"type": "random", "trials": 1, "over": {LR: {"low": 1, "high": 1}}}, "K011", "not below"),
        ({"type": "grid", "over": {LR: 0.1}}, "K011", "a single value"),
        ({"type": "grid", "over": {"optimizer.lr": [0.1]}}, "K012", "cannot be set by a sweep"),
        ({"type": "grid", "over": {LR: [0.1]}, "metric": "validation/auroc"}, "K013", "no run computes"),
        ({"type": "grid", "over": {LR: [0.1, "fast"]}}, "S003", "the text `fast`"),
        ({"type": "grid", "over": {"training.optimizer.lrr": [0.1]}}, "S001", "`lrr`"),
    ],
)
def test_a_mistake_is_told_where_it_stands(tmp_path: Path, sweep: dict[str, Any], code: str, text: str) -> None:
    found = [item for item in load(tmp_path, sweep).diagnostics if item.is_error]
    assert [item.code for item in found] == [code]
    assert text in found[0].message
    assert (
        "sweep" in (tmp_path / "recipe.yaml").read_text().splitlines()[found[0].span.line - 1]
        or found[0].span.line > 10
    )


def test_optuna_draws_learns_and_goes_on(tmp_path: Path) -> None:
    over = {LR: {"low": 1e-4, "high": 1e-1, "log": True}, WIDTH: [8, 16]}
    recipe = recipe_of(tmp_path, {"type": "optuna", "trials": 12, "over": over})
    assert [tuple(point.values.values()) for point in corners(choices(recipe))] == [(1e-4, 8), (1e-1, 8), (1e-4, 16)]
    assert recipe.sweep is not None

    def search() -> OptunaSearch:
        assert recipe.sweep is not None
        return OptunaSearch(recipe.sweep, choices(recipe), tmp_path, "made", True, 1)

    first, seen = search(), []
    for _ in range(5):
        point = first.next()
        assert point is not None
        seen.append(point)
        if len(seen) < 5:
            first.tell(point, -abs(math.log10(float(str(point.values[LR]))) + 2))
    again = search()  # the fifth was cut short: it comes again, then those that are left
    left = []
    while (point := again.next()) is not None:
        left.append(point)
        again.tell(point, 0.0)
    assert (left[0].number, left[0].values) == (4, seen[4].values)
    assert [point.number for point in left] == list(range(4, 12))


def test_optuna_gives_up_what_is_worse_than_the_median(tmp_path: Path) -> None:
    sweep = {"type": "optuna", "trials": 8, "pruner": "median", "over": {LR: {"low": 0.1, "high": 1.0}}}
    recipe = recipe_of(tmp_path, sweep)
    assert recipe.sweep is not None
    search = OptunaSearch(recipe.sweep, choices(recipe), tmp_path, "made", True, 1)
    for _ in range(6):
        point = search.next()
        assert point is not None
        assert not search.is_hopeless(point, 10, 0.9)
        search.tell(point, 0.9)
    point = search.next()
    assert point is not None
    assert search.is_hopeless(point, 10, 0.1)
    search.tell(point, None, pruned=True)
    assert [trial.state.name for trial in search.study.trials][-1] == "PRUNED"


def test_points_at_once_share_no_core_and_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = make_plan(directory=tmp_path, mode="ddp", num_ranks=2)
    on_cpu = replace(plan.layout, device="cpu")
    monkeypatch.setattr(seats_module.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(seats_module, "num_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = assign_device_slots([on_cpu], None)
    assert [slot.cores for slot in found] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert found[0].environment == {"OMP_NUM_THREADS": "1"}
    assert [slot.cores for slot in assign_device_slots([on_cpu], 1)] == [()]
    monkeypatch.setattr(seats_module, "num_gpus", lambda: 5)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,4,5,6,7")
    wanted = replace(plan.layout, device="auto")
    assert [slot.environment["CUDA_VISIBLE_DEVICES"] for slot in assign_device_slots([wanted], None)] == ["3,4", "5,6"]
    with pytest.raises(NoRoomError, match="enough for 2"):
        assign_device_slots([wanted], 3)


def test_a_run_of_a_recipe_with_a_sweep_is_that_of_its_base(tmp_path: Path) -> None:
    write_data(tmp_path)
    base, swept = (
        compiled(tmp_path, DIGITS),
        compiled(tmp_path, merged(DIGITS, {"sweep": {"type": "grid", "over": {LR: [1]}}})),
    )
    assert base.fingerprint == swept.fingerprint
