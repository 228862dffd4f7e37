"""`python -m tests.fits_page [--check]`: write the outputs of the commands on docs/fits.md, or compare them.

A comment `<!-- shows: TITLE -->` before a block keeps only that part of the output.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

from declarative_train.app.main import main as dtrain

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "fits.md"
BLOCK = re.compile(
    r"(?:<!-- shows: (?P<part>.*?) -->\n)?^```console\n\$ (?P<command>.*?)\n(?P<output>.*?)^```$", re.M | re.S
)


def written(text: str) -> str:
    """Return the page with the outputs of its commands, which run in a folder with its files."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "recipes").symlink_to(ROOT / "recipes")
        for file, content in re.findall(r'^```json title="(.*?)"\n(.*?)^```$', text, re.M | re.S):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(content)
        os.chdir(folder)
        try:
            return BLOCK.sub(lambda found: with_output(found), text)
        finally:
            os.chdir(before)


def with_output(found: re.Match[str]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert dtrain(shlex.split(found["command"])[1:]) == 0, found["command"]
    output = printed.getvalue()
    if found["part"] is not None:
        (output,) = (f"{part.strip()}\n" for part in output.split("\n\n") if part.startswith(found["part"]))
    whole = found.group()
    return whole[: found.start("output") - found.start()] + output + "```"


def main(words: list[str]) -> int:
    text = PAGE.read_text(encoding="utf-8")
    found = written(text)
    if "--check" in words:
        return int(found != text)
    PAGE.write_text(found, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
