"""What `takes_shards` promises: parameters split by `fully_shard` over two real ranks move as whole ones do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from declarative_train.components.optimizers import OPTIMIZERS

RANK = """
import json, os, sys, torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from declarative_train.components.optimizers import OPTIMIZERS

torch.set_num_threads(1)
rank, store = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
options = {"sgd": {"momentum": 0.9}, "rmsprop": {"momentum": 0.9, "centered": True}, "adam": {"amsgrad": True}}

def train(name, sharded):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 4)).double()
    if sharded:
        fully_shard(model, mesh=mesh)
    fields = {"type": name, "lr": 0.01, "weight_decay": 0.1, **options.get(name, {})}
    parameters = [p for p in model.parameters() if name != "muon" or p.ndim == 2]
    made = OPTIMIZERS[name].model_validate(fields).build([{"params": parameters}])
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        model(torch.randn(5, 8, generator=generator, dtype=torch.float64)).square().sum().backward()
        made.step()
        made.zero_grad()
    return [(p.full_tensor() if sharded else p).detach() for p in model.parameters()]

found = {}
for name in sorted(OPTIMIZERS):
    if OPTIMIZERS[name].takes_shards:
        pairs = list(zip(train(name, True), train(name, False)))
        found[name] = max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
if rank == 0:
    print(json.dumps(found))
distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""


def test_sharded_parameters_move_as_whole_ones(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    found = json.loads(outputs[0][0])
    muon = found.pop("muon")
    assert muon < 1e-2  # it computes in bfloat16, and sums in another order when sharded
    assert found == pytest.approx(dict.fromkeys(found, 0), abs=1e-12)
    assert set(found) == {"adagrad", "adam", "adamw", "lion", "rmsprop", "sgd"}
    assert [name for name in sorted(OPTIMIZERS) if not OPTIMIZERS[name].takes_shards] == ["adafactor"]
