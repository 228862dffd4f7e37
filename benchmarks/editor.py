"""`python -m benchmarks.editor`: response times of `dtrain lsp`, measured by a client over standard input and output.

Each request is made `TIMES` times for a shipped recipe, after its full check. The table has the median and the slowest
time.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from declarative_train.app.views.table import table
from tests.editor.lsp_client import LspClient

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "recipes" / "large_model_pipeline.yaml"
COMMAND = [sys.executable, "-m", "declarative_train", "lsp"]
TIMES = 30


def main() -> None:
    text = RECIPE.read_text()
    lines = text.splitlines()
    line = next(number for number, each in enumerate(lines) if each.startswith("  loss:"))
    character = lines[line].index("logits") + 2
    node = next(number for number, each in enumerate(lines) if each.startswith("    logits:"))
    begun = time.perf_counter()
    with LspClient(COMMAND, ROOT) as client:
        uri = client.open(RECIPE)
        client.wait_for_diagnostics(uri)
        rows = [("first messages, with the start", f"{time.perf_counter() - begun:.2f} s", "")]
        while "```" not in client.hover(uri, node, 6) and time.perf_counter() - begun < 90:
            time.sleep(0.1)  # shapes are known after the full check
        rows.append(("full check, with the start", f"{time.perf_counter() - begun:.2f} s", ""))
        context = {"includeDeclaration": True}
        requests: dict[str, Callable[[], object]] = {
            "hover": lambda: client.hover(uri, line, character),
            "completion": lambda: client.completions(uri, line, character),
            "definition": lambda: client.at("definition", uri, line, character),
            "references": lambda: client.at("references", uri, line, character, context=context),
            "rename": lambda: client.at("rename", uri, line, character, newName="scores"),
            "outline": lambda: client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}}),
        }
        for name, request in requests.items():
            took = []
            for _ in range(TIMES):
                start = time.perf_counter()
                assert request(), name
                took.append(1000 * (time.perf_counter() - start))
            rows.append((name, f"{statistics.median(took):.1f} ms", f"{max(took):.1f} ms"))
        took = []
        for number in range(10):
            start = time.perf_counter()
            client.change(uri, f"{text}# {number}\n")
            client.wait_for_diagnostics(uri)
            took.append(1000 * (time.perf_counter() - start))
        rows.append(("messages after a key", f"{statistics.median(took):.1f} ms", f"{max(took):.1f} ms"))
    print(table(("request", "median", "slowest"), rows, right=(1, 2)))


if __name__ == "__main__":
    main()
