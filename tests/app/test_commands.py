"""The commands that only tell: what they print, and with which code they end."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from declarative_train.__main__ import main
from declarative_train.app.commands.tensorboard import page_with_losses_first
from declarative_train.app.main import all_commands
from declarative_train.plan import codec

ROOT = Path(__file__).parent.parent.parent
CASES = ROOT / "tests" / "cases"
DIGITS = str(ROOT / "recipes" / "digits_mlp_ddp2.yaml")
DDP = str(ROOT / "recipes" / "multi_gpu_ddp.yaml")
DP = str(ROOT / "recipes" / "data_parallel.yaml")
PIPELINE = str(ROOT / "recipes" / "large_model_pipeline.yaml")

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """readline, which pytest imports, says how wide one is."""
    monkeypatch.delenv("COLUMNS", raising=False)


def told(capsys: Captured, *words: str, code: int = 0) -> str:
    """What a command prints, on both streams."""
    assert main(list(words)) == code, capsys.readouterr()
    streams = capsys.readouterr()
    return streams.out + streams.err


def test_help_names_every_command(capsys: Captured) -> None:
    text = told(capsys, "--help")
    assert [name for name in all_commands() if not re.search(rf"^ +{name}\s", text, re.MULTILINE)] == []


@pytest.mark.parametrize("command", all_commands())
def test_every_command_explains_itself(command: str, capsys: Captured) -> None:
    assert f"usage: dtrain {command}" in told(capsys, command, "--help")


@pytest.mark.parametrize("words", [(), ("traim",), ("run",), ("run", DIGITS, "--max-steps", "0")])
def test_wrong_use_is_code_2(words: tuple[str, ...], capsys: Captured) -> None:
    assert "usage: dtrain" in told(capsys, *words, code=2)


def test_doctor_tells_what_there_is(capsys: Captured) -> None:
    text = told(capsys, "doctor")
    assert "torch" in text
    assert "gloo" in text


def test_list_has_every_kind_and_its_types(capsys: Captured) -> None:
    text = told(capsys, "list")
    assert all(word in text for word in ("linear", "cross_entropy", "adamw", "cosine", "csv", "stratified", "gpt"))
    table = told(capsys, "list", "layers")
    assert table.count("\n") > 50
    assert all(line.split(maxsplit=1)[1:] for line in table.splitlines()), "every layer says what it does"


def test_list_of_one_type_is_its_manual_page(capsys: Captured) -> None:
    text = told(capsys, "list", "linear")
    assert "out_features: whole number | same, required" in text
    assert "inputs:  x" in text
    assert "parameters" in told(capsys, "list", "gpt")


@pytest.mark.packs
def test_list_keeps_to_the_width_of_a_terminal(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every page, with no word lost; the recipes of blocks are files, and stay as they are."""
    listed = told(capsys, "list").partition("\n\n")[0].replace(",", "")
    kinds = {kind: names for kind, *names in map(str.split, listed.splitlines())}
    names = {name for kind, names in kinds.items() for name in (kind, *names) if kind != "blocks"}
    pages = {name: told(capsys, "list", name) for name in (*names, "blocks")}
    monkeypatch.setenv("COLUMNS", "80")
    assert len(pages) > 150
    for name, whole in pages.items():
        page = told(capsys, "list", name)
        assert max(map(len, page.splitlines())) <= 80, name
        assert page.split() == whole.split(), name


def test_list_of_hardware_has_figures_and_their_source(capsys: Captured) -> None:
    assert "h100-sxm" in told(capsys, "list")
    assert re.search(r"h100-sxm +80 +989\.4 +989\.4 +67 +67 +3,350 +450 +50", told(capsys, "list", "hardware"))
    page = told(capsys, "list", "a100-sxm-80gb")
    assert "which torch calls NVIDIA A100-SXM4-80GB or A100-SXM4-80GB" in page
    assert "source: NVIDIA A100 Tensor Core GPU data sheet, 2021" in page
    assert "did you mean `h100-sxm`?" in told(capsys, "list", "h100-smx", code=2)


def test_list_of_an_unknown_name_offers_the_nearest(capsys: Captured) -> None:
    assert "did you mean `linear`?" in told(capsys, "list", "linaer", code=2)


