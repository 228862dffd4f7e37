"""A plan as the way of the data: from the rows of the source to the averaged gradient, and layer by layer.

Every number is the plan's. Shapes are whole tensors with the batch in front, as they are on the device named.
"""

from __future__ import annotations

from declarative_train.cli.views.graph import kind
from declarative_train.cli.views.table import table
from declarative_train.graph.cut import open_blocks
from declarative_train.graph.graph import Graph, Node
from declarative_train.plan.plan import Plan
from declarative_train.terms.tensor_spec import TensorSpec

MOST_DEVICES = 8  # listed one by one; more are said as a range


def flow(plan: Plan) -> str:
    """The data flow as a table, then the layers."""
    return f"data flow\n\n{stages_table(plan)}\n\nlayer by layer, one microbatch\n\n{layers_table(plan)}"


def stages_table(plan: Plan) -> str:
    rows = [*data_rows(plan), *slice_rows(plan), *model_rows(plan), *gradient_rows(plan)]
    numbered = [(str(index), *row) for index, row in enumerate(rows, 1)]
    return table(("", "stage", "before", "what happens", "after", "where"), numbered)


Row = tuple[str, str, str, str, str]


def data_rows(plan: Plan) -> list[Row]:
    training = plan.data.set("training").num_samples
    samples = shapes(plan, training)
    batch = plan.batch
    last = training - (batch.steps_per_epoch - 1) * batch.global_batch_size
    uneven = f", the last of {last:,}" if 0 < last < batch.global_batch_size and plan.data.last_batch == "keep" else ""
    order = "in a new order each epoch" if plan.data.shuffle else "in the order of the file"
    return [
        ("dataset", str(plan.data.source["type"]), "rows become fields", samples, "host"),
        (
            "batches",
            samples,
            f"{batch.steps_per_epoch:,} batches of {batch.global_batch_size:,} an epoch{uneven}, {order}",
            shapes(plan, batch.global_batch_size),
            "host",
        ),
    ]


