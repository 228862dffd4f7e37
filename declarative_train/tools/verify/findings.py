"""Findings of a verification: the differences between the ranks and one process, in the order in which a step computes
the values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, prod
from typing import TYPE_CHECKING, Literal

import torch

from declarative_train.core.amounts import format_count
from declarative_train.core.mesh import DATA_AXES
from declarative_train.plan.plan import Plan
from declarative_train.tools.verify.deviation import BOUNDS, WIDE, Bounds, Deviation
from declarative_train.tools.verify.prepare import layer_nodes
from declarative_train.tools.verify.reductions import reductions_of
from declarative_train.tools.verify.step_files import ParameterRecord, StepIndex

if TYPE_CHECKING:
    from declarative_train.tools.verify.observed_step import RankReport

Kind = Literal[
    "rows",
    "parts",
    "start value",
    "output",
    "divisor",
    "loss",
    "gradient",
    "gradient norm",
    "update",
    "statistic",
    "parameter",
]


@dataclass(frozen=True, slots=True)
class Finding:
    """Value that differs between some ranks and a single process by more than its bound. `name`: the parameter, node or
    loss term that has the value. `difference`, `bound`: relative to the size of the values. `ranks`: the ranks that
    differ. `collective`: the communication between ranks on which the value depends, "" if none. `why`: a remark on the
    cause."""

    kind: Kind
    name: str
    difference: float
    bound: float
    ranks: tuple[int, ...]
    collective: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table of a comparison, for one kind of value: how many values were compared, and their largest
    relative difference."""

    kind: Kind
    count: int
    largest: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a step: a row for each kind of value, and the differences that exceed their bounds. The differences
    are in the order in which the step computes the values: outputs in the order of the graph, gradients in the order of
    the backward."""

    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    bounds: Bounds


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of a verification. `plan`: the plan of the requested mode, as it was run. `notes`: what was not compared,
    and why. `title`: what was compared."""

    plan: Plan
    step: int
    comparison: Comparison
    notes: tuple[str, ...]
    title: str

    @property
    def is_equal(self) -> bool:
        return not self.comparison.findings


def bounds_of(plan: Plan) -> Bounds:
    word = plan.training.arithmetic
    return WIDE[word] if word in WIDE else BOUNDS[plan.training.precision]


def compare_reports(plan: Plan, index: StepIndex, reports: Sequence[RankReport]) -> Comparison:
    """Compare the reports of all ranks with `index`, the record of the same step in one process."""
    return _Comparer(plan, index, reports).compare()


