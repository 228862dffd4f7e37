"""A loss in chunks: the same numbers as the whole one, less memory, and what stands in its way is said."""

from __future__ import annotations

import shutil
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from declarative_train.components.losses.modules import chunked
from declarative_train.components.losses.modules.chunked import ChunkedHead
from declarative_train.components.losses.modules.classes import OverClasses
from declarative_train.engine.engine import Engine
from declarative_train.planner.estimate.model import facts_of
from declarative_train.planner.footprint.forecast import Forecast
from declarative_train.run.event import EvaluationDone
from tests.engine.live_bytes import live_bytes
from tests.engine.made_recipes import compiled, merged
from tests.engine.parity import largest_difference, record
from tests.engine.runs import go
from tests.linted import CASES, found_in, write

VOCABULARY = 997
RECIPE: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "words.npz"},
        "split": {"validation": 0.2},
        "fields": {
            "tokens": {"column": "tokens", "dtype": "int64"},
            "next": {"column": "next", "dtype": "int64"},
            "kept": {"column": "kept", "dtype": "bool"},
        },
    },
    "model": {
        "graph": {
            "embed": {"type": "embedding", "num_embeddings": VOCABULARY, "embedding_dim": 8, "input": "tokens"},
            "act": {"type": "gelu"},
            "logits": {"type": "linear", "out_features": VOCABULARY},
        }
    },
    "objective": {
        "loss": {"type": "cross_entropy", "input": "logits", "target": "next", "ignore_index": 0},
        "metrics": {"perplexity": {"of": "loss"}},
    },
    "training": {"steps": 3, "global_batch_size": 16, "optimizer": {"type": "sgd", "lr": 0.1}, "precision": "fp64"},
    "evaluation": {"every": "3 steps"},
    "layout": {"device": "cpu"},
}
CHUNKED = {"objective": {"loss": {"chunks": 7}}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    random = np.random.default_rng(3)
    following = random.integers(1, VOCABULARY, (50, 24))
    following[random.random((50, 24)) < 0.3] = 0
    kept = random.random((50, 24)) < 0.7
    np.savez(tmp_path / "words.npz", tokens=random.integers(0, VOCABULARY, (50, 24)), next=following, kept=kept)
    return tmp_path


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"training": {"gradient_accumulation_steps": 2}, "objective": {"loss": {"mask": "kept"}}},
        {"objective": {"loss": {"class_weights": "balanced", "label_smoothing": 0.1}, "metrics": None}},
        {"model": {"graph": {"logits": {"bias": False}}, "parameters": {"logits.weight": {"tie": "embed.weight"}}}},
    ],
    ids=["ignored", "masked", "weighted", "tied"],
)
def test_loss_and_gradients_are_those_of_the_whole_one(changes: dict[str, Any], directory: Path) -> None:
    whole = record(directory, merged(RECIPE, changes))
    found = record(directory, merged(merged(RECIPE, changes), CHUNKED))
    assert found.losses == pytest.approx(whole.losses, rel=1e-12)
    assert largest_difference(whole, found) <= 1e-10


def test_evaluation_and_perplexity_are_too(directory: Path) -> None:
    values = []
    for changes in ({}, CHUNKED):
        done = go(directory, RECIPE, changes)
        values.append([event.values for event in done.events if isinstance(event, EvaluationDone)][-1])
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert {"validation/loss", "validation/perplexity"} <= values[0].keys()


