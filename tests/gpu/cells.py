"""What runs in a process of its own: `python -m tests.gpu.cells NAME FOLDER OPTIONS`, a JSON result last.

Every function takes the folder and the options, and runs on the device that DTRAIN_TEST_DEVICE names. The reference is
the CPU in double precision, before CUDA is touched.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from declarative_train import recipe as recipe_room
from declarative_train.app.api.tracer import LateTracer
from declarative_train.components.layers import LAYERS
from declarative_train.components.layers.modules.sequences import GruModule, LstmModule, RnnModule
from declarative_train.components.optimizers import OPTIMIZERS
from declarative_train.data.order import locate
from declarative_train.data.rank_batches import TrainingBatches
from declarative_train.data.tensor_sets import open_sets
from declarative_train.engine.engine import Engine, get_process_batch
from declarative_train.engine.step.precision import default_dtype
from declarative_train.engine.step.randomness import deterministic_kernels
from declarative_train.planner.compiler import compile as compile_plan
from declarative_train.run import rank as rank_module
from declarative_train.run.launch import run
from tests.alone import of_core
from tests.engine.made_recipes import WAYS, compiled, merged, write_recipe
from tests.engine.parity import Recording, largest_difference, record_plan
from tests.engine.runs import go, last_tensors
from tests.gpu.device import kind
from tests.gpu.recipes import MODELS, write_all
from tests.gpu.run_cell import MARK
from tests.gpu.shared_device import shared_device

DEVICE = "cpu" if kind() == "cpu" else "cuda:0"
LAYOUT = {"layout": {"device": kind()}}
OPTIMIZER_SETTINGS: dict[str, dict[str, Any]] = {
    "adam": {"amsgrad": True},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "sgd": {"momentum": 0.9, "nesterov": True},
}


def recipe(model: str, *changes: dict[str, Any]) -> dict[str, Any]:
    found = MODELS[model]
    for change in changes:
        found = merged(found, change)
    return found


def recorded(
    folder: Path, model: str, *changes: dict[str, Any], device: str = DEVICE, spawns: bool = DEVICE != "cpu"
) -> Recording:
    plan = compiled(folder, recipe(model, *changes, {"layout": {"device": "auto"}}))
    with deterministic_kernels(plan.training.deterministic), shared_device():
        return record_plan(plan, device=device, spawns=spawns)


def precision(name: str) -> dict[str, Any]:
    return {"training": {"precision": name}}


def environment(folder: Path) -> dict[str, Any]:
    from declarative_train.app.main import main
    from declarative_train.components.hardware import hardware_of_device

    code = main(["doctor"])
    name = torch.cuda.get_device_name(0) if DEVICE != "cpu" else "cpu"
    known = DEVICE == "cpu" or hardware_of_device(name) is not None
    return {"doctor": code, "name": name, "is_known": known, "torch": torch.__version__}


def parity(folder: Path, model: str, precisions: list[str], training: dict[str, Any]) -> dict[str, Any]:
    """One process: the largest difference from double precision on the CPU, by precision. Without dropout."""
    more = {"training": training}
    reference = recorded(folder, model, more, precision("fp64"), device="cpu")
    return {name: difference(reference, recorded(folder, model, more, precision(name)), name) for name in precisions}


def difference(reference: Recording, found: Recording, name: str) -> float:
    """In double precision that of the parity tests; below, relative to the gradient as a whole: single elements of
    half precision may be noise altogether."""
    assert found.sample_ids == reference.sample_ids
    if name == "fp64":
        return largest_difference(reference, found)
    largest = 0.0
    for wanted, given in zip(reference.gradients[:1], found.gradients[:1], strict=True):
        apart = sum(float(((given[key] - item) ** 2).sum()) for key, item in wanted.items())
        size = sum(float((item**2).sum()) for item in wanted.values())
        largest = max(largest, (apart / size) ** 0.5)
    return largest


def ways(folder: Path, names: list[str], precision_name: str, spawns: bool = DEVICE != "cpu") -> dict[str, Any]:
    """Ranks that share the device, next to one process on the CPU. That has made a backward: see `on_ranks`."""
    reference = recorded(folder, "mlp", precision("fp64"), device="cpu")
    found = {}
    for name in names:
        made = recorded(folder, "mlp", WAYS[name], precision(precision_name), spawns=spawns)
        found[name] = difference(reference, made, precision_name)
    return found


def compiled_units(folder: Path, model: str, precision_name: str, again: str) -> dict[str, Any]:
    training = {"precision": precision_name, "activation_checkpointing": again}
    eager = recorded(folder, model, {"training": training})
    made = recorded(folder, model, {"training": {**training, "compile": True}})
    from torch._dynamo.utils import counters

    breaks = sum(counters["graph_break"].values())
    return {
        "difference": difference(eager, made, precision_name if precision_name == "fp64" else "whole"),
        "breaks": breaks,
    }


def components(folder: Path) -> dict[str, Any]:
    """Every layer in evaluation, output and gradient, in double precision: those that differ."""
    from tests.components.test_layers_all import CASES, OWN, arguments, outputs, started

    apart = {}
    for name in OWN:  # models of libraries have tests of their own
        fields, inputs = CASES[name][0]
        layer = LAYERS[name](**fields)
        found = []
        for device in ("cpu", DEVICE):
            module = started(layer, inputs).double().eval().to(device)
            for part in module.modules():
                if isinstance(part, torch.nn.RNNBase):
                    part.train()  # cuDNN has no backward in evaluation
            given = []
            for tensor in arguments(layer, inputs, 4):
                if tensor is not None and tensor.is_floating_point():
                    given.append(tensor.detach().double().to(device).requires_grad_())
                else:
                    given.append(None if tensor is None else tensor.to(device))
            made = outputs(module(*given))
            total = sum((item.double() ** 2).sum() for item in made if item.is_floating_point())
            if isinstance(total, torch.Tensor) and total.requires_grad:
                total.backward()
            tensors = [*module.parameters(), *(item for item in given if item is not None)]
            graded = [item.grad for item in tensors if item.grad is not None]
            found.append([item.detach().double().cpu() for item in (*made, *graded)])
        pairs = zip(*found, strict=True)
        worst = max((float((a - b).abs().max() / (1 + a.abs().max())) for a, b in pairs if a.numel()), default=0.0)
        if not worst <= 1e-10:
            apart[name] = worst
    return {"apart": apart, "number": len(OWN)}


NORMS = {"model": {"parameters": {"layers.*.norm.weight": {"optimizer": {"type": "adamw", "lr": 0.01}}}}}


def optimizers(folder: Path) -> dict[str, Any]:
    """Three steps of each in double precision, next to the CPU: the parameters afterwards."""
    found = {}
    for name in of_core(OPTIMIZERS):
        settings = {"type": name, "lr": 0.01, **OPTIMIZER_SETTINGS.get(name, {})}
        biases = {"model": {"parameters": {"bias": {"optimizer": {"type": "adamw", "lr": 0.01}}}}}
        changes: list[dict[str, Any]] = [{"training": {"optimizer": settings, "precision": "fp64"}}]
        changes += [
            biases,
            {"model": {"parameters": {"layers.*.norm.weight": {"optimizer": {"type": "adamw", "lr": 0.01}}}}},
        ][: 2 if name == "muon" else 0]
        one, other = (recorded(folder, "mlp", *changes, device=device) for device in ("cpu", DEVICE))
        found[name] = max(
            float(abs(one.parameters[key] - item).max()) for key, item in other.parameters.items() if item.size
        )
    return found


def engine_steps(folder: Path, *changes: dict[str, Any], model: str = "mlp") -> Iterator[Callable[[], Any]]:
    """An engine's steps over its own batches, each to be called."""
    plan = compiled(folder, recipe(model, *changes, {"layout": {"device": "auto"}}))
    with default_dtype(plan):
        engine = Engine(plan, torch.device(DEVICE))
        training = TrainingBatches(
            plan.data,
            get_process_batch(plan),
            engine.dp_rank,
            open_sets(plan.data),
            device=engine.device,
            hold_on_device=True,
        )
        num_samples = plan.data.set("training").num_samples
        for step, batches in enumerate(training.iterate(1, 6), 1):
            num_rows = locate(step, plan.batch, num_samples).size
            yield lambda step=step, batches=batches, num_rows=num_rows: engine.step(
                step, batches, num_rows=num_rows, lr_factor=0.5, measure=True
            )


