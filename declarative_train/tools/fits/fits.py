"""Python API of `dtrain fits`: whether a recipe or a published model fits on GPUs, what can be changed, which layouts
fit, and what training costs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from declarative_train.app.api.errors import WRONG_USE, DtrainError
from declarative_train.components.hardware import HARDWARE
from declarative_train.tools.fits.answer import Fits
from declarative_train.tools.fits.changes import first_plan, try_others
from declarative_train.tools.fits.data import as_data
from declarative_train.tools.fits.source import (
    MOST_GPUS,
    Source,
    check_number,
    find_gpu,
    source_of_folder,
    source_of_recipe,
)
from declarative_train.tools.fits.target import Task
from declarative_train.tools.fits.text import describe

GPU, COUNT = "h100-sxm", 8  # defaults for a published model
BUDGET = 1e9  # tokens, or samples of a model without tokens


def fits(
    target: str | os.PathLike[str],
    *,
    task: Task | None = None,
    gpu: str | None = None,
    count: int | None = None,
    length: int | None = None,
    batch: int | None = None,
    budget: float = BUDGET,
    price: float | None = None,
    set: Mapping[str, object] | None = None,
) -> Fits:
    """Return whether a target fits on GPUs, useful changes, the layouts that fit, and the time, energy and cost of
    training.

    `target`: a recipe, or the folder of a published model (or its hub id in the cache), of which config.json is enough.
    `gpu`: a name of `dtrain list hardware` or of torch, or words of it, such as `a100-40`. `count`: number of GPUs.
    `batch`: samples of a step on all GPUs. For a published model: `task` is full (the default), lora, qlora or
    pretrain, and `length` is the number of tokens of a sample. `budget`: number of tokens to train on, or of samples if
    the model does not read tokens. `price`: of one GPU for an hour. `set`: values of the recipe, as for `load`. Raises
    DtrainError."""
    written = os.fspath(target)
    hardware = None if gpu is None else find_gpu(gpu)
    check_number("count", count, MOST_GPUS)
    check_number("batch", batch, None)
    check_number("length", length, None)
    settings = dict(set or {})
    if os.path.isfile(written):
        if task is not None or length is not None:
            raise DtrainError("a recipe has its own task and lengths; --task and --length are for a published model",
                              exit_code=WRONG_USE)  # fmt: skip
        source = source_of_recipe(written, hardware, count, batch, settings)
    else:
        named = hardware or HARDWARE[GPU]
        source = source_of_folder(written, task or "full", named, count or COUNT, length, batch, settings)
    return _answer(source, budget, price)


def _answer(source: Source, budget: float, price: float | None) -> Fits:
    plan = first_plan(source)
    if plan.estimate is None or plan.estimate.device_memory_bytes is None:
        raise DtrainError("the recipe names no GPU to plan for; help: --gpu h100-sxm, or another of `dtrain list "
                          "hardware`", exit_code=WRONG_USE)  # fmt: skip
    changes, layouts = try_others(source, plan)
    found = Fits(
        target=source.path,
        plan=plan,
        through=source.through,
        notes=source.notes,
        changes=tuple(changes),
        layouts=tuple(layouts),
        hardware=HARDWARE[plan.estimate.hardware],
        budget=budget,
        price=price,
    )
    return replace(found, text=describe(found), data=as_data(found))
