"""What `takes_shards` promises: parameters split by `fully_shard` over two real ranks move as whole ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from declarative_train.components.optimizers import OPTIMIZERS
from tests.alone import of_core
from tests.engine.on_ranks import forked

OPTIONS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9},
    "rmsprop": {"momentum": 0.9, "centered": True},
    "adam": {"amsgrad": True},
}


def trained(name: str, mesh: DeviceMesh | None) -> list[Tensor]:
    """The parameters after five steps, split over the mesh on the way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 7), nn.LayerNorm(7), nn.Linear(7, 4)).double()
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    fields = {"type": name, "lr": 0.01, "weight_decay": 0.1, **OPTIONS.get(name, {})}
    parameters = [p for p in model.parameters() if name != "muon" or p.ndim == 2]
    made = OPTIMIZERS[name].model_validate(fields).build([{"params": parameters}])
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        model(torch.randn(5, 8, generator=generator, dtype=torch.float64)).square().sum().backward()
        made.step()
        made.zero_grad()
    return [(p if mesh is None else p.full_tensor()).detach() for p in model.parameters()]


def differences(rank: int) -> dict[str, float]:
    mesh = init_device_mesh("cpu", (2,))
    found = {}
    for name in of_core(OPTIMIZERS):
        if OPTIMIZERS[name].takes_shards:
            pairs = zip(trained(name, mesh), trained(name, None), strict=True)
            found[name] = max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
    return found


def test_sharded_parameters_move_as_whole_ones() -> None:
    found = forked(2, differences)[0]
    muon = found.pop("muon")
    assert muon < 1e-2  # it computes in bfloat16, and sums in another order when sharded
    assert found == pytest.approx(dict.fromkeys(found, 0), abs=1e-12)
    assert set(found) == {"adagrad", "adam", "adamw", "lion", "rmsprop", "sgd"}
    assert [name for name in of_core(OPTIMIZERS) if not OPTIMIZERS[name].takes_shards] == ["adafactor"]
