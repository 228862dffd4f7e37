"""plugin-mixes-samples (R135)

Finds: a layer of a plugin in which the result of a sample depends on the other samples of its batch, or that holds a
       batch normalisation of torch, in a layout that shares the batch out; or, in evaluation, in any layout. Found by
       running it on made samples, with `--plugins` and by `run`.
Why:   what one rank has at a time depends on the number of ranks, accumulation steps and microbatches, and so does
       every gradient. That every mode gives the same gradients is promised without such layers.
Bad:
    plugins: [mixes.py]       # def forward(self, x): return x - x.mean(0)
    model:
      graph:
        hidden: {type: centred_in_batch, input: pixels}
    parallelism: ddp
    layout: {gpus: 2}
Good:
    plugins: [my_layers.py]   # def forward(self, x): return x
    model:
      graph:
        hidden: {type: my_layer, input: pixels}
    parallelism: ddp
    layout: {gpus: 2}
"""

from __future__ import annotations

from declarative_train.data.spec import BatchSpec
from declarative_train.diagnostics.diagnostic import Diagnostic, warning
from declarative_train.graph.examine import Habits
from declarative_train.terms.amounts import counted
from declarative_train.terms.span import Span


def plugin_mixes_samples(span: Span, name: str, habits: Habits, batch: BatchSpec) -> Diagnostic:
    size = batch.microbatch_size
    differs = f"over what one rank has at a time, {counted(size, 'sample')}: on another layout the gradients differ"
    if habits.batch_norms and "evaluation" not in habits.mixes:
        inside = habits.batch_norms[0]
        others = f" (and {len(habits.batch_norms) - 1} more)" if len(habits.batch_norms) > 1 else ""
        message = f"`{name}` holds batch normalisation, `{inside}`{others}, {differs}"
        way_out = f"`over: {size} samples` on a node `batch_norm` outside the plugin gives the same on every layout"
        return warning("R135", span, message, way_out)
    if "evaluation" not in habits.mixes:
        message = f"in `{name}` the result of a sample depends on the other samples of its batch, {differs}"
    else:
        message = (
            f"in `{name}` the result of a sample depends on the other samples of its batch, in evaluation too: another "
            "batch size or layout gives other metrics"
        )
    return warning("R135", span, message, "let no operation in `forward` work across dimension 0, the batch")
