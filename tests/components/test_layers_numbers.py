"""What the layers compute, against torch's own modules and against formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import TensorSpec

SEQUENCE = TensorSpec((6, 8), "float64")


def made(name: str, inputs: dict[str, TensorSpec], **fields: Any) -> nn.Module:
    layer = LAYERS[name](**fields)
    assert layer.check(inputs) is None
    module = layer.build(inputs)
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=generator)
    return module


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_self_attention_is_that_of_torch(causal: bool, masked: bool) -> None:
    module, x = made("self_attention", {"x": SEQUENCE}, heads=2, causal=causal), random(3, 6, 8)
    wanted = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        wanted.in_proj_weight.copy_(module.qkv.weight)
        wanted.in_proj_bias.copy_(module.qkv.bias)
        wanted.out_proj.load_state_dict(module.out.state_dict())
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] + [False] * 5]) if masked else None
    found = module(x, keep)
    reference, _ = wanted(
        x,
        x,
        x,
        key_padding_mask=None if keep is None else ~keep,
        attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1) if causal else None,
    )
    assert close(found, reference)


def test_a_mask_of_pairs_is_a_mask_of_keys_repeated() -> None:
    module, x = made("self_attention", {"x": SEQUENCE}, heads=2, causal=True), random(3, 6, 8)
    keep = torch.rand(3, 6, generator=torch.Generator().manual_seed(1)) > 0.4
    assert close(module(x, keep), module(x, keep[:, None, :].expand(-1, 6, -1)))


def test_a_query_that_sees_nothing_gives_the_bias_and_no_gradient() -> None:
    module, x = made("self_attention", {"x": SEQUENCE}, heads=2), random(2, 6, 8).requires_grad_()
    keep = torch.tensor([[False] * 6, [True] * 6])
    y = module(x, keep)
    assert close(y[0], module.out.bias.expand(6, 8))
    y.sum().backward()
    assert not x.grad[0].any()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


def test_grouped_heads_share_keys_and_values() -> None:
    few = made("self_attention", {"x": SEQUENCE}, heads=4, kv_heads=2, causal=True)
    many = made("self_attention", {"x": SEQUENCE}, heads=4, causal=True)
    q, k, v = few.qkv.weight.split([8, 4, 4])
    bq, bk, bv = few.qkv.bias.split([8, 4, 4])
    with torch.no_grad():
        wide = [part.view(2, 1, 2, -1).expand(-1, 2, -1, -1).reshape(8, -1) for part in (k, v, bk, bv)]
        many.qkv.weight.copy_(torch.cat([q, *wide[:2]]))
        many.qkv.bias.copy_(torch.cat([bq, *(part.flatten() for part in wide[2:])]))
        many.out.load_state_dict(few.out.state_dict())
    x = random(3, 6, 8)
    assert close(few(x), many(x))


@pytest.mark.parametrize("name", ["self_attention", "cross_attention"])
def test_separate_projections_are_the_fused_one_cut_up(name: str) -> None:
    inputs = (
        {"x": SEQUENCE} if name == "self_attention" else {"query": SEQUENCE, "context": TensorSpec((5, 10), "float64")}
    )
    fused = made(name, inputs, heads=4, kv_heads=2)
    apart = made(name, inputs, heads=4, kv_heads=2, fused=False)
    with torch.no_grad():
        if name == "self_attention":
            sources = zip(
                (apart.query, apart.key, apart.value),
                *(p.split([8, 4, 4]) for p in fused.qkv.parameters()),
                strict=True,
            )
        else:
            apart.query.load_state_dict(fused.query.state_dict())
            sources = zip(
                (apart.key, apart.value), *(p.split([4, 4]) for p in fused.key_value.parameters()), strict=True
            )
        for projection, weight, bias in sources:
            projection.weight.copy_(weight)
            projection.bias.copy_(bias)
        apart.out.load_state_dict(fused.out.state_dict())
    given = [random(3, 6, 8)] if name == "self_attention" else [random(3, 6, 8), random(3, 5, 10)]
    assert close(fused(*given), apart(*given))


def test_cross_attention_looks_at_the_context_alone() -> None:
    inputs = {"query": SEQUENCE, "context": TensorSpec((5, 10), "float64"), "mask": TensorSpec((5,), "bool")}
    module, query, context = made("cross_attention", inputs, heads=2), random(3, 6, 8), random(3, 5, 10)
    keep = torch.tensor([True, True, True, False, False]).expand(3, -1)
    changed = context.clone()
    changed[:, 3:] += 100
    assert close(module(query, context, keep), module(query, changed, keep))
    assert not close(module(query, context), module(query, changed))
    assert close(module(query, context, keep), module(query, context[:, :3]))


def test_rotary_positions_see_distances_only() -> None:
    """Scores of a query and a key depend on how far apart they are: moving both changes nothing."""
    from declarative_train.components.layers.modules.rotary import Angles, rotate

    q, k = random(1, 1, 1, 8), random(1, 1, 1, 8) + 1
    cos, sin = Angles(100.0).table(12, 8, q)
    turned_q, turned_k = rotate(q.expand(1, 1, 12, 8), cos, sin), rotate(k.expand(1, 1, 12, 8), cos, sin)
    scores = (turned_q @ turned_k.mT)[0, 0]
    for distance in range(-11, 12):
        diagonal = scores.diagonal(distance)
        assert close(diagonal, diagonal[:1].expand_as(diagonal))
    assert close(scores[0, 0], (q * k).sum())
    assert not close(scores[0, 0], scores[0, 3])
    assert Angles(100.0).table(4, 8, q.bfloat16())[0].dtype == torch.float32


def test_layers_of_a_model_share_one_rotary_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.components.layers.modules import attention

    layers = [made("self_attention", {"x": SEQUENCE}, heads=2, rotary={"base": 100.0}) for _ in range(3)]
    x = random(2, 6, 8)
    apart = [layer(x) for layer in layers]
    lengths: list[int] = []
    table = attention.Angles.table

    def counted(self: Any, T: int, *rest: Any) -> Any:
        lengths.append(T)
        return table(self, T, *rest)

    monkeypatch.setattr(attention.Angles, "table", counted)
    attention.share_tables(torch.nn.ModuleList(layers))
    for _ in range(2):
        assert all(torch.equal(layer(x), alone) for layer, alone in zip(layers, apart, strict=True))
    assert lengths == [6]
    with torch.inference_mode():
        longer = layers[0](random(1, 9, 8))
    layers[0](random(1, 9, 8).requires_grad_()).sum().backward()  # what inference made can be trained with
    assert longer.shape == (1, 9, 8)
    assert lengths == [6, 9]
    assert all(torch.equal(layer(x), alone) for layer, alone in zip(layers, apart, strict=True))


def test_a_kernel_that_takes_fewer_keys_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from declarative_train.components.layers.modules import attention

    few = made("self_attention", {"x": SEQUENCE}, heads=4, kv_heads=2, causal=True)
    x = random(3, 6, 8)
    repeated = few(x)
    asked: list[tuple[int, ...]] = []
    attend = attention.F.scaled_dot_product_attention

    def seen(q: torch.Tensor, k: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        asked.append(tuple(k.shape))
        return attend(q, k, *rest, **more)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", seen)
    monkeypatch.setattr(attention, "takes_fewer_keys", lambda *_: True)
    assert close(few(x), repeated)
    few(x, torch.ones(3, 6, dtype=torch.bool))
    assert asked == [(3, 2, 6, 2), (3, 4, 6, 2)]  # with a mask they are repeated


def test_rotary_attention_is_not_blind_to_order() -> None:
    x = random(2, 6, 8)
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    for rotary, blind in ((None, True), ({"base": 100.0}, False)):
        module = made("self_attention", {"x": SEQUENCE}, heads=2, rotary=rotary)
        assert close(module(x)[:, order], module(x[:, order])) == blind


def test_qk_norm_bounds_the_scores() -> None:
    module, x = made("self_attention", {"x": SEQUENCE}, heads=2, qk_norm=True, bias=False), random(2, 6, 8)
    with torch.no_grad():
        module.qkv.weight[:16] *= 1000  # of queries and keys
    large = module(x)
    with torch.no_grad():
        module.qkv.weight[:16] /= 1000
    assert torch.allclose(large, module(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("segmented", [False, True])
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_products_are_scaled_and_capped(window: int | None, masked: bool, segmented: bool, softcap: float) -> None:
    """By the formula, for each pair of positions that sees each other; written token by token too."""
    fields = {"heads": 4, "kv_heads": 2, "causal": True, "window": window, "scale": 0.3, "softcap": softcap}
    layer = made("self_attention", {"x": SEQUENCE}, **fields)
    x = random(2, 6, 8)
    q, k, v = layer.project(x)
    k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
    products = 0.3 * q @ k.mT
    products = products if softcap is None else softcap * (products / softcap).tanh()
    far = torch.arange(6)[:, None] - torch.arange(6)
    seen = ((far >= 0) & (far < (window or 6))).expand(2, 6, 6)
    keep = torch.tensor([[True] * 6, [True] * 2 + [False] + [True] * 3]) if masked else None
    parts = torch.tensor([[0, 0, 0, 1, 1, 1], [0] * 6]) if segmented else None
    seen = seen if keep is None else seen & keep[:, None]
    seen = seen if parts is None else seen & (parts[:, :, None] == parts[:, None])
    weights = products.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
    wanted = layer.out((weights @ v).transpose(1, 2).flatten(2))
    assert close(layer(x, keep, parts), wanted)
    if not masked and not segmented:
        q, k, v = layer.project(x)
        assert close(layer.attend_last(q[:, :, 4:], k, v), wanted[:, 4:])


def test_attention_dropout_is_for_training() -> None:
    module, x = made("self_attention", {"x": SEQUENCE}, heads=2, dropout=0.5), random(2, 6, 8)
    assert not close(module(x), module(x))
    assert close(module.eval()(x), module(x))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("name", "torchs"), [("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)])
def test_recurrent_networks_are_those_of_torch(name: str, torchs: type[nn.Module], bidirectional: bool) -> None:
    module = made(name, {"x": SEQUENCE}, hidden_size=5, num_layers=2, bidirectional=bidirectional)
    wanted = torchs(8, 5, 2, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)
    wanted.load_state_dict(module.state_dict())
    x = random(3, 6, 8)
    found, (output, state) = module(x), wanted(x)
    states = state if isinstance(state, tuple) else (state,)
    assert close(found[0], output)
    for mine, theirs in zip(found[1:], states, strict=True):
        assert mine.shape == (3, 4 if bidirectional else 2, 5)
        assert close(mine, theirs.transpose(0, 1))
    if not bidirectional:
        assert close(found[1][:, -1], found[0][:, -1])


def test_layer_and_rms_norm_are_those_of_torch() -> None:
    x = random(3, 6, 8)
    layer = made("layer_norm", {"x": SEQUENCE})
    assert close(layer(x), F.layer_norm(x, (8,), layer.weight, layer.bias))
    rms = made("rms_norm", {"x": SEQUENCE}, num_dims=2)
    assert close(rms(x), F.rms_norm(x, (6, 8), rms.weight, 1e-6))
    centered = made("rms_norm", {"x": SEQUENCE}, zero_centered=True)
    assert close(centered(x), F.rms_norm(x, (8,), 1 + centered.weight, 1e-6))


def test_patch_embedding_reads_row_by_row() -> None:
    module = made("patch_embedding", {"x": TensorSpec((3, 4, 6), "float64")}, patch_size=2, embedding_dim=5)
    x = random(2, 3, 4, 6)
    found = module(x)
    assert found.shape == (2, 6, 5)
    patch = x[:, :, 2:4, 4:6]  # second row, third column
    assert close(found[:, 5], patch.flatten(1) @ module.weight.flatten(1).T + module.bias)


def test_embeddings_look_up_each_column_in_its_own_table() -> None:
    inputs = {"x": TensorSpec((2,), "int32", 9, bounds=((0, 8), (0, 2)))}
    module = made("embeddings", inputs, num_embeddings=(9, 3), embedding_dim=(4, 2))
    found = module(torch.tensor([[8, 2], [0, 1]], dtype=torch.int32))
    assert torch.equal(found[0], torch.cat([module.tables[0][8], module.tables[1][2]]))
    assert [tuple(table.shape) for table in module.tables] == [(9, 4), (3, 2)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_every_integer_dtype_can_be_looked_up(dtype: str) -> None:
    x = torch.tensor([[1, 2], [0, 4]], dtype=getattr(torch, dtype))
    inputs = {"x": TensorSpec((2,), dtype, 5)}  # type: ignore[arg-type]
    table = made("embedding", inputs, embedding_dim=3)
    assert torch.equal(table(x), table.weight[x.long()])
    bag = made("embedding_bag", inputs, embedding_dim=3, mode="sum")
    assert torch.allclose(bag(x), bag.weight[x.long()].sum(1))
    assert torch.equal(made("one_hot", inputs)(x), F.one_hot(x.long(), 5).float())


def test_the_padding_row_gets_no_gradient_and_is_left_out_of_a_bag() -> None:
    inputs, x = {"x": TensorSpec((3,), "int64", 5)}, torch.tensor([[1, 2, 2]])
    table = made("embedding", inputs, embedding_dim=3, padding_idx=2)
    table(x).sum().backward()
    assert not table.weight.grad[2].any()
    assert table.weight.grad[1].all()
    bag = made("embedding_bag", inputs, embedding_dim=3, padding_idx=2)
    assert torch.equal(bag(x)[0], bag.weight[1])


def test_positions() -> None:
    learned = made("learned_positions", {"x": SEQUENCE}, max_length=9)
    x = random(2, 6, 8)
    assert torch.equal(learned(x), x + learned.weight[:6])
    typed, types = made("token_types", {"x": SEQUENCE}, num_types=3), torch.tensor([[0, 0, 2, 2, 2, 1]] * 2)
    assert torch.equal(typed(x), x + typed.weight[0])
    assert torch.equal(typed(x, types.to(torch.uint8)), x + typed.weight[types])
    fixed = made("sinusoidal_positions", {"x": SEQUENCE})(torch.zeros_like(x))[0]
    assert torch.equal(fixed[0], torch.tensor([0.0] * 4 + [1.0] * 4, dtype=torch.float64))
    assert fixed[5, 0] == pytest.approx(torch.tensor(5.0).sin().item())
    assert fixed[5, 7] == pytest.approx(torch.tensor(5 / 10000**0.75).cos().item())


def test_a_class_token_stands_first() -> None:
    module, x = made("class_token", {"x": SEQUENCE}), random(2, 6, 8)
    found = module(x)
    assert torch.equal(found[:, 1:], x)
    assert torch.equal(found[1, 0], module.token)


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [("mean", [3.0, 0.0, 2.0]), ("max", [4.0, 0.0, 2.0]), ("first", [2.0, 0.0, 2.0]), ("last", [4.0, 0.0, 2.0])],
)
def test_pooling_over_time_reads_what_the_mask_keeps(mode: str, wanted: list[float]) -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double().view(1, 5, 1).expand(3, 5, 2)
    keep = torch.tensor([[False, True, True, True, False], [False] * 5, [False, True, False, False, False]])
    inputs = {"x": TensorSpec((5, 2), "float64"), "mask": TensorSpec((5,), "bool")}
    assert made("sequence_pool", inputs, mode=mode)(x, keep)[:, 0].tolist() == wanted


def test_drop_path_drops_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    module = made("drop_path", {"x": SEQUENCE}, p=0.25)
    y = module(torch.ones(4000, 6, 8, dtype=torch.float64))
    per_sample = y.flatten(1)
    assert torch.equal(per_sample.amin(1), per_sample.amax(1))
    assert set(per_sample[:, 0].tolist()) == {0.0, 1 / 0.75}
    assert y.mean().item() == pytest.approx(1, abs=0.03)


def test_noise_of_embeddings_is_uniform_and_of_the_size_of_the_paper() -> None:
    """Jain et al., 2023, algorithm 1, as in transformers' `neftune_noise_alpha`."""
    torch.manual_seed(0)
    module = made("embedding_noise", {"x": SEQUENCE}, alpha=5)
    x = random(500, 6, 8)
    noise = (module(x) - x) * (6 * 8) ** 0.5 / 5
    assert noise.abs().max().item() <= 1
    assert noise.mean().item() == pytest.approx(0, abs=0.02)
    assert noise.var().item() == pytest.approx(1 / 3, abs=0.01)
    assert len(noise[:, 0, 0].unique()) == 500
    assert torch.equal(module.eval()(x), x)


