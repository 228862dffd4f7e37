"""Texts of `load.py` and `README.md` in an exported folder. The code of `load.py` runs unchanged; where possible, it
does not need dtrain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COLUMNS = 8  # the README names at most so many columns of an input

_ROWS = '''
def rows_of(columns):
    """Return the inputs of the model from the columns of a table, as `preprocessing.json` describes."""
    made = {}
    for entry in about["inputs"]:
        parts = [part(entry, at, np.asarray(columns[name])) for at, name in enumerate(entry["columns"])]
        values = parts[0] if entry["is_one_column"] else np.stack(parts, axis=1)
        values = values.reshape(len(values), *entry["shape"][1:])
        if not entry["in_the_model"]:
            values = prepare(entry, values)
        made[entry["name"]] = values.astype(entry["dtype"])
    return made


def prepare(entry, values):
    """Return the values after the preparation that is not in the model."""
    numbers = {}
    for key in ("fill", "subtract", "divide"):
        if key in entry:
            numbers[key] = np.array(entry[key]).reshape(entry["shape"][1:] if len(entry[key]) > 1 else ())
    if "fill" in entry:
        values = np.where(np.isnan(values.astype("float64")), numbers["fill"], values)
    if "scale" in entry:
        values = values.astype("float64") * entry["scale"]
    if "subtract" in entry:
        values = (values.astype("float64") - numbers["subtract"]) / numbers["divide"]
    return values


def part(entry, at, values):
    vocabularies, unknown = entry.get("vocabularies"), entry.get("unknown")
    if vocabularies is None or vocabularies[at] is None:
        return values
    numbers = {}
    for number, word in enumerate(vocabularies[at]):
        numbers[word] = number + (unknown is not None and number >= unknown)
    if unknown is None:  # a value that is not in the training data raises KeyError
        return np.array([numbers[each] for each in values.tolist()])
    return np.array([numbers.get(each, unknown) for each in values.tolist()])
'''

_SHOWN = """
with np.load(folder / "sample.npz") as file:  # made-up rows, and the model's outputs for them at the export
    sample = dict(file)
answers = predict({entry["name"]: sample[f"input/{entry['name']}"] for entry in about["inputs"]})
for output in about["outputs"]:
    name = output["name"]
    print(name, answers[name].shape)
    if not output["is_random"]:
        expected = sample[f"output/{name}"]
        assert np.allclose(answers[name], expected, rtol=TOLERANCE, atol=TOLERANCE * max(1, np.abs(expected).max()))
    for meaning in output["means"]:
        print(" ", meaning["says"])
        if meaning["kind"] == "class":
            print(" ", np.array(meaning["classes"])[answers[name].argmax(axis=meaning["class_axis"])])
"""

_HEAD = '''"""{title}"""

import json
from pathlib import Path

import numpy as np
{imports}
folder = Path(__file__).parent
about = json.loads((folder / "preprocessing.json").read_text(encoding="utf-8"))
'''

_ONNX = '''session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


def predict(rows):
    """Arrays (rows, ...) by input -> arrays by output."""
    names = [output["name"] for output in about["outputs"]]
    return dict(zip(names, session.run(names, rows)))

'''

_PROGRAM = '''model = torch.export.load(folder / "model.pt2").module()


def predict(rows):
    """Arrays (rows, ...) by input -> arrays by output."""
    with torch.no_grad():
        found = model(*(torch.from_numpy(rows[entry["name"]]) for entry in about["inputs"]))
    names = [output["name"] for output in about["outputs"]]
    return {{name: tensor.{as_numpy} for name, tensor in zip(names, found)}}

'''

_TENSORS = '''"""Loads the tensors by name, and into the recipe's model."""

from pathlib import Path

{imports}
folder = Path(__file__).parent
tensors = {load}
for name, tensor in tensors.items():
    print(name, tuple(tensor.shape), tensor.dtype)

# The model itself, if declarative_train is installed; it takes prepared fields (preprocessing.json).
try:
    import declarative_train as dt
except ImportError:
    pass
else:
    model = dt.load_plan(folder / "plan.json").module()
    model.load_state_dict(tensors{strict})
    model.eval()
'''


_PEFT = '''"""Loads the base model of plan.json, from where the run had it, with these adapters, by PEFT."""

from pathlib import Path

import declarative_train as dt
from peft import PeftConfig, PeftModel

folder = Path(__file__).parent
base = dt.load_plan(folder / "plan.json").module()  # with the initial weights of the run: its seed and files
model = PeftModel.from_pretrained(base, folder).eval()
for name, tensor in model.named_parameters():
    if "lora_" in name:
        print(name, tuple(tensor.shape), tensor.dtype)
