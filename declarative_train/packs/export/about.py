"""Description of the inputs and outputs of an exported model (`preprocessing.json`), for people and programs.

An entry of `inputs` lists the columns from which the input is made, the preparation that the user must do
(`before_the_model`), and the preparation that the model does (`in_the_model`). An entry of `outputs` says what its
numbers mean.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from typing import Any

import torch

from declarative_train.components.data import Preparation
from declarative_train.components.fields import FIELDS
from declarative_train.components.plugin_components import PLUGIN
from declarative_train.core.secrets import masked
from declarative_train.data.lazy_fields import TransformChain
from declarative_train.files.open_files import format_path
from declarative_train.inference.trained import Trained
from declarative_train.packs.export.program import Program, ProgramInput, ProgramOutput
from declarative_train.plan.output_semantics import Meaning

FORMAT = 1


def about(trained: Trained, program: Program, to: str, file: str) -> dict[str, Any]:
    window = trained.plan.data.window
    return {
        "format": FORMAT,
        "name": trained.plan.name,
        "run": masked(trained.name),
        "step": trained.step,
        "dtrain_version": trained.plan.dtrain_version,
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "model": file,
        "to": to,
        "dtype": program.precision,
        "numbers": program.kind,
        "metrics": {name: value for name, value in trained.values.items() if math.isfinite(value)},
        **({} if window is None else {"window_rows": window.length}),
        "inputs": [_input(entry, program) | _picture(entry, trained) for entry in program.inputs],
        "outputs": [_output(answer, program) for answer in program.outputs],
    }


def _input(entry: ProgramInput, program: Program) -> dict[str, Any]:
    spec, field = entry.spec, FIELDS.read(entry.spec.component)
    before, inside = _steps(entry, program)
    return {
        "name": entry.name,
        "dtype": _name(entry.dtype),
        "shape": ["batch", *entry.shape],
        "columns": list(spec.columns),
        "is_one_column": spec.component.get("columns") is None,
        "rows_of_window": spec.component.get("rows"),
        "before_the_model": before,
        "in_the_model": inside,
        **_encoding_of(spec.statistics, spec.component),
        **{
            key: list(value) if isinstance(value, tuple) else value
            for key, value in field.preparation(spec.statistics)._asdict().items()
            if value is not None
        },
    }


def _picture(entry: ProgramInput, trained: Trained) -> dict[str, Any]:
    """Return a description of how the user of an exported model must prepare an image, mask or boxes. Return {} for any
    other input."""
    field = FIELDS.read(entry.spec.component)
    if not field.is_lazy:
        return {}
    chain = TransformChain.of(trained.plan.data)
    keys = {key: value for key, value in field.as_data().items() if key not in ("type", "column", "folder")}
    if field.takes_lists:
        return {"before_the_model": ["boxes are moved with their picture, as `picture` says"], "picture": keys}
    if "mode" not in keys:
        return {"before_the_model": ["a mask becomes class numbers, as `picture` says"], "picture": keys}
    size = "" if keys["size"] is None else f" and resized to `picture.size` ({keys['method']})"
    before = [f"a picture is decoded, turned as its EXIF says, brought to mode {keys['mode']}{size}"]
    done = [each.as_data() for each in chain.transforms if each.acts(False) and each.changes(entry.name)]
    if done:
        before.append("`transforms` are applied in order; `normalize` is on float32 numbers from 0 to 1")
    before.append("its numbers are float32, 0 to 1 unless normalised, channels first")
    return {"before_the_model": before, "picture": keys, "transforms": done}


def _encoding_of(statistics: Mapping[str, Any], component: Mapping[str, object]) -> dict[str, Any]:
    """Return how the numbers of a date or category field encode its values, such as the vocabulary; {} for other
    fields. `statistics`: the field's statistics. `component`: the field's type and keys."""
    if component.get("type") == "date":
        return {
            "date": {key: value for key, value in component.items() if key not in ("type", "column", "columns")}
            | dict(statistics)
        }
    if component.get("type") != "category":
        return {}
    found = {"vocabularies": statistics.get("vocabulary"), "unknown": component.get("unknown")}
    return {key: value for key, value in found.items() if value is not None}


def _steps(entry: ProgramInput, program: Program) -> tuple[list[str], list[str]]:
    """Return two lists of sentences about the preparation of an input: the steps before the exported model, which the
    user must do, and the steps in the exported model."""
    component, statistics = entry.spec.component, entry.spec.statistics
    preparation = FIELDS.read(component).preparation(statistics)
    steps = []
    if preparation.fill is not None:
        steps.append("missing values are replaced by `fill`")
    if preparation.scale is not None:
        steps.append("values are multiplied by `scale`")
    if preparation.subtract is not None:
        steps.append("`subtract` is subtracted, and the result is divided by `divide`, element by element")
    inside = steps if entry.preparation != Preparation() else []
    before = [] if inside else steps
    if PLUGIN in component:
        before.append(
            f"the field `{component['type']}` of the plugin {format_path(str(component[PLUGIN]))} converts the columns"
        )
    if component.get("type") == "category":
        if "vocabulary" in statistics:
            before.append("each value becomes its position in the vocabulary of its column")
        if component.get("unknown") is not None:
            before.append("a missing or unknown value becomes `unknown`, whose number the vocabulary skips")
    elif component.get("type") == "date":
        before.append("each date becomes the numbers of its parts, as `date` says")
    elif inside and preparation.fill is not None:
        before.append("missing values are nan")
    return before, inside


def _output(answer: ProgramOutput, program: Program) -> dict[str, Any]:
    return {
        "name": answer.name,
        "dtype": _name(answer.dtype),
        "shape": ["batch", *answer.shape],
        "is_random": answer.name in program.drawn,
        "means": [_meaning(one, answer) for one in answer.meanings],
    }


def _meaning(one: Meaning, answer: ProgramOutput) -> dict[str, Any]:
    found: dict[str, Any] = {"loss": one.term, "kind": one.kind, "about": one.name, "says": _says(one, answer)}
    if one.columns:
        found["columns"] = list(one.columns)
    if one.classes:
        found["classes"] = list(one.classes)
    if one.kind == "class":
        found["class_axis"] = one.class_axis + 1
    if one.unit is not None and answer.unit is None:
        found["unit"] = {"multiply": list(one.unit.multiply), "add": list(one.unit.add)}
    return found


def _says(one: Meaning, answer: ProgramOutput) -> str:
    if one.kind == "class":
        return (
            f"a score for each class of {one.name} along dimension {one.class_axis + 1}: the largest is the answer, "
            "softmax turns them into probabilities; `classes` are their names in order"
        )
    if one.kind == "yes_no":
        return f"a score for {one.name}: above 0 is yes, sigmoid turns it into a probability"
    if answer.unit is not None:
        return f"{one.name}, in the unit of its column"
    what = f"the logarithm of {one.name}" if one.kind == "count" else one.name
    return what if one.unit is None else f"{what}, normalised: times `unit.multiply` plus `unit.add` is in its own unit"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
