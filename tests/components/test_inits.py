"""Start rules: the distribution they say, from the generator they are given and nothing else."""

from __future__ import annotations

import inspect
from math import sqrt

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from declarative_train.components.component import Init
from declarative_train.components.field_docs import field_docs
from declarative_train.components.inits import INITS
from declarative_train.components.inits.constant import Constant
from declarative_train.components.inits.drawn import Normal, TruncNormal, Uniform
from declarative_train.components.inits.scaled import (
    KaimingNormal,
    KaimingUniform,
    Orthogonal,
    XavierNormal,
    XavierUniform,
)
from declarative_train.components.layers import LAYERS
from declarative_train.terms.tensor_spec import TensorSpec

each_init = pytest.mark.parametrize("name", list(INITS))


def made(name: str) -> Init:
    return INITS[name](value=0.5) if name == "constant" else INITS[name]()


def filled(rule: Init, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    tensor = torch.full(shape, torch.nan, dtype=dtype)
    rule.fill(tensor, torch.Generator().manual_seed(seed))
    return tensor


@each_init
def test_an_init_is_documented(name: str) -> None:
    rule = INITS[name]
    assert rule.model_fields["type"].default == name
    assert (inspect.getdoc(rule) or "").partition("\n\n")[0].endswith(".")
    assert all(key in field_docs(rule) for key in rule.model_fields if key != "type")


@each_init
def test_the_generator_alone_decides(name: str) -> None:
    rule = made(name)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one, two, other = filled(rule, 6, 5), filled(rule, 6, 5), filled(rule, 6, 5, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert one.isfinite().all()
    assert torch.equal(one, two)
    assert torch.equal(one, other) == (name in ("constant", "ones", "zeros"))


@each_init
def test_strides_gradients_and_parameters_do_not_matter(name: str) -> None:
    rule = made(name)
    expected = filled(rule, 6, 5)
    turned = torch.empty(5, 6, dtype=torch.float64).T
    rule.fill(turned, torch.Generator().manual_seed(0))
    assert torch.equal(turned, expected)
    parameter = nn.Parameter(torch.empty(6, 5, dtype=torch.float64))
    rule.fill(parameter, torch.Generator().manual_seed(0))
    assert torch.equal(parameter, expected)
    assert parameter.grad_fn is None


def test_constants() -> None:
    assert torch.equal(filled(Constant(value=0.25), 3), torch.full((3,), 0.25, dtype=torch.float64))
    assert torch.equal(filled(INITS["zeros"](), 3), torch.zeros(3, dtype=torch.float64))
    assert torch.equal(filled(INITS["ones"](), 3), torch.ones(3, dtype=torch.float64))


def test_normal() -> None:
    values = filled(Normal(mean=3, std=0.5), 400, 100)
    assert abs(values.mean() - 3) < 0.01
    assert abs(values.std() - 0.5) < 0.01
    rows = filled(Normal(zero_row=2), 4, 5)
    assert torch.equal(rows[2], torch.zeros(5, dtype=torch.float64))
    assert rows[[0, 1, 3]].all()


def test_uniform() -> None:
    values = filled(Uniform(low=-2, high=4), 400, 100)
    assert -2 <= values.min() < -1.99
    assert 3.99 < values.max() <= 4
    assert abs(values.mean() - 1) < 0.05


def test_trunc_normal_is_that_of_torch() -> None:
    values = filled(TruncNormal(mean=1, std=0.02), 400, 100)
    torchs = nn.init.trunc_normal_(
        torch.empty(400, 100, dtype=torch.float64), 1, 0.02, 0.96, 1.04, torch.Generator().manual_seed(5)
    )
    assert values.min() >= 0.96
    assert values.max() <= 1.04
    assert abs(values.std() - torchs.std()) < 2e-4
    quantiles = torch.linspace(0, 1, 21, dtype=torch.float64)
    assert (values.flatten().quantile(quantiles) - torchs.flatten().quantile(quantiles)).abs().max() < 2e-3
    assert filled(TruncNormal(), 100, 100, dtype=torch.float32).abs().max() <= 2


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (6, 2, 3)])
def test_orthogonal(shape: tuple[int, ...]) -> None:
    matrix = filled(Orthogonal(gain=2), *shape).flatten(1)
    product = matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix
    assert torch.allclose(product, 4 * torch.eye(len(product), dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize("shape", [(60, 80), (40, 20, 3, 3)])
def test_fan_rules_are_those_of_torch(shape: tuple[int, ...]) -> None:
    def torchs(fill: str, *arguments: object, **more: object) -> torch.Tensor:
        tensor = torch.empty(shape, dtype=torch.float64)
        getattr(nn.init, fill)(tensor, *arguments, **more, generator=torch.Generator().manual_seed(0))
        return tensor

    pairs = [
        (XavierUniform(gain=1.5), torchs("xavier_uniform_", 1.5)),
        (XavierNormal(), torchs("xavier_normal_")),
        (KaimingUniform(a=sqrt(5)), torchs("kaiming_uniform_", sqrt(5))),
        (KaimingUniform(mode="fan_out", nonlinearity="relu"), torchs("kaiming_uniform_", 0, "fan_out", "relu")),
        (KaimingNormal(nonlinearity="tanh"), torchs("kaiming_normal_", 0, "fan_in", "tanh")),
        (KaimingNormal(mode="fan_out", nonlinearity="selu"), torchs("kaiming_normal_", 0, "fan_out", "selu")),
    ]
    for rule, wanted in pairs:
        assert torch.allclose(filled(rule, *shape), wanted, rtol=1e-14, atol=1e-15), rule


@each_init
def test_what_needs_a_matrix_says_so(name: str) -> None:
    misfit = made(name).check((5,))
    assert made(name).check((5, 3)) is None
    if name.startswith(("xavier", "kaiming", "orthogonal")):
        assert misfit is not None
        assert "at least 2 dimensions, this one has shape (5)" in misfit.message
        assert misfit.help
    else:
        assert misfit is None


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("uniform", {"low": 2.0, "high": 1.0}, "`low: 2` is above `high: 1`"),
        ("normal", {"std": -1.0}, "greater than or equal to 0"),
        ("normal", {"std": float("nan")}, "finite number"),
        ("trunc_normal", {"cut": 0.0}, "greater than 0"),
        ("constant", {}, "Field required"),
        ("zeros", {"value": 1.0}, "Extra inputs"),
        ("kaiming_normal", {"mode": "fan"}, "'fan_in' or 'fan_out'"),
    ],
)
def test_refuses(name: str, fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        INITS[name](**fields)


@pytest.mark.parametrize(
    ("name", "fields", "inputs", "torchs"),
    [
        ("linear", {"out_features": 50}, {"x": TensorSpec((40,))}, lambda: nn.Linear(40, 50)),
        (
            "bilinear",
            {"out_features": 50},
            {"x": TensorSpec((30,)), "y": TensorSpec((20,))},
            lambda: nn.Bilinear(30, 20, 50),
        ),
        (
            "conv2d",
            {"out_channels": 64, "kernel_size": (3, 2), "groups": 2},
            {"x": TensorSpec((32, 9, 9))},
            lambda: nn.Conv2d(32, 64, (3, 2), groups=2),
        ),
        (
            "conv_transpose1d",
            {"out_channels": 64, "kernel_size": 3, "groups": 2},
            {"x": TensorSpec((32, 9))},
            lambda: nn.ConvTranspose1d(32, 64, 3, groups=2),
        ),
        ("embedding", {"num_embeddings": 90, "embedding_dim": 30, "padding_idx": 3}, {"x": TensorSpec((4,), "int64")},
         lambda: nn.Embedding(90, 30, 3)),
        ("lstm", {"hidden_size": 40, "num_layers": 2}, {"x": TensorSpec((5, 20))}, lambda: nn.LSTM(20, 40, 2)),
        ("gru", {"hidden_size": 40, "bidirectional": True}, {"x": TensorSpec((5, 20))},
         lambda: nn.GRU(20, 40, bidirectional=True)),
        ("layer_norm", {}, {"x": TensorSpec((5, 20))}, lambda: nn.LayerNorm(20)),
        ("batch_norm", {}, {"x": TensorSpec((5, 20))}, lambda: nn.BatchNorm1d(5)),
        ("group_norm", {"num_groups": 5}, {"x": TensorSpec((5, 20))}, lambda: nn.GroupNorm(5, 5)),
        ("prelu", {"per_channel": True}, {"x": TensorSpec((5, 20))}, lambda: nn.PReLU(5)),
        ("rms_norm", {}, {"x": TensorSpec((5, 20))}, lambda: nn.RMSNorm(20)),
    ],
)  # fmt: skip
def test_layers_start_as_in_torch(
    name: str, fields: dict[str, object], inputs: dict[str, TensorSpec], torchs: object
) -> None:
    """Same names and shapes, and of each parameter the same spread (or the same constants)."""
    layer = LAYERS[name](**fields)
    torch.manual_seed(0)
    wanted = dict(torchs().named_parameters())  # type: ignore[operator]
    parameters = dict(layer.build(inputs).named_parameters())
    assert {key: value.shape for key, value in parameters.items()} == {
        key: value.shape for key, value in wanted.items()
    }
    generator = torch.Generator().manual_seed(0)
    for key, parameter in parameters.items():
        layer.init_of(key, inputs).fill(parameter, generator)
        reference = wanted[key]
        if reference.unique().numel() == 1:
            assert torch.equal(parameter, reference), key
        else:
            assert parameter.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.25), key
            assert parameter.std().item() == pytest.approx(reference.std().item(), rel=0.3), key
    if name == "embedding":
        assert not parameters["weight"][3].any()


def test_attention_starts_as_torchs() -> None:
    inputs = {"x": TensorSpec((5, 32))}
    layer = LAYERS["self_attention"](heads=4)
    module = layer.build(inputs)
    torch.manual_seed(0)
    wanted = nn.MultiheadAttention(32, 4)
    pairs = {
        "qkv.weight": wanted.in_proj_weight,
        "qkv.bias": wanted.in_proj_bias,
        "out.weight": wanted.out_proj.weight,
        "out.bias": wanted.out_proj.bias,
    }
    for key, reference in pairs.items():
        parameter = module.get_parameter(key)
        layer.init_of(key, inputs).fill(parameter, torch.Generator().manual_seed(0))
        assert parameter.shape == reference.shape
        assert parameter.abs().max().item() == pytest.approx(reference.abs().max().item(), rel=0.05), key
