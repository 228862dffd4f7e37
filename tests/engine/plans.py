"""Plans made by hand, and their batches: what the runtime is tested on without a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from declarative_train.core.mesh import MeshAxis
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.data.batch import Batch
from declarative_train.data.spec import BatchSpec, DataSpec, FieldSpec, SetSpec
from declarative_train.graph.build import build
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import LoggingPlan, ObjectivePlan, ParameterPlan, Plan, TermPlan, TrainingPlan

FEATURES, HIDDEN, CLASSES = 20, 128, 10


def layer(name: str, input: str, output: TensorSpec, **component: Any) -> Node:
    return Node(name, "layer", {"x": input}, {"output": output}, component=component)


def mlp(features: int = FEATURES, hidden: int = HIDDEN, classes: int = CLASSES) -> Graph:
    return Graph(
        {"x": TensorSpec((features,))},
        (
            layer("hidden", "x", TensorSpec((hidden,)), type="linear", out_features=hidden),
            layer("act", "hidden:output", TensorSpec((hidden,)), type="relu"),
            layer("logits", "act:output", TensorSpec((classes,)), type="linear", out_features=classes),
        ),
        {"logits": "logits:output"},
    )


def parameters_of(graph: Graph) -> tuple[ParameterPlan, ...]:
    return tuple(ParameterPlan(name, tuple(item.shape), item.numel()) for name, item in build(graph).named_parameters())


def layout(mode: str = "single", num_ranks: int = 1, **more: Any) -> LayoutPlan:
    mesh = () if mode in ("single", "dp") else (MeshAxis("replicate", num_ranks),)
    return LayoutPlan(mode, "cpu", 1, num_ranks, mesh, tuple(range(num_ranks)), **{"units": (), **more})  # type: ignore[arg-type]


def make_plan(
    directory: Path | str = "/nowhere",
    *,
    graph: Graph | None = None,
    num_samples: int = 1000,
    global_batch_size: int = 100,
    accumulation: int = 1,
    num_steps: int = 30,
    mode: str = "single",
    num_ranks: int = 1,
    objective: ObjectivePlan | None = None,
    **training: Any,
) -> Plan:
    """A classifier of made numbers, plain SGD in float32 unless `training` says otherwise."""
    graph = graph or mlp()
    fields = (
        FieldSpec("x", {"type": "tensor", "columns": ["x"]}, TensorSpec((FEATURES,))),
        FieldSpec("y", {"type": "category", "column": "y"}, TensorSpec((), "int64", CLASSES)),
    )
    data = DataSpec({"type": "npy", "path": "none"}, fields, (SetSpec("training", num_samples),), seed=0)
    rows = global_batch_size // accumulation // num_ranks
    batch = BatchSpec(
        global_batch_size, num_ranks, accumulation, rows, 1, steps_per_epoch=-(-num_samples // global_batch_size)
    )
    term = TermPlan("cross_entropy", {"type": "cross_entropy"}, "logits", "y", None, 1.0)
    settings: dict[str, Any] = {
        "num_steps": num_steps,
        "num_epochs": None,
        "optimizer": {"type": "sgd", "lr": 0.1},
        "lr_schedule": {"type": "constant"},
        "num_warmup_steps": 0,
        "clip_grad_norm": None,
        "precision": "fp32",
        "compile": False,
        "activation_checkpointing": "none",
        "non_finite": "stop",
    }
    return Plan(
        version=1,
        dtrain_version="0.1.0",
        name="made",
        seed=0,
        files=(),
        overrides=(),
        plugins=(),
        data=data,
        batch=batch,
        batch_graph=Graph({}, (), {}),
        graph=graph,
        parameters=parameters_of(graph),
        objective=objective or ObjectivePlan((term,), ()),
        training=TrainingPlan(**(settings | training)),
        evaluation=None,
        checkpoint=None,
        logging=LoggingPlan(str(directory), 10),
        layout=layout(mode, num_ranks),
        fingerprint="made",
    )


def made_data(num_samples: int, seed: int = 0) -> dict[str, torch.Tensor]:
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, num_samples)
    centres = random.normal(size=(CLASSES, FEATURES))
    x = (centres[y] + random.normal(size=(num_samples, FEATURES))).astype(np.float32)
    return {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}


def made_batch(tensors: dict[str, torch.Tensor], rows: slice) -> Batch:
    taken = {name: tensor[rows] for name, tensor in tensors.items()}
    size = len(next(iter(taken.values())))
    return Batch(taken, size, None, np.arange(rows.start or 0, (rows.start or 0) + size))
