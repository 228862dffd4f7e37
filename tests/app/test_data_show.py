"""`dtrain data show`: what it prints, its picture sheet and its page."""

from __future__ import annotations

import io
import json
import re
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from declarative_train.app.main import main
from declarative_train.app.views.table import table

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "160")


def test_a_table_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("size,kind,city\n1,a,x\n2,b,\n,a,y\n7,a,x\n")
    (tmp_path / "r.yaml").write_text(
        "data:\n  source: {type: csv, path: t.csv}\n"
        "  fields:\n    size: {column: size, missing: zero}\n    kind: {type: category, column: kind}\n"
        "model: {graph: {hidden: {type: linear, out_features: 1, input: nowhere}}}\n"
        "objective: {loss: {type: mse, input: hidden, target: size}}\n"
        "training: {steps: 1, global_batch_size: 2, optimizer: {type: sgd, lr: 0.1}}\n"
    )
    assert main(["data", "show", str(tmp_path / "r.yaml")]) == 1  # the wire is wrong: said, as lint says it
    assert "nowhere" in capsys.readouterr().err
    text = (tmp_path / "r.yaml").read_text().replace("nowhere", "kind").replace("input: kind}", "input: size}")
    (tmp_path / "r.yaml").write_text(text)
    assert main(["data", "show", str(tmp_path / "r.yaml")]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^training +4$", told, re.M)
    assert re.search(r"^size +float64|^size +int64", told, re.M)
    assert re.search(r"^size .* 1 +1 to 7 +size$", told, re.M)
    assert re.search(r"^city +text +1 +2 different values: x, y$", told, re.M)
    assert re.search(r"^ +0 +a +3$", told, re.M)
    assert re.search(r"^ +1 +b +1$", told, re.M)


@pytest.mark.packs
def test_pictures_are_shown_before_and_after(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, page = tmp_path / "s.png", tmp_path / "p.html"
    words = ["data", "show", "recipes/digits_images.yaml", "--pictures", str(sheet), "--html", str(page)]
    assert main(words) == 0
    assert re.search(r"^image +files or pictures +files +image$", capsys.readouterr().out, re.M)
    drawn = np.asarray(Image.open(sheet).convert("L"))
    decoded, first, second, evaluated = (drawn[28:, left : left + 128] for left in (8, 144, 280, 552))
    assert np.array_equal(decoded, evaluated)
    assert not np.array_equal(decoded, first)
    assert not np.array_equal(first, second)
    text = page.read_text()
    inside = re.search(r"data:image/png;base64,([^\"]+)", text)
    assert inside is not None
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(b64decode(inside[1]))).convert("L")), drawn)
    assert "http" not in text  # it needs no other file
    assert "<td class=number>164</td>" in text


@pytest.mark.packs
def test_a_broken_picture_is_named_with_the_key_that_leaves_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for kind in ("a", "b"):
        (tmp_path / "kinds" / kind).mkdir(parents=True)
        for at in range(4):
            Image.new("L", (8, 8), 40 * at).save(tmp_path / "kinds" / kind / f"{at}.png")
    broken = tmp_path / "kinds" / "b" / "2.png"
    broken.write_bytes(broken.read_bytes()[:50])
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        """name: r
data:
  source: {type: image_folder, path: kinds}
  fields: {image: {type: image, column: image, mode: L, size: 8}, kind: {type: category, column: label}}
model: {graph: {flat: {type: flatten, input: image}, net: {type: linear, out_features: 2}}}
objective: {loss: {type: cross_entropy, input: net, target: kind}}
training: {epochs: 1, global_batch_size: 2, optimizer: {type: sgd, lr: 0.1}}
"""
    )
    words = ["data", "show", str(recipe), "--pictures", str(tmp_path / "s.png")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert str(Path("b/2.png")) in said
    assert main([*words, "--set", "data.on_bad_row=skip"]) == 0


def test_no_pictures_to_write_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["data", "show", "recipes/digits_resnet.yaml", "--pictures", str(tmp_path / "s.png")]) == 2
    assert "no field of `type: image`" in capsys.readouterr().err


@pytest.mark.packs
def test_what_is_learnt_of_a_dialogue_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"messages": [{"role": "user", "content": "one?"}, {"role": "assistant", "content": "two!"}]}] * 4
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "r.yaml").write_text(
        "data:\n  source: {type: jsonl, path: chats.jsonl}\n  fields:\n    chat:\n      type: tokens\n"
        "      column: messages\n      tokenizer: bytes\n      length: 32\n"
        '      template: "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}'
        '{% if add_generation_prompt %}<assistant>{% endif %}"\n'
        "model: {graph: {n: float(chat), out: {type: linear, out_features: 1}}}\n"
        "objective: {loss: {type: mse, input: out, target: n}}\n"
        "training: {steps: 1, global_batch_size: 2, optimizer: {type: sgd, lr: 0.1}}\n"
    )
    assert main(["data", "show", str(tmp_path / "r.yaml")]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^first sample of chat, 4 tokens of 25 trained$", told, re.M)
    assert re.search(r"^ +<user>one\?<assistant> *$", told, re.M)
    assert re.search(r"^yes +two! *$", told, re.M)
    assert re.search(r"^messages +lists of messages +", told, re.M)
    once, *others = [line for line in told.splitlines() if re.match(r"chat(\.\w+)? +(messages|as chat) ", line)][:5]
    assert "one?" in once
    assert [line.split()[0] for line in others] == [
        f"chat.{name}" for name in ("mask", "segments", "positions", "trained")
    ]
    assert not any("one?" in line for line in others)


@pytest.mark.packs
def test_columns_of_packed_texts_are_those_of_the_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": number, "text": f"word {number % 3}" if number % 4 else "gone"} for number in range(40)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {
        "data": {
            "source": {"type": "jsonl", "path": str(tmp_path / "texts.jsonl")},
            "fields": {
                "words": {"type": "tokens", "column": "text", "tokenizer": "bytes", "length": 33, "pack": "best_fit"}
            },
        },
        "model": {"graph": {"n": "float(words)", "out": {"type": "linear", "out_features": 1}}},
        "objective": {"loss": {"type": "mse", "input": "out", "target": "n"}},
        "training": {"steps": 1, "global_batch_size": 2, "optimizer": {"type": "sgd", "lr": 0.1}},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["data", "show", str(tmp_path / "recipe.yaml")]) == 0
    said = capsys.readouterr().out
    assert "columns, all 40 rows" in said, said
    columns = {line.split()[0]: line for line in said.splitlines() if line.startswith(("id ", "text "))}
    assert "0 to 39" in columns["id"]
    assert re.search(r"text +4 different values: .*gone.* words", columns["text"]), columns["text"]


def test_a_table_of_a_narrow_terminal_breaks_long_words_and_no_short_header() -> None:
    rows = [("path", "files or pictures", "word " * 9 + "=" * 70, "image"), ("x", "int64", "0 to 9", "y")]
    text = table(("column", "holds", "values", "read by"), rows, width=60, longest_word=24)
    assert max(map(len, text.splitlines())) == 60
    assert "read by" in text.splitlines()[0]
    assert max(map(len, table(("column", "holds", "values", "read by"), rows, width=60).splitlines())) > 70
