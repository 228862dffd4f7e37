"""Every update rule: torch's own objects with the recipe's fields, to the bit, and Lion, which torch has not."""

from __future__ import annotations

import inspect

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from declarative_train.components.component import Optimizer
from declarative_train.components.field_docs import field_docs
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.planner.footprint.forked_process import in_children
from tests.alone import of_core

CASES: list[dict[str, object]] = [
    {"type": "sgd", "lr": 0.1},
    {"type": "sgd", "lr": 0.1, "weight_decay": 0.01},
    {"type": "sgd", "lr": 0.1, "momentum": 0.9, "dampening": 0.1},
    {"type": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    {"type": "adam", "lr": 0.01},
    {"type": "adam", "lr": 0.01, "amsgrad": True, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-6},
    {"type": "adamw", "lr": 0.01, "weight_decay": 0.1},
    {"type": "adamw", "lr": 0.01, "amsgrad": True},
    {"type": "adagrad", "lr": 0.01, "lr_decay": 0.1, "initial_accumulator_value": 0.1},
    {"type": "rmsprop", "lr": 0.01, "centered": True, "momentum": 0.9},
    {"type": "adafactor", "lr": 0.01, "weight_decay": 0.1, "d": 2.0, "eps": (1e-4, 0.5), "beta2_decay": -0.5},
]
CLASSES = {
    "adafactor": torch.optim.Adafactor,
    "adagrad": torch.optim.Adagrad,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "sgd": torch.optim.SGD,
}
FUSED = [case for case in CASES if case["type"] in ("adam", "adamw", "adagrad") or case == CASES[0]]
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
    """The recipe's, and torch's own made by hand."""
    options = {name: value for name, value in fields.items() if name != "type"}
    if optimizer(**fields).build(groups(parameters(False, dtype))).param_groups[0].get("fused"):
        options["fused"] = True
    by_hand = CLASSES[str(fields["type"])](groups(parameters(False, dtype)), **options)
    return by_hand, optimizer(**fields).build(groups(parameters(False, dtype)))


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
    assert type(ours) is CLASSES[str(fields["type"])]
    same_state(torchs, ours)  # before the first step too
    before = [parameter.detach().clone() for parameter in tensors(ours)]
    run(torchs, range(20))
    run(ours, range(20))
    assert not any(torch.equal(one, other) for one, other in zip(before, tensors(ours), strict=True))
    same_tensors(torchs, ours)
    same_state(torchs, ours)


@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_a_parameter_without_gradient_keeps_its_steps(fields: dict[str, object]) -> None:
    """In the first step too, so that its state begins later than that of the others."""
    torchs, ours = pair(fields)
    run(torchs, range(1, 9), without=1)
    run(ours, range(1, 9), without=1)
    same_tensors(torchs, ours)
    same_state(torchs, ours)


@pytest.mark.parametrize("without", [None, 1], ids=["all", "one_without_gradient"])
@pytest.mark.parametrize("fields", CASES[:-1], ids=ids[:-1])  # adafactor takes no shards
def test_of_shared_out_parameters_a_rank_updates_its_rows(fields: dict[str, object], without: int | None) -> None:
    in_children([lambda: as_second_of_two(fields, without)])  # torch remembers groups, which ranks are forked with


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
    made = [optimizer(**fields).build(groups(each)) for each in (plain, sharded)]
    for step in range(6):
        for number, (one, two, shape) in enumerate(zip(plain, sharded, whole, strict=True)):
            grad = torch.randn_like(one)
            is_left_out = number == without and step % 3 == 1
            one.grad, two.grad = (None, None) if is_left_out else (grad, shared_out(grad.clone(), shape))
        for each in made:
            each.step()
    for one, two, start in zip(plain, sharded, starts, strict=True):
        assert isinstance(two, DTensor)
        torch.testing.assert_close(one.detach(), two.to_local().detach())  # another kernel, where none is fused
        assert not len(start) or not torch.equal(one, start)
        state, twin = (each.state[item] for each, item in zip(made, (one, two), strict=True))
        assert set(state) == set(twin)
        for name in set(state) - {"step"}:
            assert twin[name].shape == two.shape  # of the whole: checkpoints share it out again
            torch.testing.assert_close(state[name], twin[name].to_local())


@pytest.mark.parametrize("fields", CASES, ids=ids)
def test_a_state_put_in_place_goes_on(fields: dict[str, object]) -> None:
    source, restored = pair(fields)
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
    same_state(source, restored)


@pytest.mark.parametrize("fields", [case for case in FUSED if case["type"] != "adagrad"], ids=str)
def test_a_step_that_found_infinity_changes_nothing(fields: dict[str, object]) -> None:
    """Skip the step in the fused kernel, which reads `found_inf` itself on GPUs."""
    made = optimizer(**fields).build(groups(parameters(False)))
    run(made, range(3))
    before = state_of(made), [parameter.detach().clone() for parameter in tensors(made)]
    made.found_inf, made.grad_scale = torch.ones(()), None  # type: ignore[attr-defined]
    run(made, range(3, 4))
    for state, other in zip(state_of(made), before[0], strict=True):
        assert set(state) == set(other)
        assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert all(torch.equal(one, other) for one, other in zip(before[1], tensors(made), strict=True))


@pytest.mark.parametrize("fields", FUSED, ids=str)
def test_a_fused_kernel_is_taken_where_it_can_be(fields: dict[str, object]) -> None:
    def fused(device: str) -> object:
        params = [nn.Parameter(torch.ones(3, dtype=dtype, device=device)) for dtype in (torch.float32, torch.float64)]
        made = optimizer(**fields).build([{"params": params}])
        if device == "cpu":
            run(made, range(2))
        return made.param_groups[0]["fused"]

    assert fused("cpu") is True
    assert fused("meta") is None


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
    assert said.message == "`muon` updates matrices only, but `hidden.bias` is (4,), and so is 1 more"
    assert said.help == (
        "give them another optimizer: under `model.parameters`, `bias: {optimizer: {type: adamw, lr: 3e-4}}`"
    )
    assert optimizer(type="adam", lr=0.1).check({"a": (4,)}) is None


@pytest.mark.parametrize("name", of_core(OPTIMIZERS))
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
