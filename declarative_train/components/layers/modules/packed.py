"""Frozen weights stored in fewer bits ("packed", `components/storages.py`), with the products and look-ups that use
them.

nf4    4-bit NormalFloat (Dettmers et al., QLoRA, 2023, https://arxiv.org/abs/2305.14314, appendix E): 16 levels at
       quantiles of a normal distribution. Unlike in the paper, no block of 64 extends over the end of a row, so
       that rows can be sharded, and its scale is a bfloat16
int8   127 levels on either side of zero, with the same blocks and scales

Unpacking bytes and packing the result gives the same bytes. R rows, C columns, N blocks of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from declarative_train.components.layers.modules.divided import find_cuts
from declarative_train.components.storages import BLOCK, StorageName, code_bytes, num_blocks, row_bytes
from declarative_train.core.cuts import RankCut

LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
LARGEST: dict[StorageName, int] = {"int8": 127, "nf4": 1}  # the code of the largest magnitude in a block
AT_ONCE = 1 << 24
"""Number of elements packed or unpacked at a time, which bounds the temporary memory."""


class Packed(nn.Module):
    """Number format of a weight that is packed into bytes; for nf4 also the table that unpacks it. The module that has
    the weight stores this object as `packed`, and the packed weight as the parameter `weight`."""

    pairs: Tensor

    def __init__(self, storage: StorageName, columns: int, device: torch.device) -> None:
        super().__init__()
        self.storage, self.columns = storage, columns
        if storage == "nf4":
            # as int32, so that casting the model to another precision does not change it
            self.register_buffer("pairs", torch.empty(256, 2, dtype=torch.int32, device=device), persistent=False)

    def reset_buffers(self) -> None:
        """Write the table that unpacks nf4: for each of the 256 bytes, the two numbers that the byte encodes. Other
        formats have no table.
        """
        if self.storage == "nf4":
            byte = torch.arange(256)
            levels = torch.tensor(LEVELS, dtype=torch.float32)
            self.pairs.copy_(torch.stack([levels[byte // 16], levels[byte % 16]], 1).view(torch.int32))

    def divide(self, cut: RankCut, rows: int) -> tuple[int, ...]:
        """Store how many columns this rank's part of the weight has, and return the packed shape of the part: (rows,
        bytes per row). `cut`: how the weight is divided over the ranks. `rows`: number of rows of the whole weight."""
        rows, self.columns = cut.local_shape((rows, self.columns))
        return rows, row_bytes(self.storage, self.columns)

    def extra_repr(self) -> str:
        return f"{self.storage}, columns={self.columns}"

    @property
    def tables(self) -> Tensor | None:
        return self.pairs if self.storage == "nf4" else None

    def unpack(self, packed: Tensor, dtype: torch.dtype) -> Tensor:
        return unpack(packed, self.tables, self.storage, self.columns, dtype)

    def round_trip(self, values: Tensor) -> Tensor:
        """Return `values` (R, C) rounded to the numbers that the format can store, by packing and unpacking them."""
        self.reset_buffers()
        return self.unpack(pack(values.float(), self.storage), torch.float32).to(values.dtype)


def pack(values_RC: Tensor, storage: StorageName) -> Tensor:
    """Return the weights `values_RC` in the number format `storage`, packed to uint8 (R, bytes of a row)."""
    rows, columns = values_RC.shape
    packed = torch.empty(rows, row_bytes(storage, columns), dtype=torch.uint8, device=values_RC.device)
    for part in _parts(rows, columns):
        packed[part] = _pack(values_RC[part], storage)
    return packed


def _pack(values: Tensor, storage: StorageName) -> Tensor:
    rows, columns = values.shape
    if storage == "bf16":
        return values.to(torch.bfloat16).contiguous().view(torch.uint8)
    filled = F.pad(values.float(), (0, num_blocks(columns) * BLOCK - columns))
    blocks = filled.view(rows, -1, BLOCK)
    scales = (blocks.abs().amax(-1) / LARGEST[storage]).to(torch.bfloat16)
    wide = scales.float().unsqueeze(-1)
    ratios = blocks / torch.where(wide == 0, 1.0, wide)
    if storage == "int8":
        codes = ratios.round().clamp(-127, 127).to(torch.int8).view(rows, -1).view(torch.uint8)
    else:
        levels = torch.tensor(LEVELS, dtype=torch.float32, device=values.device)
        nearest = torch.bucketize(ratios, (levels[1:] + levels[:-1]) / 2, out_int32=True).view(rows, -1)
        codes = (nearest[:, ::2] * 16 + nearest[:, 1::2]).to(torch.uint8)
    return torch.cat([codes, scales.contiguous().view(torch.uint8)], 1)


def unpack(packed: Tensor, pairs: Tensor | None, storage: StorageName, columns: int, dtype: torch.dtype) -> Tensor:
    """Return the weights (R, C) that the bytes `packed` encode, computed in float32 and then rounded to `dtype`.
    `pairs`: the look-up table of nf4 (`Packed.pairs`); None for other formats. `columns`: C."""
    if storage == "bf16":
        return packed.view(torch.bfloat16).to(dtype)
    parts = _parts(len(packed), columns)
    if len(parts) == 1:
        return _unpack(packed, pairs, storage, columns).to(dtype)
    values = torch.empty(len(packed), columns, dtype=dtype, device=packed.device)
    for part in parts:
        values[part] = _unpack(packed[part], pairs, storage, columns)
    return values


def _unpack(packed: Tensor, pairs: Tensor | None, storage: StorageName, columns: int) -> Tensor:
    rows, end = len(packed), code_bytes(storage, columns)
    scales_RN1 = packed[:, end:].view(torch.bfloat16).float().unsqueeze(-1)
    if pairs is None:
        blocks = packed[:, :end].view(torch.int8).float().reshape(rows, -1, BLOCK)
    else:
        blocks = F.embedding(packed[:, :end].int(), pairs.view(torch.float32)).view(rows, -1, BLOCK)
    return blocks.mul_(scales_RN1).view(rows, -1)[:, :columns]


def _parts(rows: int, columns: int) -> list[slice]:
    step = max(1, AT_ONCE // max(1, columns))
    return [slice(first, min(first + step, rows)) for first in range(0, max(1, rows), step)]


class _Product(torch.autograd.Function):
    """Differentiable matrix product with a packed weight, x (..., C) to (..., R). The forward and the backward each
    unpack the weight and then release it, to save memory.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, pairs: Tensor | None, storage: StorageName
    ) -> Tensor:
        ctx.save_for_backward(packed, pairs)
        ctx.storage, ctx.columns = storage, x.shape[-1]
        return F.linear(x, unpack(packed, pairs, storage, x.shape[-1], x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        packed, pairs = ctx.saved_tensors
        dx = dbias = None
        if ctx.needs_input_grad[0]:
            dx = gradient @ unpack(packed, pairs, ctx.storage, ctx.columns, gradient.dtype)
        if ctx.needs_input_grad[2]:
            dbias = gradient.flatten(0, -2).sum(0)
        return dx, None, dbias, None, None


def product(x: Tensor, weight: Tensor, bias: Tensor | None, packed: Packed | None) -> Tensor:
    """Return x W^T + b, where W is `weight` and b is `bias`. `packed`: number format of `weight`; None if `weight` is
    an ordinary tensor.
    """
    if packed is None:
        return F.linear(x, weight, bias)
    dtype = compute_dtype(x.device.type, x.dtype)
    bias = None if bias is None else bias.to(dtype)
    made: Tensor = _Product.apply(x.to(dtype), weight, bias, packed.tables, packed.storage)  # type: ignore[no-untyped-call]
    return made


def look_up(ids: Tensor, weight: Tensor, packed: Packed) -> Tensor:
    """Return the rows (..., C) of an embedding table at the indices `ids` (...), in the compute dtype. `weight`: the
    table as packed bytes. `packed`: its format. Only these rows are unpacked."""
    dtype = compute_dtype(weight.device.type, torch.get_default_dtype())
    rows = packed.unpack(weight.index_select(0, ids.flatten()), dtype)
    return rows.view(*ids.shape, packed.columns)


def compute_dtype(device_type: str, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype in which an autograd function must compute on `device_type`: `otherwise` if autocast is off or
    `otherwise` is float64, else the dtype of autocast. The function must convert its inputs itself, because autocast
    has no effect inside it."""
    if otherwise == torch.float64 or not torch.is_autocast_enabled(device_type):
        return otherwise
    return torch.get_autocast_dtype(device_type)


class PackedLinear(nn.Linear):
    """Linear layer with a packed weight. `hold` makes one from an `nn.Linear` by changing its class."""

    packed: Packed

    def forward(self, input: Tensor) -> Tensor:
        return product(input, self.weight, self.bias, self.packed)


def weights_in(module: nn.Module) -> Iterator[str]:
    """Yield the names of the weights in `module` that can be packed: the weights of linear layers and
    embeddings.
    """
    for path, part in module.named_modules():
        if _can_hold(part):
            yield f"{path}.weight" if path else "weight"


def _can_hold(part: nn.Module) -> bool:
    """Return whether the weight of the module `part` can be packed. It can if `part` is an `nn.Linear`, or a module of
    dtrain with an attribute `packed`. Examples are an adapter and the output layer of a chunked loss.
    """
    return type(part) is nn.Linear or "packed" in part.__dict__


def hold(roots: Sequence[nn.Module], storages: Mapping[str, StorageName]) -> None:
    """Replace weights of the modules `roots` by empty packed weights, which are filled later within `as_written`.
    `storages`: {name of a weight in `roots[0]`: its number format}. A weight that several modules share is replaced in
    all of them."""
    named = roots[0].named_parameters(remove_duplicate=False)
    names = {id(item): name for name, item in named if name in storages}
    made: dict[int, nn.Parameter] = {}
    for part in dict.fromkeys(part for root in roots for part in root.modules()):
        for attribute, item in part._parameters.items():
            if item is None or id(item) not in names:
                continue
            storage = storages[names[id(item)]]
            rows, columns = item.shape
            if id(item) not in made:
                empty = torch.empty(rows, row_bytes(storage, columns), dtype=torch.uint8, device=item.device)
                made[id(item)] = nn.Parameter(empty, requires_grad=False)
            part._parameters[attribute] = made[id(item)]
            if type(part) is nn.Linear:
                part.__class__ = PackedLinear
            if _can_hold(part) or isinstance(part, PackedLinear):
                part.packed = Packed(storage, columns, item.device)


def find_packed(module: nn.Module) -> dict[str, Packed]:
    """Return a dict from parameter name to number format, for the packed weights in `module`. A weight that several
    modules share is listed under each of its names.
    """
    parts = [part for part in module.modules() if isinstance(getattr(part, "packed", None), Packed)]
    if not parts:
        return {}
    held = {id(part._parameters["weight"]): part.packed for part in parts}
    return {
        name: held[id(item)]  # type: ignore[misc]
        for name, item in module.named_parameters(remove_duplicate=False)
        if id(item) in held
    }


def as_computed(module: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of `module`, in which each packed or divided weight is replaced by a meta tensor with the
    shape of the whole, unpacked weight."""
    found: dict[str, Tensor] = module.state_dict(keep_vars=True)
    packed, made = find_packed(module), {}
    for name in packed:
        item = found[name]
        if id(item) not in made:
            whole = torch.empty(item.shape[0], packed[name].columns, device="meta")
            made[id(item)] = nn.Parameter(whole, requires_grad=False)
        found[name] = made[id(item)]
    for name, cut in find_cuts(module).items():
        item = found[name]
        if id(item) not in made:
            whole = torch.empty(cut.whole_shape(item.shape), device="meta")
            made[id(item)] = nn.Parameter(whole, item.requires_grad)
        found[name] = made[id(item)]
    return found


def unpack_tensor(tensor: Tensor, packed: Packed) -> Tensor:
    """Return the packed weight `tensor` in float32. An unsharded weight is unpacked on the CPU, because the result may
    not fit on the GPU. A sharded weight stays sharded and on its device: each rank unpacks its own rows.
    """
    if hasattr(tensor, "placements"):
        return _with_local(tensor, packed, packed.unpack(_local(tensor), torch.float32))
    tables = None if packed.tables is None else packed.tables.cpu()
    return unpack(tensor.detach().cpu(), tables, packed.storage, packed.columns, torch.float32)


@contextmanager
def as_written(tensor: Tensor, packed: Packed | None, *, on_host: bool = False) -> Iterator[Tensor]:
    """Yield the tensor to which the caller writes the new values of the weight `tensor`. If `packed` is None, this is
    `tensor` itself. Otherwise it is a float32 tensor, which is packed into `tensor` at the end of the `with` block.
    `on_host`: create the float32 tensor on the CPU, unless the weight is sharded. This saves GPU memory if many weights
    are written at once.
    """
    if packed is None:
        yield tensor
        return
    local = _local(tensor)
    device = "cpu" if on_host and not hasattr(tensor, "placements") else local.device
    values = torch.zeros(len(local), packed.columns, dtype=torch.float32, device=device)
    yield _with_local(tensor, packed, values)
    local.copy_(pack(values.to(local.device), packed.storage))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _with_local(tensor: Tensor, packed: Packed, values: Tensor) -> Tensor:
    if not hasattr(tensor, "placements"):
        return values
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    shape = torch.Size((tensor.shape[0], packed.columns))
    return DTensor.from_local(
        values, tensor.device_mesh, tensor.placements, run_check=False, shape=shape, stride=(packed.columns, 1)
    )
