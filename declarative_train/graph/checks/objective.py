"""Messages on losses and metrics.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
"""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.components.component import ShapeError
from declarative_train.core.diagnostics.diagnostic import Diagnostic, Related, error, unverified, warning
from declarative_train.core.span import Span


def target_among_inputs(
    span: Span, field: str, target: str, columns: Sequence[str], advice: str, made: Span
) -> Diagnostic:
    """target-among-inputs (O009)

    Finds: a target column that the model also reads as an input; in data with windows, in the same rows.
    Why:   a leak: the model copies the answer. Nearly every prediction is right in training and validation, and wrong
           where the answer is not known yet. Three cases are intended and not reported: a field that is its own target
           (an autoencoder), a field whose columns are all targets, and input rows of a window that are shifted against
           the target rows.
    Diff:
        data:
          fields:
    -       pixels: {columns: "*"}
    +       pixels: {columns: "*", exclude: [label]}
    """
    which = ", ".join(f"`{column}`" for column in columns[:4]) + (", ..." if len(columns) > 4 else "")
    message = f"field `{field}`, which the model reads, contains {which}, from which the target `{target}` is made"
    return error("O009", span, message, advice, (Related(made, f"`{target}` is the target"),))


def target_in_disguise(span: Span, field: str, column: str, target: str, how: str) -> Diagnostic:
    """target-in-disguise (O016)

    Finds: a column that the model reads and that is the target in another form. Each of its values occurs with only one
           class, and each class with only one value; or the column is a multiple of the target plus a constant.
    Why:   such a column is usually filled in when the answer is known: a code of the class, the same price in another
           currency. The model learns to copy it, but new rows do not have it yet.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
    -       size: {columns: [euros], normalize: standard}
    +       size: {columns: [rooms], normalize: standard}
            years: {columns: [dollars], normalize: standard}
        # file: houses.csv
    -   euros,dollars
    -   100,110
    -   250,275
    -   120,132
    -   310,341
    -   170,187
    -   220,242
    -   140,154
    -   330,363
    -   190,209
    -   280,308
    -   160,176
    -   350,385
    -   130,143
    -   240,264
    -   300,330
    -   110,121
    -   260,286
    -   370,407
    -   210,231
    -   290,319
    +   rooms,dollars
    +   1,110
    +   3,275
    +   2,132
    +   4,341
    +   2,187
    """
    return unverified(
        "O016",
        span,
        f"`{field}` contains `{column}`, which {how} the target `{target}`: the model may copy the answer",
        f"if it is known only together with the answer, remove it; from a glob, with `exclude: [{column}]`",
    )


def metric_without_unit(span: Span, metric: str, target: str, field: str) -> Diagnostic:
    """metric-without-unit (O011)

    Finds: a metric in the target's unit (`rmse`, `mae`, `mse`, `mape`) whose target is computed from a scaled or
           normalised field.
    Why:   such a metric is reported in the unit of the column: `scale` and `normalize` are undone. This is not possible
           for a target that an expression computes, and the number would have no unit.
    Diff:
    -   model: {graph: {doubled: pixels * 2, back: {type: linear, out_features: 64, input: act}}}
    +   model: {graph: {back: {type: linear, out_features: 64, input: act}}}
        objective:
    -     losses: {loss: {}, again: {type: mse, input: back, target: doubled}}
    +     losses: {loss: {}, again: {type: mse, input: back, target: pixels}}
          metrics: {accuracy: {of: loss}, rmse: {of: again}}
    """
    message = f"`{metric}` of `{target}` has no unit: it is computed from `{field}`, which is scaled or normalised"
    advice = f"make the target a field; or use `r2`, which has no unit; or do not scale `{field}`"
    return error("O011", span, message, advice)


