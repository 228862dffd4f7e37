"""plugin-changes-input (R138)

Finds: a layer of a plugin whose `forward` writes into its input (`x += 1`, `x.clamp_()`, `nn.ReLU(inplace=True)` as
       the first thing that it does). Seen with `--plugins`, and by `run`.
Why:   another node, or the loss, may read the same tensor and would see other numbers; in some modes the input is a
       view that torch does not let anybody write to.
Bad:
    plugins: [in_place.py]   # def forward(self, x): return x.mul_(2)
    model:
      graph:
        hidden: {type: doubled, input: pixels}
Good:
    plugins: [my_layers.py]  # def forward(self, x): return x
    model:
      graph:
        hidden: {type: my_layer, input: pixels}
"""

from __future__ import annotations

from declarative_train.diagnostics.diagnostic import Diagnostic, error
from declarative_train.terms.span import Span


def plugin_changes_input(span: Span, name: str, port: str) -> Diagnostic:
    return error(
        "R138",
        span,
        f"`{name}` writes into its input `{port}`, which other nodes may read",
        f"make a new tensor in `forward` (`{port} = {port} + 1`, not `{port} += 1`; `inplace=False`)",
    )
