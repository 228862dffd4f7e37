"""Path of the data in a plan, as text: from the rows of the source to the averaged gradient, then layer by layer. All
numbers come from the plan. Shapes are those of whole tensors, with the batch dimension first."""

from __future__ import annotations

from declarative_train.app.views.graph import kind
from declarative_train.app.views.table import items, table
from declarative_train.core.amounts import format_count
from declarative_train.core.tensor_spec import TensorSpec
from declarative_train.graph.graph import Graph, Node
from declarative_train.graph.partition import open_blocks
from declarative_train.plan.layout import PipelinePlan
from declarative_train.plan.plan import Plan
from declarative_train.planner.text.layout import describe_cuts
from declarative_train.planner.text.model import groups_of, update_in_words

MOST_DEVICES = 8  # listed one by one; more are shown as a range
MOST_PARTS = 5  # shown nodes of a block


def flow(plan: Plan, width: int | None = None) -> str:
    """Return the table of the stages through which the data pass, the table of the layers, and how layers are divided
    over ranks, as text. Lines have at most `width` characters (None: no limit)."""
    microbatch = f"layer by layer, {format_count(plan.batch.microbatch_size, 'row')} at a time"
    cuts = plan.layout.cuts
    parts = ["data flow", stages_table(plan, width), microbatch, layers_table(plan, width)]
    if cuts is not None:
        parts.append("\n".join(describe_cuts(plan.layout, plan.parameters)))
    return "\n\n".join(parts)


def stages_table(plan: Plan, width: int | None) -> str:
    """Return a table with a row for each step on the path of the data, from the rows of the source to the gradient. If
    the table is wider than `width`, the cells of each row are written one below the other."""
    rows = [*data_rows(plan), *slice_rows(plan), *model_rows(plan), *gradient_rows(plan)]
    numbered = [(str(index), *row) for index, row in enumerate(rows, 1)]
    found = table(("", "stage", "before", "what happens", "after", "where"), numbered)
    if width is None or max(map(len, found.splitlines())) <= width:
        return found
    below = [
        (number, name, (f"{what} ({where})", f"{before}  ->  {after}"))
        for number, name, before, what, after, where in numbered
    ]
    return items(below, width)


Row = tuple[str, str, str, str, str]


