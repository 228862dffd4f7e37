"""`dtrain lsp`, spoken to as editors do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.editor.lsp_client import LspClient
from tests.editor.texts import marked

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
COMMAND = [sys.executable, "-m", "declarative_train", "lsp"]

RECIPE = """\
vars: {width: 32}
data:
  source: {type: csv, path: rows.csv}
  fields:
    x: {columns: [a, b]}
    y: {type: category, column: label, num_classes: 3}
  split: {validation: 0.5}
model:
  blocks:
    unit:
      params: {size: 8}
      inputs: [inner, mask]
      graph:
        body: {type: linear, out_features: "{{ params.size }}", input: inner}
        out:  body * mask
      output: out
  graph:
    hidden: {type: linear, out_features: "{{ vars.width }}", input: x}
    act:    {type: relu}
    logits: {type: linear, out_features: 3}
objective:
  loss: {type: cross_entropy, input: logits, target: y}
  metrics: [accuracy]
training:
  epochs: 2
  global_batch_size: 2
  optimizer: {type: adam, lr: 1e-3}
"""
ROWS = "a,b,label\n1,2,0\n3,4,1\n5,6,2\n7,8,0\n9,1,1\n2,3,2\n"


@pytest.fixture(scope="module")
def client() -> Iterator[LspClient]:
    with LspClient(COMMAND, ROOT) as client:
        yield client
    assert client.exit_code == 0
    assert client.notifications == [], "the server logged a mistake of its own"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path


def opened(client: LspClient, folder: Path, text: str = RECIPE, name: str = "recipe.yaml") -> str:
    (folder / name).write_text(text)
    return client.open(folder / name)


def codes(found: list[Any]) -> list[str]:
    return [each["code"] for each in found]


def found_at(client: LspClient, uri: str, text: str, timeout: float = 30.0) -> str:
    """The hover at a mark, as soon as the shapes are known."""
    _, line, character = marked(text)
    end = time.monotonic() + timeout
    while "```" not in (shown := client.hover(uri, line, character)) and time.monotonic() < end:
        time.sleep(0.1)
    return shown


def names(client: LspClient, folder: Path, text: str) -> dict[str, Any]:
    """What is offered at the mark of a text, in a recipe that was fine before."""
    plain, line, character = marked(text)
    uri = opened(client, folder)
    found_at(client, uri, RECIPE.replace("logits: {type", "lo|gits: {type"))
    client.change(uri, plain)
    found = client.completions(uri, line, character)
    client.close(uri)
    return found


# mistakes


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_shipped_recipe_is_fine(client: LspClient, path: Path) -> None:
    uri = client.open(path)
    found = client.wait_for_diagnostics(uri)
    assert [each for each in found if each["severity"] == 1] == []
    client.close(uri)


def test_a_mistake_is_said_at_its_place(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder)
    assert client.wait_for_diagnostics(uri) == []
    client.change(uri, RECIPE.replace("epochs: 2", "epoch: 2"))
    found = client.wait_for_diagnostics(uri)
    line = RECIPE.splitlines().index("  epochs: 2")
    wrong = next(each for each in found if each["range"]["start"] == {"line": line, "character": 2})
    assert wrong["range"]["end"] == {"line": line, "character": 7}
    assert (wrong["severity"], wrong["source"]) == (1, "dtrain")
    assert "did you mean `epochs`?" in wrong["message"]
    client.change(uri, RECIPE)
    assert client.wait_for_diagnostics(uri) == []
    client.close(uri)


def test_shapes_and_data_are_looked_at_too(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("out_features: 3", "out_features: 2").replace("[a, b]", "[a, c]"))
    found = client.wait_for_diagnostics(uri, bool)
    assert codes(found) != []
    assert any("`c`" in each["message"] for each in found)
    client.change(uri, RECIPE.replace("out_features: 3", "out_features: 2"))
    found = client.wait_for_diagnostics(uri, lambda found: any("scores" in each["message"] for each in found))
    related = [each["message"] for one in found for each in one.get("relatedInformation", ())]
    assert any("logits" in each for each in related)
    client.close(uri)


def test_what_only_the_full_look_finds_stays_while_typing(client: LspClient, folder: Path) -> None:
    text = RECIPE.replace("out_features: 3", "out_features: 2")
    uri = opened(client, folder, text)
    before = client.wait_for_diagnostics(uri, bool)
    client.change(uri, text.replace("epochs: 2", "epochs: 3"))
    assert codes(client.wait_for_diagnostics(uri)) == codes(before)
    client.close(uri)


def test_columns_are_counted_as_the_editor_counts(folder: Path) -> None:
    text = 'name: wide\ndata: {source: {type: csv, path: "😀.csv"}, feilds: {}}\nmodel: {graph: {}}\n'
    line = text.splitlines()[1]
    for encoding, width in (("utf-16", 2), ("utf-32", 1), ("utf-8", 4)):
        with LspClient([*COMMAND, "--static"], folder, encodings=[encoding]) as client:
            assert client.server["capabilities"]["positionEncoding"] == encoding
            uri = opened(client, folder, text)
            found = client.wait_for_diagnostics(uri)
            client.close(uri)
        places = [each["range"]["start"] for each in found if "feilds" in each["message"]]
        assert places == [{"line": 1, "character": line.index("feilds") + width - 1}]


def test_a_mistake_in_a_base_is_shown_in_the_base(client: LspClient, folder: Path) -> None:
    (folder / "base.yaml").write_text(RECIPE.replace("epochs: 2", "epoch: 2"))
    base = (folder / "base.yaml").as_uri()
    uri = opened(client, folder, "extends: base.yaml\ntraining: {epochs: 3}\n", "child.yaml")
    assert client.wait_for_diagnostics(uri) == []
    assert [each["range"]["start"]["character"] for each in client.wait_for_diagnostics(base, bool)] == [2]
    (folder / "base.yaml").write_text(RECIPE)
    client.save(base)
    assert client.wait_for_diagnostics(base) == []
    client.close(uri)


def test_what_is_closed_is_forgotten(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("epochs: 2", "epoch: 2"))
    assert client.wait_for_diagnostics(uri, bool)
    client.close(uri)
    assert client.wait_for_diagnostics(uri, lambda found: not found) == []


def test_other_yaml_is_left_alone(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, "on: push\njobs: {a: 1}\njobs: {a: 2}\n", "workflow.yaml")
    other = opened(client, folder)
    assert client.wait_for_diagnostics(other) == []  # asked for later, and answered
    assert uri not in client.diagnostics
    assert client.hover(uri, 0, 1) == ""
    assert client.completions(uri, 0, 4) == {}
    client.close(other)


def test_text_that_is_no_yaml_is_said_not_fatal(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE + "  : }\n\t- [\n")
    assert client.wait_for_diagnostics(uri, bool)
    client.change(uri, RECIPE)
    assert client.wait_for_diagnostics(uri) == []
    client.close(uri)


def test_plugins_are_never_imported(client: LspClient, folder: Path) -> None:
    (folder / "mine.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    uri = opened(client, folder, "plugins: [./mine.py]\n" + RECIPE)
    found_at(client, uri, "plugins: [./mine.py]\n" + RECIPE.replace("logits: {type", "lo|gits: {type"), timeout=5)
    client.save(uri)
    client.wait_for_diagnostics(uri)
    assert not (folder / "ran").exists()
    client.close(uri)


def test_a_source_that_does_not_answer_does_not_block(folder: Path) -> None:
    os.mkfifo(folder / "pipe.csv")
    text = RECIPE.replace("rows.csv", "pipe.csv")
    with LspClient(COMMAND, folder) as client:
        uri = opened(client, folder, text)
        assert client.wait_for_diagnostics(uri) == []
        time.sleep(1.0)  # the full look waits for the pipe by now
        client.change(uri, text.replace("epochs: 2", "epoch: 2"))
        assert client.wait_for_diagnostics(uri, bool, timeout=10) != []
        client.change(uri, text)
        assert "training.epochs" in client.hover(uri, RECIPE.splitlines().index("  epochs: 2"), 4)
    assert client.exit_code == 0


# fixes


def test_fixes_are_code_actions(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("epochs: 2", "epochs: 010"))
    [wrong] = client.wait_for_diagnostics(uri, bool)
    [action] = client.code_actions(uri, wrong)
    assert action["title"] == "replace `010` by `10`"
    assert (action["kind"], action["isPreferred"]) == ("quickfix", True)
    assert action["diagnostics"][0]["code"] == wrong["code"]
    assert action["edit"]["changes"] == {uri: [{"range": wrong["range"], "newText": "10"}]}
    client.close(uri)


def test_misspelt_words_are_put_right_by_code_actions(client: LspClient, folder: Path) -> None:
    """One of the language is preferred, a name of the user's is a guess."""
    uri = opened(client, folder, RECIPE.replace("epochs: 2", "epoch: 2"))
    [wrong] = client.wait_for_diagnostics(uri, bool)
    [action] = client.code_actions(uri, wrong)
    assert (action["title"], action["isPreferred"]) == ("replace `epoch` by `epochs`", True)
    assert action["edit"]["changes"] == {uri: [{"range": wrong["range"], "newText": "epochs"}]}
    client.close(uri)
    uri = opened(client, folder, RECIPE.replace("input: logits", "input: logitz"))
    [wrong] = client.wait_for_diagnostics(uri, bool)
    [action] = client.code_actions(uri, wrong)
    assert action["title"].startswith("replace `logitz` by `logits`")
    assert not action["isPreferred"]
    client.close(uri)


