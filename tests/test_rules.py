"""The manual page of every rule: its bad example fires that rule inside the example, its good one is silent.

An example is laid over `tests/cases/base.yaml` by `extends`, unless its first line says otherwise:
`# whole file`; `# file: NAME` (one or more files, the first is the recipe); `# bytes: ...` (with escapes);
`# options: --set ...`; `# no file`. What lies around a recipe (data, plugins) is written by `write_surroundings`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest

import declarative_train
from declarative_train.app.catalogue import catalogue
from declarative_train.core import machine
from declarative_train.core.diagnostics.rules import Rule, find_tables
from declarative_train.plan.checkpoint_files import CHECKPOINTS, FORMAT, MANIFEST, PLAN, seal
from declarative_train.recipe import load
from tests.linted import CASES, Found, codes, found_in, write

RULES = catalogue()
LAYER = "from torch import nn\nclass {name}(nn.Module):\n    def forward(self, x{more}): return x\n"
START = "    def __init__(self):\n        super().__init__()\n        self.made = {}\n"
PLUGINS = {
    "broken.py": "def broken(:\n",
    "empty.py": "x = 3\n",
    "my_data.py": "from declarative_train.plugins import Field, Source\n"
    "class Digits(Source):\n"
    "    columns = {'pixels': {'dtype': 'float32', 'shape': (64,)}, 'label': 'int64'}\n"
    "    def __len__(self): return 9\n"
    "    def read(self, rows): return {}\n"
    "class Torn(Digits):\n"
    "    def read(self, rows): raise OSError('no')\n"
    "class Wide(Field):\n"
    "    shape = (9,)\n"
    "    def decode(self, value): return [float(value)]\n"
    "class One(Wide):\n"
    "    shape = (1,)\n",
    "my_layers.py": LAYER.format(name="MyLayer", more=""),
    "in_place.py": LAYER.format(name="Doubled", more="").replace("x\n", "x.mul_(2)\n"),
    "mixes.py": LAYER.format(name="CentredInBatch", more="").replace("x\n", "x - x.mean(0)\n"),
    "my_optimizer.py": "from torch.optim import Optimizer\nclass MyOptimizer(Optimizer):\n"
    "    def __init__(self, params, lr: float): super().__init__(params, {'lr': lr})\n"
    "    def step(self, closure=None): ...\n",
    "plain_tensor.py": "import torch\n"
    + LAYER.format(name="Centred", more="").replace("    def", START.format("torch.zeros(64)") + "    def"),
    "raises.py": LAYER.format(name="Raises", more="") + "raise OSError('no')\n",
    "scalar.py": "import torch\n"
    + LAYER.format(name="ScaledByOne", more="").replace(
        "    def", START.format("nn.Parameter(torch.tensor(1.0))") + "    def"
    ),
    "vague.py": LAYER.format(name="Vague", more=", scale=1.0"),
}
OPTIONS = {code: ["--plugins"] for code in ("D050", "D052", "R135", "R136", "R137", "R138", "X005")}  # as a run does
BASES = {  # where the base of digits does not fit
    **dict.fromkeys(("D006", "D012", "D013"), "any_shape.yaml"),
    **dict.fromkeys(("D007", "D009", "D014", "D018", "D024", "D030", "O010"), "people.yaml"),
    **dict.fromkeys(("D035", "D036", "D037", "D038", "O017", "O018"), "people.yaml"),
    **dict.fromkeys(("R148", "R149", "R150", "R151", "R152"), "people.yaml"),
    **dict.fromkeys(("D040", "D041", "D042", "D043", "D044"), "pictures.yaml"),
    **dict.fromkeys(
        (
            "D026",
            "D027",
            "D028",
            "D029",
            "G025",
            "O107",
            "P115",
            "R140",
            "R142",
            "R143",
            "R144",
            "R145",
            "R146",
            "R147",
        ),
        "dialogues.yaml",
    ),
    "D017": "text.yaml",
    "G028": "text.yaml",
    "R161": "pictures.yaml",
    "D022": "days.yaml",
    "D023": "days.yaml",
    "D025": "chats.yaml",
}
BASES_OF_BAD = {"D017": "people.yaml"}
IN_THE_BASE = {"G008", "W009"}  # told at the node of the base that no longer fits; what made it so is related
_HEADER = (
    b'{"weight":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]},'
    b'"bias":{"dtype":"F32","shape":[64],"data_offsets":[16384,16640]}}'
)
RUNS: dict[str, list[dict[str, object]] | None] = {  # the fields that their checkpoints hold; None: no plan
    "bare": None,
    "earlier": [{"name": "pixels", "component": {"type": "tensor", "columns": "p*", "scale": 0.0625}}],
    "earlier_people": [
        {
            "name": "city",
            "component": {"type": "category", "column": "city"},
            "statistics": {"vocabulary": [["arlington", "london"]]},
            "columns": ["city"],
        }
    ],
}
WEIGHTS = len(_HEADER).to_bytes(8, "little") + _HEADER + bytes(16640)  # of `hidden` in the base


def tiny_bert() -> dict[str, str | bytes]:
    """A published encoder of one layer, of zeros: its config, and its tensors."""
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "max_position_embeddings": 6}
    shapes: dict[str, tuple[int, ...]] = {"word_embeddings": (9, 8), "position_embeddings": (6, 8)}
    shapes = {f"embeddings.{name}.weight": shape for name, shape in shapes.items()}
    shapes |= {"embeddings.token_type_embeddings.weight": (2, 8), "embeddings.LayerNorm.weight": (8,)}
    shapes["embeddings.LayerNorm.bias"] = (8,)
    inside = [f"attention.self.{name}" for name in ("query", "key", "value")]
    for name in (*inside, "attention.output.dense", "intermediate.dense", "output.dense"):
        shapes |= {f"encoder.layer.0.{name}.weight": (8, 8), f"encoder.layer.0.{name}.bias": (8,)}
    for name in ("attention.output.LayerNorm", "output.LayerNorm"):
        shapes |= {f"encoder.layer.0.{name}.weight": (8,), f"encoder.layer.0.{name}.bias": (8,)}
    shapes |= {"pooler.dense.weight": (8, 8), "pooler.dense.bias": (8,)}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    config = json.dumps({"model_type": "bert", "architectures": ["BertModel"], **sizes})
    return {
        "tiny_bert/config.json": config,
        "tiny_bert/model.safetensors": len(head).to_bytes(8, "little") + head + bytes(end),
    }


def write_surroundings(folder: Path) -> None:
    shutil.copytree(CASES / "data", folder / "data")
    bases = {path.name: path.read_bytes() for path in CASES.glob("*.yaml")}
    write(folder, {**bases, **PLUGINS, "hidden.safetensors": WEIGHTS, **tiny_bert()})
    shutil.copy(CASES.parent.parent / "LICENSE", folder)
    for name, fields in RUNS.items():
        write_run(folder / name / CHECKPOINTS / "step_00000040", fields)


def write_run(checkpoint: Path, fields: list[dict[str, object]] | None) -> None:
    """A checkpoint with a plan and without tensors: all that a linter looks at."""
    checkpoint.mkdir(parents=True)
    files = {}
    if fields is not None:
        tensor = {"shape": [], "dtype": "float32"}
        plan = json.dumps({"data": {"fields": [{"tensor": tensor, **field} for field in fields]}}).encode()
        (checkpoint / PLAN).write_bytes(plan)
        files[PLAN] = {"size_bytes": len(plan), "sha256": hashlib.sha256(plan).hexdigest()}
    manifest = {"format": FORMAT, "step": 40, "files": files}
    (checkpoint / MANIFEST).write_bytes(seal(manifest))


def write_example(example: str, folder: Path, base: str) -> tuple[str, list[str]]:
    """The path of the recipe, and the options that it is linted with."""
    head = example.partition("\n")[0]
    if head.startswith("# file:"):
        parts = re.split(r"^# file: (.*)\n", example, flags=re.MULTILINE)
        write(folder, dict(zip(parts[1::2], parts[2::2], strict=True)))
        return parts[1], []
    if head == "# no file":
        return "nowhere.yaml", []
    if head.startswith("# options: "):
        return "base.yaml", shlex.split(head.removeprefix("# options: "))
    content: bytes = f"extends: {base}\n{example}".encode()
    if head.startswith("# bytes: "):
        data = head.removeprefix("# bytes: ").encode("latin-1", errors="backslashreplace")
        content = data.decode("unicode_escape").encode("latin-1")
    elif head == "# whole file":
        content = example.encode()
    write(folder, {"recipe.yaml": content})
    return "recipe.yaml", []


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def run(rule: Rule, example: str, bases: dict[str, str]) -> tuple[list[Found], Path]:
        write_surroundings(tmp_path)
        if rule.code == "O031":
            monkeypatch.setattr(machine, "find_spec", lambda _: None)
        if rule.code == "P023":
            monkeypatch.setattr(machine, "NEEDED_TORCH", "999.0")
        monkeypatch.chdir(tmp_path)
        path, options = write_example(example, tmp_path, bases.get(rule.code, "base.yaml"))
        if not Path(path).is_file():  # the command says it as wrong use; a plan, a run or an editor as a diagnostic
            return [{"code": diagnostic.code} for diagnostic in load(path).diagnostics], tmp_path
        return found_in(path, *options, *OPTIONS.get(rule.code, [])), tmp_path

    return run


def test_every_file_is_in_the_table_of_its_room_and_named_as_its_page() -> None:
    for folder, table in find_tables(Path(declarative_train.__file__).parent).items():
        assert list(table) == sorted(table)
        assert {place.partition(".")[0] for place in table.values()} == {path.stem for path in folder.glob("[a-z]*.py")}
        for code, place in table.items():
            assert RULES[code].name.replace("-", "_") == place.rpartition(".")[2]
            assert f'"{code}"' in Path(RULES[code].path).read_text("utf-8")


@pytest.mark.parametrize("code", RULES)
def test_the_bad_example_fires_inside_its_text(code: str, check) -> None:  # type: ignore[no-untyped-def]
    found, folder = check(RULES[code], RULES[code].bad, BASES | BASES_OF_BAD)
    fired = [diagnostic for diagnostic in found if diagnostic["code"] == code]
    assert fired, f"found instead: {found}"
    if code == "Y023":
        return  # there is no text that a place could be in
    own = [diagnostic for diagnostic in fired if not is_base(str(diagnostic["path"]))]
    assert own or code in IN_THE_BASE, f"only in the base: {fired}"
    for diagnostic in fired:
        assert lies_in_the_text(diagnostic, folder), diagnostic


def is_base(path: str) -> bool:
    return (CASES / path).is_file()


def lies_in_the_text(diagnostic: Found, folder: Path) -> bool:
    path = str(diagnostic["path"])
    if path.startswith("--"):
        return True  # a word of the command line
    lines = (folder / path).read_bytes().decode("utf-8", "replace").split("\n")
    first, last = int(str(diagnostic["line"])), int(str(diagnostic["end_line"]))
    if not 1 <= first <= last <= len(lines):
        return False
    column, end = int(str(diagnostic["column"])), int(str(diagnostic["end_column"]))
    return 1 <= column <= len(lines[first - 1]) + 1 and 1 <= end <= len(lines[last - 1]) + 1


@pytest.mark.parametrize("code", RULES)
def test_the_good_example_is_silent(code: str, check) -> None:  # type: ignore[no-untyped-def]
    found, _ = check(RULES[code], RULES[code].good, BASES)
    assert code not in codes(found)
    assert not [diagnostic for diagnostic in found if diagnostic["severity"] == "error"]