@contextmanager
def no_waiting() -> Iterator[None]:
    """A host that waits for the GPU is an error here."""
    if DEVICE == "cpu":
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def no_synchronisation(folder: Path) -> dict[str, Any]:
    """Steps 3 to 6 of each optimizer, precision and model, the first two being warm-up: which waited."""
    waited: dict[str, list[str]] = {}
    plain: dict[str, dict[str, Any]] = {
        f"optimizer {name}": {
            "training": {
                "optimizer": {"type": name, "lr": 0.01, **OPTIMIZER_SETTINGS.get(name, {})},
                "clip_grad_norm": 1.0,
            }
        }
        for name in of_core(OPTIMIZERS)
        if name not in ("muon", "adafactor")  # torch's Adafactor reads norms on the host
    }
    plain |= {f"precision {name}": precision(name) for name in ("fp32", "bf16", "fp64")}
    plain["fused and guarded"] = {
        "training": {"precision": "fp16", "optimizer": {"type": "adamw", "lr": 0.01}, "clip_grad_norm": 1.0}
    }
    plain["again"] = {"training": {"activation_checkpointing": "all"}}
    cases = {name: ("mlp", change) for name, change in plain.items()} | {f"model {name}": (name, {}) for name in MODELS}
    for name, (model, change) in cases.items():
        said = _waits(folder, model, change)
        if said:
            waited[name] = said
    return {"waited": waited, "number": len(cases)}


