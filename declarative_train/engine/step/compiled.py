"""Units handed to torch's compiler: equal blocks are compiled once, and none is left out in silence.

Every block is an `fx.GraphModule`, and each of those has a class and a `forward` of its own, which the compiler takes
for other code: 32 equal blocks of a transformer were traced and compiled 32 times. Where two blocks are the same but
for their values, the second takes the class of the first; its parameters are inputs of what was compiled, so one
program serves both. And after eight programs for one function (`recompile_limit`) torch lets the rest of the calls run
uncompiled, with a line in the log: the limit is set to what the units may need.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import fx, nn

from declarative_train.components.layers.modules.attention import has_flash
from declarative_train.components.losses.modules.chunked import ChunkedHead

# of one unit: training and evaluation, a full and a last batch, and what torch makes anew for dynamic sizes
PROGRAMS_OF_A_UNIT = 8


def compile_units(module: nn.Module, units: Sequence[nn.Module]) -> None:
    """In place, names unchanged. The head of a loss in chunks is called as it is."""
    from torch._dynamo import config

    for part in module.modules():
        if isinstance(part, ChunkedHead):
            part.forward = torch.compiler.disable(part.forward)  # type: ignore[method-assign, no-untyped-call]
    torch.compiler.assume_constant_result(has_flash)  # type: ignore[no-untyped-call]
    wanted = PROGRAMS_OF_A_UNIT * len(units)
    config.recompile_limit = max(config.recompile_limit, wanted)
    config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, wanted)
    for unit in units:
        if not isinstance(unit, ChunkedHead):
            unit.compile()


def share_classes(module: nn.Module) -> None:
    """Blocks that are equal but for the values of their tensors become instances of one class, innermost first."""
    seen: dict[Hashable, type[fx.GraphModule]] = {}

    def visit(part: nn.Module) -> None:
        for child in part.children():
            visit(child)
        if isinstance(part, fx.GraphModule):
            part.__class__ = seen.setdefault(_makeup(part), type(part))

    visit(module)


def _makeup(part: fx.GraphModule) -> Hashable:
    """Its code and what that calls, the settings of what is in it, and the tensors' names, shapes and dtypes."""
    calls = tuple(node.target for node in part.graph.nodes if node.op == "call_function")
    modules = tuple((name, type(child), child.extra_repr()) for name, child in part.named_modules() if name)
    tensors = tuple(
        (name, tensor.shape, tensor.dtype, tensor.requires_grad)
        for name, tensor in (*part.named_parameters(), *part.named_buffers())
    )
    return part.code, calls, modules, tensors
