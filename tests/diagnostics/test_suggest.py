"""The nearest known name."""

from __future__ import annotations

from declarative_train.diagnostics.suggest import did_you_mean, nearest


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
