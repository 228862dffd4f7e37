"""Text of `dtrain plan`, in aligned columns. Equal ranks and equal rows are printed once, so that 4,096 ranks fit on a
page."""

from __future__ import annotations

from collections.abc import Sequence

from declarative_train.components.datasets import DATASETS
from declarative_train.components.losses import LOSSES
from declarative_train.components.metrics import METRICS
from declarative_train.components.plugin_components import PLUGIN
from declarative_train.components.registry import C, Registry
from declarative_train.core.amounts import amount, clock, format_count, list_names, plural
from declarative_train.core.secrets import masked
from declarative_train.data.length_buckets import bucket_shares
from declarative_train.data.mixture import MIXTURE, list_mixture
from declarative_train.data.spec import BatchSpec, FieldSpec, SetSpec
from declarative_train.files.paths import format_path
from declarative_train.plan.channels_last import describe_layout as channels_last
from declarative_train.plan.layout import LayoutPlan
from declarative_train.plan.plan import MetricPlan, Plan, TermPlan, TrainingPlan
from declarative_train.planner.text.estimate import (
    describe_choice,
    describe_estimate,
    describe_memory,
    estimate_in_words,
    format_largest_memory,
    memory,
    memory_title,
    not_traced,
)
from declarative_train.planner.text.layout import describe_layout
from declarative_train.planner.text.model import (
    columns,
    component_in_words,
    describe_model,
    describe_parameters,
    section,
)

_MOST_CLASSES = 12  # that are listed by name


def describe(plan: Plan, *, hashes: bool = True) -> str:
    """Return the text of `dtrain plan`, without a final newline. `hashes`: include the hashes of the plan and of files.
    Tests leave them out, because they differ between machines."""
    parts = [
        _head(plan) + (f", plan {plan.identity[:12]}" if hashes else ""),
        section("data", _data(plan)),
        section("batch", _batch(plan)),
        section("model", describe_model(plan)),
        section("settings of parameters", describe_parameters(plan)),
        section("objective", _objective(plan)),
        section("training", _training(plan)),
        section("layout", describe_layout(plan)),
        section(memory_title(plan), [*describe_memory(plan), *not_traced(plan)]),
        section("parallelism: auto", describe_choice(plan)),
        section(f"step on {plan.estimate.hardware}, estimated" if plan.estimate else "", describe_estimate(plan)),
        section("files", _files(plan)) if hashes else "",
    ]
    return masked("\n\n".join(part for part in parts if part))


def summary(plan: Plan) -> str:
    """Return a summary of the plan in a few lines, for the start of a run."""
    sets = ", ".join(f"{each.name} {each.num_samples:,}" for each in plan.data.sets)
    own = [item for item in plan.parameters if item.tie is None]
    count = sum(item.num_elements for item in own)
    optimizer = f"{plan.training.optimizer['type']} lr {plan.training.optimizer.get('lr')}"
    rows = [
        ["data", f"{_data(plan)[0]}: {sets} samples"],
        ["batch", "; ".join(_batch(plan)[:2])],
        ["model", f"{format_count(count, 'parameter')} ({amount(count)}), {optimizer}, {plan.training.precision}"],
        ["memory", f"about {format_largest_memory(plan)} on a device"],
    ]
    if plan.choice is not None:
        rows.append(["auto", plan.choice.reason])
    if plan.estimate is not None and plan.estimate.step_s is not None:
        rows.append(["estimate", estimate_in_words(plan.estimate)])
    return "\n".join([_head(plan), *columns(rows, numbers=False)])


def _head(plan: Plan) -> str:
    return f"{plan.name}: {mode_in_words(plan.layout)}, seed {plan.seed}, language {plan.language}"


def mode_in_words(layout: LayoutPlan) -> str:
    """Return the mode and the devices of a layout as text: `ddp on 2 GPUs`, `pipeline x fsdp on 4 nodes x 8 GPUs`."""
    if layout.is_one_process and not layout.scatters:
        return "single, on one device"
    product = ""
    if layout.pipeline is not None:
        product = " x fsdp" if layout.is_sharded else " x ddp" * layout.has("replicate")
        others = (axis.name for axis in layout.mesh if axis.name not in ("pipeline", "replicate", "shard"))
        product += "".join(f" x {name}" for name in others)
    nodes = f"{layout.num_nodes} nodes x " if layout.num_nodes > 1 else ""
    who = "replica" if layout.scatters else "rank"
    number = layout.num_copies if layout.scatters else layout.gpus_per_node
    kinds = {"cpu": f"CPU {who}", "mps": "Apple GPU (mps)"}
    places = format_count(number, kinds.get(layout.device, "GPU"))
    if layout.device == "auto":
        places += f" (or as many CPU {plural(who)})"
    return f"dp, one process on {places}" if layout.scatters else f"{layout.mode}{product} on {nodes}{places}"


