"""Start values from files, and one message for everything that does not fit."""

from __future__ import annotations

import json
import pickle
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from declarative_train.components.inits.draws import Draws
from declarative_train.engine.axes.single_process_dp import in_dtype_of_caller
from declarative_train.engine.checkpoints.find import resolve_weights
from declarative_train.engine.checkpoints.store import CheckpointStore, damage
from declarative_train.engine.engine import Engine
from declarative_train.engine.failures import RunFailure
from declarative_train.engine.step.load_weights import load_weights, names_in, open_weights, write_weights
from declarative_train.engine.step.model_preparation import fill
from declarative_train.engine.step.tensor_files import Tensors
from declarative_train.plan.plan import WeightsPlan
from declarative_train.run.checkpoint import Checkpoints
from declarative_train.run.run_state import RunState
from tests.engine.plans import make_plan


def model() -> nn.Module:
    return nn.ModuleDict(
        {
            "vit": nn.ModuleDict(
                {"layers": nn.ModuleList(nn.Linear(3, 3) for _ in range(2)), "norm": nn.BatchNorm1d(3)}
            ),
            "head": nn.Linear(3, 2),
        }
    )


def below_vit() -> dict[str, torch.Tensor]:
    torch.manual_seed(7)
    return {name: torch.randn_like(item.float()).to(item.dtype) for name, item in model()["vit"].state_dict().items()}  # type: ignore[index]


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_a_file_below_a_node_with_renames(tmp_path: Path, kind: str) -> None:
    wanted = below_vit()
    stored = {name.replace("layers.", "encoder.blocks."): item.clone() for name, item in wanted.items()}
    path = tmp_path / f"vit.{kind}"
    save_file(stored, path) if kind == "safetensors" else torch.save({"state_dict": stored}, path)
    found = model()
    head = found["head"].weight.clone()  # type: ignore[index]
    load_weights(found, [WeightsPlan("vit", str(path), {"encoder.blocks.": "layers."})])
    for name, item in found["vit"].state_dict().items():  # type: ignore[index]
        assert torch.equal(item, wanted[name])
    assert torch.equal(found["head"].weight, head)  # type: ignore[index]


def in_two_files(folder: Path, stored: dict[str, torch.Tensor]) -> Path:
    """As large models are published."""
    names = list(stored)
    files = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: stored[name] for name in names if files[name] == file}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return index


def test_a_model_in_several_files(tmp_path: Path) -> None:
    wanted = below_vit()
    index = in_two_files(tmp_path, wanted)
    found = model()
    load_weights(found, [WeightsPlan("vit", str(index), {})])
    for name, item in found["vit"].state_dict().items():  # type: ignore[index]
        assert torch.equal(item, wanted[name])
    for text, words in [
        ("[]", "no `weight_map`"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "there is no file"),
        ('{"weight_map": {"a": "model-00001-of-00002.safetensors"}}', "lists a in .*, which does not have it"),
    ]:
        index.write_text(text)
        with pytest.raises(RunFailure, match=words):
            load_weights(found, [WeightsPlan("vit", str(index), {})])


