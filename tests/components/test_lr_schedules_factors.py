"""Schedules against torch's own schedulers where they are the same, and against closed forms."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import pytest
import torch
from pydantic import ValidationError
from torch.optim import lr_scheduler

from declarative_train.components.component import LrSchedule
from declarative_train.components.field_docs import field_docs
from declarative_train.components.lr_schedules import LR_SCHEDULES
from declarative_train.core.duration import Duration, parse_duration

STEPS = 40


def to_steps(duration: Duration) -> int:
    return duration.steps(steps_per_epoch=10, global_batch_size=4, num_steps=STEPS, tokens_per_sample=2)


def schedule(**fields: object) -> LrSchedule:
    return LR_SCHEDULES[str(fields["type"])].model_validate(fields).resolve(to_steps)


def factors(found: LrSchedule, warmup: int = 0, steps: int = STEPS) -> list[float]:
    return [found.factor(step, steps, warmup) for step in range(steps)]


def torch_factors(make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], steps: int = STEPS) -> list[float]:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=1.0)
    scheduler = make(optimizer)
    found = []
    for _ in range(steps):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls step(epoch), which torch itself deprecates
            scheduler.step()
    return found


def after_warmup(
    make: Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler], warmup: int
) -> Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]:
    def both(optimizer: torch.optim.Optimizer) -> lr_scheduler.LRScheduler:
        rise = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), total_iters=warmup)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return lr_scheduler.SequentialLR(optimizer, [rise, make(optimizer)], milestones=[warmup])

    return both


@pytest.mark.parametrize("warmup", [0, 1, 7])
@pytest.mark.parametrize(
    ("fields", "make"),
    [
        ({"type": "constant"}, lambda rest: lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
        (
            {"type": "linear", "min_factor": 0.1},
            lambda rest: lambda o: lr_scheduler.LinearLR(o, 1.0, 0.1, total_iters=rest),
        ),
        (
            {"type": "cosine", "min_factor": 0.2},
            lambda rest: lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=rest, eta_min=0.2),
        ),
        (
            {"type": "polynomial", "power": 1.7},
            lambda rest: lambda o: lr_scheduler.PolynomialLR(o, total_iters=rest, power=1.7),
        ),
        (
            {"type": "exponential", "gamma": 0.9, "every": "1 step"},
            lambda rest: lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
        ),
    ],
)
def test_equals_torch_after_a_linear_warmup(
    fields: dict[str, object], make: Callable[..., object], warmup: int
) -> None:
    torch_schedule = make(STEPS - warmup)
    wanted = torch_factors(after_warmup(torch_schedule, warmup) if warmup else torch_schedule)  # type: ignore[arg-type]
    assert factors(schedule(**fields), warmup) == pytest.approx(wanted, abs=1e-12)


def test_step_equals_torch() -> None:
    wanted = torch_factors(lambda o: lr_scheduler.StepLR(o, step_size=10, gamma=0.5))
    assert factors(schedule(type="step", every="1 epoch", gamma=0.5)) == pytest.approx(wanted, abs=1e-12)
    wanted = torch_factors(lambda o: lr_scheduler.MultiStepLR(o, milestones=[10, 25], gamma=0.1))
    assert factors(schedule(type="step", milestones=("1 epoch", "25 steps"))) == pytest.approx(wanted, abs=1e-12)


def test_step_counts_from_the_start_of_the_run() -> None:
    found = factors(schedule(type="step", every="10 steps", gamma=0.5), warmup=4)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[9:11] == [1.0, 0.5]


@pytest.mark.parametrize(("shape", "anneal"), [("cosine", "cos"), ("linear", "linear")])
@pytest.mark.parametrize("warmup", [0, 10])
def test_one_cycle_equals_torch(shape: str, anneal: str, warmup: int) -> None:
    part = (warmup or 12) / STEPS
    wanted = torch_factors(
        lambda o: lr_scheduler.OneCycleLR(
            o, max_lr=1.0, total_steps=STEPS, pct_start=part, anneal_strategy=anneal, cycle_momentum=False
        ),
        STEPS - 1,
    )
    found = factors(schedule(type="one_cycle", shape=shape), warmup)
    assert found[:-1] == pytest.approx(wanted, abs=1e-12)
    assert found[-1] == pytest.approx(4e-6)


def test_inverse_sqrt_is_the_transformer_schedule() -> None:
    def noam(step: int, warmup: int) -> float:  # section 5.3, steps from 1
        return min(step**-0.5, step * warmup**-1.5)

    found = factors(schedule(type="inverse_sqrt"), warmup=7)
    assert found == pytest.approx([noam(s + 1, 8) / noam(8, 8) for s in range(STEPS)])
    assert factors(schedule(type="inverse_sqrt"))[3] == 0.5


@pytest.mark.parametrize("shape", ["linear", "cosine", "sqrt"])
def test_wsd_is_stable_and_then_decays(shape: str) -> None:
    found = factors(schedule(type="wsd", decay="25%", shape=shape, min_factor=0.1), warmup=3)
    assert found[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert found[3:31] == [1.0] * 28
    half = {"linear": 0.5, "cosine": 0.5, "sqrt": 1 - sqrt(0.5)}[shape]
    assert found[35] == pytest.approx(0.1 + 0.9 * half)
    assert all(a > b for a, b in pairwise(found[31:]))


@pytest.mark.parametrize("name", sorted(LR_SCHEDULES))
@pytest.mark.parametrize("warmup", [0, 5, 40])
def test_every_schedule_stays_between_0_and_1_and_warms_up(name: str, warmup: int) -> None:
    found = schedule(**{"type": name, **({"every": "1 epoch"} if name == "step" else {})})
    values = factors(found, warmup)
    assert all(0 <= value <= 1 for value in values)
    if warmup < STEPS:  # a warm-up as long as the run is also cut by what the schedule itself does
        assert all(a < b for a, b in pairwise(values[:warmup]))
        assert max(values) > 0.9
    assert 0 <= found.factor(STEPS + 5, STEPS, warmup) <= 1  # past the end: nothing breaks


@pytest.mark.parametrize("name", sorted(LR_SCHEDULES))
def test_a_run_of_one_step(name: str) -> None:
    found = schedule(**{"type": name, **({"every": "1 epoch"} if name == "step" else {})})
    assert 0 <= found.factor(0, 1, 0) <= 1


def test_durations_become_steps_and_survive_json() -> None:
    found = schedule(type="step", milestones=("1 epoch", "50%"), gamma=0.5)
    assert found.model_dump() == {
        "type": "step",
        "gamma": 0.5,
        "every": None,
        "milestones": ("10 steps", "20 steps"),
    }
    again = LR_SCHEDULES["step"].model_validate(found.model_dump())
    assert again == found
    assert again.resolve(to_steps) == found


def test_a_schedule_without_durations_resolves_to_itself() -> None:
    found = LR_SCHEDULES["cosine"]()
    assert found.resolve(to_steps) is found


def test_an_unresolved_schedule_says_so() -> None:
    with pytest.raises(ValueError, match="`1 epoch` is not in steps"):
        LR_SCHEDULES["exponential"]().factor(0, 10, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "step"}, "needs either `every`"),
        ({"type": "step", "every": "1 epoch", "milestones": ("1 epoch",)}, "not both"),
        ({"type": "step", "every": "30"}, "is not a duration"),
        ({"type": "step", "every": 30}, "30"),
        ({"type": "step", "every": "2 minutes"}, "`2 minutes` is in minutes; this takes steps, epochs"),
        ({"type": "step", "every": "0 steps"}, "`0 steps` is zero"),
        ({"type": "cosine", "min_factor": 2.0}, "less than or equal to 1"),
        ({"type": "wsd", "decay": "0.2"}, "is not a duration"),
    ],
)
def test_wrong_fields_say_what_is_wanted(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LR_SCHEDULES[str(fields["type"])].model_validate(fields)


def test_a_bare_number_is_the_same_mistake_as_elsewhere() -> None:
    with pytest.raises(ValidationError) as found:
        LR_SCHEDULES["step"].model_validate({"type": "step", "every": 30})
    assert found.value.errors()[0]["type"] == "bare_duration"
    schema = LR_SCHEDULES["step"].model_json_schema()["properties"]
    assert "pattern" in schema["every"]["anyOf"][0]


def test_a_duration_is_kept_in_one_spelling() -> None:
    found = LR_SCHEDULES["step"].model_validate({"type": "step", "every": "30epochs"})
    assert found.model_dump()["every"] == str(parse_duration("30 epochs"))
    for text in ("1234567 steps", "0.0123456789 epochs", "2.5%", "1 step"):
        found = LR_SCHEDULES["step"].model_validate({"type": "step", "every": text})
        assert found.model_dump()["every"] == text  # to the last digit


@pytest.mark.parametrize("name", sorted(LR_SCHEDULES))
def test_every_schedule_is_documented_and_named_by_the_rule(name: str) -> None:
    found = LR_SCHEDULES[name]
    assert found.model_fields["type"].default == name
    assert found.__name__.removesuffix("Lr") == "".join(word.capitalize() for word in name.split("_"))
    assert len(inspect.getdoc(found) or "") > 20
    undocumented = [key for key in found.model_fields if key != "type" and key not in field_docs(found)]
    assert not undocumented
    assert "warmup" not in found.model_fields  # read by the recipe section
    assert found.model_json_schema()["additionalProperties"] is False