def test_shapes() -> None:
    x = random(2, 3, 4, 5)
    image = {"x": TensorSpec((3, 4, 5), "float64")}
    assert torch.equal(made("permute", image, dims=(0, -1, 1, 2))(x), x.permute(0, 3, 1, 2))
    assert torch.equal(made("reshape", image, shape=("B", -1, 10))(x), x.reshape(2, 6, 10))
    assert torch.equal(made("flatten", image, end_dim=2)(x), x.flatten(1, 2))
    assert torch.equal(made("unflatten", image, dim=2, sizes=(2, -1))(x), x.unflatten(2, (2, 2)))
    assert torch.equal(made("unsqueeze", image, dim=2)(x), x.unsqueeze(2))
    assert torch.equal(made("stack", {"x.0": image["x"], "x.1": image["x"]}, dim=-1)(x, x), torch.stack([x, x], -1))
    assert torch.equal(made("concat", {"x.0": image["x"], "x.1": image["x"]}, dim=2)(x, x), torch.cat([x, x], 2))
    assert torch.equal(made("multiply", {"x.0": image["x"], "x.1": image["x"]})(x, x), x * x)
    assert torch.equal(made("add", {f"x.{n}": image["x"] for n in range(3)})(x, x, x), x + x + x)


LEADING: list[tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = [
    ("self_attention", {"heads": 4, "kv_heads": 2, "causal": True, "rotary": {}, "qk_norm": True}, {"x": (6, 8)}),
    ("self_attention", {"heads": 2, "causal": True, "window": 2}, {"x": (6, 8), "mask": (6,)}),
    ("self_attention", {"heads": 2, "fused": False}, {"x": (6, 8), "mask": (6, 6)}),
    ("self_attention", {"heads": 2, "causal": True, "softcap": 2.0}, {"x": (6, 8)}),
    ("cross_attention", {"heads": 2}, {"query": (6, 8), "context": (5, 10), "mask": (6, 5)}),
    ("lstm", {"hidden_size": 5, "num_layers": 2, "bidirectional": True}, {"x": (6, 8)}),
    ("gru", {"hidden_size": 5}, {"x": (6, 8)}),
    ("rnn", {"hidden_size": 5, "nonlinearity": "relu"}, {"x": (6, 8)}),
    ("learned_positions", {"max_length": 9}, {"x": (6, 8)}),
    ("token_types", {"num_types": 2}, {"x": (6, 8)}),
    ("sinusoidal_positions", {}, {"x": (6, 8)}),
    ("class_token", {}, {"x": (6, 8)}),
    *(("sequence_pool", {"mode": mode}, {"x": (6, 8), "mask": (6,)}) for mode in ("mean", "max", "first", "last")),
]


@pytest.mark.parametrize("leading", [(4,), (2, 3)], ids=["one more", "two more"])
@pytest.mark.parametrize(("name", "fields", "shapes"), LEADING, ids=[row[0] for row in LEADING])
def test_a_sequence_for_each_place_is_as_many_rows(
    name: str, fields: dict[str, Any], shapes: dict[str, tuple[int, ...]], leading: tuple[int, ...]
) -> None:
    """Outputs, and the gradients of inputs and parameters: those of a reshape by hand."""

    def specs(before: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {port: TensorSpec((*before, *each), _dtype(port)) for port, each in shapes.items()}

    def given(port: str) -> Tensor:
        drawn = random(2, *leading, *shapes[port])
        return drawn > -1 if port == "mask" else drawn.requires_grad_()

    module, plain = made(name, specs(leading), **fields), made(name, specs(()), **fields)
    inputs = {port: given(port) for port in shapes}
    rows = {
        port: each.detach().flatten(0, len(leading)).requires_grad_(port != "mask") for port, each in inputs.items()
    }
    found, wanted = _several(module(*inputs.values())), _several(plain(*rows.values()))
    for mine, other in zip(found, wanted, strict=True):
        assert mine.shape == (2, *leading, *other.shape[1:])
        assert close(mine.flatten(0, len(leading)), other)
    for outputs in (found, wanted):
        torch.stack([(each * each.detach().cos()).sum() for each in outputs]).sum().backward()
    for port in shapes:
        if port != "mask":
            assert close(inputs[port].grad.flatten(0, len(leading)), rows[port].grad)
    for mine, other in zip(module.parameters(), plain.parameters(), strict=True):
        assert close(mine.grad, other.grad)


def test_a_mask_of_size_one_serves_all_channels() -> None:
    inputs = {"x": TensorSpec((3, 6, 8), "float64"), "mask": TensorSpec((1, 6), "bool")}
    module, x, keep = made("self_attention", inputs, heads=2, causal=True), random(2, 3, 6, 8), random(2, 1, 6) > 0
    assert close(module(x, keep), module(x, keep.expand(2, 3, 6)))
    assert not close(module(x, keep), module(x))


def _dtype(port: str) -> Any:
    return "bool" if port == "mask" else "float64"


def _several(outputs: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


COMPILED: list[tuple[str, dict[str, Any], dict[str, TensorSpec]]] = [
    ("self_attention", {"heads": 4, "kv_heads": 2, "causal": True, "rotary": {}, "qk_norm": True}, {"x": SEQUENCE}),
    ("self_attention", {"heads": 2, "causal": True}, {"x": SEQUENCE, "mask": TensorSpec((6,), "bool")}),
    (
        "self_attention",
        {"heads": 2, "rotary": {}},
        {"x": TensorSpec((3, 6, 8), "float64"), "mask": TensorSpec((1, 6), "bool")},
    ),
    ("self_attention", {"heads": 4, "kv_heads": 2, "causal": True, "softcap": 2.0}, {"x": SEQUENCE}),
    ("rms_norm", {}, {"x": SEQUENCE}),
    ("rms_norm", {"zero_centered": True}, {"x": SEQUENCE}),
    ("sinusoidal_positions", {}, {"x": SEQUENCE}),
    ("sequence_pool", {"mode": "last"}, {"x": SEQUENCE, "mask": TensorSpec((6,), "bool")}),
    ("embeddings", {"embedding_dim": 3}, {"x": TensorSpec((2,), "int64", 5)}),
]


@pytest.mark.parametrize(
    ("name", "fields", "inputs"),
    [pytest.param(*row, id=row[0], marks=pytest.mark.long if number else ()) for number, row in enumerate(COMPILED)],
)
def test_compiled_and_checkpointed_give_the_same(
    name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]
) -> None:
    module = made(name, inputs, **fields)
    given = [
        random(3, *spec.shape) if spec.is_floating else torch.ones(3, *spec.shape, dtype=getattr(torch, spec.dtype))
        for spec in inputs.values()
    ]
    given = [tensor.requires_grad_() if tensor.is_floating_point() else tensor for tensor in given]
    eager = module(*given)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)(*given)
    assert close(compiled, eager)
    again = checkpoint(module, *given, use_reentrant=False)
    leaves = [*module.parameters(), *(tensor for tensor in given if tensor.is_floating_point())]
    for other in (compiled, again):
        one = torch.autograd.grad(eager.square().sum(), leaves, retain_graph=True)
        two = torch.autograd.grad(other.square().sum(), leaves)
        assert all(close(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("scaling", "published"),
    [
        ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "llama3", "factor": 8.0, "original_length": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
            | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_length": 64, "beta_fast": 16.0},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0},
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_length": 64, "attention_factor": 1.5},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.5},
        ),
    ],
)  # fmt: skip
def test_stretched_angles_are_those_of_published_models(scaling: dict[str, Any], published: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config = LlamaConfig(hidden_size=64, num_attention_heads=1, num_key_value_heads=1, max_position_embeddings=256)
    config.rope_parameters = {"rope_theta": 10000.0, **published}
    x, places = torch.zeros(1, 96, 64), torch.arange(96)[None]
    cos, sin = (part[0, :, :32] for part in LlamaRotaryEmbedding(config)(x, places))
    layer = made("self_attention", {"x": SEQUENCE}, heads=1, head_width=64, rotary={"scaling": scaling})
    ours = layer.heads.rotary.table(96, 64, x)
    torch.testing.assert_close(ours, (cos, sin), rtol=0, atol=2e-5)


def test_a_window_hides_what_lies_further_back() -> None:
    """With and without a mask, and written token by token."""
    layer = made("self_attention", {"x": SEQUENCE}, heads=2, causal=True, window=3)
    whole = made("self_attention", {"x": SEQUENCE}, heads=2, causal=True)
    x, keep = random(2, 6, 8), torch.ones(2, 6, dtype=torch.bool)
    far = x.clone()
    far[:, :3] += 10
    assert close(layer(x)[:, 5], layer(far)[:, 5])
    assert not close(whole(x)[:, 5], whole(far)[:, 5])
    assert not close(layer(x)[:, 4], layer(far)[:, 4])
    assert close(layer(x), layer(x, keep))
    assert close(layer(x)[:, :3], whole(x)[:, :3])
    q, k, v = layer.project(x)
    assert close(layer.attend_last(q[:, :, 4:], k, v), layer(x)[:, 4:])
