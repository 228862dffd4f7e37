"""The nearest known name."""

from __future__ import annotations

import pytest

from declarative_train.core.diagnostics.suggest import did_you_mean, is_slip, nearest, suggest_fix
from declarative_train.core.span import Span

PLACE = Span("a.yaml", 1, 1, 1, 7)


def test_nearest() -> None:
    assert nearest("adamW", ["adam", "adamw", "sgd"]) == "adamw"
    assert nearest("layer-norm", ["layer_norm", "batch_norm"]) == "layer_norm"
    assert nearest("xyz", ["adam", "sgd"]) is None


def test_did_you_mean() -> None:
    assert did_you_mean("epoch", ["steps", "epochs"]) == "did you mean `epochs`? known: epochs, steps"
    assert did_you_mean("xyz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("xyz", []) == "there is none to choose from"
    many = [f"name{n:02}" for n in range(20)]
    assert did_you_mean("name07", many) == "did you mean `name07`?"
    assert did_you_mean("q", many).endswith("name11, and 8 more")


@pytest.mark.parametrize(
    ("name", "word", "known"),
    [
        ("epoch", "epochs", ["epochs", "steps"]),
        ("epcohs", "epochs", ["epochs", "steps"]),
        ("epoxhs", "epochs", ["epochs", "steps"]),
        ("eepochs", "epochs", ["epochs", "steps"]),
        ("AdamW", "adamw", ["adam", "adamw"]),
        ("batch-norm", "batch_norm", ["batch_norm", "layer_norm"]),
        ("CrossEntropy", "cross_entropy", ["cross_entropy"]),
    ],
)
def test_a_slip_has_one_meaning(name: str, word: str, known: list[str]) -> None:
    assert is_slip(name, word, known)


@pytest.mark.parametrize(
    ("name", "word", "known"),
    [
        ("adan", "adam", ["adam"]),  # short: there is an optimizer of that name
        ("prelu", "relu", ["relu"]),  # another first letter is another word
        ("conv1d", "conv2d", ["conv2d"]),  # digits do not slip
        ("colums", "column", ["column", "columns"]),  # two are as near
        ("adamx", "adamw", ["adam", "adamw"]),
        ("epox", "epochs", ["epochs"]),  # two letters
        ("a-b", "ab", ["ab", "a_b"]),
    ],
)
def test_what_may_mean_something_else_is_no_slip(name: str, word: str, known: list[str]) -> None:
    assert not is_slip(name, word, known)


def test_only_words_of_the_language_are_respelt_safely() -> None:
    [fix] = suggest_fix(PLACE, "epoch", ["epochs"], closed=True)
    assert (fix.replacement, fix.safe, fix.replaces) == ("epochs", True, "epoch")
    assert not suggest_fix(PLACE, "epoch", ["epochs"])[0].safe  # a name of the user's
    assert suggest_fix(PLACE, "epoch", ["epochs"], closed=True, taken=["epochs"]) == ()
    assert suggest_fix(PLACE, "xyz", ["epochs"]) == ()
