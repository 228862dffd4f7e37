"""Texts as tokens: numbers that are the library's own, one length, and what a field gives next to them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from declarative_train.components.data import BadValueError, Column
from declarative_train.data import shared_sets
from declarative_train.data.spec import DataError, DataSpec
from declarative_train.data.tensor_sets import open_sets
from declarative_train.packs.text import cache, layout
from declarative_train.packs.text.tokenizer import TokenizerError, tokenizer
from declarative_train.packs.text.tokens import TokensField
from tests.data.conftest import Described

tokenizers = pytest.importorskip("tokenizers")

TEXTS = [
    "the quick brown fox\n    jumps over the lazy dog",
    "def add(a, b):\n    return a + b\n",
    "",
    "na\u00efve \U0001f600 \u4f60\u597d  two  spaces\t\n\n\nend ",
    "x",
    "the the the the the the the the the the the the the the the the",
] * 3
COLUMN = [Column("text", "object")]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-pair tokenizer as models are published with, and rows of texts."""
    root = tmp_path_factory.mktemp("texts")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|begin|>", "<|stop|>", "<|pad|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXTS, trainer)
    made.enable_truncation(4)  # what a file says of lengths is the field's business
    made.enable_padding(length=7)
    made.save(str(root / "tokenizer.json"))
    config = {"bos_token": {"content": "<|begin|>"}, "eos_token": "<|stop|>", "pad_token": "<|pad|>"}
    (root / "tokenizer_config.json").write_text(json.dumps(config))
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    made.no_truncation()
    made.no_padding()
    made.save(str(root / "begins.json"))
    with (root / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": text, "number": at}) + "\n" for at, text in enumerate(TEXTS))
    return root


def field(folder: Path, **keys: Any) -> TokensField:
    return TokensField.model_validate({"column": "text", "tokenizer": str(folder), "length": 24} | keys)


def values(*texts: str | None) -> np.ndarray:
    return np.array(texts, object)


def given(each: TokensField, *texts: str | None) -> dict[str, np.ndarray]:
    assert each.check(COLUMN) is None
    found = {}
    for name in each.outputs:
        of = each.output_of(name)
        found[name] = of.convert([values(*texts)], COLUMN, {})
        spec = of.row_spec(COLUMN, {})
        assert (found[name].shape[1:], found[name].dtype.name) == (spec.shape, spec.dtype)
        low, high = spec.interval or (0, 1)
        assert low <= found[name].min()
        assert found[name].max() <= high
    return found


@pytest.mark.parametrize("name", ["tokenizer.json", "begins.json"])
def test_numbers_are_those_of_the_library(folder: Path, name: str) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / name))
    library.no_truncation()
    library.no_padding()
    found = given(field(folder, tokenizer=str(folder / name), length=400), *TEXTS)
    for text, ids, mask in zip(TEXTS, found["ids"], found["mask"], strict=True):
        wanted = library.encode(text).ids
        assert ids[mask].tolist() == wanted
        assert mask.sum() == len(wanted)
    assert tokenizer(str(folder / name)).num_tokens == library.get_vocab_size()


def test_a_text_is_begun_ended_padded_and_cut(folder: Path) -> None:
    library = tokenizers.Tokenizer.from_file(str(folder / "begins.json"))
    plain = library.encode(TEXTS[0], add_special_tokens=False).ids
    begin, stop, pad = (library.token_to_id(f"<|{name}|>") for name in ("begin", "stop", "pad"))
    long = given(field(folder, length=60, bos=True, eos=True), TEXTS[0], "")
    assert long["ids"][0, : len(plain) + 2].tolist() == [begin, *plain, stop]
    assert set(long["ids"][0, len(plain) + 2 :].tolist()) == {pad}
    assert long["ids"][1, :2].tolist() == [begin, stop]
    once = given(field(folder, tokenizer=str(folder / "begins.json"), length=60, bos="<|begin|>"), TEXTS[0])
    assert once["ids"][0, : len(plain) + 1].tolist() == [begin, *plain]
    assert given(field(folder, length=5), TEXTS[0])["ids"][0].tolist() == plain[:5]
    assert given(field(folder, length=5, truncate="start"), TEXTS[0])["ids"][0].tolist() == plain[-5:]
    assert given(field(folder, length=60, pad=7), "x")["ids"][0, 1:].tolist() == [7] * 59
    assert given(field(folder, length=60, pad="<|stop|>"), "x")["ids"][0, 1] == stop
    with pytest.raises(BadValueError, match=f"has {len(plain)} tokens, and `length` is 5"):
        given(field(folder, length=5, truncate="error"), TEXTS[0])
    with pytest.raises(BadValueError, match="misses a text"):
        given(field(folder), TEXTS[0], None)


