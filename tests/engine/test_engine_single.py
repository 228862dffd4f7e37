"""One process does what the usual loop does, and no more than that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.engine import Engine, StepResult
from declarative_train.engine.step.optimizers import build_optimizers
from declarative_train.graph.build import build
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.initialise import initialise
from declarative_train.plan.plan import ObjectivePlan, Plan, TermPlan
from tests.engine.plans import CLASSES, FEATURES, layer, made_batch, made_data, make_plan, mlp, parameters_of
from tests.started import finish, start

CPU = torch.device("cpu")


def run(engine: Engine, plan: Plan, num_steps: int, chunks: int = 1, measure: bool = False) -> list[StepResult]:
    data = made_data(1000)
    size = plan.batch.global_batch_size // chunks
    results = []
    for step in range(1, num_steps + 1):
        first = (step - 1) * plan.batch.global_batch_size
        batches = [made_batch(data, slice(first + i * size, first + (i + 1) * size)) for i in range(chunks)]
        num_rows = sum(batch.num_rows for batch in batches)
        results.append(engine.step(step, batches, num_rows=num_rows, lr_factor=1.0, measure=measure))
    return results


def by_hand(plan: Plan, num_steps: int, *, max_norm: float | None = None) -> tuple[torch.nn.Module, list[float]]:
    module = build(plan.graph)
    initialise(module, plan.graph, plan.parameters, plan.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    data, losses = made_data(1000), []
    for step in range(num_steps):
        rows = slice(step * 100, step * 100 + 100)
        optimizer.zero_grad()
        (logits,) = module(data["x"][rows])
        loss = F.cross_entropy(logits, data["y"][rows])
        loss.backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)
        optimizer.step()
        losses.append(loss.item())
    return module, losses


def assert_same(engine: Engine, module: torch.nn.Module) -> None:
    wanted = dict(module.named_parameters())
    found = dict(engine.model.named_parameters())
    assert found.keys() == wanted.keys()
    for name, parameter in found.items():
        torch.testing.assert_close(parameter, wanted[name], rtol=1e-5, atol=1e-7)


def loss_of(result: StepResult) -> float:
    return sum(float(sums[0]) for sums in result.sums) / float(result.counts[0])


@pytest.mark.parametrize("chunks", [1, 4])
def test_steps_equal_the_usual_loop(chunks: int) -> None:
    plan = make_plan()
    engine = Engine(plan, CPU)
    results = run(engine, plan, 5, chunks)
    module, losses = by_hand(plan, 5)
    assert_same(engine, module)
    assert [loss_of(result) for result in results] == pytest.approx(losses, rel=1e-5)


def test_clipping_is_torchs_and_the_norm_is_before_it() -> None:
    plan = make_plan(clip_grad_norm=0.05)
    engine = Engine(plan, CPU)
    results = run(engine, plan, 4)
    module, _ = by_hand(plan, 4, max_norm=0.05)
    assert_same(engine, module)
    assert all(result.grad_norm is not None and result.grad_norm > 0.05 for result in results)


def test_a_norm_is_only_computed_when_asked_for() -> None:
    plan = make_plan()
    engine = Engine(plan, CPU)
    assert run(engine, plan, 1)[0].grad_norm is None
    (result,) = run(engine, plan, 1, measure=True)
    assert result.grad_norm is not None
    assert result.grad_norm > 0


def test_fp64_computes_in_float64() -> None:
    plan = make_plan(precision="fp64")
    engine = Engine(plan, CPU)
    (result,) = run(engine, plan, 1)
    assert result.sums[0][0].dtype == torch.float64
    assert {item.dtype for item in engine.model.parameters()} == {torch.float64}


def test_bf16_keeps_parameters_and_gradients_in_float32() -> None:
    plan = make_plan(precision="bf16")
    engine = Engine(plan, CPU)
    results = run(engine, plan, 5)
    assert {item.dtype for item in engine.model.parameters()} == {torch.float32}
    assert {item.grad.dtype for item in engine.model.parameters() if item.grad is not None} == {torch.float32}
    _, losses = by_hand(plan, 5)
    found = [loss_of(result) for result in results]
    assert found == pytest.approx(losses, rel=2e-2)
    assert found != pytest.approx(losses, rel=1e-6)  # it did compute in bf16


def test_fp16_scales_the_loss_and_steps_by_unscaled_gradients() -> None:
    plan = make_plan(precision="fp16")
    engine = Engine(plan, CPU)
    results = run(engine, plan, 5, measure=True)
    reference = Engine(make_plan(), CPU)
    wanted = run(reference, plan, 5, measure=True)
    assert [loss_of(result) for result in results] == pytest.approx([loss_of(item) for item in wanted], rel=2e-2)
    assert [float(r.grad_norm) for r in results] == pytest.approx([float(r.grad_norm) for r in wanted], rel=5e-2)  # type: ignore[arg-type]


def test_fp16_clips_what_was_unscaled() -> None:
    """Under plain SGD, which moves by what the gradients are: Adam would not see a scale that was left in."""
    plan = make_plan(precision="fp16", clip_grad_norm=0.05)
    engine = Engine(plan, CPU)
    run(engine, plan, 5)
    reference, _ = by_hand(make_plan(), 5, max_norm=0.05)
    start, _ = by_hand(make_plan(), 0)
    for found, wanted, before in zip(
        engine.model.parameters(), reference.parameters(), start.parameters(), strict=True
    ):
        torch.testing.assert_close(found - before, wanted - before, rtol=5e-2, atol=1e-4)


def test_fp16_halves_its_scale_after_an_overflow_and_leaves_the_step_out() -> None:
    plan = make_plan(precision="fp16")
    engine = Engine(plan, CPU)
    assert engine.loss_scale is not None
    engine.loss_scale.factor.fill_(2.0**40)
    before = [item.clone() for item in engine.model.parameters()]
    (result,) = run(engine, plan, 1)
    assert result.finite is not None
    assert not bool(result.finite)
    assert engine.loss_scale.factor == 2.0**39
    for old, new in zip(before, engine.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_skip_leaves_out_a_step_that_is_not_finite() -> None:
    plan = make_plan(non_finite="skip", optimizer={"type": "adam", "lr": 1e-2})
    engine = Engine(plan, CPU)
    run(engine, plan, 2)
    before = [item.clone() for item in engine.model.parameters()]
    data = made_data(100)
    data["x"][7, 3] = float("nan")
    result = engine.step(3, [made_batch(data, slice(0, 100))], num_rows=100, lr_factor=1.0, measure=False)
    assert result.finite is not None
    assert not bool(result.finite)
    for old, new in zip(before, engine.model.parameters(), strict=True):
        assert torch.equal(old, new)
    good = engine.step(4, [made_batch(made_data(100), slice(0, 100))], num_rows=100, lr_factor=1.0, measure=False)
    assert bool(good.finite)


def test_ignored_targets_divide_by_the_valid_ones() -> None:
    plan = make_plan(
        objective=ObjectivePlan(
            (TermPlan("cross_entropy", {"type": "cross_entropy", "ignore_index": 3}, "logits", "y", None, 1.0),), ()
        )
    )
    engine = Engine(plan, CPU)
    (result,) = run(engine, plan, 1, chunks=2)
    y = made_data(1000)["y"][:100]
    assert float(result.counts[0]) == int((y != 3).sum())
    module, _ = by_hand(plan, 0)
    data = made_data(1000)
    wanted = F.cross_entropy(module(data["x"][:100])[0], y, ignore_index=3)
    assert loss_of(result) == pytest.approx(wanted.item(), rel=1e-5)


def test_a_batch_without_a_valid_item_gives_no_gradient_and_no_nan() -> None:
    term = TermPlan("cross_entropy", {"type": "cross_entropy", "ignore_index": 3}, "logits", "y", None, 1.0)
    plan = make_plan(objective=ObjectivePlan((term,), ()))
    engine = Engine(plan, CPU)
    data = made_data(10)
    data["y"][:] = 3
    before = [item.clone() for item in engine.model.parameters()]
    engine.step(1, [made_batch(data, slice(0, 10))], num_rows=10, lr_factor=1.0, measure=False)
    for old, new in zip(before, engine.model.parameters(), strict=True):
        assert torch.equal(old, new)


def test_frozen_parameters_stay_and_behave_as_in_evaluation() -> None:
    graph = Graph(
        {"x": TensorSpec((FEATURES,))},
        (
            Node(
                "body",
                "block",
                {"x": "x"},
                {"output": TensorSpec((16,))},
                block="body",
                graph=Graph(
                    {"x": TensorSpec((FEATURES,))},
                    (
                        layer("down", "x", TensorSpec((16,)), type="linear", out_features=16),
                        layer("drop", "down:output", TensorSpec((16,)), type="dropout", p=0.5),
                    ),
                    {"output": "drop:output"},
                ),
            ),
            layer("logits", "body:output", TensorSpec((CLASSES,)), type="linear", out_features=CLASSES),
        ),
        {"logits": "logits:output"},
    )
    plan = make_plan(graph=graph)
    frozen = tuple(replace(item, frozen=item.name.startswith("body.")) for item in parameters_of(graph))
    engine = Engine(replace(plan, parameters=frozen), CPU)
    before = {name: item.clone() for name, item in engine.model.named_parameters()}
    for training in (True, False, True):
        engine.set_training(training)
        assert engine.model.get_submodule("body.drop").training is False
        assert engine.model.get_submodule("logits").training is training
    run(engine, plan, 2)
    for name, item in engine.model.named_parameters():
        assert torch.equal(item, before[name]) == name.startswith("body.")


def random_graph() -> Graph:
    return Graph(
        {"x": TensorSpec((FEATURES,))},
        (
            layer("drop", "x", TensorSpec((FEATURES,)), type="dropout", p=0.5),
            layer("logits", "drop:output", TensorSpec((CLASSES,)), type="linear", out_features=CLASSES),
        ),
        {"logits": "logits:output"},
    )


def test_draws_depend_on_the_step_and_not_on_what_was_drawn_before() -> None:
    plan = make_plan(graph=random_graph())
    first, second = Engine(plan, CPU), Engine(plan, CPU)
    run(first, plan, 3)
    torch.manual_seed(99)
    torch.rand(17)
    run(second, plan, 3)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    batch = [made_batch(made_data(100), slice(0, 100))]
    one = first.step(4, batch, num_rows=100, lr_factor=0.0, measure=False)
    other = first.step(5, batch, num_rows=100, lr_factor=0.0, measure=False)
    assert loss_of(one) != loss_of(other)


@pytest.mark.parametrize("which", ["selective", "blocks", "all"])
def test_activation_checkpointing_changes_no_number(which: str) -> None:
    plain = make_plan(graph=random_graph())
    with_units = replace(plain, layout=replace(plain.layout, units=("drop", "logits")))
    saving = replace(with_units, training=replace(plain.training, activation_checkpointing=which))  # type: ignore[arg-type]
    one, other = Engine(plain, CPU), Engine(saving, CPU)
    run(one, plain, 3)
    run(other, saving, 3)
    for left, right in zip(one.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_units_are_compiled_and_checkpointed_at_once() -> None:
    """In a process of its own, as torch keeps the threads of its compiler. What reads across the batch is not compiled
    where it is computed again: it must know the rows of its own forward."""
    code = """
