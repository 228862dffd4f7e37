"""Text and JSON output of a verification."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from declarative_train.app.views.table import table
from declarative_train.core.amounts import format_count
from declarative_train.tools.verify.findings import Finding, Verified, first_of_each

if TYPE_CHECKING:
    from declarative_train.plan.plan import Plan
    from declarative_train.tools.verify.plan_checks import Checked

MOST_RANKS = 8


def format_verified(found: Verified) -> str:
    comparison = found.comparison
    lines = [found.title, *(f"note: {note}" for note in found.notes)]
    rows = [
        [row.kind, f"{row.count:,}", "equal" if not row.largest else f"{row.largest:.1e}"] for row in comparison.rows
    ]
    blocks = ["\n".join(lines), table(["compared", "number", "largest difference"], rows, right=(1, 2))]
    if not comparison.findings:
        return "\n\n".join([*blocks, "no difference beyond rounding"])
    first, *others = first_of_each(comparison.findings)
    blocks.append(f"first difference: {_sentence(first[0])}{_more(first[1])}")
    blocks += [f"later: {_sentence(finding)}{_more(number)}" for finding, number in others]
    return "\n".join([blocks[0], "", blocks[1], "", *blocks[2:]])


def _more(number: int) -> str:
    return f"\n  and {number - 1:,} more of this kind" if number > 1 else ""


def _sentence(finding: Finding) -> str:
    named = f"{finding.kind} of `{finding.name}`" if finding.kind != "rows" else "rows of the global batch"
    size = "" if finding.difference == float("inf") else f" by {finding.difference:.2g} (bound {finding.bound:.0e})"
    ranks = ", ".join(map(str, finding.ranks[:MOST_RANKS])) + (", ..." if len(finding.ranks) > MOST_RANKS else "")
    where = f" on {'rank' if len(finding.ranks) == 1 else 'ranks'} {ranks}" if finding.ranks else ""
    more = [f"\n  {line}" for line in (finding.why, finding.collective) if line]
    return f"{named} differs{size}{where}{''.join(more)}"


def make_verified_data(found: Verified) -> dict[str, object]:
    return {
        "mode": found.plan.layout.mode,
        "ranks": len(found.plan.layout.ranks),
        "step": found.step,
        "precision": found.plan.training.precision,
        "equal": found.is_equal,
        "notes": list(found.notes),
        "compared": [asdict(row) for row in found.comparison.rows],
        "differences": [
            asdict(each) | {"difference": None if each.difference == float("inf") else each.difference}
            for each in found.comparison.findings
        ],
    }


def format_checked(plan: Plan, found: Checked) -> str:
    layout = plan.layout
    mesh = " x ".join(f"{axis.name} {axis.size}" for axis in layout.mesh) or "one process"
    ranks = format_count(len(layout.ranks), "rank")
    rows = [[each.how, f"{each.num_parameters:,}", f"{each.num_elements:,}", each.example] for each in found.rows]
    blocks = [
        f"{layout.mode}, {mesh}: {ranks} of {format_count(found.num_classes, 'kind')}",
        table(["gradient of a parameter", "parameters", "elements", "for example"], rows, right=(1, 2)),
        *(f"wrong: {problem}" for problem in found.problems),
    ]
    if not found.problems:
        blocks.append("every part, reduction and scale adds up")
    return "\n\n".join(blocks)


def make_checked_data(found: Checked) -> dict[str, object]:
    return {
        "adds_up": not found.problems,
        "kinds_of_ranks": found.num_classes,
        "gradients": [asdict(row) for row in found.rows],
        "problems": list(found.problems),
    }