def test_explain_prints_the_page_by_code_or_name(capsys: Captured) -> None:
    page = told(capsys, "explain", "Y003")
    assert page.startswith("duplicate-key (Y003)")
    assert told(capsys, "explain", "duplicate-key") == page
    assert "did you mean" in told(capsys, "explain", "duplicate-keys-x", code=2)
    assert [line.split()[1] for line in told(capsys, "explain", "y00").splitlines()][:3:2] == [
        "yaml-syntax",
        "duplicate-key",
    ]
    assert "known: K001, K002" in told(capsys, "explain", "K999", code=2)


@pytest.mark.packs
def test_schema_is_the_kept_one(tmp_path: Path, capsys: Captured) -> None:
    kept = (ROOT / "schemas" / "recipe.schema.json").read_text("utf-8")
    assert told(capsys, "schema") == kept
    assert told(capsys, "schema", "-o", str(tmp_path / "a.json")) == ""
    assert (tmp_path / "a.json").read_text("utf-8") == kept
    assert "cannot write" in told(capsys, "schema", "-o", str(tmp_path / "no" / "a.json"), code=3)


@pytest.mark.packs
def test_init_writes_a_recipe_that_lints_clean(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "first.yaml"
    assert "dtrain run" in told(capsys, "init", str(path))
    assert path.read_text("utf-8").startswith("# yaml-language-server: $schema=recipe.schema.json")
    assert "nothing wrong" in told(capsys, "lint", str(path))
    assert "exists already" in told(capsys, "init", str(path), code=2)
    told(capsys, "init", str(path), "--force")


def test_show_says_where_each_value_was_written(capsys: Captured) -> None:
    text = told(capsys, "show", DIGITS, "--set", "training.epochs=3")
    line = next(line for line in text.splitlines() if line.startswith("training.epochs"))
    assert line.split() == ["training.epochs", "3", "#", "--set", "training.epochs=3"]
    assert any(line.startswith("data.shuffle") and line.endswith("# default") for line in text.splitlines())
    hidden = next(line for line in text.splitlines() if line.startswith("model.graph.hidden.out_features"))
    assert "128" in hidden
    assert "digits_mlp.yaml:" in hidden


def test_show_tells_what_a_later_file_dropped(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "derived.yaml"
    path.write_text(f"extends: {DIGITS}\ntraining: {{steps: 10}}\n")
    text = told(capsys, "show", str(path))
    assert "training.epochs" in text.partition("dropped:")[2]


def test_show_graph_has_shapes_and_counts(capsys: Captured) -> None:
    text = told(capsys, "show", DIGITS, "--graph")
    assert "(B, 128)" in text
    assert "9,610 parameters" in text


def test_show_graph_tells_copies_once(capsys: Captured) -> None:
    text = told(capsys, "show", PIPELINE, "--graph", "--set", "vars.width=16")
    assert "layers.0 (1 of 8)" in text
    assert "layers.1" not in text


@pytest.mark.packs
def test_plan_is_saved_compared_and_refused_when_stale(tmp_path: Path, capsys: Captured) -> None:
    recipe = tmp_path / "a.yaml"
    told(capsys, "init", str(recipe))
    saved = tmp_path / "plan.json"
    told(capsys, "plan", str(recipe), "-o", str(saved))
    assert json.loads(saved.read_text("utf-8"))["name"] == "a"
    assert told(capsys, "plan", str(saved)) == told(capsys, "plan", str(recipe))
    assert told(capsys, "plan", str(recipe), "--diff", str(saved)).strip() == "no difference"
    recipe.write_text(recipe.read_text("utf-8").replace("epochs: 5", "epochs: 6"), "utf-8")
    _, _, below = told(capsys, "plan", str(recipe)).partition("\n")  # the plan's number, which may hold any digits
    assert "300" not in below.partition("batch")[0]
    text = told(capsys, "run", str(saved), code=3)
    assert "this plan is stale" in text
    assert "a.yaml" in text


def test_plan_compares_what_was_asked_with_the_other_as_it_is(tmp_path: Path, capsys: Captured) -> None:
    switch = tmp_path / "more.yaml"
    switch.write_text("training: {global_batch_size: 50}\n", "utf-8")
    saved = tmp_path / "plan.json"
    told(capsys, "plan", DDP, "-o", str(saved))
    for words in (["--set", "training.global_batch_size=50"], ["--with", str(switch)]):
        for other in (DDP, str(saved)):
            text = told(capsys, "plan", DDP, *words, "--diff", other, code=1)
            assert f"+++ {DDP} {' '.join(words)}" in text
            assert "100 =" in text
            assert "50 =" in text
    assert told(capsys, "plan", DDP, "--diff", DDP).strip() == "no difference"
    assert told(capsys, "plan", str(saved), "--diff", DDP).strip() == "no difference"


def test_plan_for_other_devices(tmp_path: Path, capsys: Captured) -> None:
    text = told(capsys, "plan", PIPELINE, "--for", "h100-sxm")
    assert "pipeline on 4 GPUs" in text
    assert "step on h100-sxm, estimated" in text
    text = told(capsys, "plan", DDP, "--for", "5xl4")
    assert "100 = 5 ranks x 1 accumulation x 20" in text
    assert "step on l4, estimated" in text
    text = told(capsys, "plan", DDP, "--set", "parallelism=auto", "--for", "2x10xa100-sxm-80gb")
    assert "fsdp on 2 nodes x 10 GPUs" in text
    assert "parallelism: auto\n  fsdp: " in text
    saved = tmp_path / "plan.json"
    told(capsys, "plan", DDP, "-o", str(saved))
    assert "+step on l4, estimated" in told(capsys, "plan", DDP, "--for", "2xl4", "--diff", str(saved), code=1)
    assert "--for needs a recipe" in told(capsys, "plan", str(saved), "--for", "l4", code=2)
    assert "did you mean `h100-sxm`?" in told(capsys, "plan", DDP, "--for", "h100-smx", code=1)
    assert "does not have the form h100-sxm, 4xh100-sxm" in told(capsys, "plan", DDP, "--for", "0xl4", code=2)


def test_show_and_trace_of_a_recipe_that_leaves_the_mode_open(capsys: Captured) -> None:
    words = (DDP, "--set", "parallelism=auto", "--set", "layout.hardware=l4")
    shown = told(capsys, "show", *words)
    assert re.search(r'parallelism +"auto"', shown)
    assert re.search(r'layout\.hardware +"l4"', shown)
    assert "2 ranks" in told(capsys, "trace", *words)


def test_plan_of_garbage_is_one_message(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "plan.json"
    path.write_text("{}", "utf-8")
    assert "is not a plan that can be run" in told(capsys, "plan", str(path), code=3)


@pytest.mark.packs
def test_a_plan_that_was_changed_by_hand_is_refused(tmp_path: Path, capsys: Captured) -> None:
    recipe, saved = tmp_path / "a.yaml", tmp_path / "plan.json"
    told(capsys, "init", str(recipe))
    told(capsys, "plan", str(recipe), "-o", str(saved))
    content = saved.read_bytes()
    told(capsys, "plan", str(saved))
    for at in random.Random(4).sample(range(len(content)), 25):
        saved.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        text = told(capsys, "plan", str(saved), code=3)
        assert "is not a plan that can be run" in text or content[at : at + 1].isspace(), text
    data = json.loads(content)
    data["training"]["optimizer"]["lr"] = 7.5
    saved.write_text(json.dumps(data), "utf-8")
    text = told(capsys, "run", str(saved), code=3)
    assert f"dtrain: {saved} is not a plan that can be run: it was changed after it was saved" in text
    assert not (tmp_path / "runs").exists()
    saved.write_text(json.dumps(json.loads(content)), "utf-8")  # laid out in another way
    told(capsys, "plan", str(saved))


@pytest.mark.packs  # `init` is a tool
def test_a_plan_of_a_version_with_another_fingerprint_is_refused(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, saved = tmp_path / "a.yaml", tmp_path / "plan.json"
    told(capsys, "init", str(recipe))
    told(capsys, "plan", str(recipe), "-o", str(saved))
    monkeypatch.setattr(codec, "_TRAINING", (*codec._TRAINING, "compile"))
    assert "was compiled by another version of dtrain" in told(capsys, "run", str(saved), code=3)


@pytest.mark.parametrize("command", ["lint", "plan", "run", "show", "trace"])
@pytest.mark.parametrize(
    ("name", "words"),
    [("nan.yaml", "did you mean `nano.yaml`?"), ("none.json", "there is no file"), ("away/a.yaml", "no folder")],
)
def test_a_file_that_is_not_there_is_a_wrong_use(  # as any word of the command line that leads nowhere
    tmp_path: Path, capsys: Captured, command: str, name: str, words: str
) -> None:
    (tmp_path / "nano.yaml").write_text("", "utf-8")
    assert words in told(capsys, command, str(tmp_path / name), code=2)


@pytest.mark.parametrize("command", ["plan", "run", "show"])
def test_a_folder_is_no_recipe(tmp_path: Path, capsys: Captured, command: str) -> None:
    assert "is a folder: give a recipe in it" in told(capsys, command, str(tmp_path), code=2)


def test_run_dry_prints_the_plan_and_starts_nothing(tmp_path: Path, capsys: Captured) -> None:
    text = told(capsys, "run", DIGITS, "--dry-run", "--set", f"logging.dir={tmp_path}/runs")
    assert "100 = 2 ranks x 1 accumulation x 50" in text
    assert not (tmp_path / "runs").exists()


def test_run_of_a_wrong_recipe_is_code_1(capsys: Captured) -> None:
    text = told(capsys, "run", DIGITS, "--set", "training.epoch=3", code=1)
    assert "did you mean `epochs`?" in text


@pytest.mark.parametrize(
    ("host", "where"),
    [("127.0.0.1", "127.0.0.1:6006"), ("0.0.0.0", "127.0.0.1:6006"), ("::1", "[::1]:6006")],
)
def test_tensorboard_names_a_page_with_the_losses_first(host: str, where: str) -> None:
    """As TensorBoard reads its own address: seen in a browser, docs/images/tensorboard-losses.png."""
    address = urlsplit(page_with_losses_first(host, 6006))
    assert (address.netloc, address.fragment) == (where, "timeseries")
    (cards,) = parse_qs(address.query)["pinnedCards"]
    assert [card["tag"] for card in json.loads(cards)] == ["training/loss", "validation/loss"]


def test_tensorboard_without_runs_says_how_to_make_one(tmp_path: Path, capsys: Captured) -> None:
    assert "dtrain run" in told(capsys, "tensorboard", str(tmp_path / "none"), code=2)


@pytest.mark.parametrize(
    "setting",
    ["data.source={type: csv, path: none.csv}", "data.source={type: csv, path: '*.none'}", "model.weights=none.pt"],
)
def test_a_path_given_by_set_is_not_said_to_be_relative_to_the_recipe(setting: str, capsys: Captured) -> None:
    text = told(capsys, "plan", DIGITS, "--set", setting, code=1)
    assert "a path given by --set is relative to the working directory" in text


@pytest.mark.parametrize(
    ("made", "setting", "rest"),
    [
        ("x.csv", "data: {source: {path: x.csv}}", ", and `x.csv` is in the working directory: write `../x.csv`"),
        ("r/x.csv", "data: {source: {path: data/x.csv}}", ", and `r/x.csv` is there: write `x.csv`"),
        ("runs/a/x", "model: {weights: runs/a}", ", and `runs/a` is in the working directory: write `../runs/a`"),
        ("y.csv", "model: {weights: runs/sft}", ""),
    ],
)  # fmt: skip
def test_a_path_that_is_elsewhere_is_found(
    made: str, setting: str, rest: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(made), Path("r/recipe.yaml")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"extends: {DIGITS}\n{setting}\n")
    text = told(capsys, "plan", "r/recipe.yaml", code=1)
    assert f"help: paths are relative to the folder of r/recipe.yaml{rest}\n" in text


@pytest.mark.parametrize("words", [("plan",), ("show", "--graph"), ("trace",)])
def test_what_needs_a_plugin_says_how_to_have_it(capsys: Captured, words: tuple[str, ...]) -> None:
    recipe = str(CASES / "err" / "plugin_unverified.yaml")
    assert "--plugins imports them" in told(capsys, *words, recipe, code=1)
    assert "--plugins imports them" not in told(capsys, *words, recipe, "--plugins")


def test_a_reader_that_goes_away_does_not_change_the_exit_code() -> None:
    """`dtrain lint bad.yaml | head -1`: the reader of the pipe is gone before the first line."""
    for words, code in ((("lint", str(CASES / "err" / "objective_none.yaml")), 1), (("list", "layers"), 0)):
        reader, writer = os.pipe()
        os.close(reader)
        command = subprocess.run(
            [sys.executable, "-m", "declarative_train", *words], stdout=writer, stderr=subprocess.PIPE, timeout=60
        )
        os.close(writer)
        assert (command.returncode, command.stderr) == (code, b"")


def test_what_the_recipe_asks_to_ignore_is_said_by_no_command(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "recipe.yaml"
    text = f"extends: {CASES / 'base.yaml'}\ntraining:\n  optimizer:\n    lr: 10"
    for comment, said in (("", True), ("  # dtrain: ignore[O013]", False)):
        path.write_text(f"{text}{comment}\n")
        for command in ("lint", "plan", "trace"):
            assert ("O013" in told(capsys, command, str(path))) is said, command
