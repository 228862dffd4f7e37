"""InfoNCE: against a few lines of torch, in groups of samples, with padding, and over two real ranks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributed
from torch.nn import functional as F

from declarative_train.components.component import LossModule
from declarative_train.components.layers.sample_groups import (
    MixesSamples,
    SampleGroups,
    attach,
    make_process_groups,
    rank_spans,
)
from declarative_train.components.losses import LOSSES
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.collectives import make_group
from tests.engine.on_ranks import forked

D = 6


def build(**fields: object) -> LossModule:
    loss = LOSSES["info_nce"].model_validate({"type": "info_nce", **fields})
    views = TensorSpec((D,)), TensorSpec((D,)), None
    assert loss.check(*views) is None
    return loss.build(*views)


def views(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    a, b = (torch.randn(rows, D, generator=generator, dtype=torch.float64) for _ in range(2))
    return a.requires_grad_(), b.requires_grad_()


def plain(a: Tensor, b: Tensor, temperature: float = 0.1, symmetric: bool = True, normalize: bool = True) -> Tensor:
    """The sum over one group, as CLIP writes it."""
    if normalize:
        a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    scores = a @ b.T / temperature
    label = torch.arange(len(a))
    value = F.cross_entropy(scores, label, reduction="sum")
    return (value + F.cross_entropy(scores.T, label, reduction="sum")) / 2 if symmetric else value


def gradients(value: Tensor, *views: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, views))


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("normalize", [True, False])
def test_is_cross_entropy_over_similarities(symmetric: bool, normalize: bool) -> None:
    a, b = views(7)
    options = {"temperature": 0.3, "symmetric": symmetric, "normalize": normalize}
    module = build(**options)
    found, wanted = module.sum(a, b, None, None), plain(a, b, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(found, a, b), gradients(wanted, a, b), rtol=1e-12, atol=1e-14)
    assert module.count(b, None, None, 7) == 7
    assert module.items_per_row == 1


@pytest.mark.parametrize("over", ["4 samples", "16 samples", "microbatch"])
def test_groups_are_consecutive_and_the_last_may_be_smaller(over: str) -> None:
    a, b = views(10)
    size = {"4 samples": 4}.get(over, 10)
    found = build(over=over).sum(a, b, None, None)
    wanted = torch.stack([plain(a[i : i + size], b[i : i + size]) for i in range(0, 10, size)]).sum()
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(found, a, b), gradients(wanted, a, b), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("over", ["4 samples", "microbatch"])
def test_padding_rows_are_nobodys_negatives(over: str) -> None:
    a, b = views(5)
    padded = torch.tensor([0, 1, 2, 3, 4, 4, 4, 4, 4])
    weight = torch.tensor([1.0] * 5 + [0.0] * 4)
    module = build(over=over)
    found, wanted = module.sum(a[padded], b[padded], None, weight), module.sum(a, b, None, None)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(gradients(found, a, b), gradients(wanted, a, b), rtol=1e-12, atol=1e-14)
    assert module.count(None, None, weight, 9) == 5


def test_a_rank_of_padding_alone_gives_0_and_no_nan() -> None:
    a, b = views(2)
    found = build().sum(a, b, None, torch.zeros(2))
    assert found == 0
    assert not any(gradient.any() for gradient in gradients(found, a, b))


def test_is_one_of_the_modules_that_mix_samples() -> None:
    module = build(over="8 samples")
    assert isinstance(module, MixesSamples)
    assert (module.over, build().over) == (8, None)  # type: ignore[attr-defined]


def test_a_forward_that_is_not_announced_asks_no_other_rank() -> None:
    a, b = views(3)
    module = build(over="4 samples")
    module.groups = SampleGroups(microbatch_size=2)  # type: ignore[attr-defined]
    torch.testing.assert_close(module.sum(a, b, None, None), plain(a, b))


def seen(rank: int, symmetric: bool, rows: tuple[int, int]) -> dict[str, Tensor]:
    """Of the rank that has these of the rows: the loss of all, its items, and the gradient of a parameter on both."""
    module = build(over="8 samples", symmetric=symmetric)
    spans = rank_spans(module, 4)
    assert spans == (2,), spans
    groups = SampleGroups(4, make_process_groups(spans, [0, 1], make_group))
    attach(module, groups)
    a, b = (view.detach() for view in views(sum(rows)))
    encoder = torch.arange(D * D, dtype=torch.float64).reshape(D, D).cos().requires_grad_()
    first = sum(rows[:rank])
    at = list(range(first, first + rows[rank])) or [0]
    weight = torch.ones(len(at)) if rows[rank] else torch.zeros(1)
    groups.begin(rows[rank])
    value = module.sum(a[at] @ encoder, b[at] @ encoder, None, weight)
    value.backward()
    found = {"value": value.detach(), "count": module.count(None, None, weight, len(at)), "gradient": encoder.grad}
    for each in found.values():
        distributed.all_reduce(each)
    return found


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("rows", [(4, 4), (4, 1), (3, 0)])
def test_two_ranks_are_one_process(symmetric: bool, rows: tuple[int, int]) -> None:
    found = forked(2, seen, symmetric, rows)[0]
    a, b = (view.detach() for view in views(sum(rows)))
    encoder = torch.arange(D * D, dtype=torch.float64).reshape(D, D).cos().requires_grad_()
    wanted = plain(a @ encoder, b @ encoder, symmetric=symmetric)
    (gradient,) = torch.autograd.grad(wanted, encoder)
    assert found["value"].item() == pytest.approx(wanted.item(), rel=1e-12)
    assert found["count"] == sum(rows)
    difference = (found["gradient"] - gradient).abs().max() / gradient.abs().max()
    assert difference < 1e-12