def test_a_fix_that_may_change_the_plan_says_so(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("lr: 1e-3", "lr:1e-3"))
    actions = [each for one in client.wait_for_diagnostics(uri, bool) for each in client.code_actions(uri, one)]
    assert any(each["title"].endswith("(may change the plan)") and not each["isPreferred"] for each in actions)
    client.close(uri)


def test_fixes_found_by_trying_are_code_actions(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("lr: 1e-3", "lr: [1e-3]"))
    [wrong] = client.wait_for_diagnostics(uri, bool)
    [action] = client.code_actions(uri, wrong)
    assert action["title"] == "replace `[1e-3]` by `1e-3` (may change the plan)"
    client.close(uri)


def test_all_safe_fixes_at_once(client: LspClient, folder: Path) -> None:
    text = RECIPE.replace("epochs: 2", "epochs: 010").replace('"{{ vars.width }}"', "{{ vars.width }}")
    uri = opened(client, folder, text)
    assert len(client.wait_for_diagnostics(uri, bool)) == 2
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    context = {"diagnostics": [], "only": ["source.fixAll"]}
    params = {"textDocument": {"uri": uri}, "range": whole, "context": context}
    [action] = client.ask("textDocument/codeAction", params)
    [edit] = action["edit"]["changes"][uri]
    assert edit["newText"] == RECIPE.replace("epochs: 2", "epochs: 10")
    assert edit["range"]["end"] == {"line": text.count("\n"), "character": 0}
    client.change(uri, edit["newText"])
    assert client.wait_for_diagnostics(uri) == []
    client.close(uri)