from dataclasses import replace
import torch
from declarative_train.core.tensor_spec import TensorSpec
from tests.engine.plans import HIDDEN
from tests.engine.test_engine_single import *
compiled, compile = [], torch.nn.Module.compile
def by_eager(self, **how):
    compiled.append(self)
    return compile(self, backend="aot_eager", **how)
torch.nn.Module.compile = by_eager
norm = layer("norm", "act:output", TensorSpec((HIDDEN,)), type="batch_norm", over="50 samples")
whole = mlp()
hidden, act, logits = whole.nodes
graph = replace(whole, nodes=(hidden, act, norm, replace(logits, inputs={"x": "norm:output"})))
plain = make_plan(graph=graph)
units = replace(plain.layout, units=("hidden", "norm", "logits"))
both = replace(plain, layout=units, training=replace(plain.training, activation_checkpointing="blocks", compile=True))
one, other = Engine(plain, CPU), Engine(both, CPU)
for engine, plan in ((one, plain), (other, both)):
    run(engine, plan, 3)
for left, right in zip(one.model.state_dict().values(), other.model.state_dict().values(), strict=True):
    torch.testing.assert_close(left, right)
assert len(compiled) == 3, compiled  # hidden, act, logits
"""
    ended, _, errors = finish(start("tests.code", code), 100)
    assert ended == 0, errors


def test_groups_and_several_optimizers() -> None:
    graph = mlp()
    settings: dict[str, dict[str, Any]] = {
        "hidden.weight": {"optimizer": {"type": "adamw", "lr": 1e-3, "weight_decay": 0.1}},
        "logits.weight": {"lr_scale": 0.5, "weight_decay": 0.01},
    }
    plan = make_plan(graph=graph)
    plan = replace(
        plan, parameters=tuple(replace(item, **settings.get(item.name, {})) for item in parameters_of(graph))
    )
    engine = Engine(plan, CPU)
    assert engine.optimizer.lr() == pytest.approx({"sgd": 0.1, "sgd_scale_0.5_decay_0.01": 0.05, "adamw": 1e-3})
    engine.step(1, [made_batch(made_data(100), slice(0, 100))], num_rows=100, lr_factor=0.5, measure=False)
    assert engine.optimizer.lr() == pytest.approx({"sgd": 0.05, "sgd_scale_0.5_decay_0.01": 0.025, "adamw": 5e-4})

    module = build(graph)
    initialise(module, graph, plan.parameters, plan.seed)
    named = dict(module.named_parameters())
    rules = [
        torch.optim.AdamW([named["hidden.weight"]], lr=5e-4, weight_decay=0.1),
        torch.optim.SGD([named["hidden.bias"], named["logits.bias"]], lr=0.05),
        torch.optim.SGD([named["logits.weight"]], lr=0.025, weight_decay=0.01),
    ]
    data = made_data(100)
    F.cross_entropy(module(data["x"])[0], data["y"]).backward()
    for rule in rules:
        rule.step()
    assert_same(engine, module)


def test_every_group_has_its_lr_in_the_logs_from_the_first_step_to_the_last() -> None:
    """Two optimizers of one type, and a factor of 0, in which all are equal."""
    graph = mlp()
    settings: dict[str, dict[str, Any]] = {
        "logits.weight": {"optimizer": {"type": "sgd", "lr": 0.02}},
        "logits.bias": {"optimizer": {"type": "sgd", "lr": 0.03}},
    }
    parameters = tuple(replace(item, **settings.get(item.name, {})) for item in parameters_of(graph))
    engine = Engine(replace(make_plan(graph=graph), parameters=parameters), CPU)
    assert engine.optimizer.lr() == pytest.approx({"sgd": 0.1, "sgd_2": 0.02, "sgd_3": 0.03})
    engine.step(1, [made_batch(made_data(100), slice(0, 100))], num_rows=100, lr_factor=0.0, measure=False)
    assert engine.optimizer.lr() == {"sgd": 0, "sgd_2": 0, "sgd_3": 0}
    assert Engine(make_plan(graph=graph), CPU).optimizer.lr() == {"lr": 0.1}


def test_a_stage_logs_the_lr_of_the_other_stages_too() -> None:
    plan = make_plan()
    own = {"type": "adamw", "lr": 1e-3}
    parameters = tuple(
        replace(item, optimizer=own) if item.name.startswith("logits") else item for item in plan.parameters
    )
    named = {name: item for name, item in build(plan.graph).named_parameters() if name.startswith("hidden")}
    optimizer = build_optimizers(parameters, plan.training.optimizer, named)
    assert set(optimizer.parameters) == set(named)
    optimizer.set_lr_factor(0.5)
    assert optimizer.lr() == pytest.approx({"sgd": 0.05, "adamw": 5e-4})
