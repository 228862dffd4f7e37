"""Every layer of the table: documented, honest in `check`, safe to build, copy, cut and differentiate."""

from __future__ import annotations

import copy
import inspect
import pickle
import random
import types
import typing
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from pydantic import BaseModel, ValidationError
from torch import Tensor, fx, nn

from declarative_train.components.component import Layer, ShapeError
from declarative_train.components.field_docs import field_docs
from declarative_train.components.inits.draws import Draws
from declarative_train.components.layers import LAYERS
from declarative_train.core.tensor_spec import DType, TensorSpec
from declarative_train.engine.step.precision import CastParameters
from tests.alone import TYPES

SEQUENCE, IMAGE, VECTOR = TensorSpec((6, 8)), TensorSpec((4, 8, 6)), TensorSpec((12,))
VOLUME, SIGNAL = TensorSpec((4, 4, 5, 6)), TensorSpec((4, 9))
SEVERAL, GRID = TensorSpec((3, 6, 8)), TensorSpec((2, 3, 6, 8))  # a sequence for each channel, for each place of a grid
TOKENS = TensorSpec((6,), "int64", 11)
KEEP = TensorSpec((6,), "bool")
PLACES, EACH = TensorSpec((6,), "int64", num_values=6), TensorSpec((3, 6), "int64", num_values=6)

Case = tuple[dict[str, Any], dict[str, TensorSpec]]

