"""Several fields packed together: pairs stay together, and losses of preferences are those of the pairs one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.app.main import main
from declarative_train.data.shared_sets import prepare_sets
from declarative_train.packs.text.packing import pack, pack_together
from declarative_train.packs.text.token_tables import PackedRows
from declarative_train.planner import compile as compile_plan
from declarative_train.recipe import load
from tests.engine.made_recipes import compiled, merged, write_recipe
from tests.engine.parity import largest_difference, record

PAIRS, TEXTS = 24, 4
TOKENS = {"type": "tokens", "prompt": "prompt", "tokenizer": "bytes"}
PACKED = {"length": 64, "pack": "best_fit", "texts": TEXTS}
LM = {"type": "gpt", "vocabulary": 256, "layers": 1, "width": 8, "heads": 2, "max_length": 64}
SIDES = ("chosen", "rejected")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    random = np.random.default_rng(0)

    def text(least: int, most: int) -> str:
        return "".join(chr(97 + letter) for letter in random.integers(0, 26, random.integers(least, most)))

    rows = [{"prompt": text(2, 9), "chosen": text(1, 20), "rejected": text(1, 20)} for _ in range(PAIRS)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def recipe(kind: str, *, packed: bool) -> dict[str, Any]:
    """All pairs in one step. Each side is read by the same model; `dpo` has a second one as its reference."""
    keys: dict[str, Any] = PACKED if packed else {"length": 32}
    graph: dict[str, Any] = {"pairs": "any(one_hot(chosen.segments)[:, :, 1:], dim=1)"} if packed else {}
    models = ("policy", "before") if kind == "dpo" else ("policy",)
    for side in SIDES:
        read = f"{side}[:, :-1]" if kind != "bradley_terry" else f"{side} * 1"
        graph[f"in_{side}"] = read
        ports = {"tokens": f"in_{side}"}
        if packed:
            end = "[:, :-1]" if kind != "bradley_terry" else " * 1"
            graph |= {f"s_{side}": f"{side}.segments{end}", f"p_{side}": f"{side}.positions{end}"}
            ports |= {"segments": f"s_{side}", "positions": f"p_{side}"}
        for model in models:
            name = model if side == "chosen" else f"{model}_bad"
            graph[name] = (
                {**LM, "inputs": ports} if side == "chosen" else {"type": "reuse", "node": model, "inputs": ports}
            )
            if kind == "bradley_terry":
                at = [f"{name}.hidden", f"{side}.segments", f"{side}.positions"]
                graph[f"last_{side}"] = (
                    {"type": "packed_last", "inputs": at}
                    if packed
                    else {"type": "sequence_pool", "mode": "last", "inputs": {"x": at[0], "mask": f"{side}.mask"}}
                )
                score = {"type": "linear", "out_features": 1, "bias": False} if side == "chosen" else {}
                graph[f"wide_{side}"] = {**(score or {"type": "reuse", "node": "wide_chosen"}), "input": f"last_{side}"}
                graph[f"score_{side}"] = f"wide_{side}[:, :, 0]" if packed else f"wide_{side}[:, 0]"
            else:
                of = [name, side, f"{side}.trained", *([f"{side}.segments"] if packed else [])]
                block = "packed_log_likelihood" if packed else "sequence_log_likelihood"
                graph[f"said_{name}"] = {"type": block, "inputs": of}
    output = {"dpo": "sum", "orpo": "mean", "simpo": "mean"}.get(kind)
    ends = [f"said_{model}{end}.{output}" for model in models for end in ("", "_bad")]
    graph["loss_of_pairs"] = {"type": kind, "inputs": ends if output else [f"score_{side}" for side in SIDES]}
    return {
        "name": "made",
        "data": {
            "source": {"type": "jsonl", "path": "pairs.jsonl"},
            "fields": {side: {**TOKENS, **keys, "column": side} for side in SIDES},
        },
        "model": {"graph": graph, **({"parameters": {"before": {"frozen": True}}} if kind == "dpo" else {})},
        "objective": {"loss": {"type": "mean", "input": "loss_of_pairs", **({"mask": "pairs"} if packed else {})}},
        "training": {
            "steps": 1,
            "precision": "fp64",
            "global_batch_size": PAIRS,
            "optimizer": {"type": "adamw", "lr": 1e-3},
        },
    }


@pytest.mark.parametrize("kind", ["dpo", "orpo", "simpo", "bradley_terry"])
def test_losses_and_gradients_are_those_of_the_pairs_one_by_one(directory: Path, kind: str) -> None:
    one_by_one = record(directory, recipe(kind, packed=False), num_steps=1)
    made = recipe(kind, packed=True)
    num_samples = (
        compiled(directory, merged(made, {"training": {"global_batch_size": 2}})).data.set("training").num_samples
    )
    assert PAIRS / TEXTS <= num_samples < PAIRS / 2
    packed = record(directory, merged(made, {"training": {"global_batch_size": num_samples}}), num_steps=1)
    assert packed.losses == pytest.approx(one_by_one.losses, rel=1e-12)
    assert largest_difference(one_by_one, packed) <= 1e-10


def test_a_sample_has_the_same_texts_in_every_field(directory: Path) -> None:
    plan = compiled(directory, merged(recipe("orpo", packed=True), {"training": {"global_batch_size": 2}}))
    table = prepare_sets(plan.data)["training"].table
    assert isinstance(table, PackedRows)
    one, other = (table.fields[side].packing for side in SIDES)
    assert one.texts.tolist() == other.texts.tolist()
    assert sorted(one.texts.tolist()) == list(range(PAIRS))
    assert max(np.diff(one.begins)) <= TEXTS
    specs = {field.name: field.tensor for field in plan.data.fields}
    assert specs["chosen.segments"].interval == (0, TEXTS)


def test_the_data_of_packed_fields_are_shown(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_recipe(directory, recipe("orpo", packed=True))
    assert main(["data", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "training/chosen" in shown
    assert "training/rejected" in shown


def test_packings_of_several_fields_keep_to_their_lengths() -> None:
    random = np.random.default_rng(1)
    sizes = [random.integers(0, 40, 500), random.integers(0, 12, 500)]
    for most in (None, 3):
        found = pack_together(sizes, (64, 32), most)
        for packing, length, each in zip(found, (64, 32), sizes, strict=True):
            totals = np.add.reduceat(packing.lengths, packing.begins[:-1])
            assert totals.max() <= length == packing.length
            assert packing.lengths.tolist() == each[packing.texts].tolist()
        counts = np.diff(found[0].begins)
        assert counts.max() == most if most else counts.max() > 3
        assert sorted(found[0].texts.tolist()) == np.flatnonzero(sizes[0] + sizes[1]).tolist()


def test_a_limit_of_texts_holds_in_a_single_field() -> None:
    sizes = np.random.default_rng(2).integers(1, 100, 400)
    found = pack(sizes, 64, "best_fit", 2)
    assert np.diff(found.begins).max() == 2
    assert int(found.lengths.sum()) == int(sizes.sum())
    assert np.add.reduceat(found.lengths, found.begins[:-1]).max() <= 64


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rejected": {"pack": None, "texts": None}}, "value of one row"),
        ({"rejected": {"texts": 3}}, "do not contain the same texts"),
        ({side: {"pack": "sequential", "texts": None} for side in SIDES}, "do not contain the same texts"),
        ({side: {"pack": None} for side in SIDES}, "`texts` is a number of texts"),
    ],
)
def test_lint_names_fields_that_are_not_packed_alike(directory: Path, change: dict[str, Any], words: str) -> None:
    path = write_recipe(directory, merged(recipe("orpo", packed=True), {"data": {"fields": change}}))
    loaded = load(str(path))
    assert loaded.recipe is not None
    messages = [each.message for each in compile_plan(loaded.recipe)[1] if each.is_error]
    assert any(words in message for message in messages), messages