print(PeftConfig.from_pretrained(folder).target_modules)
'''


_PEFT_PUBLISHED = '''"""Loads the published base model with these adapters, by PEFT."""

from pathlib import Path

from peft import PeftConfig, PeftModel
from transformers import {auto}

folder = Path(__file__).parent
base = {auto}.from_pretrained(PeftConfig.from_pretrained(folder).base_model_name_or_path)
model = PeftModel.from_pretrained(base, folder).eval()
for name, tensor in model.named_parameters():
    if "lora_" in name:
        print(name, tuple(tensor.shape), tensor.dtype)
'''


def loading_code(to: str, dtype: str, *, is_table: bool, is_whole: bool, auto: str | None = None) -> str:
    """Return the code of `load.py`, the example script in an exported folder. `to`: the format. `dtype`: precision of
    the exported model, on which the script's tolerance depends. `is_table`: whether the inputs are columns of numbers
    and words. `is_whole`: whether the file has every tensor of the model. `auto`: the class of transformers that loads
    the base model of the adapters; None if the base is not a published model."""
    if to == "peft":
        return _PEFT if auto is None else _PEFT_PUBLISHED.format(auto=auto)
    if to in ("safetensors", "state-dict"):
        imports, load = {
            "safetensors": ("from safetensors.torch import load_file\n", 'load_file(folder / "model.safetensors")'),
            "state-dict": ("import torch\n", 'torch.load(folder / "model.pt", weights_only=True)'),
        }[to]
        return _TENSORS.format(imports=imports, load=load, strict="" if is_whole else ", strict=False")
    title = "Loads the model, and shows its outputs for a few made-up rows."
    tolerance = {"float32": "1e-5", "float64": "1e-5", "float16": "2e-2"}.get(dtype, "1e-1")
    imports = {"onnx": "import onnxruntime\n", "torch-export": "import torch\n"}[to]
    as_numpy = "float().numpy()" if dtype == "bfloat16" else "numpy()"
    body = _ONNX if to == "onnx" else _PROGRAM.format(as_numpy=as_numpy)
    head = _HEAD.format(title=title, imports=imports)
    return "".join([head, body, _ROWS if is_table else "", "\n", f"TOLERANCE = {tolerance}", _SHOWN])


def readme(found: Mapping[str, Any], code: str) -> str:
    lines = [f"# {found['name']}", "", f"The model of `{found['run']}`, as {found['to']} ({found['dtype']})."]
    if found["metrics"]:
        lines += ["", "| metric | value |", "|---|---|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in found["metrics"].items()]
    lines += ["", "## Inputs", "", _how(found), "", "| input | dtype | shape | columns | before | inside |"]
    lines += ["|---|---|---|---|---|---|", *map(_input_row, found["inputs"])]
    lines += ["", "## Outputs", "", "| output | dtype | shape | meaning |", "|---|---|---|---|"]
    lines += [_output_row(each) for each in found["outputs"]]
    lines += ["", "All numbers behind this (means, vocabularies, classes) are in `preprocessing.json`."]
    lines += ["", "## How to load it", "", "`python load.py`:", "", "```python", code.rstrip(), "```", ""]
    return "\n".join(lines)


def _how(found: Mapping[str, Any]) -> str:
    if found["to"] == "peft":
        return "The file holds only the adapters, named after the base model that they change: `load.py` loads both."
    if found["to"] in ("safetensors", "state-dict"):
        return "The file holds only the tensors of the trained part: preparation is done before the model."
    if found["numbers"] == "raw":
        return (
            "Numbers as in your columns: the model itself does what the run did to them (missing values, scale, "
            "normalisation). Words must be converted to class numbers before. Any number of rows at once."
        )
    return "Fields prepared as in training: all preparation is done before the model. Any number of rows."


def _input_row(entry: Mapping[str, Any]) -> str:
    more = f", ... ({len(entry['columns'])})" if len(entry["columns"]) > _COLUMNS else ""
    columns = ", ".join(entry["columns"][:_COLUMNS]) + more
    shape = ", ".join(map(str, entry["shape"]))
    before, inside = "; ".join(entry["before_the_model"]) or "-", "; ".join(entry["in_the_model"]) or "-"
    return f"| `{entry['name']}` | {entry['dtype']} | ({shape}) | {columns} | {before} | {inside} |"


def _output_row(entry: Mapping[str, Any]) -> str:
    shape = ", ".join(map(str, entry["shape"]))
    says = "; ".join(each["says"] for each in entry["means"]) or "what the node computes"
    if entry["is_random"]:
        says += "; random in each call"
    return f"| `{entry['name']}` | {entry['dtype']} | ({shape}) | {says} |"
