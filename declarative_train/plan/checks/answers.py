"""Messages about the answers in the training rows: the values that losses compare with outputs.

Each function builds the message of one diagnostic code. Its docstring is the manual page of that code.
All codes have the severity "needs verification": the run is valid.
"""

from __future__ import annotations

from declarative_train.core.amounts import format_count
from declarative_train.core.diagnostics.diagnostic import Diagnostic, unverified
from declarative_train.core.span import Span


def filled_target(span: Span, field: str, term: str, num_missing: int, num_rows: int, filled: str) -> Diagnostic:
    """filled-target (R150)

    Finds: a target of a loss without a `mask`, if training rows have no value in its columns and `missing` fills them;
           or a target of classes whose `unknown` puts missing answers into a class that other rows have too.
    Why:   the model learns the filled-in value as if it had been measured, and evaluations compare it with outputs. A
           missing input can be filled; a missing answer is not known.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
    +     on_bad_row: skip
          fields:
            size: {columns: [rooms]}
    -       years: {columns: [age], missing: mean}
    +       years: {columns: [age], missing: error}
        # file: houses.csv
        rooms,age
        3,1
        5,2
        4,
        3,3
        2,1
        4,
        5,3
        3,2
        2,1
        1,
        4,2
        5,1
        3,2
        2,
        1,1
        4,2
        5,3
        3,1
        2,
        1,3
        4,1
        5,2
        3,3
    """
    rows = f"{num_missing:,} of {num_rows:,} training rows"
    message = f"`{field}`, the target of the loss `{term}`, has no value in {rows}, which get {filled}"
    hint = (
        "if these answers are unknown, set `on_bad_row: skip` in `data` and remove this key, or give the loss a `mask`"
    )
    return unverified("R150", span, message, hint)


def weights_of_frequent_classes(
    span: Span, term: str, key: str, written: tuple[float, ...], balanced: tuple[float, ...], *, is_permuted: bool
) -> Diagnostic:
    """weights-of-frequent-classes (R151)

    Finds: class weights that would balance the classes in another order, or that are proportional to the numbers of
           training rows of the classes; a `pos_weight` that is positives / negatives.
    Why:   weights that balance classes are large for rare classes. With the inverse numbers, or in another order, a
           rare class counts even less than without weights. Class 0 has the first weight; a vocabulary is sorted.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
            size: {columns: [rooms]}
            years: null
            old: {column: old}
        model: {graph: {logit: "logits[:, 0]"}}
        objective:
    -     loss: {type: bce_with_logits, input: logit, target: old, pos_weight: 0.25}
    +     loss: {type: bce_with_logits, input: logit, target: old, pos_weight: 4}
          metrics: {mae: null}
        # file: houses.csv
        rooms,old
        3,1
        5,0
        4,0
        3,0
        2,0
        4,1
        5,0
        3,0
        2,0
        1,0
        4,1
        5,0
        3,0
        2,0
        1,0
        4,1
        5,0
        3,0
        2,0
        1,0
    """
    why = "would balance the classes in another order" if is_permuted else "are larger the more rows a class has"
    message = f"the weights of the loss `{term}` {why}"
    if len(written) == 1:
        message = f"`{key}` of the loss `{term}` is positives / negatives; it multiplies the loss of positives"
    shown = ", ".join(f"{each:.3g}" for each in balanced[:8]) + (", ..." if len(balanced) > 8 else "")
    return unverified("R151", span, message, f"`{key}: balanced` gives {shown}")


def several_classes(span: Span, term: str, target: str, num_several: int, num_rows: int) -> Diagnostic:
    """several-classes (R152)

    Finds: a `cross_entropy` whose target has several ones in a row, one for each of several classes.
    Why:   `cross_entropy` takes a target of floating point numbers for the probabilities of the classes, of which one
           is right; a softmax makes the scores compete. Labels that can be true together are separate yes-or-no
           questions, for which `bce_with_logits` is made.
    Diff:
        # file: recipe.yaml
        extends: people.yaml
        data:
          source: {path: houses.csv}
          fields:
            size: {columns: [rooms]}
            years: null
            has: {columns: [garden, garage]}
        model: {graph: {logits: {out_features: 2}}}
        objective:
    -     loss: {type: cross_entropy, input: logits, target: has}
    +     loss: {type: bce_with_logits, input: logits, target: has}
          metrics: {mae: null}
        # file: houses.csv
        rooms,garden,garage
        3,1,1
        5,0,1
        4,1,1
        3,0,1
        2,1,0
        4,1,1
        5,0,0
        3,1,1
        2,0,0
        1,0,1
        4,1,0
        5,0,0
        3,1,1
        2,0,1
        1,1,0
        4,1,1
        5,0,0
        3,0,1
        2,1,0
        1,0,0
    """
    rows = format_count(num_rows, "row")
    message = f"`{target}`, the target of the loss `{term}`, has several classes at once in {num_several:,} of {rows}"
    return unverified("R152", span, message, "use `bce_with_logits`: a row may have any number of labels")
