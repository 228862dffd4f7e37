"""On a pretended GPU, next to what `test_pretend_gpu.py` trains: predictions, evaluations, texts and exports of a
finished run, sets that roll, and the settings that a rank makes before it computes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import checkpoint

from declarative_train.components.hardware import hardware_of_device
from declarative_train.data import prefetch
from declarative_train.data.rank_batches import EvaluationBatches, TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.step import model_preparation as model_module
from declarative_train.inference.evaluate import evaluate
from declarative_train.inference.forward import Forward
from declarative_train.inference.predict import Prediction
from declarative_train.inference.trained import Trained, open_trained
from declarative_train.packs.export.export import export
from declarative_train.packs.text.generation import Sampling, TextModel, generate
from declarative_train.plan.predictions import MemoryPlan
from declarative_train.run import rank
from declarative_train.run.event import MemoryMeasured
from declarative_train.run.rank import FailureContext, run_rank
from declarative_train.run.rank_job import RankJob
from declarative_train.run.stop_agreement import StopAgreement
from declarative_train.run.storage.run_dir import RunPlace
from tests.engine.made_recipes import DEEP, DIGITS, compiled, merged, write_data
from tests.engine.pretend_gpu import GPU, MixedStreamsError, PretendGpu
from tests.engine.runs import go
from tests.packs.pretrained.test_storages import tuned, write_base
from tests.packs.text.test_generate import RECIPE, made
from tests.run.test_block_shuffled_runs import NUMBERS, write_table

ONE_GPU: dict[str, Any] = {"training": {"epochs": 1}, "checkpoint": None, "layout": {"device": "auto"}}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path, 100)
    return tmp_path


def on_gpu(directory: Path, *changes: dict[str, Any], recipe: dict[str, Any] = DIGITS) -> PretendGpu:
    for change in (ONE_GPU, *changes):
        recipe = merged(recipe, change)
    run_dir = directory / "on_gpu"
    run_dir.mkdir(exist_ok=True)
    plan = compiled(directory, recipe)
    with PretendGpu() as gpu:
        job = RankJob(plan, "cuda", RunPlace(run_dir, None), None, lambda _: (), device_index=0)
        assert run_rank(job, FailureContext(0), lambda: False) == 0
    return gpu


@pytest.fixture
def trained(directory: Path) -> Trained:
    done = go(directory, DIGITS, {"training": {"epochs": 1}})
    assert done.code == 0
    return open_trained(done.run_dir)


def test_predictions_are_computed_on_the_gpu(trained: Trained) -> None:
    rows = {"x": np.random.default_rng(1).normal(size=(7, 20)).astype(np.float32)}

    def answers(device: str) -> list[Any]:
        asked = Prediction(trained, device=device)
        import pyarrow as pa

        frame = pa.table({"x": pa.array(rows["x"].tolist())})
        return [row for table in asked.tables(asked.of_frame(frame)) for row in table.to_pylist()]

    with PretendGpu() as gpu:
        found = answers("cuda")
    assert {what for what, _ in gpu.waits} >= {"copy to the host"}
    assert found == answers("cpu")


def test_an_evaluation_is_computed_on_the_gpu(trained: Trained) -> None:
    with PretendGpu() as gpu:
        found = evaluate(trained, device="cuda", batch_size=8)
    here = evaluate(trained, device="cpu", batch_size=8)
    assert gpu.waits
    assert found.as_json() == here.as_json()


@pytest.mark.parametrize("precision", ["fp32", pytest.param("bf16", marks=pytest.mark.long)])
def test_what_a_run_held_in_fewer_bits_is_held_so_on_the_gpu(tmp_path: Path, precision: str) -> None:
    """By `predict` and `evaluate`; a merged export is made on the host, and takes nothing of the GPU."""
    write_base(tmp_path)
    done = go(tmp_path, tuned("nf4", precision), {"training": {"epochs": 1}})
    trained = open_trained(done.run_dir)
    with PretendGpu() as gpu:
        forward = Forward(trained, ["logits"], torch.device("cuda"))
        held = {name: item for name, item in forward.network.module.named_parameters() if item.dtype == torch.uint8}
        assert len(held) == 7
        assert all(gpu.has(item) for item in held.values())
        found = evaluate(trained, device="cuda", batch_size=8)
    assert found.as_json() == evaluate(trained, device="cpu", batch_size=8).as_json()
    with PretendGpu() as gpu:
        for to in ("safetensors", "torch-export"):
            exported = export(trained, to, tmp_path / to)
            assert exported.max_relative_error <= 1e-6
        assert not gpu.waits


@pytest.mark.parametrize("cache", [True, False])
def test_text_is_written_on_the_gpu(tmp_path: Path, cache: bool) -> None:
    """Token by token, as on the CPU."""
    trained = made(tmp_path, RECIPE.replace("steps: 60", "steps: 3"))

    def text(device: str) -> str:
        return "".join(generate(TextModel(trained, device, cache=cache), "the cow", 5, Sampling(temperature=0.8), 3))

    with PretendGpu() as gpu:
        found = text("cuda")
    assert {what for what, _ in gpu.waits} >= {"copy to the host"}
    assert found == text("cpu")


@pytest.mark.parametrize("workers", [0, 1])
def test_what_rolls_is_copied_beside_the_step(directory: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As what is held on the host is, with the same samples as without a GPU."""
    write_table(directory)
    plan = compiled(directory, merged(NUMBERS, {"data": {"workers": workers}}))
    assert plan.data.roll is not None

    def steps(device: torch.device | None) -> Iterator[list[Any]]:
        made = TrainingBatches(plan.data, plan.batch, 0, open_sets(plan.data), device=device, hold_on_device=True)
        for batches in made.iterate(2, 8):  # over the end of an epoch
            yield [(batch.sample_ids.tolist(), batch.tensors["x"].sum().cpu().item()) for batch in batches]

    there = list(steps(None))
    with PretendGpu() as gpu:
        assert list(steps(GPU)) == there
    assert gpu.num_taken_over >= 8
    assert not {what for what, line in gpu.waits if "item" not in what and "host" not in what}
    monkeypatch.setattr(prefetch, "wait_for_copies", lambda batches, event, device: batches)
    with pytest.raises(MixedStreamsError), PretendGpu():
        list(steps(GPU))