def _waits(folder: Path, model: str, change: dict[str, Any]) -> list[str]:
    said = []
    for number, step in enumerate(engine_steps(folder, change, model=model), 1):
        if number <= 2:
            step()
            continue
        try:
            with no_waiting():
                step()
        except RuntimeError as error:
            if "synchronizing CUDA operation" not in str(error):
                raise
            said.append(f"step {number}: {error}")
            break
    return said


def draws(folder: Path) -> dict[str, Any]:
    """Dropout: the same seed gives the same bits twice, another seed others; half of what p says is gone."""
    dropout = {"model": {"graph": {"drop": {"type": "dropout", "p": 0.5, "input": "layers"}, "logits": None}}}
    graph = {"model": {"graph": {"logits": {"type": "linear", "out_features": 10, "input": "drop"}}}}
    fixed = {"training": {"deterministic": True}}
    one, two = (recorded(folder, "mlp", dropout, graph, fixed) for _ in range(2))
    other = recorded(folder, "mlp", dropout, graph, fixed, {"seed": 5})
    same = one.losses == two.losses and all(
        (one.parameters[name] == item).all() for name, item in two.parameters.items()
    )
    torch.manual_seed(0)
    kept = float((torch.nn.functional.dropout(torch.ones(1 << 20, device=DEVICE), 0.5) > 0).float().mean())
    return {"same": bool(same), "others": one.losses != other.losses, "kept": kept}


def recurrent_layers(folder: Path) -> dict[str, Any]:
    """In bf16, as a run computes: the dtype of each output, and how far it is from float64."""
    torch.manual_seed(0)
    x = torch.randn(4, 9, 8, dtype=torch.float64)
    found = {}
    for layer in (LstmModule, GruModule, RnnModule):
        module = layer(8, 16, batch_first=True).double()
        wanted = module(x)[0]
        module = module.to(DEVICE, torch.bfloat16)
        with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
            output = module(x.to(DEVICE, torch.bfloat16))[0]
        found[layer.__name__] = str(output.dtype), float((output.double().cpu() - wanted).abs().max())
    return found


def resumes(folder: Path, model: str, training: dict[str, Any]) -> dict[str, Any]:
    """By the command's own way: a run to the end, and one that goes on from its middle. The largest difference."""
    saving = {"checkpoint": {"every": "3 steps", "keep": 9}, **LAYOUT}
    whole = recipe(model, saving, {"training": {"deterministic": True, "epochs": 2, **training}})
    straight = go(folder, whole)
    first = go(folder, whole, max_steps=4)
    second = go(folder, whole, resume=str(first.run_dir))
    one, other = last_tensors(straight.run_dir), last_tensors(second.run_dir)
    apart = [name for name, item in one.items() if not torch.equal(item, other[name])]
    return {"codes": [straight.code, first.code, second.code], "apart": apart, "number": len(one)}


def crosses(folder: Path) -> dict[str, Any]:
    """A run that begins on the CPU goes on here, and back: next to one that stays on the CPU."""
    saving = {"checkpoint": {"every": "3 steps", "keep": 9}, "training": {"epochs": 2}}
    on = {device: recipe("mlp", saving, {"layout": {"device": device}}) for device in ("cpu", kind())}
    straight = go(folder, on["cpu"])
    done = go(folder, on["cpu"], max_steps=3)
    done = go(folder, on[kind()], resume=str(done.run_dir), max_steps=3)
    done = go(folder, on["cpu"], resume=str(done.run_dir))
    one, other = last_tensors(straight.run_dir), last_tensors(done.run_dir)
    pairs = [(item, other[name]) for name, item in one.items() if item.is_floating_point()]
    return {"apart": max(float((a - b).abs().max()) for a, b in pairs), "code": done.code}


