"""Answer before a run: whether a recipe or a published model fits, what to change, which layouts fit, what it costs.

Everything is read from plans, as `dtrain plan` makes them. A change is planned too, in the layout of the first plan.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.compiling import STDIN_NAME, compile_loaded, read_recipe
from declarative_train.app.api.errors import RECIPE_HAS_ERRORS, WRONG_USE, DtrainError
from declarative_train.app.api.overrides import overrides
from declarative_train.app.api.recipe import load
from declarative_train.app.api.tracer import LateTracer
from declarative_train.components.hardware import HARDWARE
from declarative_train.components.hardware.devices import GPUS
from declarative_train.components.hardware.hardware import Hardware
from declarative_train.components.hardware.power import WATTS
from declarative_train.core.amounts import amount
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.tools.fits.target import TASKS, TargetError, Task, target_of_folder

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.plan.predictions import CandidatePlan, EstimatePlan
    from declarative_train.recipe.load import Loaded

GPU, COUNT = "h100-sxm", 8  # for a published model
PER_NODE = 8
MOST_GPUS = 1 << 20
BUDGET = 1e9  # tokens, or samples of a model without tokens
NO_MODE_FITS = "P108"
AUTO = "auto"
NEXT_POLICIES = {"none": ("selective", "blocks"), "selective": ("blocks", "none"), "blocks": ("selective",)}
CHUNKS = 8
LEAST_LOSS = 0.05  # of the total, from which on a loss in chunks is tried
DAY_S = 86400.0

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Change:
    """Plan with one change. `settings` are those of `--set`, or options of `dtrain fits`. Seconds None: unknown."""

    settings: str
    memory_bytes: int
    step_s: float | None
    fits: bool


@dataclass(frozen=True)
class Fits:
    """Answer. `through`: what computes a published model; `units`: tokens (or samples) of a step, with their word;
    `changes` by what they save; `budget`: of the units."""

    target: str
    plan: Plan
    usable_bytes: int
    through: str
    notes: tuple[str, ...]
    changes: tuple[Change, ...]
    layouts: tuple[CandidatePlan, ...]
    hardware: Hardware
    budget: float
    price: float | None

    @cached_property
    def memory_bytes(self) -> int:
        return peak_bytes(self.plan)

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.usable_bytes

    @property
    def estimate(self) -> EstimatePlan:
        assert self.plan.estimate is not None
        return self.plan.estimate

    @property
    def num_gpus(self) -> int:
        return self.plan.layout.num_devices

    @cached_property
    def length(self) -> int | None:
        """Tokens of a sample; None for a model without tokens."""
        return tokens_of(self.plan)

    @property
    def unit(self) -> str:
        return "sample" if self.length is None else "token"

    @property
    def per_second(self) -> float | None:
        """Tokens or samples per second of all GPUs."""
        step_s = self.estimate.step_s
        return None if step_s is None else self.plan.batch.global_batch_size * (self.length or 1) / step_s

    @property
    def hours(self) -> float | None:
        """Hours for the budget."""
        return None if self.per_second is None else self.budget / self.per_second / 3600

    @property
    def energy_kwh(self) -> float | None:
        """Energy of the GPUs at their full power."""
        watts = WATTS.get(self.hardware.name)
        return None if self.hours is None or watts is None else watts * self.num_gpus * self.hours / 1000

    @property
    def cost(self) -> float | None:
        return None if self.hours is None or self.price is None else self.price * self.num_gpus * self.hours

    @property
    def text(self) -> str:
        """Text of `dtrain fits`."""
        from declarative_train.tools.fits.text import describe

        return describe(self)

    def as_data(self) -> dict[str, Any]:
        """Return the object of `dtrain fits --json`."""
        from declarative_train.tools.fits.data import as_data

        return as_data(self)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"<Fits {self.target}: {verdict}, {amount(self.memory_bytes, 'B')} on each {self.hardware.name}>"


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
    """Return whether a target fits on GPUs, what to change, the layouts that fit, and time, energy and money for a
    budget.

    `target`: a recipe, or the folder of a published model (or its hub id in the cache), of which config.json is enough.
    `gpu`: a name of `dtrain list hardware`, or its beginning; `count`: their number; `batch`: samples of a step on all
    GPUs. For a published model: `task` is full (the default), lora, qlora or pretrain, `length` the tokens of a sample.
    `budget`: tokens, or samples of a model without tokens. `price`: of an hour of one GPU. `set`: values of the recipe,
    as for `load`. Raises DtrainError.
    """
    written = os.fspath(target)
    hardware = None if gpu is None else find_gpu(gpu)
    _check_number("count", count, MOST_GPUS)
    _check_number("batch", batch, None)
    _check_number("length", length, None)
    settings = dict(set or {})
    if os.path.isfile(written):
        if task is not None or length is not None:
            raise DtrainError("a recipe has its own task and lengths; --task and --length are for a published model",
                              exit_code=WRONG_USE)  # fmt: skip
        source = _source_of_recipe(written, hardware, count, batch, settings)
    else:
        named = hardware or HARDWARE[GPU]
        source = _source_of_folder(written, task or "full", named, count or COUNT, length, batch, settings)
    return _answer(source, budget, price)


def find_gpu(name: str) -> Hardware:
    """Return the GPU of this name, or the first whose name begins so or has these parts: `h100`, `h100-80`, `a100-40`.
    Raises DtrainError."""
    known = {each: item for each, item in HARDWARE.items() if item.memory_bytes is not None}
    word = name.lower().replace("_", "-").replace(" ", "-")
    if word in known:
        return known[word]
    family, *rest = word.split("-")
    for each in GPUS:
        first, *parts = each.name.split("-")
        gib = f"{(each.memory_bytes or 0) >> 30}"
        if first == family and all(part in parts or part.removesuffix("gb") == gib for part in rest):
            return each
    raise DtrainError(f"there is no GPU `{name}` in the table of `dtrain list hardware`; help: "
                      f"{did_you_mean(word, known, most=40)}", exit_code=WRONG_USE)  # fmt: skip


def _check_number(word: str, number: int | None, most: int | None) -> None:
    if number is not None and (number < 1 or (most is not None and number > most)):
        limit = "at least 1" if most is None else f"between 1 and {most:,}"
        raise DtrainError(f"--{word} is {number:,}, and must be {limit}", exit_code=WRONG_USE)


def layout_of(count: int) -> Settings:
    """Return the section `layout` for a number of GPUs, in nodes of 8. Raises DtrainError."""
    if count <= PER_NODE:
        return {"gpus": count}
    if count % PER_NODE:
        below = count // PER_NODE * PER_NODE
        raise DtrainError(f"{count:,} GPUs do not fill nodes of {PER_NODE}; help: --count {below} or "
                          f"{below + PER_NODE}", exit_code=WRONG_USE)  # fmt: skip
    return {"nodes": count // PER_NODE, "gpus_per_node": PER_NODE}


@dataclass(frozen=True, slots=True)
class _Source:
    """Recipe to plan: a file, or the text made for a published model, with settings over it."""

    path: str
    settings: Settings
    text: str | None = None
    through: str = ""
    notes: tuple[str, ...] = ()
    smaller: Callable[[], _Source] | None = None
    """Makes the same with a frozen base in 4 bits and adapters; None if it has them, or for a recipe."""
    tracer: LateTracer = field(default_factory=LateTracer)

    def plan(self, settings: Settings) -> Plan:
        """Compile the recipe with further settings. Raises DtrainError."""
        values = self.settings | settings
        compiled = compile_loaded(self._read(values), self.tracer)
        if compiled.plan is not None:
            return compiled.plan
        if self.text is None:
            return load(self.path, set=values).plan().plan  # raises the error of a recipe
        # without the lines of a recipe that the user has not written
        first = next(each for each in compiled.diagnostics if each.is_error)
        hint = f"; help: {first.help}" if first.help else ""
        message = f"{self.path} cannot be planned: {first.message}{hint}"
        raise DtrainError(message, exit_code=RECIPE_HAS_ERRORS, diagnostics=compiled.diagnostics)

    def _read(self, values: Settings) -> Loaded:
        texts = None if self.text is None else {STDIN_NAME: self.text}
        return read_recipe(self.path if self.text is None else STDIN_NAME, overrides(values, ()), texts=texts)

    @property
    def sharded(self) -> str:
        """Mode that shards everything over all GPUs."""
        recipe = self._read(self.settings).recipe
        return "fsdp" if recipe is not None and recipe.layout.num_gpus > 1 else "single"

    def on(self, count: int) -> Settings:
        """Return the settings for a number of GPUs, over those that the recipe has."""
        recipe = self._read(self.settings).recipe
        before = () if recipe is None else recipe.layout.model_fields_set & {"gpus", "nodes", "gpus_per_node"}
        return {f"layout.{key}": value for key, value in (dict.fromkeys(before) | layout_of(count)).items()}


def _source_of_recipe(
    path: str, hardware: Hardware | None, count: int | None, batch: int | None, settings: Settings
) -> _Source:
    values: Settings = {} if batch is None else {"training.global_batch_size": batch}
    if hardware is not None:
        values["layout.hardware"] = hardware.name
    source = _Source(path, values | settings)
    return source if count is None else replace(source, settings=source.on(count) | source.settings)


def _source_of_folder(
    folder: str, task: str, hardware: Hardware, count: int, length: int | None, batch: int | None, settings: Settings
) -> _Source:
    if task not in TASKS:
        raise DtrainError(f"there is no task `{task}`; help: {did_you_mean(task, TASKS)}", exit_code=WRONG_USE)
    layout = layout_of(count) | {"hardware": hardware.name}
    precision = "bf16" if "bf16" in hardware.peak_flops else "fp16"
    size = batch or count
    try:
        made = target_of_folder(folder, task=task, batch=size, length=length, precision=precision, layout=layout)
    except TargetError as problem:
        hint = f"; help: {problem.hint}" if problem.hint else ""
        raise DtrainError(f"{problem}{hint}", exit_code=WRONG_USE) from None
    smaller = partial(_source_of_folder, folder, "qlora", hardware, count, length, batch, settings)
    return _Source(folder, settings, made.text, made.through, made.notes, None if task == "qlora" else smaller)


def _answer(source: _Source, budget: float, price: float | None) -> Fits:
    plan = _first_plan(source)
    if plan.estimate is None or plan.estimate.device_memory_bytes is None:
        raise DtrainError("the recipe names no GPU to plan for; help: --gpu h100-sxm, or another of `dtrain list "
                          "hardware`", exit_code=WRONG_USE)  # fmt: skip
    usable = usable_bytes(plan)
    works: dict[str, Callable[[], Any]] = {}
    does_fit = peak_bytes(plan) <= usable
    for words, settings in _changes_of(plan, source, does_fit):
        works[words] = partial(_try_change, source, {"parallelism": mode_of(plan)} | settings)
    if not does_fit and source.smaller is not None:
        works["--task qlora"] = partial(_try_smaller, source.smaller)
    if plan.choice is None and plan.layout.num_devices > 1 and _may_fit(plan):
        works[AUTO] = partial(_layouts, source)
    found = dict(zip(works, _at_once(list(works.values())), strict=True))
    layouts = found.pop(AUTO, None) or ()
    if plan.choice is not None:
        layouts = plan.choice.candidates
    changes = [
        Change(words, tried[0], tried[1], tried[0] <= usable) for words, tried in found.items() if tried is not None
    ]
    return Fits(
        target=source.path,
        plan=plan,
        usable_bytes=usable,
        through=source.through,
        notes=source.notes,
        changes=tuple(_in_order(changes, plan, does_fit)),
        layouts=tuple(sorted((each for each in layouts if _does_fit(each)), key=lambda each: each.step_s or 0.0)),
        hardware=HARDWARE[plan.estimate.hardware],
        budget=budget,
        price=price,
    )


def _first_plan(source: _Source) -> Plan:
    """Return the plan of a recipe as it is written. For a published model, and for a recipe with `parallelism: auto`,
    return that of the layout which `auto` chooses; if nothing fits, the sharded one."""
    try:
        plan = source.plan({} if source.text is None else {"parallelism": source.sharded})
    except DtrainError as error:
        if [each.code for each in error.diagnostics if each.is_error] != [NO_MODE_FITS]:
            raise
        return source.plan({"parallelism": source.sharded})
    if source.text is None or not _may_fit(plan):
        return plan
    try:
        return source.plan({})
    except DtrainError:
        return plan


def usable_bytes(plan: Plan) -> int:
    """Return the memory of a device that `auto` plans with. The plan has an estimate for a GPU."""
    from declarative_train.planner.auto.target import RESERVE

    assert plan.estimate is not None
    assert plan.estimate.device_memory_bytes is not None
    return int(plan.estimate.device_memory_bytes * (1 - RESERVE))


def _may_fit(plan: Plan) -> bool:
    """Return whether another layout than a sharded one may fit, given the error of estimates."""
    from declarative_train.planner.auto.choose import TOO_HIGH

    return peak_bytes(plan) <= TOO_HIGH * usable_bytes(plan)


def peak_bytes(plan: Plan) -> int:
    """Return the memory of a step on the device that needs the most."""
    return max(each.of_step for each in plan.memory)


def mode_of(plan: Plan) -> str | Settings:
    """Return the value of `parallelism` that gives a plan's layout."""
    layout = plan.layout
    data = {axis.name: axis.size for axis in layout.mesh if axis.name in ("replicate", "shard")}
    if layout.pipeline is None:
        return layout.mode if len(data) < 2 else {"data": data}
    pipeline = layout.pipeline
    stages = {"stages": pipeline.num_stages, "schedule": pipeline.schedule, "microbatches": pipeline.num_microbatches}
    return {"pipeline": stages} | ({"data": data} if data else {})


