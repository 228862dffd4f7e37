"""Frozen weights held as bytes: what is left of them, and products and look-ups that are those of what is left."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from declarative_train.components.layers.modules import packed as room
from declarative_train.components.layers.modules.embedding import EmbeddingModule
from declarative_train.components.layers.modules.packed import LEVELS, Packed, find_packed, hold, pack, unpack
from declarative_train.components.storages import BLOCK, StorageName, row_bytes, storage_bytes

STORAGES: tuple[StorageName, ...] = ("bf16", "int8", "nf4")
STEPS = {"bf16": 2**-8, "int8": 1 / 254 + 2**-8, "nf4": (0.6961928 - 1) / -2 + 2**-8}  # of the largest of a block


def rounded(values: torch.Tensor, storage: StorageName) -> torch.Tensor:
    return Packed(storage, values.shape[1], values.device).round_trip(values)


def test_the_levels_are_the_quantiles_of_the_paper() -> None:
    """Appendix E: 8 levels above zero and 7 below, at equal shares of a normal distribution, the outermost at 1."""
    normal = torch.distributions.Normal(0.0, 1.0)
    icdf: Any = normal.icdf
    offset = (1 - 1 / 32 + 1 - 1 / 30) / 2
    above = icdf(torch.linspace(offset, 0.5, 9, dtype=torch.float64))[:-1]
    below = -icdf(torch.linspace(offset, 0.5, 8, dtype=torch.float64))[:-1]
    wanted = torch.cat([above, below, torch.zeros(1)]).sort().values / above.max()
    assert torch.tensor(LEVELS) == pytest.approx(wanted, abs=2e-4)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("columns", [48, 64, 200])
def test_what_is_left_is_near_and_stays_what_it_is(storage: StorageName, columns: int) -> None:
    values = torch.randn(24, columns, generator=torch.Generator().manual_seed(1))
    values[3] = 0
    values[4, 5] = 40.0
    held = pack(values, storage)
    assert held.shape == (24, row_bytes(storage, columns))
    assert held.nbytes == storage_bytes(storage, (24, columns))
    left = rounded(values, storage)
    for row in range(24):
        for first in range(0, columns, BLOCK):
            place = row, slice(first, first + BLOCK)
            assert (values[place] - left[place]).abs().max() <= STEPS[storage] * values[place].abs().max()
    assert torch.equal(rounded(left, storage), left)
    assert torch.equal(pack(left, storage), held)
    assert torch.equal(pack(values[7:9], storage), held[7:9])  # a row stands for itself


@pytest.mark.parametrize("storage", STORAGES)
def test_large_weights_are_done_in_parts(storage: StorageName, monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(37, 70)
    whole, left = pack(values, storage), rounded(values, storage)
    monkeypatch.setattr(room, "AT_ONCE", 700)
    assert torch.equal(pack(values, storage), whole)
    assert torch.equal(rounded(values, storage), left)


def test_numbers_that_are_none_stay_none() -> None:
    for storage in STORAGES:
        values = torch.randn(2, 64)
        values[0, 3] = math.nan
        assert rounded(values, storage)[0, 3].isnan()
        assert rounded(values, storage)[1].isfinite().all()


def made(storage: StorageName, module: torch.nn.Module, weight: torch.Tensor) -> torch.nn.Sequential:
    root = torch.nn.Sequential(module)
    hold([root], {"0.weight": storage})
    for part in find_packed(root).values():
        part.reset_buffers()
    root.get_parameter("0.weight").copy_(pack(weight, storage))
    return root


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_is_that_of_what_is_left(storage: StorageName, dtype: torch.dtype) -> None:
    weight = torch.randn(10, 70)
    layer = torch.nn.Linear(70, 10)
    module = made(storage, layer, weight)
    plain = torch.nn.Linear(70, 10)
    plain.load_state_dict({"weight": rounded(weight, storage), "bias": layer.bias})
    plain.weight.requires_grad_(False)
    module, plain = module.to(dtype), plain.to(dtype)
    x, y = (torch.randn(3, 5, 70).to(dtype).requires_grad_() for _ in range(2))
    with torch.no_grad():
        y.copy_(x)
    ours, theirs = module(x), plain(y)
    assert torch.equal(ours, theirs)
    ours.square().sum().backward()
    theirs.square().sum().backward()
    close = 1e-2 if dtype == torch.bfloat16 else 1e-6
    for a, b in ((x.grad, y.grad), (layer.bias.grad, plain.bias.grad)):
        assert a is not None
        assert b is not None
        assert (a - b).abs().max() <= close * b.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(module(x), plain(x))


def test_a_product_keeps_nothing_but_what_is_held() -> None:
    module = made("nf4", torch.nn.Linear(64, 64), torch.randn(64, 64))
    kept: list[torch.Tensor] = []

    def keep(item: torch.Tensor) -> torch.Tensor:
        kept.append(item)
        return item

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda item: item):
        module(torch.randn(2, 64, requires_grad=True))
    assert kept
    assert not any(item.is_floating_point() for item in kept)


def test_a_product_can_be_derived_twice() -> None:
    module = made("int8", torch.nn.Linear(70, 4), torch.randn(4, 70)).double()
    x = torch.randn(2, 70, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(module, x)
    assert torch.autograd.gradgradcheck(lambda item: module(item).square(), x)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_table_gives_the_rows_of_what_is_left(storage: StorageName) -> None:
    weight = torch.randn(12, 70)
    module = made(storage, EmbeddingModule(12, 70, None), weight)
    ids = torch.tensor([[1, 11, 1], [0, 3, 5]], dtype=torch.uint8)
    assert torch.equal(module(ids), rounded(weight, storage)[ids.long()])


def test_unpacking_is_rounded_once() -> None:
    values = torch.randn(4, 64)
    item = Packed("nf4", 64, values.device)
    item.reset_buffers()
    held = pack(values, "nf4")
    once = unpack(held, item.tables, "nf4", 64, torch.bfloat16)
    assert torch.equal(once, unpack(held, item.tables, "nf4", 64, torch.float32).to(torch.bfloat16))
