"""Benchmark of first recipes: recipes of `dtrain init`, used without a change, compared with scikit-learn's models on
31 tables.

    python -m benchmarks.first_recipe [--only NAME ...] [--repeats 3] [--workers 2] [--set KEY=VALUE ...] [--out FILE]
                                      [--write]

For each fold, `init` writes a recipe for the training rows. The recipe divides them into a training and a validation
set; the test set that `init` would make is left out. The other models get all training rows. All are compared on the
rows of the fold, which none was trained on, by the metric of the table. Each repeat has other folds, and other seeds of
both networks, because the seed alone changes the score of a small table by 0.01.

`spread`: standard error of the mean difference between `init` and the MLP. It has the correction for folds whose
training rows overlap (Nadeau and Bengio, "Inference for the generalization error", 2003).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from pathlib import Path
from statistics import mean, variance
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.first_recipe_tables import MOST_ROWS, TABLES, BenchTable
from benchmarks.report import write_table

if TYPE_CHECKING:
    import pandas as pd

MODELS = ("constant", "linear", "boosting", "mlp", "init")
FOLDS = 3
MOST_WORDS = 100
NEAR = 0.02

Scores = dict[str, float]


def folds(table: BenchTable, frame: pd.DataFrame, repeat: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    from sklearn.model_selection import KFold, StratifiedKFold

    kind = KFold if table.metric == "r2" else StratifiedKFold
    yield from kind(FOLDS, shuffle=True, random_state=repeat).split(frame, frame[table.target])


def load(table: BenchTable) -> pd.DataFrame:
    frame = table.make().reset_index(drop=True)
    return frame.sample(min(len(frame), MOST_ROWS), random_state=0).reset_index(drop=True)


def score(metric: str, truth: np.ndarray, answers: np.ndarray, shares: np.ndarray | None) -> float:
    """Return the metric of some answers. `shares` (N, K): probabilities of the sorted classes, which auroc needs."""
    from sklearn.metrics import accuracy_score, r2_score, roc_auc_score

    if metric == "r2":
        return float(r2_score(truth, answers))
    if metric == "accuracy":
        return float(accuracy_score(truth.astype(str), answers.astype(str)))
    assert shares is not None
    return float(roc_auc_score(truth, shares[:, 1]))


def features(train: pd.DataFrame, test: pd.DataFrame) -> tuple[Any, Any, Any]:
    """Return both tables with dates as numbers, and a preprocessor for linear models and networks. It replaces missing
    numbers by the median, normalises numbers, and gives each word a column of its own."""
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    def plain(frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.copy()
        for name in frame.columns:
            if frame[name].dtype.kind == "M":
                day = made.pop(name)
                parts = {"days": day.astype("int64") / day.astype("int64").max(), "hour": day.dt.hour}
                parts |= {"weekday": day.dt.day_of_week}
                parts |= {"sin": np.sin(day.dt.day_of_year / 58.1), "cos": np.cos(day.dt.day_of_year / 58.1)}
                made = made.assign(**{f"{name} {key}": value for key, value in parts.items()})
        return made

    train, test = plain(train), plain(test)
    words = [name for name in train.columns if train[name].dtype.kind not in "iufb"]
    for name in words:
        frequent = train[name].value_counts().index[:MOST_WORDS]
        for frame in (train, test):
            frame[name] = frame[name].where(frame[name].isin(frequent), "other").astype(str)
    numbers = [name for name in train.columns if name not in words]
    prepare = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), words),
    )
    return train, test, prepare


def others(table: BenchTable, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> Scores:
    from sklearn.dummy import DummyClassifier, DummyRegressor
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LogisticRegression, RidgeCV
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline

    is_class = table.metric != "r2"
    a, b, prepare = features(train.drop(columns=table.target), test.drop(columns=table.target))
    prepared_a, prepared_b = prepare.fit_transform(a), prepare.transform(b)
    answers, truth = train[table.target].to_numpy(), test[table.target].to_numpy()
    answers, truth = (each.astype(str) if is_class else each.astype(float) for each in (answers, truth))
    kinds: dict[str, Any] = {
        "constant": DummyClassifier(strategy="prior") if is_class else DummyRegressor(),
        "linear": LogisticRegression(max_iter=2000) if is_class else RidgeCV(np.logspace(-3, 3, 13)),
        "boosting": (HistGradientBoostingClassifier if is_class else HistGradientBoostingRegressor)(random_state=0),
        "mlp": (MLPClassifier if is_class else MLPRegressor)(random_state=seed),
    }
    found = {}
    for name, model in kinds.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = make_pipeline(model).fit(prepared_a, answers)
        shares = made.predict_proba(prepared_b) if is_class else None
        found[name] = score(table.metric, truth, made.predict(prepared_b), shares)
    return found


def ours(table: BenchTable, train: pd.DataFrame, test: pd.DataFrame, settings: Mapping[str, object]) -> Scores:
    import torch

    import declarative_train as dt
    from declarative_train.__main__ import main

    torch.set_num_threads(1)
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            train.to_parquet("table.parquet", index=False)
            task = "numbers" if table.metric == "r2" else "classes"
            words = ["--from", "table.parquet", "--target", table.target, "--task", task]
            if main(["init", *words]) != 0:
                raise RuntimeError(f"init fails for {table.name}")
            has_test = "    test: " in Path("table.yaml").read_text()
            changes = ({"data.split.test": None} if has_test else {}) | {"layout.device": "cpu"} | dict(settings)
            start = time.perf_counter()
            run = dt.load("table.yaml", set=changes).run(quiet=True)
            seconds = time.perf_counter() - start
            answers: Any = run.predict(test.drop(columns=table.target))
            truth = test[table.target].to_numpy()
            if table.metric == "r2":
                column = next(name for name in answers.columns)
                return {"init": score("r2", truth, answers[column].to_numpy(), None), "seconds": seconds}
            names = np.array(sorted(set(train[table.target].tolist())))
            shares = np.stack([answers[each] for each in answers.columns if each.startswith("p_")], axis=1)
            return {"init": score(table.metric, truth, names[shares.argmax(1)], shares), "seconds": seconds}
        finally:
            os.chdir(before)


def measure(name: str, repeat: int, fold: int, settings: Mapping[str, object]) -> Scores:
    table = next(each for each in TABLES if each.name == name)
    try:
        frame = load(table)
    except ImportError:
        return {}
    train, test = list(folds(table, frame, repeat))[fold]
    a, b = (frame.iloc[each].reset_index(drop=True) for each in (train, test))
    return others(table, a, b, repeat) | ours(table, a, b, {"seed": repeat} | dict(settings))


def spread(scores: Sequence[Scores]) -> float:
    """Return the corrected standard error of the mean difference between `init` and the MLP."""
    differences = [each["init"] - each["mlp"] for each in scores]
    return float(np.sqrt(variance(differences) * (1 / len(differences) + 1 / (FOLDS - 1))))


def report(found: Mapping[str, Sequence[Scores]]) -> str:
    """Return the table of results and its summary, in Markdown."""
    repeats = min(map(len, found.values()), default=0) // FOLDS
    lines = [
        f"{date.today()}, one thread; means of {repeats} repeats of {FOLDS} folds.",
        "",
        "| table | metric | constant | linear | boosting | MLP | `init` | `init` - MLP | spread | seconds of `init` |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    wins, near, ahead, behind = 0, 0, 0, []
    for table in TABLES:
        if not (scores := found.get(table.name)):
            continue
        values = {key: mean(each[key] for each in scores) for key in scores[0]}
        difference, error = values["init"] - values["mlp"], spread(scores)
        cells = [table.name, table.metric, *(f"{values[each]:.3f}" for each in MODELS)]
        cells += [f"{difference:+.3f}", f"{error:.3f}", f"{values['seconds']:.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
        wins += difference >= 0
        near += values["init"] >= max(values["linear"], values["boosting"]) - NEAR
        ahead += difference > error
        behind += [table.name] if difference < -error else []
    worse = f"{len(behind)} ({', '.join(behind)})" if behind else "none"
    return "\n".join(
        [
            *lines,
            "",
            f"The recipe is at least as good as the MLP on {wins} of {len(found)} tables (the aim is 27), and at most",
            f"{NEAR} below the better of linear and boosting on {near} (the aim is 20). Where it differs from the MLP",
            f"by more than the spread, the recipe is better on {ahead} tables and worse on {worse}.",
        ]
    )


def run(names: Sequence[str], repeats: int, workers: int, settings: Mapping[str, object]) -> dict[str, list[Scores]]:
    found: dict[str, list[Scores]] = {}
    with ProcessPoolExecutor(workers) as pool:
        jobs = {
            name: [pool.submit(measure, name, at, fold, settings) for at in range(repeats) for fold in range(FOLDS)]
            for name in names
        }
        for name, futures in jobs.items():
            scores = [job.result() for job in futures]
            if all(scores):
                found[name] = scores
                print(f"{name}: " + ", ".join(f"{key} {mean(each[key] for each in scores):.3f}" for key in scores[0]),
                      flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in TABLES])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--out", help="file for the figures of each fold, as JSON")
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    args = parser.parse_args()
    settings = {key: json.loads(value) for key, _, value in (each.partition("=") for each in args.set)}
    found = run(args.only or [each.name for each in TABLES], args.repeats, args.workers, settings)
    print(report(found))
    if args.out:
        Path(args.out).write_text(json.dumps(found, indent=1))
    if args.write:
        write_table("benchmarks.first_recipe", report(found))


if __name__ == "__main__":
    main()
