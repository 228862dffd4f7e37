"""Tables for the benchmark of first recipes. They come with scikit-learn, statsmodels and vega_datasets, or are
generated. A table is skipped if its package is not installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 3000


@dataclass(frozen=True, slots=True)
class BenchTable:
    """Table, with its target column and the metric by which models are compared (r2, accuracy or auroc)."""

    name: str
    target: str
    metric: str
    make: Callable[[], pd.DataFrame]


def _sklearn(name: str) -> pd.DataFrame:
    from sklearn import datasets

    found: Any = getattr(datasets, f"load_{name}")(as_frame=True)
    return found.frame


def _statsmodels(name: str) -> pd.DataFrame:
    from statsmodels import datasets

    found: Any = getattr(datasets, name).load_pandas().data
    return found


def _vega(name: str) -> pd.DataFrame:
    import vega_datasets

    found: Any = getattr(vega_datasets.data, name)()
    return found


def _digits() -> pd.DataFrame:
    return _sklearn("digits")


def _affairs() -> pd.DataFrame:
    found = _statsmodels("fair")
    found["affair"] = np.where(found.affairs > 0, "yes", "no")
    return found.drop(columns="affairs")


def _star98() -> pd.DataFrame:
    found = _statsmodels("star98")
    found["share"] = found.NABOVE / (found.NABOVE + found.NBELOW)
    return found.drop(columns=["NABOVE", "NBELOW"])


def _cars() -> pd.DataFrame:
    return _vega("cars").dropna(subset=["Miles_per_Gallon"])


def _frame(columns: dict[str, Any]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(columns)


def _numbers(x: np.ndarray, y: np.ndarray) -> pd.DataFrame:
    return _frame({f"x{at}": x[:, at] for at in range(x.shape[1])} | {"y": y})


def _friedman(number: int) -> pd.DataFrame:
    from sklearn import datasets

    make = datasets.make_friedman1 if number == 1 else datasets.make_friedman2
    noise = 1.0 if number == 1 else 100.0
    return _numbers(*make(3000, noise=noise, random_state=0))


def _wide() -> pd.DataFrame:
    from sklearn.datasets import make_classification

    x, y = make_classification(3000, 200, n_informative=15, n_redundant=10, n_classes=4, random_state=1)
    return _numbers(x, np.array([f"class {each}" for each in y]))


def _thresholds() -> pd.DataFrame:
    """Make a table whose target is an exclusive or of thresholds. It also has skewed columns, and columns of noise."""
    draw, n = np.random.default_rng(0), 3000
    found = {
        "income": draw.lognormal(10, 1.2, n).round(2),
        "age": draw.integers(18, 90, n),
        "region": draw.choice(["N", "S", "E", "W", "NE"], n),
        "orders": draw.poisson(3, n),
        "noise_a": draw.normal(size=n),
        "noise_b": draw.normal(size=n),
    }
    young = (found["income"] > 30000) & (found["age"] < 45)
    often = np.isin(found["region"], ["N", "NE"]) & (found["orders"] > 3)
    return _frame(found | {"buys": np.where(draw.random(n) < np.where(young ^ often, 0.93, 0.05), "yes", "no")})


def _fraud() -> pd.DataFrame:
    draw, n = np.random.default_rng(1), 3000
    amount, hour = draw.lognormal(3, 1, n).round(2), draw.integers(0, 24, n)
    country = draw.choice(["DE", "FR", "US", "BR"], n, p=[0.6, 0.2, 0.15, 0.05])
    chance = 0.01 + 0.3 * ((amount > 40) & (hour < 5)) + 0.2 * ((country == "BR") & (amount > 20))
    return _frame({"amount": amount, "hour": hour, "country": country, "fraud": (draw.random(n) < chance).astype(int)})


def _spirals() -> pd.DataFrame:
    draw, n = np.random.default_rng(2), 1500
    kind, radius = draw.integers(0, 2, n), np.sqrt(draw.random(n)) * 3
    angle = 2.5 * radius + np.pi * kind
    noise = draw.normal(0, 0.15, (n, 2))
    return _frame(
        {"a": radius * np.cos(angle) + noise[:, 0], "b": radius * np.sin(angle) + noise[:, 1],
         "kind": np.where(kind, "left", "right")}
    )  # fmt: skip


def _sparse() -> pd.DataFrame:
    """Make a table with 60 columns, whose target is linear in 5 of them."""
    draw = np.random.default_rng(3)
    x = draw.normal(size=(400, 60))
    return _numbers(x, x[:, :5] @ [3.0, -2, 1.5, 1, -1] + draw.normal(0, 2, 400))


def _words() -> pd.DataFrame:
    """Make a table with columns of many words, each of which has its own effect on the target."""
    draw, n = np.random.default_rng(4), 3000
    shop, item = draw.integers(0, 60, n), draw.integers(0, 30, n)
    day = np.datetime64("2022-01-01") + draw.integers(0, 730, n)
    season = np.sin((day - np.datetime64("2022-01-01")).astype(int) / 365.25 * 2 * np.pi)
    sold = draw.normal(0, 1, 60)[shop] + draw.normal(0, 1, 30)[item] + 1.5 * season + draw.normal(0, 0.5, n)
    return _frame({"shop": [f"shop {each}" for each in shop], "item": [f"item {each}" for each in item],
                   "day": day, "sold": sold})  # fmt: skip


def _counts() -> pd.DataFrame:
    draw, n = np.random.default_rng(5), 3000
    x = draw.normal(size=(n, 6))
    return _numbers(x, draw.poisson(np.exp(0.6 * x[:, 0] + 0.4 * x[:, 1] * (x[:, 2] > 0))).astype(float))


def _holes() -> pd.DataFrame:
    """Make a table in which a quarter of the values is missing."""
    draw, n = np.random.default_rng(6), 2000
    x = draw.normal(size=(n, 8))
    y = np.where(x[:, 0] + x[:, 1] * x[:, 2] + draw.normal(0, 0.5, n) > 0, "yes", "no")
    return _numbers(np.where(draw.random((n, 8)) < 0.25, np.nan, x), y)


TABLES = (
    BenchTable("iris", "target", "accuracy", partial(_sklearn, "iris")),
    BenchTable("wine", "target", "accuracy", partial(_sklearn, "wine")),
    BenchTable("breast cancer", "target", "accuracy", partial(_sklearn, "breast_cancer")),
    BenchTable("digits", "target", "accuracy", _digits),
    BenchTable("diabetes", "target", "r2", partial(_sklearn, "diabetes")),
    BenchTable("affairs", "affair", "auroc", _affairs),
    BenchTable("anes96", "vote", "accuracy", partial(_statsmodels, "anes96")),
    BenchTable("choice", "choice", "auroc", lambda: _statsmodels("modechoice").drop(columns="individual")),
    BenchTable("travel mode", "mode", "accuracy", lambda: _statsmodels("modechoice").drop(columns="individual")),
    BenchTable("visits", "mdvis", "r2", partial(_statsmodels, "randhie")),
    BenchTable("investment", "invest", "r2", partial(_statsmodels, "grunfeld")),
    BenchTable("schools", "share", "r2", _star98),
    BenchTable("food", "foodexp", "r2", partial(_statsmodels, "engel")),
    BenchTable("cars", "Miles_per_Gallon", "r2", _cars),
    BenchTable("origin of cars", "Origin", "accuracy", _cars),
    BenchTable("weather", "weather", "accuracy", partial(_vega, "seattle_weather")),
    BenchTable("temperature", "temp", "r2", partial(_vega, "seattle_temps")),
    BenchTable("temperature 2", "temp", "r2", partial(_vega, "sf_temps")),
    BenchTable("stocks", "price", "r2", partial(_vega, "stocks")),
    BenchTable("barley", "yield", "r2", partial(_vega, "barley")),
    BenchTable("airports", "latitude", "r2", partial(_vega, "airports")),
    BenchTable("friedman 1", "y", "r2", partial(_friedman, 1)),
    BenchTable("friedman 2", "y", "r2", partial(_friedman, 2)),
    BenchTable("200 columns", "y", "accuracy", _wide),
    BenchTable("thresholds", "buys", "accuracy", _thresholds),
    BenchTable("fraud", "fraud", "auroc", _fraud),
    BenchTable("spirals", "kind", "accuracy", _spirals),
    BenchTable("5 of 60 columns", "y", "r2", _sparse),
    BenchTable("shops", "sold", "r2", _words),
    BenchTable("counts", "y", "r2", _counts),
    BenchTable("holes", "y", "accuracy", _holes),
)
