"""Equal blocks are compiled once, and every one of them is compiled, however many there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
from functools import partialmethod
from pathlib import Path
import torch
from torch._dynamo.utils import counters
from tests.runtime.made_recipes import DEEP, compiled, merged, write_data
from tests.runtime.parity import record_plan

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
    found = counted(tmp_path, checkpointing, 12)
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
    command = [sys.executable, "-W", "ignore", "-c", CODE, str(folder), checkpointing, str(blocks), widths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result
