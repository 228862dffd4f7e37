"""Packed documents by their lengths: what torch's varlen attention is asked for on a GPU, with a double of it that
loops over the documents. The kernel needs a GPU; its shapes and its backward are traced on tensors without values."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from declarative_train.components.layers import LAYERS
from declarative_train.components.layers.modules import attention, documents
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.engine.step.selective import VARLEN

T, D = 24, 32
SEGMENTS = torch.tensor(
    [[1] * 5 + [2] * 12 + [3] * 7, [1] * 24, [1] + [2] * 20 + [0] * 3]  # 0: padding, which is a document, too
)


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Double:
    """torch's function, document by document; `calls` counts."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Tensor:
        self.calls += 1
        assert cu_seq_q.dtype == torch.int32
        assert max_q == int(cu_seq_q.diff().max())
        ends = cu_seq_q.tolist()
        assert (ends[0], ends[-1]) == (0, len(query))
        parts = []
        for start, stop in pairwise(ends):
            q, k, v = (each[start:stop].transpose(0, 1) for each in (query, key, value))
            place = torch.arange(stop - start)
            behind = place[:, None] - place[None, :]
            left, right = window_size
            seen = (behind <= left if left >= 0 else behind == behind) & (behind >= -right if right >= 0 else True)
            parts.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1))
        return torch.cat(parts)


@pytest.fixture
def double(monkeypatch: pytest.MonkeyPatch) -> Double:
    made = Double()
    monkeypatch.setattr(documents, "varlen", lambda: made)
    monkeypatch.setattr(documents, "has_kernel", lambda like: True)
    monkeypatch.setattr(documents, "_HALF", (torch.float64,))
    return made


def layer(**keys: Any) -> torch.nn.Module:
    specs = {
        "x": TensorSpec((T, D)),
        "segments": TensorSpec((T,), "int64", T),
        "positions": TensorSpec((T,), "int64", T),
    }
    torch.manual_seed(0)
    component = LAYERS["self_attention"].model_validate({"type": "self_attention", "heads": 4, **keys})
    assert component.check(specs) is None
    module = component.build(specs).double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


def restarted(segments: Tensor) -> Tensor:
    places = torch.zeros_like(segments)
    for row, numbers in enumerate(segments.tolist()):
        for at in range(1, T):
            places[row, at] = places[row, at - 1] + 1 if numbers[at] == numbers[at - 1] else 0
    return places


def result(module: torch.nn.Module, x: Tensor, segments: Tensor | None, positions: Tensor | None) -> list[Tensor]:
    """The output, and the gradients of the input and the parameters."""
    given = x.clone().requires_grad_()
    y = module(given, None, segments, positions)
    weight = torch.linspace(-1, 1, D, dtype=torch.float64)
    return [y.detach(), *torch.autograd.grad((y * weight).sum(), [given, *module.parameters()])]


@pytest.mark.parametrize(
    "keys",
    [
        {"causal": True, "rotary": {"base": 100.0}},
        {"causal": False},
        {"causal": True, "window": 4, "kv_heads": 2},
        {"causal": True, "scale": 0.3, "qk_norm": True, "rotary": {"base": 100.0}},
    ],
)
def test_they_equal_the_mask_and_each_document_by_itself(keys: dict[str, Any], double: Double) -> None:
    module = layer(**keys)
    x = torch.randn(3, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    positions = restarted(SEGMENTS)
    found = result(module, x, SEGMENTS, positions)
    assert double.calls == 1
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(documents, "has_kernel", lambda like: False)
        masked = result(module, x, SEGMENTS, positions)
    assert double.calls == 1
    alone = [torch.zeros_like(each) for each in found]
    for row, numbers in enumerate(SEGMENTS.tolist()):
        for number in dict.fromkeys(numbers):
            here = SEGMENTS[row] == number
            one = result(module, x[row : row + 1, here], None, None)
            alone[0][row, here], alone[1][row, here] = one[0][0], one[1][0]
            for total, each in zip(alone[2:], one[2:], strict=True):
                total += each
    for each, other, single in zip(found, masked, alone, strict=True):
        torch.testing.assert_close(each, other, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(each, single, rtol=1e-10, atol=1e-12)


def test_the_table_is_made_once_for_all_layers(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Tensor] = []
    known = documents.documents

    def counted(segments: Tensor) -> documents.Documents | None:
        made.append(segments)
        return known(segments)

    monkeypatch.setattr(documents, "documents", counted)
    model = torch.nn.Sequential(layer(causal=True), layer(causal=True))
    attention.share_tables(model)
    x = torch.zeros(3, T, D, dtype=torch.float64)
    with torch.inference_mode():
        for segments in (SEGMENTS, SEGMENTS.clone()):
            for part in model:
                part(x, None, segments, None)
    assert (len(made), double.calls) == (2, 4)


def test_what_the_kernel_cannot_do_takes_the_mask(double: Double) -> None:
    torn = SEGMENTS.clone()
    torn[0, -1] = 1  # number 1 comes again: it sees the first five
    assert documents.documents(torn) is None
    x = torch.randn(3, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    module = layer(causal=True)
    result(module, x, torn, None)
    for keys in ({"softcap": 5.0}, {"dropout": 0.1}):
        result(layer(causal=True, **keys), x, SEGMENTS, None)
    module(x, torch.ones(3, T, dtype=torch.bool), SEGMENTS, None)
    assert double.calls == 0


def test_on_this_processor_and_in_full_precision_it_is_a_mask() -> None:
    queries = torch.zeros(1, 4, T, 8, dtype=torch.bfloat16)
    assert not documents.serves(queries, 0.0, False)
    with FakeTensorMode():
        there = torch.empty(1, 4, T, 8, dtype=torch.bfloat16)
        assert not documents.serves(there, 0.0, False)
        with documents.treat_as_gpu(True):
            assert documents.serves(there, 0.0, False) == (documents.varlen() is not None)
            assert not documents.serves(there.float(), 0.0, False)
            assert not documents.serves(there, 0.1, False)
            assert not documents.serves(there, 0.0, True)
            assert not documents.serves(there[..., :6], 0.0, False)
        with documents.treat_as_gpu(False):
            assert not documents.serves(there, 0.0, False)


def test_torchs_own_function_takes_what_it_is_given() -> None:
    """Its shapes, forward and backward, and that nothing of T x T lives."""
    if documents.varlen() is None:
        pytest.skip("this torch has no varlen attention with a window")
    length = 512
    with FakeTensorMode():
        q, k, v = (torch.empty(2, heads, length, 16, dtype=torch.bfloat16, requires_grad=True) for heads in (4, 2, 2))
        segments = torch.empty(2, length, dtype=torch.int64)
        saved: list[int] = []

        def held(each: Tensor) -> Tensor:
            saved.append(each.numel())
            return each

        with torch.autograd.graph.saved_tensors_hooks(held, lambda each: each):
            found = documents.documents(segments)
            assert found is not None
            operations = Operations()
            with operations:
                documents.attend_documents(q, k, v, found, True, 64, None)
            assert VARLEN in operations.seen  # what selective checkpointing keeps
            saved.clear()
            y = documents.attend_documents(q, k, v, found, True, 64, None)
        assert y.shape == q.shape
        assert [each.shape for each in torch.autograd.grad(y.sum(), (q, k, v))] == [q.shape, k.shape, v.shape]
        assert max(saved) < length * length