def tokens_of(plan: Plan) -> int | None:
    """Return the tokens of a sample: the length of the first sequence of ids that the model reads."""
    specs = plan.graph.inputs.values()
    return next((spec.shape[0] for spec in specs if spec.num_values is not None and len(spec.shape) == 1), None)


def _changes_of(plan: Plan, source: _Source, does_fit: bool) -> Iterator[tuple[str, Settings]]:
    """Yield changes to try, in words, that leave the training as it is."""
    training, batch, count = plan.training, plan.batch, plan.layout.num_devices
    for policy in NEXT_POLICIES[training.recomputation.policy]:
        yield f"activation_checkpointing: {policy}", {"training.activation_checkpointing": policy}
    memory = max(plan.memory, key=lambda each: each.of_step)
    terms = plan.objective.terms
    if len(terms) == 1 and memory.loss > LEAST_LOSS * memory.of_step and "chunks" in terms[0].component:
        yield f"loss in {CHUNKS} chunks (objective.loss.chunks)", {"objective.loss.chunks": CHUNKS}
    if batch.microbatch_size > 1 and plan.layout.pipeline is None:
        steps = 2 * batch.accumulation
        yield f"gradient_accumulation_steps: {steps}", {"training.gradient_accumulation_steps": steps}
    if training.precision == "fp32":
        yield "precision: bf16", {"training.precision": "bf16"}
    other = count // 2 if does_fit else count * 2
    if other > 1 and (other <= PER_NODE or other % PER_NODE == 0):
        rows = batch.global_batch_size
        if rows % other == 0:
            yield f"--count {other}", source.on(other)
        elif not does_fit:
            yield f"--count {other} --batch {2 * rows}", source.on(other) | {"training.global_batch_size": 2 * rows}


