"""Division of a table's rows into sets. Windows of consecutive rows are made afterwards, within each set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from declarative_train.components.counter_rng import key_of
from declarative_train.components.data import Table
from declarative_train.components.split import Candidates, Draw, Split
from declarative_train.data.order import permute
from declarative_train.data.rows import RowChain, RowDraw, RowList, RowRange, RowShare, SetRows

TRAINING = "training"
LISTED = 1 << 27  # of at most so many rows of files, the numbers are listed (1 GiB) and read in the order of the file
LISTED_MADE = 1 << 20  # the same limit for generated rows, which cost the same in any order


class SplitError(Exception):
    """Error: the rows of the set `name` cannot be chosen. The message is for the user."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def split_rows(
    table: Table, splits: Mapping[str, Split], seed: int, by: str | None = None, sort: str | None = None
) -> dict[str, SetRows]:
    """Divide the rows of a table into `training` and the sets of `splits`, and return the rows of each set. No row is
    in two sets. Raises SplitError.

    Rows are assigned first to sets defined by values, then to sets of the last rows, of random groups, and of random
    single rows; `training` gets the rest. Splits with a source of their own are ignored. `by`, `sort`: keys of
    `data.window`."""
    own = {name: split for name, split in splits.items() if split.own_source is None}
    if table.members:
        return _of_mixture(table, own, seed, by, sort)
    _check_sources((), own)
    left: SetRows = RowRange(0, table.num_rows)
    found: dict[str, SetRows] = {}
    for name, split in _of_turn(own, 0):
        chosen = _choose(name, split, _candidates(table, left, len(left), name, seed, by, sort))
        assert not isinstance(chosen, Draw)
        found[name], left = _separate(left, chosen)
    num_total, base, behind = len(left), left, 0.0
    taken: np.ndarray | None = None
    for name, split in reversed(_of_turn(own, 1)):
        chosen = _choose(name, split, _candidates(table, base, num_total, name, seed, by, sort, behind))
        assert not isinstance(chosen, Draw)
        behind += getattr(split, "fraction", 0.0)
        if isinstance(chosen, range) and taken is None and isinstance(left, RowRange):
            found[name], left = _separate(left, range(chosen.start, min(chosen.stop, len(left))))
            continue
        if taken is None:
            taken = np.zeros(len(base), bool)
            taken[len(left) :] = True
        numbers = np.asarray(chosen)
        numbers = numbers[~taken[numbers]]
        taken[numbers] = True
        found[name], left = base.pick(numbers), base.pick(np.flatnonzero(~taken))
    for name, split in [*_of_turn(own, 2), *_of_turn(own, 3)]:
        chosen = _choose(name, split, _candidates(table, left, num_total, name, seed, by, sort))
        if not isinstance(chosen, Draw):
            found[name], left = _separate(left, chosen)
        elif len(left) <= (LISTED if table.files else LISTED_MADE):
            drawn = permute(_key(name, seed), np.arange(chosen.num_rows), len(left))
            found[name], left = _separate(left, np.sort(drawn))
        elif (starts := _block_starts(table, left)) is not None:
            whole = left if isinstance(left, RowShare) else None
            share = starts, whole, _key(name, seed), chosen.num_rows
            found[name], left = RowShare.of(*share, others=False), RowShare.of(*share, others=True)
        else:
            key = _key(name, seed)
            found[name] = RowDraw(left, key, 0, chosen.num_rows)
            left = RowDraw(left, key, chosen.num_rows, len(left))
    return {TRAINING: left} | {name: found[name] for name in own}


def _of_mixture(
    table: Table, splits: Mapping[str, Split], seed: int, by: str | None, sort: str | None
) -> dict[str, SetRows]:
    """Divide the rows of a mixture into sets, like `split_rows`. The rows of each source are divided separately. A
    split with the key `of`, which names a source, gets rows of this source only."""
    sources = tuple(name for name, _ in table.members)
    _check_sources(sources, splits)
    cuts = [
        split_rows(
            each,
            {name: split.anywhere() for name, split in splits.items() if split.of in (None, source)},
            key_of("source", seed, source),
            by,
            sort,
        )
        for source, each in zip(sources, table.tables, strict=True)
    ]
    firsts = tuple(first for _, first in table.members)
    none = RowRange(0, 0)
    return {name: RowChain(tuple(cut.get(name, none) for cut in cuts), firsts) for name in (TRAINING, *splits)}


def _check_sources(sources: tuple[str, ...], splits: Mapping[str, Split]) -> None:
    for name, split in splits.items():
        if split.of is not None and split.of not in sources:
            known = ", ".join(f"`{each}`" for each in sources)
            hint = f"its sources are {known}" if sources else "the source is not a mixture: remove `of`"
            raise SplitError(name, f"there is no source `{split.of}`: {hint}")


def _block_starts(table: Table, rows: SetRows) -> np.ndarray | None:
    """Return the index of the first row of each block of `rows`, then the end of the last block. Return None if the
    table has no blocks, or if `rows` are neither a RowShare nor a range from row 0 on."""
    if isinstance(rows, RowShare):
        return rows.starts
    if table.blocks is None or not isinstance(rows, RowRange) or rows.start:
        return None
    return np.unique(np.minimum(table.blocks, rows.stop))


def _of_turn(splits: Mapping[str, Split], turn: int) -> Sequence[tuple[str, Split]]:
    return [(name, split) for name, split in splits.items() if split.turn == turn]


def _choose(name: str, split: Split, rows: Candidates) -> np.ndarray | range | Draw:
    try:
        return split.choose(rows)
    except ValueError as error:
        raise SplitError(name, str(error)) from error


def _candidates(
    table: Table,
    rows: SetRows,
    num_total: int,
    name: str,
    seed: int,
    by: str | None,
    sort: str | None,
    behind: float = 0.0,
) -> Candidates:
    return Candidates(
        num_rows=len(rows),
        num_total=num_total,
        read=lambda column: table.read([column], rows.between(0, len(rows)))[column],
        shuffled=lambda size: _shuffle(name, seed, size),
        by=by,
        sort=sort,
        behind=behind,
    )


def _key(name: str, seed: int) -> int:
    return key_of("split", seed, name)


def _shuffle(name: str, seed: int, size: int) -> np.ndarray:
    return permute(_key(name, seed), np.arange(size), size)


def _separate(rows: SetRows, chosen: np.ndarray | range) -> tuple[SetRows, SetRows]:
    """Divide the rows of a set into two sets: the rows whose indices in the set are in `chosen` (ascending), and all
    others."""
    if isinstance(chosen, range) and isinstance(rows, RowRange) and chosen.stop == len(rows):
        middle = rows.start + chosen.start
        return RowRange(middle, rows.stop), RowRange(rows.start, middle)
    others = np.ones(len(rows), bool)
    others[chosen if isinstance(chosen, np.ndarray) else slice(chosen.start, chosen.stop)] = False
    numbers = rows.at(np.arange(len(rows)))
    return RowList(numbers[~others]), RowList(numbers[others])
