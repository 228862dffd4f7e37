"""Every component, recipe and mode on a pretended GPU: nothing mixes devices, and no step makes the host wait.

Each run trains, evaluates, saves, and goes on from its first checkpoint.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import distributed

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.components.expressions.functions import FUNCTIONS
from declarative_train.components.layers.modules.sequences import GruModule, LstmModule, RnnModule
from declarative_train.components.losses import LOSSES
from declarative_train.components.metrics import METRICS
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data import prefetch
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.checkpoints.store import CheckpointStore
from declarative_train.engine.step.update import Update
from declarative_train.plan.plan import Plan
from declarative_train.run.rank import FailureContext, run_rank
from declarative_train.run.rank_job import RankJob
from declarative_train.run.storage.run_dir import RunPlace
from tests.alone import of_core
from tests.components.test_layers_all import CASES, OWN
from tests.engine.made_recipes import DEEP, DIGITS, WAYS, compiled, merged, write_data
from tests.engine.pretend_gpu import (
    GPU,
    HalfRnnError,
    MixedDevicesError,
    MixedStreamsError,
    OtherGpuError,
    PretendGpu,
)
from tests.engine.runs import last_tensors
from tests.test_recipes import RECIPES, ROOT

LIMIT_S = 100
LONG = pytest.mark.long
SIMPLER = [("fp32", "all"), ("bf16", "none")]  # than half precision that is computed again
SHORT: dict[str, Any] = {
    "training": {"epochs": 1},
    "checkpoint": {"every": "3 steps", "keep": 9, "best": None},
    "layout": {"device": "auto"},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_data(tmp_path, 100)
    return tmp_path


def on_gpu(plan: Plan, run_dir: Path, rank: int = 0, device: torch.device = GPU) -> PretendGpu:
    """The whole run, and once more from its first checkpoint."""
    gpu = PretendGpu(device)
    run_dir.mkdir(exist_ok=True)
    entry = None
    for _ in range(2):
        with gpu:
            job = RankJob(plan, device.type, RunPlace(run_dir, entry), None, lambda _: (), device_index=0)
            assert run_rank(job, FailureContext(rank), lambda: False) == 0
        whole, torn = CheckpointStore(str(run_dir / "checkpoints")).entries()
        assert whole
        assert not torn
        entry = min(whole, key=lambda each: each.step)
        assert entry.step < plan.training.num_steps
    return gpu


def run(directory: Path, recipe: Mapping[str, Any], *changes: Mapping[str, Any]) -> PretendGpu:
    for change in (SHORT, *changes):
        recipe = merged(recipe, change)
    return on_gpu(compiled(directory, recipe), directory / "run")


OPTIMIZER_SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"amsgrad": True},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "sgd": {"momentum": 0.9, "nesterov": True},
}


@pytest.mark.parametrize("name", of_core(OPTIMIZERS))
def test_every_optimizer(directory: Path, name: str) -> None:
    optimizer = {"type": name, "lr": 0.01, **OPTIMIZER_SETTINGS.get(name, {})}
    of_biases = {"model": {"parameters": {"bias": {"optimizer": {"type": "adamw", "lr": 0.01}}}}}
    plain = {"training": {"optimizer": optimizer, "clip_grad_norm": 1.0, "precision": "bf16"}}
    found = run(directory, DIGITS, plain, of_biases if name == "muon" else {}).waits_in_steps()
    # torch's adafactor reads two numbers of each parameter
    assert {place.partition(" ")[2] for _, place in found} == ({"step"} if name == "adafactor" else set())


# what a layer must be given where a field of data says less than the spec of its case
OF_TOKENS = {
    "embedding": {"num_embeddings": 11},
    "embedding_bag": {"num_embeddings": 11},
    "one_hot": {"num_classes": 11},
}


def of_all_layers(directory: Path) -> dict[str, Any]:
    """A recipe whose graph has each layer of the table once, side by side; their means add up to the loss."""
    random = np.random.default_rng(0)
    columns: dict[TensorSpec, str] = {}
    data: dict[str, np.ndarray] = {}
    graph: dict[str, Any] = {}
    for name in OWN:  # models of libraries have tests of their own
        given, inputs = CASES[name][0]
        wires = {}
        for port, spec in inputs.items():
            column = columns.setdefault(spec, f"c{len(columns)}")
            shape = (64, *spec.shape)
            data[column] = random.normal(size=shape) if spec.is_floating else random.integers(0, 2, shape)
            data[column] = data[column].astype(spec.dtype)
            base, _, number = port.partition(".")
            if number:
                wires.setdefault(base, []).append(column)
            else:
                wires[port] = column
        fields = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        graph[f"n_{name}"] = {"type": name, **fields, **OF_TOKENS.get(name, {}), "inputs": wires}
        graph[f"m_{name}"] = f"mean(flatten(float(n_{name})), dim=-1)"
    graph["all"] = {"type": "add", "inputs": {"x": [name for name in graph if name.startswith("m_")]}}
    np.savez(directory / "layers.npz", **data)
    return merged(
        DIGITS,
        {
            "data": {
                "source": {"path": "layers.npz"},
                "fields": {
                    "x": None,
                    "y": None,
                    **{column: {"column": column, "dtype": spec.dtype} for spec, column in columns.items()},
                },
            },
            "model": {"graph": {"hidden": None, "act": None, "logits": None, **graph}},
            "objective": {"loss": {"type": "mean", "input": "all"}, "metrics": None},
            "training": {"global_batch_size": 8},
        },
    )


@pytest.mark.parametrize(
    ("precision", "again"), [("bf16", "all"), *(pytest.param(*each, marks=LONG) for each in SIMPLER)]
)
def test_every_layer(directory: Path, precision: str, again: str) -> None:
    training = {"precision": precision, "activation_checkpointing": again}
    waits = run(directory, of_all_layers(directory), {"training": training}).waits_in_steps()
    # without torch's kernel for groups, experts multiply one after the other, by numbers that the host reads
    assert [place for _, place in waits if "modules/grouped.py" not in place] == []


# functions that take more than one tensor of numbers: a call over h (4, 5), i of whole numbers (4, 5) and k of bools
CALLS = {
    "all": "all(k, dim=-1)",
    "any": "any(k, dim=-1)",
    "clamp": "clamp(h, min=0)",
    "concat": "concat(h, i)",
    "cosine_similarity": "cosine_similarity(h, h + 1, dim=-1)",
    "expand": "expand(unsqueeze(h, 1), B, 3, -1, -1)",
    "gather": "gather(h, i, dim=-1)",
    "masked_fill": "masked_fill(h, k, 0.5)",
    "matmul": "matmul(h, transpose(h, 1, 2))",
    "maximum": "maximum(h, i)",
    "minimum": "minimum(h, i)",
    "one_hot": "one_hot(i, num_classes=3)",
    "permute": "permute(h, 0, 2, 1)",
    "repeat_interleave": "repeat_interleave(h, 2, dim=1)",
    "reshape": "reshape(h, B, -1)",
    "roll": "roll(h, 1, -1)",
    "stack": "stack([h, h], dim=1)",
    "squeeze": "squeeze(unsqueeze(h, 1), dim=1)",
    "topk": "topk(h, 2)",
    "topk_indices": "topk_indices(h, 2)",
    "transpose": "transpose(h, 1, 2)",
    "unsqueeze": "unsqueeze(h, 1)",
    "where": "where(k, h, 0.0)",
}
# ask for a dimension
ALONG = frozenset(
    [
        "amax",
        "amin",
        "argmax",
        "argmin",
        "cumsum",
        "flip",
        "log_softmax",
        "logsumexp",
        "max",
        "mean",
        "min",
        "norm",
        "prod",
        "softmax",
        "std",
        "sum",
        "var",
    ]
)


def all_functions() -> dict[str, Any]:
    """Changes of a recipe: the loss is made of a call of each."""
    calls = {name: CALLS.get(name, f"{name}(h, -1)" if name in ALONG else f"{name}(h)") for name in FUNCTIONS}
    graph: dict[str, Any] = {
        "grown": {"type": "linear", "out_features": 20, "input": "x"},
        "h": "reshape(grown, B, 4, 5)",
    }
    graph |= {
        "i": "int(h > 0)",
        "k": "(h > 0) & ~(h > 1)",
        "all_but": "-h % 2 + +h ** 2 / 3 - (h @ transpose(h, 1, 2))[:, :, :1] + i // 2",
    }
    graph |= {f"n_{name}": call for name, call in calls.items()}
    means = {f"m_{name}": f"mean(flatten(nan_to_num(float(n_{name}))), dim=-1)" for name in calls}
    graph |= means | {
        "sum_of": {"type": "add", "inputs": {"x": list(means)}},
        "out": "sum_of + mean(flatten(all_but), dim=-1)",
    }
    objective = {"loss": {"type": "mean", "input": "out"}, "metrics": None}
    return {
        "model": {"graph": {"hidden": None, "act": None, "logits": None, **graph}},
        "objective": objective,
        "training": {"non_finite": "skip"},
    }


def test_every_function_of_an_expression(directory: Path) -> None:
    assert run(directory, DIGITS, all_functions()).waits_in_steps() == {}


# every loss, counted by rows, by values and by weights; and every metric
CLASSES = {"input": "logits", "target": "y"}
PAIR = {"input": "wide", "target": "x"}
BOXES = {"input": "sides", "target": "placed", "mask": "some_boxes", "format": "cxcywh"}
TERMS: dict[str, dict[str, Any]] = {
    "bce_with_logits": {"input": "wide", "target": "yes", "pos_weight": 2.0},
    "cross_entropy": {**CLASSES, "ignore_index": 3, "class_weights": [1.0, 2.0] * 5},
    "giou": BOXES,
    "huber": PAIR,
    "info_nce": {"input": "wide", "target": "x", "over": "12 samples"},
    "kl_div": {"input": "log_probabilities", "target": "even"},
    "l1": {**PAIR, "mask": "many"},
    "mean": {"input": "wide"},
    "mse": PAIR,
    "nll": {"input": "log_probabilities", "target": "y"},
    "poisson_nll": {"input": "wide", "target": "positive"},
    "smooth_l1": PAIR,
}
OTHERS = {"box_iou": BOXES, "mean": {"input": "wide"}}
LABELS = {"input": "wide", "target": "yes"}
OF_CLASSES = frozenset(
    ["accuracy", "auroc", "average_precision", "f1", "iou", "mcc", "perplexity", "precision", "recall"]
)
OF_LABELS = frozenset(["coverage_error", "lrap", "ndcg", "ranking_loss", "recall_at_k"])


def all_terms() -> dict[str, Any]:
    """Changes of a recipe: every loss and every metric."""
    graph = {
        "wide": {"type": "linear", "out_features": 20, "input": "hidden"},
        "log_probabilities": "log_softmax(logits, dim=-1)",
        "even": "softmax(zeros_like(logits), dim=-1)",
        "yes": "float(x > 0)",
        "positive": "exp(x)",
        "many": "x > 0",
        "sides": "reshape(sigmoid(wide), B, 5, 4)",
        "placed": "reshape(sigmoid(x), B, 5, 4)",
        "some_boxes": "x[:, :5] > 0",
    }
    read = dict.fromkeys(OF_CLASSES, CLASSES) | dict.fromkeys(OF_LABELS, LABELS) | OTHERS
    metrics = {name: {"type": name, **read.get(name, PAIR)} for name in METRICS}
    objective = {"loss": None, "losses": {name: {"type": name, **term} for name, term in TERMS.items()}}
    return {"model": {"graph": graph}, "objective": {**objective, "metrics": metrics}}


def test_every_loss_and_metric(directory: Path) -> None:
    assert TERMS.keys() == set(LOSSES)
    assert run(directory, DIGITS, all_terms()).waits_in_steps() == {}


# what is long about them is made short
SMALL: dict[str, tuple[str, ...]] = {
    "gpt_7b_auto_32xh100": (
        "vars.width=16",
        "vars.layers=2",
        "vars.heads=2",
        "data.source.rows=400",
        "data.window={length: 17, stride: 16}",
        "training.global_batch_size=8",
    ),
    "large_model_pipeline": ("vars.width=16", "data.source.rows=640"),
}


QUICK = ("compare_modes", "digits_resnet", "gpt_nano_lora")  # no kind of node, loss or metric, which have tests above


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.long, id=path.stem) for path in RECIPES],
)
def test_every_shipped_recipe(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few steps in one process; how it would run on several is that of `test_every_way_to_run`."""
    monkeypatch.chdir(ROOT)
    text = path.read_text()
    words = [
        *SMALL.get(path.stem, ()),
        "parallelism=single",
        "training.steps=4",
        "checkpoint={every: 2 steps, keep: 9}",
    ]
    words += ["evaluation={every: 2 steps}"] if "\nevaluation:" in text else []
    words += ["layout=null"] if "\nlayout:" in text else []
    loaded = recipe_room.load(str(path.relative_to(ROOT)), set_=[*words, "layout={gpus: 1}"])
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, diagnostics
    assert on_gpu(plan, tmp_path / "run").waits_in_steps() == {}


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_are_copied_beside_the_step_and_waited_for(
    directory: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of loaders, and those of an evaluation."""
    loaders = {"data": {"workers": workers}}
    found = run(directory, DIGITS, loaders)
    assert found.waits_in_steps() == {}
    assert found.num_taken_over >= 4
    monkeypatch.setattr(prefetch, "wait_for_copies", lambda batches, event, device: batches)
    with pytest.raises(MixedStreamsError, match="that the side stream copies"):
        run(directory, DIGITS, loaders, {"name": "untaken"})


@pytest.mark.parametrize(("free_bytes", "lies_there"), [(1 << 20, True), (1 << 10, False)])
def test_a_set_lies_on_the_gpu_where_it_leaves_room(directory: Path, free_bytes: int, lies_there: bool) -> None:
    data = compiled(directory, DIGITS).data
    with PretendGpu() as gpu:
        gpu.free_bytes = free_bytes
        batch = compiled(directory, DIGITS).batch
        made = TrainingBatches(data, batch, 0, open_sets(data), device=GPU, hold_on_device=True)
        (first, *_) = made.iterate(1, 3)
        assert all(tensor.device == GPU for part in first for tensor in part.tensors.values())
    assert (gpu.num_taken_over == 0) == lies_there


def test_terms_counted_by_rows_and_by_values_beside_each_other(directory: Path) -> None:
    losses = {
        "kind": {"type": "cross_entropy", "input": "logits", "target": "y", "ignore_index": 3},
        "size": {"type": "mean", "input": "energy"},
    }
    graph = {"energy": "mean(logits ** 2, dim=-1)"}
    found = run(
        directory, DIGITS, {"model": {"graph": graph}, "objective": {"loss": None, "losses": losses, "metrics": None}}
    )
    assert found.waits_in_steps() == {}


@pytest.mark.parametrize("training", [{"non_finite": "skip"}, {"precision": "fp16"}], ids=str)
def test_a_first_step_that_is_left_out_leaves_no_momentum_behind(
    directory: Path, training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A momentum has no fused rule, so that the host decides at each step."""
    empty_like = torch.empty_like

    def dirty_like(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        made = empty_like(tensor, **options)
        return made.fill_(777.0) if made.is_floating_point() else made

    spoilt = 1

    def spoil(self: Update, lr_factor: float, measure: bool) -> Any:
        nonlocal spoilt
        if spoilt:
            self._optimizers.gradients()[0].view(-1)[0] = torch.inf
            spoilt -= 1
        return update(self, lr_factor, measure)

    update = Update.__call__
    monkeypatch.setattr(torch, "empty_like", dirty_like)
    monkeypatch.setattr(Update, "__call__", spoil)
    momentum = {"type": "sgd", "lr": 0.01, "momentum": 0.9}
    changed = merged(merged(DIGITS, SHORT), {"training": {"optimizer": momentum, **training}})
    gpu = on_gpu(compiled(directory, changed), directory / "run")
    ((what, line), count), *others = gpu.waits_in_steps().items()
    assert (what, line.endswith("step_if"), count, others) == ("__bool__", True, 5, [])
    tensors = last_tensors(directory / "run")
    assert max(float(tensor.abs().max()) for tensor in tensors.values()) < 10


def test_what_cuda_refuses_is_refused_and_what_waits_is_counted() -> None:
    with PretendGpu() as gpu:
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert (here.device.type, there.device.type) == ("cpu", "cuda")
        for wrong in (
            lambda: here + there,
            lambda: torch.stack([here.sum(), there.sum()]),
            lambda: torch.nn.functional.linear(there, here.view(1, 3)),
            lambda: here.sum().add_(there.sum()),
            lambda: torch.nn.Linear(3, 1)(there),
        ):
            with pytest.raises(MixedDevicesError, match="cuda with cpu"):
                wrong()
        assert (there * here.sum()).device == (there + 1).device == there.view(3, 1).device == there.device
        assert gpu.waits == {}
        there.sum().item()
        there[there > 0]
        there.cpu()
        torch.tensor(1.0, device="cuda")
        assert {what for what, _ in gpu.waits} == {"item", "mask as an index", "copy to the host", "copy from the host"}
        module = torch.nn.Linear(3, 1).to("cuda")
        module(there).sum().backward()
        assert module.weight.grad.device == there.device
    assert there.device.type == "cpu"


def test_what_cuda_does_wrongly_in_silence_is_refused() -> None:
    layer, x = torch.nn.GRU(3, 2), torch.ones(4, 1, 3)
    with PretendGpu():
        layer, x = layer.to("cuda"), x.to("cuda")
        layer(x)
        with torch.autocast("cuda", dtype=torch.bfloat16), pytest.raises(HalfRnnError, match="gru under autocast"):
            layer(x)

        def make(number: int) -> None:
            with torch.cuda.stream(None):
                pass

        with pytest.raises(OtherGpuError, match="not chosen its GPU"):
            list(prefetch.ahead(make, 0, 1))


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_a_recurrent_layer_computes_in_the_precision_of_the_run(kind: str) -> None:
    made = {"lstm": LstmModule, "gru": GruModule, "rnn": RnnModule}[kind](3, 4, batch_first=True)
    layer = made.to(torch.bfloat16)  # as the parameters of a step are cast
    with PretendGpu(), torch.autocast("cuda", dtype=torch.bfloat16):
        output, *states = layer.to("cuda")(torch.randn(2, 5, 3, device="cuda"))
        assert {each.dtype for each in (output, *states)} == {torch.bfloat16}
        assert output.device.type == "cuda"


def as_rank(rank: int, plan: Plan, directory: Path) -> None:
    """A process of its own, over gloo; what it found goes to a file."""
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "LOCAL_RANK": str(rank)}
    store = f"file://{directory}/store"
    limit = timedelta(seconds=LIMIT_S)
    distributed.init_process_group("gloo", store, rank=rank, world_size=len(plan.layout.ranks), timeout=limit)
    try:
        found = on_gpu(plan, directory / "run", rank).waits_in_steps()
        # torch sets the schedule of a pipeline up in the first step of each of the two sessions
        waits = {what: count for what, count in found.items() if count > 2 or "pipeline.py" not in what[1]}
        said = f"waits: {waits}" if waits else ""
    except BaseException:
        said = traceback.format_exc()[-600:]
    (directory / f"rank{rank}").write_text(said)
    os._exit(0)  # a process group is never torn down


@pytest.mark.parametrize("precision", ["fp16", pytest.param("fp32", marks=LONG)])
@pytest.mark.parametrize("way", ["ddp 2", "pipeline 2"])
def test_every_way_to_run(directory: Path, way: str, precision: str) -> None:
    changes = merged(merged(merged(DEEP, WAYS[way]), SHORT), {"training": {"precision": precision}})
    plan = compiled(directory, changes)
    ranks = [
        get_context("fork").Process(target=as_rank, args=(rank, plan, directory))
        for rank in range(len(plan.layout.ranks))
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(LIMIT_S)
    late = [process for process in ranks if process.is_alive()]
    for process in late:
        process.kill()
    assert not late
    assert [(directory / f"rank{rank}").read_text() for rank in range(len(ranks))] == [""] * len(ranks)