class _Comparer:
    def __init__(self, plan: Plan, index: StepIndex, reports: Sequence[RankReport]) -> None:
        self._plan, self._index, self._reports = plan, index, reports
        self._bounds, self._reductions = bounds_of(plan), reductions_of(plan)
        self._findings: list[Finding] = []
        self._rows: list[Row] = []
        found = [record.gradient for record in index.parameters.values() if record.gradient is not None]
        self._largest_gradient = max(found, default=0.0)

    def compare(self) -> Comparison:
        self._compare_samples()
        names = [item.name for item in self._plan.parameters if item.name in self._index.parameters]
        self._compare_parts(names)
        self._judge("start value", [(name, self._start(name)) for name in names], self._bounds.start)
        self._compare_nodes()
        self._compare_losses()
        trained = [name for name in names if name in self._reductions]
        self._judge("gradient", [(name, self._gradient(name)) for name in reversed(trained)], self._bounds.gradient)
        self._compare_norm()
        self._judge("update", [(name, self._update(name)) for name in trained], self._bounds.update)
        self._judge("statistic", [(name, self._statistic(name)) for name in self._index.statistics], self._bounds.node)
        return Comparison(tuple(self._rows), tuple(self._findings), self._bounds)

    def _judge(self, kind: Kind, found: Iterable[tuple[str, list[tuple[float, int]]]], bound: float) -> None:
        """Add a row to the table for one kind of value, such as gradients. Add a finding for each parameter (or node,
        loss term) whose difference exceeds `bound` on some rank. `found`: (name, its pairs (difference, rank))."""
        largest, count = 0.0, 0
        for name, differences in found:
            worst = max(differences, default=(0.0, 0))
            largest, count = max(largest, worst[0]), count + 1
            if worst[0] > bound:
                ranks = tuple(rank for difference, rank in differences if difference > bound)
                collective, why = self._explain(kind, name, worst[1])
                self._findings.append(Finding(kind, name, worst[0], bound, ranks, collective, why))
        if count:
            self._rows.append(Row(kind, count, largest))

    def _compare_samples(self) -> None:
        expected = dict(enumerate(self._index.samples))
        read: dict[int, int] = {}
        for report in self._reports:
            for position, sample in report.samples.items():
                read[position] = sample
                if expected.get(position) != sample:
                    why = f"position {position} has sample {sample} instead of {expected.get(position, 'none')}"
                    self._findings.append(Finding("rows", "global batch", inf, 0, (report.rank,), "", why))
                    break
        if missing := sorted(expected.keys() - read.keys()):
            why = f"no rank reads position {missing[0]}, sample {expected[missing[0]]}"
            self._findings.append(Finding("rows", "global batch", inf, 0, (), "", why))
        self._rows.append(Row("rows", len(expected), 0.0))

    def _compare_parts(self, names: Sequence[str]) -> None:
        """For each parameter in `names`, check that all ranks together have every element of it. Add a finding if they
        do not."""
        for name in names:
            places = {place for report in self._reports if name in report.start for place in report.start[name].places}
            held, size = sum(prod(sizes) for _, sizes in places), prod(self._index.parameters[name].shape)
            if held != size:
                why = f"the ranks hold {held} of its {format_count(size, 'element')}"
                self._findings.append(Finding("parts", name, inf, 0, (), "", why))

    def _start(self, name: str) -> list[tuple[float, int]]:
        record = self._index.parameters[name]
        size = (record.largest + record.moved) or self._start_size(name)
        return [
            (_relative(report.start[name].difference, size), report.rank)
            for report in self._reports
            if name in report.start
        ]

    def _start_size(self, name: str) -> float:
        found = [abs(report.start[name].expected) for report in self._reports if name in report.start]
        return max(found, default=0.0) or 1.0

    def _gradient(self, name: str) -> list[tuple[float, int]]:
        record, found = self._index.parameters[name], []
        size = max(record.gradient or 0.0, self._bounds.floor * self._largest_gradient)
        for report in self._reports:
            if name not in report.gradients:
                continue
            deviation = report.gradients[name]
            lacks = deviation is None and bool(record.gradient)
            difference = inf if lacks else 0.0 if deviation is None else deviation.difference
            found.append((_relative(difference, size), report.rank))
        return found

    def _update(self, name: str) -> list[tuple[float, int]]:
        record = self._index.parameters[name]
        rounding = 8 * torch.finfo(getattr(torch, record.dtype)).eps * record.largest
        return [
            (
                _relative(max(0.0, report.updates[name].difference - rounding), record.moved or record.largest),
                report.rank,
            )
            for report in self._reports
            if name in report.updates
        ]

    def _statistic(self, name: str) -> list[tuple[float, int]]:
        """Return (relative difference, rank) for each rank that has the running statistic `name`.

        From each difference, possible rounding errors are subtracted. The rest is divided by the largest change of this
        statistic in the step, or by `Bounds.floor` times the largest change of any statistic, if that is larger."""
        records = self._index.statistics
        furthest = max(record.moved for record in records.values())
        size = max(records[name].moved, self._bounds.floor * furthest)
        rounding = 8 * torch.finfo(getattr(torch, records[name].dtype)).eps * records[name].largest
        return [
            (_relative(max(0.0, report.statistics[name].difference - rounding), size), report.rank)
            for report in self._reports
            if name in report.statistics
        ]

    def _compare_nodes(self) -> None:
        found = [
            (path, [(report.nodes[path][0], report.rank) for report in self._reports if path in report.nodes])
            for path, _ in layer_nodes(self._plan.graph)
        ]
        self._judge("output", [each for each in found if each[1]], self._bounds.node)

    def _compare_losses(self) -> None:
        names = [term.name for term in self._plan.objective.terms]
        counts = [
            (name, [(_relative(abs(report.counts[at] - self._index.counts[at]), self._index.counts[at]), report.rank)
                    for report in self._reports])
            for at, name in enumerate(names)
        ]  # fmt: skip
        self._judge("divisor", counts, 1e-6)
        by_rows = {self._place_of_items(report.rank): report for report in reversed(self._reports) if report.sums}
        losses = []
        for at, name in enumerate(names):
            found, wanted = sum(report.sums[at] for report in by_rows.values()), self._index.sums[at]
            losses.append((name, [(_relative(abs(found - wanted), abs(wanted) or 1.0), 0)]))
        self._judge("loss", losses, self._bounds.gradient)

    def _place_of_items(self, rank: int) -> tuple[int, ...]:
        """Return a key for the loss items that a rank sums: ranks with equal keys sum the same items. The key is the
        rank's coordinates along all axes of the mesh except `pipeline` and `tensor`."""
        place = self._plan.layout.ranks[rank].coordinates
        return tuple(at for axis, at in place.items() if axis not in ("pipeline", "tensor"))

    def _compare_norm(self) -> None:
        wanted = self._index.norm
        found = [
            (_relative(abs(report.norm - wanted), wanted or 1.0), report.rank)
            for report in self._reports
            if report.norm is not None
        ]
        self._judge("gradient norm", [("all parameters", found)], self._bounds.update)

    def _explain(self, kind: Kind, name: str, rank: int) -> tuple[str, str]:
        """Return two texts on a difference: the communication between ranks that may have caused it, and a remark on
        the cause. Each is "" if unknown. `kind`, `name`: the value that differs. `rank`: the rank with the largest
        difference."""
        if kind == "output":
            return _collective_of_node(self._plan, name), ""
        if kind == "divisor":
            return f"sum over {self._data_axes()} (all-reduce)" if self._data_axes() else "", self._totals(name)
        if kind == "loss":
            term = next(each for each in self._plan.objective.terms if each.name == name)
            return "", f"it reads `{term.input}`"
        if kind == "gradient norm":
            found = next(report.norm for report in self._reports if report.rank == rank)
            return "sum of squares over ranks", f"{found:.6g} instead of {self._index.norm:.6g}"
        report = next(each for each in self._reports if each.rank == rank)
        if kind == "gradient":
            collective = ", then ".join(map(str, self._reductions[name]))
            return collective, self._of_gradient(name, report.gradients[name])
        held = {"start value": report.start, "update": report.updates, "statistic": report.statistics}
        deviation = held.get(kind, {}).get(name)
        summed = kind == "statistic" and self._data_axes()
        return f"sum over {summed} (all-reduce)" if summed else "", "" if deviation is None else _in_words(deviation)

    def _data_axes(self) -> str:
        axes = (f"`{axis.name}`" for axis in self._plan.layout.mesh if axis.name in (*DATA_AXES, "context"))
        return " and ".join(axes)

    def _totals(self, name: str) -> str:
        at = [term.name for term in self._plan.objective.terms].index(name)
        found = sorted({f"{report.counts[at]:g}" for report in self._reports})
        return f"{', '.join(found)} instead of {self._index.counts[at]:g}"

    def _of_gradient(self, name: str, worst: Deviation | None) -> str:
        if worst is None:
            return "a rank has no gradient"
        held = [(report, made) for report in self._reports if (made := report.gradients.get(name)) is not None]
        for axis in self._plan.layout.mesh:
            for one, mine in held:
                for other, theirs in held:
                    if self._differ_along(axis.name, one.rank, other.rank) and mine.places == theirs.places:
                        apart = abs(mine.digest - theirs.digest)
                        if apart > 1e-6 * max(abs(mine.digest), abs(theirs.digest)):
                            return (
                                f"ranks {one.rank} and {other.rank} have different gradients of the same elements: "
                                f"it is not reduced over `{axis.name}`"
                            )
        record: ParameterRecord = self._index.parameters[name]
        scale = record.gradient or 0.0
        ratios = {round(made.ratio, 3) for _, made in held}
        rest = max(made.rest for _, made in held)
        if len(ratios) == 1 and isfinite(rest) and rest <= 10 * self._bounds.gradient * scale:
            return f"every element is {held[0][1].ratio:.4g} times that of one process"
        return _in_words(worst)

    def _differ_along(self, axis: str, one: int, other: int) -> bool:
        mine, theirs = (self._plan.layout.ranks[rank].coordinates for rank in (one, other))
        return one < other and all((mine[each] != theirs[each]) == (each == axis) for each in mine)


