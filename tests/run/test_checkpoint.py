"""A checkpoint exists or it does not; it runs no code; it resumes to the bit and on another layout."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from declarative_train.engine.checkpoints.format import AllowList, load_tensors, parse_metadata, save_tensors
from declarative_train.engine.checkpoints.store import CheckpointStore, damage, read_entry, read_metadata
from declarative_train.engine.engine import Engine
from declarative_train.engine.failures import CheckpointFailure
from declarative_train.plan.checkpoint_files import UNSEALED, BadCheckpointError, list_local_sizes, read_manifest
from declarative_train.plan.plan import Plan
from declarative_train.run.checkpoint import Checkpoints
from declarative_train.run.run_state import RunState
from tests.engine.plans import made_batch, made_data, make_plan

CPU = torch.device("cpu")


def steps(engine: Engine, first: int, last: int) -> None:
    data = made_data(1000)
    for step in range(first, last + 1):
        rows = slice(step * 50, step * 50 + 50)
        engine.step(step, [made_batch(data, rows)], num_rows=50, lr_factor=0.9**step, measure=False)


def saved(plan: Plan, root: Path, last: int, **state: Any) -> tuple[Engine, CheckpointStore]:
    engine, store = Engine(plan, CPU), CheckpointStore(str(root))
    steps(engine, 1, last)
    Checkpoints(plan, engine, store).save(RunState(step=last, **state), is_best=False, keep=3)
    return engine, store


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "adam", "lr": 1e-2},
        {"type": "adamw", "lr": 1e-2, "weight_decay": 0.1},
        {"type": "sgd", "lr": 0.1, "momentum": 0.9},
        {"type": "sgd", "lr": 0.1},
    ],
)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_resume_is_to_the_bit(tmp_path: Path, optimizer: dict[str, object], precision: str) -> None:
    plan = make_plan(optimizer=optimizer, precision=precision)
    engine, store = saved(plan, tmp_path, 4, best_value=0.5, values={"validation/loss": float("nan")})
    steps(engine, 5, 8)
    again = Engine(plan, CPU)
    (entry,), torn = store.entries()
    assert not torn
    state = Checkpoints(plan, again, store).load(entry)
    assert state.step == 4
    assert state.best_value == 0.5
    assert state.values["validation/loss"] != state.values["validation/loss"]
    steps(again, 5, 8)
    for one, other in zip(engine.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_only_tensors_and_no_pickles_but_the_metadata(tmp_path: Path) -> None:
    plan = make_plan(optimizer={"type": "adamw", "lr": 1e-2})
    _, store = saved(plan, tmp_path, 2)
    (entry,), _ = store.entries()
    found = parse_metadata(read_metadata(entry.path)).state_dict_metadata
    assert {type(item).__name__ for item in found.values()} == {"TensorStorageMetadata"}
    assert "model/hidden.weight" in found
    assert "optimizer/hidden.weight/exp_avg" in found
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_the_manifest_says_what_it_is(tmp_path: Path) -> None:
    plan = make_plan(num_samples=950)
    _, store = saved(plan, tmp_path, 10)
    (entry,), _ = store.entries()
    manifest = json.loads((Path(entry.path) / "manifest.json").read_text())
    assert (manifest["step"], manifest["epoch"], manifest["samples"]) == (10, 1, 950)
    assert manifest["fingerprint"] == plan.fingerprint
    assert all(record["size_bytes"] and len(record["sha256"]) == 64 for record in manifest["files"].values())
    assert damage(entry) is None


@pytest.mark.parametrize("what", ["no manifest", "half a manifest", "a missing file", "a short file"])
def test_a_torn_checkpoint_is_left_out_with_the_reason(tmp_path: Path, what: str) -> None:
    plan = make_plan()
    engine, store = saved(plan, tmp_path, 2)
    Checkpoints(plan, engine, store).save(RunState(step=4), is_best=False, keep=3)
    newest = Path(store.path(4))
    data = next(newest.glob("*.distcp"))
    if what == "no manifest":
        (newest / "manifest.json").unlink()
    elif what == "half a manifest":
        text = (newest / "manifest.json").read_text()
        (newest / "manifest.json").write_text(text[: len(text) // 2])
    elif what == "a missing file":
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[:-1])
    whole, torn = store.entries()
    assert [entry.step for entry in whole] == [2]
    assert len(torn) == 1
    assert ("torn" if what == "no manifest" else "damaged") in torn[0]
    assert "step_00000004" in torn[0]


def spoil(path: Path, how: str, position: int = 0) -> None:
    """`position`: the byte that is changed, or where the file is cut."""
    content = bytearray(path.read_bytes())
    match how:
        case "a flipped bit":
            content[position] ^= 1 << position % 8
            path.write_bytes(content)
        case "cut":
            path.write_bytes(content[:position])
        case "zeros":
            path.write_bytes(bytes(len(content)))
        case "longer":
            path.write_bytes(content + b"0")
        case "gone":
            path.unlink()
        case "a folder":
            path.unlink()
            path.mkdir()
        case _:
            raise AssertionError(how)


def test_a_checkpoint_that_is_damaged_anywhere_is_passed_over(tmp_path: Path) -> None:
    """Every way of damage to every file, and bits at sampled places: the one before is taken, and the file named."""
    plan, random = make_plan(optimizer={"type": "adamw", "lr": 1e-2}), Random(5)
    engine, store = saved(plan, tmp_path, 2)
    Checkpoints(plan, engine, store).save(RunState(step=4), is_best=False, keep=3)
    newest, copy = Path(store.path(4)), tmp_path / "copy"
    newest.rename(copy)
    names = sorted(path.name for path in copy.iterdir())
    assert {".metadata", "manifest.json"} < set(names)
    for name in names:
        size = (copy / name).stat().st_size
        cases = [(how, 0) for how in ("zeros", "longer", "gone", "a folder")]
        cases += [("cut", at) for at in (0, size // 2, size - 1)]
        cases += [("a flipped bit", at) for at in (0, size - 1, *(random.randrange(size) for _ in range(20)))]
        for how, position in cases:
            shutil.copytree(copy, newest)
            spoil(newest / name, how, position)
            found, reasons = store.newest()
            assert found is not None
            assert (found.step, len(reasons)) == (2, 1), (name, how, position)
            assert "step_00000004 is " in reasons[0] or "step_00000004 cannot be read" in reasons[0]
            assert name in reasons[0] or how == "a folder", reasons
            shutil.rmtree(newest)
    copy.rename(newest)
    found, reasons = store.newest()
    assert found is not None
    assert (found.step, reasons) == (4, [])


def test_every_byte_of_a_manifest_counts(tmp_path: Path) -> None:
    _, store = saved(make_plan(), tmp_path, 2)
    path = Path(store.path(2)) / "manifest.json"
    content = path.read_bytes()
    for position in range(len(content)):
        for bit in range(0, 8, 3):
            changed = bytearray(content)
            changed[position] ^= 1 << bit
            with pytest.raises(BadCheckpointError):
                read_manifest(store.path(2), lambda _, found=bytes(changed): found, list_local_sizes)
    read_manifest(store.path(2), lambda _: content, list_local_sizes)


def test_a_manifest_of_before_they_had_a_checksum_is_read(tmp_path: Path) -> None:
    _, store = saved(make_plan(), tmp_path, 2)
    path = Path(store.path(2)) / "manifest.json"
    manifest = json.loads(path.read_bytes()) | {"format": UNSEALED}
    del manifest["sha256"]
    path.write_text(json.dumps(manifest))
    assert read_entry(store.path(2)).step == 2


def test_all_is_on_the_disk_before_a_checkpoint_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file whole before the manifest is written, all names before the folder is renamed, and that at last."""
    done: list[tuple[str, str, int]] = []
    fsync, rename = os.fsync, os.rename

    def noted_fsync(handle: int) -> None:
        fsync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        done.append(("fsync", path.name, path.stat().st_size if path.is_file() else 0))

    def noted_rename(old: str | os.PathLike[str], new: str | os.PathLike[str], **how: Any) -> None:
        rename(old, new, **how)
        done.append(("rename", Path(new).name, 0))

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    _, store = saved(make_plan(optimizer={"type": "adamw", "lr": 1e-2}), tmp_path / "checkpoints", 2)
    folder = Path(store.path(2))
    order = [(what, name.removesuffix(".tmp")) for what, name, _ in done]
    synced = {name.removesuffix(".tmp"): size for what, name, size in done if what == "fsync"}
    data = [path.name for path in folder.iterdir() if path.name != "manifest.json"]
    assert len(data) > 1
    for name in (*data, "manifest.json"):
        assert synced[name] == (folder / name).stat().st_size, name
    for name in data:
        assert order.index(("fsync", name)) < order.index(("fsync", "manifest.json")), name
    last = [("fsync", "manifest.json"), ("fsync", ".step_00000002.partial")]
    assert order[-4:] == [*last, ("rename", "step_00000002"), ("fsync", "checkpoints")]


