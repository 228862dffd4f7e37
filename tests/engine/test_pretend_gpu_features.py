"""On a pretended GPU: adapters, frozen weights held in fewer bits, models of libraries, averages, texts that a run
writes, mixed pictures, packed documents, the gallery, and the replicas of `dp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from declarative_train import planner
from declarative_train import recipe as recipe_room
from declarative_train.components.layers.modules import attention
from declarative_train.components.layers.modules.packed import Packed, as_written, pack, unpack_tensor
from declarative_train.plan.plan import Plan
from tests.engine.made_recipes import DEEP, WAYS, compiled, merged, write_data
from tests.engine.pretend_gpu import PretendGpu
from tests.engine.test_pretend_gpu import on_gpu
from tests.packs.pretrained import library_models
from tests.packs.pretrained.test_storages import tuned, write_base
from tests.packs.text import test_samples
from tests.test_recipes import GALLERY, ROOT

LONG = pytest.mark.long
OF_TRANSFORMERS = "components/layers/transformers.py"  # which looks at masks in each forward
FEW: dict[str, Any] = {
    "training": {"epochs": None, "steps": 4},
    "evaluation": {"every": "2 steps"},
    "checkpoint": {"every": "2 steps", "keep": 9, "best": None},
    "layout": {"device": "auto"},
}
AVERAGED = {"training": {"ema": {"decay": 0.9}}, "evaluation": {"weights": "ema"}}
AGAIN = {"training": {"activation_checkpointing": "all"}}


def run(directory: Path, recipe: dict[str, Any], *changes: dict[str, Any]) -> PretendGpu:
    for change in ({"checkpoint": {"keep": 9}}, FEW, *changes):
        recipe = merged(recipe, change)
    return on_gpu(compiled(directory, recipe), directory / "run")


def adapted(storage: Any, precision: str, kind: str) -> dict[str, Any]:
    made = tuned(storage, precision)
    made["model"]["parameters"]["up"]["adapter"] = {"type": kind, "rank": 3, "dropout": 0.1}
    return made


@pytest.mark.parametrize(
    ("storage", "precision", "kind", "change"),
    [
        ("nf4", "fp16", "dora", AVERAGED),
        pytest.param("nf4", "bf16", "lora", AGAIN, marks=LONG),
        pytest.param("int8", "fp32", "dora", AGAIN, marks=LONG),
        pytest.param("bf16", "bf16", "lora", {"checkpoint": {"base": "whole"}}, marks=LONG),
        pytest.param("nf4", "bf16", "lora", {"checkpoint": {"base": "whole"}}, marks=LONG),
        pytest.param(None, "fp16", "lora", AVERAGED, marks=LONG),
    ],
)
def test_adapters_and_frozen_weights_in_fewer_bits(
    tmp_path: Path, storage: Any, precision: str, kind: str, change: dict[str, Any]
) -> None:
    write_base(tmp_path)
    assert run(tmp_path, adapted(storage, precision, kind), change).waits_in_steps() == {}


@pytest.mark.parametrize("storage", ["nf4", "int8", "bf16"])
def test_whole_weights_are_saved_and_loaded_by_way_of_the_host(storage: Any) -> None:
    """All of them in float32 may be more than a GPU has room for."""
    values = torch.randn(6, 128)
    with PretendGpu() as gpu:
        held = Packed(storage, 128, torch.device("cuda"))
        held.reset_buffers()
        weight = pack(values, storage).to("cuda")
        saved = unpack_tensor(weight, held)
        into = torch.zeros_like(weight)
        with as_written(into, held, on_host=True) as place:
            assert place.device.type == "cpu"
            place.copy_(saved)
        assert (saved.device.type, into.device.type) == ("cpu", "cuda")
        assert "item" not in {what for what, _ in gpu.waits}
    assert torch.equal(into, weight)
    assert torch.equal(saved, Packed(storage, 128, torch.device("cpu")).round_trip(values))


LIBRARY = ("test_efficientnet", "test_vit", "vit", "bert", "llama", "t5")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("name", [pytest.param(name, marks=LONG) for name in LIBRARY])
def test_models_of_libraries(tmp_path: Path, name: str, precision: str) -> None:
    pytest.importorskip("timm" if name in library_models.TIMM else "transformers")
    library_models.write_data(tmp_path)
    recipe = library_models.recipe(*library_models.node_of(name))
    recipe["data"]["split"] = {"validation": 0.2}
    waits = run(tmp_path, recipe, {"training": {"precision": precision}}).waits_in_steps()
    assert not [line for _, line in waits if not line.startswith(OF_TRANSFORMERS)]


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=LONG), "bf16"])
def test_texts_that_a_run_writes(tmp_path: Path, precision: str) -> None:
    (tmp_path / "made.txt").write_text(test_samples.TEXT * 10)
    samples = {"training": {"precision": precision}, "evaluation": {"samples": {"max_tokens": 3}}}
    recipe = merged(merged(test_samples.RECIPE, test_samples.SAMPLES), samples)
    assert run(tmp_path, recipe).waits_in_steps() == {}


@pytest.mark.parametrize("kind", [pytest.param("mixup", marks=LONG), "cutmix"])
def test_pictures_are_mixed_in_pairs_on_the_gpu(tmp_path: Path, kind: str) -> None:
    """Behind the copies, with the channels last and statistics of batches."""
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (60, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "pictures.npz", image=pictures, label=np.arange(60) % 5)
    recipe = {
        "name": "mixed",
        "data": {
            "source": {"type": "npy", "path": "pictures.npz"},
            "fields": {
                "image": {"type": "image", "column": "image"},
                "label": {"type": "category", "column": "label", "one_hot": True},
            },
            "split": {"validation": 0.2},
            "transforms": [{"type": kind, "labels": ["label"]}],
        },
        "model": {
            "graph": {
                "conv": {"type": "conv2d", "out_channels": 8, "kernel_size": 3, "input": "image"},
                "norm": {"type": "batch_norm"},
                "flat": "mean(norm, dim=(2, 3))",
                "logits": {"type": "linear", "out_features": 5},
            }
        },
        "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "label"}},
        "training": {"global_batch_size": 12, "optimizer": {"type": "sgd", "lr": 0.1}, "channels_last": True},
        "logging": {"dir": "runs", "every": "1 step"},
    }
    assert run(tmp_path, recipe, {"training": {"precision": "bf16"}}).waits_in_steps() == {}


OF_GALLERY = [pytest.param(path, marks=() if path.stem == "vae" else LONG, id=path.stem) for path in GALLERY]


@pytest.mark.parametrize("path", OF_GALLERY)
def test_the_gallery(tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert on_gpu(of_gallery(path.stem), tmp_path / "run").waits_in_steps() == {}


def of_gallery(name: str, *changes: str) -> Plan:
    words = ["parallelism=single", "training.steps=4", "checkpoint={every: 2 steps, keep: 9}"]
    words += ["evaluation.every=2 steps", "layout={gpus: 1}", *changes]
    loaded = recipe_room.load(f"recipes/gallery/{name}.yaml", set_=words)
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = planner.compile(loaded.recipe)
    assert plan is not None, diagnostics
    return plan


@LONG
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_packed_documents_wait_once_for_their_lengths(
    tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU that has the kernel; it is a mask that computes here."""
    calls = []

    def by_mask(q: Any, k: Any, v: Any, found: Any, causal: bool, window: int | None, scale: float | None) -> Any:
        calls.append(found)
        (B, _, T, _), device = q.shape, q.device
        assert {found.starts.device.type, found.starts.dtype} == {"cuda", torch.int32}
        number = torch.bucketize(torch.arange(B * T, device=device), found.starts, right=True).view(B, T)
        allowed = attention.within_segments(number, None, causal, window)
        shared = q.shape[1] // k.shape[1]
        k, v = (part.repeat_interleave(shared, dim=1) for part in (k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale)

    monkeypatch.chdir(ROOT)
    plan = of_gallery("sft_llama", f"training.precision={precision}", "evaluation.samples=null")
    monkeypatch.setattr(attention, "serves", lambda *_: True)
    monkeypatch.setattr(attention, "attend_documents", by_mask)
    found = on_gpu(plan, tmp_path / "run").waits_in_steps()
    assert calls
    assert {(what, line.split(":")[0]) for what, line in found} == {
        (what, "components/layers/modules/documents.py") for what in ("nonzero", "tolist")
    }
    assert max(found.values()) <= 6  # of the six steps of both sessions, whatever the number of layers


@contextmanager
def copies_in_turn() -> Iterator[None]:
    """What torch does in C++ and in threads for replicas, in Python and in turn."""

    class Broadcast:
        @staticmethod
        def apply(devices: Sequence[int], *tensors: torch.Tensor) -> list[torch.Tensor]:
            return [tensor.clone() for _ in devices for tensor in tensors]

    def parallel_apply(modules: Sequence[Callable[..., Any]], inputs: Sequence[Any], devices: Any) -> list[Any]:
        return [module(*given) for module, given in zip(modules, inputs, strict=True)]

    def gather(made: Sequence[Any], device: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.cat(parts) for parts in zip(*made, strict=True))

    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.nn.parallel._functions.Broadcast", Broadcast))
        stack.enter_context(mock.patch("torch.nn.parallel.parallel_apply", parallel_apply))
        stack.enter_context(mock.patch("torch.nn.parallel.gather", gather))
        yield


@pytest.mark.parametrize(
    ("storage", "precision"),
    [("nf4", "bf16"), pytest.param(None, "fp32", marks=LONG), pytest.param("int8", "fp16", marks=LONG)],
)
def test_replicas_of_one_process(tmp_path: Path, storage: Any, precision: str) -> None:
    """Bytes of a frozen weight are none of the numbers that a replica has in half precision."""
    write_base(tmp_path)
    with copies_in_turn():
        found = run(tmp_path, adapted(storage, precision, "lora"), WAYS["dp 2"], {"layout": {"device": None}})
    assert found.waits_in_steps() == {}


@LONG
def test_replicas_of_a_model_with_statistics(tmp_path: Path) -> None:
    write_data(tmp_path)
    graph = {
        "up": {"type": "linear", "out_features": 16, "input": "x"},
        "norm": {"type": "batch_norm"},
        "drop": {"type": "dropout", "p": 0.1},
        "logits": {"type": "linear", "out_features": 10},
    }
    with copies_in_turn():
        found = run(tmp_path, DEEP | {"model": {"graph": graph}}, WAYS["dp 2"], {"layout": {"device": None}})
    assert found.waits_in_steps() == {}