def _data(plan: Plan) -> list[str]:
    source = plan.data.source
    where = source.get("path")
    places = where if isinstance(where, list) else [where]
    shown = list_names(format_path(str(each)) for each in places)
    lines = [_describe_generated(source) if where is None else f"{source['type']} {shown}"]
    if plan.data.mix:
        lines = ["mix", *columns([list(MIXTURE), *list_mixture(plan.data)])]
    if plan.data.window is not None:
        window = plan.data.window
        lines.append(
            f"a sample is {format_count(window.length, 'row')}, one every {format_count(window.stride, 'row')}"
        )
    lines += columns([_set(each) for each in plan.data.sets])
    if shares := bucket_shares(plan.data):
        words = ", ".join(f"{length:,} ({share:.0%})" for length, share in shares)
        lines.append(f"length buckets, and their shares of the training samples: {words}")
    lines += columns([["field", "per sample", "dtype", "values"], *map(_field, plan.data.fields)])
    lines += [line for field in plan.data.fields for line in _classes(field)]
    lines += [
        f"statistics of {field.name} from {field.statistics_from}"
        for field in plan.data.fields
        if field.statistics_from
    ]
    return lines


def _classes(field: FieldSpec) -> list[str]:
    """Return a line of text for each column of categories in a field: its class names with their numbers. The list is
    empty for a field without a vocabulary."""
    found = field.statistics.get("vocabulary")
    if not isinstance(found, list):
        return []
    unknown = field.component.get("unknown")
    several = len(found) > 1
    lines = []
    for column, vocabulary in zip(field.columns or [""] * len(found), found, strict=True):
        if not isinstance(vocabulary, list):
            continue
        free = unknown if isinstance(unknown, int) else len(vocabulary)
        numbered = [f"{at + (at >= free)} {_short(value)}" for at, value in enumerate(vocabulary)]
        if isinstance(unknown, int):
            numbered.insert(unknown, f"{unknown} (unknown)")
        shown = [*numbered[:_MOST_CLASSES], "...", numbered[-1]] if len(numbered) > _MOST_CLASSES + 1 else numbered
        lines.append(f"classes of {f'{field.name}, {column}' if several else field.name}: {', '.join(shown)}")
    return lines


def _describe_generated(source: dict[str, object]) -> str:
    """Return a line on a source that generates its data: its type and the keys that differ from the defaults."""
    return component_in_words({"type": source["type"]} | DATASETS.read(source).as_data(defaults=False))


def _set(each: SetSpec) -> list[str]:
    return [
        each.name,
        format_count(each.num_samples, "sample"),
        "" if each.source is None else f"from {each.source['type']}",
    ]


def _field(field: FieldSpec) -> list[str]:
    tensor = field.tensor
    values = f"0..{tensor.num_values - 1}" if tensor.num_values is not None else ""
    return [field.name, f"({', '.join(map(str, tensor.shape))})", tensor.dtype, values]


def _batch(plan: Plan) -> list[str]:
    batch, training = plan.batch, plan.training
    lines = [batch_in_words(batch, plan.layout)]
    whole, rest = divmod(training.num_steps, batch.steps_per_epoch)
    epochs = f"{training.num_steps / batch.steps_per_epoch:,.2f} epochs" if rest else format_count(whole, "epoch")
    lines.append(
        f"{format_count(training.num_steps, 'step')} = {epochs} x {format_count(batch.steps_per_epoch, 'step')}"
    )
    rest = plan.data.set("training").num_samples % batch.global_batch_size
    if rest and plan.data.last_batch == "keep":
        padded = ", padded with rows of weight 0" if batch.pad_to_full else ""
        lines.append(f"the last batch of an epoch has {format_count(rest, 'sample')}{padded}")
    elif rest:
        lines.append(f"{format_count(rest, 'sample')} at the end of an epoch are dropped")
    return lines


def batch_in_words(batch: BatchSpec, layout: LayoutPlan) -> str:
    """Return the batch size as a product, such as `100 = 2 ranks x 1 accumulation x 50`."""
    word = layout.place_word if layout.pipeline is None else "pipeline"
    factors = [format_count(batch.data_parallel_size, word), f"{batch.accumulation} accumulation"]
    if layout.pipeline is not None:
        factors.append(format_count(batch.num_microbatches, "microbatch"))
    return f"{batch.global_batch_size:,} = {' x '.join(factors)} x {batch.microbatch_size}"


def _objective(plan: Plan) -> list[str]:
    rows = []
    for term in plan.objective.terms:
        weight = f"weight {term.weight:g}" if term.weight != 1 or len(plan.objective.terms) > 1 else ""
        rows.append(["loss", term.name, _call(LOSSES, term), weight])
    for metric in plan.objective.metrics:
        where = "" if METRICS.read(metric.component).is_mean else "only in evaluations: it is not a mean over items"
        rows.append(["metric", metric.name, _call(METRICS, metric), where])
    return columns(rows)


def _call(table: Registry[C], term: TermPlan | MetricPlan) -> str:
    """Return a loss or metric as text: its type, the tensors that it reads, and the keys that differ from the
    defaults. `table`: LOSSES or METRICS."""
    fields = table.read(term.component).as_data(defaults=False)
    words = [f"{key} {_short(value)}" for key, value in fields.items() if key not in ("type", PLUGIN)]
    against = "" if term.target is None else f" against {term.target}"
    where = "" if term.mask is None else f" where {term.mask}"
    unit = getattr(term, "unit", None)
    words += [] if unit is None else [f"in the unit of {unit.field}"]
    return ", ".join([f"{term.component['type']} of {term.input}{against}{where}", *words])


