"""Splits: how a set is cut from the rows, under `data.split`."""

from __future__ import annotations

from declarative_train.components.data import Split
from declarative_train.components.registry import Registry

SPLITS: Registry[Split] = Registry(
    "split",
    __name__,
    {
        "grouped": "grouped.GroupedSplit",
        "last": "last.LastSplit",
        "random": "random.RandomSplit",
        "source": "source.SourceSplit",
        "stratified": "grouped.StratifiedSplit",
        "where": "where.WhereSplit",
    },
)
