"""Every term's sum / count over the whole batch is torch's own mean, and uneven pieces with padding rows add up to it,
value and gradients, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.components.component import LossModule
from declarative_train.components.losses import LOSSES
from declarative_train.core.tensor_spec import TensorSpec
from tests.alone import mark_packs

ROWS, CLASSES = 11, 5
PIECES = (4, 1, 6)  # rows; each is padded with two repeats of its last row
WEIGHTS = (0.5, 2.0, 1.0, 0.25, 3.0)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def spec(tensor: Tensor | None) -> TensorSpec | None:
    return None if tensor is None else TensorSpec(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))  # type: ignore[arg-type]


@dataclass
class Case:
    """`mean` is torch's own, of (input, target); with a mask it is written out."""

    name: str
    fields: dict[str, object]
    input: Tensor
    target: Tensor | None
    mean: Callable[[Tensor, Tensor], Tensor]
    mask: Tensor | None = None
    varies: bool = field(default=False)  # the count of a row depends on its values


def _weighted(function: Callable[..., Tensor], mask: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda x, y: (function(x, y, reduction="none") * mask).sum() / mask.sum()


x, y = normal(ROWS, 3), normal(ROWS, 3, seed=2)
yes = (normal(ROWS, 3, seed=3) > 0).double()
soft = torch.softmax(normal(ROWS, CLASSES, seed=4), 1)
logits, label = normal(ROWS, CLASSES), numbers(CLASSES, ROWS)
text, token = normal(ROWS, 4, CLASSES), numbers(CLASSES, ROWS, 4)
image, pixel = normal(ROWS, CLASSES, 2, 3), numbers(CLASSES, ROWS, 2, 3)
middle = normal(ROWS, 2, CLASSES, 3)
padded = token.masked_fill(normal(ROWS, 4, seed=5) > 0.3, 0)
bits, amounts = normal(ROWS, 3, seed=6) > 0, normal(ROWS, 3, seed=7).abs()
weights = torch.tensor(WEIGHTS, dtype=torch.float64)
token_mask, token_amounts = normal(ROWS, 4, seed=8) > 0, normal(ROWS, 4, seed=9).abs()


first, sides = normal(ROWS, 2, 2, seed=20), normal(ROWS, 2, 2, seed=21).abs() + 0.1
corners = torch.cat([first, first + sides], -1)
other_corners = torch.cat([first + 0.4, first + 1.3 * sides + 0.5], -1)
box_mask = torch.tensor([[1.0, 0.0], [2.0, 0.5], [1.0, 1.0]] * 4, dtype=torch.float64)[:ROWS]


def giou_of(a: Tensor, b: Tensor) -> Tensor:
    """One box, by the definition, with what torchvision adds below."""
    sides = [torch.minimum(a[2 + k], b[2 + k]) - torch.maximum(a[k], b[k]) for k in (0, 1)]
    both = sides[0] * sides[1] if sides[0] > 0 and sides[1] > 0 else torch.zeros((), dtype=a.dtype)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    around = (torch.maximum(a[2], b[2]) - torch.minimum(a[0], b[0])) * (
        torch.maximum(a[3], b[3]) - torch.minimum(a[1], b[1])
    )
    return 1 - (both / (union + 1e-7) - (around - union) / (around + 1e-7))


def giou_mean(a: Tensor, b: Tensor, amounts: Tensor | None = None) -> Tensor:
    each = torch.stack([giou_of(*pair) for pair in zip(a.reshape(-1, 4), b.reshape(-1, 4), strict=True)])
    weight = torch.ones_like(each) if amounts is None else amounts.reshape(-1)
    return (each * weight).sum() / weight.sum()


def over_tokens(**options: object) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda a, b: F.cross_entropy(a.movedim(-1, 1), b, **options)  # type: ignore[arg-type]


def masked_tokens(mask: Tensor, **options: object) -> Callable[[Tensor, Tensor], Tensor]:
    """Classes, ignored items and mask at once: the mask times torch's terms, over the mask times torch's divisors."""

    def mean(a: Tensor, b: Tensor) -> Tensor:
        terms = F.cross_entropy(a.movedim(-1, 1), b, reduction="none", **options)  # type: ignore[arg-type]
        divisor = options.get("weight", torch.ones(CLASSES, dtype=torch.float64))[b]  # type: ignore[index]
        if "ignore_index" in options:
            divisor = divisor * (b != options["ignore_index"])
        return (terms * mask).sum() / (divisor * mask).sum()

    return mean


CASES = [
    Case("mse", {"type": "mse"}, x, y, F.mse_loss),
    Case("mse of scalars", {"type": "mse"}, x[:, 0], y[:, 0], F.mse_loss),
    Case("mse, int target", {"type": "mse"}, x, numbers(9, ROWS, 3), lambda a, b: F.mse_loss(a, b.double())),
    Case("mse, bool mask", {"type": "mse"}, x, y, _weighted(F.mse_loss, bits), bits, True),
    Case("mse, weights", {"type": "mse"}, x, y, _weighted(F.mse_loss, amounts), amounts, True),
    Case("l1", {"type": "l1"}, x, y, F.l1_loss),
    Case("l1, weights", {"type": "l1"}, x, y, _weighted(F.l1_loss, amounts), amounts, True),
    Case("huber", {"type": "huber", "delta": 0.3}, x, y, lambda a, b: F.huber_loss(a, b, delta=0.3)),
    Case("smooth_l1", {"type": "smooth_l1", "beta": 0.3}, x, y, lambda a, b: F.smooth_l1_loss(a, b, beta=0.3)),
    Case("smooth_l1, beta 0", {"type": "smooth_l1", "beta": 0.0}, x, y, F.l1_loss),
    Case("giou", {"type": "giou"}, corners, other_corners, giou_mean),
    Case("giou of one box", {"type": "giou"}, corners[:, 0], other_corners[:, 1], giou_mean),
    Case(
        "giou, weights",
        {"type": "giou"},
        corners,
        other_corners,
        lambda a, b: giou_mean(a, b, box_mask),
        box_mask,
        True,
    ),
    Case(
        "giou of widths",
        {"type": "giou", "format": "xywh"},
        torch.cat([first, sides], -1),
        torch.cat([first + 0.3, sides], -1),
        lambda a, b: giou_mean(
            torch.cat([a[..., :2], a[..., :2] + a[..., 2:]], -1), torch.cat([b[..., :2], b[..., :2] + b[..., 2:]], -1)
        ),
    ),
    Case("poisson_nll", {"type": "poisson_nll"}, x, numbers(5, ROWS, 3).double(), F.poisson_nll_loss),
    Case(
        "poisson_nll, rates",
        {"type": "poisson_nll", "log_input": False, "full": True},
        x.abs(),
        numbers(5, ROWS, 3).double(),
        lambda a, b: F.poisson_nll_loss(a, b, log_input=False, full=True),
    ),
    Case("mean", {"type": "mean"}, x, None, lambda a, b: a.mean()),
    Case("mean of scalars", {"type": "mean"}, x[:, 0], None, lambda a, b: a.mean()),
    Case("mean, mask", {"type": "mean"}, x, None, lambda a, b: a[bits].mean(), bits, True),
    Case("bce", {"type": "bce_with_logits"}, x, yes, F.binary_cross_entropy_with_logits),
    Case(
        "bce, bool target",
        {"type": "bce_with_logits"},
        x,
        yes.bool(),
        lambda a, b: F.binary_cross_entropy_with_logits(a, b.double()),
    ),
    Case(
        "bce, pos_weight",
        {"type": "bce_with_logits", "pos_weight": 3.5},
        x,
        yes,
        lambda a, b: F.binary_cross_entropy_with_logits(a, b, pos_weight=torch.tensor(3.5, dtype=torch.float64)),
    ),
    Case(
        "bce, pos_weights and mask",
        {"type": "bce_with_logits", "pos_weight": (0.5, 2.0, 7.0)},
        x,
        yes,
        _weighted(
            lambda a, b, reduction: F.binary_cross_entropy_with_logits(
                a, b, pos_weight=torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64), reduction=reduction
            ),
            amounts,
        ),
        amounts,
        True,
    ),
    Case("kl_div", {"type": "kl_div"}, logits.log_softmax(1), soft, lambda a, b: F.kl_div(a, b, reduction="batchmean")),
    Case(
        "kl_div of tokens",
        {"type": "kl_div"},
        text.log_softmax(-1),
        torch.softmax(normal(ROWS, 4, CLASSES, seed=12), -1),
        lambda a, b: F.kl_div(a, b, reduction="batchmean"),
    ),
    Case(
        "kl_div, log target",
        {"type": "kl_div", "log_target": True},
        logits.log_softmax(1),
        soft.log(),
        lambda a, b: F.kl_div(a, b, reduction="batchmean", log_target=True),
    ),
    Case(
        "kl_div, mask",
        {"type": "kl_div"},
        logits.log_softmax(1),
        soft,
        lambda a, b: F.kl_div(a[bits[:, 0]], b[bits[:, 0]], reduction="batchmean"),
        bits[:, 0],
        True,
    ),
    Case("nll", {"type": "nll"}, logits.log_softmax(1), label, F.nll_loss),
    Case(
        "nll, all at once",
        {"type": "nll", "class_dim": 1, "ignore_index": 2, "class_weights": WEIGHTS},
        image.log_softmax(1),
        pixel,
        lambda a, b: F.nll_loss(a, b, weight=weights, ignore_index=2),
        varies=True,
    ),
    Case("ce", {"type": "cross_entropy"}, logits, label, F.cross_entropy),
    Case("ce, int32", {"type": "cross_entropy"}, logits, label.int(), lambda a, b: F.cross_entropy(a, b.long())),
    Case("ce of tokens", {"type": "cross_entropy"}, text, token, over_tokens()),
    Case("ce of images", {"type": "cross_entropy", "class_dim": 1}, image, pixel, F.cross_entropy),
    Case(
        "ce, class_dim in the middle",
        {"type": "cross_entropy", "class_dim": 2},
        middle,
        pixel,
        lambda a, b: F.cross_entropy(a.movedim(2, 1), b),
    ),
    Case("ce, soft", {"type": "cross_entropy"}, logits, soft, F.cross_entropy),
    Case(
        "ce, soft, weights, smoothing",
        {"type": "cross_entropy", "class_weights": WEIGHTS, "label_smoothing": 0.2},
        logits,
        soft,
        lambda a, b: F.cross_entropy(a, b, weight=weights, label_smoothing=0.2),
    ),
    Case(
        "ce, soft images",
        {"type": "cross_entropy", "class_dim": 1},
        image,
        torch.softmax(normal(ROWS, CLASSES, 2, 3, seed=13), 1),
        F.cross_entropy,
    ),
    Case(
        "ce, soft tokens, mask",
        {"type": "cross_entropy"},
        text,
        torch.softmax(normal(ROWS, 4, CLASSES, seed=14), -1),
        lambda a, b: (
            (F.cross_entropy(a.movedim(-1, 1), b.movedim(-1, 1), reduction="none") * token_amounts).sum()
            / token_amounts.sum()
        ),
        token_amounts,
        True,
    ),
    Case(
        "ce, ignored",
        {"type": "cross_entropy", "ignore_index": 0},
        text,
        padded,
        over_tokens(ignore_index=0),
        varies=True,
    ),
    Case(
        "ce, ignored -100",
        {"type": "cross_entropy", "ignore_index": -100},
        text,
        padded.masked_fill(padded == 0, -100),
        over_tokens(ignore_index=-100),
        varies=True,
    ),
    Case(
        "ce, ignored, weights, smoothing",
        {"type": "cross_entropy", "ignore_index": 0, "class_weights": WEIGHTS, "label_smoothing": 0.1},
        text,
        padded,
        over_tokens(ignore_index=0, weight=weights, label_smoothing=0.1),
        varies=True,
    ),
    Case(
        "ce, ignored, smoothing",
        {"type": "cross_entropy", "ignore_index": 0, "label_smoothing": 0.1},
        text,
        padded,
        over_tokens(ignore_index=0, label_smoothing=0.1),
        varies=True,
    ),
    Case(
        "ce, weights",
        {"type": "cross_entropy", "class_weights": WEIGHTS},
        logits,
        label,
        lambda a, b: F.cross_entropy(a, b, weight=weights),
        varies=True,
    ),
    Case(
        "ce, bool mask",
        {"type": "cross_entropy"},
        text,
        token,
        masked_tokens(token_mask),
        token_mask,
        True,
    ),
    Case(
        "ce, mask, ignored, weights, smoothing",
        {"type": "cross_entropy", "ignore_index": 0, "class_weights": WEIGHTS, "label_smoothing": 0.1},
        text,
        padded,
        masked_tokens(token_amounts, ignore_index=0, weight=weights, label_smoothing=0.1),
        token_amounts,
        True,
    ),
]


