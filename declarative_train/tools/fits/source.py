"""Recipe to plan for a number of GPUs: a file of the user, or a text that was generated for a published model."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from declarative_train.app.api.compiling import STDIN_NAME, compile_loaded, read_recipe
from declarative_train.app.api.errors import RECIPE_HAS_ERRORS, WRONG_USE, DtrainError
from declarative_train.app.api.recipe import load, overrides
from declarative_train.app.api.tracer import LateTracer
from declarative_train.components.hardware import HARDWARE, hardware_of_device
from declarative_train.components.hardware.devices import GPUS
from declarative_train.components.hardware.hardware import Hardware
from declarative_train.core.diagnostics.suggest import did_you_mean
from declarative_train.tools.fits.target import TASKS, TargetError, target_of_folder

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.recipe.load import Loaded

PER_NODE = 8
MOST_GPUS = 1 << 20
BRANDS = {"nvidia", "geforce", "tesla", "amd", "instinct", "hbm2", "hbm3"}

Settings = dict[str, Any]


def find_gpu(name: str) -> Hardware:
    """Return the GPU that `name` means: its name in the table or in torch, or words of its name, such as `h100`,
    `a100-40`, `rtx4090` or `NVIDIA A100 40GB`. If the words fit several variants of one model, return the first one.
    Raises DtrainError if they fit no GPU, or several models."""
    exact = HARDWARE.get(name.lower()) or hardware_of_device(name)
    if exact is not None and exact.memory_bytes is not None:
        return exact
    words = set(re.findall(r"[^\W_]+", name.lower().replace("rtx", "rtx "))) - BRANDS
    found = [each for each in GPUS if words and words <= _words(each)]
    if len({_model(each) for each in found}) == 1:
        return found[0]
    known = [each.name for each in found] or [each.name for each in HARDWARE.values() if each.memory_bytes is not None]
    message = f"`{name}` is the name of several GPUs" if found else f"there is no GPU `{name}`"
    raise DtrainError(f"{message} in the table of `dtrain list hardware`; help: {did_you_mean(name, known, most=40)}",
                      exit_code=WRONG_USE)  # fmt: skip


def _words(gpu: Hardware) -> set[str]:
    gib = (gpu.memory_bytes or 0) >> 30
    return {*gpu.name.split("-"), f"{gib}", f"{gib}g", f"{gib}gb"}


def _model(gpu: Hardware) -> str:
    """Return the part of a GPU's name that names the model, such as `a100`. The rest of the name is the form of the
    board (sxm, pcie) or the memory size."""
    first, _, rest = gpu.name.partition("-")
    return rest if first == "rtx" else first


def check_number(word: str, number: int | None, most: int | None) -> None:
    if number is not None and (number < 1 or (most is not None and number > most)):
        limit = "at least 1" if most is None else f"between 1 and {most:,}"
        raise DtrainError(f"--{word} is {number:,}, and must be {limit}", exit_code=WRONG_USE)


def layout_of(count: int) -> Settings:
    """Return the section `layout` for `count` GPUs, on nodes of 8. Raises DtrainError if there are more than 8 GPUs and
    they do not fill whole nodes."""
    if count <= PER_NODE:
        return {"gpus": count}
    if count % PER_NODE:
        below = count // PER_NODE * PER_NODE
        raise DtrainError(f"{count:,} GPUs do not fill nodes of {PER_NODE}; help: --count {below} or "
                          f"{below + PER_NODE}", exit_code=WRONG_USE)  # fmt: skip
    return {"nodes": count // PER_NODE, "gpus_per_node": PER_NODE}


@dataclass(frozen=True, slots=True)
class Source:
    """Recipe that can be planned: the file at `path`, or a generated `text` for a published model. `settings`: values
    that replace those in the recipe. `through`: block or library that computes the published model. `notes`: sentences
    on the parts of the published model that the generated recipe leaves out."""

    path: str
    settings: Settings
    text: str | None = None
    through: str = ""
    notes: tuple[str, ...] = ()
    smaller: Callable[[], Source] | None = None
    """Function that returns the same recipe with frozen weights in 4 bits and adapters. None for a recipe of the user,
    or if the recipe has them already."""
    tracer: LateTracer = field(default_factory=LateTracer)

    def plan(self, settings: Settings) -> Plan:
        """Compile the recipe with additional settings. Raises DtrainError."""
        values = self.settings | settings
        compiled = compile_loaded(self._read(values), self.tracer)
        if compiled.plan is not None:
            return compiled.plan
        if self.text is None:
            return load(self.path, set=values).plan().plan  # raises the error of a recipe
        # the text was generated, so its lines are not shown
        first = next(each for each in compiled.diagnostics if each.is_error)
        hint = f"; help: {first.help}" if first.help else ""
        message = f"{self.path} cannot be planned: {first.message}{hint}"
        raise DtrainError(message, exit_code=RECIPE_HAS_ERRORS, diagnostics=compiled.diagnostics)

    def _read(self, values: Settings) -> Loaded:
        texts = None if self.text is None else {STDIN_NAME: self.text}
        return read_recipe(self.path if self.text is None else STDIN_NAME, overrides(values, ()), texts=texts)

    @property
    def sharded(self) -> Settings:
        """Value of `parallelism` that shards all parameters over all GPUs, or {} for one GPU."""
        recipe = self._read(self.settings).recipe
        return {"data": {"shard": "all"}} if recipe is not None and recipe.layout.num_gpus > 1 else {}

    def on(self, count: int) -> Settings:
        """Return the settings that run the recipe on `count` GPUs. They replace its numbers of GPUs and nodes."""
        recipe = self._read(self.settings).recipe
        before = () if recipe is None else recipe.layout.model_fields_set & {"gpus", "nodes", "gpus_per_node"}
        return {f"layout.{key}": value for key, value in (dict.fromkeys(before) | layout_of(count)).items()}


def source_of_recipe(
    path: str, hardware: Hardware | None, count: int | None, batch: int | None, settings: Settings
) -> Source:
    values: Settings = {} if batch is None else {"training.global_batch_size": batch}
    if hardware is not None:
        values["layout.hardware"] = hardware.name
    source = Source(path, values | settings)
    return source if count is None else replace(source, settings=source.on(count) | source.settings)


def source_of_folder(
    folder: str, task: str, hardware: Hardware, count: int, length: int | None, batch: int | None, settings: Settings
) -> Source:
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
    smaller = partial(source_of_folder, folder, "qlora", hardware, count, length, batch, settings)
    can_be_smaller = made.takes_adapters and task != "qlora"
    return Source(folder, settings, made.text, made.through, made.notes, smaller if can_be_smaller else None)
