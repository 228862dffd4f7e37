"""Every update rule; functional forms beside torch's own objects: same bits over 20 steps, states that go both ways."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from declarative_train.components.component import Optimizer
from declarative_train.components.field_docs import field_docs
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.planner.footprint.child import in_child

CASES: list[dict[str, object]] = [
    {"type": "sgd", "lr": 0.1},
    {"type": "sgd", "lr": 0.1, "weight_decay": 0.01},
    {"type": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.1},
    {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"type": "adam", "lr": 0.01},
    {"type": "adam", "lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-6},
    {"type": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"type": "adamw", "lr": 0.01, "amsgrad": True},
]
ids = [str(case).removeprefix("{'type': ").removesuffix("}") for case in CASES]


def optimizer(**fields: object) -> Optimizer:
    return OPTIMIZERS[str(fields["type"])].model_validate(fields)


def parameters(matrices: bool, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    shapes = [(4, 3), (5, 4), (2, 5)] if matrices else [(4, 3), (4,), (2, 3, 4), ()]
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=dtype)) for shape in shapes]


def groups(params: list[nn.Parameter]) -> list[dict[str, object]]:
    """Two of them, the second with its own lr and, as the runtime makes them, the first without a weight decay."""
    return [{"params": params[:2], "lr": 0.02}, {"params": params[2:], "lr": 0.005, "weight_decay": 0.0}]


def pair(fields: dict[str, object], dtype: torch.dtype = torch.float32) -> tuple[torch.optim.Optimizer, ...]:
    found = []
    for build in ("build", "build_functional"):
        made = getattr(optimizer(**fields), build)(groups(parameters(False, dtype)))
        assert made is not None
        found.append(made)
    return tuple(found)


def tensors(made: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [parameter for group in made.param_groups for parameter in group["params"]]


def run(made: torch.optim.Optimizer, steps: range, without: int | None = None) -> None:
    """Gradients depend on the step alone; `without`: that parameter has none in every third step."""
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for number, parameter in enumerate(tensors(made)):
            grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.grad = None if number == without and step % 3 == 1 else grad
        for group in made.param_groups:
            group["lr"] = group["lr"] * 0.97  # as the loop does, by a schedule
        made.step()


def same_tensors(first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
    for one, other in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(one, other)


def state_of(made: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """Of every parameter, as a checkpoint holds it: copies."""
    return [
        {name: value.clone() for name, value in made.state.get(parameter, {}).items()} for parameter in tensors(made)
    ]


def put(state: list[dict[str, Tensor]], made: torch.optim.Optimizer) -> None:
    """As the runtime restores checkpoints."""
    for parameter, entries in zip(tensors(made), state, strict=True):
        if entries:
            made.state[parameter] = {name: value.clone() for name, value in entries.items()}


def same_state(first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
    one, other = (
        [{**group, "params": len(group["params"])} for group in each.param_groups] for each in (first, second)
    )
    assert one == other
    for number, (state, twin) in enumerate(zip(state_of(first), state_of(second), strict=True)):
        assert set(state) == set(twin)
        for name, value in state.items():
            assert value.dtype == twin[name].dtype
            assert value.shape == twin[name].shape
            assert torch.equal(value, twin[name]), (number, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_20_steps_are_the_same_bits(fields: dict[str, object], dtype: torch.dtype) -> None:
    torchs, ours = pair(fields, dtype)
    assert isinstance(ours, torch.optim.Optimizer)
    same_state(torchs, ours)  # before the first step too
    before = [parameter.detach().clone() for parameter in tensors(ours)]
    run(torchs, range(20))
    run(ours, range(20))
    assert not any(torch.equal(one, other) for one, other in zip(before, tensors(ours), strict=True))
    same_tensors(torchs, ours)
    same_state(torchs, ours)


@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_a_parameter_without_gradient_keeps_its_steps(fields: dict[str, object]) -> None:
    torchs, ours = pair(fields)
    if fields["type"] == "sgd" and "momentum" in fields:
        run(torchs, range(1))  # torch's fused sgd wants all momenta to start at once
        run(ours, range(1))
    run(torchs, range(1, 9), without=1)
    run(ours, range(1, 9), without=1)
    same_tensors(torchs, ours)
    same_state(torchs, ours)


@pytest.mark.parametrize("without", [None, 1], ids=["all", "one_without_gradient"])
@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_of_shared_out_parameters_a_rank_updates_its_rows(fields: dict[str, object], without: int | None) -> None:
    in_child(lambda: as_second_of_two(fields, without))  # torch remembers groups, which ranks are forked with


def as_second_of_two(fields: dict[str, object], without: int | None) -> None:
    """The second of two ranks has 3 of 7 rows, 1 of 3, and none of 1."""
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (2,))
    rows, whole = (3, 1, 0), ((7, 4), (3,), (1, 5))

    def shared_out(local: Tensor, shape: tuple[int, ...]) -> DTensor:
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size(shape), stride=strides)

    starts = [torch.randn(number, *shape[1:]) for number, shape in zip(rows, whole, strict=True)]
    plain = [nn.Parameter(start.clone()) for start in starts]
    sharded = [nn.Parameter(shared_out(start.clone(), shape)) for start, shape in zip(starts, whole, strict=True)]
    made = [optimizer(**fields).build_functional(groups(each)) for each in (plain, sharded)]
    for step in range(6):
        for number, (one, two, shape) in enumerate(zip(plain, sharded, whole, strict=True)):
            grad = torch.randn_like(one)
            is_left_out = number == without and step % 3 == 1
            one.grad, two.grad = (None, None) if is_left_out else (grad, shared_out(grad.clone(), shape))
        for each in made:
            assert each is not None
            each.step()
    for one, two, start in zip(plain, sharded, starts, strict=True):
        assert isinstance(two, DTensor)
        assert torch.equal(one, two.to_local())
        assert not len(start) or not torch.equal(one, start)
        state, twin = (each.state[item] for each, item in zip(made, (one, two), strict=True))  # type: ignore[union-attr]
        assert set(state) == set(twin)
        for name in set(state) - {"step"}:
            assert twin[name].shape == two.shape  # of the whole: checkpoints share it out again
            assert torch.equal(state[name], twin[name].to_local())


@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_states_go_both_ways(fields: dict[str, object]) -> None:
    torchs, ours = pair(fields)
    run(torchs, range(7))
    run(ours, range(7))
    to_ours, to_torchs = pair(fields)[1], pair(fields)[0]
    for made, source in ((to_ours, torchs), (to_torchs, ours)):
        with torch.no_grad():
            for parameter, other in zip(tensors(made), tensors(source), strict=True):
                parameter.copy_(other)
        put(state_of(source), made)
        for group, other_group in zip(made.param_groups, source.param_groups, strict=True):
            group["lr"] = other_group["lr"]
    for made in (torchs, to_ours, to_torchs):
        run(made, range(7, 14))
    same_tensors(torchs, to_ours)
    same_tensors(torchs, to_torchs)
    same_state(torchs, to_ours)
    same_state(torchs, to_torchs)


@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_a_state_put_in_place_is_seen(fields: dict[str, object]) -> None:
    """The lists that were gathered before are not used again."""
    source, restored = pair(fields)[1], pair(fields)[1]
    run(source, range(4))
    run(restored, range(9, 11))
    with torch.no_grad():
        for parameter, other in zip(tensors(restored), tensors(source), strict=True):
            parameter.copy_(other)
    put(state_of(source), restored)
    for group, other_group in zip(restored.param_groups, source.param_groups, strict=True):
        group["lr"] = other_group["lr"]
    run(source, range(4, 8))
    run(restored, range(4, 8))
    same_tensors(source, restored)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_that_found_infinity_changes_nothing(kind: str) -> None:
    torchs, ours = pair({"type": kind, "lr": 0.1, **({"momentum": 0.9} if kind == "sgd" else {})})
    assert ours._step_supports_amp_scaling  # type: ignore[attr-defined]
    for made in (torchs, ours):
        run(made, range(3))
        made.found_inf, made.grad_scale = torch.ones(()), None  # type: ignore[attr-defined]
    before = state_of(ours), [parameter.detach().clone() for parameter in tensors(ours)]
    run(ours, range(3, 4))
    for state, other in zip(state_of(ours), before[0], strict=True):
        assert set(state) == set(other)
        assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert all(torch.equal(one, other) for one, other in zip(before[1], tensors(ours), strict=True))
    run(torchs, range(3, 4))
    for made in (torchs, ours):
        made.found_inf = torch.zeros(())  # type: ignore[attr-defined]
        for group in made.param_groups:
            group["lr"] = 0.1
        run(made, range(4, 6))
    same_tensors(torchs, ours)


def test_mixed_dtypes_in_one_group() -> None:
    def made(build: str) -> torch.optim.Optimizer:
        params = [nn.Parameter(torch.ones(3, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float32)]
        found: torch.optim.Optimizer = getattr(optimizer(type="adamw", lr=0.1), build)([{"params": params}])
        return found

    torchs, ours = made("build"), made("build_functional")
    run(torchs, range(5))
    run(ours, range(5))
    same_tensors(torchs, ours)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw", "adagrad"])
def test_where_no_kernel_is_fused_torchs_own_object_takes_over(kind: str) -> None:
    meta = [{"params": [nn.Parameter(torch.zeros(2, device="meta"))]}]
    if kind != "adagrad":
        assert optimizer(type=kind, lr=0.1).build_functional(meta) is None  # type: ignore[arg-type]
    made = optimizer(type=kind, lr=0.1).build(meta)  # type: ignore[arg-type]
    assert made.param_groups[0]["fused"] is None


@pytest.mark.parametrize(
    "fields", [{}, {"weight_decay": 0.1, "d": 2.0, "eps": (1e-4, 0.5), "beta2_decay": -0.5}], ids=str
)
def test_adafactor_is_torchs(fields: dict[str, object]) -> None:
    """But that nothing is read on the host; and states go both ways."""
    mine, other = parameters(False, torch.float64), parameters(False, torch.float64)
    ours = optimizer(type="adafactor", lr=0.1, **fields).build(groups(mine))
    theirs = torch.optim.Adafactor(groups(other), lr=0.1, **fields)  # type: ignore[arg-type]
    for made in (ours, theirs):
        run(made, range(12), without=1)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-13, atol=1e-15)
    for state, twin in zip(state_of(ours), state_of(theirs), strict=True):
        assert set(state) == set(twin)
        torch.testing.assert_close([state[name] for name in twin], list(twin.values()), rtol=1e-13, atol=1e-15)
    put(state_of(theirs), ours)
    for made in (ours, theirs):
        run(made, range(12, 15))
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-15)


def test_lion_is_the_paper() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    made = optimizer(type="lion", lr=0.1, betas=(0.8, 0.5), weight_decay=0.25).build([{"params": [parameter]}])
    weight, momentum = parameter.detach().clone(), torch.zeros(3, dtype=torch.float64)
    for grad in (torch.tensor([1.0, -1.0, 0.0]).double(), torch.tensor([-0.5, 3.0, 1.0]).double()):
        parameter.grad = grad
        assert made.step() is None
        update = torch.sign(0.8 * momentum + 0.2 * grad)  # algorithm 2, lines 4 to 7
        weight = weight - 0.1 * (update + 0.25 * weight)
        momentum = 0.5 * momentum + 0.5 * grad
    torch.testing.assert_close(parameter.detach(), weight, rtol=1e-15, atol=0)
    torch.testing.assert_close(made.state[parameter]["exp_avg"], momentum, rtol=1e-15, atol=0)
    parameter.grad = torch.zeros(3, dtype=torch.float64)
    assert made.step(lambda: 3.0) == 3.0  # type: ignore[arg-type, return-value]


def test_lion_learns() -> None:
    torch.manual_seed(0)
    x = torch.randn(64, 5)
    y = x @ torch.arange(5.0) / 3
    weight = nn.Parameter(torch.zeros(5))
    made = optimizer(type="lion", lr=0.02).build([{"params": [weight]}])
    losses: list[Tensor] = []
    for step in range(200):
        made.param_groups[0]["lr"] = 0.02 * (1 - step / 200)
        losses.append(((x @ weight - y) ** 2).mean())
        losses[-1].backward()
        made.step()
        made.zero_grad()
    assert losses[-1] < losses[0] / 20


def test_muon_takes_matrices_only() -> None:
    muon = optimizer(type="muon", lr=0.02)
    assert muon.check({"hidden.weight": (4, 3)}) is None
    said = muon.check({"hidden.weight": (4, 3), "hidden.bias": (4,), "norm.weight": (4,)})
    assert said is not None
    assert said.message == "`muon` updates matrices only, but `hidden.bias` is (4,), as is 1 more"
    assert said.help == (
        "give them another optimizer: under `model.parameters`, `bias: {optimizer: {type: adamw, lr: 3e-4}}`"
    )
    assert optimizer(type="adam", lr=0.1).check({"a": (4,)}) is None


STARTUP = """
import sys, torch
from declarative_train.components.optimizers import OPTIMIZERS
for name in ("adam", "adamw", "sgd"):
    parameter = torch.nn.Parameter(torch.ones(4, 3))
    made = OPTIMIZERS[name].model_validate({"type": name, "lr": 0.1}).build_functional([{"params": [parameter]}])
    for _ in range(3):
        (parameter ** 2).sum().backward()
        made.step()
        parameter.grad = None
    assert not torch.equal(parameter, torch.ones(4, 3)), name
    assert "torch._dynamo" not in sys.modules, name