def _collective_of_node(plan: Plan, path: str) -> str:
    """Return a text that names the communication between ranks that produces the input or output of a node, or "" if
    there is none."""
    layout, found = plan.layout, []
    cuts = layout.cuts
    if cuts is not None and path in cuts.nodes:
        how = {"gathered": "gathered"} | dict.fromkeys(("rows", "heads", "vocabulary", "hidden"), "summed")
        if any(each.kind == "experts" for each in (cuts.nodes[path], *cuts.parts.get(path, {}).values())):
            found.append("its rows are sent to the ranks of their experts over `expert` (all-to-all)")
        if (word := how.get(cuts.nodes[path].kind)) is not None:
            tokens = cuts.tokens.get(path)
            by = "all-gather" if word == "gathered" else "all-reduce"
            by = "reduce-scatter" if tokens is not None and tokens.writes == "tokens" else by
            found.append(f"its output is {word} over `tensor` ({by})")
    if layout.pipeline is not None:
        for number, nodes in enumerate(layout.pipeline.stages):
            if number and any(path == name or path.startswith(f"{name}.") for name in nodes):
                found.append(f"stage {number} receives its input from stage {number - 1} (send and receive)")
    return ", ".join(found)


def _in_words(deviation: Deviation) -> str:
    at = ", ".join(map(str, deviation.at))
    return f"{deviation.found:.6g} instead of {deviation.expected:.6g} at [{at}]"


def _relative(difference: float, size: float) -> float:
    if not difference:
        return 0.0
    return difference / size if size else inf


def first_of_each(findings: Iterable[Finding]) -> Iterator[tuple[Finding, int]]:
    """Yield (first finding, number of findings) for each kind of finding."""
    by_kind: dict[str, list[Finding]] = {}
    for finding in findings:
        by_kind.setdefault(finding.kind, []).append(finding)
    for found in by_kind.values():
        yield found[0], len(found)