def _short(value: object, most: int = 40) -> str:
    text = str(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _precision(training: TrainingPlan) -> str:
    words: list[str] = [training.precision]
    if training.reduce == "bf16":
        words.append("gradients reduced in bf16")
    if training.matmul == "tf32":
        words.append("products of float32 matrices in TF32")
    return ", ".join(words)


def _training(plan: Plan) -> list[str]:
    training = plan.training
    rows = [
        ["optimizer", component_in_words(training.optimizer)],
        ["lr schedule", component_in_words(training.lr_schedule) + _warmup(plan)],
        ["precision", _precision(training)],
    ]
    if training.clip_grad_norm is not None:
        rows.append(["clip grad norm", f"{training.clip_grad_norm:g}"])
    if training.deterministic:
        rows.append(["deterministic", "only deterministic kernels"])
    last = channels_last(plan)
    if last is not None:
        rows.append(["channels last", last])
    if training.compile:
        rows.append(["compile", "each block"])
    if training.recomputation.policy != "none":
        rows.append(["recompute", training.recomputation.in_words])
    if training.ema_decay is not None:
        rows.append(["moving average", f"decay min({training.ema_decay:g}, (1 + step) / (10 + step))"])
    if training.early_stop is not None:
        stop = training.early_stop
        rows.append(
            ["early stop", f"after {format_count(stop.patience_steps, 'step')} without a {stop.mode} of {stop.metric}"]
        )
    if training.max_time_s is not None:
        rows.append(["at most", clock(training.max_time_s)])
    rows += _intervals(plan)
    if plan.draws:
        rows.append(["draws", f"{list_names(plan.draws)}: reproducible only on this layout"])
    return columns(rows, numbers=False)


def _warmup(plan: Plan) -> str:
    steps = plan.training.num_warmup_steps
    return f", {format_count(steps, 'step')} of warm-up" if steps else ""


def _intervals(plan: Plan) -> list[list[str]]:
    rows = []
    evaluation, checkpoint = plan.evaluation, plan.checkpoint
    if evaluation is not None:
        sets = ", ".join(evaluation.sets)
        most = (
            f", at most {format_count(evaluation.max_samples, 'sample')} of each"
            if evaluation.max_samples is not None
            else ""
        )
        most += " (moving average)" if evaluation.weights == "ema" else ""
        last = f"; {', '.join(evaluation.final_sets)} once, at the end" if evaluation.final_sets else ""
        rows.append(["evaluation", (f"{sets} {_every(evaluation.every_steps)}{most}{last}" if sets else last[2:])])
    if checkpoint is not None:
        best = f", and the {checkpoint.best_mode} of {checkpoint.best_metric}" if checkpoint.best_metric else ""
        kept = f"the last {checkpoint.keep} kept{best}{_below(plan)}"
        rows.append(["checkpoint", f"{_every(checkpoint.every_steps)}, {kept}{_background_copy(plan)}"])
    rows.append(
        [
            "logging",
            f"{_every(plan.logging.every_steps)}, below {plan.logging.dir}{_format_copy(plan)}{_describe_sinks(plan)}",
        ]
    )
    return rows


def _background_copy(plan: Plan) -> str:
    """Return a note on the host memory that checkpoints written in the background need, or "" if there are none."""
    if plan.checkpoint is None or not plan.checkpoint.background:
        return ""
    size = amount(max(each.parameters + each.optimizer for each in memory(plan)), "B")
    is_split = plan.layout.is_sharded or plan.layout.has("pipeline")
    return f"; written in the background, from a copy of {size} on the host{' for each rank' if is_split else ''}"


def _below(plan: Plan) -> str:
    folder = plan.logging.checkpoints
    return "" if folder is None else f", below {folder}"


def _format_copy(plan: Plan) -> str:
    return "" if plan.logging.remote is None else f", copied to {format_path(plan.logging.remote)}"


def _describe_sinks(plan: Plan) -> str:
    """Return a note that names the log sinks of the run, or "" if they are the default ones."""
    names = list(plan.logging.sinks)
    return "" if names == ["tensorboard"] else f", to {', '.join([*names, 'events.jsonl'])}"


def _every(steps: int | None) -> str:
    return "at the end" if steps is None else f"every {format_count(steps, 'step')}"


def _files(plan: Plan) -> list[str]:
    rows = [[format_path(record.path), amount(record.size_bytes, "B"), record.sha256[:12]] for record in plan.files]
    data: Sequence[list[str]] = [
        [format_path(record.path), amount(record.size_bytes, "B"), record.sha256[:12]] for record in plan.data.files
    ]
    shown = [*rows, *data[:8]]
    more = [f"and {format_count(len(data) - 8, 'more data file')}"] if len(data) > 8 else []
    return columns(shown) + more
