"""Messages on inputs that are unusual for a network: numbers that are not scaled or normalised, a column that numbers
the rows.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
All codes are warnings: the run is valid."""

from __future__ import annotations

from declarative_train.core.diagnostics.diagnostic import Diagnostic, unverified, warning
from declarative_train.core.span import Span


def channels_last(span: Span, field: str, shape: tuple[int, ...]) -> Diagnostic:
    """channels-last (G020)

    Finds: images with the dimensions (height, width, channels) as the input of `conv2d`.
    Why:   `conv2d` expects the channels first. It would read each row of pixels as a channel, and slide its kernel over
           width and colours.
    Diff:
        data:
          fields:
            pixels: {columns: "p*", scale: 0.0625, shape: [8, 8, 1]}
        model:
          graph:
    -       conv: {type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, input: pixels}
    +       image: permute(pixels, 0, 3, 1, 2)
    +       conv: {type: conv2d, out_channels: 8, kernel_size: 3, padding: 1, input: image}
            flat: {type: flatten}
            hidden: {input: flat}
    """
    height, width, channels = shape
    message = (
        f"`{field}` is ({height}, {width}, {channels}), but `conv2d` expects channels first: here {height} channels of "
        f"{width} x {channels} pixels"
    )
    return warning("G020", span, message, f"add a node before it: `image: permute({field}, 0, 3, 1, 2)`")


def unscaled_input(span: Span, field: str, layer: str, ends: tuple[float, float], *, is_image: bool) -> Diagnostic:
    """unscaled-input (R131)

    Finds: a field of large numbers, such as pixels from 0 to 255, that a layer with weights reads without scaling.
    Why:   weights are initialised for inputs of about -1 to 1. Inputs a hundred times larger make the first outputs and
           gradients a hundred times too large, and training is unstable or slow.
    Diff:
        data:
          fields:
    -       pixels: {columns: "p*", dtype: float32, scale: 16}
    +       pixels: {columns: "p*", dtype: float32, scale: 0.0625}
    """
    hint = (
        "`scale: 0.00392` (1/255) scales them to 0 to 1"
        if is_image
        else "`normalize: standard` scales them to that range"
    )
    message = f"`{field}` is {ends[0]:g} to {ends[1]:g}, but `{layer}`, which reads it, is initialised for -1 to 1"
    return unverified("R131", span, message, hint)


def columns_of_other_magnitude(
    span: Span, field: str, columns: tuple[str, str], sizes: tuple[float, float]
) -> Diagnostic:
    """columns-of-other-magnitude (R132)

    Finds: a field that a layer with weights reads without normalising, although its columns differ by a factor of 1,000
           or more.
    Why:   the largest column dominates the outputs and gradients: no learning rate suits the weights of all columns.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
    -       size: {columns: [rooms, metres]}
    +       size: {columns: [rooms, metres], normalize: standard}
            years: {columns: [age]}
        # file: houses.csv
        rooms,metres,age
        3,91000,12
        5,140000,30
        2,48000,7
    """
    message = (
        f"`{field}`: `{columns[0]}` is about {sizes[0]:.2g}, `{columns[1]}` about {sizes[1]:.2g}: the larger one "
        "dominates"
    )
    return unverified("R132", span, message, "`normalize: standard` gives every column the same weight")


def large_targets(span: Span, field: str, term: str, size: float) -> Diagnostic:
    """large-targets (R133)

    Finds: a regression whose target has numbers of 1,000 or more, predicted by a layer with weights.
    Why:   the outputs of a network start at about 1. With errors of 1,000, the gradient of a squared error makes sgd
           diverge, and adam, which moves each weight by about the learning rate in a step, needs thousands of steps
           before the outputs are as large as the target.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
            size: {columns: [rooms]}
    -       years: {columns: [price]}
    +       years: {columns: [price], normalize: standard}
        # file: houses.csv
        rooms,price
        3,310000
        5,450000
        2,190000
    """
    message = f"`{field}` is about {size:.2g}, but the outputs that the loss `{term}` compares with it start at about 1"
    hint = "`normalize: standard`; metrics such as mae are still reported in its own unit"
    return warning("R133", span, message, hint)