def test_what_stands_beside_the_tokens(folder: Path) -> None:
    found = given(field(folder, tokenizer="bytes", length=6), "abc", "")
    assert found["ids"].tolist() == [[97, 98, 99, 0, 0, 0], [0] * 6]
    assert found["mask"].tolist() == [[True] * 3 + [False] * 3, [False] * 6]
    assert found["segments"].tolist() == [[1, 1, 1, 0, 0, 0], [0] * 6]
    assert found["positions"].tolist() == [[0, 1, 2, 0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert found["trained"].tolist() == [[False, True, True, False, False, False], [False] * 6]


def test_bytes_and_places_go_back_to_the_text(folder: Path) -> None:
    for name in ("bytes", str(folder)):
        found = tokenizer(name)
        for text in TEXTS:
            assert found.decode(found.encode(text)) == text
            tokens, places = found.encode_with_spans(text)
            assert tokens == found.encode(text)
            assert all(0 <= begin <= end <= len(text) for begin, end in places)


def test_pieces_are_laid_out_as_one_would_write_them_one_by_one() -> None:
    draws, length, pad = np.random.default_rng(0), 12, 7
    for trial in range(60):
        tokens = draws.integers(0, 500, 0 if trial == 0 else int(draws.integers(1, 90))).astype(np.uint16)
        flags = (draws.random(len(tokens)) < 0.5).astype(np.uint8) if trial % 2 else None
        begins: list[int] = []
        sizes: list[int] = []
        counts, wanted = [], []
        for _ in range(int(draws.integers(0, 6))):
            row: dict[str, list[int]] = {"ids": [], "segments": [], "positions": [], "trained": []}
            count = 0
            while len(tokens):
                begin = int(draws.integers(0, len(tokens)))
                size = int(draws.integers(1 if count else 0, min(length, len(tokens) - begin) + 1))
                if len(row["ids"]) + size > length or draws.random() < 0.2:
                    break
                count += 1
                begins, sizes = [*begins, begin], [*sizes, size]
                row["ids"] += tokens[begin : begin + size].tolist()
                row["segments"] += [count] * size
                row["positions"] += range(size)
                learnt = [1] * size if flags is None else flags[begin : begin + size].tolist()
                row["trained"] += [0, *learnt[1:]][:size]
            rest = length - len(row["ids"])
            row["ids"] += [pad] * rest
            row["segments"] += [0] * rest
            row["positions"] += range(rest)
            row["trained"] += [0] * rest
            counts.append(count)
            wanted.append(row)
        places, lengths, numbers = (np.asarray(each, np.int64) for each in (begins, sizes, counts))
        found = layout.rows(layout.OUTPUTS, layout.Pieces(tokens, places, lengths, numbers, flags), length, pad)
        for name in ("ids", "segments", "positions", "trained"):
            assert found[name].shape == (len(counts), length)
            assert str(found[name].dtype) == layout.DTYPES[name]
            assert found[name].astype(int).tolist() == [row[name] for row in wanted]
        assert (found["mask"] == (found["segments"] > 0)).all()


def test_a_row_of_texts_is_that_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    collate = transformers.DataCollatorWithFlattening(return_seq_idx=True, return_tensors="np")
    draws = np.random.default_rng(0)
    for _ in range(20):
        sizes = draws.integers(1, 9, 5)
        length, begins = int(sizes.sum()), np.cumsum(sizes) - sizes
        tokens, flags = draws.integers(0, 500, length), draws.random(length) < 0.5
        pieces = layout.Pieces(tokens, begins, sizes, np.array([5]), flags)
        found = layout.rows(layout.OUTPUTS, pieces, length, 0)
        labels = np.where(flags, tokens, -100)
        texts, targets = (np.split(each, begins[1:]) for each in (tokens, labels))
        wanted = collate([{"input_ids": text, "labels": label} for text, label in zip(texts, targets, strict=True)])
        assert (found["ids"] == wanted["input_ids"]).all()
        assert (found["positions"] == wanted["position_ids"]).all()
        assert (found["segments"] == wanted["seq_idx"] + 1).all()
        assert (found["trained"] == (wanted["labels"] != -100)).all()


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("t.json", "{}", "is not a tokenizer", "Tokenizer.save"),
        ("t.json", '{"model": {"type": "Odd"}}', "cannot be used", None),
        ("t.json", "[" * 200_000, "is not a tokenizer", "Tokenizer.save"),
        ("spiece.model", "\0", "is not a sentencepiece model", None),
        ("cl100k.tiktoken", "YQ== 0", "is a tiktoken file, which does not say how", "TikTokenConverter"),
    ],
)
def test_what_is_no_tokenizer_file_says_so(
    tmp_path: Path, name: str, content: str, message: str, hint: str | None
) -> None:
    (tmp_path / name).write_text(content)
    for path in (tmp_path / name, *([] if name == "t.json" else [tmp_path])):
        with pytest.raises(TokenizerError, match=message) as caught:
            tokenizer(str(path))
        assert str(hint) in str(caught.value.help)


