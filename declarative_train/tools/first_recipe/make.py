"""Making of a first recipe from the options of `dtrain init --from`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from declarative_train.components.data import Dataset, Table
from declarative_train.components.split import Split
from declarative_train.components.splits import SPLITS
from declarative_train.core.amounts import format_count
from declarative_train.data.split_rows import TRAINING, split_rows
from declarative_train.files.open_files import is_remote
from declarative_train.tools.first_recipe.columns import judge
from declarative_train.tools.first_recipe.opening import LOOKED_AT, UnusableError, open_source
from declarative_train.tools.first_recipe.picture_files import find_files_column
from declarative_train.tools.first_recipe.pictures import PictureRecipe, make_of_files
from declarative_train.tools.first_recipe.sizes import Sizes, sizes_for
from declarative_train.tools.first_recipe.target import TargetColumn, Task, read_target
from declarative_train.tools.first_recipe.text import FirstRecipe

_MOST_SEEDS = 50


def make(
    data: str, target: str, path: Path, name: str, schema: str, task: Task | None, table_name: str | None = None
) -> FirstRecipe | PictureRecipe:
    """Return the contents of a recipe that predicts the column `target` of the table `data`. `path`: file of the
    recipe, to which paths of data are relative. `name`: name of the recipe. `schema`: file name of the JSON schema.
    `task`: classes or numbers; None: the values decide. `table_name`: a table of an SQLite file. Raises UnusableError
    and SourceError."""
    source, table = open_source(data, table_name)
    answers = read_target(table, target, data, task)
    words = ["dtrain init --from", data, "--target", target, *(["--task", task] if task else [])]
    words += [] if table_name is None else ["--table", table_name]
    if not is_remote(data) and (files := find_files_column(table, os.path.dirname(data) or ".", target)) is not None:
        keys = _as_keys(_make_relative(source, data, path))
        return make_of_files(table, keys, answers, files, path, name, schema, " ".join(words))
    columns = list(judge(table, answers.values))
    if not any(each.use != "left out" for each in columns):
        why = "; ".join(f"`{each.name}`: {each.why}" for each in columns[:4])
        raise UnusableError(f"no column is left to predict `{target}` from" + (f" ({why})" if why else ""))
    sizes = sizes_for(table.num_rows, answers.task == "classes")
    seed, lacking = _choose_seed(table, answers, sizes)
    return FirstRecipe(
        path=str(path),
        command=" ".join(words),
        name=name,
        schema=schema,
        source=_make_relative(source, data, path),
        num_rows=table.num_rows,
        is_sampled=table.num_rows > LOOKED_AT,
        target=answers,
        columns=columns,
        sizes=sizes,
        seed=seed,
        lacking=lacking,
    )


def _as_keys(source: Dataset) -> dict[str, object]:
    return {"type": source.type} | source.as_data(defaults=False)


def _make_relative(source: Dataset, data: str, path: Path) -> Dataset:
    """Return the source with its path `data` made relative to the folder of the recipe `path`. A URL stays as it is."""
    if is_remote(data):
        return source
    seen = os.path.relpath(data, path.parent).replace(os.sep, "/")
    return type(source).from_data(source.as_data() | {"path": seen})


def _choose_seed(table: Table, target: TargetColumn, sizes: Sizes) -> tuple[int, Mapping[str, Sequence[object]]]:
    """Find a seed for splitting the rows with which the training set has a row of every class. Return this seed, and
    {set: classes of which it has no row} for the other sets with missing classes. Return (0, {}) for a large table or a
    target without classes. Raises UnusableError if none of the tried seeds works."""
    import numpy as np

    if not target.classes or table.num_rows > LOOKED_AT:
        return 0, {}
    cuts: dict[str, Split] = {
        name: SPLITS.read({"type": "stratified", "fraction": fraction, "column": target.name})
        for name, fraction in sizes.fractions.items()
    }
    for seed in range(_MOST_SEEDS):
        lacking = {}
        for name, rows in split_rows(table, cuts, seed).items():
            seen = set(target.values.values[rows.at(np.arange(len(rows)))].tolist())
            lacking[name] = [one for one in target.classes if one not in seen]
        if not lacking[TRAINING]:
            return seed, {name: found for name, found in lacking.items() if found}
    rare = min(target.classes, key=lambda each: target.classes[each])
    times = format_count(target.classes[rare], "row")
    raise UnusableError(f"the class `{rare}` of `{target.name}` has {times}: too few to train and to evaluate")