@pytest.mark.parametrize("kind", ["safetensors", "index", "pt", "checkpoint"])
def test_a_shard_takes_its_rows_alone(tmp_path: Path, kind: str) -> None:
    """Of three ranks, number 1: its rows have the file's values, and of a file of slices nothing else is read."""
    wanted = {"a.weight": torch.randn(10, 4, generator=torch.Generator().manual_seed(1)), "a.bias": torch.arange(10.0)}
    path = tmp_path / f"a.{kind}"
    if kind == "safetensors":
        save_file(wanted, path)
    elif kind == "index":
        path = in_two_files(tmp_path, wanted)
    elif kind == "pt":
        torch.save(wanted, path)
    else:
        plan = make_plan()
        engine = Engine(plan, torch.device("cpu"))
        engine.model = nn.ModuleDict({"a": nn.Linear(4, 10)})
        engine.model.load_state_dict(wanted)
        path = Path(
            Checkpoints(plan, engine, CheckpointStore(str(tmp_path))).save(RunState(step=1), is_best=False, keep=1)
        )
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        mesh = init_device_mesh("cpu", (3,))
        found = nn.ModuleDict({"a": nn.Linear(4, 10)})
        for name, parameter in list(found["a"].named_parameters()):
            sharded = distribute_tensor(torch.zeros_like(parameter), mesh, [Shard(0)], src_data_rank=None)
            setattr(found["a"], name, nn.Parameter(sharded))
        opened = open_weights(found, [WeightsPlan("", str(path), {})])
        assert set(names_in(found, opened)) == {"a.weight", "a.bias"}
        if kind in ("safetensors", "index"):  # whole tensors are not asked for
            source = opened[0].source
            assert isinstance(source, Tensors)
            read = source.read
            limited = Tensors(source.shapes, lambda name, first, last, dim: read(name, *rows_1_of_3(first, last), dim))
            opened = [replace(opened[0], source=limited)]
        write_weights(found, opened)
        for name, parameter in found.named_parameters():
            assert torch.equal(parameter.to_local(), wanted[name][4:8]), name  # type: ignore[attr-defined]
    finally:
        distributed.destroy_process_group()


def rows_1_of_3(first: int | None, last: int | None) -> tuple[int, int]:
    assert (first, last) == (4, 8)
    return 4, 8


