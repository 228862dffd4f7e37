"""Sizes in a first recipe: sets, batch, epochs, widths of the network, strength of regularisation. They depend on the
number of rows, by rules of thumb for tables that were chosen with `benchmarks/first_recipe.py`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2, sqrt

_WITH_TEST = 300  # rows from which a third set is large enough
_MANY = 1000  # from this number of rows on, a tenth is enough to evaluate on
_FEW = 5000  # training rows that a network of these widths can learn by heart
_STEPS = 4000
_MOST_EVALUATIONS = 50


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes in a first recipe. `fractions`: fraction of the rows in each set except the training set, which gets the
    other rows. `patience`, `evaluate_every`: numbers of epochs. `hidden`: widths of the network's two hidden layers.
    `dropout`, `weight_decay`: strength of regularisation."""

    fractions: dict[str, float]
    batch_size: int
    epochs: int
    evaluate_every: int
    patience: int
    hidden: tuple[int, int]
    dropout: float
    weight_decay: float


def fractions_for(num_rows: int) -> dict[str, float]:
    """Return {set: its fraction of the rows} for `validation` and, if there are enough rows, for `test`. All other rows
    are for training."""
    if num_rows < _WITH_TEST:
        return {"validation": 0.2}
    return dict.fromkeys(("validation", "test"), 0.1 if num_rows >= _MANY else 0.15)


def sizes_for(num_rows: int, is_class: bool) -> Sizes:
    fractions = fractions_for(num_rows)
    training = num_rows - sum(round(num_rows * each) for each in fractions.values())
    batch_size = next(
        (size for most, size in ((200, 16), (1000, 32), (10_000, 64), (100_000, 256)) if training < most), 1024
    )
    batch_size = min(batch_size, training)
    steps_per_epoch = ceil(training / batch_size)
    epochs = min(400, max(10, round(_STEPS / steps_per_epoch)))
    every = ceil(epochs / _MOST_EVALUATIONS)
    width = min(512, max(16, 2 ** round(log2(2 * sqrt(training)))))
    wide = max(width, 128 if num_rows < _MANY else 256)
    return Sizes(
        fractions=fractions,
        batch_size=batch_size,
        epochs=epochs,
        evaluate_every=every,
        patience=max(3 * every, ceil(epochs / 5)),
        hidden=(wide, wide) if is_class else (width, width // 2),
        dropout=0.1 if training >= _FEW else 0.4 if is_class else 0.2,
        weight_decay=0.3 if training < _FEW else 0.05,
    )
