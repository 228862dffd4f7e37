"""plugin-tensor-unregistered (R137)

Finds: a layer of a plugin that holds a tensor as a plain attribute, neither a parameter nor a buffer. Seen with
       `--plugins`, and by `run`.
Why:   such a tensor stays on the CPU when the model goes to a GPU, where the first step fails; it keeps its precision,
       is not trained, and is in no checkpoint.
Bad:
    plugins: [plain_tensor.py]   # self.centre = torch.zeros(64)
    model:
      graph:
        hidden: {type: centred, input: pixels}
Good:
    plugins: [my_layers.py]      # self.register_buffer("centre", torch.zeros(64))
    model:
      graph:
        hidden: {type: my_layer, input: pixels}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.terms.span import Span


def plugin_tensor_unregistered(span: Span, name: str, tensors: Sequence[str]) -> Diagnostic:
    others = f" (and {len(tensors) - 1} more)" if len(tensors) > 1 else ""
    *owner, attribute = tensors[0].split(".")
    return warning(
        "R137",
        span,
        f"`{name}` holds the tensor `{tensors[0]}`{others}, which is neither a parameter nor a buffer: it does not go "
        "to a GPU with the model and is in no checkpoint",
        f'`{".".join(["self", *owner])}.register_buffer("{attribute}", ...)`, or `nn.Parameter` if it is to be trained',
    )
