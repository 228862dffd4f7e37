"""scalar-in-shards (R136)

Finds: a parameter without dimensions, such as a plugin's logit scale, in a mode that shards parameters. Seen with
       `--plugins`, and by `run`.
Why:   shards are cut along the first dimension, which a scalar does not have; torch's `fully_shard` refuses it.
Bad:
    plugins: [scalar.py]      # self.scale = nn.Parameter(torch.tensor(1.0))
    model:
      graph:
        hidden: {type: scaled_by_one, input: pixels}
    parallelism: fsdp
    layout: {gpus: 2}
Good:
    plugins: [scalar.py]
    model:
      graph:
        hidden: {type: scaled_by_one, input: pixels}
    parallelism: ddp
    layout: {gpus: 2}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def scalar_in_shards(span: Span, names: Sequence[str]) -> Diagnostic:
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return error(
        "R136",
        span,
        f"the parameter `{names[0]}`{others} has no dimensions, so it cannot be sharded",
        "give it one dimension of size 1, `torch.ones(1)` for `torch.tensor(1.0)`, or take another mode",
    )