"""


def test_no_functional_form_imports_dynamo() -> None:
    subprocess.run([sys.executable, "-c", STARTUP], check=True, timeout=60)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_is_documented_and_named_by_the_rule(name: str) -> None:
    found = OPTIMIZERS[name]
    assert found.model_fields["type"].default == name
    assert found.__name__ == name.capitalize()
    assert len(inspect.getdoc(found) or "") > 20
    undocumented = [key for key in found.model_fields if key != "type" and key not in field_docs(found)]
    assert not undocumented
    assert found.model_fields["lr"].is_required()
    assert found.model_fields["weight_decay"].default >= 0
    made = optimizer(type=name, lr=0.5).build(groups(parameters(name == "muon")))
    assert [group["lr"] for group in made.param_groups] == [0.02, 0.005]
    decay = found.model_fields["weight_decay"].default
    assert [group["weight_decay"] for group in made.param_groups] == [decay, 0.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "adam"}, "Field required"),
        ({"type": "adam", "lr": -1.0}, "greater than or equal to 0"),
        ({"type": "adam", "lr": 0.1, "betas": (0.9, 1.0)}, "less than 1"),
        ({"type": "sgd", "lr": 0.1, "nesterov": True}, "needs a `momentum` above 0"),
        ({"type": "adafactor", "lr": 0.1, "d": 0.5}, "greater than or equal to 1"),
        ({"type": "adam", "lr": 0.1, "fused": True}, "Extra inputs"),
    ],
)
def test_wrong_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        optimizer(**fields)
