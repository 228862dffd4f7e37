"""Batch norm over N samples: the same numbers on one process and on several, padding and uneven batches included."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from declarative_train.components.component import Collective
from declarative_train.components.layers.norms import BatchNorm
from declarative_train.components.layers.sample_groups import (
    SampleGroups,
    attach,
    end_step,
    group_size,
    make_process_groups,
    rank_spans,
)
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.collectives import make_group
from tests.engine.on_ranks import forked

IMAGE = TensorSpec((4, 3, 2), "float64")


class Summed(Collective):
    """Over the ranks, where there are some."""

    def sum(self, tensor: Tensor) -> Tensor:
        if distributed.is_initialized():
            distributed.all_reduce(tensor)
        return tensor

    def concatenate(self, tensor: Tensor) -> Tensor:
        raise NotImplementedError


def norm(over: str, shape: tuple[int, ...]) -> nn.Module:
    module = BatchNorm(over=over).build({"x": TensorSpec(shape, "float64")})
    nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return module


def steps_of(rank: int, world: int, over: str, num_rows: int, chunks: int, padding: str) -> list[dict[str, Any]]:
    """Of every rank, and of the one process of the reference: the same model, its share of the same global batch."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = nn.Sequential(
        *(norm(over, (3, 4, 2)), nn.Tanh(), nn.Conv2d(3, 5, 2, bias=False), norm(over, (5, 3, 1))),
        *(nn.Tanh(), nn.Flatten(), nn.Linear(15, 6, bias=False), norm(over, (6,))),
    )
    rows = 8 // world
    made = make_process_groups(rank_spans(model, rows), range(world), make_group) if world > 1 else None
    groups = SampleGroups(rows, made)
    attach(model, groups)
    x = torch.randn(chunks, 8, 3, 4, 2)
    wanted = torch.randn(chunks, 8, 6)
    steps = []
    for step in range(2):
        model.zero_grad()
        inputs = []
        for chunk in range(chunks):
            real_rows = num_rows if chunk == chunks - 1 else 8
            mine = range(rank * rows, min((rank + 1) * rows, real_rows))
            size = rows if padding == "full" else max(len(mine), 1)
            places = [*mine, *[real_rows - 1] * (size - len(mine))]
            weight = torch.tensor([1.0] * len(mine) + [0.0] * (size - len(mine)))
            given = (x[chunk, places] + step).requires_grad_()
            inputs.append((given, len(mine)))
            groups.begin(len(mine))
            total = 8 * (chunks - 1) + num_rows
            loss = ((model(given) - wanted[chunk, places]) ** 2).sum(-1) * weight
            (loss.sum() * world / total).backward()
        gradients = {name: Summed().sum(parameter.grad.clone()) / world for name, parameter in model.named_parameters()}
        end_step(model, Summed())
        steps.append(
            {
                "gradients": gradients,
                "inputs": [given.grad[:real] / world for given, real in inputs],
                "buffers": {name: buffer.clone() for name, buffer in model.named_buffers()},
            }
        )
    return steps


@pytest.mark.parametrize(
    ("world", "over", "num_rows", "chunks", "padding"),
    [
        (2, 8, 8, 1, "one"),  # a group spans both ranks
        (2, 4, 8, 2, "one"),  # a group per rank, accumulation
        (2, 2, 7, 1, "full"),  # groups within a rank, the last one smaller, padded
        (2, 8, 5, 2, "full"),  # spanning and uneven and padded
        (2, 8, 3, 1, "one"),  # one rank has no row at all
        (2, 4, 5, 1, "one"),  # the last group is one sample
        (4, 4, 3, 2, "one"),  # two ranks per group; the second group is empty in the last chunk
    ],
)
def test_ranks_agree_with_one_process(world: int, over: int, num_rows: int, chunks: int, padding: str) -> None:
    words = (f"{over} samples", num_rows, chunks)
    (reference,) = forked(1, steps_of, 1, *words, "one")
    ranks = forked(world, steps_of, world, *words, padding)
    for step, wanted in enumerate(reference):
        whole = max(gradient.abs().max() for gradient in wanted["gradients"].values())
        for mine in (rank[step] for rank in ranks):
            for name, gradient in wanted["gradients"].items():
                scale = max(gradient.abs().max(), 1e-6 * whole)
                assert (mine["gradients"][name] - gradient).abs().max() / scale < 1e-12, name
            for name, buffer in wanted["buffers"].items():
                assert torch.allclose(mine["buffers"][name], buffer, rtol=1e-12, atol=1e-12), name
        for chunk, gradient in enumerate(wanted["inputs"]):
            joined = torch.cat([rank[step]["inputs"][chunk] for rank in ranks])
            assert (joined - gradient).abs().max() < 1e-12 * gradient.abs().max()


