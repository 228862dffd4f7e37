"""Small recipes over made data, compiled by the real compiler: the way that a user's recipe takes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from declarative_train import recipe as recipe_room
from declarative_train.plan.plan import Plan
from declarative_train.planner.compiler import compile as compile_plan

DIGITS: dict[str, Any] = {
    "name": "made",
    "data": {
        "source": {"type": "npy", "path": "data.npz"},
        "fields": {"x": {"column": "x"}, "y": {"type": "category", "column": "y", "num_classes": 10}},
        "split": {"validation": 0.2},
    },
    "model": {
        "graph": {
            "hidden": {"type": "linear", "out_features": 32, "input": "x"},
            "act": {"type": "relu"},
            "logits": {"type": "linear", "out_features": 10},
        }
    },
    "objective": {"loss": {"type": "cross_entropy", "input": "logits", "target": "y"}, "metrics": ["accuracy"]},
    "training": {"epochs": 2, "global_batch_size": 24, "optimizer": {"type": "sgd", "lr": 0.1}},
    "evaluation": {"every": "1 epoch"},
    "checkpoint": {"every": "1 epoch", "keep": 2, "best": {"metric": "validation/accuracy", "mode": "max"}},
    "layout": {"device": "cpu"},
    "logging": {"dir": "runs", "every": "5 steps"},
}

# eight units that can be cut apart, and everything that a run remembers: the optimizer's state, the lr schedule, the
# best checkpoint, the means of an epoch that is not over; 7 steps an epoch, of which the last is a smaller batch
DEEP: dict[str, Any] = DIGITS | {
    "model": {
        "blocks": {
            "block": {
                "inputs": ["x"],
                "graph": {
                    "norm": {"type": "layer_norm"},
                    "up": {"type": "linear", "out_features": 16},
                    "out": "x + tanh(up)",
                },
                "output": "out",
            }
        },
        "graph": {
            "hidden": {"type": "linear", "out_features": 16, "input": "x"},
            "layers": {"type": "block", "repeat": 6},
            "logits": {"type": "linear", "out_features": 10},
        },
    },
    "training": {
        "epochs": 3,
        "global_batch_size": 24,
        "optimizer": {"type": "adamw", "lr": 1e-2},
        "lr_schedule": {"type": "cosine", "warmup": "3 steps"},
        "clip_grad_norm": 1.0,
    },
    "checkpoint": {"every": "1 epoch", "keep": 2, "best": {"metric": "validation/loss", "mode": "min"}},
    "logging": {"dir": "runs", "every": "1 step"},
}


def on_pipeline(stages: int, schedule: str, gpus: int, cuts: Any = "auto", **axes: Any) -> dict[str, Any]:
    pipeline = {"stages": stages, "schedule": schedule, "microbatches": 4, "cut_before": cuts}
    return {"parallelism": {"pipeline": pipeline, **axes}, "layout": {"gpus": gpus}}


# how DEEP can be run: every mode, on other numbers of ranks
WAYS: dict[str, dict[str, Any]] = {
    "single": {},
    "dp 2": {"parallelism": "dp", "layout": {"gpus": 2}},
    "ddp 2": {"parallelism": "ddp", "layout": {"gpus": 2}},
    "ddp 3": {"parallelism": "ddp", "layout": {"gpus": 3}},
    "ddp 2, accumulation 3": {
        "parallelism": "ddp",
        "layout": {"gpus": 2},
        "training": {"gradient_accumulation_steps": 3},
    },
    "fsdp 2": {"parallelism": "fsdp", "layout": {"gpus": 2}},
    "fsdp 4": {"parallelism": "fsdp", "layout": {"gpus": 4}},
    "hybrid 2 x 2": {"parallelism": {"data": {"replicate": 2, "shard": "all"}}, "layout": {"gpus": 4}},
    "pipeline 2": on_pipeline(2, "1f1b", 2),
    "pipeline 4": on_pipeline(4, "1f1b", 4),
    "interleaved 2": on_pipeline(4, "interleaved_1f1b", 2),
    "zero bubble 2": on_pipeline(4, "zbv", 2),
    "pipeline 2 x ddp 2": on_pipeline(2, "1f1b", 4, data={"replicate": 2}),
    "pipeline 2 x fsdp 2": on_pipeline(2, "1f1b", 4, data={"shard": 2}),
}


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merge, None removes, everything else replaces."""
    found = copy.deepcopy(dict(base))
    for key, value in changes.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), dict) and "type" not in value:
            found[key] = merged(found[key], value)
        else:
            found[key] = copy.deepcopy(value)
    return found


def write_data(directory: Path, num_samples: int = 200) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, 10, num_samples)
    centres = random.normal(size=(10, 20))
    x = (centres[y] + random.normal(size=(num_samples, 20))).astype(np.float32)
    np.savez(directory / "data.npz", x=x, y=y)


def write_recipe(directory: Path, recipe: Mapping[str, Any], name: str = "made.yaml") -> Path:
    """The recipe as a file; runs go to `directory/runs`."""
    whole = merged(recipe, {"logging": {"dir": str(directory / "runs")}})
    path = directory / name
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


def compiled(directory: Path, recipe: Mapping[str, Any]) -> Plan:
    """The plan of a recipe that has no mistake."""
    loaded = recipe_room.load(str(write_recipe(directory, recipe)), plugins="plugins" in recipe)
    assert loaded.recipe is not None, [(item.code, item.message) for item in loaded.diagnostics]
    plan, diagnostics = compile_plan(loaded.recipe)
    assert plan is not None, [(item.code, item.message) for item in diagnostics]
    return plan