def test_of_few_classes_it_evaluates_too(directory: Path) -> None:
    """Predictions are not drawn: their scores are nowhere."""
    field = {"column": "kept", "type": "category", "num_classes": 2}
    few = {"data": {"fields": {"next": field, "kept": None}}}
    graph = {"model": {"graph": {"logits": {"out_features": 2}}}, "objective": {"loss": {"ignore_index": None}}}
    values = []
    for changes in ({}, CHUNKED):
        done = go(directory, RECIPE, few, graph, changes)
        assert done.code == 0
        values.append([event.values for event in done.events if isinstance(event, EvaluationDone)][-1])
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_never_more_scores_than_those_of_a_part(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lives at most is counted, and the plan foretells it; the scores are 16 x 24 x 997 numbers."""
    peaks = []
    for changes in ({}, CHUNKED):
        plan = compiled(directory, merged(merged(RECIPE, changes), {"training": {"precision": "fp32"}}))
        (measured,), (row,) = live_bytes(plan), Forecast().memory(plan).rows
        assert row.total == pytest.approx(measured.total, rel=0.02)
        peaks.append(measured.total)
    scores = 16 * 24 * VOCABULARY * 4
    assert peaks[0] - peaks[1] > 1.5 * scores
    monkeypatch.setattr(chunked, "_parts", lambda size, number: [slice(0, size)])
    assert live_bytes(compiled(directory, merged(RECIPE, CHUNKED)))[0].total > peaks[1] + scores


def test_what_it_computes_once_more_is_counted(directory: Path) -> None:
    whole, found = compiled(directory, RECIPE), compiled(directory, merged(RECIPE, CHUNKED))
    assert (whole.flops.recomputed, found.flops.recomputed) == (0, 2 * 24 * 8 * VOCABULARY)
    assert facts_of(whole).nodes["logits"].kept == 24 * VOCABULARY
    assert facts_of(found).nodes["logits"].kept == 24


def test_a_masked_item_may_be_anything(directory: Path) -> None:
    """nan in the scores and no class at all as the target."""
    term = compiled(directory, merged(RECIPE, {"objective": {"loss": {"mask": "kept", "chunks": 2}}}))
    head = next(part for part in Engine(term, torch.device("cpu")).model.modules() if isinstance(part, ChunkedHead))
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    x[0, 1] = torch.nan
    x.requires_grad_()
    target, mask = torch.full((2, 3), 5), torch.ones(2, 3, dtype=torch.bool)
    target[0, 1], mask[0, 1] = -7, False
    items = head(x, target, mask)
    items.sum().backward()
    assert items[0, 1] == 0
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="since torch 2.13")
def test_a_head_in_chunks_equals_that_of_torch_in_chunks() -> None:
    draws = torch.Generator().manual_seed(0)
    weights = tuple(torch.rand(50, generator=draws, dtype=torch.float64).tolist())
    term = OverClasses(F.cross_entropy, (50,), 0, soft=False, ignore_index=3, class_weights=weights, masked=False)
    linear = torch.nn.Linear(6, 50, dtype=torch.float64)
    x = torch.randn(64, 6, generator=draws, dtype=torch.float64, requires_grad=True)
    target = torch.randint(5, (64,), generator=draws)
    theirs = F.linear_cross_entropy(
        x,
        linear.weight,
        target,
        linear_bias=linear.bias,
        weight=torch.tensor(weights, dtype=torch.float64),
        reduction="sum",
        ignore_index=3,
        options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=9),
    )
    ours = ChunkedHead(linear, term, 7)(x, target).sum()
    torch.testing.assert_close(ours, theirs)
    wanted, found = (torch.autograd.grad(each, (x, linear.weight, linear.bias)) for each in (theirs, ours))
    torch.testing.assert_close(found, wanted)


def test_half_precision(directory: Path) -> None:
    """Nothing but the parameters and the products is rounded, as without chunks."""
    half = {"training": {"precision": "bf16", "activation_checkpointing": "all"}}
    whole, found = (record(directory, merged(merged(RECIPE, changes), half)) for changes in ({}, CHUNKED))
    assert found.losses == pytest.approx(whole.losses, rel=2e-3)
    assert largest_difference(whole, found) < 0.05


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore:The .grad attribute of a Tensor")
def test_beside_compiled_layers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced, without the code that would come of it."""
    monkeypatch.setattr(torch.nn.Module, "compile", partialmethod(torch.nn.Module.compile, backend="eager"))
    whole = record(directory, RECIPE)
    found = record(directory, merged(merged(RECIPE, CHUNKED), {"training": {"compile": True}}))
    assert largest_difference(whole, found) <= 1e-10


BASE = """
extends: base.yaml
objective: {loss: {chunks: 2}, metrics: {accuracy: null}}
"""
MISTAKES = {
    "a metric": ("objective: {metrics: {accuracy: {of: loss}}}", "`accuracy` also reads the scores"),
    "smoothed": (
        "objective: {loss: {label_smoothing: 0.1}, metrics: {perplexity: {of: loss}}}",
        "`perplexity` also reads the scores",
    ),
    "a node": (
        "model: {graph: {sharp: logits * 2}}\nobjective: {metrics: {mean: {input: sharp}}}",
        "`sharp` also reads the scores",
    ),
    "an expression": ("model: {graph: {soft: tanh(logits)}}\nobjective: {loss: {input: soft}}", "from an expression"),
}


@pytest.mark.parametrize("case", MISTAKES)
@pytest.mark.packs
def test_what_stands_in_its_way_is_said(case: str, tmp_path: Path) -> None:
    more, wanted = MISTAKES[case]
    shutil.copytree(CASES / "data", tmp_path / "data")
    base = (CASES / "base.yaml").read_bytes()
    write(tmp_path, {"base.yaml": base, "first.yaml": BASE, "made.yaml": f"extends: first.yaml\n{more}\n"})
    found = [each for each in found_in(str(tmp_path / "made.yaml")) if each["code"] == "O106"]
    assert len(found) == 1
    assert wanted in str(found[0]["message"])
