"""What commands print cannot act on a terminal, whatever the data hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from declarative_train.app.main import main
from declarative_train.core.untrusted import in_lines
from tests.house import PACKAGE

WITHOUT_DATA = {"doctor.py", "explain.py", "list.py", "schema.py", "lsp.py"}  # these print what dtrain itself holds
EXACT = ("json.dumps(", "explicit_text(")  # texts that escape such characters, for programs


def test_every_command_that_shows_data_prints_through_one_function() -> None:
    found = []
    for path in sorted((PACKAGE / "cli" / "commands").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("print", "sys.stdout.write"):
                continue
            text = ast.unparse(node)
            is_own = ast.unparse(node.func) == "sys.stdout.write" and path.name == "lint.py"  # in colours
            if "sys.stderr" not in text and not is_own and path.name not in WITHOUT_DATA:
                found += [] if any(f"print({each}" in text for each in EXACT) else [f"{path.name}: {text}"]
    assert found == []


def test_escape_sequences_of_a_table_are_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text("x,\x1b]0;title\x07red\n" + "".join(f"{number},\x1b[2Jclear\n" for number in range(8)))
    Path("recipe.yaml").write_text(
        "data:\n  source: {type: csv, path: t.csv}\n  fields: {x: {columns: [x]}, y: {columns: [x]}}\n"
        "model: {graph: {h: {type: linear, out_features: 1, input: x}}}\n"
        "objective: {loss: {type: mse, input: h, target: y}}\n"
        "training: {steps: 1, global_batch_size: 4, optimizer: {type: sgd, lr: 0.01}}\nparallelism: single\n"
    )
    assert main(["data", "show", "recipe.yaml"]) == 0
    streams = capsys.readouterr()
    assert "\N{REPLACEMENT CHARACTER}[2Jclear" in streams.out
    assert not {"\x1b", "\x07"} & set(streams.out + streams.err)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("a\r\nb", "a \nb"),
        ("\x1b[31mred\x9b", "\ufffd[31mred\ufffd"),
        ("\u202eabc", "\ufffdabc"),
        ("é 漢 🙂", "é 漢 🙂"),
    ],
)
def test_lines_and_tabs_stay(text: str, shown: str) -> None:
    assert in_lines(text) == shown
