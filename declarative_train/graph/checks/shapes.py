"""Messages on shapes and types that do not fit.

Each function is one message; its docstring is the manual page of its code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from declarative_train.components.component import Misfit
from declarative_train.core.amounts import counted
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, unverified, warning
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import TensorSpec


def inputs_do_not_fit(span: Span, misfit: Misfit, made: tuple[Related, ...] = ()) -> Diagnostic:
    """inputs-do-not-fit (G001)

    Finds: a layer that does not take what arrives at its inputs: the shape, the dtype, or the range of whole numbers; or a
           field of the layer that does not go with them.
    Why:   torch would say so in its own words, after launch, on every rank.
    Diff:
        model:
          graph:
    -       hidden: {type: conv2d, out_channels: 8, kernel_size: 3, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """  # noqa: E501
    grade = warning if misfit.is_warning else error
    return grade("G001", span, misfit.message, misfit.help, made)


CODE = "G002"
_MATRICES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x(\d+)\)")


def layer_refused(
    span: Span, type: str, specs: Mapping[str, TensorSpec], said: str, made: tuple[Related, ...], precision: str
) -> Diagnostic:
    """layer-refused (G002)

    Finds: a layer (mostly a plugin's) that torch cannot build or run for what arrives at its inputs.
    Why:   it would fail in the first step, on every rank.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 1000000000000000000, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """
    # `said` by torch, or by the plugin; what we know of it is said in words that hold for every batch.
    inputs = ", ".join(f"{port} {spec.said(precision)}" for port, spec in specs.items())
    message = f"`{type}` cannot work on {inputs or 'nothing'}"
    if found := _MATRICES.search(said):
        return error(
            CODE, span, f"{message}: it multiplies by a matrix of {counted(int(found[2]), 'row')}", related=made
        )
    if "Overflow when unpacking long" in said or "too large" in said.lower():
        return error(CODE, span, f"{message}: one of its sizes is larger than torch can count", related=made)
    return error(CODE, span, f"{message}; it says: {said}", related=made)


def batch_moved(span: Span, name: str, found: str) -> Diagnostic:
    """batch-moved (G003)

    Finds: a node whose result has the batch in another place than dimension 0.
    Why:   the samples of a batch are shared out over ranks and microbatches along dimension 0; a node that mixes them up
           trains on other data in every layout.
    Diff:
        model:
          graph:
    -       pairs: pixels + unsqueeze(pixels, 1)
    -       hidden: {input: pairs}
    +       pairs: unsqueeze(pixels, 2) + unsqueeze(pixels, 1)
    +       flat: {type: flatten, input: pairs}
    +       hidden: {input: flat}
    """  # noqa: E501
    return error("G003", span, f"`{name}`: {found}", "every node keeps the batch as dimension 0, and nowhere else")


def expression_does_not_fit(
    span: Span, said: str, help: str | None = None, made: tuple[Related, ...] = ()
) -> Diagnostic:
    """expression-does-not-fit (G004)

    Finds: an operation of an expression that does not take the shapes or dtypes of its tensors.
    Why:   it would fail in the first step, on every rank.
    Diff:
        model:
          graph:
    -       mixed: pixels + pixels[:, :32]
    +       mixed: pixels[:, 32:] + pixels[:, :32]
            hidden: {input: mixed}
    """
    return error("G004", span, said, help, made)


def shapes_unknown(span: Span, type: str) -> Diagnostic:
    """shapes-unknown (G005)

    Finds: a node of a plugin, whose shapes only its code can tell.
    Why:   a recipe is checked without running its code; what stands behind such a node is not checked either.
    Diff:
    -   plugins: [my_layers.py]
        model:
          graph:
    -       hidden: {type: my_layer, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """
    message = f"the shapes of `{type}` and of what stands behind it are not known: it is a plugin's"
    return unverified("G005", span, message, "`--plugins` imports the recipe's plugins and checks the whole graph")


def name_of_python(span: Span, name: str) -> Diagnostic:
    """name-of-python (G006)

    Finds: a node called by a word of Python's own, such as `in` or `lambda`.
    Why:   an expression could not name it, nor the code that torch writes for the graph. Any other name is free, also
           that of a method of torch's (`train`, `forward`).
    Diff:
        model:
          graph:
    -       lambda: {type: linear, out_features: 32, input: pixels}
    -       hidden: {input: lambda}
    +       lambda_node: {type: linear, out_features: 32, input: pixels}
    +       hidden: {input: lambda_node}
    """
    first = name.partition(".")[0]
    return error("G006", span, f"a node cannot be called `{first}`: it is a word of Python", f"such as `{first}_node`")


def reuse_does_not_fit(
    span: Span,
    target: str,
    target_span: Span,
    found: Mapping[str, TensorSpec],
    made_for: Mapping[str, TensorSpec],
    said: str | None = None,
) -> Diagnostic:
    """reuse-does-not-fit (G007)

    Finds: a node that is called again with inputs that it was not made for.
    Why:   a `reuse` keeps the parameters, and with them the sizes, of its node.
    Diff:
        model:
          graph:
    -       first: {type: linear, out_features: 32, input: pixels}
    +       first: {type: linear, out_features: 64, input: pixels}
            again: {type: reuse, node: first, input: first}
            hidden: {input: again}
    """
    # `said` is the reason where there is one besides the shapes.
    message = f"`{target}` was made for {_format_specs(made_for)}, here it gets {_format_specs(found)}"
    made = Related(target_span, f"`{target}` stands here")
    return error("G007", span, message if said is None else f"{message}: {said}", related=(made,))


def reuse_before_target(span: Span, name: str, target: str, target_span: Span) -> Diagnostic:
    message = f"`{name}` calls `{target}` again, and `{target}` waits for its result"
    made = Related(target_span, f"`{target}` stands here")
    return error("G007", span, message, f"give `{target}` another input", related=(made,))


def _format_specs(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{port} {spec}" for port, spec in specs.items()) or "nothing"


def double_precision(span: Span, type: str, port: str, precision: str, made: tuple[Related, ...]) -> Diagnostic:
    """double-precision (G008)

    Finds: a layer with parameters behind a float64 field, in a run that does not compute in float64.
    Why:   parameters follow the dtype of their input; the layer would be held and computed in float64, at twice the memory
           and a fraction of the speed, whatever `training.precision` says.
    Diff:
        data:
          fields:
    -       pixels: {dtype: float64}
    +       pixels: {dtype: float32}
    """  # noqa: E501
    message = f"`{type}` gets float64 at `{port}`, and training.precision is {precision}"
    return error("G008", span, message, "give the field `dtype: float32`, or set training.precision to fp64", made)


def non_finite_values(span: Span, shown: str) -> Diagnostic:
    """non-finite-values (G011)

    Finds: a node computed from fields alone that gives nan or an infinite number for real rows, on its way into the model
           or into a loss.
    Why:   one such number makes the loss of its step nan, and the run stops there: a logarithm or root of what may be
           negative, a division by what may be zero.
    Diff:
        model:
          graph:
    -       scaled: log(pixels - 0.5)
    +       scaled: log(pixels + 1)
            hidden: {type: linear, out_features: 64, input: scaled}
            act: {type: relu, input: hidden}
            logits: {type: linear, out_features: 10, input: act}
    """  # noqa: E501
    # `shown`: the inputs of the row, and where it stands.
    message = f"this is not a finite number where {shown}"
    return error("G011", span, message, "keep the numbers inside: `clamp`, `where`, or a small constant added")


def mask_without_items(span: Span, num_rows: int, *, is_certain: bool) -> Diagnostic:
    """mask-without-items (G014)

    Finds: a loss whose mask, with its `ignore_index`, lets no item of the training rows count.
    Why:   there is nothing to learn from: the run fails at the end of its first epoch.
    Diff:
        model:
    -     graph: {large: digit > 20}
    +     graph: {large: digit > 2}
        objective:
          loss: {mask: large}
    """
    # `is_certain`: all training rows were looked at.
    if is_certain:
        return error(
            "G014", span, f"no item of the {num_rows:,} training samples counts: there is nothing to learn from"
        )
    return warning("G014", span, f"no item counts of the {num_rows:,} training samples that were looked at")


def negative_mask(span: Span, value: float, row: str) -> Diagnostic:
    """negative-mask (G016)

    Finds: a mask with values below 0.
    Why:   a mask holds how much each item counts, and the loss is divided by its sum. Negative values can make that sum
           0, and the loss infinite, or negative, and training makes the error larger.
    Diff:
        model:
    -     graph: {large: float(digit) - 2}
    +     graph: {large: digit > 2}
        objective:
          loss: {mask: large}
    """
    message = f"the mask is {value:g} in {row}, and an item cannot count less than 0"
    return error("G016", span, message, "make it 0 or more: `clamp(..., min=0)`, or a comparison")
