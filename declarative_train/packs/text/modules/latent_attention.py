"""Latent attention: keys and values of all heads are linear maps of one small vector per position.

B batch, T queries, S keys, D width, H heads, K width of a query and key, V width of a value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from declarative_train.components.layers.modules.attention import (
    Heads,
    attend,
    attend_allowed,
    visible_keys,
    within_segments,
)
from declarative_train.components.layers.modules.divided import TensorRanks
from declarative_train.components.layers.modules.divided_linear import divide_linear
from declarative_train.components.layers.modules.norms import RmsNormModule
from declarative_train.components.layers.modules.rotary import Angles, RotaryTables, rotate
from declarative_train.components.layers.modules.sequences import as_rows, mask_as_rows, restore_dims


@dataclass(frozen=True, slots=True)
class LatentHeads:
    """Sizes and options of latent attention. `query_rank`: length of the small vector from which queries are computed;
    None: they are computed directly from the input."""

    num_heads: int
    query_rank: int | None
    kv_rank: int
    plain_width: int
    rotary_width: int
    value_width: int
    rotary: Angles
    interleaved: bool
    bias: bool
    norm_eps: float

    @property
    def key_width(self) -> int:
        return self.plain_width + self.rotary_width

    @property
    def scale(self) -> float:
        return float(self.key_width**-0.5 * self.rotary.product_factor)


class LatentAttentionModule(nn.Module):
    """Latent attention of x (B, ..., T, D), result (B, ..., T, D). Segments and positions are integers (B, ..., T) or
    None. `num_positions`: the largest position plus one, if positions are given."""

    def __init__(self, width: int, heads: LatentHeads, dtype: torch.dtype, num_positions: int = 0) -> None:
        super().__init__()
        self.latent_heads, self.num_positions = heads, num_positions
        number, rank = heads.num_heads, heads.query_rank
        if rank is None:
            self.query = nn.Linear(width, number * heads.key_width, False, dtype=dtype)
        else:
            self.query_down = nn.Linear(width, rank, heads.bias, dtype=dtype)
            self.query_norm = RmsNormModule((rank,), heads.norm_eps, True, dtype)
            self.query_up = nn.Linear(rank, number * heads.key_width, False, dtype=dtype)
        self.latent = nn.Linear(width, heads.kv_rank + heads.rotary_width, heads.bias, dtype=dtype)
        self.latent_norm = RmsNormModule((heads.kv_rank,), heads.norm_eps, True, dtype)
        self.key_value = nn.Linear(heads.kv_rank, number * (heads.plain_width + heads.value_width), False, dtype=dtype)
        self.out = nn.Linear(number * heads.value_width, width, heads.bias, dtype=dtype)
        self.heads = Heads(number, number, heads.key_width, scale=heads.scale)
        self.tables = RotaryTables()
        self.ranks: TensorRanks | None = None

    def divide(self, ranks: TensorRanks) -> None:
        """Make the module compute only this rank's heads. The caller then replaces each parameter by this rank's part
        of it."""
        number = self.heads.num_heads // ranks.size
        self.heads = replace(self.heads, num_heads=number, num_kv_heads=number)
        query = "query" if self.latent_heads.query_rank is None else "query_up"
        for name, kind in ((query, "heads"), ("key_value", "heads"), ("out", "rows")):
            setattr(self, name, divide_linear(getattr(self, name), kind, ranks))
        self.ranks = ranks

    def forward(self, x: Tensor, segments: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        x = x if self.ranks is None else self.ranks.enter(x)
        q_NHTK, k_NHTK, v_NHTV = self.project(as_rows(x), positions=mask_as_rows(positions, x))
        parts = mask_as_rows(segments, x)
        if parts is None:
            y_NHTV = attend(q_NHTK, k_NHTK, v_NHTV, None, True, 0.0, self.heads)
        else:
            allowed = within_segments(parts, None, True, None)
            y_NHTV = attend_allowed(q_NHTK, k_NHTK, v_NHTV, allowed, 0.0, True, self.heads)
        return restore_dims(self._join(y_NHTV), x)

    def project(self, x: Tensor, start: int = 0, positions: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys (B, H, T, K) and values (B, H, T, V) of `x`. Without `positions`, the first position
        of `x` has the number `start`."""
        sizes, number = self.latent_heads, self.heads.num_heads
        queries = self.query(x) if sizes.query_rank is None else self.query_up(self.query_norm(self.query_down(x)))
        q_BHTK = queries.unflatten(-1, (number, -1)).transpose(1, 2)
        q_plain, q_turned = q_BHTK.split([sizes.plain_width, sizes.rotary_width], -1)
        vector, k_turned = self.latent(x).split([sizes.kv_rank, sizes.rotary_width], -1)
        k_turned = k_turned.unsqueeze(1)  # one head of rotary keys for all heads
        both = self.key_value(self.latent_norm(vector)).unflatten(-1, (number, -1)).transpose(1, 2)
        k_plain, v_BHTV = both.split([sizes.plain_width, sizes.value_width], -1)
        length = start + x.shape[1] if positions is None else self.num_positions
        cos, sin = self.tables(length, sizes.rotary_width, sizes.rotary, x)
        if positions is not None:
            cos, sin = (part[positions.long()].unsqueeze(1) for part in (cos, sin))  # (B, 1, T, rotary_width / 2)
        elif start:
            cos, sin = cos[start:], sin[start:]
        if sizes.interleaved:
            q_turned, k_turned = _put_pairs_apart(q_turned), _put_pairs_apart(k_turned)
        q_turned, k_turned = rotate(q_turned, cos, sin), rotate(k_turned, cos, sin)
        k_turned = k_turned.expand(-1, number, -1, -1)
        return torch.cat([q_plain, q_turned], -1), torch.cat([k_plain, k_turned], -1), v_BHTV

    def attend_last(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSV: Tensor) -> Tensor:
        """Return the output (B, T, D) of attention for the queries of the last T of S positions."""
        seen = visible_keys(q_BHTK.shape[2], k_BHSK.shape[2], None, q_BHTK.device)
        return self._join(attend(q_BHTK, k_BHSK, v_BHSV, seen[None], False, 0.0, self.heads))

    def _join(self, y_BHTV: Tensor) -> Tensor:
        y: Tensor = self.out(y_BHTV.transpose(1, 2).flatten(2))
        return y


def _put_pairs_apart(x: Tensor) -> Tensor:
    """Return x (..., K) with its last dimension reordered: first all elements with even index, then all with odd index.
    Queries and keys are both reordered, so their products stay the same."""
    return x.view(*x.shape[:-1], -1, 2).mT.flatten(-2)
