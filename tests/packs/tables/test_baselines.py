"""Baselines of an evaluation: the same numbers as scikit-learn gives, on the rows of the set, in the target's unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import declarative_train as dt
from declarative_train.__main__ import main
from declarative_train.packs.tables import baselines

RECIPE = """\
name: rows
data:
  source: {{type: csv, path: rows.csv}}
  fields:
    x: {{columns: "x*", normalize: standard}}
    word: {{type: category, columns: [word], unknown: 0}}
    y: {target}
  split: {{validation: {{type: last, fraction: 0.25}}}}
model:
  graph:
    vectors: {{type: embeddings, embedding_dim: 2, input: word}}
    joined: {{type: concat, inputs: [x, vectors]}}
    net: {{type: mlp, hidden: [8], out_features: {outputs}}}
objective: {{loss: {{type: {loss}, input: net, target: y}}, metrics: [{metric}]}}
training: {{epochs: 1, global_batch_size: 50, optimizer: {{type: adam, lr: 1e-3}}}}
evaluation: {{every: 1 epoch}}
layout: {{device: cpu}}
"""
NUMBER = "{columns: [y], normalize: standard}"
CLASS = "{type: category, column: y}"


def write_rows(target: np.ndarray, x: np.ndarray, word: np.ndarray) -> None:
    lines = [f"{a!r},{b!r},{w},{y}" for (a, b), w, y in zip(x.tolist(), word, target.tolist(), strict=True)]
    Path("rows.csv").write_text("x0,x1,word,y\n" + "\n".join(lines) + "\n")


def made(kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    x, word = draw.normal(size=(400, 2)), draw.choice(["a", "b", "c"], 400)
    score = 3 * x[:, 0] * (word == "a") + x[:, 1] + draw.normal(0, 0.3, 400)
    return (100 + 20 * score if kind == "number" else (score > 0.3).astype(int)), x, word


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("number", "r2"),
        ("number", "rmse"),
        ("number", "mae"),
        ("class", "accuracy"),
        ("class", "auroc"),
        ("class", "f1"),
    ],
)
def test_baselines_equal_scikit_learn(
    kind: str, metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    from sklearn import ensemble, linear_model, metrics
    from threadpoolctl import threadpool_limits

    monkeypatch.chdir(tmp_path)
    target, x, word = made(kind)
    write_rows(target, x, word)
    is_class = kind == "class"
    keys = {"target": CLASS if is_class else NUMBER, "outputs": 2 if is_class else 1, "metric": metric}
    Path("rows.yaml").write_text(RECIPE.format(**keys, loss="cross_entropy" if is_class else "mse"))
    run = dt.load("rows.yaml").run(quiet=True)
    found = run.evaluate()
    assert found.comparison is not None
    assert found.comparison.metric == metric
    assert found.own_value == pytest.approx(found.values[f"validation/{metric}"], rel=1e-12)

    rows = np.arange(400) < 300
    scaled = (x - x[rows].mean(0)) / x[rows].std(0)
    codes = np.searchsorted(["a", "b", "c"], word)
    one_hot = np.concatenate([scaled, np.eye(3)[codes]], axis=1)
    trees = np.concatenate([scaled.astype(np.float32), codes[:, None] + 1], axis=1)
    linear = (
        linear_model.LogisticRegression(max_iter=1000) if is_class else linear_model.RidgeCV(np.logspace(-3, 3, 13))
    )
    kinds = {True: ensemble.HistGradientBoostingClassifier, False: ensemble.HistGradientBoostingRegressor}
    boosting = kinds[is_class](random_state=0, categorical_features=[False, False, True])
    score = {
        "accuracy": metrics.accuracy_score,
        "auroc": metrics.roc_auc_score,
        "f1": lambda truth, answer: metrics.f1_score(truth, answer, average="macro"),
        "mae": metrics.mean_absolute_error,
        "r2": metrics.r2_score,
        "rmse": metrics.root_mean_squared_error,
    }[metric]
    for name, model, inputs in (("linear", linear, one_hot), ("boosting", boosting, trees)):
        with threadpool_limits(1):
            model.fit(inputs[rows], target[rows])
        answers = model.predict_proba(inputs[~rows])[:, 1] if metric == "auroc" else model.predict(inputs[~rows])
        assert found.comparison.values[name] == pytest.approx(score(target[~rows], answers), rel=5e-3)
    assert main(["evaluate", str(run.folder), "--no-tensorboard"]) == 0
    shown = capsys.readouterr().out
    assert f"{metric}: {'majority' if is_class else 'mean'} " in shown
    assert f", this model {found.own_value:.3f}\n" in shown
    assert main(["evaluate", str(run.folder), "--no-tensorboard", "--no-baseline"]) == 0
    assert "this model" not in capsys.readouterr().out


def test_without_scikit_learn_there_is_a_constant_and_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(*made("class"))
    Path("rows.yaml").write_text(RECIPE.format(target=CLASS, outputs=2, metric="accuracy", loss="cross_entropy"))
    monkeypatch.setattr(baselines, "find_spec", lambda name: None)
    found = baselines.compare_set(dt.load("rows.yaml").plan().plan, "validation")
    assert found is not None
    assert list(found.values) == ["majority"]
    assert "scikit-learn: " in found.note


def test_a_sequence_has_no_baselines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(*made("number"))
    text = RECIPE.format(target="{columns: [y], normalize: standard, rows: -1}", outputs=1, metric="r2", loss="mse")
    text = text.replace("  split:", "  window: {length: 4}\n  split:").replace("input: word}", "input: last}")
    text = text.replace("    vectors:", "    last: word[:, -1]\n    row: x[:, -1]\n    vectors:").replace(
        "[x, vec", "[row, vec"
    )
    Path("rows.yaml").write_text(text)
    assert baselines.compare_set(dt.load("rows.yaml").plan().plan, "validation") is None


def test_baselines_leave_out_the_rows_that_the_mask_leaves_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target, x, word = made("class")
    target[word == "c"] = 1  # masked rows would raise the share of class 1
    write_rows(target, x, word)
    text = RECIPE.format(target=CLASS, outputs=2, metric="accuracy", loss="cross_entropy")
    masked = text.replace("target: y}", "target: y, mask: counts}")
    kept = "    counts: {type: category, column: word}\n"
    Path("rows.yaml").write_text(
        masked.replace("  split:", kept.replace("counts:", "kind:") + "  split:").replace(
            "  graph:\n", "  graph:\n    counts: kind != 2\n"
        )
    )
    assert baselines.compare_set(dt.load("rows.yaml").plan().plan, "validation") is None  # no field: not known
    rows = [line.split(",") for line in Path("rows.csv").read_text().splitlines()]
    lines = [",".join([*row, "counts" if not at else str(row[2] != "c").lower()]) for at, row in enumerate(rows)]
    Path("rows.csv").write_text("\n".join(lines) + "\n")
    for kind, is_compared in (("bool", True), ("float32", False)):
        field = f"    counts: {{column: counts, dtype: {kind}}}\n"
        Path("rows.yaml").write_text(masked.replace("  split:", field + "  split:"))
        found = baselines.compare_set(dt.load("rows.yaml").plan().plan, "validation")
        assert (found is not None) == is_compared
        if found is not None:
            share = target[300:][word[300:] != "c"].mean()
            assert found.values["majority"] == pytest.approx(max(share, 1 - share))


def test_baselines_are_compared_by_a_metric_of_the_same_meaning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(*made("class"))
    text = RECIPE.format(target=CLASS, outputs=1, metric="f1", loss="bce_with_logits")
    one = text.replace("input: net", "input: logit").replace("objective:", "    logit: net[:, 0]\nobjective:")
    Path("rows.yaml").write_text(one)
    found = dt.load("rows.yaml").run(quiet=True).evaluate()
    assert found.comparison is not None
    assert found.comparison.metric == "accuracy"  # f1 is of the positives alone, the baselines' a mean over classes
    three = "{type: category, column: y, num_classes: 3}"
    text = RECIPE.format(target=three, outputs=3, metric="accuracy", loss="cross_entropy")
    Path("rows.yaml").write_text(text.replace("[accuracy]", "{accuracy: {top_k: 2}}"))
    found = dt.load("rows.yaml").run(quiet=True).evaluate()
    assert found.own_value == found.reports[0].metrics["accuracy"] < found.values["validation/accuracy"]


def test_baselines_read_what_their_output_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    target, x, word = made("number")
    write_rows(target, x, word)
    text = RECIPE.format(target=NUMBER, outputs=1, metric="r2", loss="mse")
    alone = "objective: {loss: {type: mse, input: net, target: y}, metrics: [r2]}"
    Path("rows.yaml").write_text(text)
    wanted = baselines.compare_set(dt.load("rows.yaml").plan().plan, "validation")
    both = "one: {type: mse, input: net, target: y}, two: {type: mse, input: other, target: twice}"
    text = text.replace(alone, f"objective: {{losses: {{{both}}}, metrics: {{r2: {{of: two}}}}}}")
    text = text.replace("    y: {", "    again: {columns: [y]}\n    y: {")
    text = text.replace(
        "    net:", "    other: {type: linear, out_features: 1, input: joined}\n    twice: again * 2\n    net:"
    )
    text = text.replace("out_features: 1}}", "out_features: 1, input: joined}}")
    Path("rows.yaml").write_text(text.replace("net: {type: mlp,", "net: {type: mlp, input: joined,"))
    found = dt.load("rows.yaml").run(quiet=True).evaluate()
    assert found.comparison == wanted  # without `again`, which holds the target
    assert found.own_value == found.reports[0].metrics["r2"] != found.values["validation/r2"]
