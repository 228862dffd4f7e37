"""Computation of the class weights `balanced` of a loss: when a recipe is compiled, the classes of the target are
counted over the training rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from declarative_train.core.diagnostics.diagnostic import Diagnostic
from declarative_train.data.shared_sets import training_values
from declarative_train.data.spec import DataSpec
from declarative_train.graph.build import build
from declarative_train.graph.check_objective import Term
from declarative_train.graph.field_draws import FieldDraws
from declarative_train.graph.graph import Graph
from declarative_train.graph.lower import Lowered
from declarative_train.plan.checks.samples import cannot_balance
from declarative_train.recipe.recipe import Recipe


def balance_terms(recipe: Recipe, lowered: Lowered, data: DataSpec) -> tuple[tuple[Term, ...], list[Diagnostic]]:
    """Return the loss terms with numbers in place of the class weights `balanced`, and an error for each target whose
    classes cannot be counted."""
    terms, diagnostics = [], []
    for term in lowered.terms:
        if not term.component.needs_balance:
            terms.append(term)
            continue
        assert term.edges.target is not None
        spec = lowered.specs[term.edges.input]
        target = lowered.sources[term.edges.target]
        try:
            counts = [
                term.component.tally(values, spec) for values in _values(target, lowered.batch_graph, data, recipe)
            ]
            terms.append(replace(term, component=term.component.balance(np.sum(counts, axis=0))))
        except ValueError as problem:
            span = recipe.span(("objective", "losses", term.name))
            diagnostics.append(cannot_balance(span, term.name, str(problem)))
    return tuple(terms), diagnostics


def _values(name: str, batch_graph: Graph, data: DataSpec, recipe: Recipe) -> Iterator[np.ndarray]:
    """Yield the values of the batch entry `name` for all training samples, in several arrays. A batch entry is a field,
    or a value that is computed from fields alone. Random operations draw the same random numbers as in the first epoch.
    """
    if name not in batch_graph.outputs:
        yield from training_values(data, name)
        return
    import torch

    graph = Graph(batch_graph.inputs, batch_graph.nodes, {name: batch_graph.outputs[name]})
    draws = FieldDraws(recipe.seed)
    module = build(graph, recipe.plugins, field_draws=draws)
    num_seen = 0
    chunks = {field: training_values(data, field) for field in batch_graph.inputs}
    for values in zip(*chunks.values(), strict=True):
        entries: Mapping[str, np.ndarray] = dict(zip(chunks, values, strict=True))
        tensors = [
            torch.from_numpy(np.ascontiguousarray(entries[field])).to(getattr(torch, spec.dtype))
            for field, spec in batch_graph.inputs.items()
        ]
        num_rows = len(tensors[0])
        draws.begin(np.arange(num_seen, num_seen + num_rows), 0, num_rows, torch.device("cpu"))
        num_seen += num_rows
        yield module(*tensors)[0].numpy()
