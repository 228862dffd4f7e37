"""The shipped recipes: each lints clean, plans as its golden file says, runs, and gives what its first lines promise.

Everything goes through the real command line. `ACCEPT=1` rewrites the golden plans.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import runpy
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.app.main import main
from declarative_train.engine.devices import choose_device
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.describe import describe
from declarative_train.tools.first_recipe.command import first_recipe
from tests.started import finish, run, start

ROOT = Path(__file__).parent.parent
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SWITCHES = sorted((ROOT / "recipes" / "switches").glob("*.yaml"))
GALLERY = sorted((ROOT / "recipes" / "gallery").glob("*.yaml"))
GOLDEN = ROOT / "tests" / "golden" / "plans"
CASES = (
    {path.stem: (path, ()) for path in RECIPES}
    | {f"gallery_{path.stem}": (path, ()) for path in GALLERY}
    | {f"compare_modes_{switch.stem}": (ROOT / "recipes" / "compare_modes.yaml", (switch,)) for switch in SWITCHES}
)
(TESTED_WITH,) = re.findall(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
FEW_CORES = "P014"  # about this machine, not about the recipe: 2 ranks with 2 loaders each, on 2 cores
DRAWS, REPEATS = "R108", "D035"  # ignored by a comment of the recipe
LINT = ("--format", "concise", "--ignore", FEW_CORES)

Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def dtrain_run(tmp_path: Path, recipe: str, *words: str, timeout_s: float = 110) -> Events:
    """Run a recipe as a user does; its events."""
    return run(f"recipes/{recipe}.yaml", tmp_path, *words, timeout=timeout_s)


def of(events: Events, kind: str) -> Events:
    return [event for event in events if event["event"] == kind]


def epochs(events: Events) -> list[dict[str, float]]:
    return [event["values"] for event in of(events, "EpochDone")]


def losses(events: Events) -> list[float]:
    """Of every step, then of every evaluation."""
    steps = [event["loss"] for event in of(events, "StepDone")]
    return steps + [event["values"]["validation/loss"] for event in of(events, "EvaluationDone")]


def compiled(path: Path, switches: tuple[Path, ...] = ()) -> Plan:
    loaded = recipe_room.load(str(path.relative_to(ROOT)), with_=[str(switch.relative_to(ROOT)) for switch in switches])
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert not [each for each in diagnostics if each.code not in (FEW_CORES, DRAWS, REPEATS)]
    assert plan is not None
    return plan


def test_there_are_recipes_and_switches() -> None:
    teaching = {"multi_gpu_ddp", "data_parallel", "large_model_pipeline", "compare_modes"}
    assert teaching | {"digits_mlp", "digits_mlp_ddp2"} <= {path.stem for path in RECIPES}
    assert [switch.stem for switch in SWITCHES] == ["ddp", "dp", "fsdp", "pipeline"]


@pytest.mark.parametrize("path", [*RECIPES, *SWITCHES, *GALLERY], ids=lambda path: path.stem)
def test_lints_clean(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", *LINT, str(path.relative_to(ROOT))]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda path: path.stem)
def test_lints_clean_with_a_switch(switch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lint", *LINT, "recipes/compare_modes.yaml", "--with", str(switch.relative_to(ROOT))]
    assert main(words) == 0
    assert capsys.readouterr().out == ""


def without_bytes(text: str) -> str:
    """How much memory a traced step takes is torch's own, and changes by its version."""
    return re.sub(r" +", " ", re.sub(r"\b[\d.,]+ [kMGT]?B\b", "#", text))


@pytest.mark.parametrize("name", CASES)
def test_plans_as_its_golden_file_says(name: str) -> None:
    path, switches = CASES[name]
    text = describe(compiled(path, switches), hashes=False) + "\n"
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("ACCEPT"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text)
    assert golden.is_file(), "there is no golden plan yet: run this test with ACCEPT=1"
    wanted = golden.read_text()
    if torch.__version__.partition("+")[0] != TESTED_WITH:
        text, wanted = without_bytes(text), without_bytes(wanted)
    assert text == wanted, "the plan has changed: look at the difference, then run this test with ACCEPT=1"


