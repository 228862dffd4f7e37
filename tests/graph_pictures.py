"""`python -m tests.graph_pictures`: draw the model of each recipe of the gallery, as docs/images/gallery/NAME.svg.

Fields are at the top, and losses at the bottom. A node is below everything that it reads.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

from declarative_train.app.api.recipe import load
from declarative_train.app.views.graph import describe_spec, kind
from declarative_train.plan.plan import Plan

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "recipes" / "gallery"
IMAGES = ROOT / "docs" / "images" / "gallery"
WIDE, HIGH, GAP_X, GAP_Y, LETTER = 30, 40, 18, 26, 6.6
COLOURS = {"field": "#cfe8e4", "node": "#ffffff", "loss": "#fde2c8"}
MOST_LETTERS = 26


def boxes_of(plan: Plan) -> dict[str, tuple[str, str, str, list[str]]]:
    """Return a dict from each field, node and loss to its box: its kind, two lines of text, and the names of the boxes
    that it reads."""
    nodes = [*plan.batch_graph.nodes, *plan.graph.nodes]
    made = {**plan.batch_graph.outputs, **plan.graph.outputs}

    def source(name: str) -> str:
        return made.get(name, name).partition(":")[0]

    found: dict[str, tuple[str, str, str, list[str]]]
    found = {field.name: ("field", field.name, describe_spec(field.tensor), []) for field in plan.data.fields}
    for node in nodes:
        reads = [source(edge.partition(":")[0]) for edge in node.inputs.values()]
        text = f"{kind(node)} {describe_spec(next(iter(node.outputs.values())))}"
        found[node.name] = ("node", node.name, text, list(dict.fromkeys(reads)))
    for term in plan.objective.terms:
        reads = [source(name) for name in (term.input, term.target, term.mask) if name is not None]
        found[f"loss {term.name}"] = ("loss", term.name, str(term.component["type"]), list(dict.fromkeys(reads)))
    read = {name for *_, reads in found.values() for name in reads}
    return {name: box for name, box in found.items() if box[0] != "field" or name in read}


def draw(plan: Plan) -> str:
    """Draw the model of a plan, and return the picture as SVG."""
    boxes = boxes_of(plan)
    depth: dict[str, int] = {}
    for name, (*_, reads) in boxes.items():
        depth[name] = 1 + max((depth.get(each, 0) for each in reads), default=-1)
    rows: dict[int, list[str]] = {}
    for name, at in depth.items():
        rows.setdefault(at, []).append(name)
    text = {name: [cut(first), cut(second)] for name, (_, first, second, _) in boxes.items()}
    width = {name: WIDE + LETTER * max(map(len, lines)) for name, lines in text.items()}
    whole = max(sum(width[name] + GAP_X for name in row) for row in rows.values()) + GAP_X
    places: dict[str, tuple[float, float]] = {}
    for at, row in sorted(rows.items()):
        row.sort(key=lambda name: middle(boxes[name][3], places, whole))
        x = (whole - sum(width[name] for name in row) - GAP_X * (len(row) - 1)) / 2
        for name in row:
            places[name] = (x + width[name] / 2, GAP_Y / 2 + at * (HIGH + GAP_Y))
            x += width[name] + GAP_X
    high = (max(rows) + 1) * (HIGH + GAP_Y)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole:.0f} {high}" font-family="sans-serif">']
    lines.append(f'<rect width="{whole:.0f}" height="{high}" rx="8" fill="#f6f8f8"/>')
    for name, (*_, reads) in boxes.items():
        x, y = places[name]
        for each in (each for each in reads if each in places):
            a, b = places[each][0], places[each][1] + HIGH
            bend = (y - b) / 2
            path = f"M{a:.0f} {b:.0f}C{a:.0f} {b + bend:.0f} {x:.0f} {y - bend:.0f} {x:.0f} {y:.0f}"
            lines.append(f'<path d="{path}" fill="none" stroke="#7a9793"/>')
    for name, (what, *_) in boxes.items():
        x, y = places[name]
        place = f'x="{x - width[name] / 2:.0f}" y="{y:.0f}" width="{width[name]:.0f}" height="{HIGH}"'
        lines.append(f'<rect {place} rx="5" fill="{COLOURS[what]}" stroke="#00796b"/>')
        for number, line in enumerate(text[name]):
            style = 'font-weight="bold" ' if number == 0 else ""
            lines.append(f'<text x="{x:.0f}" y="{y + 17 + 15 * number:.0f}" {style}font-size="12" fill="#1f2a29" '
                         f'text-anchor="middle">{escape(line)}</text>')  # fmt: skip
    return "\n".join([*lines, "</svg>", ""])


def middle(reads: list[str], places: dict[str, tuple[float, float]], whole: float) -> float:
    """Return the mean horizontal position of the boxes that a box reads, so that fewer lines cross. `whole`: width of
    the picture."""
    known = [places[name][0] for name in reads if name in places]
    return sum(known) / len(known) if known else whole / 2


def cut(text: str) -> str:
    return text if len(text) <= MOST_LETTERS else f"{text[: MOST_LETTERS - 3]}..."


def main() -> int:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path in sorted(GALLERY.glob("*.yaml")):
        (IMAGES / f"{path.stem}.svg").write_text(draw(load(path).plan().plan), encoding="utf-8")
        print(path.stem, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