def objective_does_not_fit(span: Span, shape_error: ShapeError, made: tuple[Related, ...] = ()) -> Diagnostic:
    """objective-does-not-fit (O101)

    Finds: a loss or metric that does not accept its input, target or mask: their shape, dtype, or number of classes.
    Why:   losses do not broadcast: with a target of another shape, scores would be paired with wrong targets.
    Diff:
        objective:
    -     loss: {type: mse, input: logits, target: pixels}
    +     loss: {type: cross_entropy, input: logits, target: digit}
    """
    # A warning if the term can be computed but is probably not intended.
    grade = warning if shape_error.is_warning else error
    return grade("O101", span, shape_error.message, shape_error.help, made)


def count_from_model(span: Span, port: str, name: str, made: Span | None, *, is_drawn: bool = False) -> Diagnostic:
    """count-from-model (O102)

    Finds: a mask that the model computes, or a target that the model computes and whose values decide how many items
           count.
    Why:   a term is divided by the number of valid items of the whole global batch, which must be known before the first
           backward. Only values that are computed from fields alone are known then.
    Diff:
        model:
          graph:
    -       sure: amax(hidden, dim=-1) > 0
    +       sure: amax(pixels, dim=-1) > 0
        objective:
          loss: {type: cross_entropy, input: logits, target: digit, mask: sure}
    """  # noqa: E501
    # `is_drawn`: it depends on no parameter, only on random numbers of a layer or a plugin.
    reason = "a layer of the model draws it" if is_drawn else "the model computes it"
    advice = "compute it from fields alone, by nodes without parameters"
    message = f"the {port} `{name}` decides how many items count, and {reason}"
    hint = "draw it by an expression of fields, as in `rand_like(x) < 0.15`" if is_drawn else advice
    return error("O102", span, message, hint, () if made is None else (Related(made, f"`{name}` is made here"),))


def nothing_to_learn(span: Span, term: str, input: str) -> Diagnostic:
    """nothing-to-learn (O103)

    Finds: a loss term whose input and target do not depend on any parameter.
    Why:   such a term is a constant: its gradient is zero. If it is the only term, torch fails in the first backward.
    Diff:
        model:
          graph:
    -       size: mean(pixels ** 2, dim=-1)
    +       size: mean(hidden ** 2, dim=-1)
        objective:
          losses:
            kind: {type: cross_entropy, input: logits, target: digit}
            size: {type: mean, input: size}
          metrics: {accuracy: {of: kind}}
    """
    message = f"the loss `{term}` cannot change: no parameter is between the fields and `{input}`"
    return error("O103", span, message, "use a node of the model as its input, or make it a metric")


def scores_not_in_chunks(span: Span, term: str, reason: str) -> Diagnostic:
    """scores-not-in-chunks (O106)

    Finds: a loss with `chunks` whose scores are read elsewhere, or are not the output of a linear layer; a target that
           has a probability for each class, or that the model computes; a metric of the scores other than `perplexity`.
    Why:   in chunks, the linear layer and the loss are computed together, so that all scores never exist at once.
    Diff:
        objective:
          loss: {type: cross_entropy, input: logits, target: digit, chunks: 4}
    -     metrics: {accuracy: {of: loss}}
    +     metrics: {accuracy: null, perplexity: {of: loss}}
    """
    return error("O106", span, f"the loss `{term}` cannot be computed in chunks: {reason}", "remove `chunks`")


def no_parameters(span: Span) -> Diagnostic:
    """no-parameters (O104)

    Finds: a model without a single parameter.
    Why:   there is nothing to train.
    Diff:
        # whole file
    -   name: nothing_to_train
    +   name: something_to_train
        data:
          source: {type: synthetic, kind: classification, rows: 64, features: 10}
          fields:
            x: {column: x}
            y: {type: category, column: y, num_classes: 10}
        model:
          graph:
    -       logits: x * 2
    +       logits: {type: linear, out_features: 10, input: x}
        objective:
          loss: {type: cross_entropy, input: logits, target: y}
        training: {epochs: 1, global_batch_size: 8, optimizer: {type: sgd, lr: 0.1}}
    """
    return error("O104", span, "this graph has no parameter: there is nothing to train", "add a layer with parameters")
