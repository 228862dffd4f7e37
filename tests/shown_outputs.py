"""`python -m tests.shown_outputs [--check]`: write the outputs of the commands on some pages, or compare them.

After a comment `<!-- shows: TITLE -->`, a block has only the paragraph of the output that begins with TITLE. After
`<!-- shows: A .. B -->`, it has the lines from the one that begins with A up to the one before B, or up to the end.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from declarative_train.app.main import main as dtrain

ROOT = Path(__file__).parent.parent
PAGES = tuple(ROOT / "docs" / name for name in ("fits.md", "myths.md", "verify.md"))
BLOCK = re.compile(
    r"(?:<!-- shows: (?P<part>.*?) -->\n)?^```console\n\$ (?P<command>.*?)\n(?P<output>.*?)^```$", re.M | re.S
)


def write_outputs(text: str) -> str:
    """Run the commands on a page, in a folder with the page's files, and return the page with their outputs."""
    before, width = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for name in ("recipes", "LICENSE"):
            (folder / name).symlink_to(ROOT / name)
        for file, content in re.findall(r'^```json title="(.*?)"\n(.*?)^```$', text, re.M | re.S):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(content)
        os.chdir(folder)
        os.environ["COLUMNS"] = "100"
        try:
            return BLOCK.sub(lambda found: with_output(found), text)
        finally:
            os.chdir(before)
            if width is None:
                del os.environ["COLUMNS"]
            else:
                os.environ["COLUMNS"] = width


def with_output(found: re.Match[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = dtrain(shlex.split(found["command"])[1:])
    output = printed.getvalue()
    assert code == int("error[" in output), found["command"]
    if found["part"] is not None and " .. " in found["part"]:
        begin, end = found["part"].split(" .. ")
        lines = output.splitlines()
        first = next(number for number, line in enumerate(lines) if line.strip().startswith(begin))
        last = next((at for at, line in enumerate(lines) if at > first and line.strip().startswith(end)), len(lines))
        output = "\n".join(lines[first:last]).rstrip() + "\n"
    elif found["part"] is not None:
        (output,) = (f"{part.strip()}\n" for part in output.split("\n\n") if part.startswith(found["part"]))
    whole = found.group()
    return whole[: found.start("output") - found.start()] + output + "```"


def is_close(found: str, text: str) -> bool:
    """Return whether two pages are equal, except for the rounding of numbers, which differs between processors."""
    pairs = [[word for word in each.split() if set(word) != {"-"}] for each in (found, text)]
    return len(pairs[0]) == len(pairs[1]) and all(
        one == two or _are_close(one, two) for one, two in zip(*pairs, strict=True)
    )


def _are_close(one: str, two: str) -> bool:
    try:
        first, second = (0.0 if word == "equal" else float(word) for word in (one, two))  # `equal` of docs/verify.md
        return math.isclose(first, second, rel_tol=2e-3, abs_tol=1e-6)
    except ValueError:
        return False


def main(words: list[str]) -> int:
    pages = [page for page in PAGES if page.name in words or set(words) <= {"--check"}]
    stale = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        found = write_outputs(text)
        stale += not is_close(found, text)
        if "--check" not in words:
            page.write_text(found, encoding="utf-8")
    return int(bool(stale) and "--check" in words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
