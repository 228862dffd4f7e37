"""Dialogues from end to end: a run that shows what it answers, and answers of what it left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from declarative_train.app.main import main
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.trained import UsageError, open_trained
from declarative_train.packs.text.generation import TextModel, encode_prompt

tokenizers = pytest.importorskip("tokenizers")

ANSWERS = {"What is the sea?": "It is blue.", "What is grass?": "Grass is green.", "And snow?": "White, I think."}
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
RECIPE = """
name: chats
data:
  source: {type: jsonl, path: rows.jsonl}
  fields:
    chat: {type: tokens, column: messages, tokenizer: words, template: chat.jinja, length: 65}
  split: {validation: 0.1}
model:
  graph:
    tokens: chat[:, :-1]
    next: chat[:, 1:]
    answers: chat.trained[:, 1:]
    lm: {type: llama, vocabulary: 320, layers: 2, width: 32, heads: 2, input: tokens}
objective:
  loss: {type: cross_entropy, input: lm, target: next, mask: answers}
training: {steps: 90, global_batch_size: 8, optimizer: {type: adamw, lr: 1e-2}}
evaluation: {samples: {prompts: ["What is the sea?", "And snow?"], max_tokens: 30}}
layout: {device: cpu}
logging: {dir: runs}
checkpoint: {every: 90 steps, keep: 1}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([text for pair in ANSWERS.items() for text in pair] * 3, trainer)
    (tmp_path / "words").mkdir()
    made.save(str(tmp_path / "words" / "tokenizer.json"))
    config = {"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (tmp_path / "words" / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    with (tmp_path / "rows.jsonl").open("w") as file:
        for at in range(80):
            asked, said = list(ANSWERS.items())[at % 3]
            turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"messages": turns}) + "\n")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def test_a_run_answers_and_so_does_what_it_left(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "r.yaml"]) == 0
    assert 'step 90: "What is the sea?" -> "It is blue."' in capsys.readouterr().err
    (run,) = (folder / "runs" / "chats").glob("2*")
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (written,) = [event for event in events if event["event"] == "TextsWritten"]
    assert written["texts"] == ["It is blue.", "White, I think."]  # and no token that ends an answer

    turns = [{"role": "user", "content": "And snow?"}]
    asked = "<|im_start|>user\nAnd snow?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizers.Tokenizer.from_file("words/tokenizer.json").encode(asked).ids
    (step,) = (run / "checkpoints").glob("step_*")
    shutil.copytree(step, folder / "kept" / step.name)
    for gone in ("runs", "words"):
        shutil.rmtree(folder / gone)
    (folder / "chat.jinja").unlink()  # it travelled
    kept = f"kept/{step.name}"
    model = TextModel(open_trained(kept), "cpu")
    assert encode_prompt("And snow?", model, chat=True) == encode_prompt(json.dumps(turns), model, chat=True) == ids
    words = ["generate", kept, "--chat", "--temperature", "0", "--prompt"]
    for prompt in ("And snow?", json.dumps(turns)):
        assert main([*words, prompt]) == 0
        assert capsys.readouterr().out == "White, I think.\n"
    assert main([*words, '[{"content": "And snow?"}]']) == 2
    assert "a message has `content`, and no `role`" in capsys.readouterr().err
    assert main(["export", kept, "--to", "huggingface", "-o", "out"]) == 0
    assert (folder / "out" / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_new_dialogues_are_judged_by_their_answers(folder: Path, ending: str) -> None:
    """By the same template and mask as those of the run: the loss of the same dialogue is the same."""
    turns = [{"role": "user", "content": "And snow?"}, {"role": "assistant", "content": "White, I think."}]
    (folder / "rows.jsonl").write_text(f"{json.dumps({'messages': turns})}\n" * 80)
    (folder / "r.yaml").write_text(RECIPE.replace("90", "2").replace("evaluation:", "# "))
    assert main(["run", "r.yaml", "--quiet"]) == 0
    if ending == "parquet":
        parquet.write_table(pa.Table.from_pylist([{"messages": turns}] * 8), folder / "rows.parquet")
    model = open_trained("runs/chats")
    known = evaluate(model).values["validation/loss"]
    assert evaluate(model, data=f"rows.{ending}").values["data/loss"] == pytest.approx(known, abs=1e-6)


def test_another_template_is_another_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In its file, in the tokenizer's folder, and next to it."""
    text = RECIPE.replace("steps: 90", "steps: 2").replace("90 steps", "1 step").replace("evaluation:", "# ")
    own = text.replace(", template: chat.jinja", "").replace("name: chats", "name: own")
    other = TEMPLATE.replace("<|im_end|>\n", "<|im_end|> ")
    (folder / "r.yaml").write_text(text)
    (folder / "own.yaml").write_text(own)
    (folder / "words" / "chat_template.jinja").write_text(TEMPLATE)
    for recipe, changed in (("r.yaml", "chat.jinja"), ("own.yaml", "words/chat_template.jinja")):
        assert main(["run", recipe, "--quiet", "--max-steps", "1"]) == 0
        capsys.readouterr()
        (folder / changed).write_text(other)
        assert main(["run", recipe, "--quiet", "--resume"]) == 3
        assert "the contents of the data files changed" in capsys.readouterr().err
        (folder / changed).write_text(TEMPLATE)
        assert main(["run", recipe, "--quiet", "--resume"]) == 0
    inline = text.replace("template: chat.jinja", f"template: {json.dumps(other)}")
    (folder / "r.yaml").write_text(inline)
    assert main(["run", "r.yaml", "--quiet", "--resume"]) == 3
    assert "data.fields.chat.template" in capsys.readouterr().err


def test_a_chat_needs_a_template(folder: Path) -> None:
    (folder / "plain.jsonl").write_text('{"text": "the sea is blue"}\n' * 40)
    text = RECIPE.replace("rows.jsonl", "plain.jsonl").replace("column: messages", "column: text")
    text = text.replace(", template: chat.jinja", "").replace("chat: {type: tokens", "chat: {pad: 0, type: tokens")
    (folder / "r.yaml").write_text(text.replace("steps: 90", "steps: 2").replace("90 steps", "2 steps"))
    assert main(["run", "r.yaml", "--quiet"]) == 0
    model = TextModel(open_trained("runs/chats"), "cpu")
    assert encode_prompt("the sea", model)
    with pytest.raises(UsageError, match="template"):
        encode_prompt("the sea", model, chat=True)
