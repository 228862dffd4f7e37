"""Equal blocks are compiled once, and every one of them is compiled, however many there are."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
import torch

from declarative_train.components.losses.modules.classes import OverClasses
from declarative_train.components.losses.modules.elementwise import CrossEntropyFunction
from declarative_train.engine.step.compiled import compile_losses
from tests.started import finish, start

CODE = """
import json, sys
from functools import partialmethod
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from tests.engine.made_recipes import DEEP, compiled, merged, write_data
from tests.engine.parity import record_plan

torch.nn.Module.compile = partialmethod(torch.nn.Module.compile, backend="eager")
folder, checkpointing, blocks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
write_data(folder)
deep = merged(DEEP, {"model": {"graph": {"layers": {"type": "block", "repeat": blocks}}}})
if sys.argv[4] == "other widths":  # no two blocks are equal
    names = [f"part_{number}" for number in range(blocks)]
    deep["model"] = {
        "blocks": {"block": {**DEEP["model"]["blocks"]["block"], "params": {"width": 16}}},
        "graph": {"hidden": deep["model"]["graph"]["hidden"]}
        | {name: {"type": "block", "width": 16 + number} for number, name in enumerate(names)}
        | {"logits": deep["model"]["graph"]["logits"]},
    }
    block = deep["model"]["blocks"]["block"]
    block["graph"] = {"norm": {"type": "layer_norm"}, "up": {"type": "linear", "out_features": "{{ params.width }}"},
                      "out": {"type": "linear", "out_features": 16}}
plain = compiled(folder, deep)
plan = compiled(folder, merged(deep, {"training": {"compile": True, "activation_checkpointing": checkpointing}}))
one, other = (record_plan(each, num_steps=3) for each in (plain, plan))
print(json.dumps({
    "frames": counters["frames"]["ok"], "left_out": counters["frames"]["total"] - counters["frames"]["ok"],
    "limits": sum(count for reason, count in counters["unimplemented"].items() if "limit" in reason),
    "difference": max(abs(a - b) for a, b in zip(one.losses, other.losses)),
}))
"""


LONG = pytest.mark.long


@pytest.mark.parametrize(
    "checkpointing", [pytest.param("none", marks=LONG), "blocks", pytest.param("selective", marks=LONG)]
)
def test_equal_blocks_are_compiled_once(tmp_path: Path, checkpointing: str) -> None:
    found = counted(tmp_path, checkpointing, 9)
    assert 1 <= found["frames"] <= 5  # a block, what is before the first and behind the last
    assert found["left_out"] == found["limits"] == 0
    assert found["difference"] < 1e-10


@LONG
@pytest.mark.parametrize("checkpointing", ["none", "blocks"])
def test_many_kinds_of_blocks_are_all_compiled(tmp_path: Path, checkpointing: str) -> None:
    """Torch gives a function up after eight programs for it, unless it is told that more are to come."""
    found = counted(tmp_path, checkpointing, 12, "other widths")
    assert found["frames"] >= 12
    assert found["left_out"] == found["limits"] == 0


def counted(folder: Path, checkpointing: str, blocks: int, widths: str = "one width") -> dict[str, float]:
    """In a process of its own, as the compiler keeps what it made."""
    words = (str(folder), checkpointing, str(blocks), widths)
    code, out, errors = finish(start("tests.code", CODE, *words), 100)
    assert code == 0, errors
    result: dict[str, float] = json.loads(out.splitlines()[-1])
    return result


@pytest.mark.parametrize(("capability", "fewer"), [((9, 0), True), ((7, 5), False)])
def test_what_is_compiled_for_a_gpu_is_one_program_where_heads_share_keys(
    capability: tuple[int, int], fewer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether torch has a kernel that takes fewer keys is no question for the compiler: it would cut the layer."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from declarative_train.components.layers.modules.attention import Heads, attend
    from declarative_train.engine.step.compiled import compile_units

    code = []

    def backend(module: torch.fx.GraphModule, inputs: object) -> object:
        code.append(module.code)
        return module.forward

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    heads = Heads(4, 2, 8)
    compile_units(torch.nn.Identity(), [])
    torch._dynamo.reset()
    with FakeTensorMode():
        q, k = (torch.empty(2, number, 16, 8, dtype=torch.bfloat16, device="cuda") for number in (4, 2))
        call = torch.compile(lambda q, k: attend(q, k, k, None, True, 0.0, heads), backend=backend, fullgraph=True)
        assert call(q, k).shape == q.shape
    assert len(code) == 1
    assert ("enable_gqa = True" in code[0]) is fewer
    assert ("repeat_interleave" in code[0]) is not fewer


TUNED = """
import json, sys
from functools import partialmethod
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from tests.engine.made_recipes import DEEP, compiled, merged, write_data
from tests.engine.parity import record_plan