# at least one case per layer: fields, and what comes in
CASES: dict[str, list[Case]] = {
    "adaptive_avg_pool1d": [({"output_size": 3}, {"x": SIGNAL})],
    "adaptive_avg_pool2d": [({"output_size": (3, 2)}, {"x": IMAGE})],
    "adaptive_avg_pool3d": [({"output_size": 2}, {"x": VOLUME})],
    "adaptive_max_pool1d": [({"output_size": 3}, {"x": SIGNAL})],
    "adaptive_max_pool2d": [({"output_size": (3, 2)}, {"x": IMAGE})],
    "adaptive_max_pool3d": [({"output_size": 2}, {"x": VOLUME})],
    "add": [({}, {"x.0": SEQUENCE, "x.1": SEQUENCE, "x.2": TensorSpec((1, 8))}), ({}, {"x.0": VECTOR})],
    "alpha_dropout": [({}, {"x": VECTOR})],
    "avg_pool1d": [({"kernel_size": 2}, {"x": SIGNAL})],
    "avg_pool2d": [({"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}, {"x": IMAGE})],
    "avg_pool3d": [({"kernel_size": (2, 1, 2)}, {"x": VOLUME})],
    "batch_norm": [
        ({}, {"x": IMAGE}),
        ({"over": "2 samples"}, {"x": VECTOR}),
        ({"over": "4 samples", "affine": False}, {"x": SIGNAL}),
    ],
    "bilinear": [({"out_features": 3}, {"x": SEQUENCE, "y": TensorSpec((6, 5))})],
    "class_token": [({}, {"x": SEQUENCE}), ({}, {"x": SEVERAL})],
    "concat": [({}, {"x.0": SEQUENCE, "x.1": TensorSpec((6, 2))}), ({"dim": 1}, {"x.0": SEQUENCE, "x.1": SEQUENCE})],
    "conv1d": [({"out_channels": 6, "kernel_size": 3, "padding": "same", "groups": 2}, {"x": SIGNAL})],
    "conv2d": [
        ({"out_channels": 3, "kernel_size": 3, "padding": 1, "stride": 2}, {"x": IMAGE}),
        ({"out_channels": 3, "kernel_size": (3, 2), "padding": 2, "padding_mode": "reflect"}, {"x": IMAGE}),
    ],
    "conv3d": [({"out_channels": 3, "kernel_size": 2, "bias": False}, {"x": VOLUME})],
    "conv_transpose1d": [({"out_channels": 6, "kernel_size": 3, "stride": 2, "output_padding": 1}, {"x": SIGNAL})],
    "conv_transpose2d": [({"out_channels": 6, "kernel_size": 2, "stride": 2, "groups": 2}, {"x": IMAGE})],
    "conv_transpose3d": [({"out_channels": 2, "kernel_size": 2}, {"x": VOLUME})],
    "cross_attention": [
        ({"heads": 2}, {"query": SEQUENCE, "context": TensorSpec((5, 10))}),
        (
            {"heads": 4, "kv_heads": 2, "fused": False, "qk_norm": True},
            {"query": SEQUENCE, "context": TensorSpec((5, 10)), "mask": TensorSpec((6, 5), "bool")},
        ),
        (
            {"heads": 2, "kv_heads": 1},
            {"query": SEVERAL, "context": TensorSpec((3, 5, 10)), "mask": TensorSpec((1, 6, 5), "bool")},
        ),
    ],
    "embedding": [({"embedding_dim": 4}, {"x": TOKENS}), ({"embedding_dim": 4, "padding_idx": 2}, {"x": TOKENS})],
    "embedding_bag": [({"embedding_dim": 4}, {"x": TOKENS}), ({"embedding_dim": 4, "mode": "max"}, {"x": TOKENS})],
    "embeddings": [
        ({"num_embeddings": (11, 12, 13, 14, 15, 16), "embedding_dim": 3}, {"x": TOKENS}),
        ({"embedding_dim": (1, 2, 3, 4, 5, 6)}, {"x": TOKENS}),
    ],
    "flatten": [({}, {"x": IMAGE}), ({"start_dim": 2}, {"x": IMAGE}), ({}, {"x": TensorSpec(())})],
    "glu": [({}, {"x": SEQUENCE})],
    "group_norm": [({"num_groups": 2}, {"x": IMAGE})],
    "gru": [
        ({"hidden_size": 5, "num_layers": 2, "bidirectional": True}, {"x": SEQUENCE}),
        ({"hidden_size": 5}, {"x": GRID}),
    ],
    "instance_norm": [({"affine": True}, {"x": IMAGE}), ({}, {"x": SIGNAL})],
    "layer_norm": [({}, {"x": SEQUENCE}), ({"num_dims": 2, "bias": False}, {"x": IMAGE})],
    "layer_scale": [({}, {"x": SEQUENCE})],
    "learned_positions": [
        *(({}, {"x": x}) for x in (SEQUENCE, SEVERAL)),
        *(({"max_length": 9}, inputs) for inputs in ({"x": SEQUENCE}, {"x": SEVERAL, "positions": EACH})),
    ],
    "token_types": [({"num_types": 3}, {"x": SEQUENCE}), ({"num_types": 6}, {"x": SEVERAL, "types": EACH})],
    "latent_attention": [
        (
            {"heads": 2, "kv_rank": 4, "plain_width": 4, "rotary_width": 2, "value_width": 3},
            {"x": SEQUENCE},
        ),
        (
            {"heads": 2, "query_rank": 5, "kv_rank": 4, "plain_width": 2, "rotary_width": 4, "value_width": 3}
            | {"bias": True, "interleaved": False},
            {"x": SEVERAL, "segments": EACH, "positions": EACH},
        ),
    ],
    "linear": [({"out_features": 3}, {"x": VECTOR}), ({"out_features": 3, "bias": False}, {"x": IMAGE})],
    "lstm": [
        ({"hidden_size": 5}, {"x": SEQUENCE}),
        ({"hidden_size": 5, "num_layers": 2}, {"x": SEQUENCE}),
        ({"hidden_size": 5, "num_layers": 2, "bidirectional": True}, {"x": SEVERAL}),
    ],
    "max_pool1d": [({"kernel_size": 2}, {"x": SIGNAL})],
    "max_pool2d": [({"kernel_size": 3, "stride": 2, "padding": 1}, {"x": IMAGE})],
    "max_pool3d": [({"kernel_size": 2, "dilation": 2}, {"x": VOLUME})],
    "moe": [
        ({"experts": 4, "top_k": 2, "hidden": 5}, {"x": SEQUENCE, "mask": KEEP}),
        ({"experts": 3, "top_k": 1, "hidden": 5, "activation": "gelu_tanh"}, {"x": GRID, "balance": TensorSpec(())}),
        (
            {"experts": 8, "top_k": 3, "hidden": 8, "scores": "sigmoid", "groups": 4, "top_groups": 2, "bias_rate": 0.1}
            | {"scale": 2.5},
            {"x": SEQUENCE},
        ),
        ({"experts": 4, "top_k": 4, "hidden": 5, "normalize": False}, {"x": VECTOR}),
        (
            {"experts": 4, "top_k": 2, "hidden": 5, "activation": "clipped_silu", "bias": True},
            {"x": GRID},
        ),
    ],
    "multiply": [({}, {"x.0": SEQUENCE, "x.1": SEQUENCE})],
    "one_hot": [({}, {"x": TOKENS})],
    "parameter": [
        ({"shape": (3, 5)}, {"x": TOKENS}),
        ({"shape": (), "init": {"type": "constant", "value": 2.5}}, {"x": TOKENS}),
    ],
    "patch_embedding": [({"patch_size": 2, "embedding_dim": 5}, {"x": IMAGE})],
    "permute": [({"dims": (0, 3, 1, 2)}, {"x": IMAGE})],
    "pixel_shuffle": [({"factor": 2}, {"x": IMAGE})],
    "pixel_unshuffle": [({"factor": 2}, {"x": IMAGE})],
    "prelu": [({}, {"x": IMAGE}), ({"per_channel": True}, {"x": IMAGE})],
    "reshape": [({"shape": ("B", 2, -1)}, {"x": IMAGE}), ({"shape": ("B",)}, {"x": TensorSpec((1,))})],
    "rms_norm": [
        ({}, {"x": SEQUENCE}),
        ({"zero_centered": True}, {"x": SEQUENCE}),
        ({"affine": False}, {"x": SEQUENCE}),
    ],
    "rnn": [({"hidden_size": 5, "nonlinearity": "relu"}, {"x": SEQUENCE}), ({"hidden_size": 5}, {"x": SEVERAL})],
    "self_attention": [
        ({"heads": 2, "qk_norm": True, "qk_norm_zero_centered": True, "scale": 0.3, "softcap": 5.0}, {"x": SEQUENCE}),
        ({"heads": 2}, {"x": SEQUENCE}),
        ({"heads": 4, "kv_heads": 2, "causal": True, "sinks": True, "window": 3}, {"x": SEQUENCE}),
        ({"heads": 2, "sinks": True}, {"x": SEQUENCE, "mask": KEEP}),
        ({"heads": 4, "kv_heads": 2, "causal": True, "rotary": {"base": 500}}, {"x": SEQUENCE, "mask": KEEP}),
        ({"heads": 2, "head_width": 6, "qk_norm": True, "fused": False, "bias": False}, {"x": SEQUENCE}),
        (
            {"heads": 4, "kv_heads": 2, "causal": True, "window": 3, "rotary": {}},
            {"x": SEVERAL, "mask": TensorSpec((1, 6), "bool")},
        ),
        ({"heads": 2}, {"x": GRID}),
        ({"heads": 4, "kv_heads": 2, "rotary": {}}, {"x": SEQUENCE, "segments": PLACES, "positions": PLACES}),
        (
            {"heads": 2, "causal": True, "rotary": {}},
            {"x": SEVERAL, "mask": TensorSpec((3, 6), "bool"), "segments": EACH, "positions": EACH},
        ),
    ],
    "sequence_pool": [
        *(({"mode": mode}, {"x": SEQUENCE}) for mode in ("mean", "max", "first", "last")),
        *(({"mode": mode}, {"x": SEQUENCE, "mask": KEEP}) for mode in ("mean", "max", "first", "last")),
        *(({"mode": mode}, {"x": SEVERAL, "mask": TensorSpec((3, 6), "bool")}) for mode in ("mean", "max", "last")),
    ],
    "sinusoidal_positions": [({}, {"x": SEQUENCE}), ({}, {"x": GRID}), ({}, {"x": SEQUENCE, "positions": PLACES})],
    "squeeze": [({}, {"x": TensorSpec((3, 1))})],
    "stack": [({}, {"x.0": SEQUENCE, "x.1": SEQUENCE})],
    "unflatten": [({"sizes": (2, -1)}, {"x": SEQUENCE})],
    "unsqueeze": [({"dim": 1}, {"x": SEQUENCE}), ({}, {"x": TensorSpec(())})],
    "upsample": [
        ({"scale_factor": 2}, {"x": SIGNAL}),
        ({"size": (9, 7), "mode": "bilinear"}, {"x": IMAGE}),
        ({"scale_factor": (1.5, 2.0, 1.0), "mode": "trilinear", "align_corners": True}, {"x": VOLUME}),
    ],
}
ANY_SHAPE = {
    "dropout1d": SIGNAL,
    "dropout2d": IMAGE,
    "dropout3d": VOLUME,
    "global_avg_pool": IMAGE,
    "global_max_pool": IMAGE,
}
OWN = [name for name, layer in LAYERS.items() if not layer.is_library]  # those: packs/pretrained/test_library_nodes.py
for _name in OWN:
    CASES.setdefault(_name, [({}, {"x": ANY_SHAPE.get(_name, SEQUENCE)})])

FLAT = [(name, *case) for name in sorted(CASES) for case in CASES[name]]
MARKED = [pytest.param(*row, marks=pytest.mark.packs if row[0] in TYPES else ()) for row in FLAT]
each_case = pytest.mark.parametrize(("name", "fields", "inputs"), MARKED, ids=[f"{row[0]}" for row in FLAT])
each_layer = pytest.mark.parametrize("name", OWN)


def values(spec: TensorSpec, batch: int, generator: torch.Generator) -> Tensor:
    dtype = getattr(torch, spec.dtype)
    shape = (batch, *spec.shape)
    if spec.is_floating:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 2 if spec.dtype == "bool" else spec.num_values or 1, shape, generator=generator).to(dtype)


def arguments(layer: Layer, inputs: Mapping[str, TensorSpec], batch: int, seed: int = 0) -> list[Tensor | None]:
    """As the graph calls a module: ports in order, None for an open one, a variadic port spread out."""
    generator = torch.Generator().manual_seed(seed)
    if getattr(layer, "num_embeddings", None) and isinstance(layer.num_embeddings, tuple):
        return [values(inputs["x"], batch, generator) % torch.tensor(layer.num_embeddings)]
    if layer.ports[-1].variadic:
        return [values(spec, batch, generator) for spec in inputs.values()]
    return [values(inputs[port.name], batch, generator) if port.name in inputs else None for port in layer.ports]


def outputs(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def started(layer: Layer, inputs: Mapping[str, TensorSpec], seed: int = 0) -> nn.Module:
    """Built on meta, materialised and filled as the graph does it."""
    with torch.device("meta"):
        module = layer.build(inputs)
    module.to_empty(device="cpu")
    for buffer in module.buffers():
        buffer.fill_(torch.nan) if buffer.is_floating_point() else buffer.fill_(-99)
    for name, parameter in module.named_parameters():
        layer.init_of(name, inputs).fill(parameter, Draws(seed, name, parameter.shape))
    for part in module.modules():
        if hasattr(part, "reset_buffers"):
            part.reset_buffers()
    return module


@each_layer
def test_a_layer_is_documented(name: str) -> None:
    layer = LAYERS[name]
    assert layer.model_fields["type"].default == name
    doc = inspect.getdoc(layer) or ""
    assert doc.partition("\n\n")[0].endswith(".")
    assert doc != inspect.getdoc(layer.__bases__[0])
    undocumented = [key for key in layer.model_fields if key != "type" and key not in field_docs(layer)]
    assert not undocumented
    assert "inplace" not in layer.model_fields
    layer.model_json_schema()


@each_layer
def test_ports_and_outputs_are_well_formed(name: str) -> None:
    layer = LAYERS[name]
    names = [port.name for port in layer.ports]
    assert len(set(names)) == len(names) > 0
    assert not any(port.variadic for port in layer.ports[:-1])
    assert not layer.ports[0].optional
    assert len(set(layer.outputs)) == len(layer.outputs) > 0
    assert not layer.mixes_samples or "over" in layer.model_fields


@each_case
def test_forward_keeps_the_batch_first(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    assert layer.check(inputs) is None
    module = started(layer, inputs)
    for training in (True, False):
        module.train(training)
        shapes = []
        for batch in (3, 5):
            given = arguments(layer, inputs, batch)
            before = [None if tensor is None else tensor.clone() for tensor in given]
            found = outputs(module(*given))
            assert len(found) == len(layer.outputs)
            assert all(tensor.shape[0] == batch for tensor in found)
            assert all(tensor.isfinite().all() for tensor in found)
            for tensor, old in zip(given, before, strict=True):
                assert tensor is None or torch.equal(tensor, old), "an input was changed in place"
            shapes.append([tensor.shape[1:] for tensor in found])
        assert shapes[0] == shapes[1]


@each_case
def test_meta_gives_the_same_shapes(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    with torch.device("meta"):
        module = layer.build(inputs)
    assert all(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])
    given = arguments(layer, inputs, 5)
    on_meta = outputs(module(*(None if tensor is None else tensor.to("meta") for tensor in given)))
    real = outputs(started(layer, inputs)(*given))
    assert [(t.shape, t.dtype) for t in on_meta] == [(t.shape, t.dtype) for t in real]


@each_case
def test_gradients_flow_in_float64(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    module = started(layer, inputs).double()
    given = [
        tensor.double().requires_grad_() if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in arguments(layer, inputs, 3)
    ]
    found = outputs(module(*given))
    if name == "one_hot":
        return
    assert all(tensor.dtype == torch.float64 for tensor in found)
    sum(
        (tensor * torch.linspace(1, 2, tensor.numel(), dtype=torch.float64).view(tensor.shape)).sum()
        for tensor in found
    ).backward()
    for tensor in given:
        if tensor is not None and tensor.is_floating_point():
            assert tensor.grad is not None
            assert tensor.grad.isfinite().all()
    for key, parameter in module.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@each_case
def test_float64_inputs_give_a_float64_module(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    wide = {
        port: TensorSpec(spec.shape, "float64", spec.num_values) if spec.is_floating else spec
        for port, spec in inputs.items()
    }
    assert layer.check(wide) is None
    found = outputs(started(layer, wide)(*arguments(layer, wide, 3)))
    if any(spec.is_floating for spec in inputs.values()):
        assert all(tensor.dtype == torch.float64 for tensor in found)


@each_case
def test_copies_and_pickles(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    module = started(layer, inputs).eval()
    given = arguments(layer, inputs, 3)
    expected = outputs(module(*given))
    shared = copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})
    assert all(a is b for a, b in zip(module.parameters(), shared.parameters(), strict=True))
    buffers = zip(module.buffers(), shared.buffers(), strict=True)
    assert all(a.data_ptr() != b.data_ptr() for a, b in buffers)
    for copied in (copy.deepcopy(module), shared, pickle.loads(pickle.dumps(module))):
        found = outputs(copied(*given))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


@each_case
def test_works_as_a_leaf_of_a_graph_module(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    module = started(layer, inputs).eval()
    given = arguments(layer, inputs, 3)
    root = nn.Module()
    root.add_module("node", module)
    graph = fx.Graph()
    places = [graph.placeholder(f"p{index}") for index in range(len(given))]
    graph.output(graph.call_module("node", tuple(places)))
    traced = fx.GraphModule(root, graph)
    assert {f"node.{key}" for key, _ in module.named_parameters()} == {key for key, _ in traced.named_parameters()}
    for a, b in zip(outputs(module(*given)), outputs(traced(*given)), strict=True):
        assert torch.equal(a, b)


@each_case
def test_runs_under_bfloat16_autocast(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    module = started(layer, inputs)
    given = [
        tensor.requires_grad_() if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in arguments(layer, inputs, 3)
    ]
    lowered = [tensor.bfloat16() if tensor is not None and tensor.is_floating_point() else tensor for tensor in given]
    in_half = CastParameters([module], torch.bfloat16)  # as a run has them; fields come in float32
    for parameters, some in ((nullcontext(), given), (nullcontext(), lowered), (in_half, given), (in_half, lowered)):
        module.train()
        with parameters, torch.autocast("cpu", dtype=torch.bfloat16):
            found = outputs(module(*some))
            assert all(tensor.isfinite().all() for tensor in found)
            total = sum(tensor.float().sum() for tensor in found)
            if total.requires_grad:
                total.backward()
        assert all(item.grad is None or item.grad.dtype == item.dtype for item in module.parameters())


@each_case
def test_default_start_is_torchs(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    """Every parameter has a rule, and building and filling leave the global generator alone on meta."""
    layer = LAYERS[name](**fields)
    state = torch.get_rng_state()
    one, two, other = started(layer, inputs), started(layer, inputs), started(layer, inputs, seed=1)
    assert torch.equal(state, torch.get_rng_state())
    for (key, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b), key
        assert layer.init_of(key, inputs).check(tuple(a.shape)) is None
    if any(layer.init_of(key, inputs).type not in ("ones", "zeros", "constant") for key, _ in one.named_parameters()):
        assert any(not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    with pytest.raises(LookupError, match="no parameter"):
        layer.init_of("nothing", inputs)


@each_case
def test_randomness_is_declared(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    module = started(layer, inputs).train()
    given = arguments(layer, inputs, 64)
    different = any(
        not torch.equal(a, b) for a, b in zip(outputs(module(*given)), outputs(module(*given)), strict=True)
    )
    assert different == layer.is_random
    module.eval()
    for a, b in zip(outputs(module(*given)), outputs(module(*given)), strict=True):
        assert torch.equal(a, b)


@each_case
def test_only_what_is_declared_mixes_samples(name: str, fields: dict[str, Any], inputs: dict[str, TensorSpec]) -> None:
    layer = LAYERS[name](**fields)
    if layer.is_random:
        return
    module = started(layer, inputs).train().double()
    given = [
        tensor.double() if tensor is not None and tensor.is_floating_point() else tensor
        for tensor in arguments(layer, inputs, 4)
    ]
    whole = outputs(module(*given))
    alone = outputs(module(*(None if tensor is None else tensor[:3] for tensor in given)))
    same = all(torch.allclose(a[:3], b, rtol=1e-12, atol=1e-12) for a, b in zip(whole, alone, strict=True))
    assert same != layer.mixes_samples


# --- the honest property: where `check` is silent, the module runs -------------------------------------------------

SEED = 1
DTYPES: tuple[DType, ...] = typing.get_args(DType)


def some_value(annotation: Any, rng: random.Random) -> Any:
    """A value of a field's type, small and often at an edge."""
    if annotation is type(None):
        return None
    if annotation is bool:
        return rng.random() < 0.5
    if annotation is int:
        return rng.choice([-2, -1, 0, 1, 1, 2, 2, 3, 4, 6, 8])
    if annotation is float:
        return rng.choice([0.0, 0.1, 0.5, 1.0, 1.5, 2.0, -1.0, 30.0])
    if annotation is str:
        return rng.choice(["microbatch", "1 sample", "2 samples", "3 samples", "nonsense"])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {key: some_value(field.annotation, rng) for key, field in annotation.model_fields.items()}
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return some_value(parts[0], rng)
    if origin is typing.Literal:
        return rng.choice(parts)
    if origin is tuple:
        return tuple(some_value(parts[0], rng) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 3, 4])))
    if origin in (typing.Union, types.UnionType):
        return some_value(rng.choice(parts), rng)
    raise AssertionError(annotation)


def some_layer(name: str, rng: random.Random) -> Layer | None:
    kind = LAYERS[name]
    fields = {
        key: some_value(field.annotation, rng)
        for key, field in kind.model_fields.items()
        if key != "type" and (field.is_required() or rng.random() < 0.5)
    }
    try:
        return kind(**fields)
    except ValidationError:
        return None


def some_spec(rng: random.Random, like: TensorSpec | None = None) -> TensorSpec:
    sizes = [1, 1, 2, 2, 3, 4, 4, 6, 8, 8, 12] + ([0] if rng.random() < 0.1 else [])
    shape = tuple(rng.choice(sizes) for _ in range(rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5])))
    if like is not None and rng.random() < 0.8:
        shape = list(like.shape)
        if shape and rng.random() < 0.5:
            shape[rng.randrange(len(shape))] = rng.choice(sizes)
        shape = tuple(shape[: rng.choice([1, len(shape), len(shape)])])
    dtype: DType = rng.choice(["float32"] * 12 + ["int64"] * 6 + ["bool"] * 3 + list(DTYPES))
    num_values = rng.choice([None, 1, 2, 5, 9]) if not dtype.startswith(("float", "bfloat", "bool")) else None
    return TensorSpec(shape, dtype, num_values)


def some_inputs(layer: Layer, rng: random.Random) -> dict[str, TensorSpec]:
    first = some_spec(rng)
    found: dict[str, TensorSpec] = {}
    for port in layer.ports:
        names = [f"{port.name}.{n}" for n in range(rng.randint(1, 3))] if port.variadic else [port.name]
        if port.optional and rng.random() < 0.4:
            continue
        for name in names:
            spec = some_spec(rng, first) if found else first
            if port.name == "mask" and rng.random() < 0.8:
                spec = TensorSpec(spec.shape, "bool")
            found[name] = spec
    return found


def near_case(name: str, rng: random.Random) -> Case:
    """A working case with one thing changed."""
    fields, inputs = copy.deepcopy(rng.choice(CASES[name]))
    if rng.random() < 0.5:
        port = rng.choice(list(inputs))
        inputs[port] = some_spec(rng, inputs[port])
    elif keys := [key for key in LAYERS[name].model_fields if key != "type"]:
        key = rng.choice(keys)
        fields[key] = some_value(LAYERS[name].model_fields[key].annotation, rng)
    return fields, inputs


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@each_layer
def test_where_check_is_silent_the_module_runs(name: str) -> None:
    rng = random.Random(f"{name} {SEED}")
    ran = 0
    for attempt in range(250):
        if attempt % 2:
            fields, inputs = near_case(name, rng)
            try:
                layer: Layer | None = LAYERS[name](**fields)
            except ValidationError:
                continue
        else:
            layer = some_layer(name, rng)
            inputs = some_inputs(layer, rng) if layer else {}
        if layer is None:
            continue
        shape_error = layer.check(inputs)
        told = f"{layer!r} on { {port: f'{spec} {spec.dtype} {spec.num_values}' for port, spec in inputs.items()} }"
        if shape_error is not None:
            check_shape_error(layer, shape_error, told)
            continue
        ran += 1
        try:
            module = started(layer, inputs)
            for batch in (3, 1):
                found = outputs(module(*arguments(layer, inputs, batch)))
                assert len(found) == len(layer.outputs)
                assert all(tensor.shape[0] == batch for tensor in found)
                if batch == 3:
                    assert all(tensor.isfinite().all() for tensor in found if tensor.dtype != torch.float16)
        except Exception as error:
            raise AssertionError(told) from error
    assert ran > 5


def check_shape_error(layer: Layer, shape_error: ShapeError, told: str) -> None:
    assert isinstance(shape_error, ShapeError), told
    assert shape_error.message
    assert not shape_error.message.endswith("."), shape_error.message
    assert not shape_error.message[0].isupper() or shape_error.message[0] == "`", shape_error.message
    if shape_error.field is not None:
        assert shape_error.field in type(layer).model_fields, told
    if shape_error.port is not None:
        assert shape_error.port.partition(".")[0] in {port.name for port in layer.ports}, told