def test_a_deep_config_next_to_a_tokenizer_is_passed_over(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("[" * 200_000)
    assert tokenizer(str(tmp_path)).num_tokens == 300


_SPLIT = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("vocabulary", "splitter", "reason"),
    [({"a": 0, "[UNK]": 1}, _SPLIT, "retry-limit-in-match over"), ({"a": 0}, None, "Missing [UNK] token")],
    ids=["panic", "error"],
)
def test_a_tokenizer_that_fails_on_a_text_is_reported_with_the_row(
    look: Callable[..., Described],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabulary: dict[str, int],
    splitter: dict[str, Any] | None,
    reason: str,
    processes: int,
) -> None:
    """The library's own exceptions, and Rust's panics, which are no `Exception`; in a worker process too."""
    monkeypatch.setattr(cache, "_num_processes", lambda *_: processes)
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    (tmp_path / "own.json").write_text(json.dumps({"model": model, "pre_tokenizer": splitter, "added_tokens": []}))
    texts = ["a"] * 300 + ["a" * 40 + "b"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    made = {"type": "tokens", "column": "text", "tokenizer": str(tmp_path / "own.json"), "length": 8}
    found, (problem,) = look(source={"type": "jsonl", "path": str(tmp_path / "rows.jsonl")}, fields={"text": made})
    assert found is None
    assert problem.code == "D040"
    assert "the tokenizer fails: " in problem.message
    assert reason in problem.message
    assert "in row 301 of" in problem.message


def test_roles_of_a_lone_file_are_its_special_tokens(folder: Path, tmp_path: Path) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.add_tokens(["</s>"])
    made.add_special_tokens(["<|endoftext|>", "<pad>"])
    made.save(str(tmp_path / "own.json"))
    assert tokenizer(str(tmp_path / "own.json")).special == {"eos": 1, "pad": 2}  # `</s>` is a token like others


def test_a_set_of_texts(folder: Path, spec: Callable[..., DataSpec]) -> None:
    found = spec(
        source={"type": "jsonl", "path": str(folder / "rows.jsonl")},
        fields={"text": {"type": "tokens", "column": "text", "tokenizer": str(folder), "length": 12}},
        split={"validation": {"type": "last", "fraction": 0.25}},
    )
    assert [each.name for each in found.fields] == ["text", *(f"text.{name}" for name in layout.OUTPUTS[1:])]
    assert found.fields[0].tensor.num_values == 300
    sets = open_sets(found)
    batch = sets["training"].gather(np.arange(4))
    wanted = given(field(folder, length=12), *TEXTS[:4])
    assert all(batch["text" if name == "ids" else f"text.{name}"].tolist() == wanted[name].tolist() for name in wanted)


def test_another_tokenizer_is_not_that_of_the_plan(
    folder: Path, tmp_path: Path, spec: Callable[..., DataSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sets, "_latest", {})
    path = tmp_path / "own.json"
    content = (folder / "begins.json").read_text()
    path.write_text(content)
    found = spec(
        source={"type": "jsonl", "path": str(folder / "rows.jsonl")},
        fields={"text": {"type": "tokens", "column": "text", "tokenizer": str(path), "length": 12}},
    )
    assert str(path) in {each.path for each in found.files}
    open_sets(found)
    shared_sets._latest.clear()
    changed = json.loads(content)
    vocabulary = changed["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]  # as many tokens, others
    path.write_text(json.dumps(changed))
    with pytest.raises(DataError, match="field `text` differs from the plan: it has another tokenizer"):
        open_sets(found)


@pytest.mark.parametrize(
    ("keys", "path", "message"),
    [
        ({"tokenizer": "no.json"}, "data.fields.text.tokenizer", "there is no file no.json"),
        ({"column": "number"}, "data.fields.text.column", "tokens are made of text"),
        ({"eos": "<none>"}, "data.fields.text.eos", "no token `<none>`"),
        (
            {"tokenizer": "bytes", "bos": True},
            "data.fields.text.bos",
            "does not say which token is its bos",
        ),
        ({"pad": 300}, "data.fields.text.pad", "has 300 tokens, from 0 on"),
        ({"truncate": "error"}, "data.fields.text.column", "`length` is 12"),
    ],
)
def test_a_mistake_is_said_once_at_its_key(
    folder: Path, look: Callable[..., Described], keys: dict[str, Any], path: str, message: str
) -> None:
    made = {"type": "tokens", "column": "text", "tokenizer": str(folder), "length": 12} | keys
    found, diagnostics = look(source={"type": "jsonl", "path": str(folder / "rows.jsonl")}, fields={"text": made})
    assert found is None
    (problem,) = diagnostics
    assert problem.span.path in (path, "data.fields.text.length")
    assert message in problem.message