class Alone(Collective):
    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def concatenate(self, tensor: Tensor) -> Tensor:
        return tensor


def made(over: str = "microbatch", spec: TensorSpec = IMAGE, **fields: Any) -> nn.Module:
    torch.manual_seed(1)
    module = BatchNorm(over=over, **fields).build({"x": spec})
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def data(rows: int, spec: TensorSpec = IMAGE) -> Tensor:
    return torch.randn(rows, *spec.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(7))


def test_over_the_microbatch_is_torchs_batch_norm() -> None:
    module, x = made(), data(6)
    wanted = nn.BatchNorm2d(4, dtype=torch.float64)
    wanted.load_state_dict(module.state_dict(), strict=False)
    module.groups.begin()
    assert torch.equal(module(x), wanted(x))
    end_step(module, Alone())
    for name in ("running_mean", "running_var"):
        assert torch.allclose(getattr(module, name), getattr(wanted, name), rtol=1e-14, atol=1e-14)
    module.eval(), wanted.eval()
    assert torch.allclose(module(x), wanted(x), rtol=1e-14, atol=1e-14)


def test_groups_are_normalised_one_by_one() -> None:
    module, x = made("3 samples"), data(8)
    module.groups.begin()
    found = module(x)
    for rows in (slice(0, 3), slice(3, 6), slice(6, 8)):
        wanted = F.batch_norm(x[rows], None, None, module.weight, module.bias, True)
        assert torch.allclose(found[rows], wanted, rtol=1e-13, atol=1e-13)
    end_step(module, Alone())
    mean = torch.stack([x[rows].mean((0, 2, 3)) for rows in (slice(0, 3), slice(3, 6), slice(6, 8))]).mean(0)
    var = torch.stack([x[rows].var((0, 2, 3)) for rows in (slice(0, 3), slice(3, 6), slice(6, 8))]).mean(0)
    assert torch.allclose(module.running_mean, 0.1 * mean)
    assert torch.allclose(module.running_var, 0.9 + 0.1 * var)


def test_a_group_of_one_value_gives_the_shift_and_no_gradient() -> None:
    spec = TensorSpec((4,), "float64")
    module, x = made("2 samples", spec), data(3, spec).requires_grad_()
    module.groups.begin()
    y = module(x)
    assert torch.allclose(y[2], module.bias, rtol=1e-12)
    y.square().sum().backward()
    assert torch.equal(x.grad[2], torch.zeros_like(x.grad[2]))
    end_step(module, Alone())
    whole = x[:2].detach()  # a single value has no variance: the group is left out of both
    assert torch.allclose(module.running_mean, 0.1 * whole.mean(0))
    assert torch.allclose(module.running_var, 0.9 + 0.1 * whole.var(0))


def test_padding_rows_count_in_nothing_and_stay_finite() -> None:
    module, x = made("4 samples"), data(6)
    padded = torch.cat([x, 1e9 * x[-1:].expand(2, -1, -1, -1)])
    module.groups.begin(6)
    found = module(padded)
    assert found.isfinite().all()
    end_step(module, Alone())
    other = made("4 samples")
    other.groups.begin()
    assert torch.equal(found[:6], other(x))
    end_step(other, Alone())
    assert torch.equal(module.running_mean, other.running_mean)
    assert torch.equal(module.running_var, other.running_var)


def test_a_rank_without_rows_leaves_the_running_statistics() -> None:
    module = made()
    module.groups.begin(0)
    assert module(data(1)).isfinite().all()
    end_step(module, Alone())
    assert torch.equal(module.running_mean, torch.zeros(4, dtype=torch.float64))


def test_a_step_that_is_dropped_leaves_the_running_statistics() -> None:
    module = made()
    module.groups.begin()
    module(data(4) * torch.inf)
    end_step(module, Alone(), finite=torch.tensor(False))
    assert torch.equal(module.running_mean, torch.zeros(4, dtype=torch.float64))
    assert module.pending is None


def test_forwards_that_are_not_announced_leave_no_trace() -> None:
    module, x = made(), data(4)
    module(x)
    assert module.pending is None
    module.groups.begin()
    module.groups.end()
    module(x)
    assert module.pending is None


def test_frozen_uses_running_statistics_and_takes_no_part_in_the_step() -> None:
    module = made().eval()
    module.running_mean.fill_(2)
    module.groups.begin(1)
    x = data(4)
    wanted = (x - 2) / (1 + 1e-5) ** 0.5 * module.weight.view(-1, 1, 1) + module.bias.view(-1, 1, 1)
    assert torch.allclose(module(x), wanted, rtol=1e-12, atol=1e-12)
    end_step(module, Alone())
    assert torch.equal(module.running_mean, torch.full((4,), 2.0, dtype=torch.float64))


