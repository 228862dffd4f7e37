"""First minutes of a new user, from data to answers: the commands of README for a table and for a folder of pictures.

    python -m benchmarks.first_minutes [--only table|pictures] [--write]

Each part begins in an empty folder that only gets the data. The commands are run one after the other, each as a process
of its own; the script ends at the first one that fails. `--write` puts them into docs/first-minutes.md, with their
shortened outputs and their times.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage
from typing import NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "first-minutes.md"
LIMIT_S = 600


class Step(NamedTuple):
    """Command and the reason for it. `first`, `last`: number of lines at the beginning and end of its output that are
    shown."""

    line: str
    why: str
    first: int = 0
    last: int = 3


class Part(NamedTuple):
    title: str
    about: str
    make: Callable[[], None]
    steps: tuple[Step, ...]


class Done(NamedTuple):
    step: Step
    seconds: float
    cpu_s: float
    output: str


def make_orders() -> None:
    """Write orders.csv, 1,000 orders of a shop, some of which were returned, and new.csv, 50 later orders."""
    draw = random.Random(0)
    names = ["order_id", "ordered", "channel", "category", "items", "amount", "discount", "delivery_days", "returned"]
    with open("orders.csv", "w", newline="") as old, open("new.csv", "w", newline="") as new:
        tables = csv.writer(old), csv.writer(new)
        tables[0].writerow(names)
        tables[1].writerow(names[:-1])
        for number in range(1050):
            at = datetime(2023, 1, 1) + timedelta(hours=16 * number + draw.randrange(16))
            channel = draw.choices(["web", "app", "store", ""], [5, 3, 2, 0.4])[0]
            category = draw.choice(["shoes", "coats", "books", "toys", "garden"])
            items, days = draw.randint(1, 6), draw.randint(1, 9)
            amount = round(items * draw.uniform(5, 60), 2)
            discount = draw.choice([0, 0, 5, 10, 20, None])
            score = 1.2 * (category in ("shoes", "coats")) + 0.9 * (at.month in (12, 1)) + 0.25 * days
            score += 0.006 * amount - 0.8 * (channel == "store") + draw.gauss(0, 0.7) - 3.0
            row = [f"A{number:05}", at.isoformat(sep=" ")[:16], channel, category, items, amount, discount, days]
            if number < 1000:
                tables[0].writerow([*row, "yes" if score > 0 else "no"])
            else:
                tables[1].writerow(row)


def make_digits() -> None:
    """Write the digits zero, one and two of scikit-learn as pictures: 300 in class folders, the others in the folder
    new."""
    from PIL import Image
    from sklearn.datasets import load_digits

    found = load_digits()
    words = ("zero", "one", "two")
    shown = [index for index, kind in enumerate(found.target) if kind < len(words)]
    for place, index in enumerate(shown):
        folder = Path("digits", words[found.target[index]]) if place < 300 else Path("new")
        folder.mkdir(parents=True, exist_ok=True)
        picture = Image.fromarray((found.images[index] * 15.9).astype("uint8"))
        picture.resize((32, 32)).save(folder / f"{index:04}.png")


PARTS = {
    "table": Part(
        "A table",
        "`orders.csv` has 1,000 orders of a shop with a time, words, numbers, missing values and the answer\n"
        "`returned`, yes or no. `new.csv` has 50 later orders without the answer.",
        make_orders,
        (
            Step("dtrain init --from orders.csv --target returned", "writes `orders.yaml`, a recipe with reasons"),
            Step("dtrain lint orders.yaml", "looks for mistakes", last=1),
            Step("dtrain plan orders.yaml", "shows what would run", first=8, last=0),
            Step("dtrain run orders.yaml", "trains", last=20),
            Step("dtrain evaluate runs/orders", "shows what it learned", first=18, last=2),
            Step("dtrain predict runs/orders new.csv -o answers.csv --keep order_id", "answers for new orders"),
            Step("head -4 answers.csv", "shows the answers", last=4),
        ),
    ),
    "pictures": Part(
        "A folder of pictures",
        "`digits` has a folder for each class, `zero`, `one` and `two`, with 300 pictures. `new` has 237 more.",
        make_digits,
        (
            Step("dtrain init --from digits", "writes `digits.yaml`, a recipe with reasons"),
            Step("dtrain lint digits.yaml", "looks for mistakes; it decodes the pictures of a small folder", last=1),
            Step("dtrain data show digits.yaml --pictures sheet.png", "draws what the model sees", last=1),
            Step("dtrain plan digits.yaml", "shows what would run", first=8, last=0),
            Step("dtrain run digits.yaml", "trains", last=20),
            Step("dtrain evaluate runs/digits", "shows what it learned", first=18, last=2),
            Step("dtrain predict runs/digits new -o answers.csv --keep path", "answers for new pictures"),
            Step("head -4 answers.csv", "shows the answers", last=4),
        ),
    ),
}


def type_line(line: str) -> tuple[float, float, str]:
    """Run a command line in the working directory. Return its wall-clock time, its CPU time, and its output. Raises
    RuntimeError if it fails."""
    words = shlex.split(line)
    words = [sys.executable, "-m", "declarative_train", *words[1:]] if words[0] == "dtrain" else words
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "COLUMNS": "110",
        "OMP_NUM_THREADS": "1",
    }
    began, used = time.perf_counter(), getrusage(RUSAGE_CHILDREN)
    done = subprocess.run(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{line}: exit code {done.returncode}\n{done.stdout}")
    now = getrusage(RUSAGE_CHILDREN)
    return seconds, now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime, done.stdout


def shorten(output: str, first: int, last: int) -> str:
    """Return the first and the last lines of an output, with `...` between them if lines are left out."""
    lines = [line.rstrip() for line in output.strip("\n").splitlines()]
    if len(lines) <= first + last:
        return "\n".join(lines)
    return "\n".join([*lines[:first], "...", *(lines[-last:] if last else [])])


def go_through(part: Part) -> list[Done]:
    """Run the commands of a part in an empty folder, and return their outputs and times."""
    home = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            part.make()
            found = []
            for step in part.steps:
                seconds, cpu_s, output = type_line(step.line)
                found.append(Done(step, seconds, cpu_s, output.replace(f"{os.getcwd()}/", "")))
                print(f"{found[-1].seconds:6.1f} s, {found[-1].cpu_s:5.1f} s of CPU  {step.line}", flush=True)
            return found
        finally:
            os.chdir(home)


def section(part: Part, found: list[Done]) -> str:
    """Return the section of the page for one part."""
    whole, cpu_s = sum(each.seconds for each in found), sum(each.cpu_s for each in found)
    rows = [f"| `{each.step.line}` | {each.step.why} | {each.seconds:.1f} s | {each.cpu_s:.1f} s |" for each in found]
    table = "\n".join(["| typed | what it does | time | on a core |", "|---|---|---|---|", *rows])
    texts = (f"$ {each.step.line}\n{shorten(each.output, each.step.first, each.step.last)}" for each in found)
    shown = "\n\n".join(texts)
    times = f"All commands together: {whole:.0f} s, of which they had a core for {cpu_s:.0f} s."
    return f"## {part.title}\n\n{part.about}\n{times}\n\n{table}\n\n```text\n{shown}\n```\n"


def page(sections: list[str]) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = f"{cores} cores ({platform.machine()}), no GPU, one core for each command"
    return f"""# The first minutes

From data to answers, typed as they are here, in a folder with nothing else. The first lines of a recipe that `init`
writes list these commands. `python -m benchmarks.first_minutes --write` records this page.
{date.today()}: {machine}, other work on the same machine.

{chr(10).join(sections)}"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--write", action="store_true", help="write docs/first-minutes.md")
    args = parser.parse_args(argv)
    chosen = [args.only] if args.only else list(PARTS)
    sections = [section(PARTS[name], go_through(PARTS[name])) for name in chosen]
    if args.write:
        PAGE.write_text(page(sections), "utf-8")
    else:
        print("\n".join(sections))
    return 0


if __name__ == "__main__":
    sys.exit(main())
