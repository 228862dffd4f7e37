"""does-not-fit (P108)

Finds: a model whose training state needs more memory than the devices have that `layout.hardware` names.
Why:   the run would end with "out of memory" in its first step, after everything was started.
Bad:
    model:
      graph:
        hidden: {type: linear, out_features: 100000000, input: pixels}
    parallelism: auto
    layout: {gpus: 1, hardware: h100-sxm}
Good:
    model:
      graph:
        hidden: {type: linear, out_features: 1000000, input: pixels}
    parallelism: auto
    layout: {gpus: 1, hardware: h100-sxm}
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.diagnostics.diagnostic import Diagnostic, error, warning
from declarative_train.plan.text_tables import amount
from declarative_train.terms.span import Span


def does_not_fit(
    span: Span, mode: str, needed_bytes: int, memory_bytes: int, ways_out: Sequence[str], *, is_certain: bool
) -> Diagnostic:
    """`mode` needs the least of those that were looked at. `is_certain`: nothing can be taken that fits."""
    message = (
        f"{mode} needs about {amount(needed_bytes, 'B')} on a device, of {amount(memory_bytes, 'B')} that it may fill"
    )
    if not is_certain:
        return warning("P108", span, message, _either("worth a try: ", ways_out))
    return error("P108", span, f"no mode fits: {message}", _either("these would fit: ", ways_out))


def _either(head: str, ways_out: Sequence[str]) -> str:
    return head + "; ".join(ways_out) if ways_out else "make the model smaller, or take devices with more memory"
