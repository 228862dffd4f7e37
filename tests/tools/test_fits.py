"""`dtrain fits`: the answer is that of plans, for a recipe and for a folder with a config.json alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import declarative_train as dt
from declarative_train.app.main import main
from declarative_train.components.hardware import HARDWARE
from declarative_train.components.hardware.power import WATTS
from declarative_train.recipe.sections.parallelism import Axes
from declarative_train.tools.fits.command import number
from declarative_train.tools.fits.fits import axes_of
from declarative_train.tools.fits.source import find_gpu
from declarative_train.tools.fits.target import target_of_folder
from tests import shown_outputs
from tests.parity.cells import Cell
from tests.parity.measure import plan_of

ROOT = Path(__file__).parent.parent.parent
RECIPE = str(ROOT / "recipes" / "gpt_nano_fsdp2.yaml")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
LARGE = LLAMA | {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def folder_of(path: Path, config: dict[str, object]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dt.Fits:
    folder = folder_of(tmp_path_factory.mktemp("models") / "tiny", LLAMA)
    return dt.fits(folder, count=2, batch=8, gpu="h100", price=2.0, budget=1e9)


def test_a_config_alone_is_planned(tiny: dt.Fits) -> None:
    plan = tiny.plan
    assert tiny.fits
    assert (tiny.through, tiny.length, tiny.num_gpus, tiny.hardware.name) == ("block llama", 256, 2, "h100-sxm")
    assert plan.memory[0].is_traced
    assert tiny.memory_bytes == plan.memory[0].of_step
    assert sum(item.num_elements for item in plan.parameters) == 147_776
    assert {each.parallelism for each in tiny.layouts} >= {"ddp", "fsdp"}
    steps = [each.step_s or 0.0 for each in tiny.layouts]
    assert steps == sorted(steps)


def test_a_change_is_the_plan_that_has_it(tiny: dt.Fits, tmp_path: Path) -> None:
    """Nothing is guessed: the figures are those of a recipe with the change."""
    changes = {each.settings: each for each in tiny.changes}
    assert set(changes) >= {"activation_checkpointing: selective", "loss in 8 chunks (objective.loss.chunks)"}
    folder = folder_of(tmp_path / "tiny", LLAMA)
    for words, settings in {
        "activation_checkpointing: selective": {"training.activation_checkpointing": "selective"},
        "loss in 8 chunks (objective.loss.chunks)": {"objective.loss.chunks": 8},
    }.items():
        made = target_of_folder(
            folder, task="full", batch=8, length=None, precision="bf16", layout={"gpus": 2, "hardware": "h100-sxm"}
        )
        plan = dt.loads(made.text, set={"parallelism": axes_of(tiny.plan)} | settings).plan().plan
        assert plan.estimate is not None
        assert changes[words].memory_bytes == max(each.of_step for each in plan.memory)
        assert changes[words].step_s == plan.estimate.step_s


def test_money_and_energy_follow_from_the_hours(tiny: dt.Fits) -> None:
    assert tiny.estimate.step_s is not None
    assert tiny.per_second == pytest.approx(8 * 256 / tiny.estimate.step_s)
    assert tiny.hours == pytest.approx(1e9 / tiny.per_second / 3600)
    assert tiny.cost == pytest.approx(tiny.hours * 2 * 2.0)
    assert tiny.energy_kwh == pytest.approx(tiny.hours * 2 * 0.7)


def test_the_answer_is_one_screen(tiny: dt.Fits) -> None:
    lines = str(tiny).splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 48
    for words in (
        "fits on 2 x h100-sxm",
        "what to change first",
        "layouts that fit",
        "Wh of the GPUs",
        "at 2 for a GPU hour",
    ):
        assert words in str(tiny)


def test_the_object_has_the_patch_of_a_trainjob(tiny: dt.Fits) -> None:
    data = json.loads(json.dumps(tiny.data))
    assert data["fits"] is True
    assert sum(data["memory_by_class_bytes"].values()) == data["memory_bytes"]
    assert data["trainjob_patch"] == {
        "metadata": {"annotations": {"trainer.kubeflow.org/autoconf-plugin-done": "yes"}},
        "spec": {"trainer": {"numNodes": 1}},
    }
    low, high = data["step_s_interval"]
    assert low < data["step_s"] < high


def test_what_does_not_fit_says_so_and_what_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(
        tmp_path / "large", LARGE | {"num_hidden_layers": 2, "hidden_size": 8192, "intermediate_size": 28672}
    )
    code = main(["fits", folder, "--gpu", "t4", "--count", "2", "--length", "512", "--json"])
    data = json.loads(capsys.readouterr().out)
    assert code == 1
    assert not data["fits"]
    assert data["trainjob_patch"] is None
    assert data["changes"][0]["settings"] == "--task qlora"
    assert data["changes"][0]["fits"]


def test_a_recipe_is_planned_as_it_is_written() -> None:
    found = dt.fits(RECIPE, gpu="a100-40", count=2)
    assert (found.plan.layout.mode, found.hardware.name, found.through) == ("fsdp", "a100-sxm-40gb", "")
    assert "ddp" in {each.parallelism for each in found.layouts}


@pytest.mark.parametrize(
    ("name", "found"),
    [("h100-sxm", "h100-sxm"), ("H100", "h100-sxm"), ("h100-80", "h100-sxm"), ("a100-40gb", "a100-sxm-40gb"),
     ("v100_32", "v100-sxm-32gb"), ("h100-94", "h100-nvl"), ("4090", "rtx-4090"), ("rtx4090", "rtx-4090"),
     ("NVIDIA H100 80GB HBM3", "h100-sxm"), ("H100 80GB HBM3", "h100-sxm"), ("tesla t4", "t4"),
     ("a100_40g", "a100-sxm-40gb")],
)  # fmt: skip
def test_a_gpu_is_found_by_a_part_of_its_name(name: str, found: str) -> None:
    assert find_gpu(name).name == found


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h1000"], "there is no GPU `h1000`"),
        (["--gpu", "rtx"], "`rtx` is the name of several GPUs"),
        (["--count", "12"], "12 GPUs do not fill nodes of 8; help: --count 8 or 16"),
        (["--count", "0"], "--count is 0, and must be between 1 and 1,048,576"),
        (["--length", "512"], "the model has 256 positions, and --length is 512; help: --length 256 or less"),
        (["--task", "fool"], "there is no task `fool`"),
        (["--set", "seed"], "--set takes PATH=VALUE, and this is `seed`"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    folder = folder_of(tmp_path / "tiny", LLAMA)
    assert main(["fits", folder, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_target_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", str(tmp_path)]) == 2
    assert "there is no config.json" in capsys.readouterr().err
    assert main(["fits", str(tmp_path / "gone")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    unknown = folder_of(tmp_path / "unknown", {"model_type": "lama", "architectures": ["LamaForCausalLM"]})
    assert main(["fits", unknown]) == 1
    said = capsys.readouterr().err
    assert "cannot be planned: the installed transformers has no `model_type` `lama`; help: did you mean" in said
    assert "<stdin>" not in said


@pytest.mark.parametrize(
    ("kind", "values", "note"),
    [
        ("T5Config", {"d_model": 32, "d_ff": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "vocab_size": 300}, ""),
        ("Dinov2Config", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56},
         "a linear head is planned in place of its own"),
    ],
)  # fmt: skip
def test_other_architectures_are_nodes_of_their_library(
    tmp_path: Path, kind: str, values: dict[str, object], note: str
) -> None:
    transformers = pytest.importorskip("transformers")
    name = {"T5Config": "T5ForConditionalGeneration", "Dinov2Config": "Dinov2Model"}[kind]
    config = json.loads(getattr(transformers, kind)(**values, architectures=[name]).to_json_string(use_diff=False))
    folder = folder_of(tmp_path / "model", config)
    length = 16 if kind == "T5Config" else None
    made = target_of_folder(
        folder, task="full", batch=2, length=length, precision="bf16", layout={"gpus": 1, "hardware": "l4"}
    )
    plan = dt.loads(made.text, set={"parallelism": {}}).plan().plan
    assert plan.memory[0].is_traced
    assert (made.through, made.takes_adapters, made.notes) == ("transformers", False, (note,) if note else ())


def test_a_recipe_without_a_gpu_asks_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fits", RECIPE]) == 2
    assert "help: --gpu h100-sxm" in capsys.readouterr().err
    assert main(["fits", RECIPE, "--task", "lora"]) == 2
    assert "--task and --length are for a published model" in capsys.readouterr().err


def test_every_gpu_has_its_power() -> None:
    assert set(WATTS) == {each.name for each in HARDWARE.values() if each.memory_bytes is not None}


def test_numbers_have_letters() -> None:
    assert [number(text) for text in ("300B", "1.5t", "2000", "7k")] == [300e9, 1.5e12, 2000.0, 7000.0]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_shows_what_the_commands_print() -> None:
    assert shown_outputs.main(["--check", "fits.md"]) == 0, "run `python -m tests.shown_outputs`"


# a process inherits the largest memory of the one that started it in `ru_maxrss`, but not in VmHWM
MEASURED = """
import os, pathlib, resource, sys
from declarative_train.__main__ import run
run()
children = resource.getrusage(resource.RUSAGE_CHILDREN)
peak = int(pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(sum(os.times()[:4]), max(peak, children.ru_maxrss), file=sys.stderr)
"""


@pytest.mark.long
def test_an_8b_model_takes_seconds(tmp_path: Path) -> None:
    """Measure the processor's time of its processes, which the load of the machine changes least, and their memory."""
    folder = folder_of(tmp_path / "large", LARGE)
    command = [sys.executable, "-P", "-c", MEASURED, "fits", folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100, check=True)
    processor_s, num_kib = map(float, done.stderr.split()[-2:])
    assert processor_s < 12
    assert num_kib * 1024 < 1e9


@pytest.mark.parametrize("keys", ["gathered", "ring"])
def test_a_layout_is_tried_with_all_its_axes(tmp_path: Path, keys: str) -> None:
    way = f"{{context: {{size: 2, keys: {keys}}}, expert: 2, data: {{shard: 2}}}}"
    plan = plan_of(Cell("of fits", way, 8, 1, "even", "mixtral"), tmp_path)
    axes = Axes.model_validate(axes_of(plan))
    assert axes.mesh(8) == plan.layout.mesh
    assert axes.context is not None
    assert axes.context.keys == keys
