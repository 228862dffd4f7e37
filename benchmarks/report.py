"""Tables in docs/performance.md, which benchmarks write between two comments."""

from __future__ import annotations

from pathlib import Path

REPORT = Path(__file__).parent.parent / "docs" / "performance.md"


def write_table(name: str, table: str) -> None:
    """Replace the text between `<!-- begin: NAME -->` and `<!-- end: NAME -->` on the page. Raises ValueError if these
    comments are missing."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    before, _, rest = REPORT.read_text("utf-8").partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{REPORT} has no place for the table `{name}`")
    REPORT.write_text(f"{before}{begin}\n{table}\n{end}{after}", "utf-8")