def test_every_golden_plan_belongs_to_a_recipe() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


def story(path: Path) -> str:
    head = re.match(r"(#.*\n)+", path.read_text())
    assert head is not None
    return head[0]


@pytest.mark.parametrize("path", [*RECIPES, *GALLERY], ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_story(path: Path) -> None:
    up = "../" * (len(path.relative_to(ROOT).parts) - 1)
    assert f"yaml-language-server: $schema={up}schemas/recipe.schema.json" in story(path)
    assert f"dtrain run {path.relative_to(ROOT)}" in story(path)
    assert "Expect:" in story(path)


MODES = {
    "single": ("parallelism=single", "layout.gpus=1"),
    "ddp": ("parallelism=ddp", "layout.gpus=2"),
    "fsdp": ("parallelism=fsdp", "layout.gpus=2"),
    "pipeline": ("parallelism={pipeline: {stages: 2, microbatches: 2}}", "layout.gpus=2"),
}


@pytest.mark.parametrize(
    ("path", "mode"),
    [  # one mode for each, in turn
        pytest.param(path, mode, id=f"{path.stem}-{mode}", marks=() if at % 4 == turn else pytest.mark.long)
        for at, path in enumerate(GALLERY)
        for turn, mode in enumerate(MODES)
    ],
)
def test_the_gallery_can_be_run_in_every_mode(path: Path, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for value in MODES[mode] for word in ("--set", value)]
    code = main(["lint", *LINT, str(path.relative_to(ROOT)), *words])
    said = capsys.readouterr().out
    # a microbatch is all that its last stage sees at a time; its one model reads two texts, and is one node
    refused = {"name: embed_chat": "P104", "info_nce": "R104", "type: orpo": "P104"} if mode == "pipeline" else {}
    if codes := [each for word, each in refused.items() if word in path.read_text()]:
        assert [code, *re.findall(r"error\[(\w+)\]", said)] == [1, *codes]
    else:
        assert code == 0, said


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=pytest.mark.long, id=path.stem) for path in GALLERY],
)
def test_the_gallery_learns_what_its_stories_say(path: Path, tmp_path: Path) -> None:
    """Every figure of a line such as `Expect: validation/mse below 11`, which the story holds next to a baseline."""
    expected = re.sub(r"\n#\s*", " ", story(path).partition("Expect:")[2])
    wanted = re.findall(r"(validation/[\w/]+)[ a-z]*? (above|below) (\d+(?:\.\d+)?)", expected)
    assert wanted
    events = dtrain_run(tmp_path, f"gallery/{path.stem}", timeout_s=280)
    found = of(events, "EvaluationDone")[-1]["values"]
    for name, side, bound in wanted:
        assert found[name] > float(bound) if side == "above" else found[name] < float(bound), (name, found[name])


def test_the_baselines_of_the_gallery_are_what_they_are() -> None:
    def said(name: str, figure: float, digits: int) -> None:
        assert f" {figure:.{digits}f}" in story(ROOT / "recipes" / "gallery" / f"{name}.yaml"), figure

    pixels = np.genfromtxt(ROOT / "recipes" / "data" / "digits.csv", delimiter=",", skip_header=1)[:, :64]
    said("vae", pixels.var(axis=0).mean(), 1)
    said("multi_task", pixels[:, 32:].var(axis=0).mean(), 1)
    hours = np.genfromtxt(ROOT / "recipes" / "data" / "hours.csv", delimiter=",", skip_header=1)[-400:, 1:]
    windows = [hours[start : start + 108] for start in range(0, len(hours) - 107, 4)]
    said("patchtst", float(np.mean([np.abs(each[96:] - each[72:84]).mean() for each in windows])), 3)
    text = (ROOT / "recipes" / "data" / "blocks.txt").read_bytes()
    counts = np.bincount(np.frombuffer(text[int(len(text) * 0.9) :], np.uint8))
    assert counts.argmax() == ord(" ")
    said("bert", counts.max() / counts.sum(), 2)
    said("reviews", of_counted_words(), 1)
    background, mean_box, most_often = of_shapes()
    said("segmentation", background, 2)
    said("localization", mean_box, 2)
    said("localization", most_often, 2)


