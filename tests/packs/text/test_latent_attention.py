"""Latent attention: documents in one row, generation with kept keys, operations, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from declarative_train.components.component import ShapeError
from declarative_train.components.layers import LAYERS
from declarative_train.components.matrix_products import Use, Weight
from declarative_train.core.cuts import LayerCut
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.packs.text.modules.latent_attention import LatentAttentionModule

T, D = 7, 12
X = TensorSpec((T, D), "float64")
SIZES = {"heads": 4, "kv_rank": 5, "plain_width": 3, "rotary_width": 4, "value_width": 2}
RANKED = SIZES | {"query_rank": 6, "bias": True}


def make(fields: dict[str, Any], **inputs: TensorSpec) -> LatentAttentionModule:
    made = LAYERS["latent_attention"](**fields).build({"x": X, **inputs})
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    assert isinstance(made, LatentAttentionModule)
    return made


@pytest.mark.parametrize("fields", [SIZES, RANKED, RANKED | {"interleaved": False}])
def test_documents_in_one_row_do_not_see_each_other(fields: dict[str, Any]) -> None:
    segments, positions = torch.tensor([[0, 0, 0, 1, 1, 1, 1]]), torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    places = TensorSpec((T,), "int64", num_values=T)
    made, x = make(fields, segments=places, positions=places), torch.randn(1, T, D, dtype=torch.float64)
    wanted = torch.cat([made(x[:, :3]), made(x[:, 3:])], 1)
    torch.testing.assert_close(made(x, segments, positions), wanted)
    several = made(x.expand(2, 3, T, D), segments.expand(2, 3, T), positions.expand(2, 3, T))
    torch.testing.assert_close(several[1, 2], wanted[0])


def test_kept_keys_give_the_same_outputs() -> None:
    made, x = make(RANKED), torch.randn(2, T, D, dtype=torch.float64)
    _, k_first, v_first = made.project(x[:, :4])
    q, k, v = made.project(x[:, 4:], 4)
    found = made.attend_last(q, torch.cat([k_first, k], 2), torch.cat([v_first, v], 2))
    torch.testing.assert_close(found, made(x)[:, 4:])


@pytest.mark.parametrize("fields", [SIZES, RANKED])
def test_operations_are_those_of_torch(fields: dict[str, Any]) -> None:
    made, layer = make(fields), LAYERS["latent_attention"](**fields)
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        y = made(x)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        y.sum().backward()
    weights = tuple(Weight(name, tuple(each.shape), True) for name, each in made.named_parameters())
    found = list(layer.products(Use({"x": X}, X, {"x": True}, weights)))
    assert sum(each.flops for each in found) == forward.get_total_flops()
    assert sum(each.flops * each.num_graded for each in found) == backward.get_total_flops()


def test_an_odd_rotary_width_and_an_empty_scaling_are_refused() -> None:
    layer = LAYERS["latent_attention"](**SIZES | {"rotary_width": 3})
    found = layer.check({"x": X})
    assert isinstance(found, ShapeError)
    assert found.field == "rotary_width"
    scaling = {"type": "linear", "factor": 2.0, "mscale": 1.0}
    found = LAYERS["latent_attention"](**SIZES, rotary={"scaling": scaling}).check({"x": X})
    assert isinstance(found, ShapeError)
    assert "`scaling.mscale` means nothing" in found.message


def test_heads_that_do_not_divide_stay_whole() -> None:
    layer = LAYERS["latent_attention"](**RANKED)
    assert "4 heads cannot be divided evenly over 3 ranks" in str(layer.cut("heads", {"x": X}, 3))
    cut = layer.cut("heads", {"x": X}, 2)
    assert isinstance(cut, LayerCut)
    names = {name for name, _ in make(RANKED).named_parameters()}
    assert {*cut.parameters, *cut.summed, "out.bias"} == names