def command(folder: Path, changes: list[dict[str, Any]], model: str) -> dict[str, Any]:
    """`dtrain run` of a recipe: the exit code and what it says."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    said = StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        code = run(compiled(folder, recipe(model, LAYOUT, *changes)))
    return {"code": code, "said": said.getvalue()[-3000:]}


def memory(folder: Path, model: str, training: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The most that three steps held, and what the plan said of them. On the CPU nothing is measured."""
    change = {"model": {"graph": {"logits": MODELS[model]["model"]["graph"]["logits"] | sizes}}}
    return memory_of(compiled_path(folder, recipe(model, change, {"training": training, "evaluation": None})))


def compiled_path(folder: Path, found: dict[str, Any]) -> Path:
    return write_recipe(folder, merged(found, {"layout": ESTIMATED}))


def memory_of(path: Path) -> dict[str, Any]:
    """With the memory traced, as `dtrain plan` has it."""
    loaded = recipe_room.load(str(path))
    assert loaded.recipe is not None, loaded.diagnostics
    plan, diagnostics = compile_plan(loaded.recipe, tracer=LateTracer(), traces_all=True)
    assert plan is not None, diagnostics
    (row,) = plan.memory
    if DEVICE != "cpu":
        torch.cuda.reset_peak_memory_stats()
    record_plan(plan, num_steps=3, device=DEVICE)
    measured = torch.cuda.max_memory_allocated() if DEVICE != "cpu" else None
    return {"predicted": row.total - row.held, "measured": measured, "is_traced": row.is_traced}


ESTIMATED = {"device": "auto", "hardware": "h100-sxm"}


def pinned(folder: Path, workers: int) -> dict[str, Any]:
    """Batches come on the device with the values of the set, through pinned memory where they are copied one by one."""
    from unittest import mock

    plan = compiled(folder, recipe("images", {"data": {"workers": workers}} if workers else {}))
    sets = open_sets(plan.data)
    pins = 0
    pin = torch.Tensor.pin_memory

    def counted(tensor: torch.Tensor, *more: Any) -> torch.Tensor:
        nonlocal pins
        pins += 1
        return pin(tensor, *more)

    wrong = 0
    with mock.patch.object(torch.Tensor, "pin_memory", counted):
        for held in (True, False):
            batches = TrainingBatches(
                plan.data, get_process_batch(plan), 0, sets, device=torch.device(DEVICE), hold_on_device=held
            )
            for step in batches.iterate(1, 4):
                for batch in step:
                    wanted = sets["training"].gather(batch.sample_ids)
                    for name, tensor in batch.tensors.items():
                        is_there = tensor.device.type == torch.device(DEVICE).type
                        wrong += not (is_there and torch.equal(tensor.cpu(), wanted[name]))
    return {"pins": pins, "wrong": wrong}


def unhurt_by_a_lost_first_step(folder: Path, training: dict[str, Any]) -> dict[str, Any]:
    """A first step whose gradient is infinite is left out: the weights stay finite, and move afterwards."""
    from unittest import mock

    from declarative_train.engine.step.update import Update

    update = Update.__call__
    spoilt = []

    def spoil(self: Update, lr_factor: float, measure: bool) -> Any:
        if not spoilt:
            spoilt.append(True)
            self._optimizers.gradients()[0].view(-1)[0] = torch.inf
        return update(self, lr_factor, measure)

    with mock.patch.object(Update, "__call__", spoil):
        done = go(
            folder,
            recipe("mlp", LAYOUT, {"training": {"epochs": 1, **training}, "checkpoint": {"every": "1 epoch"}}),
        )
    tensors = last_tensors(done.run_dir)
    largest = max(float(item.abs().max()) for name, item in tensors.items() if name.startswith("model/"))
    return {"code": done.code, "largest": largest}


def main() -> None:
    name, folder, options = sys.argv[1:4]
    warnings.simplefilter("ignore")
    assert rank_module.__name__
    torch.backends.cudnn.allow_tf32 = False  # torch's default for convolutions in float32, less exact than the bounds
    write_all(Path(folder))
    cell = globals().get(name) or getattr(import_module("tests.gpu.feature_cells"), name)
    found = cell(Path(folder), **json.loads(options))
    print(MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