def target_out_of_reach(span: Span, input: str, function: str, target: str, share: float) -> Diagnostic:
    """target-out-of-reach (O017)

    Finds: a loss that compares numbers, such as `mse`, whose input is the output of a bounded function, such as `relu`
           or `sigmoid`, and whose target has values that this function cannot give.
    Why:   the model cannot predict the targets of these rows. For example, `normalize: standard` makes about half of
           the values negative.
    Diff:
        model:
          graph:
    -       positive: relu(logits)
    +       same: logits * 1.0
        objective:
    -     loss: {input: positive}
    +     loss: {input: same}
        data:
          fields: {years: {missing: mean, normalize: standard}}
    """
    message = f"{share:.0%} of the values of `{target}` are out of reach: `{input}` is the output of `{function}`"
    return warning("O017", span, message, f"remove `{function}`, or scale the target to its range")


def relative_error_around_zero(span: Span, metric: str, target: str) -> Diagnostic:
    """relative-error-around-zero (O018)

    Finds: the metric `mape` with a target that has zeros, or both positive and negative values.
    Why:   each error is divided by its target, so rows whose target is near 0 decide the mean, whatever the model
           learned about other rows.
    Diff:
        data:
          source: {type: csv, path: data/table.csv}
          fields:
            size: {columns: [a, b, c]}
            years: {columns: [y]}
        objective:
    -     metrics: {mape: {}}
    +     metrics: {mae: {}}
    """
    message = f"`{metric}` divides by `{target}`, whose values are above and below 0: rows next to 0 decide it"
    return warning("O018", span, message, "use `mae`, `rmse` or `r2`")


def id_as_feature(span: Span, field: str, column: str) -> Diagnostic:
    """id-as-feature (R134)

    Finds: a column that numbers the rows (1, 2, 3, ...), in a field that the model reads.
    Why:   it gives the position of a row in the file, which carries no information about the row. If the file is sorted, the
           model learns the target from the position; future rows have other numbers.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
    -       size: {columns: [id, rooms]}
    +       size: {columns: [rooms]}
            years: {columns: [age]}
        # file: houses.csv
        id,rooms,age
        1,3,12
        2,5,30
        3,2,7
    """  # noqa: E501
    message = f"`{field}` contains `{column}`, which is a row index and carries no information"
    return unverified("R134", span, message, f"remove it, from a glob with `exclude: [{column}]`")


def mark_of_missing(span: Span, column: str, mark: float, num_rows: int, others: tuple[float, float]) -> Diagnostic:
    """mark-of-missing (R148)

    Finds: a column of numbers in which several rows have a number such as -999 or 9999, far from all others.
    Why:   many tables mark a missing value with such a number. A model takes it for a measurement, and it decides the
           mean and the deviation of a normalised column.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
    -     source: {path: houses.csv}
    +     source: {path: houses.csv, missing_values: ["-999"]}
          fields:
    -       size: {columns: [rooms], normalize: standard}
    +       size: {columns: [rooms], normalize: standard, missing: mean}
            years: {columns: [age], normalize: standard}
        # file: houses.csv
        rooms,age
        3,1
        5,2
        -999,3
        4,1
        3,2
        -999,1
        2,3
        1,2
        -999,1
        4,3
        5,1
        3,2
        2,1
        1,3
        4,2
        5,1
        3,2
        2,3
        1,1
        4,2
        5,3
        3,1
        2,2
        1,3
    """
    rows = f"{num_rows} rows"
    message = f"`{column}` is {mark:g} in {rows} and {others[0]:g} to {others[1]:g} in all others"
    hint = f'if it marks missing values: `missing_values: ["{mark:g}"]` in the source, `missing: mean` in the field'
    return unverified("R148", span, message, hint)


def constant_target(span: Span, field: str, term: str, values: list[float]) -> Diagnostic:
    """constant-target (R149)

    Finds: a target made of number columns that has the same value in all training rows.
    Why:   the model learns this value, whatever its inputs are. Often the column was filled with a default, or the
           training rows were selected by it.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
            size: {columns: [rooms]}
    -       years: {columns: [floors]}
    +       years: {columns: [age]}
        # file: houses.csv
        rooms,floors,age
        3,1,1
        5,1,2
        4,1,3
        3,1,1
        2,1,2
        4,1,1
        5,1,3
        3,1,2
        2,1,1
        1,1,3
        4,1,2
        5,1,1
        3,1,2
        2,1,3
        1,1,1
        4,1,2
        5,1,3
        3,1,1
        2,1,2
        1,1,3
        4,1,1
        5,1,2
        3,1,3
        2,1,1
        1,1,2
        4,1,3
        5,1,1
        3,1,2
    """
    shown = f"{values[0]:g}" if len(values) == 1 else f"({', '.join(f'{each:g}' for each in values[:3])}, ...)"
    message = f"`{field}`, the target of the loss `{term}`, is {shown} in all training rows"
    return warning("R149", span, message, "use the column that has the answers, or other training rows")
