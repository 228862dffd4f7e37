"""Optimizers of schedulefree and torchao: the libraries' own updates, to the bit, also after a resume."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import declarative_train as dt
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.engine.step.optimizers import Optimizers, build_optimizers
from declarative_train.plan.plan import ParameterPlan

FREE: dict[str, Any] = {"type": "adamw_schedule_free", "lr": 0.01, "weight_decay": 0.1}
EIGHT: dict[str, Any] = {"type": "adamw_8bit", "lr": 0.01, "weight_decay": 0.1}
PACKAGES = {"adamw_schedule_free": "schedulefree", "adamw_8bit": "torchao"}
SHAPES = {"small.weight": (7, 5), "small.bias": (7,), "large.weight": (64, 80)}  # 20 blocks of 256
EVAL_EVERY, STEPS = 3, 8


def need(case: dict[str, Any]) -> None:
    pytest.importorskip(PACKAGES[case["type"]])


@pytest.fixture(autouse=True)
def quiet_torchao() -> Iterator[None]:
    logging.disable(logging.WARNING)  # it reports kernels for GPUs that it cannot load
    yield
    logging.disable(logging.NOTSET)


def parameters() -> dict[str, nn.Parameter]:
    draws = torch.Generator().manual_seed(0)
    return {name: nn.Parameter(torch.randn(shape, generator=draws)) for name, shape in SHAPES.items()}


def ours(case: dict[str, Any], named: dict[str, nn.Parameter]) -> Optimizers:
    plans = [ParameterPlan(name, tuple(item.shape), item.numel()) for name, item in named.items()]
    return build_optimizers(plans, case, named)


def theirs(case: dict[str, Any], named: dict[str, nn.Parameter]) -> torch.optim.Optimizer:
    fields = {key: value for key, value in case.items() if key != "type"}
    if case is FREE:
        from schedulefree import AdamWScheduleFree

        return AdamWScheduleFree(named.values(), warmup_steps=5, **fields)
    from torchao.optim import AdamW8bit

    return AdamW8bit(named.values(), **fields)


def set_gradients(named: dict[str, nn.Parameter], step: int) -> None:
    draws = torch.Generator().manual_seed(step)
    for item in named.values():
        item.grad = torch.randn(item.shape, generator=draws)


def factor(case: dict[str, Any], step: int) -> float:
    """Our warm-up of 4 steps is the library's of 5; for the other a rate that falls."""
    return min(1.0, (step + 1) / 5) if case is FREE else 1 - step / 10


@pytest.mark.parametrize("case", [FREE, EIGHT], ids=["schedule free", "8 bits"])
def test_each_step_is_that_of_the_library(case: dict[str, Any]) -> None:
    """With an evaluation after every third step, and a stop and restart from its state after the sixth."""
    need(case)
    mine, other = parameters(), parameters()
    made, by_hand = ours(case, mine), theirs(case, other)
    for step in range(STEPS):
        if case is FREE:
            by_hand.train()
        made.switch(trains=True)
        set_gradients(mine, step)
        set_gradients(other, step)
        made.set_lr_factor(factor(case, step))
        if case is EIGHT:
            by_hand.param_groups[0]["lr"].fill_(case["lr"] * factor(case, step))
        made.step()
        with torch.compiler.set_stance("force_eager"):
            by_hand.step()
        assert all(torch.equal(mine[name], other[name]) for name in SHAPES), step
        if step % EVAL_EVERY == EVAL_EVERY - 1:
            before = {name: item.clone() for name, item in mine.items()}
            assert made.switch(trains=False) is (case is FREE)
            if case is FREE:
                by_hand.eval()
            assert all(torch.equal(mine[name], other[name]) for name in SHAPES), step
            assert torch.equal(mine["large.weight"], before["large.weight"]) is (case is EIGHT)
        if step == 2 * EVAL_EVERY - 1:
            state: dict[str, dict[str, Any]] = {}
            for name, entry, value in made.state():
                state.setdefault(name, {})[entry] = value.clone() if isinstance(value, torch.Tensor) else value
            mine = {name: nn.Parameter(item.detach().clone()) for name, item in mine.items()}
            made = ours(case, mine)
            made.switch(trains=False)
            made.load(state)


def test_state_of_8_bits_has_a_quarter_of_the_bytes() -> None:
    need(EIGHT)
    named = parameters()
    made = ours(EIGHT, named)
    set_gradients(named, 0)
    made.step()
    found = {(name, entry): value for name, entry, value in made.state() if entry != "step"}
    assert found["large.weight", "exp_avg.codes"].dtype == torch.uint8
    assert found["large.weight", "exp_avg.scale"].shape == (20,)
    assert found["small.weight", "exp_avg"].dtype == torch.float32
    component = OPTIMIZERS.read(EIGHT)
    for name, shape in SHAPES.items():
        held = sum(value.nbytes for (each, _), value in found.items() if each == name)
        assert held == 4 * component.num_state_elements(shape)