# hovers


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("hidden: {type", "hid|den: {type", ["`hidden` linear", "(B, 2)", "(B, 32)", "parameters", "96"]),
        ('out_features: "{{ vars', 'out_fea|tures: "{{ vars', ["`out_features`: `32`, from `{{ vars.width }}`"]),
        ("logits: {type", "lo|gits: {type", ["in   x: act", "(B, 32)", "out", "(B, 3)"]),
        ("y: {type", "|y: {type", ["`y` (B) int64 0..2", '"category"']),
        ("split: {validation", "split: {vali|dation", ["`validation`: 3 samples"]),
        ("training:\n", "trai|ning:\n", ["global_batch_size", "optimizer.betas", "[0.9, 0.999]  # default"]),
    ],
)
def test_hover(client: LspClient, folder: Path, old: str, new: str, words: list[str]) -> None:
    uri = opened(client, folder)
    assert old in RECIPE
    found_at(client, uri, RECIPE.replace("logits: {type", "lo|gits: {type"))
    shown = found_at(client, uri, RECIPE.replace(old, new, 1))
    assert [word for word in words if word not in shown] == [], shown
    client.close(uri)


def test_hover_on_a_word_of_another_tool_is_the_answer_of_find(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder, RECIPE.replace("epochs: 2", "max_epochs: 2"))
    client.wait_for_diagnostics(uri, bool)
    assert "`epochs`" in client.hover(uri, RECIPE.splitlines().index("  epochs: 2"), 4)
    client.close(uri)


def test_hover_over_auto_says_what_was_taken(client: LspClient, folder: Path) -> None:
    (folder / "base.yaml").write_text(RECIPE)
    text = "extends: base.yaml\nparallelism: au|to\nlayout: {gpus: 2, hardware: h100-sxm}\n"
    uri = opened(client, folder, text.replace("|", ""), "child.yaml")
    end = time.monotonic() + 20
    while "a step" not in (shown := client.hover(uri, 1, 15)) and time.monotonic() < end:
        time.sleep(0.1)
    assert "`auto`: " in shown
    assert "a step on h100-sxm, MFU" in client.hover(uri, 2, 30)
    client.close(uri)


def test_hover_says_where_a_value_came_from(client: LspClient, folder: Path) -> None:
    (folder / "base.yaml").write_text(RECIPE)
    text = "extends: base.yaml\ntrai|ning:\n  epochs: 7\n"
    uri = opened(client, folder, text.replace("|", ""), "child.yaml")
    shown = found_at(client, uri, text)
    base_line = RECIPE.splitlines().index("  global_batch_size: 2") + 1
    assert f"2  # base.yaml:{base_line}" in shown
    assert "7  # line 3" in shown
    shown = client.hover(uri, 2, 4)
    assert "`training.epochs`: `7` (line 3)" in shown
    assert "of base.yaml:" in shown
    assert "replaced here" in shown
    client.close(uri)


