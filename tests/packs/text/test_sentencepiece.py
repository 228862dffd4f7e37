"""Tokenizers published as a model of sentencepiece, or as a file of tiktoken: the numbers of these libraries."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from declarative_train.app.main import main
from declarative_train.components.data import Column
from declarative_train.inference.trained import open_trained
from declarative_train.packs.text import conversion
from declarative_train.packs.text.generation import TextModel, encode_prompt
from declarative_train.packs.text.problem import TokenizerError
from declarative_train.packs.text.tokenizer import make_copies, make_published_files, tokenizer
from declarative_train.packs.text.tokens import TokensField

spm = pytest.importorskip("sentencepiece")
transformers = pytest.importorskip("transformers")

LICENSE = Path(__file__).parents[3] / "LICENSE"
TEXTS = ["The Software is provided", "na\u00efve \u4f60\u597d \U0001f600", "a\nb\n\nc\t", "x", "12 of 1,234 (free)"]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
ANSWERS = {"What is it?": "The software.", "Who may use it?": "Any person.", "And sell it?": "Yes, free of charge."}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As Llama 2 was published: bytes for what has no piece, a blank in front of a text."""
    found = tmp_path_factory.mktemp("pieces")
    spm.SentencePieceTrainer.train(
        input=str(LICENSE), model_prefix=str(found / "tokenizer"), vocab_size=400, model_type="bpe", byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config |= {"add_bos_token": True, "legacy": False, "chat_template": TEMPLATE}
    (found / "tokenizer_config.json").write_text(json.dumps(config))
    return found


@pytest.mark.timeout(120)
def test_numbers_are_those_of_sentencepiece_and_of_transformers(folder: Path) -> None:
    own = spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    found = tokenizer(str(folder))
    assert tokenizer(str(folder / "tokenizer.model")).sha256 == found.sha256
    assert found.num_tokens == own.get_piece_size() == 400
    assert found.special == {"bos": own.bos_id(), "eos": own.eos_id(), "unk": own.unk_id()}
    for text in TEXTS:
        assert found.encode(text, adds_special=False) == own.encode(text)
        assert found.encode(text) == theirs(text).input_ids
        assert found.decode(found.encode(text)) == own.decode(own.encode(text))
    field = TokensField.model_validate({"column": "text", "tokenizer": str(folder), "length": 24})
    rows = field.lay_out([np.asarray(TEXTS, object)], [Column("text", "object")])
    for row, text in zip(rows.tolist(), TEXTS, strict=True):
        wanted = theirs(text).input_ids[:24]
        assert row[: len(wanted)] == wanted
    turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Any person."}]
    chat = TokensField.model_validate({"column": "messages", "tokenizer": str(folder), "length": 64, "template": True})
    tokens = chat.encode(json.dumps(turns), [Column("messages", "messages")], 0, found).tokens
    assert list(tokens) == theirs.apply_chat_template(turns, tokenize=True, return_dict=False)


@pytest.mark.timeout(120)
def test_what_travels_is_read_without_sentencepiece(folder: Path, tmp_path: Path) -> None:
    found = tokenizer(str(folder))
    kept = make_copies([{"type": "tokens", "tokenizer": str(folder)}])
    for name, content in {**kept, **make_published_files(found)}.items():
        (tmp_path / name).write_bytes(content)
    (name,) = [name for name in kept if name.endswith(".json") and "tokenizer_config" not in name]
    for path in (tmp_path / name, tmp_path):
        again = tokenizer(str(path))
        assert [again.encode(text) for text in TEXTS] == [found.encode(text) for text in TEXTS]
        assert (again.special, again.chat_template) == (found.special, TEMPLATE)


@pytest.mark.timeout(120)
def test_what_is_in_the_way_is_said(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.model").write_bytes((folder / "tokenizer.model").read_bytes())
    with pytest.raises(TokenizerError, match=r"splits `.*` differently from sentencepiece") as caught:
        tokenizer(str(tmp_path))  # nothing says what class it is of
    assert "tokenizer_class" in str(caught.value.help)
    monkeypatch.setattr(conversion, "_is_installed", lambda name: name != "google.protobuf")
    conversion.convert.cache_clear()
    with pytest.raises(TokenizerError, match="which needs the package protobuf") as caught:
        conversion.convert(str(folder / "tokenizer.model"), 1)
    assert "declarative_train[sentencepiece]" in str(caught.value.help)


RECIPE = """
name: pieces
data:
  source: {type: jsonl, path: rows.jsonl}
  fields:
    chat: {type: tokens, column: messages, tokenizer: FOLDER, length: 49}
  split: {validation: 0.1}
model:
  graph:
    tokens: chat[:, :-1]
    next: chat[:, 1:]
    answers: chat.trained[:, 1:]
    lm: {type: llama, vocabulary: 400, layers: 2, width: 32, heads: 2, input: tokens}
objective:
  loss: {type: cross_entropy, input: lm, target: next, mask: answers}
training: {steps: 120, global_batch_size: 8, optimizer: {type: adamw, lr: 1e-2}}
evaluation: {samples: {prompts: ["What is it?", "And sell it?"], max_tokens: 30}}
parallelism: ddp
layout: {device: cpu, gpus: 2}
logging: {dir: runs}
checkpoint: {every: 120 steps, keep: 1}
"""


@pytest.mark.long
@pytest.mark.timeout(300)
def test_from_a_dialogue_to_a_published_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for at in range(80):
            asked, said = list(ANSWERS.items())[at % 3]
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "r.yaml").write_text(RECIPE.replace("FOLDER", str(folder)))
    assert main(["run", "r.yaml", "--quiet"]) == 0
    (run,) = (tmp_path / "runs" / "pieces").glob("2*")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (written,) = [event for event in events if event["event"] == "TextsWritten"]
    assert [text.strip() for text in written["texts"]] == ["The software.", "Yes, free of charge."]
    capsys.readouterr()
    assert main(["generate", str(run), "--chat", "--temperature", "0", "--prompt", "Who may use it?"]) == 0
    assert capsys.readouterr().out.strip() == "Any person."
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    model = TextModel(open_trained(run), "cpu")
    asked = [{"role": "user", "content": "Who may use it?"}]
    wanted = theirs.apply_chat_template(asked, tokenize=True, return_dict=False, add_generation_prompt=True)
    assert encode_prompt("Who may use it?", model, chat=True) == wanted
    assert main(["export", str(run), "--to", "huggingface", "-o", "out"]) == 0
    back = transformers.AutoTokenizer.from_pretrained("out")
    assert [back(text).input_ids for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]
    assert back.apply_chat_template(asked, tokenize=True, return_dict=False) == theirs.apply_chat_template(
        asked, tokenize=True, return_dict=False
    )


@pytest.mark.long
@pytest.mark.timeout(120)
def test_the_command_for_a_file_of_tiktoken_works(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([number]): number for number in range(256)}
    for part in (b"th", b"the", b" t", b" th", b" the", b"in", b"ing", b"er", b"12", b"123", b"\n\n"):
        ranks[part] = len(ranks)
    lines = (f"{base64.b64encode(part).decode()} {rank}\n" for part, rank in ranks.items())
    (tmp_path / "cl100k_base.tiktoken").write_text("".join(lines))
    with pytest.raises(TokenizerError) as caught:
        tokenizer(str(tmp_path))
    code = re.search(r'python -c "(.*)"$', str(caught.value.help))
    assert code is not None
    subprocess.run([sys.executable, "-c", code[1]], check=True, cwd=tmp_path, timeout=100)
    found = tokenizer(str(tmp_path))
    pattern = (  # of cl100k_base, as tiktoken has it
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    )
    own = tiktoken.Encoding(
        "made", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": len(ranks)}
    )
    for text in (*TEXTS, "the thing, don't\n\n  be 12345", "  two  blanks  ", "THE\r\nend\n"):
        assert found.encode(text) == own.encode(text), text
        assert found.decode(found.encode(text)) == text
    assert found.special["eos"] == len(ranks)