def test_nothing_is_drawn_for_what_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a file of weights, or by a checkpoint that follows."""
    plan = make_plan()
    drawn: list[str] = []
    of = Draws.__init__

    def noted(self: Draws, seed: int, name: str, *more: Any) -> None:
        drawn.append(name)
        of(self, seed, name, *more)

    monkeypatch.setattr(Draws, "__init__", noted)
    names = {name for name, _ in Engine(plan, torch.device("cpu")).model.named_parameters()}
    assert set(drawn) == names
    drawn.clear()
    Engine(plan, torch.device("cpu"), fill=partial(fill, restores=True))
    assert not drawn
    first = next(iter(plan.graph.nodes)).name
    path = tmp_path / "first.pt"
    start = Engine(plan, torch.device("cpu")).model.get_submodule(first).state_dict()
    torch.save({name: torch.full_like(item, 3.0) for name, item in start.items()}, path)
    drawn.clear()
    found = Engine(replace(plan, weights=(WeightsPlan(first, str(path), {}),)), torch.device("cpu")).model
    assert set(drawn) == {name for name in names if not name.startswith(f"{first}.")}
    assert all(bool((item == 3).all()) for item in found.get_submodule(first).parameters())


def test_names_that_become_nothing_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "vit.safetensors"
    save_file({**below_vit(), "head.weight": torch.zeros(5), "head.bias": torch.zeros(5)}, path)
    found = model()
    load_weights(found, [WeightsPlan("vit", str(path), {"head.": None})])
    assert torch.equal(found["vit"]["norm"].weight, below_vit()["norm.weight"])  # type: ignore[index]


def test_a_rename_that_renames_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "vit.pt"
    torch.save(below_vit(), path)
    with pytest.raises(RunFailure, match=r"no name in it starts with `module\.`: nothing is renamed"):
        load_weights(model(), [WeightsPlan("vit", str(path), {"module.": ""})])


def test_one_message_says_all_that_does_not_fit(tmp_path: Path) -> None:
    stored = below_vit()
    stored["encoder.0.weight"] = stored.pop("layers.0.weight")
    stored["norm.bias"] = torch.zeros(5)
    path = tmp_path / "vit.safetensors"
    save_file(stored, path)
    with pytest.raises(RunFailure) as caught:
        load_weights(model(), [WeightsPlan("vit", str(path), {})])
    text = str(caught.value)
    assert "layers.0.weight of the model below `vit` not in the file" in text
    assert "encoder.0.weight of the file not in the model below `vit`" in text
    assert "norm.bias is (5,) in the file, but (3,) in the model" in text
    assert "rename" in text


def test_tied_parameters_stand_under_one_name_or_both(tmp_path: Path) -> None:
    for names in (("a.weight",), ("b.weight",), ("a.weight", "b.weight")):
        tied = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
        tied["b"].weight = tied["a"].weight  # type: ignore[index]
        path = tmp_path / "tied.pt"
        torch.save({name: torch.full((2, 2), 3.0) for name in names}, path)
        load_weights(tied, [WeightsPlan("", str(path), {})])
        assert torch.equal(tied["a"].weight, torch.full((2, 2), 3.0))  # type: ignore[index]


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"a": Planted()}, tmp_path / "bad.pt")
    with pytest.raises(RunFailure, match="its code is not executed"):
        load_weights(model(), [WeightsPlan("", str(tmp_path / "bad.pt"), {})])
    (tmp_path / "worse.pt").write_bytes(pickle.dumps(Planted(), protocol=2))
    with pytest.raises(RunFailure, match="its code is not executed"):
        load_weights(model(), [WeightsPlan("", str(tmp_path / "worse.pt"), {})])
    assert not (tmp_path / "ran").exists()


def test_a_missing_file_and_an_empty_folder(tmp_path: Path) -> None:
    for name in ("gone.pt", "gone.safetensors"):
        with pytest.raises(RunFailure, match="there is no file"):
            load_weights(model(), [WeightsPlan("", str(tmp_path / name), {})])
    with pytest.raises(RunFailure, match="has no weights"):
        resolve_weights([WeightsPlan("", str(tmp_path), {})], damage)


@pytest.mark.parametrize(("best", "wanted"), [(1, 1.0), (None, 2.0)])
def test_a_runs_folder_means_its_best_checkpoint_else_its_last(tmp_path: Path, best: int | None, wanted: float) -> None:
    plan = make_plan()
    engine = Engine(plan, torch.device("cpu"))
    run = tmp_path / "made" / "20260101-000000"
    checkpoints = Checkpoints(plan, engine, CheckpointStore(str(run / "checkpoints")))
    for step in (1, 2):
        with torch.no_grad():
            for item in engine.model.parameters():
                item.fill_(float(step))
        checkpoints.save(RunState(step=step, best_step=best), is_best=step == best, keep=3)
    for path in (run, run.parent):
        fresh = Engine(plan, torch.device("cpu"))
        settled, passed_over = resolve_weights([WeightsPlan("", str(path), {})], damage)
        load_weights(fresh.model, settled)
        assert all(bool((item == wanted).all()) for item in fresh.model.parameters())
        assert not passed_over


def test_of_a_runs_folder_a_whole_checkpoint_is_taken(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = Engine(plan, torch.device("cpu")), CheckpointStore(str(tmp_path / "checkpoints"))
    for step in (1, 2, 3):
        Checkpoints(plan, engine, store).save(RunState(step=step, best_step=2), is_best=step == 2, keep=3)
    wanted = WeightsPlan("", str(tmp_path), {})
    for step, taken in ((2, 3), (3, 1)):
        path = Path(store.path(step)) / "__0_0.distcp"
        path.write_bytes(path.read_bytes()[::-1])
        (settled,), reasons = resolve_weights([wanted], damage)
        assert settled.path == store.path(taken)
        assert (
            f"model.weights: the checkpoint {store.path(step)} is damaged: the checksum of __0_0.distcp" in reasons[-1]
        )
    path = Path(store.path(1)) / "__0_0.distcp"
    path.write_bytes(b"")
    with pytest.raises(RunFailure, match=r"model.weights: .*step_00000001 .*step_00000002 .*step_00000003"):
        resolve_weights([wanted], damage)


def test_fp64_keeps_the_digits_of_a_file(tmp_path: Path) -> None:
    start = Engine(make_plan(precision="fp64"), torch.device("cpu")).model.state_dict()
    wanted = {name: torch.rand_like(item) for name, item in start.items()}
    path = tmp_path / "start.safetensors"
    save_file(wanted, path)
    plan = replace(make_plan(precision="fp64"), weights=(WeightsPlan("", str(path), {}),))
    for name, item in Engine(plan, torch.device("cpu")).model.state_dict().items():
        assert torch.equal(item, wanted[name]), name


def test_replicas_in_threads_compute_in_the_dtype_of_the_caller() -> None:
    """What autocast computes in belongs to a thread; the threads of `parallel_apply` only know that it is on."""
    with torch.autocast("cpu", dtype=torch.float16):
        (call,) = in_dtype_of_caller([lambda x: x @ x], "cpu")
    made: list[torch.Tensor] = []

    def in_thread() -> None:
        with torch.autocast("cpu"):  # bfloat16, as float16 is on CUDA
            made.extend([call(torch.ones(2, 2)), torch.ones(2, 2) @ torch.ones(2, 2)])

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert [tensor.dtype for tensor in made] == [torch.float16, torch.bfloat16]


def apart(wanted: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As another project has it: `qkv` in three, of 4, 2 and 2 rows, in another order in the file."""
    stored = {"blocks.0.attn.inv_freq": torch.ones(2)}
    for name, item in wanted.items():
        other = name.replace("layers.", "blocks.").replace(".attention.", ".attn.")
        if "qkv" in name:
            query, key, value = item.split([4, 2, 2])
            parts = {"value": value, "query": query, "key": key}
            stored |= {other.replace("qkv", part): rows.clone() for part, rows in parts.items()}
        else:
            stored[other] = item.clone()
    return stored


