"""Messages on shapes and types that do not fit.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from declarative_train.components.component import ShapeError
from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, unverified, warning
from declarative_train.core.span import Span
from declarative_train.core.tensor_spec import TensorSpec


def inputs_do_not_fit(span: Span, shape_error: ShapeError, made: tuple[Related, ...] = ()) -> Diagnostic:
    """inputs-do-not-fit (G001)

    Finds: a layer that does not accept the shape, dtype or range of whole numbers of its inputs, or that has a key whose
           value does not fit them.
    Why:   torch would fail with its own message, after launch, on every rank.
    Diff:
        model:
          graph:
    -       hidden: {type: conv2d, out_channels: 8, kernel_size: 3, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """  # noqa: E501
    grade = warning if shape_error.is_warning else error
    return grade("G001", span, shape_error.message, shape_error.help, made)


CODE = "G002"
_MATRICES = re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x(\d+)\)")


def layer_refused(
    span: Span, type: str, specs: Mapping[str, TensorSpec], said: str, made: tuple[Related, ...], precision: str
) -> Diagnostic:
    """layer-refused (G002)

    Finds: a layer (usually a plugin's) that torch cannot build or run with its inputs.
    Why:   it would fail in the first step, on every rank.
    Diff:
        model:
          graph:
    -       hidden: {type: linear, out_features: 1000000000000000000, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """
    # `said`: the message of torch or of the plugin; known ones are rewritten without the batch size.
    inputs = ", ".join(f"{port} {spec.describe(precision)}" for port, spec in specs.items())
    message = f"`{type}` does not accept {inputs or 'nothing'}"
    if found := _MATRICES.search(said):
        return error(
            CODE, span, f"{message}: it multiplies by a matrix of {format_count(int(found[2]), 'row')}", related=made
        )
    if "Overflow when unpacking long" in said or "too large" in said.lower():
        return error(CODE, span, f"{message}: one of its sizes is larger than torch can count", related=made)
    return error(CODE, span, f"{message}: {said}", related=made)


def batch_moved(span: Span, name: str, found: str) -> Diagnostic:
    """batch-moved (G003)

    Finds: a node whose result has the batch in another dimension than 0.
    Why:   the samples of a batch are divided over ranks and microbatches along dimension 0; a node that mixes samples
           would compute another result in every layout.
    Diff:
        model:
          graph:
    -       pairs: pixels + unsqueeze(pixels, 1)
    -       hidden: {input: pairs}
    +       pairs: unsqueeze(pixels, 2) + unsqueeze(pixels, 1)
    +       flat: {type: flatten, input: pairs}
    +       hidden: {input: flat}
    """
    return error(
        "G003", span, f"`{name}`: {found}", "the batch must be dimension 0 of every node, and no other dimension"
    )


def expression_does_not_fit(
    span: Span, said: str, help: str | None = None, made: tuple[Related, ...] = ()
) -> Diagnostic:
    """expression-does-not-fit (G004)

    Finds: an operation of an expression that does not accept the shapes or dtypes of its tensors.
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

    Finds: a node whose layer is a plugin's, so that its shapes are unknown until the plugin's code runs.
    Why:   a recipe is checked without running the code of its plugins. The nodes after such a node are not checked
           either.
    Diff:
    -   plugins: [my_layers.py]
        model:
          graph:
    -       hidden: {type: my_layer, input: pixels}
    +       hidden: {type: linear, out_features: 32, input: pixels}
    """
    message = f"the shapes of `{type}` and of the nodes after it are unknown: it belongs to a plugin"
    return unverified("G005", span, message, "`--plugins` imports the recipe's plugins and checks the whole graph")


def name_of_python(span: Span, name: str) -> Diagnostic:
    """name-of-python (G006)

    Finds: a node whose name is a keyword of Python, such as `in` or `lambda`.
    Why:   neither an expression nor the code that torch generates could name it. Any other name is allowed, also
           that of a method of torch's modules (`train`, `forward`).
    Diff:
        model:
          graph:
    -       lambda: {type: linear, out_features: 32, input: pixels}
    -       hidden: {input: lambda}
    +       lambda_node: {type: linear, out_features: 32, input: pixels}
    +       hidden: {input: lambda_node}
    """
    first = name.partition(".")[0]
    return error(
        "G006",
        span,
        f"a node cannot be named `{first}`: it is a keyword of Python",
        f"rename it, for example to `{first}_node`",
    )


def reuse_does_not_fit(
    span: Span,
    target: str,
    target_span: Span,
    found: Mapping[str, TensorSpec],
    made_for: Mapping[str, TensorSpec],
    said: str | None = None,
) -> Diagnostic:
    """reuse-does-not-fit (G007)

    Finds: a `reuse` of a node with inputs of other sizes than in the node's own call.
    Why:   both calls have the same parameters, whose shapes depend on the sizes of the inputs.
    Diff:
        model:
          graph:
    -       first: {type: linear, out_features: 32, input: pixels}
    +       first: {type: linear, out_features: 64, input: pixels}
            again: {type: reuse, node: first, input: first}
            hidden: {input: again}
    """
    # `said`: the reason, if it is not the shapes.
    message = f"`{target}` was built for {_format_specs(made_for)}, but gets {_format_specs(found)} here"
    made = Related(target_span, f"`{target}` is here")
    return error("G007", span, message if said is None else f"{message}: {said}", related=(made,))


def reuse_before_target(span: Span, name: str, target: str, target_span: Span) -> Diagnostic:
    message = f"`{name}` calls `{target}` again, but `{target}` depends on its result"
    made = Related(target_span, f"`{target}` is here")
    return error("G007", span, message, f"give `{target}` another input", related=(made,))


def _format_specs(specs: Mapping[str, TensorSpec]) -> str:
    return ", ".join(f"{port} {spec}" for port, spec in specs.items()) or "nothing"


def double_precision(span: Span, type: str, port: str, precision: str, made: tuple[Related, ...]) -> Diagnostic:
    """double-precision (G008)

    Finds: a layer with parameters after a float64 field, in a run that does not compute in float64.
    Why:   parameters have the dtype of their input; the layer would be stored and computed in float64, at twice the memory
           and a fraction of the speed, whatever `training.precision` is.
    Diff:
        data:
          fields:
    -       pixels: {dtype: float64}
    +       pixels: {dtype: float32}
    """  # noqa: E501
    message = f"`{type}` gets float64 at `{port}`, but training.precision is {precision}"
    return error("G008", span, message, "set the field's `dtype: float32`, or set training.precision to fp64", made)


def non_finite_values(span: Span, shown: str) -> Diagnostic:
    """non-finite-values (G011)

    Finds: a node computed from fields alone that gives nan or an infinite number for real rows, and that the model or a
           loss reads.
    Why:   one such number makes the loss of its step nan, and the run stops there. Usual causes: a logarithm or root of
           a number that may be negative, a division by one that may be zero.
    Diff:
        model:
          graph:
    -       scaled: log(pixels - 0.5)
    +       scaled: log(pixels + 1)
            hidden: {type: linear, out_features: 64, input: scaled}
            act: {type: relu, input: hidden}
            logits: {type: linear, out_features: 10, input: act}
    """
    # `shown`: the inputs of the row, and its place.
    message = f"this is not a finite number where {shown}"
    return error("G011", span, message, "keep the numbers in range: `clamp`, `where`, or add a small constant")


def mask_without_items(span: Span, num_rows: int, *, is_certain: bool) -> Diagnostic:
    """mask-without-items (G014)

    Finds: a loss whose mask and `ignore_index` exclude all items of the training rows.
    Why:   there is nothing to learn from: the run fails at the end of its first epoch.
    Diff:
        model:
    -     graph: {large: digit > 20}
    +     graph: {large: digit > 2}
        objective:
          loss: {mask: large}
    """
    # `is_certain`: all training rows were checked.
    if is_certain:
        return error(
            "G014",
            span,
            f"all items of the {num_rows:,} training samples are masked or ignored: there is nothing to learn from",
        )
    return warning("G014", span, f"all items of the {num_rows:,} checked training samples are masked or ignored")


def negative_mask(span: Span, value: float, row: str) -> Diagnostic:
    """negative-mask (G016)

    Finds: a mask with values below 0.
    Why:   a mask holds the weight of each item, and the loss is divided by the sum of the mask. With negative values,
           this sum can be 0, so that the loss is infinite, or negative, so that training increases the error.
    Diff:
        model:
    -     graph: {large: float(digit) - 2}
    +     graph: {large: digit > 2}
        objective:
          loss: {mask: large}
    """
    message = f"the mask is {value:g} in {row}, but weights of items cannot be negative"
    return error("G016", span, message, "make it 0 or more: `clamp(..., min=0)`, or a comparison")
