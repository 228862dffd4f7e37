"""Automatic cuts of a pipeline. The nodes are divided, in their order, into stages such that the most expensive stage
costs as little as possible.

The cost of a node is the number of operations of its forward for one sample, plus two for each parameter: the update of
a large embedding takes time, although its forward computes little. Nodes that share parameters stay in one stage if
possible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate

from declarative_train.graph.cost import Shapes, num_parameters, work_of
from declarative_train.graph.graph import Graph


def balance_cuts(
    graph: Graph, parameters: Shapes, num_stages: int, linked: Iterable[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], ...] | None:
    """Divide the nodes of a graph, in order, into stages such that the most expensive stage costs as little as
    possible. Return the names of the nodes of each stage, or None if no division gives every stage a parameter.

    `linked`: pairs of nodes that share a parameter. The nodes of each pair are put into one stage. If no division does
    this for all pairs, the pairs are ignored.
    """
    names = [node.name for node in graph.nodes]
    held = [num_parameters(name, parameters) for name in names]
    works = work_of(graph, parameters)
    costs = [
        sum(work.forward for work in works[name]) + 2 * elements for name, elements in zip(names, held, strict=True)
    ]
    counts = [count > 0 for count in held]
    ends = _partition(costs, counts, num_stages, _splitting_cuts(names, linked)) or _partition(
        costs, counts, num_stages
    )
    if ends is None:
        return None
    starts = [0, *ends[:-1]]
    return tuple(tuple(names[start:end]) for start, end in zip(starts, ends, strict=True))


def _splitting_cuts(names: Sequence[str], linked: Iterable[tuple[str, str]]) -> set[int]:
    """Return the positions at which a cut would separate two nodes that share a parameter. A cut at position i is
    directly before node i of `names`. `linked`: the pairs of nodes that share a parameter."""
    places = [sorted((names.index(one), names.index(other))) for one, other in linked]
    return {place for first, last in places for place in range(first + 1, last + 1)}


def _partition(
    costs: Sequence[int], counts: Sequence[bool], num_parts: int, uncut: Collection[int] = ()
) -> list[int] | None:
    """Divide nodes into `num_parts` consecutive parts, such that the most expensive part costs as little as possible.
    Return the index of the end of each part, or None if no division is allowed.

    `costs`   cost of each node
    `counts`  whether each node has parameters; every part must have such a node
    `uncut`   indices at which no part may end

    Of equally good divisions, the one with the smallest sum of squared costs is returned. Time: O(parts x nodes^2).
    """
    total = len(costs)
    sums = [0, *accumulate(costs)]
    counted = [0, *accumulate(map(int, counts))]
    best: list[tuple[int, int] | None] = [None] * (total + 1)
    best[0] = (0, 0)
    froms: list[list[int]] = []
    for _ in range(num_parts):
        row: list[tuple[int, int] | None] = [None] * (total + 1)
        back = [0] * (total + 1)
        for end in range(1, total + 1):
            for start in range(end - 1, -1, -1):
                before = best[start]
                if before is None or start in uncut or counted[end] == counted[start]:
                    continue
                part = sums[end] - sums[start]
                current = row[end]
                if current is not None and part > current[0]:
                    break  # and every earlier start makes it larger still
                value = (max(before[0], part), before[1] + part * part)
                if current is None or value < current:
                    row[end], back[end] = value, start
        best = row
        froms.append(back)
    if best[total] is None:
        return None
    ends = [total]
    for back in reversed(froms[1:]):
        ends.append(back[ends[-1]])
    return ends[::-1]