folder, backend, storage = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
if backend != "inductor":
    torch.nn.Module.compile = partialmethod(torch.nn.Module.compile, backend=backend)
write_data(folder)
adapter = json.loads(sys.argv[4])
parameters = {"up": {"adapter": adapter}, "lora_B": {"init": {"type": "normal", "std": 0.3}}}
parameters["logits"] = {"frozen": False}
if storage != "float32":
    parameters["up"]["storage"] = storage
tuned = merged(DEEP, {"model": {"parameters": parameters}})
plain = compiled(folder, tuned)
plan = compiled(folder, merged(tuned, {"training": {"compile": True, "activation_checkpointing": "blocks"}}))
one, other = (record_plan(each, num_steps=3) for each in (plain, plan))
assert set(one.gradients[0]) == set(other.gradients[0]) and any("lora_A" in name for name in one.gradients[0])
print(json.dumps({
    "frames": counters["frames"]["ok"], "left_out": counters["frames"]["total"] - counters["frames"]["ok"],
    "breaks": sum(counters["graph_break"].values()),
    "difference": max(abs(one.gradients[step][name] - other.gradients[step][name]).max()
                      for step in range(3) for name in one.gradients[step]).item(),
}))
"""


@pytest.mark.parametrize(
    ("backend", "storage"),
    [
        pytest.param("aot_eager", "nf4", marks=LONG),
        pytest.param("aot_eager", "float32", marks=LONG),
        pytest.param("inductor", "float32", marks=LONG),
        pytest.param("inductor", "nf4", marks=LONG),
        pytest.param("inductor", "int8", marks=LONG),
    ],
)
@pytest.mark.timeout(400)
def test_adapters_and_packed_weights_are_compiled(tmp_path: Path, backend: str, storage: str) -> None:
    """With the adapter and, packed, unpacked in the same program; nothing is left to the interpreter."""
    found = tuned(tmp_path, backend, storage, {"type": "lora", "rank": 3})
    assert 1 <= found["frames"] <= 5
    assert found["left_out"] == found["breaks"] == 0
    assert found["difference"] < 1e-6


def tuned(folder: Path, *words: object) -> dict[str, float]:
    given = [each if isinstance(each, str) else json.dumps(each) for each in words]
    command = [sys.executable, "-W", "ignore", "-c", TUNED, str(folder), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


@pytest.mark.parametrize("masked", [False, True])
def test_a_compiled_cross_entropy_is_the_same(masked: bool) -> None:
    """With ignored targets, full and shorter batches, and rows of padding."""
    made = partial(OverClasses, shape=(8, 50), axis=1, soft=False, ignore_index=-100, class_weights=None)
    plain = made(CrossEntropyFunction(0.0), masked=masked)
    compiled = deepcopy(plain)
    with mock.patch.object(torch, "compile", partial(torch.compile, backend="eager")):
        compile_losses([compiled])
    assert compiled.sum != plain.sum
    torch.manual_seed(0)
    for rows in (4, 4, 3, 1):
        scores = torch.randn(rows, 8, 50).to(torch.bfloat16)
        target = torch.randint(50, (rows, 8))
        target[0, :3] = -100
        mask = (torch.rand(rows, 8) > 0.5).float() if masked else None
        for weight in (None, torch.arange(rows).float()):
            found = []
            for module in (plain, compiled):
                given = scores.clone().requires_grad_()
                value = module.sum(given, target, mask, weight)
                value.backward()
                found.append((value.detach(), given.grad))
            (one, gradient), (other, same) = found
            torch.testing.assert_close(one, other)
            assert gradient is not None
            assert same is not None
            assert torch.equal(gradient, same)


def test_a_compiled_loss_leaves_others_as_they_are() -> None:
    """Such as one whose classes are divided over ranks, which communicates."""
    module = OverClasses(
        lambda *_, **__: torch.zeros(()), (8, 50), 1, soft=False, ignore_index=None, class_weights=None, masked=False
    )
    compile_losses([module, torch.nn.Identity()])
    assert "sum" not in vars(module)