def test_recomputation_sees_its_own_rows_and_counts_once() -> None:
    """As in a pipeline: the second forward has begun when the first is recomputed in its backward."""
    plain, again = made("2 samples"), made("2 samples")
    groups = SampleGroups(4)
    attach(again, groups)
    x = data(8)
    results = []
    for module, own in ((plain, plain.groups), (again, groups)):
        own.microbatch_size = 4
        losses = []
        for part, rows in ((x[:4], 4), (x[4:], 3)):
            own.begin(rows)
            given = part.clone().requires_grad_()
            if module is again:
                y = checkpoint(module, given, use_reentrant=False, context_fn=groups.checkpoint_contexts)
            else:
                y = module(given)
            losses.append((y[:rows] ** 3).sum())
        sum(losses).backward()
        end_step(module, Alone())
        results.append([module.weight.grad, module.bias.grad, module.running_mean, module.running_var])
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


def test_one_reduction_serves_the_whole_model() -> None:
    calls: list[int] = []

    class Counting(Collective):
        def sum(self, tensor: Tensor) -> Tensor:
            calls.append(len(tensor))
            return 2 * tensor  # another rank with the same rows

        def concatenate(self, tensor: Tensor) -> Tensor:
            return tensor

    model = nn.Sequential(made(), nn.Tanh(), made("2 samples"))
    one = copy.deepcopy(model)
    for some, ranks in ((model, Counting()), (one, Alone())):
        groups = SampleGroups()
        attach(some, groups)
        groups.begin()
        some(data(4))
        end_step(some, ranks)
    assert calls == [2 * 9]
    for a, b in zip(model.buffers(), one.buffers(), strict=True):
        assert torch.allclose(a, b, rtol=1e-14)
    end_step(nn.Linear(1, 1), Counting())
    assert len(calls) == 1


def test_a_replica_has_its_own_rows_and_the_same_ranks() -> None:
    module = made("4 samples")
    module.groups = SampleGroups(2, {2: "the group"})  # type: ignore[dict-item]
    module.groups.begin(1)
    replica = copy.deepcopy(module)
    assert replica.groups is not module.groups
    assert replica.groups.process_groups == {2: "the group"}
    assert replica.groups.num_rows is None


def test_spans_of_a_model() -> None:
    model = nn.Sequential(made("16 samples"), made("2 samples"), made("8 samples"), made(), made("16 samples"))
    assert rank_spans(model, 4) == (2, 4)
    assert rank_spans(model, 16) == ()


def test_bfloat16_parameters_and_inputs_meet_float32_statistics() -> None:
    """fully_shard with a bfloat16 policy hands over parameters and inputs in bfloat16; buffers stay float32."""
    module = BatchNorm(over="2 samples").build({"x": TensorSpec((4, 3))})
    for name in ("weight", "bias"):
        setattr(module, name, nn.Parameter(torch.ones(4, dtype=torch.bfloat16)))
    x = torch.randn(4, 4, 3).bfloat16()
    module.groups.begin()
    module(x).sum().backward()
    end_step(module, Alone())
    assert module.weight.grad.dtype == torch.bfloat16
    assert module.running_mean.dtype == torch.float32
    assert module.eval()(x).dtype == torch.bfloat16


def test_compiles() -> None:
    module, x = made("2 samples"), data(6)
    eager = copy.deepcopy(module)
    compiled = torch.compile(module, backend="aot_eager")
    for some in (module, eager):
        some.groups.begin(5)
    (compiled(x) ** 3).sum().backward()
    (eager(x) ** 3).sum().backward()
    assert torch.allclose(module.weight.grad, eager.weight.grad, rtol=1e-12)
    end_step(module, Alone())
    end_step(eager, Alone())
    assert torch.allclose(module.running_mean, eager.running_mean, rtol=1e-12)
    assert torch.allclose(module.running_var, eager.running_var, rtol=1e-12)


@pytest.mark.parametrize(("text", "size"), [("microbatch", None), ("1 sample", 1), ("32 samples", 32)])
def test_over_reads(text: str, size: int | None) -> None:
    assert group_size(text) == size
    assert BatchNorm(over=text).over == text


@pytest.mark.parametrize("text", ["0 samples", "32", "samples", "3.5 samples", "-1 samples", "2 epochs"])
def test_over_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="is not `microbatch` or a number of samples"):
        BatchNorm(over=text)