def data_rows(plan: Plan) -> list[Row]:
    training = plan.data.set("training").num_samples
    samples = shapes(plan, training)
    batch = plan.batch
    last = training - (batch.steps_per_epoch - 1) * batch.global_batch_size
    uneven = f", the last of {last:,}" if 0 < last < batch.global_batch_size and plan.data.last_batch == "keep" else ""
    order = "in a new order each epoch" if plan.data.shuffle else "in the order of the file"
    if (roll := plan.data.roll) is not None:
        order += f", {format_count(roll.streams, 'stream')} with windows of {format_count(roll.window, 'block')}"
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
    """Return the table rows that show how a batch is divided. There is a row for each division that the plan uses: into
    chunks of gradient accumulation, into a slice for each data-parallel rank, into microbatches of a pipeline. With a
    pipeline, gradient accumulation has no row, because it only adds microbatches."""
    batch, pipeline = plan.batch, plan.layout.pipeline
    found: list[Row] = []
    rows, slices = batch.global_batch_size, batch.data_parallel_size
    chunks = batch.accumulation if pipeline is None else 1
    if chunks > 1:
        what = f"{format_count(chunks, 'chunk')} one after the other, their gradients add up"
        found.append(("accumulation", shapes(plan, rows), what, shapes(plan, rows // chunks, chunks), "host"))
        rows //= chunks
    if slices > 1:
        what = f"{format_count(slices, 'slice')} of {format_count(rows // slices, 'row')}, each row in exactly one"
        found.append(("slices", shapes(plan, rows), what, shapes(plan, rows // slices, slices), places(plan)))
        rows //= slices
    if pipeline is not None:
        number = pipeline.num_microbatches
        made = f" ({batch.accumulation} accumulation x {batch.num_microbatches})" if batch.accumulation > 1 else ""
        what = f"{format_count(number, 'microbatch')}{made} through the stages, one after the other"
        where = "the pipeline" if slices == 1 else "each pipeline"
        found.append(("microbatches", shapes(plan, rows), what, shapes(plan, rows // number, number), where))
    return found


def model_rows(plan: Plan) -> list[Row]:
    layout = plan.layout
    rows = plan.batch.microbatch_size
    if layout.pipeline is not None:
        return stage_rows(plan, layout.pipeline, rows)
    count = sum(parameter.num_elements for parameter in plan.parameters if parameter.tie is None)
    held, out = format_count(count, "parameter"), outputs_text(plan, rows)
    if layout.scatters:
        copies = layout.num_copies
        return [
            ("model", inputs_text(plan, rows), f"a copy of {held} on each", out, places(plan)),
            (
                "gather",
                several(out, copies),
                "outputs concatenated",
                outputs_text(plan, rows * copies),
                "device 0",
            ),
        ]
    what = held
    if layout.is_sharded:
        shards = layout.num_shards
        what = f"{held}, 1/{shards} on each; a block is gathered while it is used" if shards > 1 else held
    elif len(layout.ranks) > layout.size("tensor"):
        what = f"a copy of {held} on each"
    if layout.context is not None:
        what += f"; each of {layout.size('context')} ranks has its positions, and attention gathers keys and values"
    if layout.cuts is not None:
        own = [item for item in plan.parameters if item.tie is None]
        of_experts = layout.cuts.of_experts
        divided = sum(item.num_elements for item in own if item.name in layout.cuts.parameters.keys() - of_experts)
        if layout.has("tensor"):
            what += f"; {divided:,} of them divided over {layout.size('tensor')} ranks, which sum their outputs"
        divided = sum(item.num_elements for item in own if item.name in of_experts)
        if layout.has("expert"):
            what += f"; {divided:,} of experts, divided over {layout.size('expert')} ranks, which exchange rows"
    return [("model", inputs_text(plan, rows), what, out, places(plan))]


def stage_rows(plan: Plan, pipeline: PipelinePlan, rows: int) -> list[Row]:
    graph = open_graph(plan)
    found: list[Row] = []
    for index, names in enumerate(pipeline.stages):
        wires = pipeline.wires[index] if index < len(pipeline.wires) else ()
        after = ", ".join(shape(spec_of(graph, wire), rows) for wire in wires)
        after = f"{after}, to stage {index + 1}" if wires else outputs_text(plan, rows)
        what = f"{names[0]} .. {names[-1]}" if len(names) > 1 else names[0]
        what += f", {format_count(pipeline.num_parameters[index], 'parameter')}"
        found.append((f"stage {index}", entry_shapes(graph, names, rows), what, after, holders(plan, index)))
    return found


def gradient_rows(plan: Plan) -> list[Row]:
    layout, batch = plan.layout, plan.batch
    rows = batch.microbatch_size * layout.num_copies
    terms = ", ".join(term.name for term in plan.objective.terms)
    found: list[Row] = [("loss", outputs_text(plan, rows), loss_text(plan), terms, loss_place(plan))]
    numbers = trained_count_text(plan)
    size = batch.data_parallel_size
    among = "the ranks of a stage" if layout.pipeline is not None else f"{size} ranks"
    if layout.pipeline is not None:
        what = "backward through the stages, from the last to the first"
        found.append(("gradients", terms, what, numbers, "all ranks"))
    if layout.scatters:
        found.append(("gradients", several(numbers, layout.num_copies), "added up", numbers, "device 0"))
    elif size > 1 and layout.is_sharded:
        what = f"reduce-scatter among {among}: each keeps its shard of the mean"
        found.append(("averaging", numbers, what, f"1/{layout.num_shards} on each", "all ranks"))
    elif size > 1:
        found.append(
            ("averaging", numbers, f"all-reduce: averaged among {among}", f"{numbers}, equal on each", "all ranks")
        )
    return found + update_rows(plan)


def trained_count_text(plan: Plan) -> str:
    """Return how many parameter elements are trained, as text; in a pipeline, how many in each stage."""
    learned = [parameter for parameter in plan.parameters if not parameter.frozen and parameter.tie is None]
    pipeline = plan.layout.pipeline
    if pipeline is None:
        return format_count(sum(parameter.num_elements for parameter in learned), "number")
    stages = [
        sum(p.num_elements for p in learned if any(p.name.startswith(f"{name}.") for name in names))
        for names in pipeline.stages
    ]
    return f"{' / '.join(f'{count:,}' for count in stages)} numbers in the stages"


def update_rows(plan: Plan) -> list[Row]:
    """Return the table rows that describe the optimizer's update: one row for each group of parameters that are updated
    in the same way."""
    groups = groups_of(plan)
    how, done = describe_update(plan), f"step 1 of {plan.training.num_steps:,} done"
    if len(groups) == 1:
        return [("update", trained_count_text(plan), f"{update_in_words(groups[0])}{how}", done, update_place(plan))]
    return [
        (
            "update",
            f"{format_count(group.num_elements, 'number')} of {group.names}",
            f"{update_in_words(group)}{how}",
            done,
            update_place(plan),
        )
        for group in groups
    ]


def loss_text(plan: Plan) -> str:
    """Return a text such as `mse against price: the mean over the batch of 64`. If a device computes only a part of
    this mean, the text says so."""
    batch, layout = plan.batch, plan.layout
    parts = batch.accumulation * batch.num_microbatches * (1 if layout.scatters else batch.data_parallel_size)
    whole = f"the mean over the batch of {batch.global_batch_size:,}"
    kinds = dict.fromkeys(
        f"{term.component['type']} against {term.target}" if term.target else str(term.component["type"])
        for term in plan.objective.terms
    )
    return f"{', '.join(kinds)}: {f'this part of {whole}' if parts > 1 else whole}"


def describe_update(plan: Plan) -> str:
    if plan.layout.pipeline is not None:
        return "; each rank its own"
    return "; each rank its shard" if plan.layout.is_sharded else ""


def update_place(plan: Plan) -> str:
    return "device 0" if plan.layout.scatters else places(plan)


def several(text: str, times: int) -> str:
    return f"{times} x [{text}]" if times > 1 else text


def layers_table(plan: Plan, width: int | None) -> str:
    rows = plan.batch.microbatch_size
    graph = open_graph(plan)
    found = []
    for node in graph.nodes:
        before = ", ".join(shape(graph.spec(edge), rows) for edge in node.inputs.values())
        after = ", ".join(shape(spec, rows) for spec in node.outputs.values())
        found.append((node.name, node_text(node), before, after, parameters_below(plan, node.name), holder(plan, node)))
    return table(("node", "type", "in", "out", "parameters", "where"), found, right=(4,), width=width)


def open_graph(plan: Plan) -> Graph:
    return open_blocks(plan.graph, plan.layout.units)


def node_text(node: Node) -> str:
    """Return what a node of the graph computes, as text: the type of a layer, an expression, or the name of a block
    with the types of the nodes in it."""
    if node.graph is None:
        return kind(node)
    parts = [kind(part) for part in node.graph.nodes if part.kind != "expression"]
    if not parts:
        return kind(node)
    more = ", ..." if len(parts) > MOST_PARTS else ""
    return f"{kind(node)} ({', '.join(parts[:MOST_PARTS])}{more})"


def parameters_below(plan: Plan, name: str) -> str:
    """Return the number of parameters of a node as text, or `tied` if another node owns them."""
    below = [item for item in plan.parameters if item.name.startswith(f"{name}.")]
    own = sum(item.num_elements for item in below if item.tie is None)
    return "tied" if not own and below else f"{own:,}"


def shape(spec: TensorSpec, rows: int) -> str:
    return " x ".join(f"{size:,}" for size in (rows, *spec.shape))


def shapes(plan: Plan, rows: int, times: int = 1) -> str:
    """Return a text with the name of each field and its shape in a batch of `rows` rows. `times`: number of such
    batches; the text shows it if it is above 1."""
    found = "; ".join(f"{field.name} ({shape(field.tensor, rows)})" for field in plan.data.fields)
    return several(found, times)


def inputs_text(plan: Plan, rows: int) -> str:
    """Return the names of the fields that the model reads, each with its shape for `rows` rows, as text."""
    return "; ".join(f"{name} ({shape(spec, rows)})" for name, spec in plan.graph.inputs.items())


def outputs_text(plan: Plan, rows: int) -> str:
    return "; ".join(f"{name} ({shape(plan.graph.spec(edge), rows)})" for name, edge in plan.graph.outputs.items())


def entry_shapes(graph: Graph, names: tuple[str, ...], rows: int) -> str:
    """Return the shapes of the values that a pipeline stage reads but does not compute, for `rows` rows, as text; "-"
    if there are none. `names`: the nodes of the stage."""
    outside = [
        edge for name in names for edge in graph.node(name).inputs.values() if edge.partition(":")[0] not in names
    ]
    return ", ".join(dict.fromkeys(shape(graph.spec(edge), rows) for edge in outside)) or "-"


def spec_of(graph: Graph, wire: str) -> TensorSpec:
    """Return the spec (shape, dtype and range) of a value. `wire`: its name in the recipe, such as `lstm`, or for an
    output other than the first `lstm.hidden`."""
    for node in graph.nodes:
        for index, (output, spec) in enumerate(node.outputs.items()):
            if wire == (node.name if index == 0 else f"{node.name}.{output}"):
                return spec
    return graph.inputs[wire]


def places(plan: Plan) -> str:
    return list_numbers(plan, list(range(plan.layout.num_devices)))


def list_numbers(plan: Plan, numbers: list[int]) -> str:
    word = "device" if plan.layout.scatters else "rank"
    if len(numbers) > MOST_DEVICES:
        return f"{word}s {numbers[0]} .. {numbers[-1]}"
    return ", ".join(f"{word} {number}" for number in numbers)


def holders(plan: Plan, stage: int) -> str:
    return list_numbers(plan, [rank.rank for rank in plan.layout.ranks if stage in rank.stages])


def holder(plan: Plan, node: Node) -> str:
    pipeline = plan.layout.pipeline
    if pipeline is None:
        return places(plan)
    return holders(plan, next(index for index, names in enumerate(pipeline.stages) if node.name in names))


def loss_place(plan: Plan) -> str:
    pipeline = plan.layout.pipeline
    if pipeline is not None:
        return holders(plan, pipeline.num_stages - 1)
    return "device 0" if plan.layout.scatters else places(plan)