def _try_change(source: _Source, settings: Settings) -> tuple[int, float | None] | None:
    """Return memory and seconds of a changed plan; None for one that is not possible."""
    try:
        plan = source.plan(settings)
    except DtrainError:
        return None
    return peak_bytes(plan), None if plan.estimate is None else plan.estimate.step_s


def _try_smaller(make: Callable[[], _Source]) -> tuple[int, float | None] | None:
    try:
        plan = _first_plan(make())
    except DtrainError:
        return None
    return peak_bytes(plan), None if plan.estimate is None else plan.estimate.step_s


def _layouts(source: _Source) -> tuple[CandidatePlan, ...]:
    try:
        choice = source.plan({"parallelism": AUTO}).choice
    except DtrainError:
        return ()
    return () if choice is None else choice.candidates


def _does_fit(each: CandidatePlan) -> bool:
    return each.memory_bytes is not None and not each.verdict.startswith("does not fit")


def _in_order(changes: list[Change], plan: Plan, does_fit: bool) -> list[Change]:
    """Return the changes: if the plan fits, those that make it faster and still fit come first, then those that save
    the most memory; otherwise only memory counts."""
    step_s = 0.0 if plan.estimate is None else plan.estimate.step_s or 0.0

    def key(each: Change) -> tuple[bool, float, int]:
        gains_s = max(0.0, step_s - (each.step_s or step_s)) if does_fit and each.fits else 0.0
        return not each.fits, -gains_s, each.memory_bytes

    return sorted(changes, key=key)


def _at_once(works: list[Callable[[], Any]]) -> list[Any]:
    """Return the results of functions that run in processes of their own; in this one if that fails."""
    import torch

    from declarative_train.planner.footprint.child import ChildError, in_children

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a process with a thread pool must not fork
    try:
        return in_children(works)
    except ChildError:
        return [work() for work in works]
    finally:
        torch.set_num_threads(threads)