def of_shapes() -> tuple[float, float, float]:
    """The mean IoU of nothing but background, the IoU of the mean box, and how often the most frequent kind is it."""
    from PIL import Image
    from pyarrow import parquet

    rows = parquet.read_table(ROOT / "recipes" / "data" / "shapes.parquet").to_pylist()
    masks = np.stack([np.asarray(Image.open(io.BytesIO(row["mask"]))) for row in rows])
    first, sides = np.split(np.asarray([row["box"][0] for row in rows], float), 2, axis=1)
    low, high = first.mean(0), (first + sides).mean(0)
    both = np.clip(np.minimum(first + sides, high) - np.maximum(first, low), 0, None).prod(1)
    ious = both / (sides.prod(1) + (high - low).prod() - both)
    kinds = Counter(row["kind"][0] for row in rows)
    return float((masks == 0).mean()) / 4, float(ious.mean()), max(kinds.values()) / len(rows)


def of_counted_words() -> float:
    """Naive Bayes on the words of 180 reviews: its part of the others that is right, over several draws."""
    rows = list(csv.DictReader((ROOT / "recipes" / "data" / "reviews.csv").read_text().splitlines()))
    right = []
    for seed in range(5):
        Random(seed).shuffle(rows)
        counts: dict[str, Counter[str]] = {"bad": Counter(), "good": Counter()}
        for row in rows[:180]:
            counts[row["verdict"]].update(re.findall(r"\w+", row["text"].lower()))
        for row in rows[180:]:
            words = re.findall(r"\w+", row["text"].lower())
            scores = {
                name: sum(np.log((each[word] + 1) / (each.total() + 100)) for word in words)
                for name, each in counts.items()
            }
            right.append(max(scores, key=lambda name: scores[name]) == row["verdict"])
    return float(np.mean(right))


def test_made_data_is_made_by_what_says_so() -> None:
    made = runpy.run_path(str(ROOT / "recipes" / "data" / "make.py"))
    for name in ("hours", "clicks"):
        assert made[name]() == (ROOT / "recipes" / "data" / f"{name}.csv").read_text()


def test_made_shapes_are_made_by_what_says_so() -> None:
    """The pixels; how they are packed is Pillow's."""
    from PIL import Image
    from pyarrow import parquet

    made = runpy.run_path(str(ROOT / "recipes" / "data" / "make_shapes.py"))
    draws = np.random.default_rng(5)
    rows = parquet.read_table(ROOT / "recipes" / "data" / "shapes.parquet").to_pylist()
    assert len(rows) == made["NUM_PICTURES"]
    for row in rows[:40]:
        again = made["one"](draws)
        assert (again["box"], again["kind"]) == (row["box"], row["kind"])
        for name in ("picture", "mask"):
            one, other = (np.asarray(Image.open(io.BytesIO(each[name]))) for each in (again, row))
            assert np.array_equal(one, other)