def slice_rows(plan: Plan) -> list[Row]:
    batch = plan.batch
    found: list[Row] = []
    rows = batch.global_batch_size
    slices = batch.data_parallel_size
    chunks = batch.accumulation
    if chunks > 1:
        what = f"{chunks} chunks, gradients add up over them"
        found.append(("accumulation", shapes(plan, rows), what, shapes(plan, rows // chunks, chunks), "host"))
        rows //= chunks
    if slices > 1:
        what = f"{slices} slices of {rows // slices:,} rows, each row in exactly one"
        found.append(("slices", shapes(plan, rows), what, shapes(plan, rows // slices, slices), places(plan)))
        rows //= slices
    if batch.num_microbatches > 1:
        what = f"{batch.num_microbatches} microbatches through the stages"
        found.append(
            (
                "microbatches",
                shapes(plan, rows),
                what,
                shapes(plan, rows // batch.num_microbatches, batch.num_microbatches),
                "each pipeline",
            )
        )
    return found


def model_rows(plan: Plan) -> list[Row]:
    layout = plan.layout
    rows = plan.batch.microbatch_size
    graph = opened(plan)
    if layout.pipeline is not None:
        found = []
        for index, names in enumerate(layout.pipeline.stages):
            before = entry_shapes(graph, names, rows)
            wires = layout.pipeline.wires[index] if index < len(layout.pipeline.wires) else ()
            after = ", ".join(shape(spec_of(graph, wire), rows) for wire in wires) or outputs_text(plan, rows)
            what = f"{names[0]} .. {names[-1]}" if len(names) > 1 else names[0]
            what += f", {layout.pipeline.num_parameters[index]:,} parameters"
            found.append((f"stage {index}", before, what, after, holders(plan, index)))
        return found
    count = sum(parameter.num_elements for parameter in plan.parameters if parameter.tie is None)
    if layout.mode == "dp":
        copies = layout.num_replicas
        out, gathered = outputs_text(plan, rows), outputs_text(plan, rows * copies)
        return [
            ("model", inputs_text(plan, rows), f"a copy of {count:,} parameters on each", out, places(plan)),
            ("gather", f"{copies} times {out}" if copies > 1 else out, "outputs gathered", gathered, "device 0"),
        ]
    shards = next((axis.size for axis in layout.mesh if axis.name == "shard"), 1)
    what = f"{count:,} parameters, a {shards}th of each on each rank" if shards > 1 else f"{count:,} parameters"
    return [("model", inputs_text(plan, rows), what, outputs_text(plan, rows), places(plan))]


def gradient_rows(plan: Plan) -> list[Row]:
    layout = plan.layout
    terms = ", ".join(term.name for term in plan.objective.terms)
    rows = plan.batch.microbatch_size * (layout.num_replicas if layout.mode == "dp" else 1)
    found: list[Row] = [("loss", outputs_text(plan, rows), "mean over the global batch", terms, loss_place(plan))]
    trained = sum(p.num_elements for p in plan.parameters if not p.frozen and p.tie is None)
    size = plan.batch.data_parallel_size
    inner = layout.data_parallel or layout.mode
    if layout.mode == "dp":
        found.append(("gradients", f"{layout.num_replicas} copies", "added up", f"{trained:,} numbers", "device 0"))
    elif size > 1 and inner == "fsdp":
        what = "reduce-scatter: each rank keeps the mean of its shard"
        found.append(
            ("gradients", f"{trained:,} numbers on {size} ranks", what, f"{trained // size:,} each", "all ranks")
        )
    elif size > 1:
        found.append(
            ("gradients", f"{trained:,} numbers on {size} ranks", "all-reduce: averaged", "equal on all", "all ranks")
        )
    optimizer = str(plan.training.optimizer["type"])
    found.append(
        ("update", f"{trained:,} gradients", optimizer, f"step 1 of {plan.training.num_steps:,}", places(plan))
    )
    return found


def layers_table(plan: Plan) -> str:
    rows = plan.batch.microbatch_size
    graph = opened(plan)
    found = []
    for node in graph.nodes:
        before = ", ".join(shape(graph.spec(edge), rows) for edge in node.inputs.values())
        after = ", ".join(shape(spec, rows) for spec in node.outputs.values())
        found.append(
            (node.name, kind(node), before, after, f"{parameters_below(plan, node.name):,}", holder(plan, node))
        )
    return table(("node", "type", "in", "out", "parameters", "where"), found, right=(4,))


def opened(plan: Plan) -> Graph:
    return open_blocks(plan.graph, plan.layout.units)


def parameters_below(plan: Plan, name: str) -> int:
    return sum(p.num_elements for p in plan.parameters if p.tie is None and p.name.startswith(f"{name}."))


def shape(spec: TensorSpec, rows: int) -> str:
    return " x ".join(f"{size:,}" for size in (rows, *spec.shape))


def shapes(plan: Plan, rows: int, times: int = 1) -> str:
    """Every field of so many rows; `times`: so many such slices."""
    found = "; ".join(f"{field.name} ({shape(field.tensor, rows)})" for field in plan.data.fields)
    return f"{times} times {found}" if times > 1 else found


def inputs_text(plan: Plan, rows: int) -> str:
    """What the model takes of a batch."""
    return "; ".join(f"{name} ({shape(spec, rows)})" for name, spec in plan.graph.inputs.items())


def outputs_text(plan: Plan, rows: int) -> str:
    return "; ".join(f"{name} ({shape(plan.graph.spec(edge), rows)})" for name, edge in plan.graph.outputs.items())


def entry_shapes(graph: Graph, names: tuple[str, ...], rows: int) -> str:
    """What a stage takes: the edges that come from outside it."""
    outside = [
        edge for name in names for edge in graph.node(name).inputs.values() if edge.partition(":")[0] not in names
    ]
    return ", ".join(dict.fromkeys(shape(graph.spec(edge), rows) for edge in outside)) or "-"


def spec_of(graph: Graph, wire: str) -> TensorSpec:
    """A wire is written as people write edges: `lstm`, or `lstm.hidden` for an output that is not the first."""
    for node in graph.nodes:
        for index, (output, spec) in enumerate(node.outputs.items()):
            if wire == (node.name if index == 0 else f"{node.name}.{output}"):
                return spec
    return graph.inputs[wire]


def device_word(plan: Plan) -> str:
    return "device" if plan.layout.mode == "dp" else "rank"


def places(plan: Plan) -> str:
    count = plan.layout.num_replicas if plan.layout.mode == "dp" else len(plan.layout.ranks)
    return listed(plan, list(range(count)))


def listed(plan: Plan, numbers: list[int]) -> str:
    word = device_word(plan)
    if len(numbers) > MOST_DEVICES:
        return f"{word}s {numbers[0]} .. {numbers[-1]}"
    return ", ".join(f"{word} {number}" for number in numbers)


def holders(plan: Plan, stage: int) -> str:
    return listed(plan, [rank.rank for rank in plan.layout.ranks if stage in rank.stages])


def holder(plan: Plan, node: Node) -> str:
    pipeline = plan.layout.pipeline
    if pipeline is None:
        return places(plan)
    return holders(plan, next(index for index, names in enumerate(pipeline.stages) if node.name in names))


def loss_place(plan: Plan) -> str:
    pipeline = plan.layout.pipeline
    if pipeline is not None:
        return holders(plan, pipeline.num_stages - 1)
    return "device 0" if plan.layout.mode == "dp" else places(plan)