RECIPE = """
language: 1
name: digits
data:
  source: {type: csv, path: DIGITS}
  fields: {pixels: {columns: "p*", dtype: float32, scale: 0.0625}, digit: {column: label, dtype: int64}}
  split: {validation: 0.2}
model:
  graph:
    hidden: {type: linear, out_features: 64, input: pixels}
    act:    {type: relu}
    logits: {type: linear, out_features: 10}
objective: {loss: {type: cross_entropy, input: logits, target: digit}}
training: {steps: 6, global_batch_size: 32, optimizer: {type: adam, lr: 1e-2}}
evaluation: {every: 3 steps}
checkpoint: {every: 3 steps, keep: 2}
layout: {device: cpu}
"""


def load(folder: Path, case: dict[str, Any], **changed: Any) -> Any:
    path = folder / "digits.yaml"
    data = Path(__file__).parents[3] / "recipes" / "data" / "digits.csv"
    path.write_text(RECIPE.replace("DIGITS", str(data)))
    settings = {key.replace("__", "."): value for key, value in changed.items()}
    return dt.load(path, set={"training.optimizer": case, "logging.dir": str(folder / "runs"), **settings})


def losses(run: Any) -> list[float]:
    return list(run.metrics["validation/loss"].dropna())


@pytest.mark.parametrize("case", [FREE, pytest.param(EIGHT, marks=pytest.mark.long)], ids=["schedule free", "8 bits"])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, case: dict[str, Any]) -> None:
    """The checkpoint has the weights that were evaluated."""
    need(case)
    whole = load(tmp_path, case).run(quiet=True)
    half = load(tmp_path, case, training__steps=3).run(quiet=True)
    resumed = load(tmp_path, case).run(quiet=True, resume=half.folder)
    for name, value in whole.module().named_parameters():
        assert torch.equal(value, resumed.module().get_parameter(name)), name
    assert losses(whole)[-1] == pytest.approx(whole.evaluate().values["validation/loss"], rel=1e-6)


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", ["ddp", "fsdp", "pipeline"])
def test_the_average_is_the_same_in_every_mode(tmp_path: Path, mode: str) -> None:
    need(FREE)
    how = {"pipeline": {"stages": 2, "microbatches": 2}} if mode == "pipeline" else mode
    alone = load(tmp_path, FREE, training__precision="fp64").run(quiet=True)
    spread = load(tmp_path, FREE, training__precision="fp64", parallelism=how, layout__gpus=2).run(quiet=True)
    for name, value in alone.module().named_parameters():
        torch.testing.assert_close(spread.module().get_parameter(name), value, rtol=1e-10, atol=1e-10)
    assert losses(spread) == pytest.approx(losses(alone), rel=1e-10)


REFUSED = [
    ({"training__ema": {"decay": 0.9}}, "`adamw_schedule_free` already evaluates an average"),
    ({"training__lr_schedule": {"type": "cosine"}}, "instead of lowering the learning rate"),
    ({"model__graph__act": {"type": "batch_norm"}}, "for which batch norm has no statistics"),
]


@pytest.mark.parametrize(("changed", "message"), REFUSED)
def test_what_an_average_does_not_go_with_is_named(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    need(FREE)
    found = [each for each in load(tmp_path, FREE, **changed).lint() if each.code == "O020"]
    assert [message in each.message for each in found] == [True]


def test_shards_and_parts_of_8_bits_are_refused(tmp_path: Path) -> None:
    for how, code in (("fsdp", "P013"), ({"tensor": 2}, "P024")):
        assert code in {each.code for each in load(tmp_path, EIGHT, parallelism=how, layout__gpus=2).lint()}


@pytest.mark.parametrize("case", [FREE, EIGHT], ids=["schedulefree", "torchao"])
def test_a_missing_package_is_one_diagnostic(
    tmp_path: Path, case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    package = PACKAGES[case["type"]]
    monkeypatch.setattr(
        "declarative_train.core.machine.find_spec", lambda name: None if name == package else find(name)
    )
    (only,) = load(tmp_path, case).lint()
    assert (only.code, only.message) == (
        "U103",
        f"`{case['type']}` needs the package {package}, which is not installed",
    )
    assert f"declarative_train[{package}]" in str(only.help)