def test_what_was_cut_short_is_removed_and_nothing_else(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = saved(plan, tmp_path, 2)
    Checkpoints(plan, engine, store).save(RunState(step=4), is_best=False, keep=3)
    store.prepare(6)
    shutil.copytree(store.path(2), tmp_path / ".step_00000002.replaced")
    shutil.copytree(store.path(2), tmp_path / "step_00000003")
    (tmp_path / "step_00000003" / "manifest.json").unlink()
    spoil(Path(store.path(4)) / "manifest.json", "a flipped bit", 99)
    (tmp_path / "notes").mkdir()
    left = store.clean()
    assert {Path(path).name for path in left} == {
        ".step_00000006.partial",
        ".step_00000002.replaced",
        "step_00000003",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"step_00000002", "step_00000004", "notes"}


def test_retention_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = Engine(plan, CPU), CheckpointStore(str(tmp_path))
    checkpoints = Checkpoints(plan, engine, store)
    for step in range(1, 7):
        checkpoints.save(RunState(step=step, best_step=min(step, 2)), is_best=step <= 2, keep=2)
    assert [entry.step for entry in store.entries()[0]] == [6, 5, 2]


def test_retention_never_counts_a_torn_one(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = Engine(plan, CPU), CheckpointStore(str(tmp_path))
    checkpoints = Checkpoints(plan, engine, store)
    checkpoints.save(RunState(step=1), is_best=False, keep=1)
    torn = tmp_path / "step_00000002"
    torn.mkdir()
    store.retain(1, None)
    assert [entry.step for entry in store.entries()[0]] == [1]


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = saved(plan, tmp_path, 2)
    steps(engine, 3, 3)
    Checkpoints(plan, engine, store).save(RunState(step=2), is_best=False, keep=3)
    (entry,), torn = store.entries()
    assert not torn
    again = Engine(plan, CPU)
    Checkpoints(plan, again, store).load(entry)
    for one, other in zip(engine.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_object_stores_have_no_rename(tmp_path: Path) -> None:
    plan = make_plan()
    engine, store = Engine(plan, CPU), CheckpointStore("memory://runs/a/checkpoints")
    assert not store.is_local
    steps(engine, 1, 2)
    Checkpoints(plan, engine, store).save(RunState(step=2), is_best=False, keep=1)
    (entry,), torn = store.entries()
    assert not torn
    again = Engine(plan, CPU)
    assert Checkpoints(plan, again, store).load(entry).step == 2
    for one, other in zip(engine.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


class Planted:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_planted_object_in_the_metadata_is_not_run(tmp_path: Path) -> None:
    sign = tmp_path / "ran"
    with (tmp_path / ".metadata").open("wb") as stream:
        pickle.dump(Planted(sign), stream)
    with pytest.raises(CheckpointFailure, match=r"names pathlib\S*\.touch, which is not part of a checkpoint"):
        load_tensors(str(tmp_path), {"model/a": torch.zeros(2)}, alone=True)
    assert not sign.exists()


def test_what_ranks_hold_alike_is_written_by_the_one_that_has_the_least_to_write() -> None:
    """torch's plan of who writes what, of two ranks: a large tensor by one, the two small ones by the other."""
    from torch.distributed.checkpoint import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    plans = []
    for rank in range(2):
        tensors = {"model/large": torch.zeros(10), "model/a": torch.zeros(4), "model/b": torch.zeros(4)}
        planner.set_up_planner(tensors, is_coordinator=rank == 0)
        plans.append(planner.create_local_plan())
    written, _ = planner.create_global_plan(plans)
    names = sorted(sorted(item.index.fqn for item in plan.items) for plan in written)
    assert sum(map(len, names)) == 3
    assert all(names)


def test_an_entry_of_bytes_is_refused(tmp_path: Path) -> None:
    sign = tmp_path / "ran"
    (tmp_path / "c").mkdir()
    save_tensors(str(tmp_path / "c"), {"model/a": Planted(sign), "model/b": torch.zeros(2)}, alone=True)  # type: ignore[dict-item]
    with pytest.raises(CheckpointFailure, match="not a tensor"):
        load_tensors(str(tmp_path / "c"), {"model/a": torch.zeros(2)}, alone=True)
    assert not sign.exists()
    load_tensors(str(tmp_path / "c"), {"model/b": torch.ones(2)}, alone=True)


def test_the_allow_list_knows_no_builtins() -> None:
    for code in (b"cos\nsystem\n.", b"cbuiltins\neval\n.", b"ctorch\nload\n.", b"ctorch.serialization\nload\n."):
        import io

        with pytest.raises(CheckpointFailure):
            AllowList(io.BytesIO(code)).load()


def test_read_entry_on_nothing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFailure, match=r"manifest\.json is missing"):
        read_entry(str(tmp_path))
