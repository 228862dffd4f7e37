"""What losses say about edges that do not fit, and balanced weights."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from pydantic import ValidationError

from declarative_train.components.component import Loss, ShapeError
from declarative_train.components.field_docs import field_docs
from declarative_train.components.losses import LOSSES
from declarative_train.core.tensor_spec import TensorSpec

F32, I64 = "float32", "int64"


def loss(type: str, **fields: object) -> Loss:
    return LOSSES[type].model_validate({"type": type, **fields})


def shape_error(
    found: Loss, input: TensorSpec, target: TensorSpec | None, mask: TensorSpec | None = None
) -> ShapeError:
    said = found.check(input, target, mask)
    assert said is not None
    return said


ELEMENTWISE = ["bce_with_logits", "huber", "l1", "mse", "poisson_nll", "smooth_l1"]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_is_documented_and_named_by_the_rule(name: str) -> None:
    found = LOSSES[name]
    assert found.model_fields["type"].default == name
    assert found.__name__.removesuffix("Loss") == "".join(word.capitalize() for word in name.split("_"))
    assert len(inspect.getdoc(found) or "") > 20
    assert found().type == name
    undocumented = [key for key in found.model_fields if key != "type" and key not in field_docs(found)]
    assert not undocumented
    assert not {"input", "target", "mask", "weight"} & found.model_fields.keys()  # words of the objective section
    assert found().model_json_schema()["additionalProperties"] is False
    again = found.model_validate(found().model_dump())
    assert again == found()


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_never_broadcast_and_show_both_ways_out(name: str) -> None:
    said = shape_error(loss(name), TensorSpec(()), TensorSpec((1,)))
    assert said.message == (
        f"`{name}` compares element by element and does not broadcast: the input is (B), the target (B, 1)"
    )
    assert said.port == "target"
    assert said.help == (
        "give the target's field `column: NAME` instead of `columns: [NAME]`, which makes it (B); "
        "or add a node `flat: TARGET[:, 0]`"
    )
    said = shape_error(loss(name), TensorSpec((1,)), TensorSpec(()))
    assert said.help == (
        "add a node `flat: INPUT[:, 0]`, which is (B); or give the target's field `columns: [NAME]` instead of "
        "`column: NAME`, which makes it (B, 1)"
    )
    assert "reshape" in str(shape_error(loss(name), TensorSpec((2, 3)), TensorSpec((6,))).help)
    assert shape_error(loss(name), TensorSpec((2, 3)), TensorSpec((7,))).help is None


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_losses_want_floats_a_target_and_a_mask_of_one_shape(name: str) -> None:
    x = TensorSpec((3,))
    assert loss(name).check(x, x, x) is None
    assert loss(name).check(x, TensorSpec((3,), "float64"), TensorSpec((3,), "bool")) is None
    assert loss(name).check(x, TensorSpec((3,), "bool"), None) is None
    assert shape_error(loss(name), TensorSpec((3,), I64), x).port == "input"
    assert "needs a target" in shape_error(loss(name), x, None).message
    said = shape_error(loss(name), x, x, TensorSpec((1,)))
    assert said.port == "mask"
    assert "items of shape (B, 3), but the mask is (B, 1)" in said.message
    assert "at least one value" in shape_error(loss(name), TensorSpec((0,)), TensorSpec((0,))).message


@pytest.mark.parametrize("name", ["cross_entropy", "nll"])
class TestClasses:
    def test_fits(self, name: str) -> None:
        assert loss(name).check(TensorSpec((10,)), TensorSpec((), I64, 10), None) is None
        assert loss(name).check(TensorSpec((7, 10)), TensorSpec((7,), "int32"), TensorSpec((7,), "bool")) is None
        images = TensorSpec((10, 4, 5)), TensorSpec((4, 5), "uint8"), None
        assert loss(name, class_dim=1).check(*images) is None

    def test_more_classes_than_scores_is_an_error(self, name: str) -> None:
        said = shape_error(loss(name), TensorSpec((10,)), TensorSpec((), I64, 37))
        assert said.message == "the target's classes go from 0 to 36, but the input has 10 scores in dimension -1"
        assert (said.port, said.is_warning) == ("input", False)
        assert "37" in str(said.help)

    def test_a_vocabulary_may_be_rounded_up(self, name: str) -> None:
        def check(scores: int) -> ShapeError | None:
            return loss(name).check(TensorSpec((scores,)), TensorSpec((), I64, 50257), None)

        assert check(50264) is check(50304) is None
        unexpected = check(50258), check(50432)
        assert all(each is not None and each.is_warning for each in unexpected)

    def test_more_scores_than_classes_is_a_warning(self, name: str) -> None:
        said = shape_error(loss(name), TensorSpec((37,)), TensorSpec((), I64, 10))
        assert said.message == "the input has 37 scores in dimension -1, but the target only 10 classes"
        assert said.is_warning
        mask = TensorSpec((2,))
        assert not shape_error(
            loss(name), TensorSpec((37,)), TensorSpec((), I64, 10), mask
        ).is_warning  # the worse one first

    def test_the_value_past_the_last_class_may_be_the_ignored_one(self, name: str) -> None:
        assert loss(name, ignore_index=10).check(TensorSpec((10,)), TensorSpec((), I64, 11), None) is None
        assert loss(name, ignore_index=0).check(TensorSpec((10,)), TensorSpec((), I64, 11), None) is not None

    def test_a_column_too_many(self, name: str) -> None:
        said = shape_error(loss(name), TensorSpec((10,)), TensorSpec((1,), I64))
        assert "needs a target (B), but it is (B, 1)" in said.message
        assert str(said.help).startswith("give the target's field `column: NAME` instead of `columns: [NAME]`")

    def test_a_dimension_of_1_too_many_in_the_scores(self, name: str) -> None:
        said = shape_error(loss(name), TensorSpec((1, 3)), TensorSpec((), I64))
        assert "needs a target (B, 1), but it is (B)" in said.message
        assert str(said.help).startswith("add a node `flat: INPUT[:, 0]`; or give the target's field `columns:")
        said = shape_error(loss(name, class_dim=1), TensorSpec((3, 1)), TensorSpec((), I64))
        assert said.help == "reshape one of them: they have one value per sample"

    def test_the_class_dimension_of_images(self, name: str) -> None:
        said = shape_error(loss(name), TensorSpec((10, 4, 5)), TensorSpec((4, 5), I64))
        assert said.help == "the shapes fit with `class_dim: 1`"
        said = shape_error(loss(name, class_dim=3), TensorSpec((4, 10)), TensorSpec((4,), I64))
        assert (said.field, said.help) == ("class_dim", "use -1 for the last one, or one of 1, 2")
        with pytest.raises(ValidationError, match="is the batch"):
            loss(name, class_dim=0)

    def test_one_number_per_sample(self, name: str) -> None:
        assert "needs a score for each class" in shape_error(loss(name), TensorSpec(()), TensorSpec((), I64)).message
        said = shape_error(loss(name), TensorSpec((1,)), TensorSpec((), I64))
        assert "needs two classes or more" in said.message
        assert "bce_with_logits" in str(said.help)

    def test_dtypes(self, name: str) -> None:
        assert "int64" in str(shape_error(loss(name), TensorSpec((10,)), TensorSpec((), F32)).help)  # type: ignore[arg-type]
        assert "is bool" in shape_error(loss(name), TensorSpec((10,)), TensorSpec((), "bool")).message
        assert shape_error(loss(name), TensorSpec((10,), I64), TensorSpec((), I64)).port == "input"

    def test_class_weights(self, name: str) -> None:
        given = TensorSpec((3,)), TensorSpec((), I64), None
        assert loss(name, class_weights=(1.0, 2.0, 0.0)).check(*given) is None
        said = shape_error(loss(name, class_weights=(1.0, 2.0)), *given)
        assert said.field == "class_weights"
        assert said.message == "`class_weights` has 2 numbers for 3 classes"

    def test_balanced(self, name: str) -> None:
        found, scores = loss(name, class_weights="balanced", ignore_index=9), TensorSpec((4,))
        assert found.needs_balance
        assert found.check(scores, TensorSpec((), I64), None) is None
        with pytest.raises(TypeError, match="was not replaced"):
            found.build(scores, TensorSpec((), I64), None)
        tally = found.tally(np.array([0, 0, 0, 9]), scores) + found.tally(np.array([[1, 2], [0, 2]], np.uint8), scores)
        assert tally.tolist() == [4, 1, 2, 0]
        resolved = found.balance(tally)
        assert not resolved.needs_balance
        assert resolved.model_dump()["class_weights"] == pytest.approx((7 / 12, 7 / 3, 7 / 6, 1.0))
        with pytest.raises(ValueError, match="is 4, but there are 4 classes"):
            found.tally(np.array([4]), scores)
        with pytest.raises(ValueError, match="no training row has a class"):
            found.balance(found.tally(np.array([9]), scores))


def test_soft_targets() -> None:
    scores = TensorSpec((10,))
    assert loss("cross_entropy").check(scores, TensorSpec((10,)), None) is None
    assert shape_error(loss("nll"), scores, TensorSpec((10,))).port == "target"
    assert shape_error(loss("cross_entropy", ignore_index=0), scores, TensorSpec((10,))).field == "ignore_index"
    assert (
        shape_error(loss("cross_entropy", class_weights="balanced"), scores, TensorSpec((10,))).field == "class_weights"
    )
    said = shape_error(loss("cross_entropy"), scores, TensorSpec((9,)))
    assert said.message == (
        "the target of `cross_entropy` is float32 (B, 9); it must be the class number, or class probabilities in "
        "the input's shape (B, 10)"
    )


def test_balanced_positives() -> None:
    found, x = loss("bce_with_logits", pos_weight="balanced"), TensorSpec(())
    assert found.needs_balance
    with pytest.raises(TypeError, match="was not replaced"):
        found.build(x, x, None)
    tally = found.tally(np.array([0, 0, 1.0]), x) + found.tally(np.array([False, True, False]), x)
    assert tally.tolist() == [[4], [2]]
    assert found.balance(tally).model_dump()["pos_weight"] == 2.0
    columns = found.tally(np.array([[0, 1], [1, 1], [0, 0], [0, 1]]), TensorSpec((2,)))
    assert found.balance(columns).model_dump()["pos_weight"] == pytest.approx((3.0, 1 / 3))
    with pytest.raises(ValueError, match=r"no training row is positive$"):
        found.balance(found.tally(np.zeros(3), x))
    with pytest.raises(ValueError, match="no training row is negative in column 1"):
        found.balance(found.tally(np.array([[0, 1], [1, 1]]), TensorSpec((2,))))


def test_pos_weights_and_classes_of_bce() -> None:
    x = TensorSpec((3,))
    assert loss("bce_with_logits", pos_weight=(1.0, 2.0, 3.0)).check(x, x, None) is None
    said = shape_error(loss("bce_with_logits", pos_weight=(1.0, 2.0)), x, x)
    assert (said.field, said.message) == (
        "pos_weight",
        "`pos_weight` has 2 numbers, but an input of shape (B, 3) needs 3",
    )
    said = shape_error(loss("bce_with_logits"), TensorSpec(()), TensorSpec((), I64, 10))
    assert "its values go from 0 to 9" in said.message
    assert loss("bce_with_logits").check(TensorSpec(()), TensorSpec((), I64, 2), None) is None


def test_mean_takes_no_target() -> None:
    assert loss("mean").check(TensorSpec(()), None, TensorSpec(())) is None
    assert not LOSSES["mean"].needs_target
    assert shape_error(loss("mean"), TensorSpec(()), TensorSpec(())).port == "target"
    assert shape_error(loss("mean"), TensorSpec((), I64), None).port == "input"
    assert shape_error(loss("mean"), TensorSpec(()), None, TensorSpec((1,))).port == "mask"


def test_kl_div() -> None:
    x = TensorSpec((4, 5))
    assert loss("kl_div").check(x, x, TensorSpec((), "bool")) is None
    assert shape_error(loss("kl_div"), x, x, TensorSpec((4,))).port == "mask"
    assert "one number per sample" in shape_error(loss("kl_div"), TensorSpec(()), TensorSpec(())).message
    assert shape_error(loss("kl_div"), x, TensorSpec((4, 5), I64)).port == "target"
    assert shape_error(loss("kl_div"), x, TensorSpec((4,))).port == "target"


def test_info_nce() -> None:
    x = TensorSpec((8,))
    assert LOSSES["info_nce"].mixes_samples
    assert "accepts no mask" in shape_error(loss("info_nce"), x, x, TensorSpec(())).message
    assert shape_error(loss("info_nce"), TensorSpec((2, 8)), TensorSpec((2, 8))).port == "input"
    assert shape_error(loss("info_nce"), x, TensorSpec((4,))).port == "target"
    assert shape_error(loss("info_nce", over="1 sample"), x, x).field == "over"
    with pytest.raises(ValidationError, match="is not `microbatch` or a number of samples"):
        loss("info_nce", over="32")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": "huber", "delta": 0.0}, "greater than 0"),
        ({"type": "cross_entropy", "label_smoothing": 1.5}, "less than or equal to 1"),
        ({"type": "cross_entropy", "class_weights": (-1.0, 2.0)}, "greater than or equal to 0"),
        ({"type": "bce_with_logits", "pos_weight": "balance"}, "balanced"),
        ({"type": "info_nce", "temperature": float("inf")}, "finite"),
        ({"type": "mse", "reduction": "sum"}, "Extra inputs"),
    ],
)
def test_wrong_fields(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LOSSES[str(fields["type"])].model_validate(fields)


@pytest.mark.parametrize("name", ["mse", "mean", "info_nce"])
def test_only_what_has_a_balance_is_balanced(name: str) -> None:
    assert not loss(name).needs_balance
    with pytest.raises(TypeError, match="nothing to balance"):
        loss(name).tally(np.zeros(1), TensorSpec(()))
    with pytest.raises(TypeError, match="nothing to balance"):
        loss(name).balance(np.zeros(1))