def test_made_dialogues_are_made_by_what_says_so() -> None:
    data = ROOT / "recipes" / "data"
    made = runpy.run_path(str(data / "make_chats.py"))
    rows_of = {"chats": ("dialogues", 3), "preferences": ("preferences", 4), "facts": ("texts", 6)}
    for name, rows in ((name, made[function](Random(seed))) for name, (function, seed) in rows_of.items()):
        assert "".join(json.dumps(row) + "\n" for row in rows) == (data / f"{name}.jsonl").read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_gpt2_of_transformers_is_tuned_on_dialogues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As sft_llama, with a model that transformers makes here, and whose template does not mark what is learnt. Two
    ranks; then it answers, and transformers reads what is given back."""
    from transformers import AutoModelForCausalLM

    made = runpy.run_path(str(ROOT / "recipes" / "data" / "make_chats.py"))
    folder = tmp_path / "gpt2"
    made["tiny"](folder, "gpt2")
    text = (ROOT / "recipes" / "gallery" / "sft_llama.yaml").read_text()
    text = text.replace("../data/tiny_llama", str(folder)).replace("../data", str(ROOT / "recipes" / "data"))
    text = text.replace("type: llama", "type: gpt")
    text = text.replace("parallelism: single", "parallelism: ddp").replace("gpus: 1", "gpus: 2, device: cpu")
    path = tmp_path / "tuned.yaml"
    path.write_text(text)
    events = run(str(path), tmp_path, timeout=200)
    evaluated = [event["values"]["validation/loss"] for event in of(events, "EvaluationDone")]
    assert evaluated[-1] < evaluated[0]
    (run_dir,) = (tmp_path / "sft_llama").iterdir()
    capsys.readouterr()
    assert main(["generate", str(run_dir), "--chat", "--prompt", "What comes after six?", "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip() == "After six comes seven."
    assert main(["export", str(run_dir), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    _, report = AutoModelForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]


def test_made_reviews_are_made_by_what_says_so() -> None:
    made = runpy.run_path(str(ROOT / "recipes" / "data" / "make_reviews.py"))
    assert made["reviews"](Random(5)) == (ROOT / "recipes" / "data" / "reviews.csv").read_text()


def in_folder(name: str, path: Path, *changes: tuple[str, str]) -> None:
    """A recipe of the gallery with changes, in another folder."""
    text = (ROOT / "recipes" / "gallery" / f"{name}.yaml").read_text()
    for old, new in (*changes, ("../data", str(ROOT / "recipes" / "data"))):
        assert old in text, old
        text = text.replace(old, new)
    path.write_text(text)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_encoder_of_transformers_learns_a_regression_and_is_given_back(tmp_path: Path) -> None:
    """As the page says it, on two ranks that share each layer; a BERT that transformers makes here."""
    from transformers import AutoModelForSequenceClassification, BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    published = tmp_path / "published"
    BertModel(BertConfig(vocab_size=300, max_position_embeddings=48, **sizes)).save_pretrained(published)
    in_folder(
        "reviews",
        tmp_path / "stars.yaml",
        ("from: ../data/tiny_distilbert", f"from: {published}"),
        ("scores: {path: ../data/tiny_distilbert", f"scores: {{path: {published}"),
        ("out_features: 2", "out_features: 1"),
        ("verdict: {type: category, column: verdict}", "stars: {columns: [stars], normalize: standard}"),
        ("fraction: 0.8, column: verdict", "fraction: 0.2, column: verdict"),
        (
            "loss: {type: cross_entropy, input: scores, target: verdict}",
            "loss: {type: mse, input: scores, target: stars}",
        ),
        ("metrics: [accuracy]", "metrics: [mae]"),
        ("parallelism: single", "parallelism: fsdp"),
        ("gpus: 1", "gpus: 2, device: cpu"),
    )
    events = run(str(tmp_path / "stars.yaml"), tmp_path, timeout=280)
    evaluated = [event["values"]["validation/mae"] for event in of(events, "EvaluationDone")]
    assert evaluated[-1] < 0.5  # of stars; always their mean gives 1.3
    (run_dir,) = (tmp_path / "reviews").iterdir()
    assert main(["export", str(run_dir), "--to", "huggingface", "-o", str(tmp_path / "back")]) == 0
    back, report = AutoModelForSequenceClassification.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"]
    assert back.config.num_labels == 1


def test_the_page_of_the_gallery_counts_lines() -> None:
    """Without blanks and comments."""
    page = (ROOT / "docs" / "gallery.md").read_text()
    said = {
        name: int(count) for name, count in re.findall(r"^\| \[\S+\]\(\S+/gallery/(\w+)\.yaml\) \| (\d+) ", page, re.M)
    }
    lines = {path.stem: path.read_text().splitlines() for path in GALLERY}
    assert said == {name: sum(not re.match(r"\s*(#|$)", line) for line in each) for name, each in lines.items()}


@pytest.mark.parametrize(
    "name", [pytest.param("digits_resnet", marks=pytest.mark.long), "gpt_nano_fsdp2", "gpt_nano_lora"]
)
def test_takes_a_few_real_steps(name: str, tmp_path: Path) -> None:
    events = dtrain_run(tmp_path, name, "--max-steps", "3")
    assert [event["step"] for event in of(events, "StepDone")] == [1, 2, 3]
    assert of(events, "RunEnded")[-1]["step"] == 3


def test_gpt_7b_is_fsdp_over_all_gpus_and_takes_real_steps_when_narrow(tmp_path: Path) -> None:
    planned = (GOLDEN / "gpt_7b_auto_32xh100.txt").read_text()
    assert ": fsdp on 4 nodes x 8 GPUs" in planned
    narrow = ["vars.width=32", "vars.layers=2", "vars.heads=2", "training.global_batch_size=16"]
    narrow += ["layout={gpus: 2, hardware: h100-sxm}"]
    words = [word for value in narrow for word in ("--set", value)]
    events = dtrain_run(tmp_path, "gpt_7b_auto_32xh100", "--max-steps", "2", *words)
    assert [event["step"] for event in of(events, "StepDone")] == [1, 2]
    assert of(events, "RunStarted")[0]["num_ranks"] == 2


def seen(path: Path) -> dict[str, str]:
    """Return the figures of `(seen: ...)` in the head of a recipe, by name."""
    name = r"(?:training|validation|test)/[\w/]+"
    before, _, said = re.sub(r"\n#\s*", " ", story(path).partition("Expect:")[2]).partition("(seen: ")
    first, _, more = said.partition(")")[0].partition(";")
    figures = re.findall(r"\d+\.\d+", first)
    return dict(zip(re.findall(name, before)[-len(figures) :], figures, strict=True)) | dict(
        re.findall(rf"({name}) (\d+\.\d+)", more)
    )


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "path",
    [each for each in (*RECIPES, *GALLERY) if "(seen: " in story(each) and each.stem != "compare_modes"],
    ids=lambda path: path.stem,
)
def test_what_was_seen_is_seen_again(path: Path, tmp_path: Path) -> None:
    events = run(path.relative_to(ROOT), tmp_path, timeout=800)
    found = {name: value for event in of(events, "EvaluationDone") for name, value in event["values"].items()}
    steps = [event["loss"] for event in of(events, "StepDone")]
    last = steps[-compiled(path).logging.every_steps :]
    found["training/loss"] = sum(last) / len(last)
    for first in re.findall(r"training/loss from (\d+(?:\.\d+)?) to", story(path)):
        assert steps[0] == pytest.approx(float(first), abs=0.051)
    for name, figure in seen(path).items():
        digits = min(len(figure.partition(".")[2]), 2)
        assert found[name] == pytest.approx(float(figure), abs=0.51 * 10**-digits), name


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "num_ranks", "words"),
    [
        ("data_parallel", 1, ()),
        pytest.param("multi_gpu_ddp", 2, (), marks=pytest.mark.long),
        pytest.param("large_model_pipeline", 4, ("--set", "vars.width=256"), marks=pytest.mark.long),
    ],
)
def test_the_figures_of_a_head_are_those_of_its_run(
    name: str, num_ranks: int, words: tuple[str, ...], tmp_path: Path
) -> None:
    head = story(ROOT / "recipes" / f"{name}.yaml")
    rows = re.findall(r"epoch (\d) +loss (\d\.\d\d) +accuracy (\d\.\d\d)", head)
    assert len(rows) >= 2
    events = dtrain_run(tmp_path, name, "--set", "layout.device=cpu", *words, timeout_s=600)
    assert of(events, "RunStarted")[0]["num_ranks"] == num_ranks
    found = epochs(events)
    for epoch, loss, accuracy in rows:
        values = found[int(epoch) - 1]
        assert values["training/loss"] == pytest.approx(float(loss), abs=0.0051)
        assert values["training/accuracy"] == pytest.approx(float(accuracy), abs=0.0051)


def test_multi_gpu_ddp_splits_each_batch_and_shows_it() -> None:
    plan = compiled(ROOT / "recipes" / "multi_gpu_ddp.yaml")
    assert (plan.batch.global_batch_size, plan.batch.data_parallel_size, plan.batch.microbatch_size) == (100, 2, 50)
    assert plan.data.set("training").num_samples == 10_000


def test_large_model_pipeline_puts_25_million_parameters_on_each_gpu() -> None:
    plan = compiled(ROOT / "recipes" / "large_model_pipeline.yaml")
    sizes = {parameter.name: parameter.num_elements for parameter in plan.parameters}
    assert sum(sizes.values()) == pytest.approx(100e6, rel=0.05)
    layers_of = {0: ("wide", "layers.0", "layers.1"), 1: ("layers.2", "layers.3")}
    layers_of |= {2: ("layers.4", "layers.5"), 3: ("layers.6", "layers.7", "logits")}
    for layers in layers_of.values():
        held = sum(size for name, size in sizes.items() if name.startswith(tuple(f"{layer}." for layer in layers)))
        assert held == pytest.approx(25e6, rel=0.05)
    shown = re.findall(r"^ +(\d)  \S+ +\S+ +([\d,]+)", describe(plan), re.MULTILINE)
    assert [stage for stage, _ in shown] == ["0", "1", "2", "3"]
    assert all(int(count.replace(",", "")) == pytest.approx(25e6, rel=0.05) for _, count in shown)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_large_model_pipeline_takes_real_steps_at_full_width(tmp_path: Path) -> None:
    events = dtrain_run(tmp_path, "large_model_pipeline", "--max-steps", "2", timeout_s=600)
    assert of(events, "RunStarted")[0]["num_ranks"] == 4
    assert of(events, "RunStarted")[0]["num_parameters"] == pytest.approx(100e6, rel=0.05)
    assert [event["step"] for event in of(events, "StepDone")] == [1, 2]


def test_large_model_pipeline_takes_real_steps_when_narrow(tmp_path: Path) -> None:
    events = dtrain_run(tmp_path, "large_model_pipeline", "--max-steps", "3", "--set", "vars.width=64")
    assert of(events, "RunStarted")[0]["num_ranks"] == 4
    assert [event["step"] for event in of(events, "StepDone")] == [1, 2, 3]


@pytest.mark.parametrize("first", ["make run", "README", "dtrain init"])
@pytest.mark.parametrize(("num_gpus", "kind"), [(0, "cpu"), (1, "cuda"), (2, "cuda"), (8, "cuda")])
def test_what_a_newcomer_runs_first_runs_on_any_machine(first: str, num_gpus: int, kind: str, tmp_path: Path) -> None:
    match first:
        case "make run":
            found = re.search(r"RECIPE \?= (\S+)", (ROOT / "Makefile").read_text())
            assert found is not None
            path = ROOT / found[1]
        case "README":
            found = re.search(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
            assert found is not None
            path = ROOT / "readme_as_it_stands.yaml"
        case _:
            path = tmp_path / "first.yaml"
            path.write_text(first_recipe(Path("first.yaml")))
    texts = {str(path): found[1]} if first == "README" and found is not None else {}
    recipe = recipe_room.load(str(path), texts=texts).recipe
    assert recipe is not None
    plan, _ = planner.compile(recipe)
    assert plan is not None
    assert choose_device(plan.layout, num_gpus).kind == kind


def test_digits_mlp_reaches_its_accuracy_within_a_minute(tmp_path: Path) -> None:
    begin = time.monotonic()
    events = dtrain_run(tmp_path, "digits_mlp_ddp2")
    assert time.monotonic() - begin < 60
    assert of(events, "RunStarted")[0]["num_ranks"] == 2
    assert epochs(events)[-1]["validation/accuracy"] >= 0.95


def largest_difference(found: list[float], wanted: list[float]) -> float:
    assert len(found) == len(wanted)
    return max(abs(a - b) / abs(b) for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> Events:
    """compare_modes as it stands, in one process: what the other modes are held against."""
    return dtrain_run(tmp_path_factory.mktemp("single"), "compare_modes")


def test_compare_modes_in_one_process(one_process: Events) -> None:
    events = one_process
    assert len(losses(events)) == 57 + 3
    assert of(events, "CheckpointSaved")  # with what production runs have
    assert of(events, "RunStarted")[0]["mode"] == "single"
    (accuracy,) = re.findall(r"Validation accuracy: (\d\.\d\d)", story(ROOT / "recipes" / "compare_modes.yaml"))
    assert epochs(events)[-1]["validation/accuracy"] == pytest.approx(float(accuracy), abs=0.0051)


@pytest.mark.parametrize(
    "switch",
    [
        pytest.param(path, marks=() if path.stem in ("dp", "ddp") else pytest.mark.long, id=path.stem)
        for path in SWITCHES
    ],
)
def test_compare_modes_has_the_same_losses_in_every_mode(switch: Path, one_process: Events, tmp_path: Path) -> None:
    """In half precision every way is held in tests/engine/test_half_precision.py."""
    events = dtrain_run(tmp_path, "compare_modes", "--with", str(switch))
    assert of(events, "RunStarted")[0]["mode"] == switch.stem
    assert largest_difference(losses(events), losses(one_process)) <= 1e-5


@pytest.mark.long
@pytest.mark.timeout(300)
def test_digits_images_gives_what_it_promises(tmp_path: Path) -> None:
    events = dtrain_run(tmp_path, "digits_images", timeout_s=280)
    assert epochs(events)[-1]["validation/accuracy"] >= 0.96


@pytest.mark.long
@pytest.mark.timeout(300)
def test_digits_vit_tuned_gains_by_what_it_begins_with(tmp_path: Path) -> None:
    tuned = dtrain_run(tmp_path / "tuned", "digits_vit_tuned", timeout_s=140)
    anew = dtrain_run(tmp_path / "anew", "digits_vit_tuned", "--set", "model.weights=null", timeout_s=140)
    assert epochs(tuned)[-1]["validation/accuracy"] >= 0.8
    assert epochs(anew)[-1]["validation/accuracy"] <= 0.6


@pytest.mark.long
@pytest.mark.timeout(300)
def test_changed_pictures_are_the_same_on_ranks_with_workers_and_after_a_resume(tmp_path: Path) -> None:
    """Stopped within the second epoch of two ranks, and gone on with by one."""
    few: tuple[str, ...] = (
        "--set",
        "training.epochs=null",
        "--set",
        "checkpoint=null",
        "--set",
        "training.precision=fp64",
    )
    few += ("--set", "training.lr_schedule=null", "--set", "training.optimizer={type: sgd, lr: 0.05}")
    two = ("--set", "parallelism=ddp", "--set", "layout={gpus: 2, device: cpu}", "--set", "data.workers=2")
    whole = dtrain_run(tmp_path / "whole", "digits_images", *few, "--set", "training.steps=32")
    parted = dtrain_run(tmp_path / "parted", "digits_images", *few, *two, "--set", "training.steps=29")
    (run_dir,) = (tmp_path / "parted" / "digits_images").iterdir()
    words = [
        *few,
        "--set",
        "training.steps=32",
        "--set",
        f"logging.dir={tmp_path / 'parted'}",
        "--resume",
        str(run_dir),
    ]
    command = ["run", "recipes/digits_images.yaml", "--quiet", "--set", "logging.every=1 step", *words]
    code, out, errors = finish(start("declarative_train", *command), 110)
    assert code == 0, out + errors
    lines = (run_dir / "events.jsonl").read_text().splitlines()
    steps = {event["step"]: event["loss"] for event in of([json.loads(line) for line in lines], "StepDone")}
    expected = {event["step"]: event["loss"] for event in of(whole, "StepDone")}
    assert len(of(parted, "StepDone")) == 29
    assert steps.keys() == expected.keys()
    assert max(abs(steps[step] - expected[step]) for step in steps) < 1e-10


@pytest.mark.long
def test_the_first_epoch_of_digits_vae_is_what_its_head_says(tmp_path: Path) -> None:
    events = dtrain_run(tmp_path, "digits_vae", "--max-steps", "13")
    (figure,) = re.findall(r"the first epoch's mean in training is (\d+\.\d)", story(ROOT / "recipes/digits_vae.yaml"))
    assert epochs(events)[0]["training/loss/reconstruction"] == pytest.approx(float(figure), abs=0.051)
