"""Messages on plugins.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, error, unverified, warning
from declarative_train.core.span import Span
from declarative_train.data.spec import BatchSpec
from declarative_train.graph.inspect_plugin import Habits


def plugin_not_run(span: Span, type: str) -> Diagnostic:
    """plugin-not-run (G022)

    Finds: an optimizer, learning rate schedule, loss or metric of a plugin, if the recipe is checked without running
           the plugin's code.
    Why:   only the code defines what a step computes and how much memory it needs. So the graph and the plan are not
           checked either.
    Bad:
        plugins: [my_optimizer.py]
        training: {optimizer: {type: my_optimizer, lr: 0.1}}
    Good:
        training: {optimizer: {type: sgd, lr: 0.1}}
    """
    message = f"`{type}` comes from a plugin: neither its code nor the graph is checked"
    return unverified("G022", span, message, "`--plugins` imports the recipe's plugins and checks all of it")


def plugin_mixes_samples(span: Span, name: str, habits: Habits, batch: BatchSpec) -> Diagnostic:
    """plugin-mixes-samples (R135)

    Finds: a layer of a plugin in which the result for a sample depends on the other samples of its batch. In training,
           this is reported if the layout splits the batch; in evaluation, always. A batch normalisation of torch in the
           layer counts too. Found by running the layer on generated samples, with `--plugins` and by `run`.
    Why:   the samples that such a layer sees together depend on the number of ranks, accumulation steps and
           microbatches, and so does every gradient. Only without such layers do all modes give equal gradients.
    Diff:
    -   plugins: [mixes.py]       # def forward(self, x): return x - x.mean(0)
    +   plugins: [my_layers.py]   # def forward(self, x): return x
        model:
          graph:
    -       hidden: {type: centred_in_batch, input: pixels}
    +       hidden: {type: my_layer, input: pixels}
        parallelism: ddp
        layout: {gpus: 2}
    """
    size = batch.microbatch_size
    differs = f"over the {format_count(size, 'sample')} of one rank's microbatch: gradients differ on another layout"
    if habits.batch_norms and "evaluation" not in habits.mixes:
        inside = habits.batch_norms[0]
        others = f" (and {len(habits.batch_norms) - 1} more)" if len(habits.batch_norms) > 1 else ""
        message = f"`{name}` contains batch normalisation, `{inside}`{others}, {differs}"
        hint = f"`over: {size} samples` on a node `batch_norm` outside the plugin gives the same on every layout"
        return warning("R135", span, message, hint)
    if "evaluation" not in habits.mixes:
        message = f"in `{name}` the result of a sample depends on the other samples of its batch, {differs}"
    else:
        message = (
            f"in `{name}` the result of a sample depends on the other samples of its batch, in evaluation too: another "
            "batch size or layout gives other metrics"
        )
    return warning("R135", span, message, "avoid operations across dimension 0, the batch, in `forward`")


def scalar_in_shards(span: Span, names: Sequence[str]) -> Diagnostic:
    """scalar-in-shards (R136)

    Finds: a parameter without dimensions, such as a plugin's logit scale, in a mode that shards parameters. Found with
           `--plugins`, and by `run`.
    Why:   shards are cut along the first dimension, which a scalar does not have; torch's `fully_shard` does not accept
           it.
    Diff:
    -   plugins: [scalar.py]      # self.scale = nn.Parameter(torch.tensor(1.0))
    +   plugins: [scalar.py]
        model:
          graph:
            hidden: {type: scaled_by_one, input: pixels}
    -   parallelism: fsdp
    +   parallelism: ddp
        layout: {gpus: 2}
    """
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    hint = "give it one dimension of size 1, `torch.ones(1)` instead of `torch.tensor(1.0)`, or use another mode"
    return error("R136", span, f"the parameter `{names[0]}`{others} has no dimensions, so it cannot be sharded", hint)


def plugin_tensor_unregistered(span: Span, name: str, tensors: Sequence[str]) -> Diagnostic:
    """plugin-tensor-unregistered (R137)

    Finds: a layer of a plugin that holds a tensor as a plain attribute, neither as a parameter nor as a buffer. Found
           with `--plugins`, and by `run`.
    Why:   such a tensor stays on the CPU when the model is moved to a GPU, so the first step fails there. It also keeps
           its precision, is not trained, and is not saved in checkpoints.
    Diff:
    -   plugins: [plain_tensor.py]   # self.centre = torch.zeros(64)
    +   plugins: [my_layers.py]      # self.register_buffer("centre", torch.zeros(64))
        model:
          graph:
    -       hidden: {type: centred, input: pixels}
    +       hidden: {type: my_layer, input: pixels}
    """
    others = f" (and {len(tensors) - 1} more)" if len(tensors) > 1 else ""
    *owner, attribute = tensors[0].split(".")
    return warning(
        "R137",
        span,
        f"`{name}` has the tensor `{tensors[0]}`{others}, which is neither a parameter nor a buffer: it is not moved "
        "to a GPU and not saved in checkpoints",
        f'`{".".join(["self", *owner])}.register_buffer("{attribute}", ...)`, or `nn.Parameter` if it is to be trained',
    )


def plugin_changes_input(span: Span, name: str, port: str) -> Diagnostic:
    """plugin-changes-input (R138)

    Finds: a layer of a plugin whose `forward` changes its input in place (`x += 1`, `x.clamp_()`,
           `nn.ReLU(inplace=True)` as its first operation). Found with `--plugins`, and by `run`.
    Why:   another node, or the loss, may read the same tensor and would see the changed numbers. In some modes the
           input is a view that torch does not allow to be changed.
    Diff:
    -   plugins: [in_place.py]   # def forward(self, x): return x.mul_(2)
    +   plugins: [my_layers.py]  # def forward(self, x): return x
        model:
          graph:
    -       hidden: {type: doubled, input: pixels}
    +       hidden: {type: my_layer, input: pixels}
    """
    hint = f"create a new tensor in `forward` (`{port} = {port} + 1`, not `{port} += 1`; `inplace=False`)"
    return error("R138", span, f"`{name}` writes into its input `{port}`, which other nodes may read", hint)
