"""`dtrain lsp`: definition, references, rename, outline, progress, and hover while the file has an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.editor.lsp_client import LspClient
from tests.editor.test_language_server import COMMAND, RECIPE, ROOT, ROWS, found_at, opened
from tests.editor.texts import marked


@pytest.fixture(scope="module")
def client() -> Iterator[LspClient]:
    with LspClient(COMMAND, ROOT) as client:
        yield client
    assert client.exit_code == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text(ROWS)
    return tmp_path


def words(text: str, found: list[dict[str, Any]]) -> list[str]:
    """The lines that the places are in, with brackets around each place."""
    shown = []
    for each in found:
        start, end = each["range"]["start"], each["range"]["end"]
        line = text.splitlines()[start["line"]]
        assert start["line"] == end["line"]
        shown.append(f"{line[: start['character']]}[{line[start['character'] : end['character']]}]".strip())
    return shown


@pytest.mark.parametrize(
    ("at", "defined", "num_uses"),
    [
        ("input: |x}", "[x]", 1),
        ("target: y|}", "[y]", 1),
        ("input: log|its,", "[logits]", 1),
        ("{{ vars.w|idth }}", "vars: {[width]", 1),
        ("{{ params.|size }}", "params: {[size]", 1),
        ("input: i|nner", "inputs: [[inner]", 1),
        ("out:  bo|dy * mask", "[body]", 1),
        ("output: o|ut", "[out]", 1),
        ("  un|it:", "[unit]", 0),
    ],
)
def test_a_name_leads_to_its_definition(client: LspClient, folder: Path, at: str, defined: str, num_uses: int) -> None:
    plain = at.replace("|", "")
    assert RECIPE.count(plain) == 1
    text, line, character = marked(RECIPE.replace(plain, at))
    uri = opened(client, folder, text)
    assert words(text, client.at("definition", uri, line, character)) == [defined]
    uses = client.at("references", uri, line, character, context={"includeDeclaration": False})
    assert len(uses) == num_uses
    client.close(uri)


def test_a_node_and_a_field_of_one_name_are_two(client: LspClient, folder: Path) -> None:
    """A block's own node `out` is not the model's."""
    text = RECIPE.replace("act:    {type: relu}", "out:    {type: relu, input: hidden}")
    plain, line, character = marked(text.replace("    out:    {", "    o|ut:    {"))
    uri = opened(client, folder, plain)
    found = client.at("references", uri, line, character, context={"includeDeclaration": True})
    assert len(found) == 1
    client.close(uri)


def renamed(text: str, edits: list[dict[str, Any]]) -> str:
    lines = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda each: -each["range"]["start"]["character"]):
        start, end = edit["range"]["start"], edit["range"]["end"]
        line = lines[start["line"]]
        lines[start["line"]] = line[: start["character"]] + edit["newText"] + line[end["character"] :]
    return "".join(lines)


def test_rename_changes_every_use_and_nothing_else(client: LspClient, folder: Path) -> None:
    text, line, character = marked(RECIPE.replace("logits: {", "lo|gits: {"))
    uri = opened(client, folder, text)
    assert client.at("prepareRename", uri, line, character)["end"]["character"] == character + 4
    (edits,) = client.at("rename", uri, line, character, newName="scores")["changes"].values()
    assert renamed(text, edits) == RECIPE.replace("logits", "scores")
    for name in ("act", "2x", "a b"):
        with pytest.raises(AssertionError, match="rename"):
            client.at("rename", uri, line, character, newName=name)
    client.close(uri)


def test_rename_reaches_a_base(client: LspClient, folder: Path) -> None:
    (folder / "base.yaml").write_text(RECIPE)
    text, line, character = marked(
        "extends: base.yaml\nobjective:\n  metrics: {best: {type: accuracy, input: lo|gits}}\n"
    )
    uri = opened(client, folder, text)
    changes = client.at("rename", uri, line, character, newName="scores")["changes"]
    assert {Path(address).name for address in changes} == {"base.yaml", "recipe.yaml"}
    client.close(uri)


def test_the_outline_has_sections_and_names(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder)
    found = client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    assert [each["name"] for each in found] == ["vars", "data", "model", "objective", "training"]
    model = {each["name"]: each for each in found[2]["children"]}
    assert [each["name"] for each in model["graph"]["children"]] == ["hidden", "act", "logits"]
    (unit,) = model["blocks"]["children"]
    graph = next(each for each in unit["children"] if each["name"] == "graph")
    assert [each["name"] for each in graph["children"]] == ["body", "out"]
    client.close(uri)


def test_hover_and_completion_use_the_last_good_pass_while_there_is_an_error(client: LspClient, folder: Path) -> None:
    uri = opened(client, folder)
    mark = RECIPE.replace("hidden: {type", "hid|den: {type")
    assert "(B, 32)" in found_at(client, uri, mark)
    broken = "# a line more\n" + RECIPE.replace("epochs: 2", "epoch: 2")
    client.change(uri, broken)
    _, line, character = marked("# a line more\n" + mark)
    shown = client.hover(uri, line, character)
    assert "(B, 32)" in shown
    assert "before the present error" in shown
    text, line, character = marked(broken.replace("column: label", "column: |"))
    client.change(uri, text)
    assert {"a", "b", "label"} <= client.completions(uri, line, character).keys()
    client.close(uri)


def test_a_full_check_shows_its_progress(folder: Path) -> None:
    with LspClient(COMMAND, ROOT, progress=True) as client:
        uri = opened(client, folder)
        found_at(client, uri, RECIPE.replace("hidden: {type", "hid|den: {type"))
        client.wait_for_diagnostics(uri)
        values = [each["params"]["value"] for each in client.notifications if each["method"] == "$/progress"]
    assert values[0]["kind"] == "begin"
    assert values[0]["title"] == "checking recipe.yaml: data and shapes"
