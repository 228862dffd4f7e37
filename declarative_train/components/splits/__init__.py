"""Table of the splits that a recipe can name under `data.split`."""

from __future__ import annotations

from declarative_train.components.registry import Registry
from declarative_train.components.split import Split

SPLITS: Registry[Split] = Registry(
    "split",
    __name__,
    {
        "grouped": "shares.GroupedSplit",
        "last": "shares.LastSplit",
        "random": "shares.RandomSplit",
        "source": "source.SourceSplit",
        "stratified": "shares.StratifiedSplit",
        "where": "where.WhereSplit",
    },
)
