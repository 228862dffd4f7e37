"""Writes hours.csv and clicks.csv, which are made up, next to itself: python recipes/data/make.py [FOLDER]"""

from __future__ import annotations

import sys
from itertools import combinations
from math import cos, exp, pi, sin
from pathlib import Path
from random import Random

SIZES = {"site": 5, "device": 12, "place": 40, "item": 300}


def hours() -> str:
    """Three series with a day, a week and noise that fades slowly."""
    random = Random(7)
    rows = ["hour,a,b,c"]
    a_noise = b_noise = c_noise = 0.0
    for hour in range(1600):
        a_noise = 0.8 * a_noise + random.gauss(0, 0.12)
        b_noise = 0.8 * b_noise + random.gauss(0, 0.12)
        c_noise = 0.7 * c_noise + random.gauss(0, 0.15)
        day, week = 2 * pi * hour / 24, 2 * pi * hour / 168
        a = 2 * sin(day) + 0.8 * sin(week) + a_noise
        b = 5 + 1.5 * sin(day + 1) + 0.7 * sin(2 * day) + b_noise
        c = -3 + cos(day) * (1 + 0.5 * sin(week)) + c_noise
        rows.append(f"{hour},{a:.3f},{b:.3f},{c:.3f}")
    return "\n".join(rows) + "\n"


def clicks() -> str:
    """Categories, some more frequent than others, that attract each other in pairs; and two numbers."""
    random = Random(11)
    vectors = {name: [[random.gauss(0, 1) for _ in range(3)] for _ in range(size)] for name, size in SIZES.items()}
    shifts = {name: [random.gauss(0, 0.5) for _ in range(size)] for name, size in SIZES.items()}
    rows = [",".join([*SIZES, "age", "hour", "click"])]
    for _ in range(6000):
        row = {name: min(int(size * random.random() ** 1.7), size - 1) for name, size in SIZES.items()}
        age, hour = random.gauss(0, 1), random.random()
        score = sum(shifts[name][at] for name, at in row.items())
        for one, other in combinations(SIZES, 2):
            pair = zip(vectors[one][row[one]], vectors[other][row[other]], strict=True)
            score += 0.35 * sum(x * y for x, y in pair)
        score += 0.6 * age - 1.6 * (hour - 0.5) * age - 0.6
        click = int(random.random() < 1 / (1 + exp(-1.5 * score)))
        rows.append(",".join([*map(str, row.values()), f"{age:.2f}", f"{hour:.2f}", str(click)]))
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    (folder / "hours.csv").write_text(hours())
    (folder / "clicks.csv").write_text(clicks())