RENAME = {"blocks.*.attn": "layers.*.attention", "{query,key,value}": "qkv", "*_freq": None}


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_selectors_rename_and_join(tmp_path: Path, kind: str) -> None:
    """In a whole model, and on rank 1 of 3, which has rows of two of the three parts."""
    layer = lambda: nn.ModuleDict({"attention": nn.ModuleDict({"qkv": nn.Linear(4, 8), "out": nn.Linear(4, 4)})})  # noqa: E731
    made = lambda: nn.ModuleDict({"layers": nn.ModuleList(layer() for _ in range(2))})  # noqa: E731
    wanted = {name: item.clone() for name, item in made().state_dict().items()}
    path = tmp_path / f"w.{kind}"
    save_file(apart(wanted), path) if kind == "safetensors" else torch.save(apart(wanted), path)
    found = made()
    load_weights(found, [WeightsPlan("", str(path), RENAME)])
    assert all(torch.equal(item, wanted[name]) for name, item in found.state_dict().items())
    distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=3)
    try:
        mesh, found = init_device_mesh("cpu", (3,)), made()
        for module in found.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                sharded = distribute_tensor(torch.zeros_like(parameter), mesh, [Shard(0)], src_data_rank=None)
                setattr(module, name, nn.Parameter(sharded))
        load_weights(found, [WeightsPlan("", str(path), RENAME)])
        for name, parameter in found.named_parameters():
            assert torch.equal(parameter.to_local(), wanted[name].chunk(3)[1]), name  # type: ignore[attr-defined]
    finally:
        distributed.destroy_process_group()


def test_a_checkpoint_is_not_joined(tmp_path: Path) -> None:
    plan = make_plan()
    engine = Engine(plan, torch.device("cpu"))
    engine.model = nn.ModuleDict({"a": nn.Linear(4, 10)})
    saved = Checkpoints(plan, engine, CheckpointStore(str(tmp_path))).save(RunState(step=1), is_best=False, keep=1)
    with pytest.raises(RunFailure, match="is a checkpoint, but `rename` can only join tensors of files"):
        load_weights(nn.ModuleDict({"b": nn.Linear(4, 10)}), [WeightsPlan("", str(saved), {"{a}": "b"})])
