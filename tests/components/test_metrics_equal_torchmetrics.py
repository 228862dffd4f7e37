"""Every metric against torchmetrics on the whole set: in uneven batches with padding, over uneven ranks, with masks."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch.nn import functional as F

from declarative_train.components.component import Collective, Metric, MetricInputs, MetricModule, ShapeError
from declarative_train.components.field_docs import field_docs
from declarative_train.components.metrics import METRICS
from declarative_train.core.tensor_spec import TensorSpec
from tests.alone import mark_packs
from tests.later import Later

tmf, tmc = Later("torchmetrics.functional"), Later("torchmetrics.functional.classification")
tmr = Later("torchmetrics.functional.retrieval")
ROWS, CLASSES = 23, 5
CPU = torch.device("cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbers(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def spec(tensor: Tensor | None) -> TensorSpec | None:
    return None if tensor is None else TensorSpec(tuple(tensor.shape[1:]), str(tensor.dtype).removeprefix("torch."))  # type: ignore[arg-type]


class Alone(Collective):
    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def concatenate(self, tensor: Tensor) -> Tensor:
        return tensor


class Recorder(Collective):
    """A first pass: what one rank sends."""

    def __init__(self) -> None:
        self.sent: list[Tensor] = []

    def sum(self, tensor: Tensor) -> Tensor:
        self.sent.append(tensor.clone())
        return tensor

    def concatenate(self, tensor: Tensor) -> Tensor:
        return self.sum(tensor)


class Together(Collective):
    """A second pass: what all ranks sent, joined."""

    def __init__(self, recorders: list[Recorder]) -> None:
        self._calls = iter(zip(*(recorder.sent for recorder in recorders), strict=True))

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(next(self._calls)).sum(0)

    def concatenate(self, tensor: Tensor) -> Tensor:
        return torch.cat(next(self._calls))


def over_ranks(modules: list[MetricModule]) -> list[Tensor]:
    recorders = [Recorder() for _ in modules]
    for module, recorder in zip(modules, recorders, strict=True):
        module.compute(recorder)
    return [module.compute(Together(recorders)) for module in modules]


@dataclass
class Case:
    """`wanted` is computed by torchmetrics (or torch) on the items that count."""

    name: str
    fields: dict[str, object]
    input: Tensor
    target: Tensor | None
    wanted: Callable[[], Tensor]
    mask: Tensor | None = None
    ignore_index: int | None = None
    class_dim: int = -1
    tolerance: float = field(default=1e-6)


x, y = normal(ROWS, 3), normal(ROWS, 3, seed=2)
some = normal(ROWS, 3, seed=3) > -0.2
amounts = normal(ROWS, 3, seed=4).abs()
logits, label = normal(ROWS, CLASSES), numbers(CLASSES, ROWS)
text, token = normal(ROWS, 4, CLASSES), numbers(CLASSES, ROWS, 4)
padded = token.masked_fill(normal(ROWS, 4, seed=5) > 0.3, -100)
image, pixel = normal(ROWS, CLASSES, 2, 3), numbers(CLASSES, ROWS, 2, 3)
keep = normal(ROWS, 4, seed=6) > 0
score, fraud = normal(ROWS), (normal(ROWS, seed=7) > 0.8).long()
scores, frauds = normal(ROWS, 3), (normal(ROWS, 3, seed=8) > 0.5).float()
tied = (normal(ROWS, seed=9) * 2).round()
soft = torch.softmax(normal(ROWS, CLASSES, seed=10), 1)
rare = label.masked_fill(label > 2, 0)  # classes 3 and 4 never occur

boxes = torch.cat([normal(ROWS, 2, 2, seed=20), normal(ROWS, 2, 2, seed=21).abs() + 0.1], -1)
moved = boxes + 0.3 * normal(ROWS, 2, 4, seed=22).abs()


def box_ious(keep: Tensor | None = None) -> Tensor:
    """Left, top, width and height, box by box."""
    found = []
    for one, other in zip(boxes.reshape(-1, 4).tolist(), moved.reshape(-1, 4).tolist(), strict=True):
        sides = [min(one[k] + one[2 + k], other[k] + other[2 + k]) - max(one[k], other[k]) for k in (0, 1)]
        both = max(sides[0], 0) * max(sides[1], 0)
        found.append(both / (one[2] * one[3] + other[2] * other[3] - both))
    values = torch.tensor(found)
    return (values if keep is None else values[keep.reshape(-1)]).mean()


flat, flat_token = text.reshape(-1, CLASSES), token.reshape(-1)
valid = padded.reshape(-1) != -100


def multi(function: Callable[..., Tensor], **options: object) -> Callable[[], Tensor]:
    return lambda: function(logits, label, num_classes=CLASSES, **options)


def over_binary(function: Callable[..., Tensor]) -> Callable[[], Tensor]:
    return lambda: torch.stack(
        [function(logits.double().softmax(-1)[:, c], (rare == c).long()) for c in range(3)]
    ).mean()


several, chosen = normal(ROWS, 6, seed=21), (normal(ROWS, 6, seed=22) > 0).long()


def over_rows(function: Callable[..., torch.Tensor], rows: Sequence[int]) -> Callable[[], torch.Tensor]:
    """The mean over rows of the metric of one query; probabilities, since torchmetrics retrieves no score below 0."""
    return lambda: torch.stack([function(several[at].sigmoid(), chosen[at], top_k=3) for at in rows]).mean()


WITH_POSITIVE = [at for at in range(ROWS) if chosen[at].any()]

CASES = [
    Case("mae", {"type": "mae"}, x, y, lambda: tmf.mean_absolute_error(x, y)),
    Case("mse", {"type": "mse"}, x, y, lambda: tmf.mean_squared_error(x, y)),
    Case("rmse", {"type": "rmse"}, x, y, lambda: tmf.mean_squared_error(x, y, squared=False)),
    Case("mape", {"type": "mape"}, x, y, lambda: tmf.mean_absolute_percentage_error(x, y)),
    Case("rmse, bool mask", {"type": "rmse"}, x, y, lambda: F.mse_loss(x[some], y[some]).sqrt(), some),
    Case("mae, weights", {"type": "mae"}, x, y, lambda: ((x - y).abs() * amounts).sum() / amounts.sum(), amounts),
    Case("mse of integers", {"type": "mse"}, x[:, 0], label, lambda: tmf.mean_squared_error(x[:, 0], label.float())),
    Case("r2", {"type": "r2"}, x, y, lambda: tmf.r2_score(x, y)),
    Case("r2 of one", {"type": "r2"}, x[:, 0], y[:, 0], lambda: tmf.r2_score(x[:, 0], y[:, 0])),
    Case("mean", {"type": "mean"}, x, None, lambda: x.mean()),
    Case("mean, mask", {"type": "mean"}, x, None, lambda: x[some].mean(), some),
    Case("accuracy", {"type": "accuracy"}, logits, label, multi(tmc.multiclass_accuracy, average="micro")),
    Case(
        "accuracy, top 2",
        {"type": "accuracy", "top_k": 2},
        logits,
        label,
        multi(tmc.multiclass_accuracy, average="micro", top_k=2),
    ),
    Case(
        "accuracy of images",
        {"type": "accuracy"},
        image,
        pixel,
        lambda: tmc.multiclass_accuracy(image, pixel, num_classes=CLASSES, average="micro"),
        class_dim=1,
    ),
    Case(
        "accuracy, ignored",
        {"type": "accuracy"},
        text,
        padded,
        lambda: tmc.multiclass_accuracy(
            flat, padded.reshape(-1), num_classes=CLASSES, average="micro", ignore_index=-100
        ),
        ignore_index=-100,
    ),
    Case(
        "accuracy, ignored and mask",
        {"type": "accuracy"},
        text,
        padded,
        lambda: (flat.argmax(-1) == padded.reshape(-1))[valid & keep.reshape(-1)].double().mean(),
        keep,
        ignore_index=-100,
    ),
    Case(
        "accuracy of soft targets",
        {"type": "accuracy", "task": "multiclass"},
        logits,
        soft,
        lambda: tmc.multiclass_accuracy(logits, soft.argmax(1), num_classes=CLASSES, average="micro"),
    ),
    Case("accuracy, yes or no", {"type": "accuracy"}, score, fraud, lambda: tmc.binary_accuracy(score, fraud)),
    Case(
        "accuracy, several yes or no",
        {"type": "accuracy"},
        scores,
        frauds,
        lambda: tmc.binary_accuracy(scores, frauds.long()),
    ),
    Case(
        "accuracy of probabilities",
        {"type": "accuracy", "threshold": 0.5},
        score.sigmoid(),
        fraud.bool(),
        lambda: tmc.binary_accuracy(score.sigmoid(), fraud),
    ),
    Case("perplexity", {"type": "perplexity"}, text, token, lambda: tmf.text.perplexity(text, token), tolerance=1e-5),
    Case(
        "perplexity, ignored",
        {"type": "perplexity"},
        text,
        padded,
        lambda: tmf.text.perplexity(text, padded, ignore_index=-100),
        ignore_index=-100,
        tolerance=1e-5,
    ),
    Case(
        "perplexity, mask",
        {"type": "perplexity"},
        text,
        token,
        lambda: F.cross_entropy(text[keep], token[keep]).exp(),
        keep,
        tolerance=1e-5,
    ),
    *(
        Case(
            f"{name}, {average}",
            {"type": name, "average": average},
            logits,
            label,
            multi(getattr(tmc, f"multiclass_{long}"), average=average),
        )
        for name, long in (
            ("precision", "precision"),
            ("recall", "recall"),
            ("f1", "f1_score"),
            ("iou", "jaccard_index"),
        )
        for average in ("macro", "micro", "weighted")
    ),
    *(
        Case(
            f"{name}, yes or no",
            {"type": name},
            score,
            fraud,
            lambda long=long: getattr(tmc, f"binary_{long}")(score, fraud),  # type: ignore[misc]
        )
        for name, long in (
            ("precision", "precision"),
            ("recall", "recall"),
            ("f1", "f1_score"),
            ("iou", "jaccard_index"),
        )
    ),
    Case(
        "f1, rare classes, ignored",
        {"type": "f1"},
        text,
        padded,
        lambda: tmc.multiclass_f1_score(flat, padded.reshape(-1), num_classes=CLASSES, ignore_index=-100),
        ignore_index=-100,
    ),
    Case(
        "recall, mask",
        {"type": "recall", "task": "binary"},
        scores,
        frauds,
        lambda: tmc.binary_recall(scores[some], frauds[some].long()),
        some,
    ),
    Case(
        "iou of images, rare classes",
        {"type": "iou"},
        image,
        pixel.masked_fill(pixel > 2, 0),
        lambda: tmc.multiclass_jaccard_index(image, pixel.masked_fill(pixel > 2, 0), num_classes=CLASSES),
        class_dim=1,
    ),
    Case("box_iou", {"type": "box_iou", "format": "xywh"}, boxes, moved, box_ious),
    Case(
        "box_iou, mask",
        {"type": "box_iou", "format": "xywh"},
        boxes,
        moved,
        lambda: box_ious(some[:, :2]),
        some[:, :2],
    ),
    Case("auroc", {"type": "auroc"}, score, fraud, lambda: tmc.binary_auroc(score, fraud)),
    Case("auroc with ties", {"type": "auroc"}, tied, fraud, lambda: tmc.binary_auroc(tied.double(), fraud)),
    Case(
        "auroc of large logits",  # a float32 sigmoid would make these equal
        {"type": "auroc"},
        score + 40,
        fraud,
        lambda: tmc.binary_auroc(score.double().sigmoid(), fraud),
    ),
    Case(
        "auroc, mask",
        {"type": "auroc", "task": "binary"},
        scores,
        frauds,
        lambda: tmc.binary_auroc(scores[some], frauds[some].long()),
        some,
    ),
    Case("auroc of classes", {"type": "auroc"}, logits, label, multi(tmc.multiclass_auroc)),
    Case(
        "auroc of classes, weighted",
        {"type": "auroc", "average": "weighted"},
        logits,
        label,
        multi(tmc.multiclass_auroc, average="weighted"),
    ),
    Case(
        "auroc of tokens, ignored",
        {"type": "auroc"},
        text,
        padded,
        lambda: tmc.multiclass_auroc(flat[valid], padded.reshape(-1)[valid], num_classes=CLASSES),
        ignore_index=-100,
    ),
    Case("auroc of classes that occur", {"type": "auroc"}, logits, rare, over_binary(tmc.binary_auroc)),
    Case(
        "average_precision",
        {"type": "average_precision"},
        score,
        fraud,
        lambda: tmc.binary_average_precision(score, fraud),
    ),
    Case(
        "average_precision of classes",
        {"type": "average_precision"},
        logits,
        label,
        multi(tmc.multiclass_average_precision),
    ),
    Case("mcc", {"type": "mcc"}, logits, label, lambda: tmc.multiclass_matthews_corrcoef(logits, label, CLASSES)),
    *(
        Case(name, {"type": name}, several, chosen, lambda function=function: function(several, chosen, num_labels=6))
        for name, function in (
            ("lrap", tmc.multilabel_ranking_average_precision),
            ("coverage_error", tmc.multilabel_coverage_error),
            ("ranking_loss", tmc.multilabel_ranking_loss),
        )
    ),
    Case("ndcg", {"type": "ndcg", "k": 3}, several, chosen, over_rows(tmr.retrieval_normalized_dcg, range(ROWS))),
    Case(
        "recall_at_k",
        {"type": "recall_at_k", "k": 3},
        several,
        chosen,
        over_rows(tmr.retrieval_recall, WITH_POSITIVE),
    ),
]


def metric(**fields: object) -> Metric:
    return METRICS[str(fields["type"])].model_validate(fields)


def build(case: Case, device: torch.device = CPU) -> MetricModule:
    found = metric(**case.fields)
    given = spec(case.input), spec(case.target), spec(case.mask)
    edges = MetricInputs(*given, case.class_dim, case.ignore_index)  # type: ignore[arg-type]
    assert found.check(edges) is None
    return found.build(edges, device)


def part(case: Case, at: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    target, mask = (None if given is None else given[at] for given in (case.target, case.mask))
    return case.input[at], target, mask


def feed(case: Case, module: MetricModule, rows: range, sizes: tuple[int, ...]) -> None:
    """Batches of these sizes, each with two padding rows."""
    start = rows.start
    for size in sizes:
        at = torch.tensor([*range(start, start + size), start, start])
        module.update(*part(case, at), torch.tensor([1.0] * size + [0.0] * 2))
        start += size
    assert start == rows.stop


def wanted(case: Case) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(case.wanted())


@pytest.mark.parametrize("case", mark_packs(CASES, lambda case: repr(case.fields)), ids=lambda case: case.name)
class TestEqual:
    def test_the_whole_set_at_once(self, case: Case) -> None:
        module = build(case)
        module.update(case.input, case.target, case.mask, None)
        value = module.compute(Alone())
        assert value.dtype == torch.float64
        assert value.shape == ()
        assert float(value) == pytest.approx(wanted(case), rel=case.tolerance)

    def test_uneven_batches_with_padding(self, case: Case) -> None:
        module = build(case)
        feed(case, module, range(ROWS), (9, 1, 13))
        assert float(module.compute(Alone())) == pytest.approx(wanted(case), rel=case.tolerance)

    def test_uneven_ranks_one_of_them_empty(self, case: Case) -> None:
        ranks = [build(case) for _ in range(3)]
        feed(case, ranks[0], range(17), (9, 8))
        feed(case, ranks[1], range(17, ROWS), (6,))
        values = over_ranks(ranks)
        assert len({float(value) for value in values}) == 1
        assert float(values[0]) == pytest.approx(wanted(case), rel=case.tolerance)

    def test_reset_forgets_and_nothing_is_nan(self, case: Case) -> None:
        module = build(case)
        assert torch.isnan(module.compute(Alone()))
        module.update(-case.input, case.target, case.mask, None)
        module.reset()
        assert torch.isnan(module.compute(Alone()))
        module.update(*part(case, torch.tensor([0, 0])), torch.zeros(2))
        assert torch.isnan(module.compute(Alone()))
        module.update(case.input, case.target, case.mask, None)
        assert float(module.compute(Alone())) == pytest.approx(wanted(case), rel=case.tolerance)

    def test_update_never_waits_for_the_device(self, case: Case) -> None:
        """A meta tensor has no values: whoever asks for one fails."""
        given = [None if t is None else t.to("meta") for t in (case.input, case.target, case.mask)]
        module = build(case, torch.device("meta"))
        module.update(*given, torch.ones(ROWS, device="meta"))  # type: ignore[arg-type]
        module.update(*given, None)  # type: ignore[arg-type]


MASKED = [case for case in CASES if case.mask is not None]


@pytest.mark.parametrize("case", mark_packs(MASKED, lambda case: repr(case.fields)), ids=lambda case: case.name)
def test_masked_items_may_be_nan(case: Case) -> None:
    assert case.mask is not None
    spoilt = case.input.clone()
    spoilt[~case.mask.bool()] = torch.nan
    module = build(case)
    module.update(spoilt, case.target, case.mask, None)
    assert float(module.compute(Alone())) == pytest.approx(wanted(case), rel=case.tolerance)


def test_half_precision_is_summed_in_full() -> None:
    module = metric(type="mse").build(MetricInputs(TensorSpec((), "bfloat16"), TensorSpec(())), CPU)
    values = torch.full((3000,), 0.1, dtype=torch.bfloat16)
    module.update(values, torch.zeros(3000), None, None)
    assert float(module.compute(Alone())) == pytest.approx(float(values[0]) ** 2, rel=1e-6)


def test_what_has_only_one_answer_has_no_ranking() -> None:
    for name in ("auroc", "average_precision"):
        module = metric(type=name).build(MetricInputs(TensorSpec(()), TensorSpec(())), CPU)
        module.update(score, torch.zeros(ROWS), None, None)
        assert torch.isnan(module.compute(Alone()))


def test_a_model_that_gives_nan_has_no_ranking() -> None:
    module = metric(type="auroc").build(MetricInputs(TensorSpec(()), TensorSpec(())), CPU)
    module.update(score.index_fill(0, torch.tensor(3), torch.nan), fraud, None, None)
    assert torch.isnan(module.compute(Alone()))


def test_kept_scores_are_not_the_batchs_own() -> None:
    module = metric(type="auroc").build(MetricInputs(TensorSpec(()), TensorSpec((), "bool")), CPU)
    values, answers = score.clone(), fraud.bool()
    module.update(values, answers, None, None)
    values.zero_()
    answers.zero_()
    assert float(module.compute(Alone())) == pytest.approx(float(tmc.binary_auroc(score, fraud)), rel=1e-6)


@pytest.mark.parametrize("value", [1.0, 0.1])  # sums of 0.1 are rounded
def test_a_constant_target_has_no_r2(value: float) -> None:
    modules = [metric(type="r2").build(MetricInputs(TensorSpec(()), TensorSpec(())), CPU) for _ in range(2)]
    for module in modules:
        module.update(score, torch.full((ROWS,), value, dtype=torch.float64), None, None)
        module.update(score[:3], torch.full((3,), value, dtype=torch.float64), None, None)
    assert torch.isnan(modules[0].compute(Alone()))
    assert all(torch.isnan(each) for each in over_ranks(modules))


def shape_error(found: Metric, *given: TensorSpec | None, **options: int) -> ShapeError:
    said = found.check(MetricInputs(*given, **options))  # type: ignore[arg-type]
    assert said is not None
    return said


F32, I64 = TensorSpec(()), TensorSpec((), "int64")


def test_what_a_metric_says() -> None:
    ten, one = TensorSpec((10,)), TensorSpec((1,))
    assert "does not broadcast" in shape_error(metric(type="mae"), F32, one, None).message
    assert shape_error(metric(type="accuracy"), one, I64, None).port == "input"
    assert "needs a target" in shape_error(metric(type="accuracy"), ten, None, None).message
    assert shape_error(metric(type="accuracy"), ten, TensorSpec((), "int64", 37), None).port == "input"
    assert (
        metric(type="accuracy").check(MetricInputs(ten, TensorSpec((), "int64", 9), None)) is None
    )  # the loss has warned
    assert shape_error(metric(type="accuracy"), ten, I64, one).port == "mask"
    said = shape_error(metric(type="f1"), ten, TensorSpec((10,), "int64", 3), None)
    assert "the same shape, but the target's values go from 0 to 2" in said.message
    images = TensorSpec((10, 4, 4)), TensorSpec((4, 4), "int64"), None
    assert shape_error(metric(type="perplexity"), *images).help == "the shapes fit with `class_dim: 1`"
    assert metric(type="perplexity").check(MetricInputs(*images, class_dim=1)) is None
    said = shape_error(metric(type="auroc"), F32, F32, F32)
    assert said.port == "mask"
    assert said.message == "`auroc` cannot weight items, but the mask is float32: a weight for each item"
    assert metric(type="auroc").check(MetricInputs(F32, F32, TensorSpec((), "bool"))) is None
    assert metric(type="mean").check(MetricInputs(F32, I64, None)) is None
    past_the_last = ten, TensorSpec((), "int64", 11), None
    assert metric(type="accuracy").check(MetricInputs(*past_the_last, ignore_index=10)) is None


def test_top_k() -> None:
    assert shape_error(metric(type="accuracy", top_k=5), TensorSpec((5,)), I64, None).field == "top_k"
    assert shape_error(metric(type="accuracy", top_k=2), F32, F32, None).field == "top_k"
    assert metric(type="accuracy", top_k=4).check(MetricInputs(TensorSpec((5,)), I64, None)) is None
    with pytest.raises(ValidationError):
        metric(type="accuracy", top_k=0)


RANKED_ROWS = {"coverage_error", "lrap", "ndcg", "ranking_loss", "recall_at_k"}
MEANS = RANKED_ROWS | {"accuracy", "box_iou", "mae", "mape", "mean", "mse", "perplexity", "rmse"}
LOWER = {"coverage_error", "ranking_loss", "mae", "mape", "mean", "mse", "perplexity", "rmse"}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_every_metric_is_documented_and_named_by_the_rule(name: str) -> None:
    found = METRICS[name]
    assert found.model_fields["type"].default == name
    assert found.__name__.removesuffix("Metric") == "".join(word.capitalize() for word in name.split("_"))
    assert len(inspect.getdoc(found) or "") > 20
    undocumented = [key for key in found.model_fields if key != "type" and key not in field_docs(found)]
    assert not undocumented
    assert not {"of", "input", "target", "mask"} & found.model_fields.keys()  # words of the objective section
    assert found.is_mean == (name in MEANS)
    assert found.higher_is_better == (name not in LOWER)
    assert any(case.fields["type"] == name for case in CASES)
    assert found.model_validate(found().model_dump()) == found()
