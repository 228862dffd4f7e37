"""Units compiled by torch's own compiler to code for the CPU, as a user's `compile: true` has them: over ranks, too."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine.made_recipes import merged, write_recipe
from tests.engine.runs import last_tensors

PICTURES: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "data.npz"},
        "fields": {"x": {"column": "x"}, "y": {"type": "category", "column": "y", "num_classes": 10}},
    },
    "model": {
        "graph": {
            "logits": {"type": "resnet", "units": [1, 1], "unit": "basic", "width": 8, "groups": 4, "out_features": 10}
            | {"small_images": True, "input": "x"}
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y"}},
    "training": {"steps": 3, "global_batch_size": 8, "optimizer": {"type": "sgd", "lr": 0.1}},
    "layout": {"device": "cpu"},
}
TEXTS: dict[str, Any] = PICTURES | {
    "data": {
        "source": {"type": "synthetic", "kind": "tokens", "rows": 2000},
        "window": {"length": 17, "stride": 16},
        "fields": {"x": {"column": "tokens", "rows": ":-1"}, "y": {"column": "tokens", "rows": "1:"}},
    },
    "model": {
        "graph": {"logits": {"type": "gpt", "vocabulary": 256, "layers": 2, "width": 32, "heads": 2, "input": "x"}}
    },
}
WAYS = {
    "single": {},
    "ddp 2": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "fsdp 2": {"parallelism": "fsdp", "layout": {"gpus": 2}},
}
LIMIT_S = 800  # of a run: of about a minute of the processor, four minutes on 2 cores at a load of 10
CELLS = [
    ("resnet", "ddp 2", "none"),
    ("resnet", "fsdp 2", "selective"),
    ("gpt", "ddp 2", "selective"),
    ("gpt", "fsdp 2", "none"),
    ("gpt", "fsdp 2", "blocks"),
]


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S + 100)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no compiler of C++ is here")
@pytest.mark.parametrize(("model", "way", "checkpointing"), CELLS)
def test_compiled_ranks_train_as_one_that_is_not(tmp_path: Path, model: str, way: str, checkpointing: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(32, 3, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=random.integers(0, 10, 32))
    recipe = PICTURES if model == "resnet" else TEXTS
    plain = trained(tmp_path / "plain", tmp_path, recipe)
    changes = {"training": {"compile": True, "activation_checkpointing": checkpointing}}
    found = trained(tmp_path / "compiled", tmp_path, merged(merged(recipe, WAYS[way]), changes))
    assert any((tmp_path / "inductor").rglob("*.so")), "nothing was compiled"
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        difference = torch.linalg.vector_norm((found[name] - value).double())
        assert difference <= 1e-4 * torch.linalg.vector_norm(value.double()) + 1e-6, name


def trained(folder: Path, data: Path, recipe: dict[str, Any]) -> dict[str, torch.Tensor]:
    folder.mkdir()
    for file in data.glob("*.npz"):
        shutil.copy(file, folder)
    path = write_recipe(folder, recipe)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(data / "inductor"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "declarative_train", "run", str(path)]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired as late:
        said = b"".join(each[-3000:] for each in (late.stdout, late.stderr) if each)
        pytest.fail(f"not done in {LIMIT_S} s: {said.decode(errors='replace')}")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    (run_dir,) = (folder / "runs" / "made").iterdir()
    return {name: value for name, value in last_tensors(run_dir).items() if name.startswith("model/")}