def build(case: Case) -> LossModule:
    loss = LOSSES[str(case.fields["type"])].model_validate(case.fields)
    given = spec(case.input), spec(case.target), spec(case.mask)
    assert loss.check(*given) is None  # type: ignore[arg-type]
    return loss.build(*given)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", mark_packs(CASES, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_sum_over_count_is_the_mean_of_torch(case: Case) -> None:
    module = build(case)
    assert isinstance(module, torch.nn.Module)
    ours, torchs = case.input.clone().requires_grad_(), case.input.clone().requires_grad_()
    count = module.count(case.target, case.mask, None, ROWS)
    assert count.dtype == torch.float64
    assert count.shape == ()
    value = module.sum(ours, case.target, case.mask, None) / count
    wanted = case.mean(torchs, case.target)  # type: ignore[arg-type]
    value.backward()
    wanted.backward()
    assert value.shape == ()
    torch.testing.assert_close(value, wanted, rtol=1e-13, atol=0)
    torch.testing.assert_close(ours.grad, torchs.grad, rtol=1e-12, atol=1e-16)
    assert (module.items_per_row is None) == case.varies
    if module.items_per_row is not None:
        assert module.items_per_row * ROWS == count


@pytest.mark.parametrize("case", mark_packs(CASES, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_each_row_is_within_the_bounds_of_its_loss(case: Case) -> None:
    least, most = LOSSES[str(case.fields["type"])].bounds
    module = build(case)
    for row in range(ROWS):
        one = slice(row, row + 1)
        target, mask = (None if given is None else given[one] for given in (case.target, case.mask))
        count = float(module.count(target, mask, None, 1))
        if count:
            assert least <= float(module.sum(case.input[one], target, mask, None)) / count <= most


@pytest.mark.parametrize("case", mark_packs(CASES, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_uneven_pieces_with_padding_rows_add_up(case: Case) -> None:
    module = build(case)
    whole, parts = case.input.clone().requires_grad_(), case.input.clone().requires_grad_()
    count = module.count(case.target, case.mask, None, ROWS)
    value = module.sum(whole, case.target, case.mask, None)
    value.backward()
    counts, values, start = [], [], 0
    for rows in PIECES:
        at = torch.tensor([*range(start, start + rows), *[start + rows - 1] * 2])
        row_weight = torch.tensor([1.0] * rows + [0.0] * 2)
        target, mask = (None if given is None else given[at] for given in (case.target, case.mask))
        counts.append(module.count(target, mask, row_weight, rows + 2))
        values.append(module.sum(parts[at], target, mask, row_weight))
        values[-1].backward()
        start += rows
    torch.testing.assert_close(torch.stack(counts).sum(), count, rtol=1e-14, atol=0)
    torch.testing.assert_close(torch.stack(values).sum(), value, rtol=1e-13, atol=0)
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-12, atol=1e-16)


MASKED = [case for case in CASES if case.mask is not None]


@pytest.mark.parametrize("case", mark_packs(MASKED, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_what_is_masked_does_not_matter_be_it_nan_or_no_class(case: Case) -> None:
    assert case.mask is not None
    mask = case.mask.clone().double()
    mask[0] = 0
    module = build(case)
    clean, spoilt = case.input.clone().requires_grad_(), case.input.clone()
    spoilt[0] = torch.nan
    spoilt.requires_grad_()
    target = None if case.target is None else case.target.clone()
    if target is not None:
        target[0] = torch.nan if target.is_floating_point() else CLASSES + 90
    wanted = module.sum(clean, case.target, mask, None)
    found = module.sum(spoilt, target, mask, None)
    wanted.backward()
    found.backward()
    assert found == wanted
    assert torch.equal(spoilt.grad, clean.grad)  # type: ignore[arg-type]
    assert module.count(target, mask, None, ROWS) == module.count(case.target, mask, None, ROWS)


@pytest.mark.parametrize("name", ["mse", "cross_entropy", "bce_with_logits", "mean"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(name: str, dtype: torch.dtype) -> None:
    shape = (4096, 8)
    scores = normal(*shape).to(dtype)
    target = {"mean": None, "cross_entropy": numbers(8, 4096)}.get(name, (normal(*shape, seed=3) > 0).to(dtype))
    module = LOSSES[name]().build(TensorSpec((8,), "bfloat16"), spec(target), None)
    value = module.sum(scores, target, None, None)
    assert value.dtype == torch.float32
    exact = module.sum(scores.double(), target, None, None)
    torch.testing.assert_close(value.double(), exact, rtol=1e-5, atol=1e-3)


def test_a_count_does_not_stop_at_the_limit_of_float32() -> None:
    module = LOSSES["mean"]().build(TensorSpec(()), None, None)
    assert module.count(None, None, torch.ones(2**24 + 1), 2**24 + 1) == 2**24 + 1


def test_a_batch_whose_items_are_all_ignored_sums_to_0() -> None:
    loss = LOSSES["cross_entropy"].model_validate({"type": "cross_entropy", "ignore_index": 0})
    module = loss.build(TensorSpec((CLASSES,)), TensorSpec((), "int64"), None)
    scores, target = logits.clone().requires_grad_(), torch.zeros(ROWS, dtype=torch.int64)
    value = module.sum(scores, target, None, None)
    value.backward()
    assert value == 0
    assert module.count(target, None, None, ROWS) == 0
    assert not scores.grad.any()  # type: ignore[union-attr]


def test_without_ignore_index_no_number_is_ignored_in_silence() -> None:
    module = LOSSES["cross_entropy"]().build(TensorSpec((CLASSES,)), TensorSpec((), "int64"), None)
    with pytest.raises(IndexError):
        module.sum(logits, torch.full((ROWS,), -100), None, None)


def test_weights_travel_with_the_module_and_stay_out_of_its_state() -> None:
    loss = LOSSES["cross_entropy"].model_validate({"type": "cross_entropy", "class_weights": WEIGHTS})
    module = loss.build(TensorSpec((CLASSES,)), TensorSpec((), "int64"), None)
    assert isinstance(module, torch.nn.Module)
    assert not module.state_dict()
    assert module.to("meta").class_weights.device.type == "meta"


class Kernels(TorchDispatchMode):
    """The names of all operations, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
@pytest.mark.parametrize(
    "more", [{}, {"ignore_index": 1, "class_weights": (0.5, 1.0, 2.0, 1.0)}], ids=["plain", "weighted"]
)
def test_pictures_of_classes_have_deterministic_kernels(name: str, more: dict[str, Any]) -> None:
    """CUDA has none for `nll_loss2d`, which torch takes for classes in dimension 1 of 4."""
    loss = LOSSES[name](class_dim=1, **more).build(TensorSpec((4, 5, 6)), TensorSpec((5, 6), "int64"), None)
    scores = torch.randn(2, 4, 5, 6).log_softmax(1).requires_grad_()
    target, weight = torch.randint(4, (2, 5, 6)), torch.tensor([1.0, 0.5])

    def values() -> list[torch.Tensor]:
        total = loss.sum(scores, target, None, weight)
        return [total.detach(), *torch.autograd.grad(total, scores), loss.items(scores, target, None).detach()]

    plain = values()
    torch.use_deterministic_algorithms(True)
    try:
        with Kernels() as kernels:
            found = values()
    finally:
        torch.use_deterministic_algorithms(False)
    assert "aten::nll_loss_backward" in kernels.names
    assert not [each for each in kernels.names if "nll_loss2d" in each]
    for one, other in zip(found, plain, strict=True):
        torch.testing.assert_close(one, other)