def test_a_kept_evaluation_set_is_copied_beside_the_step(directory: Path) -> None:
    write_table(directory)
    plan = compiled(directory, NUMBERS)
    sets = open_sets(plan.data)
    assert sets["validation"].may_keep

    def ids(device: torch.device | None) -> list[list[int]]:
        batches = EvaluationBatches(plan.data, "validation", sets, batch_size=5, device=device)
        return [batch.sample_ids.tolist() for batch in batches.iterate()]

    there = ids(None)
    for begun in (False, True):  # read, and kept
        if not begun:
            sets["validation"].kept = {}
        with PretendGpu() as gpu:
            assert ids(GPU) == there
        assert gpu.num_taken_over >= len(there)


@pytest.mark.parametrize("matmul", ["highest", "tf32"])
def test_products_are_in_tf32_where_the_recipe_says_so(
    directory: Path, matmul: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, build = [], rank.Engine

    def noted(*args: Any, **more: Any) -> Any:
        seen.append(torch.get_float32_matmul_precision())
        return build(*args, **more)

    monkeypatch.setattr(rank, "Engine", noted)
    on_gpu(directory, {"training": {"precision": {"matmul": matmul}}})
    assert seen == ["high" if matmul == "tf32" else "highest"]
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("asked", [None, "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_the_allocator_joins_what_is_freed_unless_told_otherwise(
    directory: Path, asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.setenv(name, "") if name == asked else monkeypatch.delenv(name, raising=False)
    seen: list[Any] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    build = rank.Engine

    def noted(*args: Any, **more: Any) -> Any:  # before anything lies on the device
        seen.append(os.environ.get("PYTORCH_ALLOC_CONF"))
        return build(*args, **more)

    monkeypatch.setattr(rank, "Engine", noted)
    on_gpu(directory)
    assert seen == [{None: "expandable_segments:True", "PYTORCH_ALLOC_CONF": ""}.get(asked)]
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)


@pytest.mark.parametrize("drops", [True, False])
def test_generators_are_saved_for_what_is_computed_again_only_where_something_is_drawn(
    directory: Path, drops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU their state is a copy to the host and back, which waits for it."""
    seen, plain = set(), checkpoint.checkpoint

    def noted(*args: Any, **more: Any) -> Any:
        seen.add(more["preserve_rng_state"])
        return plain(*args, **more)

    monkeypatch.setattr(checkpoint, "checkpoint", noted)
    graph = {"model": {"graph": {"act": {"type": "dropout", "p": 0.1}}}} if drops else {}
    gpu = on_gpu(directory, {"training": {"activation_checkpointing": "all"}}, graph)
    assert seen == {drops}
    assert gpu.waits_in_steps() == {}


@pytest.mark.parametrize(("more", "lies_there"), [(0, False), (1 << 20, True)])
def test_a_set_lies_on_the_gpu_where_the_steps_leave_room_and_is_counted(
    directory: Path, more: int, lies_there: bool
) -> None:
    """`more`: free bytes next to what the steps and the model will take. An eighth of what is free would do."""
    plan = compiled(directory, merged(DIGITS, ONE_GPU))
    wide = MemoryPlan("each device", 1 << 14, 1 << 14, 1 << 15, gathered=0, activations=100 << 20, is_traced=True)
    plan = replace(plan, memory=(wide,))
    (directory / "run").mkdir()
    events: list[Any] = []
    with PretendGpu() as gpu:
        gpu.free_bytes = wide.total - wide.parameters + more
        sink = SimpleNamespace(write=events.append, flush=lambda: None, close=lambda: None, is_record=False)
        job = RankJob(plan, "cuda", RunPlace(directory / "run", None), None, lambda _: (sink,), device_index=0)
        assert run_rank(job, FailureContext(0), lambda: False) == 0
    (measured,) = [event for event in events if isinstance(event, MemoryMeasured)]
    held = open_sets(plan.data)["training"].held_bytes
    assert 0 < held < 1 << 20
    assert measured.predicted == [wide.total + held * lies_there]
    assert measured.measured == [1 << 29]  # of a step alone


def test_ranks_agree_on_a_stop_where_the_losses_are_summed() -> None:
    votes: list[Sequence[float]] = []

    def exchange(mine: Sequence[float]) -> list[float]:
        votes.append(mine)
        return [2 * each for each in mine]

    stop = StopAgreement(2, lambda: bool(votes), None)
    stop._distance = 3
    answers = [stop.check(exchange, is_due=step == 4) for step in range(1, 5)]
    assert answers == [None, None, None, "signal"]
    assert len(votes) == 2  # after step 3, when a second has passed, and after step 4, which logs


def test_what_no_loss_reaches_is_found_without_a_forward(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank builds its model once and begins with its first step: parameters without a gradient are in the plan."""
    calls, built = [], []
    engine_step, build = rank.Engine.step, model_module.build
    forward = torch.nn.Linear.forward

    def step(self: Any, number: int, *args: Any, **more: Any) -> Any:
        calls.append(number)
        return engine_step(self, number, *args, **more)

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        assert calls, "a forward before the first step"
        return forward(self, x)

    graph = {"unread": {"type": "linear", "out_features": 3, "input": "x"}, "size": "mean(unread, dim=-1)"}
    watched = {"objective": {"metrics": {"size": {"type": "mean", "input": "size"}}}}
    plan = compiled(directory, merged(merged(DEEP, ONE_GPU), {"model": {"graph": graph}, **watched}))
    monkeypatch.setattr(rank.Engine, "step", step)
    monkeypatch.setattr(torch.nn.Linear, "forward", run)
    monkeypatch.setattr(model_module, "build", lambda *args, **more: built.append(1) or build(*args, **more))
    (directory / "run").mkdir()
    with PretendGpu():
        job = RankJob(plan, "cuda", RunPlace(directory / "run", None), None, lambda _: (), device_index=0)
        assert run_rank(job, FailureContext(0), lambda: False) == 0
    assert built == [1]
    assert {item.name for item in plan.parameters if item.idle} == {"unread.weight", "unread.bias"}


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA H800", "h800-sxm"),
        ("NVIDIA H20", "h20-sxm"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA A800-SXM4-80GB", "a800-sxm"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200-sxm"),
        ("NVIDIA B300 SXM6 AC", "b300-sxm"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA Rubin", None),
    ],
)
def test_a_device_is_known_by_the_name_that_torch_gives_it(said: str, name: str | None) -> None:
    found = hardware_of_device(said)
    assert (None if found is None else found.name) == name