def test_hover_in_a_block_speaks_of_all_its_places(client: LspClient, folder: Path) -> None:
    text = RECIPE.replace(
        "    act:    {type: relu}\n",
        "    one:    {type: unit, size: 32, inputs: [hidden, hidden]}\n"
        "    two:    {type: unit, size: 32, inputs: [one, one]}\n",
    )
    uri = opened(client, folder, text)
    shown = found_at(client, uri, text.replace("body: {type", "bo|dy: {type"))
    assert "`one.body` linear, the first of 2" in shown
    assert "(B, 32)" in shown
    client.close(uri)


# names


@pytest.mark.parametrize(
    ("old", "new", "wanted", "unwanted"),
    [
        ("input: x}", "input: |}", {"x", "y", "act", "logits"}, {"hidden", "a", "body"}),
        ("input: x}", "input: l|}", {"x", "logits"}, {"hidden"}),
        ("{type: relu}", "relu(|)", {"x", "hidden", "exp", "softmax"}, {"act"}),
        ("input: inner}", "input: |}", {"inner", "mask", "out"}, {"x", "hidden", "body"}),
        ("target: y", "target: |", {"x", "y", "logits"}, {"accuracy"}),
        ("column: label", "column: |", {"a", "b", "label"}, {"x"}),
        ("columns: [a, b]", "columns: [a, |]", {"a", "b", "label"}, {"x"}),
        ("{{ vars.width }}", "{{ |", {"vars.width"}, {"params.size"}),
        ("{{ params.size }}", "{{ params.| }}", {"params.size"}, {"vars.width"}),
        ("act:    {type: relu}", "act:    {type: |}", {"unit"}, set()),
        ("act:    {type: relu}", "act:    {type: unit, |}", {"size"}, set()),
        ("act:    {type: relu}", "act:    {type: unit, inputs: {|}}", {"inner", "mask"}, set()),
        ("act:    {type: relu}", "act:    {type: reuse, node: |}", {"hidden", "logits"}, {"x", "act"}),
        ("  epochs: 2\n", "  early_stop: {metric: |}\n", {"validation/accuracy", "validation/loss"}, set()),
        ("training:\n", "evaluation: {sets: [|]}\ntraining:\n", {"validation"}, set()),
        ("training:\n", "parallelism: {pipeline: {cut_before: [|]}}\ntraining:\n", {"hidden", "logits"}, {"x"}),
        ("objective:\n", "  parameters:\n    |\nobjective:\n", {"hidden", "logits"}, {"x"}),
    ],
)
def test_names_are_offered(
    client: LspClient, folder: Path, old: str, new: str, wanted: set[str], unwanted: set[str]
) -> None:
    assert old in RECIPE
    found = names(client, folder, RECIPE.replace(old, new, 1))
    assert wanted <= found.keys()
    assert not unwanted & found.keys()


def test_a_name_replaces_what_is_typed_of_it(client: LspClient, folder: Path) -> None:
    text = RECIPE.replace("input: x}", "input: lo|}", 1)
    _, line, character = marked(text)
    item = names(client, folder, text)["logits"]
    assert item["textEdit"]["newText"] == "logits"
    assert item["textEdit"]["range"]["start"] == {"line": line, "character": character - 2}
    assert item["textEdit"]["range"]["end"] == {"line": line, "character": character}
    assert item["detail"] == "node linear (B, 3)"


# the process


def test_static_never_imports_torch(folder: Path) -> None:
    with LspClient([*COMMAND, "--static"], folder) as client:
        uri = opened(client, folder)
        assert client.wait_for_diagnostics(uri) == []
        client.save(uri)
        client.wait_for_diagnostics(uri)
        assert "training.epochs" in client.hover(uri, RECIPE.splitlines().index("  epochs: 2"), 4)
        if Path("/proc/self/maps").exists():
            assert "libtorch" not in Path(f"/proc/{client.pid}/maps").read_text()


def test_it_ends_when_the_editor_is_gone(folder: Path) -> None:
    done = subprocess.run(COMMAND, input=b"", cwd=folder, capture_output=True, timeout=60)
    assert done.returncode == 1
    assert done.stdout == b""


def test_without_pygls_it_says_how_to_get_it() -> None:
    code = (
        "import sys\nsys.modules['pygls'] = None\nfrom declarative_train.app.main import main\nsys.exit(main(['lsp']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("dtrain: the language server needs pygls: ")
    assert done.stderr.endswith("pip install 'declarative_train[lsp]'\n")
