"""Tokens added to a published model: larger tables, whose first rows are the published ones to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import declarative_train as dt
from declarative_train.engine.step.tensor_files import add_rows, of_tensors
from declarative_train.inference.trained import UsageError
from declarative_train.packs.export.export import export
from declarative_train.packs.export.export_errors import ExportFailure
from declarative_train.packs.text.tokenizer import AddedTokens, TokenizerError, make_published_files, tokenizer
from tests.packs.pretrained import published_models as made

WORDS = [f"w{number}" for number in range(95)]
TABLES = ("embed.weight", "logits.weight")
LORA = {"model.parameters": {"attn*": {"adapter": {"type": "lora", "rank": 2}}}}
LONG = pytest.mark.long
NO_STEP = {"training.steps": 1, "training.optimizer.lr": 0.0}


def write(folder: Path, name: str = "llama") -> Path:
    """Write a published model of 96 words with its tokenizer, and a recipe that adds three tokens to it."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    made.make(name, folder / "published")
    words = Tokenizer(WordLevel({word: at for at, word in enumerate([*WORDS, "<eos>"])}, unk_token="w0"))
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens(["<eos>"])
    words.save(str(folder / "published" / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (folder / "published" / "tokenizer_config.json").write_text(json.dumps(config))
    rows = [{"text": f"w1 w2 <tool> w{number} </tool> w4 <end>"} for number in range(8)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    path = folder / "added.yaml"
    path.write_text(f"""
language: 1
name: added
data:
  source: {{type: jsonl, path: rows.jsonl}}
  fields:
    text:
      type: tokens
      column: text
      tokenizer: published
      vocabulary: {{add: ["<tool>", "</tool>"], add_special: [<end>]}}
      length: 9
model:
  graph:
    lm: {{type: {made.BLOCKS[made.CONFIGS[name][0]]}, from: published, vocabulary: 104, input: text}}
    scores: lm[:, :-1]
    next: text[:, 1:]
    counts: text.trained[:, 1:]
  weights: {{lm: {{path: published, format: huggingface}}}}
objective: {{loss: {{type: cross_entropy, input: scores, target: next, mask: counts}}}}
training: {{steps: 4, global_batch_size: 4, optimizer: {{type: adamw, lr: 1e-2}}}}
checkpoint: {{every: 2 steps}}
layout: {{device: cpu}}
logging: {{dir: {folder / "runs"}}}
""")
    return path


def tables(run: Any) -> dict[str, torch.Tensor]:
    held = run.module().state_dict()
    return {name: held[f"lm.{name}"] for name in TABLES if f"lm.{name}" in held}


def load_tables(folder: Path) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    found = (model.get_input_embeddings(), model.get_output_embeddings())
    return {name: each.weight.detach() for name, each in zip(TABLES, found, strict=True)}


@pytest.mark.parametrize(
    "name", ["llama3", *(pytest.param(name, marks=pytest.mark.long) for name in ("llama", "gpt2"))]
)
def test_published_rows_are_kept_and_new_ones_are_their_mean(tmp_path: Path, name: str) -> None:
    """`llama3` has a tied head."""
    run = dt.load(write(tmp_path, name), set=NO_STEP).run(quiet=True)
    before = load_tables(tmp_path / "published")
    for key, table in tables(run).items():
        assert torch.equal(table[:96], before[key])
        mean = before[key].double().mean(0).float()
        torch.testing.assert_close(table[96:], mean.expand(8, -1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", ["llama3", pytest.param("llama", marks=pytest.mark.long)])
def test_an_export_has_the_larger_tokenizer_and_model(tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = dt.load(write(tmp_path, name)).run(quiet=True)
    folder = export(run.trained(), "huggingface", tmp_path / "out").folder
    words, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.vocab_size == 104
    assert len(words) == 99
    ids = words("w1 <tool> w3 </tool> w4 <end>", return_tensors="pt")["input_ids"]
    assert ids.tolist() == [[1, 96, 3, 97, 4, 98]]
    assert words.decode(ids[0], skip_special_tokens=True) == "w1 <tool> w3 </tool> w4"
    ours = run.module().get_submodule("lm")(ids)
    torch.testing.assert_close(ours[0] if isinstance(ours, tuple) else ours, model(ids).logits, rtol=1e-5, atol=1e-5)
    moved = {key: (table[96:99] - table[96:].mean(0)).abs().max() for key, table in tables(run).items()}
    assert min(moved.values()) > 1e-3


MODES: dict[str, dict[str, object]] = {
    "fsdp": {"parallelism": "fsdp"},
    "tensor": {"parallelism": {"tensor": 2}},
    "pipeline": {"parallelism": {"pipeline": {"stages": 2, "microbatches": 2}}},
}


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("mode", MODES)
def test_new_rows_start_and_train_the_same_in_every_mode(tmp_path: Path, mode: str) -> None:
    """In fsdp and tensor each rank has 52 rows of each table, so the new rows are on the second rank."""
    exact = {"training.precision": "fp64", "training.optimizer": {"type": "sgd", "lr": 0.1}, "training.steps": 2}
    path = write(tmp_path)
    alone = dt.load(path, set=exact).run(quiet=True)
    spread = dt.load(path, set=exact | MODES[mode] | {"layout.gpus": 2}).run(quiet=True)
    for key, value in alone.module().named_parameters():
        torch.testing.assert_close(spread.module().get_parameter(key), value, rtol=1e-9, atol=1e-9, msg=key)


def test_adapters_alone_do_not_train_new_rows_and_lint_says_so(tmp_path: Path) -> None:
    """With `frozen: false` the tables train, also across a resume; PEFT cannot add such adapters to the base."""
    path = write(tmp_path)
    assert "U113" in {each.code for each in dt.load(path, set=LORA).lint()}
    trained = {"model.parameters": {**LORA["model.parameters"], "{embed,logits}": {"frozen": False}}}
    assert "U113" not in {each.code for each in dt.load(path, set=trained).lint()}
    whole = dt.load(path, set=trained).run(quiet=True)
    half = dt.load(path, set=trained | {"training.steps": 2}).run(quiet=True)
    resumed = dt.load(path, set=trained).run(quiet=True, resume=half.folder)
    for key, table in tables(whole).items():
        assert torch.equal(table, tables(resumed)[key])
        assert (table[96:98] - table[99]).abs().amax(-1).min() > 0  # `<end>` is never an input
    with pytest.raises((ExportFailure, UsageError), match="more tokens than its base"):
        export(whole.trained(), "peft", tmp_path / "peft")


def test_a_frozen_base_with_new_rows_is_found_again(tmp_path: Path) -> None:
    """Checkpoints of adapters refer to the published file, and its tables get their rows again."""
    run = dt.load(write(tmp_path), set=LORA | {"training.steps": 2}).run(quiet=True)
    before = load_tables(tmp_path / "published")
    for key, table in tables(run).items():
        assert torch.equal(table[:96], before[key])
        assert torch.equal(table[96], table[103])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model.graph.lm.vocabulary": 96}, "`vocabulary: 96` is too small, `x` holds numbers from 0 to 98"),
        ({"data.fields.text.vocabulary": {"add": ["w3"]}}, "the tokenizer already has a token `w3`"),
        ({"data.fields.text.vocabulary": {"add": ["a", "a"]}}, "`add` and `add_special` need tokens, each once"),
        ({"data.fields.text.tokenizer": "bytes"}, "`bytes` has a token for each byte and no others"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, changed: dict[str, object], message: str) -> None:
    found = dt.load(write(tmp_path), set=changed).lint()
    assert any(message in each.message for each in found), found


def test_rows_are_added_to_any_part_that_is_read() -> None:
    table = torch.arange(12.0, dtype=torch.bfloat16).reshape(4, 3)
    grown = add_rows(of_tensors({"a": table, "b": table}), {"a": (4, 7), "b": (5, 9)})
    assert grown.shapes == {"a": (7, 3), "b": (4, 3)}
    whole = grown.whole("a")
    assert torch.equal(whole[:4], table.float())
    assert torch.equal(whole[4:], table.float().mean(0).expand(3, 3))
    assert torch.equal(torch.cat([grown.read("a", at, at + 1, 0).float() for at in range(7)]), whole)
    assert torch.equal(grown.whole("b"), table)


def test_an_enlarged_tokenizer_is_another_one(tmp_path: Path) -> None:
    write(tmp_path)
    plain, more = tokenizer(str(tmp_path / "published")), AddedTokens(("<tool>",), ("<end>",))
    large = tokenizer(str(tmp_path / "published"), more)
    assert (plain.num_tokens, large.num_tokens) == (96, 98)
    assert plain.sha256 != large.sha256
    assert large.decode(large.encode("w5 <tool> <end>")) == "w5 <tool>"
    (tmp_path / "again").mkdir()
    for name, content in make_published_files(large).items():
        (tmp_path / "again" / name).write_bytes(content)
    assert tokenizer(str(tmp_path / "again")).encode("w5 <tool> <end>") == [5, 96, 97]
    with pytest.raises(TokenizerError, match="already has"):
        tokenizer(str(tmp_path / "again"), more)
